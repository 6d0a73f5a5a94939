"""Functions that a solver calls many times on plain arrays, and that derivatives go through: what they use, found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.context import current, entered, outside
from ebbtide.arrays.primitive import Primitive, inside, plain
from ebbtide.arrays.reach import arrays_of, bound_now
from ebbtide.arrays.traced import TracedArray
from ebbtide.loop.stepping.given import Given, Key, key_of
from ebbtide.program.tracing import trace_leaves

_OTHER_ARRAY = (
    "A function that a solver calls uses at {line} an array from outside that it did not use when it was first called, "
    "or that was written in place since. What it uses from outside is found once: pass the array in args=, or write "
    "into a copy."
)


def here(value: Any) -> Any:
    """Return an operand as the region around sees it, if there is one; as it is now."""
    return inside(current().capture, value.frozen()) if type(value) is TracedArray else value


def detached(value: Any) -> Any:
    """Return an array without its derivatives: the plain one itself, not a copy, or that of a batch or program."""
    while type(value := here(value)) is TracedArray:
        if type(value._value) is ArrayType:  # of which the values are not known here
            trace = value._trace
            return trace.members(detached(value._node)) if type(trace) is BatchTrace else value
        value = value._value
    return value


@final
class Closure:
    """
    Functions of `(x, *args)` with all arrays that they are given or use from outside, as operands of one operation.

    Args:
        functions: The functions. They are called once, to see what they use.
        x: An array as they will be called with.
        args: Their other arguments: containers of arrays, and anything else.

    After that `kind` is the type of what the first of them gave, joined with that of x, None where nothing is traced;
    and `has_values` says whether they were called with values.

    Memory:
        The functions, and what they use, by reference.
    """

    __slots__ = ("_found", "_functions", "_leaves", "_places", "_structure", "has_values", "kind", "level", "operands")

    def __init__(self, functions: Sequence[Callable[..., Any]], x: Any, args: tuple[Any, ...]) -> None:
        # When a derivative is taken the variables that they close over may stand for something else.
        self._functions = [bound_now(function) for function in functions]
        self.level = current().level
        leaves, self._structure = flatten(args)
        self._places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, (TracedArray, np.ndarray))]
        given = [here(leaves[k]) for k in self._places]
        self._leaves = [None if k in self._places else leaf for k, leaf in enumerate(leaves)]
        self.kind: ArrayType | None = None
        self.has_values = True
        self._found = self._used(x, given)
        self.operands = (*given, *[here(array) for array in self._found])

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """The plain arrays that the functions keep alive."""
        return tuple(arrays_of(self._functions))

    def _args(self, operands: Sequence[Any]) -> Any:
        leaves = list(self._leaves)
        for place, operand in zip(self._places, operands, strict=False):
            leaves[place] = operand
        return unflatten(self._structure, leaves)

    def _used(self, x: Any, given: list[Any]) -> list[TracedArray]:
        """Return the traced arrays that the functions use from outside."""
        context = current()
        if not context.traces and context.capture is None and context.tape is None:
            return []
        x, given = detached(x), [detached(operand) for operand in given]
        finder = _Finder(context.level)
        try:
            _require_values([x, *given])
            with _asking([*context.traces, context.tape, context.capture]), outside(capture=finder):
                args = self._args(given)
                values = [function(x, *args) for function in self._functions]
            self.kind = _joined(x, values[0])
        except _NoValues:
            # In a batch or a program there are none.
            self.has_values = False

            def run(arrays: list[Any]) -> list[Any]:
                args = self._args(arrays[1:])
                values = [function(arrays[0], *args) for function in self._functions]
                self.kind = _joined(x, values[0])
                return flatten(values)[0]

            names = ["x", *[f"operand{k}" for k in range(len(given))]]
            return list(trace_leaves(run, [type_of(value) for value in (x, *given)], names, "function").captured)
        return list(finder.found.values())

    @contextmanager
    def bound(self, operands: Sequence[Any], *, values: bool = False) -> Iterator[list[Callable[[Any], Any]]]:
        """
        Give the functions as functions of x alone, for other values of the operands.

        Args:
            operands: Of the number and types of `operands`.
            values: Whether all operands are plain, and so is x.
        """
        count = len(self._places)
        args = self._args(operands)
        pairs = zip(self._found, operands[count:], strict=True)
        known = {key_of(array): value for array, value in pairs if not _is_same(array, value)}
        traces = tuple({array._trace: None for array in self._found if key_of(array) in known})

        def swapped(array: TracedArray) -> Any:
            return known.get(key_of(array.present()), array)

        functions = [bound_now(f, swapped) if known else f for f in self._functions]
        given = Given(traces, known, current().capture, _OTHER_ARRAY) if known else current().capture
        # Traces inside of the functions are above all that these know.
        level = max(current().level, self.level)
        held = [[function, args] for function in functions]
        with _asking(traces), outside(capture=given) if values else entered(capture=given, level=level):
            try:
                yield [lambda x, pair=pair: pair[0](x, *pair[1]) for pair in held]
            finally:
                for pair in held:  # SciPy's root finders leave what they called in cycles
                    pair.clear()


def _joined(x: Any, value: Any) -> ArrayType:
    """Return the type of x together with what a function gives for it."""
    if isinstance(value, (list, tuple)):
        value = np.zeros(len(value), np.result_type(*[type_of(part).dtype for part in value]))
    kinds = [type_of(x), type_of(value)]
    dtypes = [kind.dtype for kind in kinds if kind.dtype.kind in "fc"]
    # A number may be where an array is sought; other numbers of equations and unknowns are an error later.
    shape = kinds[1].shape if kinds[0].size == 1 else kinds[0].shape
    return ArrayType(shape, np.result_type(*dtypes) if dtypes else np.dtype(np.float64))


def _is_same(array: TracedArray, value: Any) -> bool:
    return type(value) is TracedArray and value._trace is array._trace and key_of(value) == key_of(array)


@contextmanager
def _asking(traces: Sequence[Any]) -> Iterator[None]:
    """Run the block, in which tapes have to ask whose an operation is."""
    quick = [tape for tape in dict.fromkeys(traces) if getattr(tape, "fast", False)]
    for tape in quick:
        tape.fast = False
    try:
        yield
    finally:
        for tape in quick:
            tape.fast = not tape.closed


@final
class _NoValues(Exception):  # noqa: N818 - no error
    """An array has no values here."""


def _require_values(values: Sequence[Any]) -> None:
    if any(type(value) is TracedArray for value in values):
        raise _NoValues


@final
class _Finder:
    """
    Runs functions on the values of the traced arrays that they use, and notes which these are.

    Args:
        level: That of the context: arrays of traces up to it come from outside.

    Memory:
        The arrays, by reference.
    """

    __slots__ = ("around", "closed", "fast", "found", "level")

    def __init__(self, level: int) -> None:
        self.level = level
        self.around = current().capture
        self.closed = False
        self.fast = False
        self.found: dict[Key, TracedArray] = {}

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* come from outside."""
        return trace.level <= self.level

    def constant(self, value: Any) -> Any:
        """Return the plain array: here nothing is traced."""
        return value

    def lift(self, operand: TracedArray) -> Any:
        """Return the value of an array, which is noted."""
        operand = operand.frozen()
        self.found.setdefault(key_of(operand), operand)
        with entered(capture=self.around):
            value = detached(operand)
        _require_values([value])
        return value

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on values."""
        values = [inside(self, x) for x in operands]
        return primitive.bind(tuple([x if type(x) is TracedArray else plain(x) for x in values]), params)
