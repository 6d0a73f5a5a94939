"""What a time loop returns, found before it runs: its first step is called once, with arrays without data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import flatten, has_vectors, is_differentiable, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.stepping.inputs import KNOWN, Inputs, traced_elements, with_shown
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.returned import check_types
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.values.state import CHANGEABLE, alike, owned
from ebbtide.program.equation import Variable, kind_of
from ebbtide.program.holding import is_symbolic
from ebbtide.program.tracing import trace_leaves
from ebbtide.tape.tangent import TangentTrace


@final
@dataclass(frozen=True, slots=True)
class Results:
    """
    What a loop returns, and what it takes from outside.

    Args:
        kinds: Types of the leaves of the final state and the outputs.
        numbers: Which of them are Python numbers.
        count: How many leaves the state has.
        structure: That of the outputs; None without outputs.
        statics: The arrays from outside that a step uses.
    """

    kinds: list[ArrayType]
    numbers: list[bool]
    count: int
    structure: Any
    statics: list[TracedArray]


def find_results(
    step: Callable[..., Any], leaves: list[Any], structure: Any, length: int, inputs: Any, options: Options
) -> Results:
    """
    Return what a time loop returns and takes from outside, found by running its first step without data.

    Args:
        step: The user's step.
        leaves: Leaves of the state.
        structure: Structure of the state.
        length: The number of steps, or the most.
        inputs: The user's inputs.
        options: The other arguments of the loop.

    Raises:
        TraceError: The step asks for values, writes into what is not its own, or returns a state of other types.
    """
    # A leaf that comes to depend on what is traced in a later step than the first does so from the start.
    symbolic = [type(leaf) is TracedArray or is_differentiable(leaf) for leaf in leaves]
    while True:
        outputs, output_structure, statics = _run_first(step, leaves, symbolic, structure, inputs, options)
        state, emitted = outputs[: len(leaves)], outputs[len(leaves) :]
        before = symbolic
        symbolic = [was or type(value) is Variable for was, value in zip(before, state, strict=True)]
        if symbolic == before:
            break
    kinds = [kind_of(x) for x in state]
    rows = [kind_of(x) for x in emitted]
    numbers = [type(x) in PYTHON_NUMBERS for x in state]
    stacks = [ArrayType((length, *kind.shape), kind.dtype) for kind in rows]
    return Results(kinds + stacks, numbers + [False] * len(rows), len(leaves), output_structure, statics)


def _run_first(
    step: Callable[..., Any], leaves: list[Any], symbolic: list[bool], structure: Any, inputs: Any, options: Options
) -> tuple[list[Any], Any, list[TracedArray]]:
    """Return what the first step gives, as variables and known values, the structure of its output, and its statics."""
    stepper = Stepper(_as_derived(step), structure, Inputs(inputs, None, checked=False), options.outputs, None)
    x, x_structure = _first_input(inputs)
    given = [k for k, leaf in enumerate(leaves) if symbolic[k]]
    rows = [k for k, leaf in enumerate(x) if type(leaf) is TracedArray]

    def run(arrays: list[Any]) -> list[Any]:
        # Copies: a step may write into what it is given, if that is no number.
        arrays = [array if array._node.is_number else array.copy() for array in arrays]
        state = [leaf if known else owned(leaf) for leaf, known in zip(leaves, symbolic, strict=True)]
        for number, array in zip(given, arrays, strict=False):
            state[number] = array
        row = [owned(leaf, "the inputs") if isinstance(leaf, CHANGEABLE) else leaf for leaf in x]
        for number, array in zip(rows, arrays[len(given) :], strict=True):
            row[number] = array
        if options.until is not None:
            with suppress(TraceError):  # it may ask for values: all that is wanted here is which arrays it uses
                options.until(unflatten(structure, [s.copy() if type(s) is TracedArray else s for s in state]))
        after, output = stepper.call(0, state, row, x_structure)
        for leaf in after:
            if type(leaf) is not TracedArray:
                owned(leaf)  # what is no array and no number is refused
        after = [alike(_number_of(old), new) for old, new in zip(leaves, after, strict=True)]
        check_types(step, structure, 0, leaves, after)
        return after + output

    kinds = [_stand_in(leaf) for leaf in [*(leaves[k] for k in given), *(x[k] for k in rows)]]
    names = [f"state{k}" for k in given] + [f"input{k}" for k in rows]
    traced = trace_leaves(run, kinds, names, "step")
    return list(traced.program.outputs), stepper.seen.structure, [array.frozen() for array in traced.captured]


def _as_derived(step: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a step that finds vectors in its input as it will when the program runs.

    Where a derivative is taken these are traced. What a primitive makes of them alone has to be a value still, as an
    opaque one has no type without data: the step runs in forward mode without tangents, as in a `Bypass`.
    """
    if all(type(trace) is BatchTrace for trace in current().traces):
        return step

    @wraps(step)
    def derived(state: Any, x: Any) -> Any:
        if not has_vectors(x):
            return step(state, x)
        context = current()
        trace = TangentTrace(context.level + 1)
        leaves, structure = flatten(state)
        leaves = [trace.constant(leaf) if type(leaf) is TracedArray else leaf for leaf in leaves]
        with entered(level=trace.level, tangent=trace, traces=(*context.traces, trace)):
            found, result = flatten(step(unflatten(structure, leaves), with_shown(trace, x)))
        mine = [type(leaf) is TracedArray and leaf.present()._trace is trace for leaf in found]
        return unflatten(result, [leaf._value if own else leaf for leaf, own in zip(found, mine, strict=True)])

    return derived


def _stand_in(leaf: Any) -> Any:
    """Return what a leaf has its type of: a Python number has no dtype of its own."""
    found = _number_of(leaf)
    return type_of(leaf) if found is leaf else found


def _number_of(leaf: Any) -> Any:
    """Return a Python number for a symbol of one, else the leaf."""
    variable = leaf._node if type(leaf) is TracedArray else None
    return variable.type.dtype.type(1).item() if type(variable) is Variable and variable.is_number else leaf


def _first_input(inputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of the input of the first step, and their structure."""
    if inputs is None or callable(inputs):
        return [0], None
    if isinstance(inputs, TracedArray):
        kind = ArrayType(inputs.shape[1:], inputs.dtype)
        return [TracedArray(inputs._trace, None, kind)], flatten(0)[1]
    leaves, structure = flatten(inputs[0])
    if not isinstance(inputs, KNOWN) and is_symbolic(leaves):
        raise traced_elements(inputs)
    return leaves, structure
