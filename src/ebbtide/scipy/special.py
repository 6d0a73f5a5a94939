"""What of `scipy.special` is no ufunc, so that SciPy does not show it traced arrays: call it from here."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.kinds import NUMBERS, elementwise, reduction
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, unbroadcast
from ebbtide.rules import special_functions as _rules  # noqa: F401 - to import the rules is to have them
from ebbtide.rules.answers import refusal
from ebbtide.rules.gamma import zeta as _zeta
from ebbtide.rules.originals import stands_for
from ebbtide.rules.reductions import axes_of, number, reduced
from ebbtide.rules.special import without_rule

__all__ = ["lambertw", "log_softmax", "logsumexp", "multigammaln", "polygamma", "softmax", "zeta"]


# ------------------------------------------------------------------------------------------------
# The logarithm of a sum of exponentials


def _shares(x: Any, out: Any, axis: tuple[int, ...]) -> Any:
    """
    Return exp(x - out): what each element has of the sum.

    Where the sum is infinite or zero, the elements that are infinite with it share equally, as in `np.logaddexp`. No
    nan comes up on the way, so that none is in derivatives of this either.
    """
    finite = np.isfinite(out)
    ties = np.equal(x, out).astype(np.finfo(out.dtype).dtype)
    equal = ties / np.maximum(np.sum(ties, axis=axis, keepdims=True), 1)
    others = np.where(np.isnan(out), out, equal)
    return np.where(finite, np.exp(np.where(finite, x, 0) - np.where(finite, out, 0)), others)


def _type_of_sum(kind: ArrayType, axis: Any, keepdims: bool = True, **_: Any) -> ArrayType:
    dtype = special.logsumexp(np.ones(1, kind.dtype)).dtype
    return ArrayType(reduced(kind, axis, True).shape, dtype)


def _of_exponentials(x: Any, axis: Any, keepdims: bool = True, b: Any = None, signed: bool = False) -> Any:
    """Return the logarithm of a sum, with its axes; SciPy fails on several axes without elements."""
    if not np.size(x):
        kind = _type_of_sum(type_of(x), axis)
        return np.full(kind.shape, -np.inf, kind.dtype)
    found = special.logsumexp(x, axis, b, keepdims=True, return_sign=signed)
    return found[0] if signed else found


_logsumexp = reduction(
    lambda x, where, axis, keepdims: _of_exponentials(x, axis),
    lambda g, kind, params, x, out: g * _shares(x, out, params["axis"]),
    lambda t, params, x, out: np.sum(t * _shares(x, out, params["axis"]), axis=params["axis"], keepdims=True),
    infer=lambda kind, where, axis, keepdims: _type_of_sum(kind, axis),
    name="logsumexp",
)


def _signed(a: Any, b: Any, out: Any, axis: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the derivative of the logarithm of |sum of b exp(a)| by b, and the sign of the sum."""
    shares = _shares(a, out, axis)
    sign = np.sign(np.sum(b * shares, axis=axis, keepdims=True))
    return shares * sign, sign


def _weighted_pull(k: int) -> Pull:
    def rule(g: Any, kind: ArrayType, params: Any, a: Any, b: Any, out: Any) -> Any:
        slope = g * _signed(a, b, out, params["axis"])[0]
        return unbroadcast(slope if k else slope * b, kind)

    return Pull(rule, ("a", "b", "out"), FRESH, temporaries=4)


def _weighted_push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    axis, (a, b) = params["axis"], values
    slope = _signed(a, b, out, axis)[0]
    terms = [t * s for t, s in zip(tangents, (slope * b, slope), strict=True) if t is not None]
    return matched(np.sum(sum(terms[1:], terms[0]), axis=axis, keepdims=True), type_of(out))


_weighted = Primitive(
    lambda a, b, axis, signed: _of_exponentials(a, axis, b=b, signed=signed),
    name="logsumexp",
    operands=("a", "b"),
    pull=(_weighted_pull(0), _weighted_pull(1)).__getitem__,
    push=_weighted_push,
    infer=lambda a, b, axis, signed: _type_of_sum(ArrayType(a.shape, np.result_type(a.dtype, b.dtype)), axis),
    batch=lambda values, mapped, params, size: _weighted.bind(
        all_full(values, mapped, size),
        {**params, "axis": tuple([n + 1 for n in params["axis"]])},
    ),
)


