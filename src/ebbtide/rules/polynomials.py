"""
Rules of polynomials, whose coefficients are in the order of NumPy: the highest power first.

Shape and dtype of `roots`, `polymul`, `polydiv` and, of complex numbers, `poly` depend on values: on arrays of which
only the type is known they are errors.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import ndim_of
from ebbtide.arrays.constants import constant
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer, refusal


def _slopes(p: Any) -> Any:
    """Return the coefficients of the derivative, in the dtype of those of the polynomial."""
    dtype = type_of(p).dtype
    return p[:-1] * np.arange(p.shape[0] - 1, 0, -1).astype(dtype) if p.shape[0] > 1 else np.zeros(1, dtype)


def _moments(g: Any, x: Any, kind: ArrayType) -> Any:
    """Return the sums of g times each power of x: the cotangents of coefficients."""
    found = []
    for _ in range(kind.shape[0]):
        found.append(np.sum(g))
        g = g * x
    return matched(np.stack(found[::-1]), kind)


def _value_push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    p, x = values
    terms = [] if tangents[0] is None else [_value.bind((tangents[0], x))]
    if tangents[1] is not None:
        terms.append(tangents[1] * _value.bind((_slopes(p), x)))
    return promoted(terms, out)


def _value_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
    p, x = values
    if not mapped[0]:
        return _value.bind((p, x))
    ndim = ndim_of(x, mapped[1])
    y = np.zeros((size, *x.shape[mapped[1] :]), np.result_type(type_of(p).dtype, type_of(x).dtype))
    for k in range(p.shape[1]):
        y = y * x + np.reshape(p[:, k], (size, *(1,) * ndim))
    return y


_value = Primitive(
    np.polyval,
    operands=("p", "x"),
    pull=(
        Pull(lambda g, kind, params, x: _moments(g, x, kind), ("x",), FRESH, temporaries=2),
        Pull(
            lambda g, kind, params, p, x: matched(g * _value.bind((_slopes(p), x)), kind), ("p", "x"), FRESH,
            temporaries=2,
        ),
    ).__getitem__,
    push=_value_push,
    infer=lambda p, x: ArrayType(x.shape, np.result_type(p.dtype, x.dtype)),
    batch=_value_members,
)  # fmt: skip


def polyval(p: Any, x: Any) -> Any:
    """
    Return the values of a polynomial.

    Memory:
        A record saves the coefficients and x, no matter of which degree.
    """
    p, x = as_operand(p), as_operand(x)
    if p.ndim != 1 or not p.size:
        raise refusal(f"np.polyval of coefficients of shape {p.shape} has no derivative rule; they need one axis.")
    return _value.bind((p, x))


answer(np.polyval, polyval)


def _same_length(a1: Any, a2: Any) -> tuple[Any, Any]:
    """Return two polynomials with zeros in front of the shorter one."""
    a1, a2 = np.atleast_1d(a1), np.atleast_1d(a2)
    more = a2.shape[0] - a1.shape[0]
    if more > 0:
        a1 = np.concatenate((np.zeros(more, type_of(a1).dtype), a1))
    elif more < 0:
        a2 = np.concatenate((np.zeros(-more, type_of(a2).dtype), a2))
    return a1, a2


def polyder(p: Any, m: int = 1) -> Any:
    """Return the derivative of a polynomial."""
    if m < 0:
        raise ValueError(f"Order of derivative must be positive, and is {m}; see polyint.")
    for _ in range(m):
        p = p[:-1] * np.arange(p.shape[0] - 1, 0, -1)
    return p


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """Return the integral of a polynomial, with constants of integration."""
    if m < 0:
        raise ValueError(f"Order of integral must be positive, and is {m}; see polyder.")
    p = as_operand(p)
    k = np.zeros(m) if k is None else np.atleast_1d(k)
    if k.shape[0] == 1 and m > 1:
        k = k[0] * np.ones(m)
    if k.shape[0] < m:
        raise ValueError(f"polyint: {m} integrations need as many constants, or one; there are {k.shape[0]}.")
    for n in range(m):
        p = np.concatenate((p / np.arange(p.shape[0], 0, -1), k[n : n + 1]))
    return p


answer(np.polyadd, lambda a1, a2: np.add(*_same_length(a1, a2)))
answer(np.polysub, lambda a1, a2: np.subtract(*_same_length(a1, a2)))
answer(np.polyder, polyder)
answer(np.polyint, polyint)


def _count_zeros(p: np.ndarray) -> int:
    """Return how many of the first coefficients are zero; one is kept where all of them are."""
    nonzero = np.flatnonzero(p)
    return int(nonzero[0]) if nonzero.size else max(len(p) - 1, 0)


_leading_zeros = constant(_count_zeros)


def _trimmed(p: Any) -> Any:
    p = np.atleast_1d(p)
    return p[_leading_zeros(p) :]


answer(np.polymul, lambda a1, a2: np.convolve(_trimmed(a1), _trimmed(a2)))


def _vander_columns(out: Any, increasing: bool) -> Any:
    """Return the derivatives of all columns but that of ones, which is left out."""
    powers = out if increasing else out[..., ::-1]
    return powers[..., :-1] * np.arange(1, out.shape[-1]).astype(type_of(out).dtype)


def _vander_pull(g: Any, kind: ArrayType, params: Any, out: Any) -> Any:
    g = g if params["increasing"] else g[..., ::-1]
    return matched(np.sum(g[..., 1:] * _vander_columns(out, params["increasing"]), axis=-1), kind)


def _vander_push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    columns = np.expand_dims(tangents[0], -1) * _vander_columns(out, params["increasing"])
    full = np.concatenate((np.zeros_like(out[..., :1]), columns), axis=-1) if params["N"] else np.zeros_like(out)
    return matched(full if params["increasing"] else full[..., ::-1], type_of(out))


def _vander_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
    dtype, count = np.promote_types(type_of(values[0]).dtype, int), params["N"]
    x = np.astype(values[0], dtype)
    columns = [np.ones(x.shape, dtype), x][:count]
    while len(columns) < count:
        columns.append(columns[-1] * x)
    made = np.stack(columns, axis=-1) if columns else np.zeros((*x.shape, 0), dtype)
    return made if params["increasing"] else made[..., ::-1]


_vander = Primitive(
    np.vander,
    operands=("x",),
    pull=lambda k: Pull(_vander_pull, ("out",), FRESH, temporaries=2),
    push=_vander_push,
    infer=lambda x, N, increasing: ArrayType((x.shape[0], N), np.promote_types(x.dtype, int)),
    batch=_vander_members,
)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """Return a matrix of which each row has the powers of a number."""
    if x.ndim != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    return _vander.bind((x,), {"N": x.shape[0] if N is None else int(N), "increasing": bool(increasing)})


answer(np.vander, vander)

# p(r) = 0 gives dr = -dp(r) / p'(r): roots need the coefficients and themselves.


def _roots_pull(g: Any, kind: ArrayType, params: Any, p: Any, out: Any) -> Any:
    return _moments(np.negative(g) / _value.bind((_slopes(p), out)), out, kind)


def _roots_push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    slopes = _value.bind((_slopes(values[0]), out))
    return matched(np.negative(_value.bind((tangents[0], out))) / slopes, type_of(out))


def _unknown_type(kind: ArrayType) -> ArrayType:
    raise refusal(
        "How many roots a polynomial has, and whether they are real, depends on the values of its coefficients, which "
        "are not known here."
    )


_roots = Primitive(
    np.roots,
    operands=("p",),
    pull=lambda k: Pull(_roots_pull, ("p", "out"), FRESH, temporaries=3),
    push=_roots_push,
    infer=_unknown_type,
)
answer(np.roots, lambda p: _roots.bind((np.atleast_1d(p),)))


def _are_conjugate(zeros: np.ndarray) -> bool:
    return bool(np.all(np.sort(zeros) == np.sort(zeros.conjugate())))


_conjugate_pairs = constant(_are_conjugate)


def poly(seq_of_zeros: Any) -> Any:
    """Return the coefficients of the polynomial with these zeros."""
    zeros = np.atleast_1d(seq_of_zeros)
    if zeros.ndim != 1:
        raise refusal("np.poly of a matrix has no derivative rule; write np.poly(np.linalg.eigvals(A)).")
    dtype = np.dtype(np.mintypecode(type_of(zeros).dtype.char))  # half precision is done in double
    zeros = zeros if type_of(zeros).dtype == dtype else np.astype(zeros, dtype)
    made: Any = np.ones(1, dtype)
    for k in range(zeros.shape[0]):
        made = np.convolve(made, np.stack([np.ones((), dtype), np.negative(zeros[k])]), mode="full")
    return np.real(made).copy() if dtype.kind == "c" and _conjugate_pairs(zeros) else made


answer(np.poly, poly)


def polydiv(u: Any, v: Any) -> Any:
    """Return the quotient and the remainder of two polynomials, by long division."""
    u, v = np.atleast_1d(u) + 0.0, np.atleast_1d(v) + 0.0
    rest = np.where(True, np.astype(u, np.result_type(type_of(u).dtype, type_of(v).dtype)), v[0])  # traced if one is
    scale, length = 1.0 / v[0], v.shape[0]
    quotient = []
    for k in range(u.shape[0] - length + 1):
        quotient.append(scale * rest[k])
        rest[k : k + length] -= quotient[-1] * v
    first = 0
    while first < rest.shape[0] - 1 and np.allclose(rest[first], 0, rtol=1e-14):
        first += 1
    return np.stack(quotient) if quotient else np.zeros(1, type_of(rest).dtype), rest[first:]


answer(np.polydiv, polydiv)


def polyfit(
    x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:  # fmt: skip
    """
    Return the coefficients of the polynomial of a degree that fits points best, by least squares.

    Memory:
        A record saves the powers of x, twice, and the solution of `np.linalg.lstsq` with them.
    """
    x, y = as_operand(x) + 0.0, as_operand(y) + 0.0
    if deg < 0 or x.ndim != 1 or not x.size or y.ndim not in (1, 2) or x.shape[0] != y.shape[0]:
        raise refusal(
            f"np.polyfit of degree {deg} through points of shapes {x.shape} and {y.shape}: it wants a degree of at "
            "least 0, x of one axis, and y of one or two with as many rows."
        )
    powers, rcond = np.vander(x, int(deg) + 1), x.shape[0] * np.finfo(type_of(x).dtype).eps if rcond is None else rcond
    if w is not None:
        w = as_operand(w) + 0.0
        if w.shape != x.shape:
            raise refusal(f"np.polyfit with weights of shape {w.shape} for points of shape {x.shape}: one each.")
        # In place: what is weighted keeps its precision.
        powers, y = np.copy(powers), np.copy(y)
        powers *= w[:, None]
        y *= w[:, None] if y.ndim == 2 else w
    scale = np.sqrt(np.sum(powers * powers, axis=0))
    powers = powers / scale
    found, squares, rank, s = np.linalg.lstsq(powers, y, rcond)
    found = np.transpose(np.transpose(found) / scale)
    if full:
        return found, squares, rank, s, rcond
    if type(rank) is not TracedArray and rank != powers.shape[1]:
        warnings.warn("Polyfit may be poorly conditioned", np.exceptions.RankWarning, stacklevel=4)
    return (found, _covariances(powers, squares, scale, cov, y)) if cov else found


def _covariances(powers: Any, squares: Any, scale: Any, cov: Any, y: Any) -> Any:
    """Return the covariances of fitted coefficients, times the variance of the points unless they are unscaled."""
    made = np.linalg.inv(np.dot(powers.T, powers)) / np.outer(scale, scale)
    free = powers.shape[0] - powers.shape[1]
    if cov != "unscaled" and free <= 0:
        raise ValueError(
            f"np.polyfit of {powers.shape[0]} points with {powers.shape[1]} coefficients leaves nothing to scale the "
            "covariances by: give more points, or cov='unscaled'."
        )
    return (made if y.ndim == 1 else made[:, :, None]) * (1 if cov == "unscaled" else squares / free)


answer(np.polyfit, polyfit)
