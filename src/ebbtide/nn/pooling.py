"""The largest elements of windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.constants import constant
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched
from ebbtide.nn.windows import length_of, pair_of

# Operands of all three: an array (..., H, W, C) or its cotangent, and which element of each window is the largest one.


def _parts(x: Any, window: tuple[int, int], strides: tuple[int, int]) -> list[Any]:
    """Return for each place in a window the elements that all windows have there, as views."""
    height, width = (length_of(n, k, s) for n, k, s in zip(x.shape[-3:-1], window, strides, strict=True))
    return [
        x[..., i : i + strides[0] * (height - 1) + 1 : strides[0], j : j + strides[1] * (width - 1) + 1 : strides[1], :]
        for i in range(window[0])
        for j in range(window[1])
    ]


def _largest(x: Any, places: Any, window: tuple[int, int], strides: tuple[int, int]) -> Any:
    # All rows of a window first, so that there are half as many elements to take apart by columns.
    lines = _largest_of(_parts(x, (window[0], 1), (strides[0], 1)))
    found = _largest_of(_parts(lines, (1, window[1]), (1, strides[1])))
    return np.copy(found) if window[1] == 1 else found


def _largest_of(parts: list[Any]) -> Any:
    """Return the largest elements of arrays; of one array that itself."""
    if len(parts) == 1:
        return parts[0]
    found = np.maximum(*parts[:2])
    for part in parts[2:]:
        np.maximum(found, part, out=found)
    return found


def places_of_largest(x: Any, window: tuple[int, int], strides: tuple[int, int]) -> Any:
    """Return the place of the largest element of each window: the first of several, one byte for each."""
    parts = _parts(x, window, strides)
    largest = _largest(x, None, window, strides)
    places = np.zeros(largest.shape, np.min_scalar_type(len(parts)))
    here = np.empty(largest.shape, np.bool_)
    for k in range(len(parts) - 1, -1, -1):
        np.copyto(places, k, where=np.equal(parts[k], largest, out=here))
    return places


def _chosen(x: Any, places: Any, window: tuple[int, int], strides: tuple[int, int]) -> Any:
    found: Any = None
    for k, part in enumerate(_parts(x, window, strides)):
        term = np.where(np.equal(places, k), part, type_of(part).dtype.type(0))
        found = term if found is None else found + term
    return found


def _spread(g: Any, places: Any, window: tuple[int, int], strides: tuple[int, int], size: tuple[int, int]) -> Any:
    wide = np.zeros((*g.shape[:-3], *size, g.shape[-1]), g.dtype)
    for k, part in enumerate(_parts(wide, window, strides)):
        np.add(part, g, out=part, where=np.equal(places, k))
    return wide


def _pooled_type(x: ArrayType, window: tuple[int, int], strides: tuple[int, int]) -> ArrayType:
    lengths = [length_of(n, k, s) for n, k, s in zip(x.shape[-3:-1], window, strides, strict=True)]
    return ArrayType((*x.shape[:-3], *lengths, x.shape[-1]), x.dtype)


def _pull_window(g: Any, kind: ArrayType, params: Any, places: Any) -> Any:
    return matched(_spreading.bind((g, places), {**params, "size": tuple(kind.shape[-3:-1])}), kind)


def _pull_spread(g: Any, kind: ArrayType, params: Any, places: Any) -> Any:
    return matched(_choosing.bind((g, places), _without_size(params)), kind)


def _without_size(params: Any) -> dict[str, Any]:
    return {name: params[name] for name in ("window", "strides")}


_WINDOW_PULL = Pull(_pull_window, ("y",), FRESH, temporaries=1)
_SPREAD_PULL = Pull(_pull_spread, ("y",), FRESH, temporaries=2)
_choosing = Primitive(
    _chosen,
    name="choose_of_windows",
    operands=("x", "y"),
    pull=lambda k: None if k else _WINDOW_PULL,
    push=lambda tangents, values, out, params, kept: _choosing.bind((tangents[0], values[1]), params),
    infer=lambda x, y, window, strides: _pooled_type(x, window, strides),
    batch=lambda values, mapped, params, size: _choosing.bind(all_full(values, mapped, size), params),
)
_spreading = Primitive(
    _spread,
    name="spread_to_windows",
    operands=("x", "y"),
    pull=lambda k: None if k else _SPREAD_PULL,
    push=lambda tangents, values, out, params, kept: _spreading.bind((tangents[0], values[1]), params),
    infer=lambda x, y, window, strides, size: ArrayType((*x.shape[:-3], *size, x.shape[-1]), x.dtype),
    batch=lambda values, mapped, params, size: _spreading.bind(all_full(values, mapped, size), params),
)
_pooling = Primitive(
    _largest,
    name="max_pool2d",
    operands=("x", "y"),
    pull=lambda k: None if k else _WINDOW_PULL,
    push=lambda tangents, values, out, params, kept: _choosing.bind((tangents[0], values[1]), params),
    infer=lambda x, y, window, strides: _pooled_type(x, window, strides),
    batch=lambda values, mapped, params, size: _pooling.bind(all_full(values, mapped, size), params),
)
_places = constant(
    places_of_largest,
    lambda x, window, strides: ArrayType(
        _pooled_type(x, window, strides).shape, np.min_scalar_type(window[0] * window[1])
    ),
    lambda handler, args, params, mapped, size: handler(*args, **params),
)


def max_pool2d(x: Any, window: int | tuple[int, int] = 2, stride: int | tuple[int, int] | None = None) -> Any:
    """
    Return the largest element of each window of images, without padding; of several the first has the derivative.

    Args:
        x: Real images (..., H, W, C), channels last.
        window: Height and width of a window, or one number for both.
        stride: Distance between windows; that of the window by default.

    Returns:
        Images (..., (H - h) // s + 1, (W - w) // s + 1, C).

    Raises:
        ValueError: A window is larger than the image, or x has fewer than three axes.

    Memory:
        A record saves one byte for each window and channel.

    Example:
        >>> import numpy as np
        >>> max_pool2d(np.arange(16.0).reshape(4, 4, 1))[..., 0]
        array([[ 5.,  7.],
               [13., 15.]])
    """
    sizes = pair_of(window, "window")
    strides = sizes if stride is None else pair_of(stride, "stride")
    shape = np.shape(x)
    if len(shape) < 3 or any(n < k for n, k in zip(shape[-3:-1], sizes, strict=True)):
        raise ValueError(
            f"max_pool2d was given an array of shape {shape} and windows of {sizes}: give images (..., H, W, C) that "
            "are at least as large."
        )
    params = {"window": sizes, "strides": strides}
    return _pooling.bind((x, _places(x, **params)), params)
