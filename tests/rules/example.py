# ruff: noqa: A002 - `complex` is the word for what an operand is
"""
What an example of a call is made from.

Floating-point and complex arrays and NumPy scalars among the arguments are operands; whatever is in `Fixed` is not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree

RANDOM = np.random.default_rng(7)


@dataclass(frozen=True, eq=False)
class Fixed:
    """An argument that is not differentiated."""

    value: Any


@dataclass(frozen=True, eq=False)
class Example:
    """
    One call of a function: its arguments, whether it takes complex numbers and has a derivative there, whether it takes
    real ones and half precision, and whether its operands may have their elements in another order.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    complex: bool = False
    smooth: bool = True
    real: bool = True
    half: bool = True
    rolled: bool = True

    def operands(self, dtype: Any) -> list[Any]:
        """Return the operands in a dtype; complex ones get an imaginary part."""
        found = [x for x in optree.tree_leaves(self.args) if is_operand(x)]
        return [as_dtype(x, dtype, k) for k, x in enumerate(found)]

    def takes(self, dtype: Any) -> bool:
        """Return whether NumPy has the function for this dtype."""
        dtype = np.dtype(dtype)
        return (self.complex if dtype.kind == "c" else self.real) and (self.half or dtype != np.float16)

    def call(self, function: Callable[..., Any], operands: list[Any]) -> Any:
        """Call a function with these operands in the places of the example's own."""
        rest = iter(operands)
        args = optree.tree_map(lambda x: next(rest) if is_operand(x) else unfixed(x), self.args)
        return function(*args, **{name: unfixed(value) for name, value in self.kwargs.items()})


def is_operand(value: Any) -> bool:
    """Return whether an argument is one that is differentiated."""
    return isinstance(value, (np.ndarray, np.floating, np.complexfloating)) and value.dtype.kind in "fc"


def unfixed(value: Any) -> Any:
    """Return an argument without its mark."""
    return value.value if isinstance(value, Fixed) else value


def as_dtype(x: Any, dtype: Any, k: int) -> Any:
    """Return an operand in another dtype and the same memory layout."""
    if np.dtype(dtype).kind == "c":
        x = x + np.float64(0.3 - 0.2 * k) * 1j
    return x.astype(dtype) if isinstance(x, np.ndarray) else np.dtype(dtype).type(x)


def written(base: Any, index: Any, value: Any) -> Any:
    """Return a copy of *base* in which *value* is written."""
    array = np.copy(base)
    array[index] = value
    return array


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that writes into its first argument as one that gives a copy of it, written."""

    def written_copy(target: Any, *args: Any, **kwargs: Any) -> Any:
        array = np.copy(target)
        function(array, *args, **kwargs)
        return array

    return written_copy


WRITING = frozenset({np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal})


def callable_of(key: Any) -> Callable[..., Any]:
    """Return what a user calls for a key of the registry."""
    if isinstance(key, tuple):
        return in_place(getattr(*key)) if key[1] == "at" else getattr(*key)
    return in_place(key) if key in WRITING else written if key is operator.setitem else key


def name_of(key: Any) -> str:
    """Return the name of a key of the registry."""
    return f"{key[0].__name__}.{key[1]}" if isinstance(key, tuple) else key.__name__


def between(low: float, high: float, *shape: int) -> Any:
    """Return distinct numbers of an interval, in random order, that stay away from its ends."""
    size = int(np.prod(shape))
    steps = (np.arange(size) + 0.5) / size if size > 1 else np.full(1, 0.7)
    return np.reshape(RANDOM.permutation(low + (high - low) * steps), shape)


def unary(low: float, high: float, *, complex: bool = False) -> tuple[Example, ...]:
    """Return examples of a function of one array: matrices, scalars, no elements, transposed and strided ones."""
    strided = between(low, high, 4, 6).T[::2, 1:]
    shapes = (between(low, high, 3, 4), between(low, high)[()], between(low, high), np.zeros((0, 3)), strided)
    return tuple(Example((x,), complex=complex) for x in shapes)


def binary(
    low: float, high: float, low2: float, high2: float, *, complex: bool = False, second: bool = True,
) -> tuple[Example, ...]:  # fmt: skip
    """Return examples of a function of two arrays: equal shapes, broadcasting ones, scalars and Python numbers."""
    x, y = between(low, high, 3, 4), between(low2, high2, 3, 4)
    pairs = [
        (x, y), (x, y[0]), (x[:, :1], y[0]), (x[0], y[:, :1]), (x[1, 1], y), (x, y[1, 1]), (x[1, 1], y[1, 1]),
        (x.T[::2], y.T[::2]), (x[:0], y[:0]), (np.array(x[0, 0]), np.array(y[0, 0])),
        (x, float(np.round(y[0, 1], 1))),
    ]  # fmt: skip
    if second:
        pairs.append((float(np.round(x[0, 1], 1)), y))
    return tuple(Example(pair, complex=complex) for pair in pairs)


def calls(*args: Any, complex: bool = True, half: bool = True) -> tuple[Example, ...]:
    """Return examples from tuples of arguments; a dictionary at the end is keywords."""
    made = []
    for one in args:
        keywords = isinstance(one[-1], dict)
        made.append(Example(one[:-1] if keywords else one, one[-1] if keywords else {}, complex, half=half))
    return tuple(made)


def steps(*args: Any) -> tuple[Example, ...]:
    """Return examples of a function without a derivative."""
    return tuple(Example(e.args, e.kwargs, smooth=False) for e in calls(*args, complex=False))


V, M, T = between(-2, 2, 5), between(-2, 2, 3, 4), between(-2, 2, 2, 3, 4)
P = between(0.3, 2, 3, 4)  # positive
S = between(-2, 2)[()]  # a scalar
Z = between(-2, 2)  # of no axes
E = np.zeros((0, 3))
MASK = Fixed(np.arange(12).reshape(3, 4) % 3 == 0)
INDEX = Fixed(np.array([2, 0, 2, -1]))
