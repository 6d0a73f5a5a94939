"""Arrays beyond their boundaries: extended by a mode, and the transposed of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH

# How an array is extended along an axis: (axis, length, elements before it, elements after it, mode).
Border = tuple[int, int, int, int, str]


def _sources(border: Border) -> Any:
    """Return for each place of an extended axis where its value comes from; -1 for a constant."""
    _, size, before, after, mode = border
    return sources(np.arange(-before, size + after), size, mode)


def sources(places: Any, size: int, mode: str) -> Any:
    """Return for places along an axis, also beyond its ends, where their values come from; -1 for a constant."""
    if mode in ("reflect", "grid-mirror"):
        places = places % (2 * size)
        return np.minimum(places, 2 * size - 1 - places)
    if mode == "mirror":
        places = places % max(2 * size - 2, 1)
        return np.minimum(places, np.maximum(2 * size - 2, 0) - places)
    if mode in ("wrap", "grid-wrap"):
        return places % size
    return np.clip(places, 0, size - 1) if mode == "nearest" else np.where(places % size == places, places, -1)


def _extended(x: Any, borders: tuple[Border, ...], cval: float = 0.0) -> Any:
    for border in borders:
        places = _sources(border)
        x = np.take(x, places, border[0])
        if np.any(places < 0):
            np.moveaxis(x, border[0], 0)[places < 0] = cval
    return x


def _folded(x: Any, borders: tuple[Border, ...]) -> Any:
    for border in borders:
        axis, size, before, _, _ = border
        places = _sources(border)
        along = np.moveaxis(x, axis, 0)
        x = np.array(along[before : before + size])
        inside = np.zeros(len(places), bool)
        inside[before : before + size] = True
        outside = np.flatnonzero(~inside & (places >= 0))
        np.add.at(x, places[outside], along[outside])
        x = np.moveaxis(x, 0, axis)
    return x


def _resized(kind: ArrayType, borders: tuple[Border, ...], *, wider: bool) -> ArrayType:
    shape = list(kind.shape)
    for axis, size, before, after, _ in borders:
        shape[axis] = size + (before + after if wider else 0)
    return ArrayType(tuple(shape), kind.dtype)


def _deeper(borders: tuple[Border, ...]) -> tuple[Border, ...]:
    """Return the borders of all members of a batch."""
    return tuple([(border[0] + 1, *border[1:]) for border in borders])


extend = linear(
    _extended,
    lambda g, kind, borders: fold.bind((g,), {"borders": borders}),
    infer=lambda kind, borders: _resized(kind, borders, wider=True),
    batch=lambda x, borders: extend.bind((x,), {"borders": _deeper(borders)}),
    result=FRESH,
    name="extend",
)
fold = linear(
    _folded,
    lambda g, kind, borders: extend.bind((g,), {"borders": borders}),
    infer=lambda kind, borders: _resized(kind, borders, wider=False),
    batch=lambda x, borders: fold.bind((x,), {"borders": _deeper(borders)}),
    result=FRESH,
    name="fold",
)


def extended(x: Any, borders: tuple[Border, ...], cval: float) -> Any:
    """Return an extended array with a constant beyond the boundary."""
    found = extend.bind((x,), {"borders": borders})
    if not cval:
        return found
    kind = type_of(x)
    return found + _extended(np.zeros(kind.shape, kind.dtype), borders, cval)
