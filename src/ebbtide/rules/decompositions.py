"""
Rules of decompositions: Cholesky, eigenvalues, singular values, QR.

With `M` for the change of a matrix in the basis of its factors, each factor changes by itself times something
anti-Hermitian, with the quotients of `M` and the gaps between eigenvalues as elements. Written below for the inner
product `Re tr(G^H dX)`, in which the cotangent of a factor is conjugated first, and the result afterwards.

What a decomposition leaves open, the phase of complex vectors, does not change, so functions that do not depend on it
have the right derivative. How fast the vectors of equal eigenvalues turn is open, too, and nan where it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.primitive import Primitive
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.matrices import (
    adjoint,
    columns,
    completed,
    conjugated,
    decomposition,
    diagonal_of,
    folded,
    half_triangle,
    is_complex,
    matrix_function,
    on_diagonal,
    over_gaps,
    real_of,
)
from ebbtide.rules.products import product

Call = Callable[..., list[Any]]


# Cholesky: of a = L L^H one triangle is read.


def cholesky_of(function: Callable[..., Any], name: str, *, clean: bool = True) -> Primitive:
    """
    Declare the Cholesky factor with `upper` as the parameter; it saves its output.

    Args:
        function: `function(x, upper=)`.
        name: Name in messages.
        clean: Whether the other triangle of the result is zero.
    """

    def lower(factor: Any, upper: bool) -> Any:
        factor = factor if clean else (np.triu(factor) if upper else np.tril(factor))
        return adjoint(factor) if upper else factor

    def vjp(g: Any, params: Any, out: Any) -> Any:
        upper = params["upper"]
        g, factor = conjugated(g), lower(out, upper)
        g = adjoint(g) if upper else g
        inner = product(adjoint(factor), g) * half_triangle(g.shape[-1], False, type_of(g).dtype)
        back = np.linalg.solve(adjoint(factor), inner)
        whole = adjoint(np.linalg.solve(adjoint(factor), adjoint(back)))
        return conjugated(folded(whole, upper))

    def jvp(t: Any, params: Any, out: Any) -> Any:
        upper = params["upper"]
        factor, t = lower(out, upper), completed(t, upper)
        inner = np.linalg.solve(factor, adjoint(np.linalg.solve(factor, t)))
        change = product(factor, inner * half_triangle(t.shape[-1], False, type_of(t).dtype))
        return adjoint(change) if upper else change

    return matrix_function(function, vjp, jvp, infer=lambda kind, **params: kind, name=name)


_cholesky = cholesky_of(np.linalg.cholesky, "cholesky")
answer(np.linalg.cholesky, lambda a, /, *, upper=False: _cholesky.bind((a,), {"upper": bool(upper)}))


# Eigenvalues of symmetric and Hermitian matrices, of which one triangle is read.


def _eigh_vjp(gs: Any, params: Any, out: Any) -> Any:
    (g_w, g_v), (w, v) = gs, out
    inner = over_gaps(product(adjoint(v), conjugated(g_v)), w) + on_diagonal(g_w)
    return conjugated(folded(product(product(v, inner), adjoint(v)), params["upper"]))


def _eigh_tangents(ts: Any, params: Any, out: Any) -> Any:
    w, v = out
    inner = product(product(adjoint(v), completed(ts[0], params["upper"])), v)
    return [np.real(diagonal_of(inner)), product(v, over_gaps(inner, w))]


def _eigh_types(kind: ArrayType, **params: Any) -> list[ArrayType]:
    return [ArrayType(kind.shape[:-1], real_of(kind.dtype)), kind]


def eigh_of(function: Callable[..., Any], name: str) -> Call:
    """Declare eigenvalues and eigenvectors with `upper` as a parameter; it saves its output."""
    return decomposition(function, _eigh_vjp, _eigh_tangents, kinds=_eigh_types, name=name)


def _letter(upper: bool) -> Any:
    return "U" if upper else "L"


_eigh = eigh_of(lambda a, upper: np.linalg.eigh(a, _letter(upper)), "eigh")


def is_upper(UPLO: str) -> bool:
    """Return which triangle is meant."""
    letter = UPLO.upper()
    if letter not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return letter == "U"


_EighResult: Any = type(np.linalg.eigh(np.eye(1)))


def eigh(a: Any, UPLO: str = "L") -> Any:
    """
    Return eigenvalues and eigenvectors of symmetric or Hermitian matrices, of which one triangle is read.

    Memory:
        A record saves the results.
    """
    return _EighResult(*_eigh(a, upper=is_upper(UPLO)))


answer(np.linalg.eigh, eigh)


def eigvalsh_of(function: Callable[..., Any], name: str) -> Primitive:
    """Declare eigenvalues alone with `upper` as a parameter; it saves the matrix, and computes the vectors again."""

    def vjp(g: Any, params: Any, x: Any) -> Any:
        v = _eigh(x, upper=params["upper"])[1]
        return conjugated(folded(product(v * columns(g), adjoint(v)), params["upper"]))

    def jvp(t: Any, params: Any, x: Any) -> Any:
        v = _eigh(x, upper=params["upper"])[1]
        return np.real(np.sum(conjugated(v) * product(completed(t, params["upper"]), v), axis=-2))

    return matrix_function(
        function, vjp, jvp, infer=lambda kind, **params: ArrayType(kind.shape[:-1], real_of(kind.dtype)), name=name
    )


_eigvalsh = eigvalsh_of(lambda a, upper: np.linalg.eigvalsh(a, _letter(upper)), "eigvalsh")
answer(np.linalg.eigvalsh, lambda a, UPLO="L": _eigvalsh.bind((a,), {"upper": is_upper(UPLO)}))


# Eigenvalues of any matrix, as complex numbers: whether those of a real one are real is seen from their values.


def _complex(dtype: Any) -> Any:
    return np.result_type(dtype, np.complex64)


def _eig_inner_vjp(g_w: Any, g_v: Any, w: Any, v: Any) -> Any:
    """Return the cotangent of the matrix in the basis of its vectors, which stay of length 1."""
    of_v = product(adjoint(v), g_v)
    lengths = columns(np.real(diagonal_of(of_v)))
    return over_gaps(of_v - product(adjoint(v), v) * lengths, conjugated(w)) + on_diagonal(g_w)


def _eig_vjp(gs: Any, params: Any, out: Any) -> Any:
    w, v = out
    inner = _eig_inner_vjp(conjugated(gs[0]), conjugated(gs[1]), w, v)
    return conjugated(np.linalg.solve(adjoint(v), product(inner, adjoint(v))))


def _eig_tangents(ts: Any, params: Any, out: Any) -> Any:
    w, v = out
    inner = np.linalg.solve(v, product(ts[0], v))
    turned = over_gaps(inner, w)
    lengths = np.real(np.sum(conjugated(v) * product(v, turned), axis=-2))
    return [diagonal_of(inner), product(v, turned) - v * columns(lengths)]


def _eig_types(kind: ArrayType) -> list[ArrayType]:
    return [ArrayType(kind.shape[:-1], _complex(kind.dtype)), ArrayType(kind.shape, _complex(kind.dtype))]


def eig_of(function: Callable[..., Any], name: str) -> Call:
    """Declare eigenvalues and eigenvectors, as complex numbers; it saves its output."""
    return decomposition(function, _eig_vjp, _eig_tangents, kinds=_eig_types, name=name)


_eig = eig_of(np.linalg.eig, "eig")


def as_numpy(a: Any, w: Any, *others: Any) -> tuple[Any, ...]:
    """Return eigenvalues of a, and their vectors, as real numbers where NumPy gives these."""
    if is_complex(a):
        return (w, *others)
    values = bottom(w.present()) if type(w) is TracedArray else w
    if type(values) is ArrayType:
        raise refusal(
            "eigenvalues of a real matrix are real or complex numbers, which cannot be known without its values: jit "
            "traces it, or it is another one for each member of vmap. Take those of np.astype(a, complex), which are "
            "complex."
        )
    return (w, *others) if np.any(values.imag) else tuple([np.real(one) for one in (w, *others)])


_EigResult: Any = type(np.linalg.eig(np.eye(1)))


def eig(a: Any) -> Any:
    """
    Return eigenvalues and eigenvectors, of length 1, of any square matrices.

    Memory:
        A record saves the results.
    """
    return _EigResult(*as_numpy(a, *_eig(a)))


answer(np.linalg.eig, eig)


def _eigvals_vjp(g: Any, params: Any, x: Any) -> Any:
    # LAPACK finds the eigenvalues in the same order, whether it is asked for vectors or not.
    v = adjoint(_eig(x)[1])
    return conjugated(np.linalg.solve(v, np.expand_dims(conjugated(g), -1) * v))


def _eigvals_jvp(t: Any, params: Any, x: Any) -> Any:
    v = _eig(x)[1]
    return diagonal_of(np.linalg.solve(v, product(t, v)))


def eigvals_of(function: Callable[..., Any], name: str) -> Primitive:
    """Declare eigenvalues alone, as complex numbers; it saves the matrix, and computes the vectors again."""
    return matrix_function(
        lambda a: function(a).astype(_complex(a.dtype)), _eigvals_vjp, _eigvals_jvp,
        infer=lambda kind: _eig_types(kind)[0], name=name,
    )  # fmt: skip


_eigvals = eigvals_of(np.linalg.eigvals, "eigvals")
answer(np.linalg.eigvals, lambda a: as_numpy(a, _eigvals.bind((a,)))[0])
