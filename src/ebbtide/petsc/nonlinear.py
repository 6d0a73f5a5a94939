"""Solutions of nonlinear equations by SNES, as functions of what the equations are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.location import user_line
from ebbtide.arrays.spaces import VectorKind
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import vector_of
from ebbtide.errors import SolutionError
from ebbtide.mpi.exchange import anchored, traces_of
from ebbtide.petsc.library import library
from ebbtide.petsc.linear import solved
from ebbtide.petsc.vectors import held, packed
from ebbtide.scipy.closure import Closure
from ebbtide.scipy.implicit import LinearSystem, System, solution
from ebbtide.scipy.slope import Slope
from ebbtide.tape.communication import require
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp

# How near the linear solves of a derivative come: a KSP is used to stop far sooner within Newton's method.
_GOAL = 2.0**-43

Residual = Callable[..., Any]


@final
class Equations(System):
    """
    Equations that a user's function gives, solved by a SNES.

    Args:
        closure: The residual of a packed array, and the function that fills the matrix, if there is one.
        snes: The solver.
        matrix: What is filled.
        kind: That of the unknown.
    """

    __slots__ = ("_closure", "kind", "matrix", "snes")

    def __init__(self, closure: Closure, snes: Any, matrix: Any, kind: VectorKind) -> None:
        self._closure = closure
        self.snes = snes
        self.matrix = matrix
        self.kind = kind

    @property
    def level(self) -> int:
        """See `System.level`."""
        return self._closure.level

    @property
    def slope(self) -> LinearSystem:
        """See `System.slope`."""
        return Slope(self, solver=self.solve_linear)

    @contextmanager
    def fixed(self, operands: Sequence[Any]) -> Iterator[Callable[[Any], Any]]:
        """Give the residual, whose communication belongs to no other traces than those of its operands."""
        present = [trace for operand in operands for trace in traces_of(operand)]
        traces = tuple([trace for trace in current().traces if any(trace is one for one in present)])
        with entered(traces=traces), self._closure.bound(operands) as functions:
            yield functions[0]

    @contextmanager
    def plain(self, operands: Sequence[Any]) -> Iterator[list[Callable[[Any], Any]]]:
        """Give the functions of plain arrays, for plain operands."""
        with self._closure.bound(operands, values=True) as functions:
            yield functions

    def solve(self, start: Sequence[Any], operands: Sequence[Any]) -> Any:
        """
        Return what the SNES finds.

        Raises:
            SolutionError: It did not converge.
        """
        x, f = vector_of(self.kind, start[0]), vector_of(self.kind, np.zeros_like(start[0]))
        with self.plain(operands) as functions, held(x, f), self._operator(functions, x) as operator:
            self.snes.setFunction(lambda _, at, into: into.setArray(functions[0](np.array(at.array_r))), f)
            self.snes.setJacobian(lambda _, at, *matrices: self._fill(functions, at, operator), operator)
            self.snes.solve(None, x)
            if self.snes.getConvergedReason() < 0:
                raise SolutionError(
                    f"At {user_line()}: the SNES ({self.snes.getType()}) did not solve {x.getSize()} equations: reason "
                    f"{self.snes.getConvergedReason()} of SNES.ConvergedReason after "
                    f"{self.snes.getIterationNumber()} iterations, residual {self.snes.getFunctionNorm():.3g}. Begin "
                    "nearer to the solution, or give it more iterations."
                )
            return np.array(x.array_r)

    def infer(self, start: Sequence[ArrayType], operands: Sequence[ArrayType]) -> ArrayType:
        """Return the type of x."""
        return start[0]

    def solve_linear(self, b: Any, point: Any, operands: Sequence[Any], is_transposed: bool) -> Any:
        """Return the solution of the linear equations at a point, by the KSP of the SNES."""
        ksp = self.snes.getKSP()
        before = ksp.getTolerances()
        x = vector_of(self.kind, point)
        with self.plain(operands) as functions, held(x), self._operator(functions, x) as operator:
            self._fill(functions, x, operator)
            ksp.setOperators(operator, operator)
            ksp.setTolerances(rtol=_GOAL, max_it=max(before[3], 10_000))
            try:
                return solved(ksp, b, is_transposed=is_transposed)
            finally:
                rtol, atol, divtol, max_it = before
                ksp.setTolerances(rtol=rtol, atol=atol, divtol=divtol, max_it=max_it)

    @contextmanager
    def _operator(self, functions: Sequence[Any], x: Any) -> Iterator[Any]:
        """Give the user's matrix; if there is none, products with the derivative of the residual."""
        if self.matrix is not None:
            yield self.matrix
            return
        sizes = x.getSizes()
        products = Products(functions[0])
        matrix = library().Mat().createPython((sizes, sizes), products, comm=x.getComm())
        matrix.setUp()
        with held(matrix):
            yield matrix

    def _fill(self, functions: Sequence[Any], at: Any, operator: Any) -> None:
        """Set the matrix to the derivative of the residual at a point."""
        if self.matrix is None:
            operator.getPythonContext().point = np.array(at.array_r)
        else:
            functions[1](np.array(at.array_r))
        operator.assemble()


