"""Forward mode: dual numbers, which compute the tangent beside the value and keep nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np

from ebbtide.arrays.context import above, advice_in_thread, beneath, current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive, made_outside, missing, needs_of, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.tape.linear import LinearTape


@final
class TangentTrace:
    """
    Computes tangents beside values.

    Args:
        level: Depth of nesting; larger than that of all traces around it.
        linear: Where the tangents are traced if what is done to them is recorded.

    Memory:
        Nothing: a tangent lives as long as its value.
    """

    is_tangent = True  # see `context.beneath`

    __slots__ = ("closed", "fast", "level", "linear")

    def __init__(self, level: int, linear: LinearTape | None = None) -> None:
        self.level = level
        self.linear = linear
        self.closed = False
        self.fast = False

    def above(self) -> AbstractContextManager[None]:
        """Run the block in forward mode inside of the traces that are there by now, also after its function's end."""
        return above(self, tangent=self)

    def constant(self, value: Any) -> TracedArray:
        """Return an array with a zero tangent; it can take traced values."""
        return TracedArray(self, None, value)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation on values and tangents."""
        if self.closed:
            raise TraceError(
                f"{primitive.name} at {user_line()} uses a traced array after the function that it was made in "
                f"had returned, so its tangent is lost. Return the array from the function.{advice_in_thread()}"
            )
        values: list[Any] = []
        tangents: list[Any] = []
        capture = current().capture
        meet = getattr(capture, "meet_operand", None)
        for operand in operands:
            if type(operand) is TracedArray and capture is not None and capture.covers(operand.present()._trace):
                operand = capture.lift(operand)  # noqa: PLW2901 - what it stands for may have a tangent
            if meet is not None:
                meet(operand)
            if type(operand) is TracedArray and operand.present()._trace is self:
                values.append(operand._value)
                tangents.append(operand._node)
            else:
                values.append(operand.frozen() if type(operand) is TracedArray else plain(operand))
                tangents.append(None)
        out = primitive.bind(tuple(values), params)
        if type(out) is TracedArray and out._trace.level > self.level:
            out = made_outside(out, self.level)
        if not hasattr(out, "shape"):
            out = np.asarray(out)
        tangent = None
        if any(t is not None for t in tangents):
            if primitive.push is None:
                raise missing(primitive.name, "jvp")
            kept = _keeper(primitive, values, out)
            if primitive.runs_user_code:
                with beneath(self):
                    tangent = primitive.push(tangents, values, out, params, kept)
            else:
                tangent = primitive.push(tangents, values, out, params, kept)
            if type(tangent) is TracedArray and tangent._trace.level > self.level:
                tangent = made_outside(tangent, self.level)
        made = TracedArray(self, tangent, out)
        if primitive.aliases:
            made.sharing().reachable = True
        return made


def _keeper(primitive: Primitive, values: list[Any], out: Any) -> Any:
    """Return the function that computes a kept value by name."""

    def kept(name: str) -> Any:
        make = primitive.keep[name]
        positions = [primitive.position(n) for n in needs_of(make)]
        return make(*[out if k < 0 else values[k] for k in positions])

    return kept
