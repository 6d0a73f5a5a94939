"""
Convolution of images, (..., H, W, C), by kernels (h, w, C, O): products with a matrix of windows, piece by piece.

With the operations that give the cotangents of images and of kernels it makes three forms of one sum over images x,
kernels w and results y. Each is linear in its two operands, and its derivatives are the other two, to any order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.kinds import multilinear
from ebbtide.arrays.primitive import plain
from ebbtide.nn.windows import length_of, pair_of, pieces, window_rows

Padding = tuple[tuple[int, int], tuple[int, int]]
Pair = tuple[int, int]


def _images(x: Any) -> Any:
    """Return images with one axis in front."""
    return np.reshape(x, (prod(x.shape[:-3]), *x.shape[-3:]))


def _sizes(size: Any, window: Any, strides: Pair, padding: Padding) -> tuple[int, ...]:
    """Return how many windows there are along height and width."""
    return tuple(
        [length_of(n + sum(p), k, s) for n, k, s, p in zip(size, window, strides, padding, strict=True)]
    )


def _convolved(x: Any, w: Any, strides: Pair, padding: Padding) -> Any:
    """Return the results, of images and kernels."""
    height, width = _sizes(x.shape[-3:-1], w.shape[:2], strides, padding)
    images, matrix = _images(x), np.reshape(w, (-1, w.shape[-1]))
    made = np.empty((len(images), height, width, w.shape[-1]), np.result_type(x, w))
    for some, lines in pieces(len(images), height, width * len(matrix) * made.dtype.itemsize):
        rows = window_rows(images[some], lines, w.shape[:2], strides, padding)
        np.matmul(rows, matrix, out=made[some, lines].reshape(len(rows), -1))
        del rows  # before the next piece is made
    return np.reshape(made, (*x.shape[:-3], height, width, w.shape[-1]))


def _of_images(g: Any, w: Any, strides: Pair, padding: Padding, size: Pair) -> Any:
    """Return the images' cotangent, of that of the results and kernels."""
    (kernel_height, kernel_width, channels, _), (height, width) = w.shape, g.shape[-3:-1]
    results, matrix = _images(g), np.reshape(w, (-1, w.shape[-1])).T
    (top, bottom), (left, right) = padding
    wide = np.zeros(
        (len(results), top + size[0] + bottom, left + size[1] + right, channels), np.result_type(g, w)
    )
    for some, lines in pieces(len(results), height, width * matrix.shape[1] * wide.dtype.itemsize):
        rows = np.matmul(np.reshape(results[some, lines], (-1, g.shape[-1])), matrix)
        windows = np.reshape(rows, (-1, lines.stop - lines.start, width, kernel_height, kernel_width, channels))
        for i in range(kernel_height):
            for j in range(kernel_width):
                target = wide[some, i :: strides[0], j :: strides[1]][:, lines, :width]
                target += windows[:, :, :, i, j]
        del rows, windows
    # In memory of its own: the margins die here.
    inner = np.ascontiguousarray(wide[:, top : top + size[0], left : left + size[1]])
    return np.reshape(inner, (*g.shape[:-3], *size, channels))


def _of_kernels(x: Any, g: Any, strides: Pair, padding: Padding, window: Pair) -> Any:
    """Return the kernels' cotangent, of images and that of the results."""
    images, results = _images(x), _images(g)
    length = prod(window) * x.shape[-1]
    total = np.zeros((length, g.shape[-1]), np.result_type(x, g))
    for some, lines in pieces(len(images), g.shape[-3], g.shape[-2] * length * total.dtype.itemsize):
        rows = window_rows(images[some], lines, window, strides, padding)
        total += np.matmul(rows.T, np.reshape(results[some, lines], (-1, g.shape[-1])))
        del rows
    return np.reshape(total, (*window, x.shape[-1], g.shape[-1]))


def _size_of(kind: ArrayType) -> Pair:
    return kind.shape[-3], kind.shape[-2]


def _window_of(kind: ArrayType) -> Pair:
    return kind.shape[0], kind.shape[1]


def _settings(params: Any) -> dict[str, Any]:
    return {name: params[name] for name in ("strides", "padding")}


def _member_of(x: Any, is_mapped: bool) -> ArrayType:
    return ArrayType(tuple(x.shape[is_mapped:]), x.dtype)


def _batch(primitive: Any, x: Any, y: Any, mapped: Any, params: Any) -> Any:
    """Return the results of members: those of images for one set of kernels are more images."""
    if primitive is not _kernels and not mapped[1]:
        return primitive.bind((x, y), params)
    size = (x if mapped[0] else y).shape[0]
    kinds = [_member_of(v, m) for v, m in zip((x, y), mapped, strict=True)]
    return by_members(primitive.name, primitive.bind, (x, y), mapped, params, size, primitive.infer(*kinds, **params))


