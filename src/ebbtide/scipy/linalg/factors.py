"""Inverses, determinants and triangular factors of `scipy.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.rules.answers import refusal
from ebbtide.rules.decompositions import cholesky_of
from ebbtide.rules.linalg import determinant_of, inverse_of
from ebbtide.rules.matrices import decomposition, real_of, transposed
from ebbtide.rules.products import product
from ebbtide.scipy.linalg.order import answers_for
from ebbtide.scipy.linalg.solvers import factors_of, in_order, read_part, row_order

_inv = inverse_of(linalg.inv)


@answers_for(linalg.inv, by_lapack="egG")
def inv(
    a: Any, overwrite_a: bool = False, check_finite: bool = True, *, assume_a: str | None = None, lower: bool = False
) -> Any:
    """
    Return the inverse, as `scipy.linalg.inv`.

    Args:
        a: Square matrices, (..., n, n).
        overwrite_a: Without effect.
        check_finite: Whether to look for infinities and nan.
        assume_a: The structure of a; what it says is not read has a derivative of zero.
        lower: Which triangle is read where *assume_a* says that one is.

    Returns:
        An array of the shape of a.

    Memory:
        A record saves the result.
    """
    params = {"check_finite": check_finite, "assume_a": assume_a, "lower": lower}
    return _inv.bind((read_part(a, assume_a, lower),), params)


_det = determinant_of(linalg.det, np.float64)  # SciPy's is in double precision


@answers_for(linalg.det, by_lapack="e")
def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """
    Return the determinant, as `scipy.linalg.det`.

    Args:
        a: Square matrices, (..., n, n).
        overwrite_a: Without effect.
        check_finite: Whether to look for infinities and nan.

    Returns:
        A number for each matrix.

    Memory:
        A record saves a.
    """
    return _det.bind((a,), {"check_finite": check_finite})


_cholesky = cholesky_of(lambda a, upper: linalg.cholesky(a, not upper, check_finite=False), "cholesky")


@answers_for(linalg.cholesky, by_lapack="egG")
def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """
    Return the Cholesky factor, as `scipy.linalg.cholesky`.

    Args:
        a: Positive definite matrices, (..., n, n), of which one triangle is read.
        lower: Which triangle is read, and returned.
        overwrite_a: Without effect.
        check_finite: Without effect on traced arrays.

    Returns:
        An array of the shape of a.

    Memory:
        A record saves the result.
    """
    return _cholesky.bind((a,), {"upper": not lower})


@answers_for(linalg.cho_factor, by_lapack="egG")
def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """
    Return the Cholesky factor for `cho_solve`, as `scipy.linalg.cho_factor`.

    Args:
        a: Positive definite matrices, (..., n, n), of which one triangle is read.
        lower: Which triangle is read, and has the factor; the other one is that of a.
        overwrite_a: Without effect.
        check_finite: Without effect on traced arrays.

    Returns:
        The factor, and *lower*.

    Memory:
        A record saves the factor.
    """
    factor = cholesky(a, lower)
    return factor + (np.triu(a, 1) if lower else np.tril(a, -1)), bool(lower)


# ------------------------------------------------------------------------------------------------
# LU with exchanges of rows; these are small integers, and go with the factors as numbers of their dtype


def _lu_vjp(gs: Any, params: Any, out: Any) -> Any:
    (g, _), (lu, piv) = gs, out
    low, up = factors_of(lu)
    inner = np.tril(product(transposed(low), np.tril(g, -1)), -1) + np.triu(product(np.triu(g), transposed(up)))
    whole = np.linalg.solve(transposed(low), transposed(np.linalg.solve(up, transposed(inner))))
    return in_order(whole, np.argsort(row_order(_as_integers(piv)), axis=-1))


def _lu_tangents(ts: Any, params: Any, out: Any) -> Any:
    lu, piv = out
    low, up = factors_of(lu)
    moved = in_order(ts[0], row_order(_as_integers(piv)))
    inner = transposed(np.linalg.solve(transposed(up), transposed(np.linalg.solve(low, moved))))
    change = product(low, np.tril(inner, -1)) + product(np.triu(inner), up)
    return [change, np.zeros(piv.shape, type_of(piv).dtype)]


def _as_integers(piv: Any) -> Any:
    return np.astype(piv, np.int32)


_lu_factor = decomposition(
    lambda a: linalg.lu_factor(a, check_finite=False),
    _lu_vjp,
    _lu_tangents,
    kinds=lambda kind: [kind, ArrayType(kind.shape[:-1], real_of(kind.dtype))],
    name="lu_factor",
)


@answers_for(linalg.lu_factor, by_lapack="egG")
def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """
    Return factors and exchanges of rows for `lu_solve`, as `scipy.linalg.lu_factor`.

    Args:
        a: Square matrices, (..., n, n).
        overwrite_a: Without effect.
        check_finite: Without effect on traced arrays.

    Returns:
        The factors in one array, and the exchanges, which have no derivative.

    Memory:
        A record saves the results.
    """
    if a.shape[-1] != a.shape[-2]:
        raise refusal("scipy.linalg.lu_factor has a derivative rule for square matrices only.")
    lu_and_piv = _lu_factor(a)
    return lu_and_piv[0], _as_integers(lu_and_piv[1])


@answers_for(linalg.lu, by_lapack="egG")
def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True, p_indices: bool = False
) -> Any:
    """
    Return the factors p, l, u of a = p l u, as `scipy.linalg.lu`.

    Args:
        a: Square matrices, (..., n, n).
        permute_l: Whether to return p l in one.
        overwrite_a: Without effect.
        check_finite: Without effect on traced arrays.
        p_indices: Whether to return p as the order of rows.

    Returns:
        p, l, u, or p l and u.

    Memory:
        A record saves the factors.
    """
    packed, piv = lu_factor(a)
    low, up = factors_of(packed)
    back = np.argsort(row_order(piv), axis=-1)
    if permute_l:
        return in_order(low, back), up
    if p_indices:
        return np.astype(back, np.int32), low, up
    exchanges = np.equal(np.expand_dims(back, -1), np.arange(a.shape[-1]))
    return np.astype(exchanges, real_of(type_of(a).dtype)), low, up
