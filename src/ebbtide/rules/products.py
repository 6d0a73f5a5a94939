"""
Rules of products: matmul, dot, einsum and their kin, bilinear in their operands.

Plain float matrices of the reverse sweep are multiplied by SciPy's BLAS, which can add a product into an array
that we own (beta = 1), so that a gradient that is a sum of products needs one array and no temporary.
The wheels of NumPy and SciPy bring an OpenBLAS each, with a pool of threads each; to alternate between
them costs up to 1.7x, so all products of a sweep go through one.
"""

from __future__ import annotations

import string
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.linalg import blas

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.kinds import multilinear
from ebbtide.arrays.primitive import unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.rules.reductions import axes_of

_GEMM = MappingProxyType({
    np.dtype(np.float32): blas.sgemm,
    np.dtype(np.float64): blas.dgemm,
    np.dtype(np.complex64): blas.cgemm,
    np.dtype(np.complex128): blas.zgemm,
})  # fmt: skip
# Below this many multiplications the call of NumPy is cheaper than the preparation of BLAS's.
_SMALL = 1 << 15


def _fortran(a: Any) -> tuple[Any, bool] | None:
    """Return (array, transposed) such that BLAS reads the matrix without a copy; None if it cannot."""
    if a.flags.f_contiguous:
        return a, False
    if a.flags.c_contiguous:
        return a.T, True
    return None


