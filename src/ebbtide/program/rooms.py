"""Memory that is there before what is put into it, as operations of a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType


def room(kind: ArrayType) -> Any:
    """Return memory for an array, with anything in it."""
    return np.empty(kind.shape, kind.dtype)


def filled(whole: Any, number: int, home: Any) -> Any:
    """Return a result of a function with several ones, which is made in a room or in the place of an operand."""
    return whole[number]


def result(x: Any) -> Any:
    """Return a result of a member as an array."""
    return np.array(x, order="C", ndmin=1)


def lying(x: Any, strides: tuple[int, ...]) -> Any:
    """Return an array that NumPy has made with the strides that it was planned with: as it is, or a copy."""
    if x.strides == strides:
        return x
    order = sorted(range(x.ndim), key=lambda axis: -strides[axis])
    copy = np.empty([x.shape[axis] for axis in order], x.dtype).transpose([order.index(axis) for axis in range(x.ndim)])
    copy[...] = x
    return copy