@stands_for(special.logsumexp)
def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    """
    Return the logarithm of the sum of exponentials, as `scipy.special.logsumexp`.

    Args:
        a: Array of any shape.
        axis: One or several axes to sum over; all by default.
        b: Weights, broadcast with *a*; they have derivatives, too.
        keepdims: Whether the axes stay, with one element.
        return_sign: Whether to return (logarithm of the absolute value, sign).

    Returns:
        The logarithm; where elements that are all the same infinity make it infinite, they share its derivative.

    Raises:
        TraceError: The sign of a complex sum is asked for.

    Memory:
        A record saves *a*, the result, and *b* if it is given.
    """
    if b is not None or return_sign:
        return _sum_with_weights(a, axis, b, keepdims, return_sign)
    a = np.reshape(a, (1,)) if a.ndim == 0 else a
    axes = axes_of(axis, a.ndim)
    out = _logsumexp.bind((a, True), {"axis": axes, "keepdims": True})
    return out if keepdims else number(np.squeeze(out, axes))


def _sum_with_weights(a: Any, axis: Any, b: Any, keepdims: bool, return_sign: bool) -> Any:
    """Return `logsumexp` with weights, its sign, or both."""
    kinds = type_of(a), type_of(1.0 if b is None else b)
    if return_sign and "c" in (kinds[0].dtype.kind, kinds[1].dtype.kind):
        raise refusal("logsumexp of complex numbers with return_sign=True has no rule. Write np.exp and np.sum.")
    shape = np.broadcast_shapes(*[kind.shape for kind in kinds]) or (1,)
    b = np.asarray(1.0 if b is None else b, kinds[0].dtype) if b is None or type(b) in NUMBERS else b
    a, b = np.broadcast_to(a, shape), np.broadcast_to(b, shape)
    axes = axes_of(axis, len(shape))
    out = _weighted.bind((a, b), {"axis": axes, "signed": return_sign})
    result = out if keepdims else number(np.squeeze(out, axes))
    if not return_sign:
        return result
    sign = np.where(np.isneginf(out), 0, _signed(a, b, out, axes)[1]).astype(type_of(out).dtype)
    return result, sign if keepdims else np.squeeze(sign, axes)


# ------------------------------------------------------------------------------------------------
# Softmax


def _along(function: Any, pull: Any, push: Any) -> Primitive:
    """Declare a function of one array along axes that keeps its shape and saves its output."""

    def rule(g: Any, kind: ArrayType, params: Any, out: Any) -> Any:
        return matched(pull(g, out, params["axis"]), kind)

    primitive = Primitive(
        function,
        operands=("x",),
        pull=lambda k: Pull(rule, ("out",), FRESH, temporaries=2),
        push=lambda tangents, values, out, params, kept: matched(push(tangents[0], out, params["axis"]), type_of(out)),
        infer=lambda kind, axis: ArrayType(kind.shape, function(np.ones(1, kind.dtype)).dtype),
        batch=lambda values, mapped, params, size: primitive.bind(
            values, {"axis": tuple([n + 1 for n in params["axis"]])}
        ),
    )
    return primitive


def _total(x: Any, axis: Any) -> Any:
    return np.sum(x, axis=axis, keepdims=True)


_softmax = _along(
    special.softmax,
    lambda g, out, axis: out * (g - _total(g * out, axis)),
    lambda t, out, axis: out * (t - _total(t * out, axis)),
)
_log_softmax = _along(
    special.log_softmax,
    lambda g, out, axis: g - np.exp(out) * _total(g, axis),
    lambda t, out, axis: t - _total(t * np.exp(out), axis),
)


@stands_for(special.softmax)
def softmax(x: Any, axis: Any = None) -> Any:
    """
    Return the exponentials over their sum, as `scipy.special.softmax`.

    Args:
        x: Array of any shape.
        axis: One or several axes to sum over; all by default.

    Returns:
        An array of the same shape.

    Memory:
        A record saves the result.
    """
    return _softmax.bind((x,), {"axis": axes_of(axis, x.ndim)})


@stands_for(special.log_softmax)
def log_softmax(x: Any, axis: Any = None) -> Any:
    """Return the logarithm of `softmax`, which see, as `scipy.special.log_softmax`: it does not underflow."""
    return _log_softmax.bind((x,), {"axis": axes_of(axis, x.ndim)})


