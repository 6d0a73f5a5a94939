"""Rules of singular values and QR; the notation is that of `rules.decompositions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.primitive import Primitive
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.matrices import (
    adjoint,
    columns,
    conjugated,
    decomposition,
    diagonal_of,
    inverse_or_zero,
    is_complex,
    matrix_function,
    on_diagonal,
    over_gaps,
    real_of,
    transposed,
)
from ebbtide.rules.products import product

Call = Callable[..., list[Any]]


def _sum_with_adjoint(a: Any) -> Any:
    return a + adjoint(a)


def _turns(of_vectors: Any, squares: Any) -> Any:
    return _sum_with_adjoint(over_gaps(of_vectors, squares))


def _thin(gu: Any, gv: Any, u: Any, v: Any, k: int) -> tuple[Any, Any, Any, Any]:
    """
    Return the first k columns of vectors and of their cotangents.

    The others are any basis of what is orthogonal to these, and turn with them: `dU2 = -U1 dU1^H U2`.
    """
    pairs = []
    for g, vectors in ((gu, u), (gv, v)):
        first, rest = vectors[..., :k], vectors[..., k:]
        moved = product(rest, product(adjoint(g[..., k:]), first)) if rest.shape[-1] else None
        pairs.append((g[..., :k] if moved is None else g[..., :k] - moved, first))
    return pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]


def _beside(g: Any, vectors: Any) -> Any:
    """Return the part of the columns of *g* that is orthogonal to these vectors; None where they are a whole basis."""
    if vectors.shape[-2] == vectors.shape[-1]:
        return None
    return g - product(vectors, product(adjoint(vectors), g))


def _svd_vjp(gs: Any, params: Any, out: Any) -> Any:
    u, s, v = out[0], out[1], adjoint(out[2])
    gu, gv, u, v = _thin(conjugated(gs[0]), transposed(gs[2]), u, v, s.shape[-1])
    squares, by_s, inverse = np.square(s), columns(s), columns(inverse_or_zero(s))
    of_u, of_v = product(adjoint(u), gu), product(adjoint(v), gv)
    inner = _turns(of_u, squares) * by_s + transposed(by_s) * _turns(of_v, squares)
    inner = inner + on_diagonal(gs[1])
    if is_complex(u):
        inner = inner + 1j * on_diagonal(np.imag(diagonal_of(of_u)) * inverse_or_zero(s))
    whole = product(product(u, inner), adjoint(v))
    beside_u, beside_v = _beside(gu, u), _beside(gv, v)
    if beside_u is not None:
        whole = whole + product(beside_u * inverse, adjoint(v))
    if beside_v is not None:
        whole = whole + product(u * inverse, adjoint(beside_v))
    return conjugated(whole)


def _svd_tangents(ts: Any, params: Any, out: Any) -> Any:
    (all_u, s, all_vh), k = out, out[1].shape[-1]
    u, v = all_u[..., :k], adjoint(all_vh)[..., :k]
    squares, by_s, inverse = np.square(s), columns(s), columns(inverse_or_zero(s))
    moved = product(ts[0], v)
    inner = product(adjoint(u), moved)
    turn_u = over_gaps(_sum_with_adjoint(inner * by_s), squares)
    turn_v = over_gaps(_sum_with_adjoint(transposed(by_s) * inner), squares)
    if is_complex(u):
        turn_u = turn_u + 1j * on_diagonal(np.imag(diagonal_of(inner)) * inverse_or_zero(s))
    changes = []
    for vectors, turn, image in ((u, turn_u, moved), (v, turn_v, product(adjoint(ts[0]), u))):
        beside = _beside(image, vectors)
        change = product(vectors, turn)
        changes.append(change if beside is None else change + beside * inverse)
    for number, (vectors, every) in enumerate(((u, all_u), (v, adjoint(all_vh)))):
        rest = every[..., k:]
        if rest.shape[-1]:
            turned = -product(vectors, product(adjoint(changes[number]), rest))
            changes[number] = np.concatenate([changes[number], turned], axis=-1)
    return [changes[0], np.real(diagonal_of(inner)), adjoint(changes[1])]


def _svd_types(kind: ArrayType, full: bool, **params: Any) -> list[ArrayType]:
    *leading, m, n = kind.shape
    k = min(m, n)
    rows, columns = (m, n) if full else (k, k)
    return [
        ArrayType((*leading, m, rows), kind.dtype),
        ArrayType((*leading, k), real_of(kind.dtype)),
        ArrayType((*leading, columns, n), kind.dtype),
    ]


def svd_of(function: Callable[..., Any], name: str) -> Call:
    """Declare singular values and vectors with `full` as a parameter; it saves its output."""
    return decomposition(function, _svd_vjp, _svd_tangents, kinds=_svd_types, name=name)


_svd = svd_of(lambda a, full: np.linalg.svd(a, full_matrices=full), "svd")


def svdvals_of(function: Callable[..., Any], name: str) -> Primitive:
    """Declare singular values alone; it saves the matrix, and computes the vectors again."""

    def vjp(g: Any, params: Any, x: Any) -> Any:
        u, _, vh = _svd(x, full=False)
        return conjugated(product(u * columns(g), vh))

    def jvp(t: Any, params: Any, x: Any) -> Any:
        u, _, vh = _svd(x, full=False)
        return np.real(np.sum(conjugated(u) * product(t, adjoint(vh)), axis=-2))

    def infer(kind: ArrayType, **params: Any) -> ArrayType:
        return ArrayType((*kind.shape[:-2], min(kind.shape[-2:])), real_of(kind.dtype))

    return matrix_function(function, vjp, jvp, infer=infer, name=name)


_svdvals = svdvals_of(np.linalg.svdvals, "svdvals")
_SVDResult: Any = type(np.linalg.svd(np.eye(1)))


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """
    Return singular values and vectors.

    Memory:
        A record saves the results; without vectors, the matrix.
    """
    if hermitian:
        return _of_hermitian(a, compute_uv)
    if not compute_uv:
        return _svdvals.bind((a,))
    return _SVDResult(*_svd(a, full=bool(full_matrices)))


def _of_hermitian(a: Any, compute_uv: bool) -> Any:
    """Return singular values and vectors of Hermitian matrices from eigenvalues, as NumPy does."""
    if not compute_uv:
        return np.flip(np.sort(np.abs(np.linalg.eigvalsh(a))), -1)
    w, v = np.linalg.eigh(a)
    sign, s = np.sign(w), np.abs(w)
    order = np.flip(np.argsort(s), -1)
    sign = np.take_along_axis(sign, order, axis=-1)
    s = np.take_along_axis(s, order, axis=-1)
    u = np.take_along_axis(v, np.expand_dims(order, -2), axis=-1)
    return _SVDResult(u, s, adjoint(u * columns(sign)))


answer(np.linalg.svd, svd)
answer(np.linalg.svdvals, lambda x, /: _svdvals.bind((x,)))


# QR, with a real diagonal of R. Where there are more columns than rows, the first ones make Q.


def _over(a: Any, r: Any) -> Any:
    """Return a r^-1."""
    return transposed(np.linalg.solve(transposed(r), transposed(a)))


def _qr_vjp(gs: Any, params: Any, out: Any) -> Any:
    q, r = out
    gq, gr = conjugated(gs[0]), conjugated(gs[1])
    k = q.shape[-1]
    inner = product(adjoint(q), gq) - product(gr, adjoint(r))
    turn = np.tril(inner - adjoint(inner), -1)
    if is_complex(q):
        turn = turn + 1j * on_diagonal(np.imag(diagonal_of(inner)))
    first = product(q, turn)
    beside = _beside(gq, q)
    first = _over(first if beside is None else first + beside, adjoint(r[..., :k]))
    whole = product(q, gr)
    if k < r.shape[-1]:
        first = np.concatenate([first, np.zeros((*first.shape[:-1], r.shape[-1] - k), type_of(first).dtype)], axis=-1)
    return conjugated(whole + first)


def _qr_tangents(ts: Any, params: Any, out: Any) -> Any:
    q, r = out
    k = q.shape[-1]
    first = _over(ts[0][..., :k], r[..., :k])
    inner = product(adjoint(q), first)
    below = np.tril(inner, -1)
    turn = below - adjoint(below)
    if is_complex(q):
        turn = turn + 1j * on_diagonal(np.imag(diagonal_of(inner)))
    beside = _beside(first, q)
    change = product(q, turn)
    change_r = np.triu(product(adjoint(q), ts[0]) - product(turn, r))
    return [change if beside is None else change + beside, change_r]


def _qr_types(kind: ArrayType, **params: Any) -> list[ArrayType]:
    *leading, m, n = kind.shape
    k = min(m, n)
    return [ArrayType((*leading, m, k), kind.dtype), ArrayType((*leading, k, n), kind.dtype)]


def qr_of(function: Callable[..., Any], name: str) -> Call:
    """Declare Q and R, of which R is square or has more columns; it saves its output."""
    return decomposition(function, _qr_vjp, _qr_tangents, kinds=_qr_types, name=name)


_qr = qr_of(np.linalg.qr, "qr")
_QRResult: Any = type(np.linalg.qr(np.eye(1)))


def qr(a: Any, mode: str = "reduced") -> Any:
    """
    Return Q and R; the first columns of a, as many as there are rows, have to be independent.

    Memory:
        A record saves the results.
    """
    if mode == "r":
        return _qr(a)[1]
    if mode == "reduced" or (mode == "complete" and a.shape[-2] <= a.shape[-1]):
        return _QRResult(*_qr(a))
    raise refusal(
        f"np.linalg.qr of {a.shape[-2]} x {a.shape[-1]} matrices with mode={mode!r} has no derivative rule: the "
        "columns of Q beyond those of the matrix are any. Write it with mode='reduced'."
    )


answer(np.linalg.qr, qr)
