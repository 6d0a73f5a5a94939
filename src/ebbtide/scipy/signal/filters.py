"""
Filters, which are linear in the signal.

The derivative of a filter is the filter run backwards in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import signal

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import stands_for
from ebbtide.rules.reductions import axis_of
from ebbtide.scipy.signal.convolutions import types_of_members


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
    kind = _filter_type(*types_of_members(values, mapped), **params)
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
    return _lfilter.bind((b, a, x), {"axis": axis_of(axis, x.ndim)})


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
    params = {"axis": axis_of(axis, data.ndim), "type": type, "bp": bp}
    return _detrend.bind((data,), params)
