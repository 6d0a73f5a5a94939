"""Linear systems with sparse matrices that are solved by elimination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, final

import numpy as np
import scipy.sparse
from scipy.sparse import linalg

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import as_operand
from ebbtide.rules.answers import refusal
from ebbtide.scipy.closure import detached
from ebbtide.scipy.implicit import LinearSystem, solution
from ebbtide.scipy.sparse.arrays import SparseArray, csc_array, csr_array
from ebbtide.scipy.sparse.pattern import Pattern, native, times
from ebbtide.tape.forms import form_of

# Arrays of the size of a solution: the solution, and a copy of the right-hand side in another dtype; and more where the
# cotangent of the entries is asked for, of which there are three beside their rows and columns.
_VECTORS, _VECTORS_OF_ENTRIES = 2, 5
_OVERHEAD = 64 << 10


def as_right_side(b: Any) -> Any:
    """Return a right-hand side as an array."""
    if isinstance(b, SparseArray) or scipy.sparse.issparse(b):
        raise refusal("a sparse right-hand side has no derivative rule: give b.toarray().")
    return as_operand(b)


def as_sparse(A: Any) -> SparseArray:
    """Return a matrix as one of these, in the format that SciPy solves with: its own, or csc."""
    if isinstance(A, SparseArray):
        return A
    return csr_array(A) if getattr(A, "format", "") == "csr" else csc_array(A)


def _solution_type(operands: Sequence[ArrayType]) -> ArrayType:
    """Return the type of what solves a system, whose first operand is the right-hand side."""
    dtype = np.result_type(*[kind.dtype for kind in operands], np.float32)
    return ArrayType(operands[0].shape, dtype)


@final
class Direct(LinearSystem):
    """
    Equations with a sparse matrix, solved by elimination: operands b and the entries.

    Args:
        pattern: Places of the entries.
        solver: `solver(matrix, b, trans)` returns the solution for a plain matrix, or its transposed one with "T".
        is_transposed: Whether the matrix is the transposed one.
    """

    __slots__ = ("_is_transposed", "_pattern", "_solver")

    is_known = True

    def __init__(self, pattern: Pattern, solver: Callable[..., Any], is_transposed: bool = False) -> None:
        self._pattern = pattern
        self._solver = solver
        self._is_transposed = is_transposed

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `System.held_arrays`."""
        return self._pattern.held_arrays

    @property
    def level(self) -> int:
        """Zero: it has no functions of the user's."""
        return 0

    @property
    def transposed(self) -> LinearSystem:
        """See `LinearSystem.transposed`."""
        return Direct(self._pattern, self._solver, not self._is_transposed)

    def apply(self, x: Any, *operands: Any) -> Any:
        """Return the product with the matrix."""
        pattern = self._pattern.transposed if self._is_transposed else self._pattern
        return times.bind((operands[0], x), {"pattern": pattern})

    def solve(self, start: Sequence[Any], operands: Sequence[Any]) -> Any:
        """Return the solution for plain arrays."""
        b, data = operands
        return self._solver(self._pattern, data, native(b), "T" if self._is_transposed else "N")

    def infer(self, start: Sequence[ArrayType], operands: Sequence[ArrayType]) -> ArrayType:
        """Return the type of the solution."""
        return _solution_type(operands)

    def takes(self, nbytes: int, operands: Sequence[Any], active: Sequence[int]) -> int:
        """Return the bytes of a solution; of the entries, if these are asked for, beside what a product takes."""
        data, pattern = operands[1], self._pattern
        solved = _VECTORS * nbytes + _OVERHEAD + pattern.copied_nbytes(data)
        if tuple(active) == (0,):
            return solved
        entries = form_of(data).nbytes  # with those of tangents, or of all members
        indices = entries // data.itemsize * pattern.index_nbytes
        return solved + _VECTORS_OF_ENTRIES * nbytes + 3 * entries + 2 * indices


