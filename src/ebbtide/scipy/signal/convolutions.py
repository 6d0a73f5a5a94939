"""
Convolution and correlation, which are linear in each of two signals.

The derivative of a convolution is a convolution with the other signal backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from scipy import signal
from scipy.fft import next_fast_len

from ebbtide.arrays.array_type import ArrayType, with_shape
from ebbtide.arrays.batched import by_members, full
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, promoted, unbroadcast
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import stands_for
from ebbtide.rules.reductions import axes_of

# In mode "full" the result is the sum of x[i] y[k - i] over i; the others are the middle of that.


def _middle(x: tuple[int, ...], y: tuple[int, ...], mode: str, axes: tuple[int, ...], late: bool) -> list[Any]:
    """
    Return for each axis where the result begins in the full one, its length, and the full length.

    Args:
        x: Shape of the first signal.
        y: Shape of the second.
        mode: What of the full result is taken.
        axes: Which axes are convolved; along the others the signals are broadcast.
        late: Whether, of two middles, "same" takes the later, as SciPy's correlation in the plane does.
    """
    found = []
    for axis, (n, m) in enumerate(zip(x, y, strict=True)):
        whole = n + m - 1 if axis in axes else n if m == 1 else m
        if mode == "same":
            found.append(((whole - n + late) // 2, n, whole))
        elif mode == "valid" and axis in axes:
            found.append((min(n, m) - 1, max(n, m) - min(n, m) + 1, whole))
        else:
            found.append((0, whole, whole))
    return found


def _type_of_result(x: ArrayType, y: ArrayType, params: dict[str, Any], function: Callable[..., Any]) -> ArrayType:
    ones = [np.ones((2,) * len(kind.shape), kind.dtype) for kind in (x, y)]
    axes = params.get("axes") or tuple(range(len(x.shape)))
    if not (x.size and y.size):
        return ArrayType((0,), np.result_type(*ones))  # as SciPy has it, for any number of axes
    shape = tuple([length for _, length, _ in _middle(x.shape, y.shape, params["mode"], axes, late=False)])
    return ArrayType(shape, function(*ones, **params).dtype)


def types_of_members(values: Any, mapped: Any) -> Any:
    """Return the types of what one member has of each operand."""
    return [ArrayType(tuple(x.shape[m:]), x.dtype) for x, m in zip(values, mapped, strict=True)]


def _by_transforms(params: dict[str, Any], x: ArrayType, y: ArrayType) -> int:
    """Return the bytes of a convolution by Fourier transforms: both, their product, and the full result."""
    dtype = np.result_type(x.dtype, y.dtype)
    dtype = dtype if dtype.kind in "fc" else np.dtype(np.float64)
    axes = params.get("axes") or tuple(range(len(x.shape)))
    lengths: list[Any] = [
        next_fast_len(n + m - 1, dtype.kind == "f") if axis in axes else max(n, m)
        for axis, (n, m) in enumerate(zip(x.shape, y.shape, strict=True))
    ]
    return 4 * prod(lengths) * max(dtype.itemsize, 4)


def _by_blocks(params: dict[str, Any], x: ArrayType, y: ArrayType) -> float:
    """Return the same of blocks that overlap: along an axis by up to a quarter of 9 to 300 elements in 50 to 20,000."""
    return 1.3 ** len(x.shape) * _by_transforms(params, x, y)


def _as_chosen(params: dict[str, Any], x: ArrayType, y: ArrayType) -> int:
    """Return the same of a convolution that may be direct: for floating-point numbers SciPy chooses by shapes."""
    method = params["method"]
    if method == "auto" and x.size and y.size and x.dtype.kind in "fc" and y.dtype.kind in "fc":
        blank = [np.broadcast_to(np.zeros((), kind.dtype), kind.shape) for kind in (x, y)]
        method = signal.choose_conv_method(*blank, mode=params["mode"])
    return 0 if method == "direct" else _by_transforms(params, x, y)


def _declare(
    function: Callable[..., Any],
    *,
    flips: bool = False,
    late: bool = False,
    batch: Any = None,
    through: Any = None,
    compute: Any = None,
    scratch: Callable[..., float] | None = None,
) -> Primitive:
    """
    Declare a convolution or correlation.

    Args:
        function: SciPy's.
        flips: Whether it is a correlation: a convolution with the second signal conjugated and backwards.
        late: As in `_middle`.
        batch: The batch rule; by default members are done one after the other.
        through: The convolution that its derivatives are made of; by default itself.
        compute: What computes it; by default SciPy's function itself.
        scratch: See `Primitive`.
    """

    def flipped(y: Any, axes: tuple[int, ...]) -> Any:
        return y[tuple([slice(None, None, -1) if k in axes else slice(None) for k in range(y.ndim)])]

    def pulled(g: Any, kind: ArrayType, params: dict[str, Any], saved: Any, first: bool) -> Any:
        if not g.size or not kind.size:
            return np.zeros(kind.shape, kind.dtype)
        axes = params.get("axes") or tuple(range(saved.ndim))
        shapes = (kind.shape, saved.shape) if first else (saved.shape, kind.shape)
        places = _middle(*shapes, params["mode"], axes, late)
        # The cotangent of the full convolution.
        whole = np.pad(g, [(start, full - start - length) for start, length, full in places])
        other = np.conjugate(saved) if flips and first else flipped(saved, axes)
        made = (through or primitive).bind((whole, other), {**params, "mode": "valid"})
        if flips and not first:
            made = np.conjugate(flipped(made, axes))
        return unbroadcast(made, kind)

    pulls = (
        Pull(lambda g, kind, params, y: pulled(g, kind, params, y, True), ("y",), FRESH, temporaries=2),
        Pull(lambda g, kind, params, x: pulled(g, kind, params, x, False), ("x",), FRESH, temporaries=2),
    )

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        pairs = [(tangents[0], values[1]), (values[0], tangents[1])]
        terms = [primitive.bind(p, params) for p, t in zip(pairs, tangents, strict=True) if t is not None]
        return promoted(terms, out)

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        x, y = types_of_members(values, mapped)
        kind = _type_of_result(x, y, params, function)
        return by_members(primitive.name, primitive.bind, values, mapped, params, size, kind)

    primitive = Primitive(
        compute or function,
        name=function.__name__,
        operands=("x", "y"),
        pull=pulls.__getitem__,
        push=push,
        infer=lambda x, y, **params: _type_of_result(x, y, params, function),
        batch=batch or of_members,
        scratch=scratch,
    )
    return primitive


def _by_axes(function: Callable[..., Any], scratch: Callable[..., float]) -> Primitive:
    """Declare a convolution along some axes only, to which members are one axis more."""

    def batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
        if not size:
            x, y = types_of_members(values, mapped)
            kind = _type_of_result(x, y, params, function)
            return np.zeros((0, *kind.shape), kind.dtype)
        shifted = {**params, "axes": tuple([axis + 1 for axis in params["axes"]])}
        # With "same", the first signal has to have all members.
        first, second = full(values[0], mapped[0], size), values[1] if mapped[1] else values[1][None]
        return primitive.bind((first, second), shifted)

    primitive = _declare(function, batch=batch, scratch=scratch)
    return primitive


_convolve = _declare(signal.convolve, scratch=_as_chosen)
_correlate = _declare(signal.correlate, flips=True, through=_convolve, scratch=_as_chosen)
_convolve2d = _declare(signal.convolve2d)
# Where the second matrix is the larger, SciPy's result lies backwards: no program knows of new arrays that do.
_correlate2d = _declare(
    signal.correlate2d,
    flips=True,
    late=True,
    through=_convolve2d,
    compute=lambda x, y, **params: np.ascontiguousarray(signal.correlate2d(x, y, **params)),
)
_fftconvolve = _by_axes(signal.fftconvolve, _by_transforms)
_oaconvolve = _by_axes(signal.oaconvolve, _by_blocks)


def _signals(in1: Any, in2: Any) -> tuple[Any, Any]:
    """Return two signals as arrays; SciPy's messages say what is wrong with their shapes."""
    return with_shape(in1), with_shape(in2)


