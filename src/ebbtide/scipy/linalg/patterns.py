"""Matrices of a pattern, norms and products of `scipy.linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.rules.matrices import conjugated, inverse_or_zero, matrix_function, real_of
from ebbtide.scipy.linalg.order import answers_for


@answers_for(linalg.block_diag)
def block_diag(*arrs: Any) -> Any:
    """
    Return a matrix with blocks along its diagonal, as `scipy.linalg.block_diag`.

    Args:
        *arrs: Matrices; vectors are matrices of one row.

    Returns:
        A matrix.

    Memory:
        Nothing is saved.
    """
    blocks = [np.atleast_2d(as_operand(block)) for block in arrs]
    rows, before = [], 0
    total = sum(block.shape[-1] for block in blocks)
    for block in blocks:
        after = total - before - block.shape[-1]
        rows.append(np.pad(block, [(0, 0)] * (block.ndim - 1) + [(before, after)]))
        before += block.shape[-1]
    return np.concatenate(rows, axis=-2)


@answers_for(linalg.toeplitz)
def toeplitz(c: Any, r: Any = None) -> Any:
    """
    Return a matrix with constant diagonals, as `scipy.linalg.toeplitz`.

    Args:
        c: The first column.
        r: The first row, of which the first element is not read; conj(c) by default.

    Returns:
        A matrix.

    Memory:
        Nothing is saved but a table of indices.
    """
    c = np.atleast_1d(as_operand(c))
    r = conjugated(c) if r is None else np.atleast_1d(as_operand(r))
    m, n = c.shape[-1], r.shape[-1]
    values = np.concatenate([np.flip(c, -1), r[..., 1:]], axis=-1)
    return np.take(values, np.arange(n) - np.arange(m)[:, None] + m - 1, axis=-1)


@answers_for(linalg.circulant)
def circulant(c: Any) -> Any:
    """Return a matrix whose columns are turns of *c*, as `scipy.linalg.circulant`; nothing is saved but indices."""
    c = np.atleast_1d(as_operand(c))
    n = c.shape[-1]
    return np.take(c, (np.arange(n)[:, None] - np.arange(n)) % n, axis=-1)


@answers_for(linalg.hankel)
def hankel(c: Any, r: Any = None) -> Any:
    """
    Return a matrix with constant anti-diagonals, as `scipy.linalg.hankel`.

    Args:
        c: The first column.
        r: The last row, of which the first element is not read; zeros by default.

    Returns:
        A matrix.

    Memory:
        Nothing is saved but a table of indices.
    """
    c = np.ravel(as_operand(c))
    r = np.zeros(c.shape, type_of(c).dtype) if r is None else np.ravel(as_operand(r))
    m, n = c.shape[0], r.shape[0]
    return np.take(np.concatenate([c, r[1:]]), np.arange(m)[:, None] + np.arange(n))


@answers_for(linalg.khatri_rao)
def khatri_rao(a: Any, b: Any) -> Any:
    """Return the products of all pairs of rows, column by column, as `scipy.linalg.khatri_rao`; saves a and b."""
    a, b = as_operand(a), as_operand(b)
    pairs = np.expand_dims(a, -2) * np.expand_dims(b, -3)
    return np.reshape(pairs, (*pairs.shape[:-3], a.shape[-2] * b.shape[-2], pairs.shape[-1]))


# ------------------------------------------------------------------------------------------------
# Norms: some are BLAS's and LAPACK's, which round otherwise than NumPy's


def _slope(x: Any, order: Any) -> Any:
    """Return the derivative of the largest sum of a column or row by each element; sums that tie share it."""
    sizes = np.abs(x)
    sums = np.sum(sizes, axis=-2 if order == 1 else -1, keepdims=True)
    largest = np.equal(sums, np.max(sums, keepdims=True))
    share = largest / np.sum(largest, dtype=real_of(type_of(x).dtype))
    return share * conjugated(x) * inverse_or_zero(sizes)


def _norm_of(x: Any, order: Any = None) -> Any:
    """Return SciPy's norm, a Python number, in the precision of x."""
    return real_of(x.dtype).type(linalg.norm(x, order, check_finite=False))


def _norm_type(kind: ArrayType, **params: Any) -> ArrayType:
    return ArrayType((), real_of(kind.dtype))


_length = matrix_function(
    _norm_of,
    lambda g, params, x, out: g * conjugated(x) * inverse_or_zero(out),
    lambda t, params, x, out: np.real(np.sum(conjugated(x) * t)) * inverse_or_zero(out),
    infer=_norm_type,
    name="norm",
    on_members=True,
)
_largest_sum = matrix_function(
    _norm_of,
    lambda g, params, x: g * _slope(x, params["order"]),
    lambda t, params, x: np.real(np.sum(_slope(x, params["order"]) * t)),
    infer=_norm_type,
    name="norm",
    on_members=True,
)


@answers_for(linalg.norm)
def norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Any:  # noqa: A002
    """
    Return a norm of vectors or matrices, as `scipy.linalg.norm`; where it is zero, so is its derivative.

    Args:
        a: An array.
        ord: The order of the norm, as in `numpy.linalg.norm`.
        axis: The axis of vectors, or two axes of matrices; all by default.
        keepdims: Whether these axes stay, with length 1.
        check_finite: Without effect on traced arrays.

    Returns:
        An array without these axes.

    Memory:
        A record saves a, and of a Euclidean norm also the result.
    """
    if axis is None and not keepdims and type_of(a).size:
        if a.ndim == 1 and ord in (None, 2):
            return _length.bind((a,))
        if a.ndim == 2 and ord in (1, np.inf) and _in_one_piece(a):
            return _largest_sum.bind((a,), {"order": ord})
    return np.linalg.norm(a, ord, axis, keepdims)


def _in_one_piece(a: Any) -> bool:
    """Return whether SciPy gives a matrix to LAPACK: what has no values yet will be in C order."""
    value = bottom(a.present()) if type(a) is TracedArray else a
    return type(value) is ArrayType or np.isfortran(value) or np.isfortran(value.T)
