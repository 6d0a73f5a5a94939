"""`r_` and `c_`: arrays joined by an index."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.numpy.creation import arange, asarray
from ebbtide.rules.originals import is_traced


@final
class Joined:
    """
    What `numpy.r_` and `numpy.c_` are, for traced arrays, too.

    Args:
        original: NumPy's object, which joins plain parts.
        axis: The axis along which parts are joined.
        ndmin: The least number of axes of each part.
        place: Where the axes of a part go among those that it lacks; -1 for the end.
    """

    __slots__ = ("_axis", "_ndmin", "_place", "original")

    def __init__(self, original: Any, axis: int, ndmin: int, place: int) -> None:
        self.original = original
        self._axis, self._ndmin, self._place = axis, ndmin, place

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if not any(is_traced([p.start, p.stop, p.step] if isinstance(p, slice) else p) for p in parts):
            return self.original[key]
        axis, ndmin, place = self._axis, self._ndmin, self._place
        if isinstance(parts[0], str):
            numbers = [int(n) for n in parts[0].split(",")]  # 'r' and 'c' make matrices, which there are none of
            axis, ndmin, place = (*numbers, *(axis, ndmin, place)[len(numbers) :])
            parts = parts[1:]
        # A Python number takes the dtype of the others, as everywhere, and is an error where it does not fit.
        made = [part if type(part) in PYTHON_NUMBERS else _widened(part, ndmin, place) for part in parts]
        dtype = np.result_type(*[one if type(one) in PYTHON_NUMBERS else one.dtype for one in made])
        made = [_widened(np.asarray(x, dtype), ndmin, place) if type(x) in PYTHON_NUMBERS else x for x in made]
        return np.concatenate(made, axis=axis, dtype=dtype)


def _widened(part: Any, ndmin: int, place: int) -> Any:
    """Return a part of a join as an array with enough axes."""
    if isinstance(part, slice):
        start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
        if isinstance(step, complex):
            part = np.linspace(start, part.stop, int(abs(step)))
        else:
            part = arange(start, part.stop, step)
    part = asarray(part)
    ndim = part.ndim
    missing = max(ndmin, 1) - ndim
    if missing <= 0:
        return part
    part = np.reshape(part, (1,) * missing + part.shape)
    if place == -1 or not ndim:
        return part
    # The axes of the part go to this place among the new ones.
    first = place + missing + 1 if place < 0 else place
    axes = list(range(part.ndim))
    return np.transpose(part, axes[:first] + axes[missing:] + axes[first:missing])


r_ = Joined(np.r_, 0, 1, -1)
c_ = Joined(np.c_, -1, 2, 0)
