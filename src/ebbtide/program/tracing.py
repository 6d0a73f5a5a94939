"""How a function becomes a program."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from ebbtide.arrays.containers import flatten, paths_of, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import root_of
from ebbtide.errors import TraceError
from ebbtide.program.check import passed
from ebbtide.program.operands import strides_of
from ebbtide.program.program import Program
from ebbtide.program.reference import Executable
from ebbtide.program.results import own_results
from ebbtide.program.simplify import merge_common, remove_dead, skip_identities
from ebbtide.program.symbolic import UNSET, SymbolicTrace
from ebbtide.tape.recording import settle


@final
@dataclass(frozen=True, slots=True)
class Traced:
    """
    A function that was traced.

    Args:
        program: The program.
        captured: The arrays from outside that it met, as the function has them: they are its last inputs.
        limit: The bytes that a run may take, by the budgets of derivatives and programs in it; None without any.
        memory: For each result a number that is the same for those that share memory in the function: that of the input
            for a view of an input, a larger one for all others, and None where the function cannot tell.
    """

    program: Program
    captured: tuple[TracedArray, ...]
    limit: int | None = None
    memory: tuple[int | None, ...] = ()

    def owned(self, strides: Sequence[tuple[int, ...]]) -> Program:
        """Return the program as it is run on inputs with these strides, its results in memory of their own."""
        return own_results(self.program, strides, self.memory)


def trace_leaves(
    function: Callable[[list[Any]], Sequence[Any]],
    leaves: Sequence[Any],
    names: Sequence[str],
    name: str,
    donated: Container[int] = (),
    *,
    by_members: bool = False,
) -> Traced:
    """
    Trace a function of a list of arrays.

    Args:
        function: Takes one traced array for each leaf, and returns a list of arrays and numbers.
        leaves: Arrays and numbers, of which only the types are taken.
        names: Names of the leaves.
        name: Name of the program.
        donated: Numbers of the leaves that the function may write into.
        by_members: Whether a `vmap` in the function is one equation, which does one member after the other.

    Returns:
        The program, and what else is known of the function.

    Raises:
        TraceError: The function asks for a value, or writes into an argument.
    """
    trace = SymbolicTrace(current().level, by_members=by_members)
    given = [trace.input(leaf, leaf_name) for leaf, leaf_name in zip(leaves, names, strict=True)]
    inputs, arrays = [variable for variable, _ in given], [array for _, array in given]
    del given
    try:
        with claiming(trace):
            outputs = list(function(list(arrays)))
            settle(outputs)
            found = [trace.entry(output) if type(output) is TracedArray else output for output in outputs]
        trace.check_unchanged()
    finally:
        equations = trace.close()
    for number, (variable, array) in enumerate(zip(inputs, arrays, strict=True)):
        if array._node is not variable and number not in donated:
            raise TraceError(
                f"{name} writes into its argument {variable.name} at {array.sharing().line}, and what a traced "
                "function was given must not change. Write into a copy, and return it, or donate the argument."
            )
    captured = [variable for variable, _ in trace.captured]
    program = Program(name, (*inputs, *captured), tuple(found), equations)
    program = passed(program, remove_dead, skip_identities, merge_common)
    return Traced(program, tuple(trace.origins), trace.limit, _memory_of(outputs, [*arrays, *trace.origins]))


def _memory_of(outputs: Sequence[Any], given: Sequence[TracedArray]) -> tuple[int | None, ...]:
    """Return for each output the number of the array that it is a view of: those that are given first."""
    numbers = {id(root_of(array)): number for number, array in reversed(list(enumerate(given)))}
    found: list[int | None] = []
    for output in outputs:
        is_traced = type(output) is TracedArray
        if is_traced and output.sharing().static:
            found.append(None)  # of an array from outside, which is not noted
        else:
            root = root_of(output) if is_traced else output
            found.append(numbers.setdefault(id(root), len(given) + len(numbers)))
    return tuple(found)


@final
class _AsAround:
    """
    Treats the floating-point errors of plain arrays in a traced function as its caller has set it.

    NumPy itself is told to hand them over, which nobody else tells it: so what the function sets can be told.

    Args:
        around: The treatment of each kind of error.
    """

    def __init__(self, around: Mapping[str, Any]) -> None:
        self._around = around

    def write(self, message: str) -> None:
        """Take the message of an error from NumPy."""
        text = message.removeprefix("Warning: ").strip()
        how = next((how for kind, how in self._around.items() if text.startswith(kind)), "warn")
        if how == "raise":
            raise FloatingPointError(text)
        if how != "ignore":
            warnings.warn(text, RuntimeWarning, stacklevel=2)


@contextmanager
def claiming(trace: SymbolicTrace) -> Iterator[None]:
    """Run the block, in which a function is traced; the traces around have to ask whose an operation is."""
    context = current()
    quick = [tape for tape in {*context.traces, context.tape, context.capture} if getattr(tape, "fast", False)]
    try:
        for tape in quick:
            tape.fast = False
        # The program runs later, when the budget and the journals of the calls around may be others.
        inside = entered(tape=None, tangent=None, traces=(), capture=trace, follower=trace, budget=None, resume=None)
        with inside, np.errstate(all=UNSET, call=_AsAround(dict(np.geterr()))):
            yield
    finally:
        # A sweep that failed has left its node there, whose saved values are arrays of the trace.
        trace.node = None
        for tape in quick:
            tape.fast = not tape.closed


def trace(f: Callable[..., Any], *args: Any) -> Program:
    """
    Return what a function computes, as a program.

    Args:
        f: A function of arrays and containers of arrays. It is called once, with arrays that have a shape and a dtype
            and no data: Python code that asks for a value is an error.
        *args: Arrays, numbers and containers of them; only their shapes, dtypes and strides matter.

    Returns:
        The program: its inputs are the leaves of the arguments, its outputs those of the result. `predict()` says what
        a run will hold, and `source` is what would run.

    Raises:
        TraceError: The function asks for a value, or writes into an argument.

    Memory:
        The equations, and by reference the plain arrays that the function uses.

    Example:
        >>> import numpy as np
        >>> program = trace(lambda x: np.sum(np.sin(x) * 2.0), np.zeros(3))
        >>> [equation.name for equation in program.equations]
        ['sin', 'multiply', 'sum']
        >>> program.predict().peak_bytes
        72
    """
    check_function(f, "trace")
    leaves, structure = flatten(args)
    names = [name_argument(f, path) for path in paths_of(structure)]
    for leaf, path in zip(leaves, paths_of(structure), strict=True):
        if not isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype"):
            raise TypeError(
                f"trace cannot take its arguments{path}: it is a {type(leaf).__name__}. They are arrays, numbers, and "
                "containers of them; pass the rest by a closure."
            )

    def on_leaves(arrays: list[Any]) -> list[Any]:
        return flatten(f(*unflatten(structure, arrays)))[0]

    traced = trace_leaves(on_leaves, leaves, names, name_of(f))
    strides = strides_of([*leaves, *traced.captured])
    return replace(traced.program, plan=partial(_planned, strides=strides, memory=traced.memory, limit=traced.limit))


def _planned(
    program: Program, strides: Sequence[tuple[int, ...]], memory: Sequence[int | None], limit: int | None
) -> Executable:  # fmt: skip
    """Return a program as it is run, its results in memory of their own."""
    return Executable(own_results(program, strides, memory), strides, limit=limit)


def name_of(f: Callable[..., Any]) -> str:
    """Return what a program calls a function."""
    name = getattr(f, "__name__", type(f).__name__)
    return name if name.isidentifier() else "function"


def name_argument(f: Callable[..., Any], path: str) -> str:
    """Return the name of a leaf of the positional arguments, such as `weights['a'][0]` for `[1]['a'][0]`."""
    number, _, rest = path.removeprefix("[").partition("]")
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    place = int(number)
    named = place < len(parameters) and parameters[place].kind is not inspect.Parameter.VAR_POSITIONAL
    return (parameters[place].name if named else f"argument{place}") + rest
