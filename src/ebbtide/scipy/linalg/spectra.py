# ruff: noqa: A002 - SciPy's names
"""Eigenvalues of `scipy.linalg`, also of pairs of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import as_operand
from ebbtide.rules.decompositions import as_numpy, eig_of, eigh_of, eigvals_of, eigvalsh_of
from ebbtide.rules.linalg import solved_dtype
from ebbtide.rules.matrices import (
    adjoint,
    columns,
    completed,
    conjugated,
    decomposition,
    diagonal_of,
    folded,
    on_diagonal,
    over_gaps,
    real_of,
)
from ebbtide.rules.products import product
from ebbtide.scipy.linalg.order import answers_for, refuse

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
    inner = over_gaps(of_v, w) + on_diagonal(gs[0])
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
    turned = over_gaps(inner, w) - on_diagonal(np.real(diagonal_of(of_b))) / 2
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


@answers_for(linalg.eigh, by_lapack="egG")
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
    refuse("eigh", {"type": (type, 1), "subset_by_index": (subset_by_index, None),
                     "subset_by_value": (subset_by_value, None)})  # fmt: skip
    params = {"upper": not lower, "driver": driver}
    if b is not None:
        pair = as_operand(a), as_operand(b)
        return _generalized_eigvalsh(*pair, **params)[0] if eigvals_only else tuple(_generalized_eigh(*pair, **params))
    return _eigvalsh.bind((a,), params) if eigvals_only else tuple(_eigh(a, **params))


@answers_for(linalg.eigvalsh, by_lapack="egG")
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


@answers_for(linalg.eig, by_lapack="egG")
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
    refuse("eig", {"b": (b, None), "left": (left, False), "homogeneous_eigvals": (homogeneous_eigvals, False)})
    if not right:
        return _eigvals.bind((a,))
    w, v = _eig(a)
    return w, as_numpy(a, w, v)[1]


@answers_for(linalg.eigvals, by_lapack="egG")
def eigvals(
    a: Any, b: Any = None, overwrite_a: bool = False, check_finite: bool = True, homogeneous_eigvals: bool = False
) -> Any:
    """Return eigenvalues alone, as `scipy.linalg.eigvals`; see `eig`."""
    return eig(a, b, right=False, homogeneous_eigvals=homogeneous_eigvals)
