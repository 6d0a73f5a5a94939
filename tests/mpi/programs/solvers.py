"""PETSc's vectors and solvers on ranks; started by `mpiexec` from test_petsc.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from petsc4py import PETSc

import ebbtide as eb
from ebbtide import mpi, petsc
from ebbtide.errors import SolutionError
from ebbtide.testing import check_space

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LENGTH = 24


def vector(seed: int, local: int = -1) -> Any:
    """Return a vector of random numbers, the same ones whatever the number of ranks."""
    made = PETSc.Vec().createMPI((local, LENGTH) if local >= 0 else LENGTH, comm=COMM)
    low, high = made.getOwnershipRange()
    made.setArray(np.random.default_rng(seed).standard_normal(LENGTH)[low:high])
    return made


def matrix(diagonal: Any = 4.0, upper: float = -1.3, lower: float = -0.6) -> Any:
    """Return a matrix of three diagonals that is not symmetric."""
    made = PETSc.Mat().createAIJ((LENGTH, LENGTH), nnz=(3, 2), comm=COMM)
    low, high = made.getOwnershipRange()
    for k in range(low, high):
        made[k, k] = diagonal if np.isscalar(diagonal) else diagonal[k - low]
        if k + 1 < LENGTH:
            made[k, k + 1] = upper
        if k:
            made[k, k - 1] = lower
    made.assemble()
    return made


def solver(operator: Any) -> Any:
    """Return a KSP to full precision."""
    ksp = PETSc.KSP().create(comm=COMM)
    ksp.setOperators(operator)
    ksp.setType("gmres")
    ksp.getPC().setType("jacobi")
    ksp.setTolerances(rtol=1e-14, max_it=500)
    return ksp


def whole(x: Any) -> np.ndarray:
    """Return all numbers of a vector on all ranks."""
    return np.concatenate(COMM.allgather(np.array(x.array_r)))


def dot(x: Any, y: Any) -> float:
    """Return the inner product of two vectors over all ranks."""
    return float(np.vdot(whole(x), whole(y)).real)


def times(x: Any, y: Any) -> Any:
    """Return the products of the numbers of two vectors."""
    result = x.duplicate()
    result.pointwiseMult(x, y)
    return result


def of_tangent(t: Any, y: Any) -> Any:
    """Return the products of a tangent or cotangent, as an operation again."""
    return multiplied(t, y)


def of_other(t: Any, x: Any) -> Any:
    """Return the same for the other operand."""
    return multiplied(x, t)


multiplied = eb.primitive(times, vjp=(of_tangent, of_other), jvp=(of_tangent, of_other))


def check_derivatives(f: Callable[[Any], Any], x: Any, tolerance: float = 1e-6) -> None:
    """A functional's gradient is what differences say, forward is reverse, and hvp the difference of gradients."""
    v, w, h = vector(91), vector(92), 1e-5
    value, slope = eb.value_and_grad(f)(x)
    assert np.isclose(value, f(x), rtol=1e-12)
    ahead, behind = f(moved(x, h, v)), f(moved(x, -h, v))
    assert np.isclose(dot(slope, v), (ahead - behind) / (2 * h), rtol=tolerance), (dot(slope, v), ahead, behind)
    _, tangent = eb.jvp(f, (x,), (v,))
    assert np.isclose(dot(slope, v), tangent, rtol=1e-9)
    product, other = eb.hvp(f)(x, v), eb.hvp(f)(x, w)
    assert np.isclose(dot(w, product), dot(v, other), rtol=1e-8, atol=1e-9)
    up, down = eb.grad(f)(moved(x, h, v)), eb.grad(f)(moved(x, -h, v))
    np.testing.assert_allclose(whole(product), (whole(up) - whole(down)) / (2 * h), rtol=1e-5, atol=1e-6)


def moved(x: Any, h: float, v: Any) -> Any:
    """Return x + h v."""
    result = x.copy()
    result.axpy(h, v)
    return result


