"""
Rules of Fourier transforms: each is linear and saves nothing, and its transpose is a transform.

A transform of many axes is one of each axis after the other, in NumPy's order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH, Primitive
from ebbtide.rules.answers import answer

# Which norm divides the transform in the other direction as much as this one divides the transform.
_OPPOSITE: Mapping[Any, Any] = MappingProxyType(
    {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
)


def _resized(x: Any, n: int, axis: int) -> Any:
    """Return *x* with *n* elements along an axis, the last ones cut off or zero, as a transform takes it."""
    present = x.shape[axis]
    if present == n:
        return x
    if n < present:
        return x[(Ellipsis, slice(n), *(slice(None),) * (-1 - axis))]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, n - present)
    return np.pad(x, widths)


def _length(kind: ArrayType, n: int, axis: int, dtype: Any) -> ArrayType:
    shape = list(kind.shape)
    shape[axis] = n
    return ArrayType(tuple(shape), dtype)


def _result_dtype(function: Any, kind: ArrayType) -> Any:
    return function(np.ones(2, kind.dtype)).dtype


def _transform(function: Any) -> Primitive:
    """Return fft or ifft, which is its own transpose; cotangents of cut elements are zero."""
    return linear(
        function,
        lambda g, kind, n, axis, norm: _resized(function(g, n, axis, norm), kind.shape[axis], axis),
        infer=lambda kind, n, axis, norm: _length(kind, n, axis, _result_dtype(function, kind)),
        batch=function,
        result=FRESH,
        name=function.__name__,
    )


def _pair_weights(n: int, axis: int, of_pair: float, dtype: Any) -> Any:
    """Return the weights of the frequencies of a real transform: those that stand for a pair, and 0 and n / 2."""
    weights = np.full(n // 2 + 1, of_pair, dtype)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return np.reshape(weights, (-1, *(1,) * (-1 - axis)))


def _real_dtype(g: Any) -> Any:
    return np.finfo(type_of(g).dtype).dtype


def _rfft_transpose(g: Any, kind: ArrayType, n: int, axis: int, norm: Any) -> Any:
    weighted = np.conjugate(g) * _pair_weights(n, axis, 0.5, _real_dtype(g))
    return _resized(np.fft.irfft(weighted, n, axis, _OPPOSITE[norm]), kind.shape[axis], axis)


def _irfft_transpose(g: Any, kind: ArrayType, n: int, axis: int, norm: Any) -> Any:
    full = np.conjugate(np.fft.rfft(g, n, axis, _OPPOSITE[norm]))
    return _resized(full * _pair_weights(n, axis, 2, _real_dtype(g)), kind.shape[axis], axis)


_fft, _ifft = _transform(np.fft.fft), _transform(np.fft.ifft)
_rfft = linear(
    np.fft.rfft,
    _rfft_transpose,
    infer=lambda kind, n, axis, norm: _length(kind, n // 2 + 1, axis, _result_dtype(np.fft.rfft, kind)),
    batch=np.fft.rfft,
    result=FRESH,
    name="rfft",
)
_irfft = linear(
    np.fft.irfft,
    _irfft_transpose,
    infer=lambda kind, n, axis, norm: _length(kind, n, axis, _result_dtype(np.fft.irfft, kind)),
    batch=np.fft.irfft,
    result=FRESH,
    name="irfft",
)


def _checked(a: Any, n: Any, axis: Any, norm: Any, default: int) -> dict[str, Any]:
    """Return the parameters of a transform; axes are counted from the last, where members of a batch are not."""
    if norm not in _OPPOSITE:
        raise ValueError(f'Invalid norm value {norm}; should be "backward", "ortho" or "forward".')
    axis = np.lib.array_utils.normalize_axis_index(axis, a.ndim) - a.ndim
    n = default if n is None else int(n)
    if n < 1:
        raise ValueError(f"Invalid number of FFT data points ({n}) specified.")
    return {"n": n, "axis": axis, "norm": norm}


def _along(primitive: Primitive, halved: bool = False) -> Callable[..., Any]:
    """Return the handler of a transform along one axis; *halved* if its operand has the frequencies of a real one."""

    def handler(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
        present = a.shape[axis]
        return primitive.bind((a,), _checked(a, n, axis, norm, 2 * (present - 1) if halved else present))

    return handler


fft, ifft, rfft, irfft = _along(_fft), _along(_ifft), _along(_rfft), _along(_irfft, halved=True)


def _hfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    n = 2 * (a.shape[axis] - 1) if n is None else n
    return np.fft.irfft(np.conjugate(a), n, axis, _swapped(norm))


def _ihfft(a: Any, n: Any = None, axis: int = -1, norm: Any = None) -> Any:
    return np.conjugate(np.fft.rfft(a, n, axis, _swapped(norm)))


def _swapped(norm: Any) -> Any:
    return _OPPOSITE.get(norm, norm)


def _lengths_and_axes(a: Any, s: Any, axes: Any, halved: bool = False) -> tuple[list[int], list[int]]:
    """Return the length along each axis; without one that of the array, or the length of the real transform."""
    if axes is None:
        axes = range(-len(s), 0) if s is not None else range(a.ndim)
    axes = [int(axis) for axis in axes]
    if s is None:
        lengths = [a.shape[axis] for axis in axes]
        if halved:
            lengths[-1] = 2 * (lengths[-1] - 1)
    else:
        if len(s) != len(axes):
            raise ValueError("Shape and axes have different lengths.")
        lengths = [a.shape[axis] if n == -1 else int(n) for n, axis in zip(s, axes, strict=True)]
    return lengths, axes


def _in_turn(one: Any, a: Any, lengths: Sequence[int], axes: Sequence[int], norm: Any) -> Any:
    for n, axis in zip(lengths, axes, strict=True):
        a = one(a, n, axis, norm)
    return a


def _of_many(one: Any) -> Callable[..., Any]:
    def handler(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
        lengths, axes = _lengths_and_axes(a, s, axes)
        return _in_turn(one, a, lengths[::-1], axes[::-1], norm)

    return handler


def _rfftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    lengths, axes = _lengths_and_axes(a, s, axes)
    a = np.fft.rfft(a, lengths[-1], axes[-1], norm)
    return _in_turn(np.fft.fft, a, lengths[-2::-1], axes[-2::-1], norm)


def _irfftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    lengths, axes = _lengths_and_axes(a, s, axes, halved=True)
    a = _in_turn(np.fft.ifft, a, lengths[:-1], axes[:-1], norm)
    return np.fft.irfft(a, lengths[-1], axes[-1], norm)


def _of_two(handler: Any) -> Callable[..., Any]:
    return lambda a, s=None, axes=(-2, -1), norm=None: handler(a, s, axes, norm)


_fftn, _ifftn = _of_many(np.fft.fft), _of_many(np.fft.ifft)


def _shift(sign: int) -> Callable[..., Any]:
    """Return the handler that brings the zero frequency to the middle, or back."""

    def handler(x: Any, axes: Any = None) -> Any:
        axes = tuple(range(x.ndim)) if axes is None else tuple(np.atleast_1d(axes).tolist())
        return np.roll(x, tuple([sign * (x.shape[axis] // 2) for axis in axes]), axes)

    return handler


for _function, _handler in (
    (np.fft.fft, fft), (np.fft.ifft, ifft), (np.fft.rfft, rfft), (np.fft.irfft, irfft),
    (np.fft.hfft, _hfft), (np.fft.ihfft, _ihfft),
    (np.fft.fftn, _fftn), (np.fft.ifftn, _ifftn), (np.fft.rfftn, _rfftn), (np.fft.irfftn, _irfftn),
    (np.fft.fft2, _of_two(_fftn)), (np.fft.ifft2, _of_two(_ifftn)),
    (np.fft.rfft2, _of_two(_rfftn)), (np.fft.irfft2, _of_two(_irfftn)),
    (np.fft.fftshift, _shift(1)), (np.fft.ifftshift, _shift(-1)),
):  # fmt: skip
    answer(_function, _handler)
