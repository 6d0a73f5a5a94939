"""Functions of matrices of `scipy.linalg` (exponential, logarithm, roots) and equations of Sylvester and Lyapunov."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import all_full
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.rules.linalg import solved_dtype
from ebbtide.rules.matrices import OnStacks, adjoint, conjugated, matrix_function, transposed
from ebbtide.rules.products import product
from ebbtide.scipy.linalg.order import answers_for


def _along(function: Callable[[Any], Any], x: Any, t: Any) -> Any:
    """
    Return the derivative of a function of a matrix along t: a block of the function of a matrix of twice the size.

    Source: R. Mathias, "A chain rule for matrix functions and applications", SIAM J. Matrix Anal. Appl. 17 (1996).
    """
    n = x.shape[-1]
    lower = np.concatenate([np.zeros(x.shape, type_of(x).dtype), x], axis=-1)
    return function(np.concatenate([np.concatenate([x, t], axis=-1), lower], axis=-2))[..., :n, n:]


def _is_abstract(a: Any) -> bool:
    return type(a) is TracedArray and type(bottom(a.present())) is ArrayType


def _checked(name: str, original: Callable[..., Any], infer: Callable[..., ArrayType]) -> Callable[..., Any]:
    """Return SciPy's function of matrices; *known* says whether it was traced with values, which tell the dtype."""

    def computed(a: Any, known: bool, **params: Any) -> Any:
        out = original(a, **params)
        if known:
            return out
        if out.dtype.kind == "c" and a.dtype.kind != "c":
            raise np.linalg.LinAlgError(
                f"scipy.linalg.{name} of a real matrix is complex here, which was not known when it was traced without "
                "values. Write it of np.astype(a, complex)."
            )
        # That of a singular matrix may be narrower than what the program was planned for.
        return out.astype(infer(type_of(a), **params).dtype, copy=False)

    return computed


def _single(**params: Any) -> Any:
    return np.float32


def _double(**params: Any) -> Any:
    return np.float64


def _of_power(t: float, **params: Any) -> Any:
    """Return the least dtype of a power: whole ones are products, or inverses, and others need logarithms."""
    if not t.is_integer():
        return np.float64
    return np.bool_ if t >= 0 else np.float32


def _beside(kind: ArrayType, each: int, all_of_them: int) -> float:
    """Return the bytes of so many matrices, and of so many stacks of them."""
    return kind.nbytes * (all_of_them + each / max(prod(kind.shape[:-2]), 1))


def _function(
    name: str,
    original: Callable[..., Any],
    call: Callable[..., Any],
    takes: tuple[int, int, int],
    least: Callable[..., Any] = _single,
) -> Primitive:
    """
    Declare a function of matrices that is given by a power series; it saves the matrix.

    Args:
        name: SciPy's name.
        original: SciPy's function.
        call: `call(x, **params)` does it on arrays of any trace.
        takes: How many matrices SciPy's function has for a moment beside its result, of real numbers and of complex
            ones, and how many stacks.
        least: `least(**params)` returns the dtype that the result has at least.
    """

    def infer(kind: ArrayType, **params: Any) -> ArrayType:
        return ArrayType(kind.shape, np.result_type(kind.dtype, least(**params)))

    def scratch(params: dict[str, Any], kind: ArrayType) -> float:
        out = infer(kind, **params)
        if params.get("t", 0.5).is_integer():
            return _beside(out, 0, 3)  # products, and inverses
        return _beside(out, takes[out.dtype.kind == "c"], takes[2])

    return matrix_function(
        _checked(name, original, infer),
        lambda g, params, x: _along(partial(call, **_own(params)), transposed(x), g),
        lambda t, params, x: _along(partial(call, **_own(params)), x, t),
        infer=infer,
        name=name,
        scratch=scratch,
    )


def _own(params: Any) -> dict[str, Any]:
    """Return the parameters of SciPy's function."""
    return {name: value for name, value in params.items() if name != "known"}


def _of(primitive: Primitive, a: Any, **params: Any) -> Any:
    return primitive.bind((a,), {"known": not _is_abstract(a), **params})


_expm = _function("expm", linalg.expm, lambda x: _of(_expm, x), (9, 9, 0))
_logm = _function("logm", linalg.logm, lambda x: _of(_logm, x), (16, 9, 2), _double)
_cosm = _function("cosm", linalg.cosm, lambda x: _of(_cosm, x), (18, 10, 1))
_sinm = _function("sinm", linalg.sinm, lambda x: _of(_sinm, x), (18, 10, 1))
_coshm = _function("coshm", linalg.coshm, lambda x: _of(_coshm, x), (10, 10, 1))
_sinhm = _function("sinhm", linalg.sinhm, lambda x: _of(_sinhm, x), (10, 10, 1))
_tanm = _function("tanm", linalg.tanm, lambda x: _of(_tanm, x), (20, 11, 1))
_tanhm = _function("tanhm", linalg.tanhm, lambda x: _of(_tanhm, x), (11, 11, 1))
_power = _function(
    "fractional_matrix_power", linalg.fractional_matrix_power,
    lambda x, t: _of(_power, x, t=t), (18, 10, 1), _of_power,
)  # fmt: skip