# ------------------------------------------------------------------------------------------------
# Gamma functions

_polygamma = elementwise(
    special.polygamma,
    d=(without_rule("the order of polygamma"), lambda n, x: _polygamma.bind((n + 1, x))),
    operands=("n", "x"),
    name="polygamma",
)


@stands_for(special.polygamma)
def polygamma(n: Any, x: Any) -> Any:
    """
    Return derivatives of the digamma function, as `scipy.special.polygamma`.

    Args:
        n: How often digamma is differentiated: whole numbers, which have no derivative.
        x: Array, broadcast with *n*.

    Returns:
        An array of double precision.

    Raises:
        RuleMissingError: A derivative by *n* is asked for.
    """
    return _polygamma.bind((np.asarray(n)[()] if isinstance(n, (int, float)) else n, x))


def _multidigamma(a: Any, d: int) -> Any:
    """Return the derivative of multigammaln: the sum of digamma(a - j/2) for j = 0 ... d-1."""
    terms = [special.digamma(a - 0.5 * j) for j in range(int(d))]
    return sum(terms[1:], terms[0])


_of_dimension: Any = special.multigammaln  # pyright: ignore[reportAttributeAccessIssue]

_multigammaln = Primitive(
    _of_dimension,
    name="multigammaln",
    operands=("a",),
    pull=lambda k: Pull(
        lambda g, kind, params, a: matched(g * _multidigamma(a, params["d"]), kind), ("a",), FRESH, temporaries=2
    ),
    push=lambda tangents, values, out, params, kept: matched(
        tangents[0] * _multidigamma(values[0], params["d"]), type_of(out)
    ),
    infer=lambda kind, d: ArrayType(kind.shape, _of_dimension(np.full(1, float(d), kind.dtype), d).dtype),
    batch=lambda values, mapped, params, size: _multigammaln.bind(values, params),
)


@stands_for(_of_dimension)
def multigammaln(a: Any, d: Any) -> Any:
    """
    Return the logarithm of the multivariate gamma function, as `scipy.special.multigammaln`.

    Args:
        a: Array; each element greater than (d - 1) / 2.
        d: Dimension of the space of integration, a positive whole number.

    Returns:
        An array of the shape of *a*.

    Memory:
        A record saves *a*.
    """
    return _multigammaln.bind((a,), {"d": int(d)})


@stands_for(special.zeta)
def zeta(x: Any, q: Any = None, out: None = None) -> Any:
    """
    Return the Hurwitz zeta function, as `scipy.special.zeta`.

    Args:
        x: The exponent, which has no derivative rule.
        q: Where the sum begins, broadcast with *x*; 1 by default.
        out: Not taken on traced arrays.

    Returns:
        The sum of 1 / (k + q)^x over k = 0, 1, 2, ...

    Raises:
        RuleMissingError: A derivative by *x* is asked for.
        TraceError: *out* is given.
    """
    if out is not None:
        raise refusal("zeta of traced arrays does not take out=: write out[...] = zeta(x, q).")
    if q is None:
        return without_rule("the exponent of zeta, a sum of powers")(x)
    return _zeta.bind((x, q))


# w exp(w) = x gives dw = dx / (exp(w) (1 + w)), which divides by no x: at 0, on the main branch, it is 1.
_lambertw = elementwise(
    special.lambertw, d=(lambda out: np.exp(np.negative(out)) / (out + 1), 0), operands=("z", "k"), name="lambertw"
)


@stands_for(special.lambertw)
def lambertw(z: Any, k: Any = 0, tol: float = 1e-8) -> Any:
    """
    Return the Lambert W function, as `scipy.special.lambertw`.

    Args:
        z: Array, real or complex.
        k: The branch: whole numbers, broadcast with *z*.
        tol: Tolerance of SciPy's iteration, 1e-8 on traced arrays.

    Returns:
        w with w exp(w) = z, complex.

    Raises:
        TraceError: Another tolerance is asked for.

    Memory:
        A record saves the result.
    """
    if tol != 1e-8:
        raise refusal(f"lambertw of traced arrays has the tolerance 1e-8, not {tol}: leave tol= out.")
    return _lambertw.bind((z, np.asarray(k)[()]))