_convolution = multilinear(
    _convolved,
    (
        lambda g, w, kind, **params: _image.bind((g, w), {**params, "size": _size_of(kind)}),
        lambda g, x, kind, **params: _kernels.bind((x, g), {**params, "window": _window_of(kind)}),
    ),
    infer=lambda x, w, strides, padding: ArrayType(
        (*x.shape[:-3], *_sizes(x.shape[-3:-1], w.shape[:2], strides, padding), w.shape[-1]),
        np.result_type(x.dtype, w.dtype),
    ),
    batch=lambda x, w, of_x, of_w, **params: _batch(_convolution, x, w, (of_x, of_w), params),
    name="conv2d",
)
_image = multilinear(
    _of_images,
    (
        lambda x, w, kind, **params: _convolution.bind((x, w), _settings(params)),
        lambda x, g, kind, **params: _kernels.bind((x, g), {**_settings(params), "window": _window_of(kind)}),
    ),
    infer=lambda g, w, strides, padding, size: ArrayType(
        (*g.shape[:-3], *size, w.shape[2]), np.result_type(g.dtype, w.dtype)
    ),
    batch=lambda g, w, of_g, of_w, **params: _batch(_image, g, w, (of_g, of_w), params),
    name="conv2d_images",
)
_kernels = multilinear(
    _of_kernels,
    (
        lambda w, g, kind, **params: _image.bind((g, w), {**_settings(params), "size": _size_of(kind)}),
        lambda w, x, kind, **params: _convolution.bind((x, w), _settings(params)),
    ),
    infer=lambda x, g, strides, padding, window: ArrayType(
        (*window, x.shape[-1], g.shape[-1]), np.result_type(x.dtype, g.dtype)
    ),
    batch=lambda x, g, of_x, of_g, **params: _batch(_kernels, x, g, (of_x, of_g), params),
    name="conv2d_kernels",
)


def conv2d(x: Any, kernels: Any, bias: Any = None, stride: int | Pair = 1, padding: Any = 0) -> Any:
    """
    Return the correlation of images with kernels, which machine learning calls convolution; channels are last.

    Args:
        x: Images (..., H, W, C).
        kernels: Array (h, w, C, O).
        bias: Vector (O,), or None.
        stride: Distance between windows: one number, or one for height and one for width.
        padding: Rows and columns of zeros around an image: a number, a pair for height and width, a pair of pairs
            (before, after); `"valid"` for none, or `"same"`, with which the result is H // stride (rounded up) by
            W // stride.

    Returns:
        Array (..., H', W', O) with H' = (H + padding - h) // stride + 1.

    Raises:
        ValueError: The shapes do not fit together, or a window is larger than the image with its padding.

    Memory:
        A record saves the images and the kernels; windows are copied to a matrix one MiB at a time.

    Example:
        >>> import numpy as np
        >>> conv2d(np.ones((3, 3, 1)), np.ones((2, 2, 1, 1)), padding="same")[..., 0]
        array([[4., 4., 2.],
               [4., 4., 2.],
               [2., 2., 1.]])
    """
    x, kernels = plain(x), plain(kernels)
    shape, window = np.shape(x), np.shape(kernels)
    if len(shape) < 3 or len(window) != 4 or shape[-1] != window[2]:
        raise ValueError(
            f"conv2d was given images of shape {shape} and kernels of shape {window}. Images are (..., H, W, C) and "
            "kernels (h, w, C, O), with as many channels C."
        )
    strides = pair_of(stride, "stride")
    around = _padding_of(padding, shape[-3:-1], window[:2], strides)
    if any(n + sum(p) < k for n, p, k in zip(shape[-3:-1], around, window[:2], strict=True)):
        raise ValueError(
            f"conv2d: windows of {window[:2]} are larger than images of {shape[-3:-1]} with padding {around}."
        )
    if not prod(window):
        raise ValueError(f"conv2d was given kernels of shape {window}, which have no elements.")
    made = _convolution.bind((x, kernels), {"strides": strides, "padding": around})
    return made if bias is None else made + bias


def _padding_of(padding: Any, size: Any, window: Any, strides: Pair) -> Padding:
    """Return the padding before and after, along height and width."""
    if padding == "same":
        whole = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(size, window, strides, strict=True)]
        return (whole[0] // 2, whole[0] - whole[0] // 2), (whole[1] // 2, whole[1] - whole[1] // 2)
    if padding == "valid":
        return (0, 0), (0, 0)
    pair = padding if isinstance(padding, (tuple, list)) else (padding, padding)
    both = [one if isinstance(one, (tuple, list)) else (one, one) for one in pair]
    flat = [n for one in both for n in one]
    if len(both) != 2 or len(flat) != 4 or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in flat):
        raise ValueError(
            f"padding={padding!r}: give 'same', 'valid', a number that is not negative, a pair for height and width, "
            "or a pair of pairs (before, after)."
        )
    return (int(flat[0]), int(flat[1])), (int(flat[2]), int(flat[3]))
