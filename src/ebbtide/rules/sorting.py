"""Rules of sorting, and of selections by value: linear in the values once the order is known, which is integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.constants import constant
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.reductions import axes_of, axis_of


def _ordered(x: Any, order: Any, axis: int) -> Any:
    """Return the elements in an order along an axis, in an array that lies as x does, as NumPy has it."""
    if x.flags.c_contiguous:
        return np.take_along_axis(x, order, axis)
    outermost = sorted(range(x.ndim), key=lambda k: -abs(x.strides[k]))
    turned = np.ascontiguousarray(order.transpose(outermost))
    found = np.take_along_axis(x.transpose(outermost), turned, outermost.index(axis))
    return found.transpose(np.argsort(outermost))


def _small(order: Any, axis: int) -> Any:
    """Return permutations along an axis in the smallest integers that can count its elements."""
    return order.astype(np.min_scalar_type(order.shape[axis]))


def _pull(k: int) -> Pull | None:
    """Return the pull: to give each cotangent to where its value came from is to take them in the inverse order."""
    return _PULL if k == 0 else None


def _back(g: Any, kind: ArrayType, params: Any, order: Any) -> Any:
    inverse = _small(np.argsort(order, axis=params["axis"]), params["axis"])
    return matched(_permuted.bind((g, inverse), params), kind)


def _push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    return _permuted.bind((tangents[0], values[1]), params)


def _numbers(params: Any, x: ArrayType, order: ArrayType) -> float:
    """Return the bytes of the numbers of rows and columns with which NumPy takes elements along an axis."""
    return (sum(x.shape) - x.shape[params["axis"]]) * np.intp().itemsize


_PULL = Pull(_back, ("order",), FRESH, temporaries=3, along=lambda kind, params: (params["axis"],))
_permuted = Primitive(
    _ordered,
    name="sort",
    operands=("x", "order"),
    pull=_pull,
    push=_push,
    infer=lambda kind, order, axis: kind,
    scratch=_numbers,
    batch=lambda values, mapped, params, size: _permuted.bind(
        all_full(values, mapped, size), {"axis": params["axis"] + 1}
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
    axis = axis_of(axis, a.ndim)
    if not type_of(a).size:
        return np.copy(a)
    # Always stable: elements that are equal keep their order, and so do their cotangents.
    return _permuted.bind((a, _small(np.argsort(a, axis=axis, kind="stable"), axis)), {"axis": axis})


answer(np.sort, sort)


def _order_of_partition(x: Any, kth: Any, axis: int, kind: Any) -> Any:
    """Return the order in which np.partition has the elements; np.argpartition may have another one."""
    ranks = np.argsort(np.argsort(np.partition(x, kth, axis, kind), axis, kind="stable"), axis)
    return _small(np.take_along_axis(np.argsort(x, axis, kind="stable"), ranks, axis), axis)


def _order_type(x: ArrayType, kth: Any, axis: int, kind: str) -> ArrayType:
    return ArrayType(x.shape, np.min_scalar_type(x.shape[axis]))


def _order_of_members(handler: Any, args: list[Any], kwargs: Any, mapped: list[bool], size: int) -> Any:
    x, kth, axis, kind = args
    return handler(x, kth, axis + 1, kind)


_partition_order = constant(_order_of_partition, _order_type, _order_of_members)


def partition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect") -> Any:
    """Return an array partitioned along an axis, with its elements in NumPy's order; it saves the permutation."""
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    axis = axis_of(axis, a.ndim)
    if not type_of(a).size:
        return np.copy(a)
    return _permuted.bind((a, _partition_order(a, kth, axis, kind)), {"axis": axis})


def _sort_complex(a: Any) -> Any:
    """Return the elements in ascending order along the last axis, as complex numbers."""
    dtype = type_of(a).dtype
    wide = np.clongdouble if dtype.char == "g" else np.complex64 if dtype.char in "bhBH" else np.complex128
    ordered = np.sort(a)
    return ordered if dtype.kind == "c" else np.astype(ordered, wide)


# Selections: what the values say is found in the present ones; then the elements are taken.

_places = constant(np.unique)
_bounds = constant(np.argwhere)


def _unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True,  # noqa: A002 - NumPy's name
) -> Any:  # fmt: skip
    """Return the distinct elements; each has the derivative of the first one that is equal to it."""
    if not sorted:
        raise refusal("np.unique with sorted=False has no derivative rule; write it without.")
    found = _places(ar, True, return_inverse, return_counts, axis, equal_nan=equal_nan)
    _, index, *rest = found
    values = np.take(np.reshape(ar, -1) if axis is None else ar, index, 0 if axis is None else axis)
    parts = (values, *([index] if return_index else []), *rest)
    return parts if len(parts) > 1 else values


def _trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """Return a view without the zeros at the ends."""
    if trim.lower() not in ("fb", "bf", "f", "b"):
        raise ValueError(f"unexpected character(s) in `trim`: {trim!r}")
    places = _bounds(filt)
    start, stop = (places.min(0), places.max(0) + 1) if len(places) else (np.zeros(filt.ndim, int),) * 2
    front, back = (not len(places) or letter in trim.lower() for letter in "fb")
    axes = axes_of(axis, filt.ndim)
    ends = [slice(int(a) if front else None, int(b) if back else None) for a, b in zip(start, stop, strict=True)]
    return filt[tuple([part if k in axes else slice(None) for k, part in enumerate(ends)])]


answer(np.partition, partition)
answer(np.sort_complex, _sort_complex)
answer(np.unique, _unique)
answer(np.trim_zeros, _trim_zeros)
