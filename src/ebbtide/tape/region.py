"""
Regions: parts of a program that the tape around them sees as one operation, and that can be run again.

Time steps and checkpointed functions are regions.

A region is run in two ways. Bypassed, it runs on plain values, and all that is noted is which arrays of the tape
around it it meets: its static values. Taped, it runs on a tape of its own, on which static values are
leaves, so that the tape around it grows by nothing.

Plain arrays do what traced ones do, and plain vectors do not: they are of the user's type. Where there are vectors, a
bypassed region runs in forward mode without tangents, so that it finds traced vectors as the taped one does. So it may
where Python would make a complex number of a NumPy float, as the taped one has one of NumPy's there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, final

import numpy as np

from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import is_array
from ebbtide.arrays.context import Entered, beneath, current, current_or_none, entered
from ebbtide.arrays.primitive import Primitive, first_met, inside, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.met import Met
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.tangent import TangentTrace


def shown(trace: Any, value: Any) -> Any:
    """Return a leaf as a function in a trace has it: one of NumPy as a traced one without a derivative."""
    is_plain = type(value) not in PYTHON_NUMBERS and type(value) is not TracedArray and is_array(value)
    return trace.constant(value) if is_plain else value


@final
class Bypass:
    """
    Runs operations on the values of arrays of the tapes around, and notes which it met.

    Args:
        outer: The tape whose arrays are static values.
        around: The region around this one.
        met: Arrays from outside as the region met them first.
        shows: Whether values are shown as traced ones, also where there are no vectors.

    Attributes:
        values: The forward mode in which values are shown; nothing has a tangent in it.

    Memory:
        The static values, by reference.
    """

    __slots__ = ("_shows", "around", "closed", "fast", "level", "met", "outer", "statics", "values")

    def __init__(self, outer: Tape, around: Any, met: Met, shows: bool) -> None:
        self._shows = shows
        self.outer = outer
        self.around = around
        self.met = met
        self.values = TangentTrace(outer.level)
        self.level = outer.level
        self.closed = False
        self.fast = False
        self.statics: dict[int, TracedArray] = {}

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* are static values of this region."""
        return trace is self.outer or (self.around is not None and self.around.covers(trace))

    @property
    def shows(self) -> bool:
        """Whether values are shown: always, or as the function that the region is in has met a vector."""
        return self._shows or self.outer.packed.met

    @property
    def is_plain(self) -> bool:
        """Whether values are plain arrays: the user's code may write one from outside into one of its own."""
        return not self.shows

    def constant(self, value: Any) -> Any:
        """Return the plain array, as nothing is traced here; where values are shown, one that can take such."""
        return self.shown(value) if self.shows else value

    def shown(self, value: Any) -> Any:
        """Return a leaf as the region has it where values are shown."""
        return shown(self.values, value)

    def lift(self, operand: Any) -> Any:
        """Return the value of an array from outside, which is noted as a static value."""
        operand = self.met.first(operand, self)
        if operand._trace is not self.outer:
            operand = self.around.lift(operand)
            if type(operand) is not TracedArray or operand._trace is not self.outer:
                return operand
        if operand._node is not None and id(operand._node) not in self.statics:
            self.statics[id(operand._node)] = operand.frozen()  # whose value nobody writes
        return inside(self.around, operand._value)

    def note(self, tape: Tape) -> None:
        """Note the static values that were met on a tape of the region."""
        for key, (_, met) in tape.statics.items():
            self.statics[key] = met

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Run the block, in which the user's code only looks at values: what it meets is no static value of a step."""
        known = len(self.statics)
        try:
            yield
        finally:
            for key in [*self.statics][known:]:
                del self.statics[key]

    def first_met(self, array: TracedArray) -> TracedArray:
        """Return an array from outside as the region met it first."""
        return self.met.first(array, self)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on values."""
        result = primitive.bind(tuple([plain(inside(self, operand)) for operand in operands]), params)
        return self.shown(result) if self.shows else result

    def inside(self, value: Any) -> Any:
        """Return the value of what the region returned."""
        if type(value) is TracedArray and value.present()._trace is self.values:
            value = value._value
        return inside(self, value)


@final
class Region:
    """
    A part of a program that can be run bypassed and taped.

    Args:
        outer: The tape around it.

    Memory:
        References to the tape and region around it, to the traces of the calls around, and to what it met of these.
    """

    __slots__ = ("around", "follower", "ledger", "level", "met", "outer", "traces")

    def __init__(self, outer: Tape) -> None:
        context = current()
        self.outer = outer
        self.around = context.capture
        self.level = context.level
        self.ledger = context.ledger
        self.met = Met()
        # Whoever has it run again may be within others, such as the batch of the cotangents.
        self.traces, self.follower = context.traces, context.follower

    def value(self, array: Any) -> Any:
        """Return the value of an array as it enters the region."""
        if type(array) is not TracedArray:
            if self.outer.constancy is not None and isinstance(array, np.ndarray):
                self.outer.constancy.meet(array)
            return array
        if array.present()._trace is not self.outer and self.around is not None and self.around.covers(array._trace):
            array = self.around.lift(array)
        array = array.frozen() if type(array) is TracedArray else array
        return array._value if type(array) is TracedArray and array._trace is self.outer else array

    def node(self, array: Any) -> Node | None:
        """Return the node of an array on the tape around; None for constants of it."""
        if type(array) is not TracedArray:
            return None
        if array._trace is not self.outer and self.around is not None and self.around.covers(array._trace):
            array = self.around.lift(array)
        return array._node if type(array) is TracedArray and array._trace is self.outer else None

    def bypass(self, shows: bool = False) -> Bypass:
        """Return a new trace that runs the region on values; see `Bypass`."""
        return Bypass(self.outer, self.around, self.met, shows)

    def tape(self, *, pager: Any = None, constancy: Any = None) -> Tape:
        """Return a new tape for the region."""
        # What it runs again in may be inside of more than it was.
        context, level, around = current_or_none(), self.level, self.around
        if context is not None and context.capture is not None:
            level, around = max(level, context.level), _joined(around, context.capture)
        return Tape(
            level + 1, self.ledger, outer=self.outer, around=around, met=self.met, pager=pager, constancy=constancy
        )

    def sweeping(self) -> Entered:
        """Run the block, in which the region is swept: cotangents may be static values of where that is done."""
        around = current().capture
        return entered(capture=self.around if around is None else around)

    def outside(self, ledger: Any) -> AbstractContextManager[None]:
        """
        Run the block, in which a sweep is tried while the function around still runs, where the sweep will be.

        On the tapes of that function it would be recorded, wherever a rule asks for what is around, as communication
        does.
        """
        return beneath(self.root, ledger=ledger)

    @property
    def root(self) -> Tape:
        """The tape of the derivative that the region is in, which is swept when the function has returned."""
        tape = self.outer
        while tape.outer is not None:
            tape = tape.outer
        return tape

    def running(self, trace: Any) -> Running:
        """Run the block, in which the function of the region is called, on *trace*."""
        traces = self.traces
        if type(trace) is Tape:
            level, tape, around = trace.level, trace, trace.around
        else:
            context = current()
            level, tape, around = max(self.level, context.level), None, trace.around
            if context.capture is not trace:  # else it runs already, and is asked whether it has come to its end
                around = _joined(self.around, context.capture)
                trace.values.level = level = level + 1
            if trace.shows:
                traces = (*traces, trace.values)
        block = entered(level=level, tape=tape, tangent=None, traces=traces, capture=trace, follower=self.follower)
        return Running(self.outer, trace, around, block)


@final
class _Joined:
    """
    The region around one that runs again in another region.

    Args:
        first: The region that it was recorded in.
        around: The one that it runs again in.
    """

    __slots__ = ("_first", "around")

    def __init__(self, first: Any, around: Any) -> None:
        self._first = first
        self.around = around

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* are static values of either."""
        return self._first.covers(trace) or self.around.covers(trace)

    def first_met(self, array: TracedArray) -> TracedArray:
        """Return an array from outside of both as either met it first."""
        region = self._first if self._first.covers(array.present()._trace) else self.around
        return first_met(region, array)

    def lift(self, operand: Any) -> Any:
        """Return what an array from outside of both is inside of both."""
        if self._first.covers(operand._trace):
            operand = self._first.lift(operand)
        return inside(self.around, operand)


def _joined(first: Any, here: Any) -> Any:
    """Return the region around one that was recorded in the region *first*, and runs now in the region *here*."""
    known = first
    while known is not None and known is not here:
        known = getattr(known, "around", None)
    if known is here:
        return first
    return here if first is None else _Joined(first, here)


@final
class Running:
    """
    The block in which the function of a region is called.

    Args:
        outer: The tape around the region.
        trace: What it runs on.
        around: The region around that, in the block.
        inside: Enters what the block runs in.
    """

    __slots__ = ("_around", "_before", "_inside", "_outer", "_trace")

    def __init__(self, outer: Tape, trace: Any, around: Any, inside: Entered) -> None:
        self._before = False
        self._inside = inside
        self._outer = outer
        self._trace = trace
        self._around = around

    def __enter__(self) -> None:
        # The tape around must ask whose an operation is, as long as the region may claim it.
        self._before, self._outer.fast = self._outer.fast, False
        self._trace.around, self._around = self._around, self._trace.around
        self._inside.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, error, trace)
        self._trace.around, self._around = self._around, self._trace.around
        self._outer.fast = self._before and not self._outer.closed