@answers_for(linalg.expm)
def expm(A: Any) -> Any:
    """
    Return the exponential of matrices, as `scipy.linalg.expm`.

    Args:
        A: Square matrices, (..., n, n).

    Returns:
        An array of the shape of A.

    Memory:
        A record saves A; its pull computes the exponential of matrices of twice the size.
    """
    return _of(_expm, A)


@answers_for(linalg.logm)
def logm(A: Any) -> Any:
    """
    Return the logarithm of matrices, as `scipy.linalg.logm`; see `expm`.

    The logarithm of a real matrix may be complex; in a program it has to be real.
    """
    return _of(_logm, A)


def _of_series(primitive: Primitive, what: str) -> Callable[[Any], Any]:
    """Return the function of matrices that a primitive is, by SciPy's name."""
    original = getattr(linalg, primitive.name)

    def function(A: Any) -> Any:
        return _of(primitive, A)

    function.__name__ = function.__qualname__ = primitive.name
    function.__doc__ = f"Return the {what} of matrices, as `scipy.linalg.{primitive.name}`; see `expm`."
    return answers_for(original)(function)


cosm = _of_series(_cosm, "cosine")
sinm = _of_series(_sinm, "sine")
coshm = _of_series(_coshm, "hyperbolic cosine")
sinhm = _of_series(_sinhm, "hyperbolic sine")
tanm = _of_series(_tanm, "tangent")
tanhm = _of_series(_tanhm, "hyperbolic tangent")


@answers_for(linalg.fractional_matrix_power)
def fractional_matrix_power(A: Any, t: float) -> Any:
    """Return a power of matrices, as `scipy.linalg.fractional_matrix_power`; t is a number. See `expm` and `logm`."""
    return _of(_power, A, t=float(t))


# ------------------------------------------------------------------------------------------------
# Equations that are linear in a matrix x; their coefficients turn with -y x^T, where y solves the transposed equation


def _pulls(*rules: tuple[Callable[..., Any], tuple[str, ...]]) -> Any:
    """Return the pulls of the operands, from `rule(g, params, *saved)` and what each saves."""

    def made(rule: Any, needs: tuple[str, ...]) -> Pull:
        return Pull(lambda g, kind, params, *saved: matched(rule(g, params or {}, *saved), kind), needs, FRESH)

    return tuple([made(rule, needs) for rule, needs in rules]).__getitem__