@final
class Products:
    """
    A matrix of PETSc that is the derivative of a residual at a point.

    Args:
        residual: A function of arrays.
    """

    __slots__ = ("point", "residual")

    def __init__(self, residual: Callable[[Any], Any]) -> None:
        self.residual = residual
        self.point: Any = None

    def mult(self, matrix: Any, x: Any, y: Any) -> None:
        """Set y to the derivative along x."""
        y.setArray(jvp(self.residual, (self.point,), (np.array(x.array_r),))[1])

    def multTranspose(self, matrix: Any, x: Any, y: Any) -> None:  # noqa: N802 - as petsc4py calls it
        """Set y to the pullback of x."""
        y.setArray(vjp(self.residual, self.point)[1](np.array(x.array_r))[0])


def solve_nonlinear(
    snes: Any, residual: Residual, x0: Any, args: tuple[Any, ...] = (), *, jacobian: Residual | None = None,
    matrix: Any = None,
) -> Any:  # fmt: skip
    """
    Return the solution x of residual(x, *args) = 0 by a SNES, differentiable in *args*.

    Derivatives are those of the implicit function: they do not go through the iterations. Each of them solves one
    linear system, with the transposed matrix in reverse mode, by the KSP of the SNES to full precision.

    Args:
        snes: A `SNES` with its options; its function and Jacobian are set here.
        residual: `residual(x, *args)` returns a `Vec`, by operations that have derivatives: sums, `ebbtide.primitive`,
            `petsc.multiply`, `petsc.solve`. What else is differentiated it takes by *args*.
        x0: A `Vec` at which the solver begins, of no influence on the solution.
        args: Vectors, arrays, and containers of them.
        jacobian: `jacobian(x, *args)` fills *matrix* with the derivative of the residual by x, and assembles it; None
            to multiply by it matrix-free, with derivatives of the residual, for which the KSP has no preconditioner.
        matrix: A `Mat` for *jacobian*.

    Returns:
        A `Vec`, traced if a derivative is taken.

    Raises:
        SolutionError: The SNES, or the KSP in a derivative, did not converge.
        TypeError: *x0* is no `Vec`, or one of *jacobian* and *matrix* is missing.

    Memory:
        A record keeps x and args, nothing of the iterations.

    Source:
        Griewank and Walther, Evaluating Derivatives (2008), chapter 15.
    """
    if (jacobian is None) != (matrix is None):
        raise TypeError("petsc.solve_nonlinear takes jacobian and matrix together: the function fills the matrix.")
    start, kind = packed(x0, "solve_nonlinear")
    if matrix is None:
        snes.getKSP().getPC().setType("none")

    def on_array(x: Any, *given: Any) -> Any:
        return packed(residual(vector_of(kind, x), *given), "solve_nonlinear")[0]

    def fill(x: Any, *given: Any) -> Any:
        assert jacobian is not None
        jacobian(vector_of(kind, x), *given)
        return x

    leaves, structure = flatten(args)
    # On all ranks there is something to derive, and something to solve in the sweep.
    leaves = [anchored(leaf) if isinstance(leaf, (TracedArray, np.ndarray)) else leaf for leaf in leaves]
    functions = [on_array] if jacobian is None else [on_array, fill]
    closure = Closure(functions, start, tuple(unflatten(structure, leaves)))
    result = solution(Equations(closure, snes, matrix, kind), closure.operands, (start,))
    require(result)
    return vector_of(kind, result)
