"""
Rules of products: matmul, dot, einsum and their kin, bilinear in their operands.

BLAS adds a product of plain float matrices of the reverse sweep into an array that we own (beta = 1), so that a
gradient that is a sum of products needs one array and no temporary.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from scipy.linalg import blas

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import aligned, ndim_of, widened
from ebbtide.arrays.kinds import multilinear
from ebbtide.arrays.primitive import plain, unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.machine import add_gemm
from ebbtide.machine.blas import LETTERS
from ebbtide.rules.answers import answer
from ebbtide.rules.matrices import transposed
from ebbtide.rules.reductions import axes_of, placed

_DTYPES = frozenset(map(np.dtype, "fdFD"))
# From so many multiplications on, BLAS is worth a copy of a matrix that it cannot read: NumPy 2.1 and 2.2 make none,
# and take 200 to 300 ms for a product of 600 x 600 matrices that BLAS makes in 12.
SMALL = 1 << 15


def _by_scipy(a: Any, b: Any, c: Any, a_turned: bool, b_turned: bool) -> None:
    getattr(blas, f"{LETTERS[c.dtype.char]}gemm")(1.0, a, b, 1.0, c, a_turned, b_turned, 1)


# Without the compiled part it is SciPy's BLAS, which has threads of its own.
_add_gemm = add_gemm or _by_scipy


def _fortran(a: Any) -> tuple[Any, bool] | None:
    """Return (array, transposed) such that BLAS reads the matrix without a copy; None if it cannot."""
    if a.flags.f_contiguous:
        return a, False
    if a.flags.c_contiguous:
        return a.T, True
    return None


def product(a: Any, b: Any) -> Any:
    """Return the (stacked) matrix product of a derivative rule."""
    are_matrices = type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2
    if are_matrices and a.shape[0] * a.shape[1] * b.shape[-1] >= SMALL:
        return np.matmul(_materialized(a), _materialized(b))
    return np.matmul(a, b)


def add_product(target: Any, a: Any, b: Any) -> bool:
    """Add the matrix product a b into *target*; return whether that was possible without a temporary."""
    dtype = target.dtype
    if dtype not in _DTYPES or a.dtype != dtype or b.dtype != dtype or a.ndim != 2 or b.ndim != 2:
        return False
    # BLAS is in Fortran order: it computes target^T = b^T a^T for a target in C order.
    if target.flags.c_contiguous:
        a, b, target = b.T, a.T, target.T
    elif not target.flags.f_contiguous:
        return False
    first, second = _fortran(_materialized(a)), _fortran(_materialized(b))
    if first is None or second is None:
        return False
    _add_gemm(first[0], second[0], target, first[1], second[1])
    return True


def _materialized(a: Any) -> Any:
    """Return a matrix that BLAS can read: a broadcast cotangent, as that of a sum, is written out."""
    return a if a.flags.forc and a.flags.aligned else np.array(a, order="C")


# matmul: vectors are matrices with one row or column; leading axes broadcast.


def _matmul_type(x: ArrayType, y: ArrayType) -> ArrayType:
    rows = x.shape[-2:-1] if len(x.shape) > 1 else ()
    columns = y.shape[-1:] if len(y.shape) > 1 else ()
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return ArrayType((*batch, *rows, *columns), np.result_type(x.dtype, y.dtype))


def _as_matrices(g: Any, x_ndim: int, y_ndim: int) -> Any:
    """Return the cotangent of a product with the axes that vectors lack."""
    if y_ndim == 1:
        g = np.expand_dims(g, -1)
    return np.expand_dims(g, -2) if x_ndim == 1 else g


def _rows(a: Any) -> Any:
    """Return a vector, matrix or stack of matrices as one matrix of all its rows."""
    return np.reshape(a, (prod(a.shape[:-1]), a.shape[-1]))


def _matmul_left(g: Any, y: Any, kind: ArrayType) -> Any:
    if y.ndim == 2:
        # One product for a whole stack, in place of one for each matrix.
        return np.reshape(product(_rows(g), transposed(y)), kind.shape)
    g = _as_matrices(g, len(kind.shape), y.ndim)
    y = np.expand_dims(y, -1) if y.ndim == 1 else y
    full = product(g, transposed(y))
    if len(kind.shape) == 1:
        full = np.reshape(full, (*full.shape[:-2], full.shape[-1]))
    return unbroadcast(full, kind)


def _matmul_right(g: Any, x: Any, kind: ArrayType) -> Any:
    if len(kind.shape) == 2:
        # Also no product for each matrix of a stack is held until they are summed.
        return product(transposed(_rows(x)), _rows(g))
    g = _as_matrices(g, x.ndim, len(kind.shape))
    x = np.expand_dims(x, -2) if x.ndim == 1 else x
    full = product(transposed(x), g)
    if len(kind.shape) == 1:
        full = np.reshape(full, full.shape[:-1])
    return unbroadcast(full, kind)


def _into_left(target: Any, g: Any, params: Any, y: Any) -> bool:
    if type(y) is not np.ndarray or not target.flags.c_contiguous:
        return False
    if y.ndim == 2 and target.ndim > 0:
        return add_product(_rows(target), _rows(g), y.T)
    if target.ndim != 2 or y.ndim != 1:
        return False
    return add_product(target, g.reshape(-1, 1), y.reshape(1, -1))


def _into_right(target: Any, g: Any, params: Any, x: Any) -> bool:
    if target.ndim != 2 or type(x) is not np.ndarray:
        return False
    return add_product(target, _rows(x).T, _rows(g))


def _accumulates_left(kind: ArrayType, out: ArrayType, y: Any) -> bool:
    """Return whether `_into_left` can, judging by types."""
    return _is_gemm(kind, out, y) and (len(y.shape) == 2 or (len(y.shape) == 1 and len(kind.shape) == 2))


def _accumulates_right(kind: ArrayType, out: ArrayType, x: Any) -> bool:
    """Return whether `_into_right` can, judging by types."""
    return _is_gemm(kind, out, x) and len(kind.shape) == 2


def _is_gemm(*kinds: Any) -> bool:
    return all(type(kind) is ArrayType and kind.dtype == kinds[0].dtype and kind.dtype in _DTYPES for kind in kinds)


def _matmul_members(x: Any, y: Any, in_x: bool, in_y: bool) -> Any:
    """Return the products of all members: one product where a vector or matrix is the same for all of them."""
    of_x, of_y = ndim_of(x, in_x), ndim_of(y, in_y)
    if not in_y and of_y <= 2:
        return np.reshape(np.matmul(_rows(x), y), (*x.shape[:-1], *y.shape[1:]))
    if not in_x and of_x <= 2 and of_y == 1:
        return np.matmul(y, np.transpose(x))
    x = np.expand_dims(x, -2) if of_x == 1 else x
    y = np.expand_dims(y, -1) if of_y == 1 else y
    ndim = max(of_x, of_y, 2)
    out = np.matmul(widened(x, ndim) if in_x else x, widened(y, ndim) if in_y else y)
    dropped = [axis for axis, is_vector in ((-2, of_x == 1), (-1, of_y == 1)) if is_vector]
    return np.squeeze(out, tuple(dropped)) if dropped else out


# Up to two axes np.dot is the same product. Where BLAS cannot read the operands as they lie (views that run backwards),
# NumPy sums the two otherwise, and a step that runs without derivatives has to give the bits of one that is recorded.
_matmul, _matrix_dot = (
    multilinear(
        function,
        (_matmul_left, _matmul_right),
        infer=_matmul_type,
        batch=_matmul_members,
        accumulate=(_into_left, _into_right),
        accumulates=(_accumulates_left, _accumulates_right),
        name=name,
    )
    for function, name in ((np.matmul, "matmul"), (np.dot, "dot"))
)
register(np.matmul, _matmul)


def _dot_type(x: ArrayType, y: ArrayType) -> ArrayType:
    columns = y.shape[-1:] if len(y.shape) > 1 else ()
    return ArrayType((*x.shape[:-1], *y.shape[:-2], *columns), np.result_type(x.dtype, y.dtype))


def _dot_left(g: Any, y: Any, kind: ArrayType) -> Any:
    kept = tuple([k for k in range(y.ndim) if k != max(y.ndim - 2, 0)])
    return np.tensordot(g, y, (tuple(range(len(kind.shape) - 1, g.ndim)), kept))


def _dot_right(g: Any, x: Any, kind: ArrayType) -> Any:
    rows = tuple(range(x.ndim - 1))
    return np.moveaxis(np.tensordot(x, g, (rows, rows)), 0, max(len(kind.shape) - 2, 0))


def _dot_members(x: Any, y: Any, in_x: bool, in_y: bool) -> Any:
    if not in_y:
        return np.dot(x, y)
    of_x, of_y = ndim_of(x, in_x), ndim_of(y, in_y)
    columns = y if of_y == 1 else np.moveaxis(y, -2, 1)  # the axis that is summed over is the first of each member
    size, rest = columns.shape[0], columns.shape[2:]
    if not in_x:
        return np.moveaxis(np.dot(x, np.swapaxes(y, -1, -2) if of_y == 1 else y), of_x - 1, 0)
    flat = np.reshape(columns, (size, columns.shape[1], prod(rest)))
    return np.reshape(np.matmul(np.reshape(x, (size, prod(x.shape[1:-1]), x.shape[-1])), flat), (*x.shape[:-1], *rest))


def _scaling_type(x: ArrayType, y: ArrayType) -> ArrayType:
    return ArrayType(x.shape or y.shape, np.result_type(x.dtype, y.dtype))


def _scaling(g: Any, other: Any, kind: ArrayType) -> Any:
    return unbroadcast(g * other, kind)


_dot = multilinear(np.dot, (_dot_left, _dot_right), infer=_dot_type, batch=_dot_members, name="dot")
# np.dot with a number rounds complex products otherwise than np.multiply.
_scaled = multilinear(
    np.dot,
    (_scaling, _scaling),
    infer=_scaling_type,
    batch=lambda x, y, *mapped: np.multiply(*aligned((x, y), mapped)),
    name="dot",
)


def _arrays(*values: Any) -> list[Any]:
    """Return operands as arrays: NumPy takes lists and numbers, too."""
    return [v if type(v) is TracedArray else np.asarray(plain(v)) for v in values]


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return np.dot: of matrices up to two axes, of numbers, else a sum over the last and second last axis."""
    a, b = _arrays(a, b)
    if a.ndim == 0 or b.ndim == 0:
        made = _scaled.bind((a, b))
    else:
        made = (_matrix_dot if a.ndim <= 2 and b.ndim <= 2 else _dot).bind((a, b))
    return placed(made, out, "dot")


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the sum of products over axes, as a product of matrices."""
    a, b = _arrays(a, b)
    if isinstance(axes, int):
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    left, right = axes_of(axes[0], a.ndim), axes_of(axes[1], b.ndim)
    kept_a = tuple([k for k in range(a.ndim) if k not in left])
    kept_b = tuple([k for k in range(b.ndim) if k not in right])
    rows, columns = tuple([a.shape[k] for k in kept_a]), tuple([b.shape[k] for k in kept_b])
    inner = tuple([a.shape[k] for k in left])
    if inner != tuple([b.shape[k] for k in right]):
        raise ValueError(f"tensordot: shapes {a.shape} and {b.shape} do not match over the axes {axes}.")
    size = prod(inner)
    first = np.reshape(np.transpose(a, (*kept_a, *left)), (prod(rows), size))
    second = np.reshape(np.transpose(b, (*right, *kept_b)), (size, prod(columns)))
    return np.reshape(np.dot(first, second), rows + columns)


def _inner(a: Any, b: Any) -> Any:
    a, b = _arrays(a, b)
    return np.dot(a, b if a.ndim == 0 or b.ndim < 2 else np.swapaxes(b, -1, -2))


def _outer(a: Any, b: Any, out: Any = None) -> Any:
    return placed(np.multiply(np.expand_dims(np.ravel(a), 1), np.expand_dims(np.ravel(b), 0)), out, "outer")


def _kron(a: Any, b: Any) -> Any:
    a, b = _arrays(a, b)
    ndim = max(a.ndim, b.ndim)
    a = np.reshape(a, (1,) * (ndim - a.ndim) + a.shape)
    b = np.reshape(b, (1,) * (ndim - b.ndim) + b.shape)
    wide = np.multiply(
        np.reshape(a, tuple([n for size in a.shape for n in (size, 1)])),
        np.reshape(b, tuple([n for size in b.shape for n in (1, size)])),
    )
    return np.reshape(wide, tuple([m * n for m, n in zip(a.shape, b.shape, strict=True)]))


_vecdot = multilinear(
    np.vecdot,
    (
        lambda g, y, kind: unbroadcast(np.conjugate(np.expand_dims(g, -1) * y), kind),
        lambda g, x, kind: unbroadcast(np.expand_dims(g, -1) * np.conjugate(x), kind),
    ),
    infer=lambda x, y: ArrayType(np.broadcast_shapes(x.shape, y.shape)[:-1], np.result_type(x.dtype, y.dtype)),
    batch=lambda x, y, *mapped: np.vecdot(*aligned((x, y), mapped)),
    name="vecdot",
)
_vdot = multilinear(
    np.vdot,
    (
        lambda g, y, kind: np.reshape(np.conjugate(g * y), kind.shape),
        lambda g, x, kind: np.reshape(g * np.conjugate(x), kind.shape),
    ),
    infer=lambda x, y: ArrayType((), np.result_type(x.dtype, y.dtype)),
    batch=lambda x, y, *mapped: np.vecdot(x, y),
    name="vdot",
)


def _multi_dot(arrays: Any) -> Any:
    """Return the product of a chain of matrices, in the order with the fewest multiplications, as NumPy."""
    arrays = _arrays(*arrays)
    shapes = [(1, *a.shape) if a.ndim == 1 and not k else (*a.shape, 1) if a.ndim == 1 else a.shape
              for k, a in enumerate(arrays)]  # fmt: skip
    sizes = [shapes[0][0], *[shape[1] for shape in shapes]]
    cost: dict[tuple[int, int], tuple[int, int]] = {}
    for length in range(len(arrays)):
        for first in range(len(arrays) - length):
            last = first + length
            cost[first, last] = min(
                (
                    (cost[first, k][0] + cost[k + 1, last][0] + sizes[first] * sizes[k + 1] * sizes[last + 1], k)
                    for k in range(first, last)
                ),
                default=(0, first),
            )
    return _chain(arrays, cost, 0, len(arrays) - 1)


def _chain(arrays: Any, cost: dict[tuple[int, int], tuple[int, int]], first: int, last: int) -> Any:
    """Return the product of some of the matrices; a function in itself would leave them to the collector."""
    if first == last:
        return arrays[first]
    split = cost[first, last][1]
    return np.dot(_chain(arrays, cost, first, split), _chain(arrays, cost, split + 1, last))


answer(np.dot, dot)
answer(np.tensordot, tensordot)
answer(np.inner, _inner)
answer(np.outer, _outer)
answer(np.vdot, lambda a, b, /: _vdot.bind(tuple([np.reshape(v, -1) for v in _arrays(a, b)])))
answer(np.kron, _kron)
answer(np.linalg.matmul, lambda x1, x2, /: np.matmul(x1, x2))
answer(np.linalg.outer, lambda x1, x2, /: np.outer(x1, x2))
answer(np.linalg.multi_dot, _multi_dot)
register(np.vecdot, _vecdot)
