"""Singular values, QR, least squares and pseudo-inverses of `scipy.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.rules.factors import qr_of, svd_of, svdvals_of
from ebbtide.rules.least_squares import least_squares_of, number_or_refuse, pseudo_inverse_of, solutions
from ebbtide.rules.linalg import solved_dtype
from ebbtide.rules.matrices import adjoint, completed, conjugated, decomposition
from ebbtide.rules.products import product
from ebbtide.scipy.linalg.functions import solve_sylvester
from ebbtide.scipy.linalg.order import answers_for, refuse

# ------------------------------------------------------------------------------------------------
# Singular values and QR

_svd = svd_of(lambda a, full, driver: linalg.svd(a, full, check_finite=False, lapack_driver=driver), "svd")
_svdvals = svdvals_of(
    lambda a, driver: linalg.svd(a, compute_uv=False, check_finite=False, lapack_driver=driver), "svdvals"
)


@answers_for(linalg.svd, by_lapack="egG")
def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, overwrite_a: bool = False, check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:  # fmt: skip
    """
    Return singular values and vectors u, s, vh, as `scipy.linalg.svd`.

    Args:
        a: Matrices, (..., m, n).
        full_matrices: Whether u and vh are square.
        compute_uv: Whether to return the vectors.
        overwrite_a: Without effect.
        check_finite: Without effect on traced arrays.
        lapack_driver: LAPACK's.

    Returns:
        u, s and vh, or s.

    Memory:
        A record saves the results; of singular values alone, a.
    """
    if not compute_uv:
        return _svdvals.bind((a,), {"driver": lapack_driver})
    return tuple(_svd(a, full=bool(full_matrices), driver=lapack_driver))


@answers_for(linalg.svdvals, by_lapack="egG")
def svdvals(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return singular values alone, as `scipy.linalg.svdvals`; see `svd`."""
    return svd(a, compute_uv=False)


_qr = qr_of(lambda a: linalg.qr(a, mode="economic", check_finite=False), "qr")


