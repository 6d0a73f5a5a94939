"""
Rules of linear algebra without factors: solving, inverses, determinants, powers.

Cotangents are transposed, not conjugated: that of a complex z is df/dx - i df/dy, and an inverse or a determinant is a
holomorphic function. Rules are made for a function, so that SciPy's of the same meaning have the same ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import aligned, all_full, full, ndim_of
from ebbtide.arrays.constants import constant, stand_in_type
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, promoted, unbroadcast
from ebbtide.arrays.registry import register
from ebbtide.rules.answers import answer
from ebbtide.rules.matrices import (
    decomposition,
    matrix_function,
    on_stacks,
    real_of,
    transposed,
)
from ebbtide.rules.products import product
from ebbtide.rules.reductions import number, others
from ebbtide.rules.vectors import cross


def solved_dtype(*kinds: ArrayType) -> Any:
    """Return the dtype of what NumPy or SciPy computes of matrices of these types; integers become doubles."""
    return np.result_type(*[k.dtype if k.dtype.kind in "fc" else np.dtype(float) for k in kinds])


def _column(v: Any, is_vector: bool) -> Any:
    return np.expand_dims(v, -1) if is_vector else v


def _vector(x: Any, is_vector: bool) -> Any:
    return np.squeeze(x, -1) if is_vector else x


def _times(t: Any, x: Any, params: Any, a: Any) -> Any:
    return product(t, x)


def _into(y: Any, x: Any, params: Any, a: Any) -> Any:
    return product(y, transposed(x))


def solver(
    function: Callable[..., Any],
    name: str,
    back: Callable[..., Any],
    ahead: Callable[..., Any],
    times: Callable[..., Any] = _times,
    into: Callable[..., Any] = _into,
    beside: tuple[str, ...] = (),
) -> Primitive:
    """
    Declare the solution x of a x = b, of which b is a vector if it has one axis.

    Args:
        function: `function(a, b, *beside, **params)`.
        name: Name in messages.
        back: `back(g, params, a, *beside)` solves with the transpose of a; g has columns.
        ahead: `ahead(b, params, a, *beside)` solves with a; b has columns.
        times: `times(t, x, params, a, *beside)`: what a change t of a does to x, where a is no plain matrix.
        into: `into(y, x, params, a, *beside)`: the transpose of *times*; of a matrix it is y x^T.
        beside: Names of operands that a is read with, of which no derivative is taken.

    Returns:
        The primitive. It saves a, and with respect to a also x.
    """

    def infer(a: ArrayType, b: ArrayType, *rest: ArrayType, **params: Any) -> ArrayType:
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return ArrayType((*leading, *b.shape[-2:]), solved_dtype(a, b))

    def of_b(g: Any, kind: ArrayType, params: Any, *given: Any) -> Any:
        is_vector = len(kind.shape) == 1
        return unbroadcast(_vector(back(_column(g, is_vector), params or {}, *given), is_vector), kind)

    def of_a(g: Any, kind: ArrayType, params: Any, out: Any, *given: Any) -> Any:
        is_vector = out.ndim < given[0].ndim
        y = back(_column(g, is_vector), params or {}, *given)
        return unbroadcast(-into(y, _column(out, is_vector), params or {}, *given), kind)

    pulls = (
        Pull(of_a, ("out", "a", *beside), FRESH, temporaries=3), Pull(of_b, ("a", *beside), FRESH, temporaries=2),
    )  # fmt: skip

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        given, is_vector = (values[0], *values[2:]), values[1].ndim == 1
        terms = []
        if tangents[1] is not None:
            terms.append(_column(tangents[1], is_vector))
        if tangents[0] is not None:
            terms.append(-times(tangents[0], _column(out, is_vector), params or {}, *given))
        sides = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        return promoted([_vector(ahead(sides, params or {}, *given), is_vector)], out)

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        is_vector = ndim_of(values[1], mapped[1]) == 1
        a, b = aligned((values[0], _column(as_operand(values[1]), is_vector)), mapped[:2])
        rest = all_full(values[2:], mapped[2:], size)
        if beside and not mapped[0]:
            a = full(a, False, size)
        return _vector(ahead(b, params, a, *rest), is_vector)

    return Primitive(
        on_stacks(function, infer), name=name, operands=("a", "b", *beside),
        pull=lambda k: pulls[k] if k < 2 else None, push=push, infer=infer, batch=of_members,
    )  # fmt: skip


solve_general = solver(
    np.linalg.solve,
    "solve",
    back=lambda g, params, a: np.linalg.solve(transposed(a), g),
    ahead=lambda b, params, a: np.linalg.solve(a, b),
)
answer(np.linalg.solve, lambda a, b: solve_general.bind((as_operand(a), as_operand(b))))


def inverse_of(function: Callable[..., Any]) -> Primitive:
    """Declare the inverse; it saves its output."""
    return matrix_function(
        function,
        lambda g, params, out: -product(product(transposed(out), g), transposed(out)),
        lambda t, params, out: -product(product(out, t), out),
        infer=lambda kind, **params: kind,
        name="inv",
    )


inverse = inverse_of(np.linalg.inv)
answer(np.linalg.inv, lambda a: inverse.bind((a,)))


def _scalars(g: Any) -> Any:
    """Return a number for each matrix as something that multiplies matrices."""
    return np.expand_dims(g, (-2, -1))


def _traces(a: Any, b: Any) -> Any:
    """Return the sum of all products of elements, for each matrix."""
    return np.sum(a * b, axis=(-2, -1))


def _cofactors_of(a: Any) -> Any:
    # From singular values, as those of a singular matrix have no inverse to be made from.
    u, s, vh = np.linalg.svd(a)
    size = np.linalg.det(u) * np.linalg.det(vh)
    return _scalars(size) * np.matmul(np.conjugate(u) * others(s, (s.ndim - 1,))[..., None, :], np.conjugate(vh))


def _turned(t: Any, params: Any, x: Any, out: Any) -> Any:
    """Return the change of the cofactors along t, which is its own transpose; not of singular matrices."""
    whole = _scalars(_traces(t, out)) * out - product(product(out, transposed(t)), out)
    return whole / _scalars(np.linalg.det(x))


cofactors = matrix_function(
    _cofactors_of, _turned, _turned, infer=lambda kind: kind, name="cofactors", scratch=lambda params, x: 4 * x.nbytes
)


def determinant_of(function: Callable[..., Any], least: Any = np.float32) -> Primitive:
    """
    Declare the determinant; it saves the matrix. Its derivative, the cofactors, is right for singular ones, too.

    Args:
        function: `function(x, **params)`.
        least: The dtype that the result has at least.
    """
    return matrix_function(
        function,
        lambda g, params, x: _scalars(g) * cofactors(x),
        lambda t, params, x: _traces(cofactors(x), t),
        infer=lambda kind, **params: ArrayType(kind.shape[:-2], np.result_type(kind.dtype, least)),
        name="det",
    )


determinant = determinant_of(np.linalg.det)
answer(np.linalg.det, lambda a: determinant.bind((a,)))


def _sign_and_log_types(kind: ArrayType) -> list[ArrayType]:
    shape = kind.shape[:-2]
    return [ArrayType(shape, kind.dtype), ArrayType(shape, real_of(kind.dtype))]


def _real_slogdet_tangents(t: Any, params: Any, x: Any) -> Any:
    change = _traces(transposed(np.linalg.inv(x)), t[0])
    return [np.zeros(change.shape, type_of(change).dtype), change]


def _slogdet_vjp(gs: Any, params: Any, x: Any, out: Any) -> Any:
    # The sign turns by the imaginary part of the change of the logarithm, which itself is the real part.
    change = gs[1] - np.multiply(1j, np.real(np.multiply(1j, out[0] * gs[0])))
    return _scalars(change) * transposed(np.linalg.inv(x))


def _slogdet_tangents(t: Any, params: Any, x: Any, out: Any) -> Any:
    change = _traces(transposed(np.linalg.inv(x)), t[0])
    return [np.multiply(1j, np.imag(change)) * out[0], np.real(change)]


_REAL_SLOGDET = decomposition(
    np.linalg.slogdet,
    lambda gs, params, x: _scalars(gs[1]) * transposed(np.linalg.inv(x)),
    _real_slogdet_tangents,
    kinds=_sign_and_log_types,
    name="slogdet",
)
_COMPLEX_SLOGDET = decomposition(
    np.linalg.slogdet, _slogdet_vjp, _slogdet_tangents, kinds=_sign_and_log_types, name="complex slogdet"
)
_SlogdetResult: Any = type(np.linalg.slogdet(np.eye(1)))


def slogdet(a: Any) -> Any:
    """
    Return sign and logarithm of the determinant; not differentiable at singular matrices, where it raises.

    Memory:
        A record saves the matrix, and of a complex one the results.
    """
    call = _COMPLEX_SLOGDET if type_of(a).dtype.kind == "c" else _REAL_SLOGDET
    return _SlogdetResult(*map(number, call(a)))


answer(np.linalg.slogdet, slogdet)


def matrix_power(a: Any, n: Any) -> Any:
    """Return a power of square matrices by the products that NumPy does."""
    n = operator.index(n)
    if n == 0:
        made: Any = np.zeros_like(a)
        made[...] = np.eye(a.shape[-1], dtype=type_of(a).dtype)
        return made
    if n < 0:
        a, n = np.linalg.inv(a), -n
    if n == 3:
        return np.matmul(np.matmul(a, a), a)
    square, result = None, None
    while n > 0:
        square = a if square is None else np.matmul(square, square)
        n, bit = divmod(n, 2)
        if bit:
            result = square if result is None else np.matmul(result, square)
    return result


answer(np.linalg.matrix_power, matrix_power)


def _tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    a, b = as_operand(a), as_operand(b)
    if axes is not None:
        order = list(range(a.ndim))
        for axis in axes:
            order.remove(axis)
            order.insert(a.ndim, axis)
        a = np.transpose(a, order)
    shape = a.shape[-(a.ndim - b.ndim) :]
    size = prod(shape)
    return np.reshape(np.linalg.solve(np.reshape(a, (size, size)), np.ravel(b)), shape)


def _tensorinv(a: Any, ind: int = 2) -> Any:
    if ind <= 0:
        raise ValueError("Invalid ind argument.")
    return np.reshape(np.linalg.inv(np.reshape(a, (prod(a.shape[ind:]), -1))), (*a.shape[ind:], *a.shape[:ind]))


answer(np.linalg.tensorsolve, _tensorsolve)
answer(np.linalg.tensorinv, _tensorinv)


answer(np.linalg.diagonal, lambda x, /, *, offset=0: np.diagonal(x, offset, -2, -1))
answer(np.linalg.trace, lambda x, /, *, offset=0, dtype=None: np.trace(x, offset, -2, -1, dtype))
answer(np.linalg.matrix_transpose, lambda x, /: np.matrix_transpose(x))
answer(np.linalg.tensordot, lambda x1, x2, /, *, axes=2: np.tensordot(x1, x2, axes))
answer(np.linalg.cross, lambda x1, x2, /, *, axis=-1: cross(x1, x2, axis=axis))


def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return np.vecdot(np.moveaxis(as_operand(x1), axis, -1), np.moveaxis(as_operand(x2), axis, -1))


answer(np.linalg.vecdot, _vecdot)


def _ranks(handler: Any, args: list[Any], kwargs: Any, mapped: list[bool], size: int) -> Any:
    return handler(*args, **kwargs) if args[0].ndim > 2 and not any(mapped[1:]) else None


register(
    np.linalg.matrix_rank, constant(np.linalg.matrix_rank, stand_in_type(np.linalg.matrix_rank), _ranks)
)
