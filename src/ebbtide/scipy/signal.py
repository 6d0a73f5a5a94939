"""
Convolution, correlation and filters of `scipy.signal`, with SciPy's arguments and values.

Each is linear in its signals, and the derivative is one of the same kind: of a convolution a convolution with the other
signal backwards, of a filter the filter run backwards in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import signal

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members, full
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted, unbroadcast
from ebbtide.rules.answers import refusal
from ebbtide.rules.reductions import axes_of
from ebbtide.scipy.original import stands_for

__all__ = [
    "convolve", "convolve2d", "correlate", "correlate2d", "detrend", "fftconvolve", "lfilter", "oaconvolve",
]  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Convolution. In mode "full" it is the sum of x[i] y[k - i] over i; the others are the middle of that.


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
    ones = [np.ones((1,) * len(kind.shape), kind.dtype) for kind in (x, y)]
    axes = params.get("axes") or tuple(range(len(x.shape)))
    if not (x.size and y.size):
        return ArrayType((0,), np.result_type(*ones))  # as SciPy has it, for any number of axes
    shape = tuple([length for _, length, _ in _middle(x.shape, y.shape, params["mode"], axes, late=False)])
    return ArrayType(shape, function(*ones, **params).dtype)


def _members(values: Any, mapped: Any) -> Any:
    """Return the types of what one member has of each operand."""
    return [ArrayType(tuple(x.shape[m:]), x.dtype) for x, m in zip(values, mapped, strict=True)]


def _declare(
    function: Callable[..., Any], *, flips: bool = False, late: bool = False, batch: Any = None, through: Any = None
) -> Primitive:
    """
    Declare a convolution or correlation.

    Args:
        function: SciPy's.
        flips: Whether it is a correlation: a convolution with the second signal conjugated and backwards.
        late: As in `_middle`.
        batch: The batch rule; by default members are done one after the other.
        through: The convolution that its derivatives are made of; by default itself.
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
        x, y = _members(values, mapped)
        kind = _type_of_result(x, y, params, function)
        return by_members(primitive.name, primitive.bind, values, mapped, params, size, kind)

    primitive = Primitive(
        function,
        operands=("x", "y"),
        pull=pulls.__getitem__,
        push=push,
        infer=lambda x, y, **params: _type_of_result(x, y, params, function),
        batch=batch or of_members,
    )
    return primitive


def _by_axes(function: Callable[..., Any]) -> Primitive:
    """Declare a convolution along some axes only, to which members are one axis more."""

    def batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
        if not size:
            x, y = _members(values, mapped)
            kind = _type_of_result(x, y, params, function)
            return np.zeros((0, *kind.shape), kind.dtype)
        shifted = {**params, "axes": tuple([axis + 1 for axis in params["axes"]])}
        # With "same", the first signal has to have all members.
        first, second = full(values[0], mapped[0], size), values[1] if mapped[1] else values[1][None]
        return primitive.bind((first, second), shifted)

    primitive = _declare(function, batch=batch)
    return primitive


_convolve = _declare(signal.convolve)
_correlate = _declare(signal.correlate, flips=True, through=_convolve)
_convolve2d = _declare(signal.convolve2d)
_correlate2d = _declare(signal.correlate2d, flips=True, late=True, through=_convolve2d)
_fftconvolve = _by_axes(signal.fftconvolve)
_oaconvolve = _by_axes(signal.oaconvolve)


def _signals(in1: Any, in2: Any) -> tuple[Any, Any]:
    """Return two signals as arrays; SciPy's messages say what is wrong with their shapes."""
    return tuple(x if hasattr(x, "shape") else np.asarray(x) for x in (in1, in2))  # pyright: ignore[reportReturnType]


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


# ------------------------------------------------------------------------------------------------
# Filters