@wraps(linalg.spsolve)
def spsolve(A: Any, b: Any, permc_spec: str | None = None, use_umfpack: bool = True) -> Any:
    """
    Solve a linear system with a sparse matrix by elimination.

    Args:
        A: A square matrix, of SciPy or of `ebbtide.scipy.sparse`, whose entries may be traced.
        b: The right-hand side, of shape (n,) or (n, k).
        permc_spec: See `scipy.sparse.linalg.spsolve`.
        use_umfpack: See there.

    Returns:
        The solution, with derivatives with respect to b and to the entries of A.

    Memory:
        A record keeps the entries of A, and x if they are traced. Each derivative eliminates anew: with the same matrix
        several times use `splu`, which keeps its factors.

    Example:
        >>> from ebbtide import grad
        >>> A = csc_array(np.array([[2.0, 0.0], [0.0, 4.0]]))
        >>> grad(lambda b: np.sum(spsolve(A, b)))(np.ones(2))
        array([0.5 , 0.25])
    """

    def solver(pattern: Pattern, data: Any, b: Any, trans: str) -> Any:
        matrix = (pattern.transposed if trans == "T" else pattern).eliminated(data, ("csc", "csr"))
        return linalg.spsolve(matrix, b, permc_spec, use_umfpack)

    A, b = as_sparse(A), as_right_side(b)
    if b.ndim == 2 and b.shape[1] == 1:
        b = np.reshape(b, -1)
    return solution(Direct(A.pattern, solver), (b, A.data))


@final
class SuperLU:
    """
    The factors of a sparse matrix; see `splu`.

    Args:
        matrix: The matrix.
        options: Those of `scipy.sparse.linalg.splu`.

    Memory:
        The factors, until this and all records of its solutions are gone.
    """

    __slots__ = ("_factors", "_matrix", "_options")

    def __init__(self, matrix: SparseArray, options: dict[str, Any]) -> None:
        self._matrix = matrix
        self._options = options
        self._factors: list[tuple[Any, Any]] = []
        data = detached(matrix.data)
        if isinstance(data, np.ndarray):
            self._factored(matrix.pattern, data)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self._matrix.shape

    def _factored(self, pattern: Pattern, data: Any) -> Any:
        """Return the factors for plain entries, those that there are for the same array."""
        known = next((factors for entries, factors in self._factors if entries is data), None)
        if known is None:
            known = linalg.splu(pattern.eliminated(data, ("csc",)), **self._options)
            self._factors[:] = [(data, known)]
        return known

    def _solved(self, pattern: Pattern, data: Any, b: Any, trans: str) -> Any:
        return self._factored(pattern, data).solve(b, trans)

    def solve(self, rhs: Any, trans: str = "N") -> Any:
        """
        Return the solution for a right-hand side.

        Args:
            rhs: Of shape (n,) or (n, k), in the dtype of the matrix.
            trans: "N", "T" for the transposed matrix, or "H" for its conjugate.
        """
        matrix, rhs = self._matrix, as_right_side(rhs)
        if trans == "H":
            return np.conjugate(self.solve(np.conjugate(rhs), "T"))
        return solution(Direct(matrix.pattern, self._solved, trans == "T"), (rhs, matrix.data))


@wraps(linalg.splu)
def splu(
    A: Any, permc_spec: Any = None, diag_pivot_thresh: Any = None, relax: Any = None, panel_size: Any = None,
    options: Any = None,
) -> SuperLU:  # fmt: skip
    """
    Factor a sparse matrix, for solutions with many right-hand sides.

    Args:
        A: A square matrix, of SciPy or of `ebbtide.scipy.sparse`, whose entries may be traced.
        permc_spec: See `scipy.sparse.linalg.splu`, also for the others.
        diag_pivot_thresh: See there.
        relax: See there.
        panel_size: See there.
        options: See there.

    Returns:
        The factors, whose `solve(rhs, trans)` has derivatives with respect to rhs and to the entries of A; these use
        the same factors.

    Memory:
        The factors, as long as it or a record of a solution lives. In a program they are made in each run.

    Example:
        >>> from ebbtide import grad
        >>> factors = splu(csc_array(np.array([[2.0, 0.0], [1.0, 4.0]])))
        >>> grad(lambda b: np.sum(factors.solve(b)))(np.ones(2))
        array([0.375, 0.25 ])
    """
    given = {"permc_spec": permc_spec, "diag_pivot_thresh": diag_pivot_thresh, "relax": relax}
    return SuperLU(as_sparse(A), given | {"panel_size": panel_size, "options": options or {}})


@wraps(linalg.factorized)
def factorized(A: Any) -> Callable[[Any], Any]:
    """
    Return a function that solves linear systems with a sparse matrix, which is factored once; see `splu`.

    Example:
        >>> solve = factorized(csc_array(np.array([[2.0, 0.0], [1.0, 4.0]])))
        >>> solve(np.ones(2))
        array([0.5  , 0.125])
    """
    return splu(A).solve