@answers_for(linalg.qr, by_lapack="egG")
def qr(
    a: Any, overwrite_a: bool = False, lwork: int | None = None, mode: str = "full", pivoting: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """
    Return Q and R, as `scipy.linalg.qr`.

    Args:
        a: Matrices, (..., m, n), whose first columns, as many as there are rows, are independent.
        overwrite_a: Without effect.
        lwork: Without effect.
        mode: "economic"; "full" and "r" for matrices that have no more rows than columns.
        pivoting: False.
        check_finite: Without effect on traced arrays.

    Returns:
        Q and R; with "r" a tuple of R alone.

    Memory:
        A record saves the results.
    """
    refuse("qr", {"pivoting": (pivoting, False)})
    if mode not in ("economic", "full", "r") or (mode != "economic" and a.shape[-2] > a.shape[-1]):
        raise refusal(
            f"scipy.linalg.qr of {a.shape[-2]} x {a.shape[-1]} matrices with mode={mode!r} has no derivative rule. "
            "Write it with mode='economic'."
        )
    results = _qr(a)
    return (results[1],) if mode == "r" else tuple(results)


def _polar_sides(side: str, *factors: Any) -> list[Any]:
    """Return factors and changes of the decomposition u p of a matrix that has no more columns than rows."""
    return [adjoint(one) if side == "left" else one for one in factors]


def _polar_vjp(gs: Any, params: Any, out: Any) -> Any:
    u, g = _polar_sides(params["side"], out[0], conjugated(gs[0]))
    p, g_p = _polar_sides(params["side"], out[1], conjugated(gs[1]))
    turn = _sylvester(p, product(adjoint(u), g) - product(g_p, p))
    whole = product(u, turn - adjoint(turn) + g_p)
    if u.shape[-2] > u.shape[-1]:
        beside = g - product(u, product(adjoint(u), g))
        whole = whole + adjoint(np.linalg.solve(p, adjoint(beside)))
    return conjugated(_polar_sides(params["side"], whole)[0])


def _polar_tangents(ts: Any, params: Any, out: Any) -> Any:
    u, p, t = _polar_sides(params["side"], *out, ts[0])
    inner = product(adjoint(u), t)
    turn = _sylvester(p, inner - adjoint(inner))
    change = product(u, turn)
    if u.shape[-2] > u.shape[-1]:
        change = change + adjoint(np.linalg.solve(p, adjoint(t - product(u, inner))))
    return _polar_sides(params["side"], change, inner - product(turn, p))


def _sylvester(p: Any, q: Any) -> Any:
    """Return x with p x + x p = q."""
    return solve_sylvester(p, p, q)


def _polar_types(kind: ArrayType, side: str) -> list[ArrayType]:
    return [kind, ArrayType((*kind.shape[:-2], *(min(kind.shape[-2:]),) * 2), kind.dtype)]


_polar = decomposition(linalg.polar, _polar_vjp, _polar_tangents, kinds=_polar_types, name="polar")


@answers_for(linalg.polar, by_lapack="egG")
def polar(a: Any, side: str = "right") -> Any:
    """
    Return the polar decomposition a = u p, or p u, as `scipy.linalg.polar`.

    Args:
        a: Matrices of full rank, (..., m, n).
        side: "right" for u p, where m is at least n; "left" for p u, where n is at least m.

    Returns:
        u and p.

    Memory:
        A record saves the results.
    """
    if side not in ("right", "left"):
        raise ValueError("`side` must be either 'right' or 'left'")
    m, n = a.shape[-2:]
    if m < n if side == "right" else m > n:
        raise refusal(
            f"scipy.linalg.polar of {m} x {n} matrices with side={side!r} has no derivative rule: p is singular. Take "
            "the other side."
        )
    return tuple(_polar(a, side=side))


# ------------------------------------------------------------------------------------------------
# Least squares


def _least_squares(a: Any, b: Any, cond: Any, driver: str | None) -> Any:
    results: Any = linalg.lstsq(a, b, cond, check_finite=False, lapack_driver=driver)
    x, sums, rank, s = results
    return x, np.atleast_1d(sums), rank, s


_lstsq = least_squares_of(_least_squares, "lstsq")


@answers_for(linalg.lstsq, by_lapack="egG")
def lstsq(
    a: Any, b: Any, cond: Any = None, overwrite_a: bool = False, overwrite_b: bool = False, check_finite: bool = True,
    lapack_driver: str | None = None,
) -> Any:  # fmt: skip
    """
    Return the solution of least squares, as `scipy.linalg.lstsq`; its derivative is that for the present rank.

    Args:
        a: A matrix, (m, n).
        b: A vector, (m,), or a matrix, (m, k).
        cond: The relative size below which singular values count as zero, a number.
        overwrite_a: Without effect.
        overwrite_b: Without effect.
        check_finite: Without effect on traced arrays.
        lapack_driver: "gelsd" or "gelss".

    Returns:
        The solution, sums of squared residuals (none without full rank), the rank, and the singular values of a.

    Memory:
        A record saves a, b and the results.
    """
    if lapack_driver == "gelsy":
        raise refusal("scipy.linalg.lstsq with lapack_driver='gelsy' has no derivative rule; leave it out.")
    a, b = as_operand(a), as_operand(b)
    cut = np.finfo(solved_dtype(type_of(a), type_of(b))).eps if cond is None else cond
    x, sums, rank, s = solutions(_lstsq, a, b, cut, cond=cond, driver=lapack_driver)
    if not sums.shape[0]:
        sums = np.zeros(0, type_of(x).dtype)
    elif b.ndim == 1:
        sums = np.reshape(sums, ())
    return x, sums, rank if type(rank) is TracedArray else int(rank), s


_pinv = pseudo_inverse_of(lambda a, atol, rtol: linalg.pinv(a, atol=atol, rtol=rtol, check_finite=False))


@answers_for(linalg.pinv, by_lapack="egG")
def pinv(a: Any, *, atol: Any = None, rtol: Any = None, return_rank: bool = False, check_finite: bool = True) -> Any:
    """
    Return the pseudo-inverse, as `scipy.linalg.pinv`; its derivative is that for the present rank.

    Args:
        a: Matrices, (..., m, n).
        atol: Singular values up to this, and to rtol times the largest one, count as zero.
        rtol: See atol; a number, by default as SciPy has it.
        return_rank: False.
        check_finite: Without effect on traced arrays.

    Returns:
        An array (..., n, m).

    Memory:
        A record saves a and the result.
    """
    refuse("pinv", {"return_rank": (return_rank, False)})
    atol, rtol = (number_or_refuse("scipy.linalg.pinv: a tolerance", x) for x in (atol, rtol))
    return _pinv.bind((a,), {"atol": atol, "rtol": rtol})


_pinvh = pseudo_inverse_of(
    lambda a, atol, rtol, lower: linalg.pinvh(a, atol=atol, rtol=rtol, lower=lower, check_finite=False)
)


@answers_for(linalg.pinvh, by_lapack="egG")
def pinvh(
    a: Any, atol: Any = None, rtol: Any = None, lower: bool = True, return_rank: bool = False, check_finite: bool = True
) -> Any:
    """
    Return the pseudo-inverse of symmetric or Hermitian matrices, as `scipy.linalg.pinvh`.

    Args:
        a: Matrices, (..., n, n), of which one triangle is read.
        atol: Eigenvalues up to this, and to rtol times the largest one, count as zero.
        rtol: See atol; a number, by default as SciPy has it.
        lower: Which triangle is read.
        return_rank: False.
        check_finite: Without effect on traced arrays.

    Returns:
        An array of the shape of a.

    Memory:
        A record saves a and the result.
    """
    refuse("pinvh", {"return_rank": (return_rank, False)})
    atol, rtol = (number_or_refuse("scipy.linalg.pinvh: a tolerance", x) for x in (atol, rtol))
    return _pinvh.bind((completed(a, not lower),), {"atol": atol, "rtol": rtol, "lower": lower})
