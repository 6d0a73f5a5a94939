"""PETSc's vectors and solvers on ranks of a real MPI run."""

from __future__ import annotations

import pytest
from tests.mpi.launch import on_ranks

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")
pytest.importorskip("petsc4py", reason="the extra `petsc` is not installed: it is built from source, in 10 minutes")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_solvers(count):
    """Vectors, products, linear and nonlinear solves and a loop of them are right to second order on ranks."""
    run = on_ranks(count, "programs/solvers.py")
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["vectors", "products", "nonlinear", "loop", "failures"]
