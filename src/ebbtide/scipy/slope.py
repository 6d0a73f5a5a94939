"""The linear equations of the derivative of a solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from scipy.sparse import linalg

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.location import user_line
from ebbtide.errors import SolutionError
from ebbtide.scipy.implicit import VECTORS, LinearSystem, System
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.jacobian import jacobian
from ebbtide.transforms.pullback import vjp

# Up to so many unknowns the matrix is made, many of its rows at once: 32 KiB.
_DENSE = 64
# How near Krylov's method has to come, relative to the right-hand side, in double precision.
_GOAL, _ACCEPTED = 2.0**-43, 2.0**-27

# Takes the right-hand side, the point, the other operands, and whether the matrix is transposed.
Solver = Callable[[Any, Any, Sequence[Any], bool], Any]


@final
class Slope(LinearSystem):
    """
    The linear equations with the derivative of a system's residual: operands b, x, and those of the system.

    Args:
        system: The system.
        is_transposed: Whether the matrix is transposed.
        solver: How plain arrays are solved for.
    """

    __slots__ = ("_is_transposed", "_solver", "_system")

    def __init__(self, system: System, is_transposed: bool = False, solver: Solver | None = None) -> None:
        self._system = system
        self._is_transposed = is_transposed
        self._solver = solver

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `System.held_arrays`."""
        return self._system.held_arrays

    @property
    def level(self) -> int:
        """See `System.level`."""
        return self._system.level

    @property
    def transposed(self) -> LinearSystem:
        """The system of the transposed matrix."""
        return Slope(self._system, not self._is_transposed, self._solver)

    def infer(self, start: Sequence[ArrayType], operands: Sequence[ArrayType]) -> ArrayType:
        """Return the type of x."""
        return operands[1]

    def apply(self, x: Any, *operands: Any) -> Any:
        """Return the derivative of the residual at a point, times x."""
        point, *rest = operands
        with self._system.fixed(rest) as residual:
            if self._is_transposed:
                return vjp(residual, point)[1](x)[0]
            return jvp(residual, (point,), (x,))[1]

    def solve(self, start: Sequence[Any], operands: Sequence[Any]) -> Any:
        """Return the solution for plain arrays: the solver's, else by elimination or, of many, Krylov's method."""
        b, point, *rest = operands
        if self._solver is not None:
            return self._solver(b, point, rest, self._is_transposed)
        with self._system.fixed(rest) as residual:
            if np.size(point) <= _DENSE:
                matrix = jacobian(residual, holomorphic=np.iscomplexobj(point))(point)
                matrix = np.reshape(matrix, (np.size(point), -1))
                return eliminated(matrix.T if self._is_transposed else matrix, b)
            if self._is_transposed:
                pullback = vjp(residual, point, retain=True)[1]
                return krylov(lambda v: pullback(v)[0], b)
            return krylov(lambda v: jvp(residual, (point,), (v,))[1], b)


def eliminated(matrix: Any, b: Any) -> Any:
    """
    Solve a linear system with a matrix of few rows.

    Raises:
        SolutionError: The matrix is singular.
    """
    try:
        return np.reshape(np.linalg.solve(matrix, np.reshape(b, -1)), np.shape(b))[()]
    except np.linalg.LinAlgError as error:
        raise SolutionError(
            f"The solution that was found at {user_line()} has no derivative: the Jacobian of the {len(matrix)} "
            "equations with respect to the unknowns is singular there, so that the solution is not a function of what "
            "the equations are made from. Solve other equations for it."
        ) from error


def krylov(apply: Callable[[Any], Any], b: Any) -> Any:
    """
    Solve a linear system by GMRES, as exactly as its numbers allow.

    Args:
        apply: Multiplies an array of the shape of b by the matrix.
        b: The right-hand side.

    Raises:
        SolutionError: It does not converge.

    Source:
        Saad and Schultz, GMRES, SIAM J. Sci. Stat. Comput. 7 (1986).
    """
    flat = np.reshape(b, -1)
    kind = np.dtype(b.dtype)
    coarser = np.finfo(kind).eps / np.finfo(np.float64).eps

    def product(v: Any) -> Any:
        return np.reshape(apply(np.reshape(v, b.shape).astype(kind)), -1)

    shape = (flat.size, flat.size)
    operator = linalg.LinearOperator(shape=shape, matvec=product, dtype=kind)  # pyright: ignore[reportCallIssue]
    found, _ = linalg.gmres(operator, flat, rtol=_GOAL * coarser, restart=VECTORS, maxiter=flat.size // 8 + 50)
    left, whole = np.linalg.norm(product(found) - flat), np.linalg.norm(flat)
    if not left <= whole * min(_ACCEPTED * coarser, 0.01):
        raise SolutionError(
            f"The derivative of the solution that was found at {user_line()} is the solution of {flat.size} linear "
            f"equations, and GMRES came only to a residual of {left:.3g} for a right-hand side of {whole:.3g}. The "
            "Jacobian of the equations with respect to the unknowns is singular or ill-conditioned there: scale the "
            "equations, or multiply them by an approximate inverse of it."
        )
    return np.reshape(found, b.shape).astype(kind, copy=False)