def _product(x: Any, y: Any, function: Any) -> Any:
    """Return what SciPy makes of arrays without axes, by the loops for arrays: theirs for numbers round otherwise."""
    if x.ndim != y.ndim:
        function(np.zeros(x.shape), np.zeros(y.shape))  # raises SciPy's error
    return np.reshape(np.reshape(x, (1,)) * np.reshape(y, (1,)), ())


@stands_for(signal.convolve)
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    """
    Return the convolution of two arrays over all axes, as `scipy.signal.convolve`.

    Args:
        in1: Array of N axes.
        in2: Array of N axes.
        mode: `full`, `valid` or `same` (of the shape of *in1*).
        method: `auto`, `direct` or `fft`.

    Memory:
        A record saves of each signal the other one.
    """
    in1, in2 = _signals(in1, in2)
    if not in1.ndim or not in2.ndim:
        return _product(in1, in2, signal.convolve)
    return _convolve.bind((in1, in2), {"mode": mode, "method": method})


@stands_for(signal.correlate)
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto") -> Any:
    """
    Return the correlation of two arrays over all axes, as `scipy.signal.correlate`.

    Args:
        in1: Array of N axes.
        in2: Array of N axes, which is conjugated.
        mode: `full`, `valid` or `same` (of the shape of *in1*).
        method: `auto`, `direct` or `fft`.

    Memory:
        A record saves of each signal the other one.
    """
    in1, in2 = _signals(in1, in2)
    if not in1.ndim or not in2.ndim:
        return _product(in1, np.conjugate(in2), signal.correlate)
    return _correlate.bind((in1, in2), {"mode": mode, "method": method})


