"""The trace that writes equations: operations on it compute types, and leave behind what there is to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS, abstract_types
from ebbtide.arrays.context import current
from ebbtide.arrays.location import describe_array, is_library, user_line
from ebbtide.arrays.misuse import refuse_objects
from ebbtide.arrays.primitive import Primitive, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import as_array, bottom
from ebbtide.budget import Budget
from ebbtide.errors import MutationError, TraceError
from ebbtide.program.equation import OBJECT, Equation, Place, Variable, stand_in
from ebbtide.program.layout import Layout, dummy, packed_strides
from ebbtide.tape.joint import part
from ebbtide.tape.node import Node
from ebbtide.tape.saved import checksum
from ebbtide.tape.sweep import sweep

# What gives a Python number when it is given Python numbers.
_ARITHMETIC = "_operator"
_SWEEP = sweep.__code__
# How NumPy treats floating-point errors in a traced function where the function has not set it with np.errstate.
UNSET = "log"


@final
class SymbolicTrace:
    """
    Records equations.

    Args:
        level: That of the context in which the function is traced. Arrays of traces up to this level come from outside:
            they become inputs.
        by_members: Whether a `vmap` in the function is one equation, which does one member after the other.

    Memory:
        The equations, with the plain arrays that are operands of them by reference; the arrays from outside.
    """

    __slots__ = (
        "_known", "_laid", "_layout", "_met", "_reached", "by_members", "captured", "closed", "equations", "fast",
        "level", "limit", "node", "origins", "within",
    )  # fmt: skip

    def __init__(self, level: int, *, by_members: bool = False) -> None:
        self.level = level
        self.by_members = by_members
        self.closed = False
        self.fast = False
        # The functions around the present operation that are to be computed again in a reverse sweep.
        self.within: tuple[object, ...] = ()
        # Where the innermost sweep is, which says so.
        self.node: Node | None = None
        self.equations: list[Equation] = []
        # The bytes that a run may take; None where nobody said.
        self.limit: int | None = None
        # Variables of arrays from outside, in the order in which they were met.
        self.captured: list[tuple[Variable, TracedArray]] = []
        # The objects that these were then.
        self.origins: list[TracedArray] = []
        self._known: dict[tuple[int, int], Variable] = {}
        # Plain arrays that equations have by reference, with what they held and the line that met them first.
        self._met: dict[int, tuple[np.ndarray, int, str]] = {}
        # Those that the steps of time loops reach, which the program calls.
        self._reached: dict[int, tuple[np.ndarray, int, str]] = {}
        # How values will lie, worked out up to an equation when somebody asks: that decides what is a view.
        self._layout = Layout({}, {})
        self._laid = 0

    def close(self) -> tuple[Equation, ...]:
        """End the trace, and return its equations; it forgets them, as their functions may close over its arrays."""
        self.closed = True
        equations, self.equations = tuple(self.equations), []
        return equations

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Run the block, in which a function is called that is to be computed again in a reverse sweep."""
        before = self.within
        self.within = (*before, object())
        try:
            yield
        finally:
            self.within = before

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* come from outside."""
        return trace is not self and trace.level <= self.level

    def bound(self, budget: Budget) -> None:
        """
        Let no run of the program take more than the budget of a derivative or program inside of it.

        Raises:
            ValueError: The budget has a disk.
        """
        if budget.disk:
            raise ValueError(
                f"A derivative in a traced function was given {budget}, and a program has no use for a disk: it "
                f"computes values again instead. Write Budget(memory={budget.memory}), or give the time loops "
                "inside a budget in its place: timeloop(..., budget=)."
            )
        self.limit = budget.memory if self.limit is None else min(self.limit, budget.memory)

    def input(self, value: Any, name: str) -> tuple[Variable, TracedArray]:
        """Return a new variable of the type of a value, and the array that stands for it."""
        refuse_objects(value, name)
        variable = Variable(type_of(value), name, is_number=type(value) in PYTHON_NUMBERS)
        array = self.symbol(variable, _strides_of(value))
        return variable, as_array(array) if isinstance(bottom(value), np.ndarray) else array

    def has_view(self, array: TracedArray, base: Any) -> bool:
        """Return whether an array of this trace will be in the memory of another one, a plain or a traced one."""
        layout, node = self._laid_out(), array._node
        if type(base) is not TracedArray or base._trace is not self:
            return node in layout.bases
        if type(base._node) is Variable:
            return layout.base(node) is layout.base(base._node)
        # Of an array that the program has nobody keeps the views: the equation that made this one is the last, mostly.
        made = next((equation for equation in reversed(self.equations) if equation.output is node), None)
        if made is None or made.inputs:
            return False
        return np.may_share_memory(made.function(*made.arguments, **made.params), base._node)

    def stand_in(self, array: TracedArray) -> np.ndarray:
        """Return an array that lies as an array of this trace will, and must not be read."""
        node = array._node
        return dummy(node.type, self._laid_out().strides[node]) if type(node) is Variable else np.asarray(node)

    def _laid_out(self) -> Layout:
        """Return how the values up to here will lie."""
        for equation in self.equations[self._laid :]:
            self._layout.add(equation)
        self._laid = len(self.equations)
        return self._layout

    def forget(self, count: int) -> None:
        """Forget all equations but the first *count*."""
        del self.equations[count:]
        self._laid = min(self._laid, count)

    def constant(self, value: Any) -> TracedArray:
        """Return an array with a value that is known."""
        made = TracedArray(self, value, type_of(value))
        made.sharing().private = True
        return made

    def apply(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, result: ArrayType) -> TracedArray:
        """Record a function without a derivative, whose result has this type."""
        variable = Variable(result, function.__name__)
        return self._recorded(None, function, self._inside(args), self._inside(kwargs), variable)

    def copied(self, function: Callable[[Any], Any], array: TracedArray) -> TracedArray:
        """Record a function without a derivative that copies an array, or returns a number as it is."""
        inside = self.entry(array)
        if type(inside) is not Variable:
            return array.frozen()
        copy = Variable(inside.type, "stop_gradient", is_number=inside.is_number)
        return self._recorded(None, function, (inside,), {}, copy)

    def call(
        self, function: Callable[..., tuple[Any, ...]], name: str, params: Any, results: Sequence[Variable]
    ) -> list[TracedArray]:
        """
        Record a function with several results, which is called when the program runs.

        Args:
            function: `function(**params)` returns a tuple.
            name: What the program calls it.
            params: What it takes: arrays, and anything else, in lists and tuples.
            results: Its results, as new variables.
        """
        whole = Variable(OBJECT, name)
        self._recorded(None, function, (), self._inside(params), whole)
        parts = enumerate(results)
        return [self._recorded(None, part, (whole, number), {}, result) for number, result in parts]

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> TracedArray:
        """
        Record an operation.

        Raises:
            TraceError: The trace has ended, or the primitive is opaque: it cannot tell the type without the data.
        """
        if self.closed:
            raise TraceError(
                f"{primitive.name} at {user_line()} uses an array of a traced function after the function had "
                "returned. Return the array from the function."
            )
        if any(map(self._is_given, operands)):
            return current().capture.process(primitive, operands, params)
        if primitive.composite:
            return primitive.function(*operands, **(params or {}))
        if primitive.infer is None:
            raise TraceError(
                f"{primitive.name}, called at {user_line()}, is opaque: the type of its result cannot be known "
                "without data. Call it outside of the traced function, and pass the result in."
            )
        arguments = tuple([self._operand(operand) for operand in operands])
        params = self._inside(dict(params or {}))
        if params.get("in_place"):
            # Whether memory is used again is decided when all is known.
            params["in_place"] = False
        stand_ins = tuple([stand_in(argument) for argument in arguments])
        numbers = all(type(x) in PYTHON_NUMBERS for x in stand_ins)
        is_number = numbers and getattr(primitive.function, "__module__", "") == _ARITHMETIC
        kind = primitive.infer(*abstract_types(stand_ins), **params)
        variable = Variable(kind, primitive.name, is_number=is_number)
        return self._recorded(primitive, primitive.function, arguments, params, variable)

    def _is_given(self, value: Any) -> bool:
        """Return whether an array is one of a trace that has ended, for which a function is given another value."""
        if type(value) is not TracedArray or value._trace is self or not value._trace.closed:
            return False
        capture = current().capture
        return getattr(capture, "stands_in", False) and capture.covers(value._trace)

    def _recorded(
        self, primitive: Primitive | None, function: Any, arguments: tuple[Any, ...], params: Any, output: Variable
    ) -> TracedArray:
        errors = tuple([(kind, how) for kind, how in np.geterr().items() if how != UNSET])
        again = current().again
        self.equations.append(
            Equation(
                primitive, function, output.name, arguments, params, output, self._place(), errors, again, self.within
            )
        )
        return self.array(output)

    def _place(self) -> Place:
        """Return where the present operation comes from: in a sweep, from the operation that is pulled back."""
        frame: FrameType | None = sys._getframe(3)
        while frame is not None and is_library(frame.f_code.co_filename):
            if frame.f_code is _SWEEP and self.node is not None:
                return Place(self.node.code, self.node.instruction, reverse=True)
            frame = frame.f_back
        return Place() if frame is None else Place(frame.f_code, frame.f_lasti)

    def symbol(self, variable: Variable, strides: tuple[int, ...]) -> TracedArray:
        """Return the array that stands for a variable that is given and lies in memory with these strides."""
        self._layout.strides[variable] = strides
        return self.array(variable)

    def array(self, variable: Variable) -> TracedArray:
        """Return an array that stands for a variable."""
        return TracedArray(self, variable, variable.type)

    def lift(self, operand: TracedArray) -> TracedArray:
        """Return what an array from outside is here."""
        return self.array(self.entry(operand))

    def _operand(self, value: Any) -> Any:
        """Return an operand as it stands in an equation."""
        return self._inside(plain(value))

    def _inside(self, value: Any) -> Any:
        """Return a value as it stands in an equation; arrays in tuples, lists and dicts too."""
        if type(value) is TracedArray:
            return self.entry(value)
        if type(value) in (tuple, list):
            return type(value)([self._inside(part) for part in value])
        if type(value) is dict:
            return {key: self._inside(part) for key, part in value.items()}
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return value
        if id(value) not in self._met:
            self._met[id(value)] = value, checksum(value), user_line()
        return plain(value)

    def check_unchanged(self) -> None:
        """
        Raise if a plain array is another one than when an operation met it.

        Raises:
            MutationError: It is, and the program would compute with what it holds last.
        """
        for array, crc, line in [*self._met.values(), *self._reached.values()]:
            if checksum(array) != crc:
                raise MutationError(
                    f"The {describe_array(array)} was changed after the operation at {line} had used it in a traced "
                    "function, whose program has it as it is last. Do not change arrays in place after their use "
                    "there, or give the operation a copy."
                )

    def reach(self, arrays: Sequence[np.ndarray]) -> None:
        """Note the plain arrays in memory that the steps of a loop reach: these may change them, and nobody else."""
        here = user_line()
        known = {id(a): (a, here) for a in arrays if not a.dtype.hasobject and not isinstance(a, np.memmap)}
        known |= {key: (array, line) for key, (array, _, line) in self._reached.items()}
        self._reached = {key: (array, checksum(array), line) for key, (array, line) in known.items()}

    def entry(self, array: TracedArray) -> Any:
        """Return what stands for an array in an equation: a variable, or a value that is known."""
        array.present()
        while array._trace is not self and not self.covers(array._trace):
            # Of an array that a derivative inside of the function looks at, a function without one takes the value.
            array = array._value
            if type(array) is not TracedArray:
                return array
        if array._trace is self:
            return array._node
        if self._is_given(array):
            given = current().capture.lift(array)
            return self.entry(given) if type(given) is TracedArray else given
        outside = array.frozen()
        # Two values may have one tangent.
        key = id(outside._node), id(outside._value)
        found = self._known.get(key)
        if found is None:
            is_number = type(outside._node) is Variable and outside._node.is_number
            name = f"captured{len(self.captured)}"
            found = self._known[key] = Variable(type_of(outside), name, is_number=is_number)
            self._layout.strides[found] = _strides_of(bottom(outside))
            # The array is kept, and with it its node: the key stays unique.
            self.captured.append((found, outside))
            self.origins.append(array)
        return found


def _strides_of(value: Any) -> tuple[int, ...]:
    """Return the strides of an array; of what has no memory those of an array in C order."""
    value = bottom(value)
    if isinstance(value, np.ndarray):
        return value.strides
    kind = type_of(value)
    return packed_strides(kind)
