"""Eigenvalues, singular values, QR, least squares and pseudo-inverses of `scipy.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.rules.decompositions import as_numpy, eig_of, eigh_of, eigvals_of, eigvalsh_of
from ebbtide.rules.factors import qr_of, svd_of, svdvals_of
from ebbtide.rules.linalg import as_array, least_squares_of, number_or_refuse, pseudo_inverse_of, solutions, solved_dtype
from ebbtide.rules.matrices import (
    adjoint,
    columns,
    completed,
    conjugated,
    decomposition,
    diagonal_of,
    folded,
    inverse_gaps,
    on_diagonal,
    real_of,
)
from ebbtide.rules.products import product
from ebbtide.scipy.original import stands_for


def _refuse(name: str, given: dict[str, tuple[Any, Any]]) -> None:
    """Raise if one of some arguments is not what it is by default."""
    for argument, (value, usual) in given.items():
        if value is not usual and value != usual:
            raise refusal(f"scipy.linalg.{name} with {argument}={value!r} has no derivative rule; leave it out.")


# ------------------------------------------------------------------------------------------------
# Eigenvalues

_eigh = eigh_of(lambda a, upper, driver: linalg.eigh(a, lower=not upper, driver=driver), "eigh")
_eigvalsh = eigvalsh_of(
    lambda a, upper, driver: linalg.eigh(a, lower=not upper, driver=driver, eigvals_only=True), "eigvalsh"
)


def _generalized(a: Any, b: Any, upper: bool, driver: Any) -> Any:
    return linalg.eigh(a, b, lower=not upper, driver=driver)


def _of_pair(gs: Any, out: Any) -> tuple[Any, Any]:
    """Return the cotangents of a and b in the basis of the vectors, of which v^H b v is the identity."""
    w, v = out
    of_v = product(adjoint(v), conjugated(gs[1]))
    inner = inverse_gaps(w) * of_v + on_diagonal(gs[0])
    return inner, on_diagonal(np.real(diagonal_of(of_v))) / 2 + inner * columns(w)


def _generalized_vjp(number: int) -> Any:
    def vjp(gs: Any, params: Any, out: Any) -> Any:
        v, inner = out[1], _of_pair(gs, out)[number]
        whole = folded(product(product(v, inner), adjoint(v)), params["upper"])
        return conjugated(-whole if number else whole)

    return vjp


def _generalized_tangents(ts: Any, params: Any, out: Any) -> Any:
    w, v = out
    of_a, of_b = (product(product(adjoint(v), completed(t, params["upper"])), v) for t in ts)
    inner = of_a - of_b * columns(w)
    turned = inverse_gaps(w) * inner - on_diagonal(np.real(diagonal_of(of_b))) / 2
    return [np.real(diagonal_of(inner)), product(v, turned)]


def _generalized_types(a: ArrayType, b: ArrayType, **params: Any) -> list[ArrayType]:
    dtype = solved_dtype(a, b)
    return [ArrayType(a.shape[:-1], real_of(dtype)), ArrayType(a.shape, dtype)]


_generalized_eigh = decomposition(
    _generalized, (_generalized_vjp(0), _generalized_vjp(1)), _generalized_tangents, kinds=_generalized_types,
    name="eigh", operands=("a", "b"),
)  # fmt: skip


def _values_vjp(number: int) -> Any:
    def vjp(gs: Any, params: Any, a: Any, b: Any) -> Any:
        w, v = _generalized_eigh(a, b, upper=params["upper"], driver=params["driver"])
        scaled = -gs[0] * w if number else gs[0]
        return conjugated(folded(product(v * columns(scaled), adjoint(v)), params["upper"]))

    return vjp


def _values_tangents(ts: Any, params: Any, a: Any, b: Any) -> Any:
    w, v = _generalized_eigh(a, b, upper=params["upper"], driver=params["driver"])
    t_a, t_b = (product(completed(t, params["upper"]), v) for t in ts)
    return [np.real(np.sum(conjugated(v) * (t_a - t_b * columns(w)), axis=-2))]


_generalized_eigvalsh = decomposition(
    lambda a, b, upper, driver: [linalg.eigh(a, b, lower=not upper, driver=driver, eigvals_only=True)],
    (_values_vjp(0), _values_vjp(1)), _values_tangents, kinds=lambda *kinds, **_: _generalized_types(*kinds)[:1],
    name="eigvalsh", operands=("a", "b"),
)  # fmt: skip


@stands_for(linalg.eigh)
def eigh(
    a: Any, b: Any = None, *, lower: bool = True, eigvals_only: bool = False, overwrite_a: bool = False,
    overwrite_b: bool = False, type: int = 1, check_finite: bool = True, subset_by_index: Any = None,
    subset_by_value: Any = None, driver: str | None = None,
) -> Any:  # fmt: skip
    """
    Return eigenvalues w and eigenvectors v, with a v = w b v, as `scipy.linalg.eigh`.

    Args:
        a: Symmetric or Hermitian matrices, (..., n, n), of which one triangle is read.
        b: Positive definite matrices of this shape; the identity by default.
        lower: Which triangle is read.
        eigvals_only: Whether to return w alone.
        overwrite_a: Without effect.
        overwrite_b: Without effect.
        type: 1; others have no rule.
        check_finite: Without effect on traced arrays.
        subset_by_index: None; take the elements of the whole result.
        subset_by_value: None.
        driver: LAPACK's.

    Returns:
        w, or w and v.

    Memory:
        A record saves the results; of eigenvalues alone, a.
    """
    _refuse("eigh", {"type": (type, 1), "subset_by_index": (subset_by_index, None),
                     "subset_by_value": (subset_by_value, None)})  # fmt: skip
    params = {"upper": not lower, "driver": driver}
    if b is not None:
        pair = as_array(a), as_array(b)
        return _generalized_eigvalsh(*pair, **params)[0] if eigvals_only else tuple(_generalized_eigh(*pair, **params))
    return _eigvalsh.bind((a,), params) if eigvals_only else tuple(_eigh(a, **params))


@stands_for(linalg.eigvalsh)
def eigvalsh(
    a: Any, b: Any = None, *, lower: bool = True, overwrite_a: bool = False, overwrite_b: bool = False, type: int = 1,
    check_finite: bool = True, subset_by_index: Any = None, subset_by_value: Any = None, driver: str | None = None,
) -> Any:  # fmt: skip
    """Return eigenvalues alone, as `scipy.linalg.eigvalsh`; see `eigh`."""
    return eigh(
        a, b, lower=lower, eigvals_only=True, type=type, subset_by_index=subset_by_index,
        subset_by_value=subset_by_value, driver=driver,
    )  # fmt: skip


_eig = eig_of(lambda a: linalg.eig(a, check_finite=False), "eig")
_eigvals = eigvals_of(lambda a: linalg.eigvals(a, check_finite=False), "eigvals")


@stands_for(linalg.eig)
def eig(
    a: Any, b: Any = None, left: bool = False, right: bool = True, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, homogeneous_eigvals: bool = False,
) -> Any:  # fmt: skip
    """
    Return eigenvalues and right eigenvectors of length 1, as `scipy.linalg.eig`.

    Args:
        a: Square matrices, (..., n, n).
        b: None: generalized problems have no rule.
        left: False: nor have left eigenvectors.
        right: Whether to return the vectors.
        overwrite_a: Without effect.
        overwrite_b: Without effect.
        check_finite: Without effect on traced arrays.
        homogeneous_eigvals: False.

    Returns:
        The eigenvalues, complex, or these and the vectors.

    Memory:
        A record saves the results; of eigenvalues alone, a.
    """
    _refuse("eig", {"b": (b, None), "left": (left, False), "homogeneous_eigvals": (homogeneous_eigvals, False)})
    if not right:
        return _eigvals.bind((a,))
    w, v = _eig(a)
    return w, as_numpy(a, w, v)[1]


@stands_for(linalg.eigvals)
def eigvals(
    a: Any, b: Any = None, overwrite_a: bool = False, check_finite: bool = True, homogeneous_eigvals: bool = False
) -> Any:
    """Return eigenvalues alone, as `scipy.linalg.eigvals`; see `eig`."""
    return eig(a, b, right=False, homogeneous_eigvals=homogeneous_eigvals)


# ------------------------------------------------------------------------------------------------
# Singular values and QR

_svd = svd_of(lambda a, full, driver: linalg.svd(a, full, check_finite=False, lapack_driver=driver), "svd")
_svdvals = svdvals_of(
    lambda a, driver: linalg.svd(a, compute_uv=False, check_finite=False, lapack_driver=driver), "svdvals"
)


@stands_for(linalg.svd)
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


@stands_for(linalg.svdvals)
def svdvals(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """Return singular values alone, as `scipy.linalg.svdvals`; see `svd`."""
    return svd(a, compute_uv=False)


_qr = qr_of(lambda a: linalg.qr(a, mode="economic", check_finite=False), "qr")


@stands_for(linalg.qr)
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
    _refuse("qr", {"pivoting": (pivoting, False)})
    if mode not in ("economic", "full", "r") or (mode != "economic" and a.shape[-2] > a.shape[-1]):
        raise refusal(
            f"scipy.linalg.qr of {a.shape[-2]} x {a.shape[-1]} matrices with mode={mode!r} has no derivative rule. Write "
            "it with mode='economic'."
        )
    results = _qr(a)
    return (results[1],) if mode == "r" else tuple(results)


@stands_for(linalg.polar)
def polar(a: Any, side: str = "right") -> Any:
    """
    Return the polar decomposition a = u p, or p u, as `scipy.linalg.polar`.

    Args:
        a: A matrix, (m, n), or a stack of them.
        side: "right" for u p, "left" for p u.

    Returns:
        u and p.

    Memory:
        A record saves singular vectors and values.
    """
    if side not in ("right", "left"):
        raise ValueError("`side` must be either 'right' or 'left'")
    w, s, vh = svd(a, full_matrices=False)
    half = adjoint(vh) * columns(s) if side == "right" else w * columns(s)
    return np.matmul(w, vh), np.matmul(half, vh if side == "right" else adjoint(w))


# ------------------------------------------------------------------------------------------------
# Least squares


def _least_squares(a: Any, b: Any, cond: Any, driver: str | None) -> Any:
    x, sums, rank, s = linalg.lstsq(a, b, cond, check_finite=False, lapack_driver=driver)
    return x, np.atleast_1d(sums), rank, s


_lstsq = least_squares_of(_least_squares, "lstsq")


@stands_for(linalg.lstsq)
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
    a, b = as_array(a), as_array(b)
    cut = np.finfo(solved_dtype(type_of(a), type_of(b))).eps if cond is None else cond
    x, sums, rank, s = solutions(_lstsq, a, b, cut, cond=cond, driver=lapack_driver)
    if not sums.shape[0]:
        sums = np.zeros(0, type_of(x).dtype)
    elif b.ndim == 1:
        sums = np.reshape(sums, ())
    return x, sums, rank if type(rank) is TracedArray else int(rank), s


_pinv = pseudo_inverse_of(lambda a, atol, rtol: linalg.pinv(a, atol=atol, rtol=rtol, check_finite=False))


@stands_for(linalg.pinv)
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
    _refuse("pinv", {"return_rank": (return_rank, False)})
    atol, rtol = (number_or_refuse("scipy.linalg.pinv: a tolerance", x) for x in (atol, rtol))
    return _pinv.bind((a,), {"atol": atol, "rtol": rtol})


_pinvh = pseudo_inverse_of(
    lambda a, atol, rtol, lower: linalg.pinvh(a, atol=atol, rtol=rtol, lower=lower, check_finite=False)
)


@stands_for(linalg.pinvh)
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
    _refuse("pinvh", {"return_rank": (return_rank, False)})
    atol, rtol = (number_or_refuse("scipy.linalg.pinvh: a tolerance", x) for x in (atol, rtol))
    return _pinvh.bind((completed(a, not lower),), {"atol": atol, "rtol": rtol, "lower": lower})
