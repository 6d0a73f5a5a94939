"""
Regions: parts of a program that the tape around them sees as one operation, and that can be run again.

Time steps and checkpointed functions are regions.

A region is run in two ways. Bypassed, it runs on plain values, and all that is noted is which arrays of the tape
around it it meets: its static values. Taped, it runs on a tape of its own, on which static values are
leaves, so that the tape around it grows by nothing.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, final

from ebbtide.arrays.context import Entered, current, entered
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape


@final
class Bypass:
    """
    Runs operations on the values of arrays of the tapes around, and notes which it met.

    Args:
        outer: The tape whose arrays are static values.
        around: The region around this one.

    Memory:
        The static values, by reference.
    """

    __slots__ = ("around", "closed", "fast", "level", "outer", "statics")

    def __init__(self, outer: Tape, around: Any) -> None:
        self.outer = outer
        self.around = around
        self.level = outer.level
        self.closed = False
        self.fast = False
        self.statics: dict[int, TracedArray] = {}

    def here(self) -> str:
        """Return the user's present line."""
        return user_line()

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* are static values of this region."""
        return trace is self.outer or (self.around is not None and self.around.covers(trace))

    def constant(self, value: Any) -> Any:
        """Return the plain array: here nothing is traced."""
        return value

    def lift(self, operand: Any) -> Any:
        """Return the value of an array from outside, which is noted as a static value."""
        operand = operand.frozen()
        if operand._trace is not self.outer:
            operand = self.around.lift(operand)
            if type(operand) is not TracedArray or operand._trace is not self.outer:
                return operand
        if operand._node is not None and id(operand._node) not in self.statics:
            self.statics[id(operand._node)] = operand.frozen()
        return operand._value

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on values."""
        return primitive.bind(tuple([plain(self.inside(operand)) for operand in operands]), params)

    def inside(self, value: Any) -> Any:
        """Return a value as the region sees it."""
        return self.lift(value) if type(value) is TracedArray and self.covers(value._trace) else value


@final
class Region:
    """
    A part of a program that can be run bypassed and taped.

    Args:
        outer: The tape around it.

    Memory:
        References to the tape and region around it, and to the traces of the calls around.
    """

    __slots__ = ("around", "follower", "ledger", "level", "outer", "traces")

    def __init__(self, outer: Tape) -> None:
        context = current()
        self.outer = outer
        self.around = context.capture
        self.level = context.level
        self.ledger = context.ledger
        # Whoever has it run again may be within others, such as the batch of the cotangents.
        self.traces, self.follower = context.traces, context.follower

    def value(self, array: Any) -> Any:
        """Return the value of an array as it enters the region."""
        if type(array) is not TracedArray:
            return array
        array = array.frozen()
        if array._trace is not self.outer and self.around is not None and self.around.covers(array._trace):
            array = self.around.lift(array)
        return array._value if type(array) is TracedArray and array._trace is self.outer else array

    def node(self, array: Any) -> Node | None:
        """Return the node of an array on the tape around; None for constants of it."""
        if type(array) is not TracedArray:
            return None
        if array._trace is not self.outer and self.around is not None and self.around.covers(array._trace):
            array = self.around.lift(array)
        return array._node if type(array) is TracedArray and array._trace is self.outer else None

    def bypass(self) -> Bypass:
        """Return a new trace that runs the region on values."""
        return Bypass(self.outer, self.around)

    def tape(self, *, pager: Any = None, constancy: Any = None) -> Tape:
        """Return a new tape for the region."""
        return Tape(
            self.level + 1, self.ledger, outer=self.outer, around=self.around, pager=pager, constancy=constancy
        )

    def running(self, trace: Any) -> Running:
        """Run the block, in which the function of the region is called, on *trace*."""
        taped = type(trace) is Tape
        level, tape = (trace.level, trace) if taped else (self.level, None)
        block = entered(
            level=level, tape=tape, tangent=None, traces=self.traces, capture=trace, follower=self.follower
        )
        return Running(self.outer, block)


@final
class Running:
    """
    The block in which the function of a region is called.

    Args:
        outer: The tape around the region.
        inside: Enters what the block runs in.
    """

    __slots__ = ("_before", "_inside", "_outer")

    def __init__(self, outer: Tape, inside: Entered) -> None:
        self._before = False
        self._inside = inside
        self._outer = outer

    def __enter__(self) -> None:
        # The tape around must ask whose an operation is, as long as the region may claim it.
        self._before, self._outer.fast = self._outer.fast, False
        self._inside.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, error, trace)
        self._outer.fast = self._before and not self._outer.closed
