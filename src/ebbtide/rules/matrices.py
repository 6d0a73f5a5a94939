"""
How operations on matrices are declared: on stacks of them, so that all members of a batch are done at once.

An operation with several results, such as a decomposition, is one primitive whose output has them packed one behind the
other; what the user gets are views of it. So the operation is done once, saves the output once, and tapes, tangents,
batches and programs see one array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, needs_of


def transposed(a: Any) -> Any:
    """Return matrices with rows and columns exchanged."""
    return np.swapaxes(a, -1, -2)


def conjugated(a: Any) -> Any:
    """Return the complex conjugate; a real array as it is."""
    return np.conjugate(a) if is_complex(a) else a


def adjoint(a: Any) -> Any:
    """Return the conjugate transpose."""
    return conjugated(transposed(a))


def real_of(dtype: Any) -> Any:
    """Return the dtype of the real part."""
    return np.finfo(dtype).dtype


def is_complex(a: Any) -> bool:
    """Return whether an array is of complex numbers."""
    return type_of(a).dtype.kind == "c"


def columns(s: Any) -> Any:
    """Return numbers as what multiplies the columns of a matrix."""
    return np.expand_dims(s, -2)


def diagonal_of(a: Any) -> Any:
    """Return the diagonals of matrices."""
    return np.diagonal(a, 0, -2, -1)


def on_diagonal(d: Any) -> Any:
    """Return diagonal matrices."""
    return np.expand_dims(d, -1) * np.eye(d.shape[-1], dtype=real_of(type_of(d).dtype))


def half_triangle(n: int, upper: bool, dtype: Any) -> Any:
    """Return ones in one triangle and one half on the diagonal: what a matrix that is stored there is made with."""
    # In the memory of one array, which is all that is known of it before the rule runs: it took three for a moment, and
    # gradients of Cholesky factors one more than their budget.
    made = np.tri(n, dtype=real_of(dtype))
    np.fill_diagonal(made, 0.5)
    return made.T if upper else made


def completed(a: Any, upper: bool) -> Any:
    """Return the symmetric or Hermitian matrix of which one triangle is in *a*; what else is in *a* is not read."""
    half = a * half_triangle(a.shape[-1], upper, type_of(a).dtype)
    return half + adjoint(half)


def folded(g: Any, upper: bool) -> Any:
    """Return the transpose of `completed`: what is above and below the diagonal is one number, stored once."""
    return (g + adjoint(g)) * half_triangle(g.shape[-1], upper, type_of(g).dtype)


def inverse_or_zero(x: Any) -> Any:
    """Return 1 / x, and 0 where x is 0."""
    at_zero = np.equal(x, 0)
    return np.where(at_zero, 0, 1 / np.where(at_zero, 1, x))


def over_gaps(m: Any, w: Any) -> Any:
    """
    Return m[i, j] / (w[j] - w[i]), and 0 on the diagonal: how fast eigenvectors turn.

    Where two eigenvalues are equal, any turn of their vectors is as good as another one, so that it is nan unless
    m[i, j] is 0: then nothing asks for it, or nothing turns them.
    """
    gaps = np.expand_dims(w, -2) - np.expand_dims(w, -1)
    tie = np.equal(gaps, 0)
    asked = np.logical_and(np.not_equal(m, 0), np.logical_not(np.eye(m.shape[-1], dtype=bool)))
    return np.where(np.logical_and(tie, asked), np.nan, np.where(tie, 0, m / np.where(tie, 1, gaps)))


def in_c_order(result: Any) -> Any:
    """Return an array in C order, and what is no array as it is."""
    return np.asarray(result, order="C") if type(result) is np.ndarray else result


def native(x: Any) -> Any:
    """Return an array in the byte order of the machine, as which SciPy reads it in any case."""
    is_other = type(x) is np.ndarray and not x.dtype.isnative
    return x.astype(x.dtype.newbyteorder("=")) if is_other else x


@final
class OnStacks:
    """
    A function of arrays with its results in C order, as LAPACK's may be in Fortran's, and sums go along memory.

    On a stack without matrices, which SciPy refuses, it gives one without results.

    Args:
        function: `function(*operands, **params)` returns an array.
        infer: `infer(*types, **params)` returns the type of the result.
    """

    __slots__ = ("function", "infer")

    def __init__(self, function: Callable[..., Any], infer: Callable[..., ArrayType]) -> None:
        self.function = function
        self.infer = infer

    def __call__(self, *operands: Any, **params: Any) -> Any:
        """Return the result."""
        if 0 in [n for operand in operands for n in operand.shape[:-2]]:
            kind = self.infer(*[type_of(operand) for operand in operands], **params)
            return np.zeros(kind.shape, kind.dtype)
        return in_c_order(self.function(*[native(operand) for operand in operands], **params))


def on_stacks(function: Callable[..., Any], infer: Callable[..., ArrayType]) -> Callable[..., Any]:
    """Return a function of arrays on any stacks, in C order. NumPy's are so, and a program's source can name them."""
    return function if getattr(function, "__module__", "") == "numpy.linalg" else OnStacks(function, infer)


def matrix_function(
    function: Callable[..., Any],
    vjp: Callable[..., Any],
    jvp: Callable[..., Any],
    *,
    infer: Callable[..., ArrayType],
    name: str,
    scratch: Callable[..., float] | None = None,
    on_members: bool = False,
) -> Primitive:
    """
    Declare an operation on (stacks of) matrices with one result.

    Args:
        function: `function(x, **params)`.
        vjp: `vjp(g, params, *saved)`: cotangent of the operand; the names of the parameters behind `params` say what is
            saved, `x` or `out`.
        jvp: `jvp(t, params, *saved)`: tangent of the output, with such names.
        infer: `infer(type, **params)`: type of the output.
        name: Name in messages.
        scratch: See `Primitive`.
        on_members: Whether the function takes one matrix, so that a batch does it for one member after the other.

    Returns:
        The primitive.
    """

    def rule(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
        return matched(vjp(g, params or {}, *saved), kind)

    pull = Pull(rule, needs_of(vjp, 2), FRESH, temporaries=3)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        known = {"x": values[0], "out": out}
        return matched(jvp(tangents[0], params or {}, *[known[n] for n in needs_of(jvp, 2)]), type_of(out))

    primitive = Primitive(
        on_stacks(function, infer), name=name, operands=("x",), pull=lambda k: pull, push=push, infer=infer,
        batch=None if on_members else lambda values, mapped, params, size: primitive.bind(values, params),
        scratch=scratch,
    )  # fmt: skip
    return primitive


def pack(parts: Sequence[Any], dtype: Any, leading: int = 0) -> Any:
    """Return arrays one behind the other as one, of whose elements each has *leading* axes in front."""
    flat = [np.reshape(part, (*part.shape[:leading], prod(part.shape[leading:]))) for part in parts]
    return np.concatenate([x if x.dtype == dtype else np.astype(x, dtype) for x in flat], axis=-1)


def unpack(packed: Any, kinds: Sequence[ArrayType]) -> list[Any]:
    """Return the arrays of these types that are one behind the other, as views where the dtype is the same."""
    parts, start = [], 0
    for kind in kinds:
        part = np.reshape(packed[start : start + kind.size], kind.shape)
        parts.append(part if kind.dtype == packed.dtype else np.copy(np.real(part)))
        start += kind.size
    return parts


def decomposition(
    function: Callable[..., Any],
    vjp: Callable[..., Any] | tuple[Callable[..., Any], ...],
    jvp: Callable[..., Any],
    *,
    kinds: Callable[..., list[ArrayType]],
    name: str,
    operands: tuple[str, ...] = ("x",),
) -> Callable[..., list[Any]]:
    """
    Declare an operation on stacks of matrices with several results.

    Args:
        function: `function(*operands, **params)` returns the results.
        vjp: For each operand `vjp(cotangents, params, *saved)`, or one function for the only one; `cotangents` has one
            for each result. The names of the parameters behind `params` say what is saved, operands or `out`, which is
            given as the list of results.
        jvp: `jvp(tangents, params, *saved)` returns the tangents of the results; *tangents* has one for each operand.
        kinds: `kinds(*types, **params)`: types of the results.
        name: Name in messages.
        operands: Names of the operands.

    Returns:
        `call(*operands, **params)`, which returns the results.

    Memory:
        The results are views of one array, which lives as long as one of them.
    """
    rules = vjp if isinstance(vjp, tuple) else (vjp,)

    def computed(*values: Any, parts: tuple[ArrayType, ...], **params: Any) -> Any:
        return pack(function(*values, **params), np.result_type(*[part.dtype for part in parts]))

    def infer(*types: ArrayType, parts: tuple[ArrayType, ...], **params: Any) -> ArrayType:
        return ArrayType((sum(part.size for part in parts),), np.result_type(*[part.dtype for part in parts]))

    def pull(k: int) -> Pull:
        needs = needs_of(rules[k], 2)

        def rule(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
            parts = params["parts"]
            given = [unpack(x, parts) if n == "out" else x for n, x in zip(needs, saved, strict=True)]
            return matched(rules[k](unpack(g, parts), params, *given), kind)

        return Pull(rule, needs, FRESH, temporaries=4)

    pulls = tuple([pull(k) for k in range(len(operands))])

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        known = dict(zip(operands, values, strict=True), out=unpack(out, params["parts"]))
        given = [zeros_like(v) if t is None else t for t, v in zip(tangents, values, strict=True)]
        return pack(jvp(given, params, *[known[n] for n in needs_of(jvp, 2)]), type_of(out).dtype)

    def batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
        parts = tuple([ArrayType((size, *part.shape), part.dtype) for part in params["parts"]])
        packed = primitive.bind(all_full(values, mapped, size), {**params, "parts": parts})
        return pack(unpack(packed, parts), type_of(packed).dtype, 1)

    primitive = Primitive(
        OnStacks(computed, infer), name=name, operands=operands, pull=pulls.__getitem__, push=push, infer=infer,
        batch=batch,
    )  # fmt: skip

    def call(*values: Any, **params: Any) -> list[Any]:
        parts = tuple(kinds(*[type_of(value) for value in values], **params))
        return unpack(primitive.bind(values, {**params, "parts": parts}), parts)

    return call
