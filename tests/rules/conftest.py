"""A trace that does the operations of an example on arrays and keeps a list of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
import pytest

from ebbtide.arrays.abstract import AbstractTrace, abstract_array
from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.primitive import Primitive, needs_of
from ebbtide.arrays.traced import TracedArray

from .example import callable_of


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation: what it was given and what it gave."""

    primitive: Primitive
    values: tuple[Any, ...]
    params: Any
    out: Any
    traced: tuple[bool, ...]

    def active(self) -> list[int]:
        """Return the numbers of the operands that have a derivative: a plain array, or a NumPy number, has none."""
        kinds = [getattr(x, "dtype", np.dtype(int)).kind for x in self.values]
        found = [k for k, (kind, traced) in enumerate(zip(kinds, self.traced, strict=True)) if traced and kind in "fc"]
        return [k for k in found if self.primitive.pull(k) is not None]

    def value(self, name: str) -> Any:
        """Return an operand, the output or a kept value by its name."""
        if name in self.primitive.keep:
            make = self.primitive.keep[name]
            return make(*[self.value(need) for need in needs_of(make)])
        position = self.primitive.position(name)
        return self.out if position < 0 else self.values[position]

    def pull(self, k: int, g: Any, saved: list[Any] | None = None) -> Any:
        """Return what the rule of operand *k* makes of a cotangent and of saved values."""
        pull = self.primitive.pull(k)
        saved = [self.value(name) for name in pull.needs] if saved is None else saved
        return pull.rule(g, type_of(self.values[k]), self.params, *saved)


def traced_of(operands: tuple[Any, ...]) -> tuple[bool, ...]:
    """Return which operands are traced."""
    return tuple([type(x) is TracedArray for x in operands])


class Recorder:
    """Does operations on arrays and lists them; the `trace` of its arrays."""

    level, closed, fast = 0, False, False

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def here(self) -> str:
        return "a test"

    def covers(self, trace: Any) -> bool:
        return False

    def constant(self, value: Any) -> TracedArray:
        return TracedArray(self, None, value)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> TracedArray:
        values = tuple(x.present()._value if type(x) is TracedArray else x for x in operands)
        out = primitive.function(*values, **(params or {}))
        self.operations.append(Operation(primitive, values, params, out, traced_of(operands)))
        return TracedArray(self, None, out)


def recorded(key: Any, example: Any, dtype: Any) -> list[Operation]:
    """Return the operations of an example on arrays."""
    recorder = Recorder()
    example.call(callable_of(key), [TracedArray(recorder, None, x) for x in example.operands(dtype)])
    return recorder.operations


def abstractly(key: Any, example: Any, dtype: Any) -> tuple[Any, list[Operation], AbstractTrace]:
    """Return the result and the operations of an example on abstract arrays, and their trace."""
    operations: list[Operation] = []

    def watch(primitive: Primitive | None, operands: tuple[Any, ...], params: Any, out: TracedArray) -> None:
        if primitive is not None:
            operations.append(Operation(primitive, operands, params, out, traced_of(operands)))

    trace = AbstractTrace(watch)
    operands = [abstract_array(x.shape, x.dtype, trace) for x in example.operands(dtype)]
    return example.call(callable_of(key), operands), operations, trace


def types_of(result: Any) -> list[Any]:
    """Return the types of the arrays of a result, and other results as they are."""
    leaves = optree.tree_leaves(result)
    return [type_of(x) if isinstance(x, (np.ndarray, np.generic, TracedArray, ArrayType)) else x for x in leaves]


@pytest.fixture
def random() -> np.random.Generator:
    """Return a generator with a fixed seed."""
    return np.random.default_rng(3)
