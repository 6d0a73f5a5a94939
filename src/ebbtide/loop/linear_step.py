"""One step of a linearized time loop: what is kept of it, and how it runs again with tangents."""

from __future__ import annotations

from typing import Any, final

from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import DeterminismError
from ebbtide.tape.linear import LinearProgram, LinearTape
from ebbtide.tape.node import Node


@final
class Pushing:
    """
    Runs a step with tangents at hand: tangents of the tape around are static values, which it notes or gives.

    Args:
        tape: The tape around the loop.
        given: Static tangents by the address of their nodes; None to note them instead.

    Memory:
        The static tangents, by reference.
    """

    is_linear = True  # see `LinearTape`

    __slots__ = ("_given", "closed", "fast", "level", "statics", "tape")

    def __init__(self, tape: LinearTape, given: dict[int, Any] | None = None) -> None:
        self.tape = tape
        self.level = tape.level
        self.closed = False
        self.fast = False
        self._given = given
        self.statics: dict[int, TracedArray] = {}

    def here(self) -> str:
        """Return the user's present line."""
        return user_line()

    def covers(self, trace: Any) -> bool:
        """Return whether tangents of *trace* are static values."""
        return trace is self.tape or self.tape.covers(trace)

    def constant(self, value: Any) -> Any:
        """Return the tangent itself: here nothing is traced."""
        return value

    def lift(self, operand: TracedArray) -> Any:
        """Return the tangent that a static value has now."""
        operand = operand.frozen()
        if operand._node is None:
            return operand._value
        key = id(operand._node)
        if self._given is None:
            self.statics[key] = operand
            return operand._value
        if key not in self._given:
            raise DeterminismError(
                "A step of a linearized time loop used an array from outside, when it was run again, that it had not "
                "used before. What a step uses may depend on its state, its input and static values only."
            )
        return self._given[key]

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on tangents."""
        inside = [self.lift(x) if type(x) is TracedArray and self.covers(x._trace) else x for x in operands]
        return primitive.bind(tuple(inside), params)


@final
class KeptStep:
    """
    The derivatives of one step.

    Args:
        program: Takes the tangents of the active leaves of the state, then static ones, to those of state and output.
        active: Which leaves of the state have tangents.
        statics: Addresses of the nodes of the static tangents.
    """

    __slots__ = ("active", "program", "statics")

    def __init__(self, program: LinearProgram, active: list[int], statics: list[int]) -> None:
        self.program = program
        self.active = active
        self.statics = statics

    def push(self, state: list[Any], given: dict[int, Any]) -> list[Any]:
        """Return the tangents of the new state and the output."""
        return self.program.push([state[k] for k in self.active] + [given[key] for key in self.statics])


def node_of(tape: LinearTape, tangent: Any) -> Node | None:
    """Return the node of a tangent as the tape has it; None for one that depends on nothing there."""
    if type(tangent) is TracedArray and tape.covers(tangent._trace):
        tangent = tape.lift(tangent)
    return tangent.present()._node if type(tangent) is TracedArray and tangent._trace is tape else None
