"""Products with matrices and solutions of linear equations, on the ranks of a communicator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.location import user_line
from ebbtide.arrays.vectors import vector_of
from ebbtide.errors import SolutionError
from ebbtide.mpi.exchange import Exchange, exchange
from ebbtide.petsc.vectors import held, kind_of, layout_of, packed


@final
@dataclass(frozen=True, slots=True)
class Product(Exchange):
    """A vector of all ranks times a matrix of PETSc, or its transpose."""

    matrix: Any = field(repr=False)
    is_transposed: bool = False

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        right, left = self.matrix.createVecs()
        with held(right, left):
            if self.is_transposed:
                left.setArray(array)
                self.matrix.multTranspose(left, right)
                return np.array(right.array_r)
            right.setArray(array)
            self.matrix.mult(right, left)
            return np.array(left.array_r)

    @property
    def transposed(self) -> Exchange:
        """The product with the transpose."""
        return Product(self.comm, self.given, self.taken, self.matrix, not self.is_transposed)


@final
@dataclass(frozen=True, slots=True)
class Solution(Exchange):
    """What a KSP gives for a right-hand side, with its matrix or the transpose of it."""

    ksp: Any = field(repr=False)
    is_transposed: bool = False

    def run(self, array: np.ndarray) -> np.ndarray:
        """
        See `Exchange.run`.

        Raises:
            SolutionError: The solver did not converge.
        """
        return solved(self.ksp, array, is_transposed=self.is_transposed)

    @property
    def transposed(self) -> Exchange:
        """The solution with the transpose."""
        return Solution(self.comm, self.given, self.taken, self.ksp, not self.is_transposed)


def solved(ksp: Any, array: np.ndarray, *, is_transposed: bool) -> np.ndarray:
    """
    Return what a KSP gives for a plain right-hand side.

    Raises:
        SolutionError: The solver did not converge.
    """
    b, x = ksp.getOperators()[0].createVecs()
    with held(b, x):
        b.setArray(array)
        (ksp.solveTranspose if is_transposed else ksp.solve)(b, x)
        if ksp.getConvergedReason() < 0:
            raise SolutionError(
                f"At {user_line()}: the KSP ({ksp.getType()}, preconditioner {ksp.getPC().getType()}) did not solve "
                f"{b.getSize()} linear equations{' with the transposed matrix' if is_transposed else ''}: reason "
                f"{ksp.getConvergedReason()} of KSP.ConvergedReason after {ksp.getIterationNumber()} iterations, "
                f"residual {ksp.getResidualNorm():.3g}. Give it more iterations, or another preconditioner."
            )
        return np.array(x.array_r)


def multiply(matrix: Any, x: Any) -> Any:
    """
    Return a matrix of PETSc times a vector, differentiable in the vector.

    Args:
        matrix: A `Mat`, assembled; constant. One of the user's own (`Mat().createPython`) has `mult` and, for reverse
            mode, `multTranspose`.
        x: A `Vec`, traced or not.

    Raises:
        TypeError: *x* is no `Vec`.

    Memory:
        The result, and two vectors for a moment. A tape keeps the matrix by reference.
    """
    array, kind = packed(x, "multiply")
    right, left = matrix.createVecs()
    with held(right, left):
        layout = layout_of(left)
    given = ArrayType((layout.local,), type_of(array).dtype)
    result = exchange(Product(kind.form.comm, type_of(array), given, matrix), array)
    # Of a square matrix it is a vector of the same space, also where PETSc says "seq" and "mpi" on one rank.
    is_square = (layout.local, layout.size) == (kind.form.local, kind.form.size)
    return vector_of(kind if is_square else kind_of(layout), result)


def solve(ksp: Any, b: Any) -> Any:
    """
    Return the solution of A x = b by a KSP, differentiable in b.

    The reverse sweep solves with the transpose of A by `KSPSolveTranspose`, forward mode with A; each derivative is as
    exact as the tolerances of the KSP are. For a matrix that depends on what is differentiated see `solve_nonlinear`.

    Args:
        ksp: A `KSP` with its operators, which stay as they are until the derivative is taken.
        b: A `Vec`, traced or not.

    Raises:
        SolutionError: The solver did not converge, here or in a derivative.
        TypeError: *b* is no `Vec`.

    Memory:
        The result, and two vectors and what the solver takes for a moment. A tape keeps the KSP by reference.

    Source:
        Griewank and Walther, Evaluating Derivatives (2008), chapter 15.
    """
    array, kind = packed(b, "solve")
    result = exchange(Solution(kind.form.comm, type_of(array), type_of(array), ksp), array)
    return vector_of(kind, result)
