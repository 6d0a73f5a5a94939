"""The operations of an example, on arrays and on arrays without data."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

from ebbtide.arrays.abstract import AbstractTrace, abstract_array
from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.testing.operations import Operation, operations_of

from .example import callable_of


def recorded(key: Any, example: Any, dtype: Any) -> list[Operation]:
    """Return the operations of an example on arrays."""
    return operations_of(lambda *xs: example.call(callable_of(key), list(xs)), example.operands(dtype))


def abstractly(key: Any, example: Any, dtype: Any) -> tuple[Any, list[Operation], AbstractTrace]:
    """Return the result and the operations of an example on abstract arrays, and their trace, which goes on listing."""
    operations: list[Operation] = []

    def watch(primitive: Any, operands: tuple[Any, ...], params: Any, out: TracedArray) -> None:
        if primitive is not None:
            traced = tuple([type(x) is TracedArray for x in operands])
            operations.append(Operation(primitive, operands, params, out, traced))

    trace = AbstractTrace(watch)
    kinds = [type_of(x) for x in example.operands(dtype)]
    arrays = [abstract_array(kind.shape, kind.dtype, trace) for kind in kinds]
    return example.call(callable_of(key), arrays), operations, trace


def types_of(result: Any) -> list[Any]:
    """Return the types of the arrays of a result, and other results as they are."""
    leaves = optree.tree_leaves(result)
    return [type_of(x) if isinstance(x, (np.ndarray, np.generic, TracedArray, ArrayType)) else x for x in leaves]


@pytest.fixture
def random() -> np.random.Generator:
    """Return a generator with a fixed seed."""
    return np.random.default_rng(3)
