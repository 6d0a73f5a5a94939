"""The type of an array: its shape and dtype, and no data."""

from __future__ import annotations

import math
from typing import Any, NoReturn, final

import numpy as np

from ebbtide.arrays.location import user_line
from ebbtide.errors import TraceError

_FLOAT = np.dtype(np.float64)


@final
class ArrayType:
    """
    Shape and dtype of an array.

    Args:
        shape: The shape.
        dtype: The dtype.

    Memory:
        Never keeps an array: this is what a node holds instead of its operands.
    """

    __slots__ = ("dtype", "nbytes", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def _unknown(self, what: str) -> TraceError:
        return TraceError(
            f"{what} was asked at {user_line()} of an array of which only shape and dtype, {self}, are known: it is "
            "traced without values, or is another one for each member of vmap. Write a choice by values with "
            "np.where(condition, x, y), or compute what depends on values outside of the function and pass it in."
        )

    def __bool__(self) -> bool:
        raise self._unknown("The truth (`if`, `and`, `bool`)")

    def __int__(self) -> int:
        raise self._unknown("The number (`int`)")

    def __format__(self, spec: str) -> str:
        if spec:
            raise self._unknown(f"The text ({spec!r})")
        return repr(self)

    @property
    def strides(self) -> NoReturn:
        """Raise: there is no memory."""
        raise self._unknown("The place in memory (`strides`)")

    @property
    def flags(self) -> NoReturn:
        """Raise: there is no memory."""
        raise self._unknown("The kind of memory (`flags`)")

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayType) and self.shape == other.shape and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


def with_shape(value: Any) -> Any:
    """Return what NumPy makes an array of if it has no shape, as a list or a Python number; else the value itself."""
    return value if hasattr(value, "shape") else np.asarray(value)


def type_of(value: Any) -> ArrayType:
    """Return the type of an array, of a NumPy or Python scalar, or of an abstract value."""
    if isinstance(value, ArrayType):
        return value
    if isinstance(value, float):
        return ArrayType((), _FLOAT)  # NumPy takes 0.6 us to tell it
    if isinstance(value, (bool, int, complex)):
        return ArrayType((), np.result_type(value))
    return ArrayType(value.shape, value.dtype)


def owner_of(array: Any) -> Any:
    """Return the array that owns the memory of *array*: itself, or the end of its chain of bases."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def read_only(value: Any) -> Any:
    """Return a view of an array that cannot be written; other values as they are."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def axes_in_memory(array: Any) -> list[int]:
    """Return the axes of an array in the order in which it lies in memory, the one of the largest stride first."""
    return sorted(range(array.ndim), key=lambda axis: -array.strides[axis])


def lies_as_copied(array: Any) -> bool:
    """Return whether a copy of an array would lie in memory as it does: in one piece, with the same strides."""
    return array.flags.aligned and (array.flags.forc or array.transpose(axes_in_memory(array)).flags.c_contiguous)
