"""In which order NumPy goes through an array that it reduces, on which the last bit of a sum depends."""

from __future__ import annotations

import numpy as np


def order_of(
    shape: tuple[int, ...], strides: tuple[int, ...], into: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """
    Return how NumPy goes through an array to reduce it: axes that it joins are so here.

    Args:
        shape: Of the array.
        strides: Of the array.
        into: Of the result along the same axes, 0 where it is reduced.

    Returns:
        Shape, strides, and strides of the result, or None where that is not known: where the two fastest axes are both
        reduced, or both kept, and none follows the other in memory, NumPy collects elements before it adds them; and
        where some axes run backwards and others do not.
    """
    # An iterator turns axes that run backwards, a reduction does not: asked is for the array as it lies forwards.
    signs = {-1 if step < 0 else 1 for size, step in zip(shape, strides, strict=True) if size > 1 and step}
    if len(signs) > 1 or any(step < 0 for step in into):
        return None
    forwards = tuple([abs(step) for step in strides])
    arrays = [np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), shape, steps) for steps in (into, forwards)]
    to, of = np.nditer(arrays, ["reduce_ok"], [["readwrite"], ["readonly"]], order="K").itviews
    if not of.ndim or (of.ndim > 1 and (to.strides[-1] == 0) == (to.strides[-2] == 0)):
        return None
    sign = -1 if -1 in signs else 1
    return of.shape, tuple([sign * step for step in of.strides]), to.strides
