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
