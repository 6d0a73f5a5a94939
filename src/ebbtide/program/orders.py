"""In which order NumPy goes through an array that it reduces, on which the last bit of a sum depends."""

from __future__ import annotations

import numpy as np


def order_of(
    shape: tuple[int, ...], strides: tuple[int, ...], into: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int] | None:
    """
    Return how NumPy goes through an array to reduce it: axes that it joins or turns are so here.

    Args:
        shape: Of the array.
        strides: Of the array.
        into: Of the result along the same axes, 0 where it is reduced.

    Returns:
        Shape, strides, strides of the result, and offset of the first element, or None where NumPy collects elements
        before it adds them: two axes, none of which follows the other in memory, are reduced together.
    """
    whole = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), shape, strides)
    result = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), shape, into)
    walk = np.nditer([result, whole], ["reduce_ok"], [["readwrite"], ["readonly"]], order="K")
    to, of = walk.itviews
    starts = [
        view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        for view, array in ((to, result), (of, whole))
    ]
    apart = of.ndim > 1 and to.strides[-1] == to.strides[-2] == 0
    if starts[0] or not of.ndim or apart:
        return None
    return of.shape, of.strides, to.strides, starts[1]
