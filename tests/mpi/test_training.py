"""Data-parallel training and ensembles on ranks of a real MPI run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PROGRAM = Path(__file__).with_name("programs") / "training.py"


def test_training_is_that_of_one_process():
    """Ranks that add up flat gradients, one message a step, train as one process; an ensemble sends one in all."""
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-W", "error", str(PROGRAM)]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)
    assert (run.returncode, run.stdout) == (0, "trained\n"), run.stderr
