"""Linear systems with matrices of any kind, also such as are known by their products only, solved by iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import numpy as np
import scipy.sparse
from scipy.sparse import linalg

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.reach import arrays_of
from ebbtide.errors import SolutionError
from ebbtide.rules.answers import refusal
from ebbtide.scipy.closure import Closure
from ebbtide.scipy.implicit import VECTORS, LinearSystem, solution, solve_nbytes
from ebbtide.scipy.sparse.arrays import SparseArray
from ebbtide.scipy.sparse.direct import as_right_side, as_sparse
from ebbtide.scipy.sparse.pattern import native, times
from ebbtide.transforms.pullback import vjp

# Vectors of the basis of SciPy's GMRES, if the user does not say how many.
_RESTART = 20


@final
class LinearOperator:
    """
    A matrix that is known by its products with vectors.

    Args:
        shape: Its shape.
        matvec: `matvec(x)` returns the product; what it uses by closure is found, and may be traced.
        dtype: Dtype of the products; None for that of the right-hand side.

    Memory:
        The function, by reference.

    Example:
        >>> from ebbtide import grad
        >>> def f(k):
        ...     A = LinearOperator((2, 2), lambda x: k * x)
        ...     return np.sum(cg(A, np.ones(2))[0])
        >>> grad(f)(2.0)
        np.float64(-0.5)
    """

    __slots__ = ("dtype", "matvec", "shape")

    def __init__(self, shape: tuple[int, int], matvec: Callable[[Any], Any], *, dtype: Any = None) -> None:
        self.shape = shape
        self.matvec = matvec
        self.dtype = None if dtype is None else np.dtype(dtype)


@final
class Iterative(LinearSystem):
    """
    Equations solved by a method that needs products only: operands b, and what the matrix is made from.

    Args:
        product: `product(x, *operands)`, or a closure of it.
        solver: `solver(product, b, *start, operands, is_transposed)` for plain arrays.
        dtype: Dtype of the solution.
        is_symmetric: Whether the matrix is its own transposed one, or the conjugate of that.
        vectors: Arrays of the size of a solution that the method takes.
        is_transposed: Whether the matrix is the transposed one.
    """

    __slots__ = ("_dtype", "_is_symmetric", "_is_transposed", "_product", "_solver", "_vectors")

    def __init__(
        self, product: Any, solver: Callable[..., Any], dtype: Any, is_symmetric: bool, vectors: int,
        is_transposed: bool = False,
    ) -> None:  # fmt: skip
        self._product = product
        self._solver = solver
        self._vectors = vectors
        self._dtype = dtype
        self._is_symmetric = is_symmetric
        self._is_transposed = is_transposed

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `System.held_arrays`; those of a preconditioner are among them."""
        return tuple(arrays_of([self._product, self._solver]))

    @property
    def level(self) -> int:
        """See `System.level`."""
        return self._product.level if isinstance(self._product, Closure) else 0

    @property
    def transposed(self) -> LinearSystem:
        """See `LinearSystem.transposed`."""
        kind = self._dtype, self._is_symmetric, self._vectors
        return Iterative(self._product, self._solver, *kind, not self._is_transposed)

    @contextmanager
    def products(self, operands: Sequence[Any]) -> Iterator[Callable[[Any], Any]]:
        """Give the product with the matrix as a function of x."""
        if isinstance(self._product, Closure):
            with self._product.bound(operands) as functions:
                yield self._turned(functions[0])
        else:
            yield self._turned(lambda x: self._product(x, *operands))

    def _turned(self, product: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if not self._is_transposed:
            return product
        if self._is_symmetric:
            return lambda x: np.conjugate(product(np.conjugate(x)))
        return lambda x: vjp(product, np.zeros(x.shape, x.dtype))[1](x)[0]

    @contextmanager
    def fixed(self, operands: Sequence[Any]) -> Iterator[Callable[[Any], Any]]:
        """Give A x - b."""
        with self.products(operands[1:]) as product:
            yield lambda x: product(x) - operands[0]

    def apply(self, x: Any, *operands: Any) -> Any:
        """Return the product with the matrix."""
        with self.products(operands) as product:
            return product(x)

    def solve(self, start: Sequence[Any], operands: Sequence[Any]) -> Any:
        """Return the solution for plain arrays."""
        b, *rest = operands
        with self.products(rest) as product:
            return self._solver(product, native(b), start, rest, self._is_transposed)

    def infer(self, start: Sequence[ArrayType], operands: Sequence[ArrayType]) -> ArrayType:
        """Return the type of the solution."""
        return ArrayType(operands[0].shape, np.result_type(self._dtype, operands[0].dtype))

    def takes(self, nbytes: int, operands: Sequence[Any], active: Sequence[int]) -> int:
        """See `System.takes`; of products by a function of the user's nobody knows what they take."""
        vectors = max(VECTORS, self._vectors) if isinstance(self._product, Closure) else self._vectors
        return solve_nbytes(vectors, nbytes, operands, active)


def _krylov(method: Callable[..., Any], vectors: int, *, is_symmetric: bool = False) -> Callable[..., Any]:
    """
    Return one of SciPy's iterative methods.

    Args:
        method: The method.
        vectors: Arrays of the size of a solution that it takes, but for those of a basis with as many as `restart=`.
        is_symmetric: Whether it is for symmetric matrices.
    """

    @wraps(method)
    def solve(A: Any, b: Any, x0: Any = None, *, M: Any = None, **options: Any) -> tuple[Any, int]:
        b = np.reshape(as_right_side(b), -1)
        product, operands, dtype = _taken_apart(A, b)
        strict = innermost((b, *operands)) is not None
        infos: list[int] = []

        def solver(product: Any, b: Any, start: Any, rest: Any, is_transposed: bool) -> Any:
            matrix = _plain_matrix(A, rest, is_transposed and not is_symmetric)
            if matrix is None or (is_transposed and is_symmetric):
                matrix = _operator(product, b.size, np.result_type(dtype, b.dtype))
            given = options
            if is_transposed:  # the right-hand side is of another magnitude, and nobody watches
                given = {k: v for k, v in options.items() if k not in ("atol", "callback", "callback_type")}
            preconditioner = _turned(M, b, is_symmetric) if is_transposed else M
            x, info = method(matrix, b, *start, M=preconditioner, **given)
            if info and (strict or is_transposed):
                raise SolutionError(
                    f"{method.__name__}, called at {user_line()}, "
                    + ("was asked for a derivative and " if is_transposed else "")
                    + f"did not converge (info={info}), so that there is no derivative of its result. Give a larger "
                    "maxiter=, a larger rtol=, or a preconditioner M= that has the transposed product too (rmatvec)."
                )
            if not is_transposed:
                infos[:] = [info]
            return x

        basis = (options.get("restart") or _RESTART) if method is linalg.gmres else 0
        system = Iterative(product, solver, dtype, is_symmetric, vectors + min(basis, b.size))
        x = solution(system, (b, *operands), () if x0 is None else (x0,))
        return x, infos[0] if infos else 0

    solve.__doc__ = f"""
    Solve a linear system by an iterative method; see `scipy.sparse.linalg.{method.__name__}`.

    Args:
        A: A square matrix: of SciPy, of `ebbtide.scipy.sparse`, an array, or a `LinearOperator` of this module, whose
            function is differentiated. The entries, and what the function closes over, may be traced.{
                " It is symmetric, or Hermitian." if is_symmetric else ""}
        b: The right-hand side, of shape (n,) or (n, 1).
        x0: Where the iteration begins: of no influence on the solution, and of derivative zero.
        M: A preconditioner, plain. One without a transposed product is left out of the solves of derivatives.
        **options: Those of SciPy. Tolerance rtol and the number of iterations hold for derivatives too, each of which
            solves one more system; atol does not, as cotangents have another magnitude.

    Returns:
        (x, info); x with derivatives with respect to b and to what A is made from.

    Raises:
        SolutionError: A derivative is taken, and a solve does not converge.

    Memory:
        A record keeps what A is made from, and x if that is traced; nothing of the iterations.
    """
    return solve


def _operator(product: Callable[[Any], Any], size: int, dtype: Any) -> Any:
    """Return a matrix of SciPy's with these products."""
    return linalg.LinearOperator(shape=(size, size), matvec=product, dtype=dtype)  # pyright: ignore[reportCallIssue]


def _taken_apart(A: Any, b: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the product with a matrix, what it is made from, and the dtype of a solution."""
    if isinstance(A, LinearOperator):
        closure = Closure((A.matvec,), b, ())
        kind = b.dtype if closure.kind is None else closure.kind.dtype
        return closure, closure.operands, np.result_type(kind if A.dtype is None else A.dtype, np.float32)
    if isinstance(A, linalg.LinearOperator):
        raise refusal(
            "a LinearOperator of SciPy does not show what it is made from. Give "
            "ebbtide.scipy.sparse.linalg.LinearOperator(shape, matvec)."
        )
    if isinstance(A, SparseArray) or scipy.sparse.issparse(A):
        sparse = as_sparse(A)
        pattern = sparse.pattern
        dtype = np.result_type(sparse.dtype, np.float32)
        return lambda x, data: times.bind((data, x), {"pattern": pattern}), (sparse.data,), dtype
    A = as_right_side(A)
    return lambda x, matrix: matrix @ x, (A,), np.result_type(A.dtype, np.float32)


def _plain_matrix(A: Any, rest: Sequence[Any], is_transposed: bool) -> Any:
    """Return the matrix as SciPy takes it, made from plain operands; None if there are products only."""
    if isinstance(A, LinearOperator):
        return None
    matrix = rest[0]
    if isinstance(A, SparseArray) or scipy.sparse.issparse(A):
        matrix = as_sparse(A).pattern.matrix(rest[0])
    return matrix.T if is_transposed else matrix


def _turned(M: Any, b: Any, is_symmetric: bool) -> Any:
    """Return the preconditioner of the transposed system."""
    if M is None or (is_symmetric and b.dtype.kind != "c"):
        return M
    operator = linalg.aslinearoperator(M)
    try:
        operator.rmatvec(b)
    except NotImplementedError:
        return None
    return operator.T


cg = _krylov(linalg.cg, 8, is_symmetric=True)
gmres = _krylov(linalg.gmres, 10)
bicgstab = _krylov(linalg.bicgstab, 12)