def _along(primitive: Primitive, in1: Any, in2: Any, mode: str, axes: Any) -> Any:
    in1, in2 = _signals(in1, in2)
    if not in1.ndim or in1.ndim != in2.ndim:
        return _product(in1, in2, signal.fftconvolve)
    return primitive.bind((in1, in2), {"mode": mode, "axes": axes_of(axes, in1.ndim)})


@stands_for(signal.fftconvolve)
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Any:
    """
    Return the convolution of two arrays by Fourier transforms, as `scipy.signal.fftconvolve`.

    Args:
        in1: Array of N axes.
        in2: Array of N axes; along those that are not convolved, both are broadcast.
        mode: `full`, `valid` or `same` (of the shape of *in1*).
        axes: One or several axes; all by default.

    Memory:
        A record saves of each signal the other one.
    """
    return _along(_fftconvolve, in1, in2, mode, axes)


@stands_for(signal.oaconvolve)
def oaconvolve(in1: Any, in2: Any, mode: str = "full", axes: Any = None) -> Any:
    """Return what `fftconvolve` does, by the overlap-add method, as `scipy.signal.oaconvolve`."""
    return _along(_oaconvolve, in1, in2, mode, axes)


def _in_plane(primitive: Primitive, in1: Any, in2: Any, mode: str, boundary: str, fillvalue: Any) -> Any:
    if boundary not in ("fill", "pad") or not np.isscalar(fillvalue) or fillvalue != 0:
        raise refusal(
            f"{primitive.name} with boundary={boundary!r} and fillvalue={fillvalue!r} has no derivative rule. Extend "
            "the array with np.pad (SciPy's 'wrap' and 'symm' are its 'wrap' and 'symmetric'), and take mode='valid'."
        )
    in1, in2 = _signals(in1, in2)
    if mode == "valid" and in1.shape < in2.shape and np.iscomplexobj(in2) and primitive is _correlate2d:
        raise refusal("correlate2d conjugates the smaller of complex matrices in mode 'valid': put the larger first.")
    return primitive.bind((in1, in2), {"mode": mode})


@stands_for(signal.convolve2d)
def convolve2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0) -> Any:
    """
    Return the convolution of two matrices, as `scipy.signal.convolve2d`.

    Args:
        in1: Matrix.
        in2: Matrix.
        mode: `full`, `valid` or `same` (of the shape of *in1*).
        boundary: `fill`.
        fillvalue: 0.

    Raises:
        TraceError: Another boundary or value; says what to write instead.

    Memory:
        A record saves of each matrix the other one.
    """
    return _in_plane(_convolve2d, in1, in2, mode, boundary, fillvalue)


@stands_for(signal.correlate2d)
def correlate2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0) -> Any:
    """Return the correlation of two matrices, as `scipy.signal.correlate2d`; see `convolve2d`."""
    return _in_plane(_correlate2d, in1, in2, mode, boundary, fillvalue)