def _equation(
    function: Callable[..., Any], name: str, operands: tuple[str, ...], pull: Any, push: Any, least: Any = np.float32,
    scratch: Callable[..., float] | None = None,
) -> Primitive:  # fmt: skip
    """
    Declare the solution of an equation.

    Args:
        function: `function(*operands, **params)`.
        name: Name in messages.
        operands: Their names; the last is the right-hand side, which has the shape of the solution.
        pull: From `_pulls`.
        push: `push(tangents, values, out, params)`; the tangents are arrays.
        least: The dtype that the result has at least.
        scratch: See `Primitive`.
    """

    def tangent(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        given = [np.zeros(x.shape, x.dtype) if t is None else t for t, x in zip(tangents, values, strict=True)]
        return promoted([push(given, values, out, params or {})], out)

    def infer(*kinds: ArrayType, **params: Any) -> ArrayType:
        return ArrayType(kinds[-1].shape, np.result_type(solved_dtype(*kinds), least))

    primitive = Primitive(
        OnStacks(function, infer), name=name, operands=operands, pull=pull, push=tangent, infer=infer,
        scratch=scratch,
        batch=lambda values, mapped, params, size: primitive.bind(all_full(values, mapped, size), params),
    )  # fmt: skip
    return primitive


def _declare_sylvester(scratch: Callable[..., float] | None = None) -> Primitive:
    """Declare the solution x of a x + x b = q."""

    def back(g: Any, a: Any, b: Any) -> Any:
        return primitive.bind((transposed(a), transposed(b), g))

    primitive = _equation(
        linalg.solve_sylvester,
        "solve_sylvester",
        ("a", "b", "q"),
        _pulls(
            (lambda g, params, a, b, out: -product(back(g, a, b), transposed(out)), ("a", "b", "out")),
            (lambda g, params, a, b, out: -product(transposed(out), back(g, a, b)), ("a", "b", "out")),
            (lambda g, params, a, b: back(g, a, b), ("a", "b")),
        ),
        lambda ts, values, out, params: primitive.bind(
            (values[0], values[1], ts[2] - product(ts[0], out) - product(out, ts[1]))
        ),
        scratch=scratch,
    )
    return primitive


_sylvester = _declare_sylvester()
# What the solution of an equation takes, so does its derivative; but a root takes nothing, and its derivative does.
_sylvester_of_root = _declare_sylvester(lambda params, a, b, q: _beside(q, 8, 1))


@answers_for(linalg.solve_sylvester)
def solve_sylvester(a: Any, b: Any, q: Any) -> Any:
    """
    Return x with a x + x b = q, as `scipy.linalg.solve_sylvester`.

    Args:
        a: Matrices, (..., m, m).
        b: Matrices, (..., n, n).
        q: Matrices, (..., m, n).

    Returns:
        An array of the shape of q.

    Memory:
        A record saves a, b and the result.
    """
    return _sylvester.bind((as_operand(a), as_operand(b), as_operand(q)))


def _continuous_back(g: Any, params: Any, a: Any) -> Any:
    return _continuous.bind((transposed(a), g))


def _continuous_of_a(g: Any, params: Any, a: Any, out: Any) -> Any:
    y = _continuous_back(g, params, a)
    return -product(y, transposed(out)) - conjugated(product(transposed(y), out))


_continuous = _equation(
    linalg.solve_continuous_lyapunov,
    "solve_continuous_lyapunov",
    ("a", "q"),
    _pulls((_continuous_of_a, ("a", "out")), (_continuous_back, ("a",))),
    lambda ts, values, out, params: _continuous.bind(
        (values[0], ts[1] - product(ts[0], out) - product(out, adjoint(ts[0])))
    ),
)


@answers_for(linalg.solve_continuous_lyapunov)
def solve_continuous_lyapunov(a: Any, q: Any) -> Any:
    """
    Return x with a x + x a^H = q, as `scipy.linalg.solve_continuous_lyapunov`.

    Args:
        a: Matrices, (..., n, n).
        q: Matrices of this shape.

    Returns:
        An array of this shape.

    Memory:
        A record saves a and the result.
    """
    return _continuous.bind((as_operand(a), as_operand(q)))


def _discrete_back(g: Any, params: Any, a: Any) -> Any:
    return _discrete.bind((transposed(a), g), params)


def _discrete_of_a(g: Any, params: Any, a: Any, out: Any) -> Any:
    y = _discrete_back(g, params, a)
    first = product(product(y, conjugated(a)), transposed(out))
    return first + conjugated(product(product(transposed(y), a), out))


def _discrete_push(ts: Any, values: Any, out: Any, params: Any) -> Any:
    change = product(product(ts[0], out), adjoint(values[0]))
    other = product(product(values[0], out), adjoint(ts[0]))
    return _discrete.bind((values[0], ts[1] + change + other), params)


_discrete = _equation(
    linalg.solve_discrete_lyapunov,
    "solve_discrete_lyapunov",
    ("a", "q"),
    _pulls((_discrete_of_a, ("a", "out")), (_discrete_back, ("a",))),
    _discrete_push,
    np.float64,
)


@answers_for(linalg.solve_discrete_lyapunov)
def solve_discrete_lyapunov(a: Any, q: Any, method: str | None = None) -> Any:
    """
    Return x with a x a^H - x + q = 0, as `scipy.linalg.solve_discrete_lyapunov`.

    Args:
        a: Matrices, (..., n, n).
        q: Matrices of this shape.
        method: "direct" or "bilinear".

    Returns:
        An array of this shape.

    Memory:
        A record saves a and the result.
    """
    return _discrete.bind((as_operand(a), as_operand(q)), {"method": method})


def _same_type(kind: ArrayType, **params: Any) -> ArrayType:
    return kind


_sqrtm = matrix_function(
    _checked("sqrtm", linalg.sqrtm, _same_type),
    lambda g, params, out: _sylvester_of_root.bind((transposed(out), transposed(out), g)),
    lambda t, params, out: _sylvester_of_root.bind((out, out, t)),
    infer=_same_type,
    name="sqrtm",
)


@answers_for(linalg.sqrtm)
def sqrtm(A: Any) -> Any:
    """
    Return the square root of matrices, as `scipy.linalg.sqrtm`.

    The root of a real matrix may be complex; in a program it has to be real.

    Args:
        A: Square matrices, (..., n, n), without eigenvalues on the negative axis and not singular.

    Returns:
        An array of the shape of A.

    Memory:
        A record saves the result.
    """
    return _of(_sqrtm, A)