def check_vectors() -> None:
    """Vectors are packed and unpacked with their layout, also where a rank has none of the numbers."""
    uneven = vector(1, LENGTH if RANK == SIZE - 1 else 0)
    check_space(PETSc.Vec, [vector(1), uneven])
    slope = eb.grad(lambda x: petsc.total(2.0 * x + x))(uneven)
    np.testing.assert_array_equal(whole(slope), np.full(LENGTH, 3.0))
    assert slope.getSizes() == uneven.getSizes()


def check_products() -> None:
    """The product with a matrix and the solution of equations are linear, with their transposes in reverse."""
    operator = matrix()
    ksp = solver(operator)
    for f in (lambda x: petsc.multiply(operator, x), lambda x: petsc.solve(ksp, x)):
        x, v, w = vector(2), vector(3), vector(4)
        _, pull = eb.vjp(f, x)
        _, tangent = eb.jvp(f, (x,), (v,))
        np.testing.assert_array_equal(whole(tangent), whole(f(v)))
        assert np.isclose(dot(w, tangent), dot(pull(w)[0], v), rtol=1e-11)
    back = petsc.multiply(operator, petsc.solve(ksp, vector(2)))
    np.testing.assert_allclose(whole(back), whole(vector(2)), rtol=1e-11, atol=1e-12)
    check_derivatives(lambda x: petsc.total(multiplied(petsc.solve(ksp, multiplied(x, x)), x)), vector(5))


def cubic(matrix_free: bool) -> Callable[[Any], Any]:
    """Return the solution u of A u + u^3 = p as a function of p."""
    operator, jacobian = matrix(), matrix()

    def residual(u: Any, p: Any) -> Any:
        return petsc.multiply(operator, u) + multiplied(u, multiplied(u, u)) - p

    def fill(u: Any, p: Any) -> None:
        low, high = jacobian.getOwnershipRange()
        for k in range(low, high):
            jacobian[k, k] = 4.0 + 3.0 * u[k] ** 2
        jacobian.assemble()

    def solution(p: Any) -> Any:
        snes = PETSc.SNES().create(comm=COMM)
        snes.setTolerances(rtol=1e-13, atol=1e-13, stol=0.0)
        snes.getKSP().setType("gmres")
        snes.getKSP().getPC().setType("jacobi")
        given = {} if matrix_free else {"jacobian": fill, "matrix": jacobian}
        return petsc.solve_nonlinear(snes, residual, vector(6), (p,), **given)

    return solution


def check_nonlinear() -> None:
    """The solution of nonlinear equations has the derivatives of the implicit function, to second order."""
    for matrix_free in (False, True):
        solution = cubic(matrix_free)
        u = whole(solution(vector(7)))
        left = whole(petsc.multiply(matrix(), solution(vector(7)))) + u**3
        np.testing.assert_allclose(left, whole(vector(7)), rtol=1e-10, atol=1e-12)
        check_derivatives(lambda p, solution=solution: petsc.total(multiplied(solution(p), solution(p))), vector(7))


def check_loop() -> None:
    """A loop whose steps solve equations has one gradient within all budgets."""
    ksp = solver(matrix())

    def functional(x: Any) -> Any:
        last = eb.timeloop(lambda u, i: petsc.solve(ksp, multiplied(u, u) + u), x, 6)
        return petsc.total(multiplied(last, last))

    with mpi.distributed(COMM):
        found = whole(eb.grad(functional)(vector(8)))
        for budget in ("64 KiB", "1 MiB"):
            np.testing.assert_array_equal(whole(eb.grad(functional, budget=eb.Budget(memory=budget))(vector(8))), found)
    check_derivatives(functional, vector(8))


def check_failures() -> None:
    """A solver that does not converge says so, on all ranks."""
    ksp = solver(matrix())
    ksp.setTolerances(rtol=1e-14, max_it=1)
    for refused in (lambda b: petsc.solve(ksp, b), eb.grad(lambda b: petsc.total(petsc.solve(ksp, b)))):
        with pytest.raises(SolutionError, match="did not solve 24 linear equations"):
            refused(vector(9))


def main() -> None:
    """Run all checks."""
    for check in (check_vectors, check_products, check_nonlinear, check_loop, check_failures):
        check()
        if RANK == 0:
            print(check.__name__.removeprefix("check_"), flush=True)


if __name__ == "__main__":
    main()
