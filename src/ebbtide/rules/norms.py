"""Norms of vectors and matrices and condition numbers, with the arithmetic of NumPy's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.views import bottom
from ebbtide.rules.answers import answer
from ebbtide.rules.matrices import real_of
from ebbtide.rules.reductions import axes_of, number, reduced, root


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002 - NumPy's name
    """Return a norm of vectors or matrices; where it is zero, so is its derivative."""
    ndim = x.ndim
    if axis is None and (ord is None or (ord in ("f", "fro") and ndim == 2) or (ord == 2 and ndim == 1)):
        return _of_all(x, keepdims)
    axes = axes_of(axis, ndim)
    if len(axes) == 1:
        return _of_vectors(x, ord, axes, keepdims)
    if len(axes) != 2:
        raise ValueError("Improper number of dimensions to norm.")
    if axes[0] == axes[1]:
        raise ValueError("Duplicate axes given.")
    result = _of_matrices(x, ord, axes)
    if keepdims:
        return np.reshape(result, reduced(type_of(x), axes, True).shape)
    return result


def _squared_sizes(x: Any) -> Any:
    return np.real(np.conjugate(x) * x) if type_of(x).dtype.kind == "c" else np.square(x)


def _of_all(x: Any, keepdims: bool) -> Any:
    # NumPy multiplies by BLAS, which rounds otherwise than a sum, and in the order of memory.
    flat = _as_in_memory(x)
    if type_of(x).dtype.kind == "c":
        squares = np.dot(np.real(flat), np.real(flat)) + np.dot(np.imag(flat), np.imag(flat))
    else:
        squares = np.dot(flat, flat)
    return np.reshape(root(squares), (1,) * x.ndim) if keepdims else root(squares)


def _as_in_memory(x: Any) -> Any:
    """Return the elements of a traced array in the order in which they lie in memory, as `ravel(order="K")` does."""
    value = bottom(x.present())
    axes = list(range(x.ndim))
    # An axis of one element may have any stride, as one of `x[None]` has the stride 0.
    if isinstance(value, np.ndarray) and all(s or n == 1 for s, n in zip(value.strides, value.shape, strict=True)):
        axes.sort(key=lambda axis: -abs(value.strides[axis]))
    return np.ravel(x if axes == sorted(axes) else np.transpose(x, axes))


def _of_vectors(x: Any, order: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if isinstance(order, str):
        raise ValueError(f"Invalid norm order '{order}' for vectors")
    if order is None or order == 2:
        return root(np.sum(_squared_sizes(x), axis=axes, keepdims=keepdims))
    if order == 0:
        return np.sum(np.astype(np.not_equal(x, 0), np.real(x).dtype), axis=axes, keepdims=keepdims)
    sizes = np.abs(x)
    if order == np.inf:
        return np.max(sizes, axis=axes, keepdims=keepdims, initial=0)
    if order == -np.inf:
        return np.min(sizes, axis=axes, keepdims=keepdims)
    if order == 1:
        return np.sum(sizes, axis=axes, keepdims=keepdims)
    total = np.sum(sizes**order, axis=axes, keepdims=keepdims)
    at_zero = np.equal(total, 0)
    exponent = np.reciprocal(order, dtype=type_of(total).dtype)
    return number(np.where(at_zero, 0 if order > 0 else np.inf, number(np.where(at_zero, 1, total)) ** exponent))


def _of_matrices(x: Any, order: Any, axes: tuple[int, ...]) -> Any:
    row, column = axes
    if order in (None, "fro", "f"):
        return root(np.sum(_squared_sizes(x), axis=axes))
    if order in (2, -2, "nuc"):
        s = np.linalg.svd(np.moveaxis(x, axes, (-2, -1)), compute_uv=False)
        if order == 2:
            return np.max(s, axis=-1, initial=0)
        return np.sum(s, axis=-1) if order == "nuc" else np.min(s, axis=-1)
    if order not in (1, -1, np.inf, -np.inf):
        raise ValueError("Invalid norm order for matrices.")
    summed, along = (row, column) if order in (1, -1) else (column, row)
    sums = np.sum(np.abs(x), axis=summed)
    along -= along > summed
    return np.max(sums, axis=along, initial=0) if order > 0 else np.min(sums, axis=along)


answer(np.linalg.norm, norm)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002 - NumPy's name
    """Return a norm of the matrices of a stack."""
    return norm(x, ord, (-2, -1), keepdims)


answer(np.linalg.matrix_norm, matrix_norm)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:  # noqa: A002
    """Return a norm of vectors, which may be along several axes."""
    axes = axes_of(axis, x.ndim)
    if isinstance(axis, tuple):
        rest = [k for k in range(x.ndim) if k not in axes]
        flat = np.transpose(x, (*axes, *rest))
        result = norm(np.reshape(flat, (prod(flat.shape[: len(axes)]), *flat.shape[len(axes) :])), ord, 0)
    else:
        result = norm(np.ravel(x), ord, 0) if axis is None else norm(x, ord, axis)
    return np.reshape(result, reduced(type_of(x), axes, True).shape) if keepdims else result


answer(np.linalg.vector_norm, vector_norm)


def cond(x: Any, p: Any = None) -> Any:
    """Return condition numbers of matrices."""
    if 0 in x.shape[-2:]:
        raise np.linalg.LinAlgError("cond is not defined on empty arrays")
    with np.errstate(all="ignore"):
        if p is None or p in (2, -2):
            s = np.linalg.svd(x, compute_uv=False)
            result = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
        else:
            dtype = type_of(x).dtype
            # NumPy's is of double precision for single, and none for half: the error is NumPy's.
            wide = x if dtype == np.float16 else np.astype(x, np.result_type(dtype, np.float64))
            inverse = np.linalg.inv(wide)
            result = np.astype(norm(x, p, (-2, -1)) * norm(inverse, p, (-2, -1)), real_of(dtype))
    unknown = np.any(np.isnan(x), axis=(-2, -1))
    return number(np.where(np.logical_and(np.isnan(result), np.logical_not(unknown)), np.inf, result))


answer(np.linalg.cond, cond)