def _packed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose result is in C order: how SciPy's lies depends on sizes, and sums go along memory."""

    def packed(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return np.ascontiguousarray(result) if isinstance(result, np.ndarray) else result

    return packed


def _backwards(x: Any, axis: int) -> Any:
    return np.flip(x, axis)


def _filtered(b: Any, a: Any, x: Any, axis: int) -> Any:
    return _lfilter.bind((b, a, x), {"axis": axis})


def _delays(g: Any, y: Any, count: int, axis: int) -> Any:
    """Return the sums of g[n] y[n - k] for the delays k = 0, ..., count - 1."""
    g, y = np.moveaxis(g, axis, -1), np.moveaxis(y, axis, -1)
    length = y.shape[-1]
    return np.stack([np.sum(g[..., min(k, length) :] * y[..., : max(length - k, 0)]) for k in range(count)])


def _one(a: Any) -> Any:
    return np.ones(1, a.dtype)


# y = B x / A for polynomials B and A in the delay: with dy = (dB x - dA y) / A, also for the factor a[0].


def _pull_b(g: Any, kind: ArrayType, params: Any, a: Any, x: Any) -> Any:
    axis = params["axis"]
    return matched(_delays(g, _filtered(_one(a), a, x, axis), kind.shape[0], axis), kind)


def _pull_a(g: Any, kind: ArrayType, params: Any, a: Any, out: Any) -> Any:
    axis = params["axis"]
    return matched(np.negative(_delays(g, _filtered(_one(a), a, out, axis), kind.shape[0], axis)), kind)


def _pull_x(g: Any, kind: ArrayType, params: Any, b: Any, a: Any) -> Any:
    axis = params["axis"]
    return matched(_backwards(_filtered(b, a, _backwards(g, axis), axis), axis), kind)


def _push_filter(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    (b, a, x), axis = values, params["axis"]
    terms = []
    if tangents[0] is not None:
        terms.append(_filtered(tangents[0], a, x, axis))
    if tangents[1] is not None:
        terms.append(np.negative(_filtered(tangents[1], a, out, axis)))
    if tangents[2] is not None:
        terms.append(_filtered(b, a, tangents[2], axis))
    return promoted(terms, out)


def _filter_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
    if size and mapped == (False, False, True):
        return _lfilter.bind(values, {"axis": params["axis"] + 1})
    kind = _filter_type(*_members(values, mapped), **params)
    return by_members("lfilter", _lfilter.bind, values, mapped, params, size, kind)


def _filter_type(b: ArrayType, a: ArrayType, x: ArrayType, axis: int) -> ArrayType:
    return ArrayType(x.shape, np.result_type(b.dtype, a.dtype, x.dtype))


_LFILTER = (
    Pull(_pull_b, ("a", "x"), FRESH, temporaries=2),
    Pull(_pull_a, ("a", "out"), FRESH, temporaries=2),
    Pull(_pull_x, ("b", "a"), FRESH, temporaries=1),
)
_lfilter = Primitive(
    _packed(signal.lfilter),
    name="lfilter",
    operands=("b", "a", "x"),
    pull=_LFILTER.__getitem__,
    push=_push_filter,
    infer=_filter_type,
    batch=_filter_members,
)


@stands_for(signal.lfilter, _packed(signal.lfilter))
def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: None = None) -> Any:
    """
    Return a signal that went through a rational filter, as `scipy.signal.lfilter`.

    Args:
        b: Coefficients of the numerator, a vector.
        a: Coefficients of the denominator, a vector.
        x: Signals of any shape.
        axis: The axis of time.
        zi: Must be None: the filter starts at rest.

    Raises:
        TraceError: *zi* is given.

    Memory:
        A record saves the coefficients; for their derivatives *x* and the result, too.
    """
    if zi is not None:
        raise refusal("lfilter with zi= has no derivative rule. Put the samples that lead to this state before x.")
    b, a, x = (np.atleast_1d(v) for v in (b, a, x))
    return _lfilter.bind((b, a, x), {"axis": axes_of(axis, x.ndim)[0]})


# A projection on what is orthogonal to constants or lines: it is its own transpose.
_detrend = linear(
    _packed(signal.detrend),
    lambda g, kind, **params: _detrend.bind((g,), params),
    infer=lambda kind, **params: ArrayType(kind.shape, signal.detrend(np.ones(2, kind.dtype)).dtype),
    batch=lambda x, axis, **params: _detrend.bind((x,), {"axis": axis + 1, **params}) if x.size else x,
    result=FRESH,
    name="detrend",
)


@stands_for(signal.detrend, _packed(signal.detrend))
def detrend(data: Any, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: bool = False) -> Any:  # noqa: A002 - SciPy's names
    """
    Return signals less a line or a constant, as `scipy.signal.detrend`.

    Args:
        data: Signals of any shape.
        axis: The axis of time.
        type: `linear` or `constant`.
        bp: Where lines are broken, for `linear`.
        overwrite_data: Not used: a traced array is not overwritten.

    Memory:
        A record saves nothing.
    """
    del overwrite_data
    params = {"axis": axes_of(axis, data.ndim)[0], "type": type, "bp": bp}
    return _detrend.bind((data,), params)
