"""Pseudo-inverses and least squares, for the present rank of a matrix: where it changes there is no derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.primitive import Primitive
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.linalg import solved_dtype
from ebbtide.rules.matrices import adjoint, completed, conjugated, decomposition, matrix_function, real_of
from ebbtide.rules.products import product


def _pinv_vjp(g: Any, params: Any, x: Any, out: Any) -> Any:
    g, outer = conjugated(g), adjoint(out)
    beside = adjoint(g) - product(x, product(out, adjoint(g)))  # outside of the range of x
    across = adjoint(g) - product(product(adjoint(g), out), x)  # in its null space
    whole = product(beside, product(out, outer)) + product(product(outer, out), across)
    return conjugated(whole - product(product(outer, g), outer))


def _pinv_jvp(t: Any, params: Any, x: Any, out: Any) -> Any:
    outer, back = adjoint(out), adjoint(t)
    beside = back - product(product(back, x), out)
    across = back - product(out, product(x, back))
    whole = product(product(out, outer), beside) + product(product(across, outer), out)
    return whole - product(product(out, t), out)


def pseudo_inverse_of(function: Callable[..., Any]) -> Primitive:
    """Declare the pseudo-inverse of matrices whose rank does not change; it saves the matrix and its output."""
    return matrix_function(
        function, _pinv_vjp, _pinv_jvp,
        infer=lambda kind, **params: ArrayType((*kind.shape[:-2], *kind.shape[:-3:-1]), kind.dtype),
        name="pinv",
    )  # fmt: skip


_pinv = pseudo_inverse_of(np.linalg.pinv)


def number_or_refuse(name: str, value: Any) -> Any:
    """Return a tolerance, which has to be a number."""
    if type(value) is TracedArray or np.ndim(value):
        raise refusal(f"{name} has to be a number; call the function for each matrix where it differs.")
    return value


def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = np._NoValue) -> Any:
    """
    Return the pseudo-inverse; its derivative is that for the present rank.

    Memory:
        A record saves the matrix and the result.
    """
    params = {} if rcond is None else {"rcond": number_or_refuse("np.linalg.pinv: rcond=", rcond)}
    if rtol is not np._NoValue:
        params["rtol"] = number_or_refuse("np.linalg.pinv: rtol=", rtol)
    if hermitian:
        a, params["hermitian"] = completed(a, False), True
    return _pinv.bind((a,), params)


answer(np.linalg.pinv, pinv)


def _least_squares_types(a: ArrayType, b: ArrayType, **params: Any) -> list[ArrayType]:
    (m, n), count, dtype = a.shape[-2:], b.shape[-1], solved_dtype(a, b)
    leading, real = a.shape[:-2], real_of(dtype)
    sums = ArrayType((*leading, count if m > n else 0), real)
    return [ArrayType((*leading, n, count), dtype), sums, ArrayType((*leading, min(m, n)), real)]


def least_squares_of(function: Callable[..., Any], name: str) -> Callable[..., list[Any]]:
    """
    Declare least squares for a present rank that does not change.

    Args:
        function: `function(a, b, **params)`, of a matrix and a matrix of right-hand sides, returns the solutions, sums
            of squares, the rank, and the singular values.
        name: Name in messages.

    Returns:
        `call(a, b, **params)` of stacks returns solutions, sums of squares (nan without full rank) and singular values.
    """

    def computed(a: Any, b: Any, **params: Any) -> Any:
        results = [np.zeros(part.shape, part.dtype) for part in _least_squares_types(type_of(a), type_of(b))]
        for place in np.ndindex(a.shape[:-2]):
            x, sums, _, s = function(a[place], b[place], **params)
            results[0][place] = x
            results[1][place] = sums.real if sums.size == results[1].shape[-1] else np.nan
            results[2][place] = s
        return results

    def inverse(a: Any, params: Any) -> Any:
        return np.linalg.pinv(a, params["cut"])

    def of_a(gs: Any, params: Any, a: Any, b: Any, out: Any) -> Any:
        g, sums, g_s = [conjugated(one) for one in gs]
        x, rest, p = out[0], b - product(a, out[0]), inverse(a, params)
        z = product(adjoint(p), g)
        back = z if not sums.shape[-1] else z + 2 * rest * np.expand_dims(sums, -2)
        across = adjoint(g) - product(product(adjoint(g), p), a)
        whole = product(rest, adjoint(product(p, z))) + product(product(adjoint(p), x), across)
        u, _, vh = np.linalg.svd(a, full_matrices=False)
        return conjugated(whole - product(back, adjoint(x)) + product(u * np.expand_dims(g_s, -2), vh))

    def of_b(gs: Any, params: Any, a: Any, b: Any, out: Any) -> Any:
        whole = product(adjoint(inverse(a, params)), conjugated(gs[0]))
        if gs[1].shape[-1]:
            whole = whole + 2 * (b - product(a, out[0])) * np.expand_dims(gs[1], -2)
        return conjugated(whole)

    def tangents(ts: Any, params: Any, a: Any, b: Any, out: Any) -> Any:
        t, side = ts
        x, rest, p = out[0], b - product(a, out[0]), inverse(a, params)
        moved = side - product(t, x)
        across = product(adjoint(t), product(adjoint(p), x))
        change = product(p, moved + product(adjoint(p), product(adjoint(t), rest)))
        change = change + across - product(p, product(a, across))
        sums = 2 * np.sum(np.real(conjugated(rest) * moved), axis=-2)
        u, _, vh = np.linalg.svd(a, full_matrices=False)
        values = np.real(np.sum(conjugated(u) * product(t, adjoint(vh)), axis=-2))
        return [change, sums if out[1].shape[-1] else np.zeros(out[1].shape, type_of(sums).dtype), values]

    return decomposition(
        lambda a, b, cut, **params: computed(a, b, **params), (of_a, of_b), tangents,
        kinds=_least_squares_types, name=name, operands=("a", "b"),
    )  # fmt: skip


def _numpy_least_squares(a: Any, b: Any, rcond: Any) -> Any:
    return np.linalg.lstsq(a, b, rcond)


_least_squares = least_squares_of(_numpy_least_squares, "lstsq")


def solutions(call: Callable[..., Any], a: Any, b: Any, cut: Any, **params: Any) -> list[Any]:
    """Return solutions, sums of squares, rank and singular values, of which the shapes follow NumPy's rules."""
    a, b = as_operand(a), as_operand(b)
    dtype, (m, n) = solved_dtype(type_of(a), type_of(b)), a.shape
    cut = np.finfo(dtype).eps * max(m, n) if cut is None else number_or_refuse("lstsq: the cutoff", cut)
    is_vector = b.ndim == 1
    x, sums, s = call(a, np.expand_dims(b, -1) if is_vector else b, cut=float(cut), **params)
    rank = np.sum(np.greater(s, cut * np.max(s, initial=0)), dtype=np.int32)
    if type(rank) is not TracedArray and rank != n:
        sums = np.zeros(0, type_of(sums).dtype)
    return [np.squeeze(x, -1) if is_vector else x, sums, rank, s]


def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """
    Return the solution of least squares, sums of squared residuals, the rank, and the singular values of a.

    Memory:
        A record saves a, b and the results.
    """
    return tuple(solutions(_least_squares, a, b, rcond, rcond=rcond))


answer(np.linalg.lstsq, lstsq)