def product(a: Any, b: Any) -> Any:
    """Return the matrix product of a derivative rule, by the BLAS of the sweep where it applies."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return np.matmul(a, b)
    gemm = _GEMM.get(a.dtype) if a.dtype == b.dtype and a.ndim == b.ndim == 2 else None
    if gemm is None or a.shape[0] * a.shape[1] * b.shape[1] < _SMALL:
        return np.matmul(a, b)
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    return out if _gemm(gemm, a, b, out, 0.0) else np.matmul(a, b)


def add_product(target: Any, a: Any, b: Any) -> bool:
    """Add the matrix product a b into *target*; return whether that was possible without a temporary."""
    gemm = _GEMM.get(target.dtype)
    if gemm is None or a.dtype != target.dtype or b.dtype != target.dtype or a.ndim != 2 or b.ndim != 2:
        return False
    return _gemm(gemm, a, b, target, 1.0)


def _gemm(gemm: Any, a: Any, b: Any, target: Any, beta: float) -> bool:
    # BLAS is in Fortran order: it computes target^T = b^T a^T for a target in C order.
    if target.flags.c_contiguous:
        a, b, target = b.T, a.T, target.T
    elif not target.flags.f_contiguous:
        return False
    first, second = _fortran(_materialized(a)), _fortran(_materialized(b))
    if first is None or second is None:
        return False
    gemm(1.0, first[0], second[0], beta, target, first[1], second[1], 1)
    return True


def _materialized(a: Any) -> Any:
    """Return a matrix that BLAS can read: a broadcast cotangent, as that of a sum, is written out."""
    return a if a.flags.forc else np.ascontiguousarray(a)


def _swap(a: Any) -> Any:
    return np.swapaxes(a, -1, -2)


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


def _matmul_left(g: Any, y: Any, kind: ArrayType) -> Any:
    g = _as_matrices(g, len(kind.shape), y.ndim)
    y = np.expand_dims(y, -1) if y.ndim == 1 else y
    full = product(g, _swap(y))
    if len(kind.shape) == 1:
        full = np.reshape(full, (*full.shape[:-2], full.shape[-1]))
    return unbroadcast(full, kind)


def _matmul_right(g: Any, x: Any, kind: ArrayType) -> Any:
    g = _as_matrices(g, x.ndim, len(kind.shape))
    x = np.expand_dims(x, -2) if x.ndim == 1 else x
    full = product(_swap(x), g)
    if len(kind.shape) == 1:
        full = np.reshape(full, full.shape[:-1])
    return unbroadcast(full, kind)


def _into_left(target: Any, g: Any, params: Any, y: Any) -> bool:
    if target.ndim != 2 or type(y) is not np.ndarray or y.ndim > 2:
        return False
    return add_product(target, g.reshape(target.shape[0], -1), y.reshape(y.shape[0], -1).T)


def _into_right(target: Any, g: Any, params: Any, x: Any) -> bool:
    if target.ndim != 2 or type(x) is not np.ndarray or x.ndim > 2:
        return False
    return add_product(target, x.reshape(-1, x.shape[-1]).T, g.reshape(-1, target.shape[-1]))


_matmul = multilinear(
    np.matmul, (_matmul_left, _matmul_right), infer=_matmul_type, accumulate=(_into_left, _into_right), name="matmul"
)
register(np.matmul, _matmul)


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return np.dot: matmul up to two axes, a product with numbers, else a sum over the last and second last axis."""
    if out is not None:
        raise TraceError("np.dot with out= cannot be traced; assign its result instead.")
    a, b = (v if type(v) is TracedArray else np.asarray(v) for v in (a, b))
    if a.ndim == 0 or b.ndim == 0:
        return np.multiply(a, b)
    if a.ndim <= 2 and b.ndim <= 2:
        return np.matmul(a, b)
    return tensordot(a, b, ((a.ndim - 1,), (max(b.ndim - 2, 0),)))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the sum of products over axes, as a product of matrices."""
    a, b = (v if type(v) is TracedArray else np.asarray(v) for v in (a, b))
    if isinstance(axes, int):
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    left, right = axes_of(axes[0], a.ndim), axes_of(axes[1], b.ndim)
    kept_a = tuple(k for k in range(a.ndim) if k not in left)
    kept_b = tuple(k for k in range(b.ndim) if k not in right)
    rows, columns = tuple(a.shape[k] for k in kept_a), tuple(b.shape[k] for k in kept_b)
    inner = tuple(a.shape[k] for k in left)
    if inner != tuple(b.shape[k] for k in right):
        raise ValueError(f"tensordot: shapes {a.shape} and {b.shape} do not match over the axes {axes}.")
    size = int(np.prod(inner))
    first = np.reshape(np.transpose(a, (*kept_a, *left)), (int(np.prod(rows)), size))
    second = np.reshape(np.transpose(b, (*right, *kept_b)), (size, int(np.prod(columns))))
    return np.reshape(np.matmul(first, second), rows + columns)


def _inner(a: Any, b: Any) -> Any:
    a, b = (v if type(v) is TracedArray else np.asarray(v) for v in (a, b))
    if a.ndim == 0 or b.ndim == 0:
        return np.multiply(a, b)
    return tensordot(a, b, ((a.ndim - 1,), (b.ndim - 1,)))


def _kron(a: Any, b: Any) -> Any:
    a, b = (v if type(v) is TracedArray else np.asarray(v) for v in (a, b))
    ndim = max(a.ndim, b.ndim)
    a = np.reshape(a, (1,) * (ndim - a.ndim) + a.shape)
    b = np.reshape(b, (1,) * (ndim - b.ndim) + b.shape)
    wide = np.multiply(
        np.reshape(a, tuple(n for size in a.shape for n in (size, 1))),
        np.reshape(b, tuple(n for size in b.shape for n in (1, size))),
    )
    return np.reshape(wide, tuple(m * n for m, n in zip(a.shape, b.shape, strict=True)))


register(np.dot, dot)
register(np.tensordot, tensordot)
register(np.inner, _inner)
register(np.outer, lambda a, b, out=None: np.multiply(np.reshape(a, (-1, 1)), np.reshape(b, (1, -1))))
register(np.vdot, lambda a, b: np.matmul(np.conjugate(np.ravel(a)), np.ravel(b)))
register(np.kron, _kron)
register(np.linalg.matmul, np.matmul)
register(np.linalg.outer, lambda a, b, /: np.outer(a, b))
register(np.linalg.multi_dot, lambda arrays, *, out=None: _chain(list(arrays)))
register(np.vecdot, lambda a, b, axis=-1: np.sum(np.conjugate(a) * b, axis=axis))


def _chain(arrays: list[Any]) -> Any:
    result = arrays[0]
    for array in arrays[1:]:
        result = np.matmul(result, array)
    return result


# einsum of any number of operands, two at a time; each pair is bilinear.


def _einsum_type(x: ArrayType, y: ArrayType, left: str, right: str, out: str) -> ArrayType:
    sizes = dict(zip(left, x.shape, strict=True)) | dict(zip(right, y.shape, strict=True))
    return ArrayType(tuple(sizes[c] for c in out), np.result_type(x.dtype, y.dtype))


def _einsum_left(g: Any, y: Any, kind: ArrayType, left: str, right: str, out: str) -> Any:
    known = [c for c in left if c in out or c in right]
    part = np.einsum(f"{out},{right}->{''.join(known)}", g, y)
    shape = tuple(n if c in known else 1 for c, n in zip(left, kind.shape, strict=True))
    return np.positive(np.broadcast_to(np.reshape(part, shape), kind.shape))


def _einsum_right(g: Any, x: Any, kind: ArrayType, left: str, right: str, out: str) -> Any:
    return _einsum_left(g, x, kind, right, left, out)


_einsum = multilinear(
    lambda x, y, left, right, out: np.einsum(f"{left},{right}->{out}", x, y),
    (_einsum_left, _einsum_right),
    infer=_einsum_type,
    name="einsum",
)


def _parsed(subscripts: str, operands: list[Any]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the output, without ellipses."""
    text = subscripts.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {len(operands)} operands for the {len(terms)} terms of {subscripts!r}.")
    free = [c for c in string.ascii_letters if c not in text]
    most = max((op.ndim - len(t.replace("...", "")) for t, op in zip(terms, operands, strict=True) if "..." in t), default=0)
    batch = "".join(free[:most])
    filled = []
    for term, operand in zip(terms, operands, strict=True):
        count = operand.ndim - len(term.replace("...", ""))
        filled.append(term.replace("...", batch[most - count :] if count else ""))
    if not arrow:
        letters = "".join(filled).replace(batch, "") if batch else "".join(filled)
        out = ("..." if batch else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return filled, out.replace("...", batch)


def _without_repeats(operand: Any, term: str) -> tuple[Any, str]:
    """Return an operand with letters that occur twice in its own term replaced by their diagonal."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            operand = np.diagonal(operand, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
    return operand, term


def einsum(*args: Any, out: Any = None, optimize: Any = False, **kwargs: Any) -> Any:
    """Return Einstein's sum of products, of operands in the order in which they are given."""
    if not isinstance(args[0], str):
        raise TraceError("np.einsum of a traced array wants its subscripts as a text, such as 'ij,jk->ik'.")
    operands = [a if type(a) is TracedArray else np.asarray(a) for a in args[1:]]
    terms, result = _parsed(args[0], operands)
    pairs = [_without_repeats(o, t) for o, t in zip(operands, terms, strict=True)]
    current, term = pairs[0]
    for position, (operand, other) in enumerate(pairs[1:], 1):
        later = "".join(t for _, t in pairs[position + 1 :]) + result
        kept = "".join(c for c in dict.fromkeys(term + other) if c in later)
        kept = result if position == len(pairs) - 1 else kept
        current = _einsum.bind((current, operand), {"left": term, "right": other, "out": kept})
        term = kept
    summed = tuple(k for k, c in enumerate(term) if c not in result)
    if summed:
        current = np.sum(current, axis=summed)
        term = "".join(c for c in term if c in result)
    return np.transpose(current, [term.index(c) for c in result]) if term != result else current


register(np.einsum, einsum)
