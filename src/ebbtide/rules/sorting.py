"""Rules of sorting: linear in the values once the order is known, which is an array of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import full
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axes_of


def _ordered(x: Any, order: Any, axis: int) -> Any:
    return np.take_along_axis(x, order, axis)


def _small(order: Any) -> Any:
    """Return a permutation in the smallest integers that can count its elements."""
    return order.astype(np.min_scalar_type(max(order.shape)))


def _pull(k: int) -> Pull | None:
    """Return the pull: to give each cotangent to where its value came from is to take them in the inverse order."""
    return _PULL if k == 0 else None


def _back(g: Any, kind: ArrayType, params: Any, order: Any) -> Any:
    inverse = _small(np.argsort(order, axis=params["axis"]))
    return matched(_permuted.bind((g, inverse), params), kind)


def _push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    return _permuted.bind((tangents[0], values[1]), params)


_PULL = Pull(_back, ("order",), FRESH, temporaries=3)
_permuted = Primitive(
    _ordered,
    name="sort",
    operands=("x", "order"),
    pull=_pull,
    push=_push,
    infer=lambda kind, order, axis: kind,
    batch=lambda values, mapped, params, size: _permuted.bind(
        tuple([full(x, m, size) for x, m in zip(values, mapped, strict=True)]), {"axis": params["axis"] + 1}
    ),
)


def sort(a: Any, axis: int | None = -1, kind: Any = None, *, stable: bool | None = None) -> Any:
    """
    Return an array with its elements in ascending order along an axis.

    Memory:
        A record saves the permutation, in the smallest unsigned integers that hold it, and no value.
    """
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    axis = axes_of(axis, a.ndim)[0]
    if not type_of(a).size:
        return np.copy(a)
    # Always stable: elements that are equal keep their order, and so do their cotangents.
    return _permuted.bind((a, _small(np.argsort(a, axis=axis, kind="stable"))), {"axis": axis})


answer(np.sort, sort)
