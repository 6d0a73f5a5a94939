"""Windows of images (..., H, W, C): their sizes, how many there are, and a matrix with a row for each of some."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ebbtide.machine.pieces import piece_of


def pair_of(value: Any, what: str) -> tuple[int, int]:
    """Return two positive whole numbers, from one for both or a pair."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in pair):
        raise ValueError(f"{what}={value!r}: give a positive whole number, or a pair of them.")
    return int(pair[0]), int(pair[1])


def length_of(length: int, window: int, stride: int) -> int:
    """Return how many windows there are along an axis."""
    return (length - window) // stride + 1


def pieces(images: int, rows: int, row_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Yield images and rows of windows, done one piece after the other (see `piece_of`)."""
    many, deep = piece_of(images, rows, row_bytes)
    for image in range(0, images, many):
        for row in range(0, rows, deep):
            yield slice(image, min(image + many, images)), slice(row, min(row + deep, rows))


def window_rows(images: Any, rows: slice, window: Any, strides: tuple[int, int], padding: Any) -> Any:
    """
    Return a matrix with a row for each window of images: its elements by row, column and channel.

    Args:
        images: Images (N, H, W, C).
        rows: Which rows of windows.
        window: Height and width.
        strides: Distances between windows.
        padding: Rows and columns of zeros around an image.

    Memory:
        The matrix, and the images with zeros around them.
    """
    wide = _padded(images, rows.start * strides[0], (rows.stop - 1) * strides[0] + window[0], padding)
    seen = sliding_window_view(wide, window, axis=(1, 2))[:, :: strides[0], :: strides[1]]
    found = np.transpose(seen, (0, 1, 2, 4, 5, 3))
    return np.reshape(found, (prod(found.shape[:3]), prod(found.shape[3:])))


def _padded(images: Any, first: int, end: int, padding: Any) -> Any:
    """Return some rows of images with zeros around them, as they are numbered then."""
    (top, _), (left, right) = padding
    count, _, width, channels = images.shape
    part = images[:, max(0, first - top) : max(0, end - top)]
    if part.shape[1] == end - first and not left and not right:
        return part
    wide = np.zeros((count, end - first, left + width + right, channels), images.dtype)
    above = max(0, top - first)
    wide[:, above : above + part.shape[1], left : left + width] = part
    return wide
