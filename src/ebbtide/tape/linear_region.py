"""
Parts of a linearized function that run again in each push: checkpointed functions, and steps of which nothing is kept.

At the point such a part runs on values, and only the tangents from outside that it meets are noted; in a push it runs
on values and tangents at hand, which takes what forward mode takes, and the tape grows by one operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.context import Context, current, entered
from ebbtide.arrays.primitive import Primitive, inside
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import DeterminismError
from ebbtide.tape.constancy import Constancy
from ebbtide.tape.linear import LinearTape, without_data
from ebbtide.tape.node import Node
from ebbtide.tape.tangent import TangentTrace


def linear_trace(context: Context) -> TangentTrace | None:
    """Return the forward mode of the function that is linearized here; None if none is, or if it is being pushed."""
    found = [trace for trace in context.traces if type(trace) is TangentTrace and trace.linear is not None]
    return found[-1] if found and type(context.capture) is not Pushing else None


def is_alone(trace: TangentTrace, context: Context) -> bool:
    """
    Return whether no other derivative is taken at the same time, whose tape would grow with what runs here.

    Nor is it in a region, such as a step of a time loop, which would not be told what it uses from outside.
    """
    linear = sum(type(other) is TangentTrace and other.linear is not None for other in context.traces)
    in_region = context.capture is not None and type(context.capture) not in (LinearTape, Pushing)
    return context.tape is None and context.tangent is trace and linear == 1 and not in_region


def tape_of(trace: TangentTrace, context: Context) -> LinearTape:
    """Return the linear tape that records here: that of a step that is kept, or that of the function."""
    assert trace.linear is not None
    return context.capture if type(context.capture) is LinearTape else trace.linear


def split(trace: TangentTrace, leaf: Any) -> tuple[Any, Any]:
    """Return value and tangent of a leaf; the tangent is None for a constant."""
    if type(leaf) is TracedArray and leaf.present()._trace is trace:
        return leaf._value, leaf._node
    return leaf, None


@final
class Pushing:
    """
    Runs a part with tangents at hand: tangents of the tape around are static values, which it notes or gives.

    Args:
        tape: The tape around it.
        constancy: The check of what it meets from outside.
        given: Static tangents by the address of their nodes; None to note them instead.
        around: The region in which it runs again, which may claim the tangents at hand.

    Attributes:
        statics: The static tangents that were noted, by the address of their nodes.
        met: The arrays of the forward mode that were noted. Those that outlive the part are from outside.

    Memory:
        The static tangents, by reference; a weak reference to each array of the forward mode that lives.
    """

    is_linear = True  # see `LinearTape`

    __slots__ = ("_given", "around", "closed", "constancy", "fast", "level", "met", "statics", "tape")

    def __init__(
        self, tape: LinearTape, constancy: Constancy, given: dict[int, Any] | None = None, around: Any = None
    ) -> None:
        self.tape = tape
        self.constancy = constancy
        self.around = around
        self.level = tape.level
        self.closed = False
        self.fast = False
        self._given = given
        self.statics: dict[int, TracedArray] = {}
        self.met: weakref.WeakValueDictionary[int, TracedArray] = weakref.WeakValueDictionary()

    def covers(self, trace: Any) -> bool:
        """Return whether tangents of *trace* are static values, of this part or of the region around."""
        return self._knows(trace) or (self.around is not None and self.around.covers(trace))

    def _knows(self, trace: Any) -> bool:
        return trace is self.tape or self.tape.covers(trace)

    def meet_operand(self, operand: Any) -> None:
        """Note or check an operand of the forward mode, which may be from outside."""
        if isinstance(operand, np.ndarray):
            self.constancy.meet(operand)
        elif self._given is None and type(operand) is TracedArray:
            self.met[id(operand)] = operand

    def constant(self, value: Any) -> Any:
        """Return the tangent itself: here nothing is traced."""
        return value

    def lift(self, operand: TracedArray) -> Any:
        """Return the tangent that a static value has now."""
        operand = operand.frozen()
        if not self._knows(operand._trace):
            return self.around.lift(operand)
        if operand._node is None:
            return operand._value
        key = id(operand._node)
        if self._given is None:
            self.statics[key] = without_data(operand)
            return operand._value
        if key not in self._given:
            raise DeterminismError(
                "A part of a linearized function, a time step or a checkpointed function, used an array from outside, "
                "when it was run again, that it had not used before. What it uses may depend on its arguments and on "
                "arrays that do not change only: neither write into them in place, nor bind their names anew."
            )
        return self._given[key]

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on tangents."""
        return primitive.bind(tuple([inside(self, x) for x in operands]), params)

    def pairs(self, trace: TangentTrace, leaves: list[Any]) -> list[tuple[Any, Any]]:
        """Return values and tangents of what the part returned, static values that it returned included."""
        found = [split(trace, leaf) for leaf in leaves]
        return [(value, inside(self, tangent)) for value, tangent in found]


@final
@dataclass(frozen=True, slots=True)
class Around:
    """
    What a part ran in at the point, for its runs in pushes, which may be inside of others, such as a batch of tangents.

    Args:
        traces: The traces, the innermost last.
        follower: The trace of a program.
    """

    traces: tuple[Any, ...]
    follower: Any

    @classmethod
    def here(cls) -> Around:
        """Return that of a part that runs here."""
        context = current()
        return cls(context.traces, context.follower)


@contextmanager
def pushing(
    trace: TangentTrace, tape: LinearTape, constancy: Constancy, given: dict[int, Any], around: Around
) -> Iterator[Pushing]:
    """Run the block, in which a part runs again, on tangents at hand, with these static ones."""
    # Its tangents are on a tape that is closed, so that nothing comes of arrays that escaped.
    trace.closed = False
    context = current()
    level = max(context.level, trace.level)
    capture = Pushing(tape, constancy, given, context.capture)
    with entered(
        level=level, tape=None, tangent=trace, traces=around.traces, capture=capture, follower=around.follower
    ):
        yield capture


def node_of(tape: LinearTape, tangent: Any) -> Node | None:
    """Return the node of a tangent as the tape has it; None for one that depends on nothing there."""
    tangent = inside(tape, tangent)
    return tangent.present()._node if type(tangent) is TracedArray and tangent._trace is tape else None
