"""Linear systems of `scipy.linalg`: of matrices with a structure, of triangles, of factors."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.constants import constant, stand_in_type
from ebbtide.arrays.containers import as_operand
from ebbtide.rules.answers import refusal
from ebbtide.rules.linalg import solver
from ebbtide.rules.matrices import adjoint, completed, conjugated, half_triangle, real_of, transposed
from ebbtide.rules.products import product
from ebbtide.scipy.linalg.order import answers_for

# ------------------------------------------------------------------------------------------------
# Matrices of any structure


def read_part(a: Any, assume_a: str | None, lower: bool) -> Any:
    """Return the matrix that SciPy makes of what it reads of *a*, given what it is told to assume."""
    if assume_a in ("her", "hermitian", "pos", "positive definite") or (
        assume_a in ("sym", "symmetric") and type_of(a).dtype.kind != "c"
    ):
        return completed(a, not lower)
    if assume_a in ("sym", "symmetric"):
        half = a * half_triangle(a.shape[-1], not lower, type_of(a).dtype)
        return half + transposed(half)
    if assume_a in ("upper triangular", "lower triangular"):
        return np.triu(a) if assume_a == "upper triangular" else np.tril(a)
    if assume_a in ("diagonal", "tridiagonal"):
        width = 0 if assume_a == "diagonal" else 1
        return np.triu(np.tril(a, width), -width)
    if assume_a not in (None, "gen", "general", "banded"):
        raise refusal(f"scipy.linalg with assume_a={assume_a!r} has no derivative rule; leave it out.")
    return a


def _other_way(a: Any, params: Any) -> Any:
    return a if params["transposed"] else transposed(a)


_solve = solver(
    linalg.solve,
    "solve",
    back=lambda g, params, a: np.linalg.solve(_other_way(a, params), g),
    ahead=lambda b, params, a: np.linalg.solve(transposed(_other_way(a, params)), b),
    times=lambda t, x, params, a: product(transposed(_other_way(t, params)), x),
    into=lambda y, x, params, a: _other_way(product(x, transposed(y)), params),
)


@answers_for(linalg.solve, by_lapack="egG")
def solve(
    a: Any, b: Any, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: str | None = None, transposed: bool = False,
) -> Any:  # fmt: skip
    """
    Return x with a x = b, as `scipy.linalg.solve`.

    Args:
        a: Square matrices, (..., n, n).
        b: A vector, or matrices (..., n, k).
        lower: Which triangle is read where *assume_a* says that one is.
        overwrite_a: Without effect.
        overwrite_b: Without effect.
        check_finite: Whether to look for infinities and nan.
        assume_a: The structure of a; what it says is not read has a derivative of zero.
        transposed: Whether to solve with the transpose of a.

    Returns:
        An array of the shape of b.

    Memory:
        A record saves a and the result.
    """
    params = {"lower": lower, "check_finite": check_finite, "assume_a": assume_a, "transposed": transposed}
    return _solve.bind((read_part(as_operand(a), assume_a, lower), as_operand(b)), params)


# ------------------------------------------------------------------------------------------------
# Triangles

# What solving with a^T is, for each way of solving with a: a conjugate transpose needs a conjugate.
_WAYS = MappingProxyType({0: 0, "N": 0, 1: 1, "T": 1, 2: 2, "C": 2})


def _conjugate_where(a: Any, params: Any) -> Any:
    return conjugated(a) if params["trans"] == 2 else a


def _with_triangle(a: Any, b: Any, params: Any, way: int) -> Any:
    return _solve_triangular.bind((a, b), {**params, "trans": way, "check_finite": False})


def _triangle(a: Any, params: Any) -> Any:
    """Return the triangle that is read, and of a unit diagonal nothing."""
    without = 1 if params["unit_diagonal"] else 0
    return np.tril(a, -without) if params["lower"] else np.triu(a, without)


def _triangle_times(t: Any, x: Any, params: Any, a: Any) -> Any:
    part = _conjugate_where(_triangle(t, params), params)
    return product(transposed(part) if params["trans"] else part, x)


def _triangle_into(y: Any, x: Any, params: Any, a: Any) -> Any:
    whole = product(x, transposed(y)) if params["trans"] else product(y, transposed(x))
    return _triangle(_conjugate_where(whole, params), params)


_solve_triangular = solver(
    linalg.solve_triangular,
    "solve_triangular",
    back=lambda g, params, a: _with_triangle(_conjugate_where(a, params), g, params, 0 if params["trans"] else 1),
    ahead=lambda b, params, a: _with_triangle(a, b, params, params["trans"]),
    times=_triangle_times,
    into=_triangle_into,
)


@answers_for(linalg.solve_triangular, by_lapack="egG")
def solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False, overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """
    Return x with a x = b for a triangular matrix, as `scipy.linalg.solve_triangular`.

    Args:
        a: Matrices (..., n, n), of which one triangle is read; the other has a derivative of zero.
        b: A vector, or matrices (..., n, k).
        trans: 0, 1 or 2: to solve with a, its transpose or its conjugate transpose.
        lower: Which triangle is read.
        unit_diagonal: Whether the diagonal is of ones, and not read.
        overwrite_b: Without effect.
        check_finite: Whether to look for infinities and nan.

    Returns:
        An array of the shape of b.

    Memory:
        A record saves a and the result.
    """
    params = {
        "trans": _WAYS[trans], "lower": bool(lower), "unit_diagonal": bool(unit_diagonal), "check_finite": check_finite,
    }  # fmt: skip
    return _solve_triangular.bind((as_operand(a), as_operand(b)), params)


def _whole_factor(c: Any, lower: bool) -> Any:
    """Return the lower factor L of a = L L^H."""
    return np.tril(c) if lower else adjoint(np.triu(c))


def _cho_times(t: Any, x: Any, params: Any, a: Any) -> Any:
    factor, change = _whole_factor(a, params["lower"]), _whole_factor(t, params["lower"])
    return product(change, product(adjoint(factor), x)) + product(factor, product(adjoint(change), x))


def _cho_into(y: Any, x: Any, params: Any, a: Any) -> Any:
    whole = product(y, transposed(x))
    change = product(whole + adjoint(whole), conjugated(_whole_factor(a, params["lower"])))
    return np.tril(change) if params["lower"] else np.triu(adjoint(change))


_cho_solve = solver(
    lambda c, b, lower: linalg.cho_solve((c, lower), b, check_finite=False),
    "cho_solve",
    back=lambda g, params, a: _cho_solve.bind((conjugated(a), g), params),
    ahead=lambda b, params, a: _cho_solve.bind((a, b), params),
    times=_cho_times,
    into=_cho_into,
)


@answers_for(linalg.cho_solve, by_lapack="egG")
def cho_solve(c_and_lower: Any, b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """
    Return x with a x = b, given a Cholesky factor of a, as `scipy.linalg.cho_solve`.

    Args:
        c_and_lower: What `cho_factor` returns: the factor, (..., n, n), and whether it is the lower one.
        b: A vector, or matrices (..., n, k).
        overwrite_b: Without effect.
        check_finite: Without effect on traced arrays.

    Returns:
        An array of the shape of b.

    Memory:
        A record saves the factor and the result.
    """
    c, lower = c_and_lower
    return _cho_solve.bind((as_operand(c), as_operand(b)), {"lower": bool(lower)})


# ------------------------------------------------------------------------------------------------
# Pivots


def _order_of(piv: Any) -> Any:
    """Return the order of rows that exchanges in turn, as LAPACK counts them, lead to."""
    order = np.broadcast_to(np.arange(piv.shape[-1]), piv.shape).copy()
    for place in np.ndindex(piv.shape[:-1]):
        for one, other in enumerate(piv[place]):
            order[place][[one, other]] = order[place][[other, one]]
    return order


row_order = constant(
    _order_of, stand_in_type(lambda piv: np.zeros(piv.shape, int)), lambda handler, args, *_: handler(*args)
)


def in_order(a: Any, order: Any) -> Any:
    """Return matrices with their rows in another order."""
    return np.take_along_axis(a, np.expand_dims(order, -1), axis=-2)


def factors_of(lu: Any) -> tuple[Any, Any]:
    """Return the lower factor, with ones on its diagonal, and the upper one."""
    return np.tril(lu, -1) + np.eye(lu.shape[-1], dtype=real_of(type_of(lu).dtype)), np.triu(lu)


def _lu_times(t: Any, x: Any, params: Any, a: Any, piv: Any) -> Any:
    (low, up), order = factors_of(a), row_order(piv)
    change = product(np.tril(t, -1), up) + product(low, np.triu(t))
    change = in_order(change, np.argsort(order, axis=-1))
    if params["trans"]:
        change = transposed(_conjugate_where(change, params))
    return product(change, x)


def _lu_into(y: Any, x: Any, params: Any, a: Any, piv: Any) -> Any:
    low, up = factors_of(a)
    whole = _conjugate_where(product(x, transposed(y)), params) if params["trans"] else product(y, transposed(x))
    whole = in_order(whole, row_order(piv))
    return np.tril(product(whole, transposed(up)), -1) + np.triu(product(transposed(low), whole))


def _lu_back(g: Any, params: Any, a: Any, piv: Any) -> Any:
    return _lu_solve.bind((_conjugate_where(a, params), g, piv), {"trans": 0 if params["trans"] else 1})


_lu_solve = solver(
    lambda lu, b, piv, trans: linalg.lu_solve((lu, piv), b, trans, check_finite=False),
    "lu_solve",
    back=_lu_back,
    ahead=lambda b, params, a, piv: _lu_solve.bind((a, b, piv), params),
    times=_lu_times,
    into=_lu_into,
    beside=("piv",),
)


@answers_for(linalg.lu_solve, by_lapack="egG")
def lu_solve(lu_and_piv: Any, b: Any, trans: Any = 0, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """
    Return x with a x = b, given factors of a, as `scipy.linalg.lu_solve`.

    Args:
        lu_and_piv: What `lu_factor` returns: the factors, (..., n, n), and the exchanges of rows.
        b: A vector, or matrices (..., n, k).
        trans: 0, 1 or 2: to solve with a, its transpose or its conjugate transpose.
        overwrite_b: Without effect.
        check_finite: Without effect on traced arrays.

    Returns:
        An array of the shape of b.

    Memory:
        A record saves the factors and the result.
    """
    lu, piv = lu_and_piv
    return _lu_solve.bind((as_operand(lu), as_operand(b), piv), {"trans": _WAYS[trans]})
