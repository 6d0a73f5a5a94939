"""The operations that a function is made of, one by one, with what each was given and what it gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.primitive import Primitive, needs_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import RuleMissingError


@final
@dataclass(frozen=True, eq=False)
class Operation:
    """
    One operation: what it was given and what it gave.

    Args:
        primitive: The operation.
        values: Its operands.
        params: Its parameters, or None.
        out: Its result.
        traced: Which operands come from the arguments of the function; the others are constants of it.
    """

    primitive: Primitive
    values: tuple[Any, ...]
    params: Any
    out: Any
    traced: tuple[bool, ...]

    def active(self) -> list[int]:
        """Return the numbers of the operands that have a derivative; RuleMissingError without rules in reverse."""
        return [k for k in self.floating() if self.primitive.pull(k) is not None]

    def floating(self) -> list[int]:
        """Return the numbers of the operands that are traced arrays of floating-point or complex numbers."""
        return [k for k, x in enumerate(self.values) if self.traced[k] and type_of(x).dtype.kind in "fc"]

    def value(self, name: str) -> Any:
        """Return an operand, the output or a kept value by its name."""
        if name in self.primitive.keep:
            make = self.primitive.keep[name]
            return make(*[self.value(need) for need in needs_of(make)])
        position = self.primitive.position(name)
        return self.out if position < 0 else self.values[position]

    def saved(self, k: int) -> list[Any]:
        """Return what the rule of operand *k* saves."""
        pull = self.primitive.pull(k)
        return [self.value(name) for name in (() if pull is None else pull.needs)]

    def pull(self, k: int, g: Any, saved: list[Any] | None = None) -> Any:
        """Return what the rule of operand *k* makes of a cotangent and of saved values."""
        pull = self.primitive.pull(k)
        if pull is None:
            raise ValueError(f"{self.primitive.name} has no derivative with respect to operand {k}.")
        return pull.rule(g, type_of(self.values[k]), self.params, *(self.saved(k) if saved is None else saved))

    def push(self, tangents: list[Any]) -> Any:
        """Return the tangent of the result for tangents of the operands, None where there is none."""
        if self.primitive.push is None:
            raise RuleMissingError(f"{self.primitive.name} has no rule in forward mode.")
        return self.primitive.push(tangents, self.values, self.out, self.params, self.value)

    def run(self, values: Sequence[Any]) -> Any:
        """Do the operation on other operands."""
        return self.primitive.function(*values, **(self.params or {}))


@final
class Recorder:
    """
    The trace of its arrays, which does operations on arrays and lists them.

    Memory:
        All operands and results, until it is dropped.
    """

    __slots__ = ("closed", "fast", "level", "operations")

    def __init__(self) -> None:
        self.level = 0
        self.closed = False
        self.fast = False
        self.operations: list[Operation] = []

    def constant(self, value: Any) -> TracedArray:
        """Return an array that can take the place of a traced one."""
        return TracedArray(self, None, value)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> TracedArray:
        """Do an operation and list it."""
        values = tuple([x.present()._value if type(x) is TracedArray else x for x in operands])
        out = primitive.function(*values, **(params or {}))
        traced = tuple([type(x) is TracedArray for x in operands])
        self.operations.append(Operation(primitive, values, params, out, traced))
        return TracedArray(self, None, out)


def operations_of(f: Callable[..., Any], arrays: Sequence[Any]) -> list[Operation]:
    """
    Return the operations of a function of arrays, in their order.

    Args:
        f: A function of arrays.
        arrays: Its arguments, which are not copied.
    """
    recorder = Recorder()
    f(*[TracedArray(recorder, None, x) for x in arrays])
    return recorder.operations
