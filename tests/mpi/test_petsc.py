"""PETSc's vectors and solvers on ranks of a real MPI run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")
pytest.importorskip("petsc4py", reason="the extra `petsc` is not installed: it is built from source, in 10 minutes")

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PROGRAM = Path(__file__).with_name("programs") / "solvers.py"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_on_ranks(count):
    """Vectors, products, linear and nonlinear solves and a loop of them are right to second order on ranks."""
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-W", "error", str(PROGRAM)]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["vectors", "products", "nonlinear", "loop", "failures"]
