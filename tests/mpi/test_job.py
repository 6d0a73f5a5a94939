"""The job of the page about many ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PAGE = Path(__file__).parents[2] / "docs" / "mpi.md"


def test_job(tmp_path):
    """The program of the page leaves the slope of each rank and nothing on the disks."""
    program = "# job.py" + PAGE.read_text(encoding="utf-8").partition("```python\n# job.py")[2].partition("```")[0]
    local, shared = tmp_path / "local", tmp_path / "scratch"
    local.mkdir()
    shared.mkdir()
    program = program.replace("/local", str(local)).replace("/scratch/me", str(shared))
    (tmp_path / "job.py").write_text(program, encoding="utf-8")
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-W", "error", str(tmp_path / "job.py")]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert sorted(path.name for path in shared.iterdir()) == ["slope0.npy", "slope1.npy"]
    assert list(local.iterdir()) == []
    slopes = [np.load(shared / f"slope{rank}.npy") for rank in range(2)]
    expected = np.sin(np.arange(2000.0))
    for _ in range(400):  # the matrix A of a step is symmetric: the slope of |A^200 u|^2 is 2 A^400 u
        expected += 0.2 * (np.append(expected[1:], 0.0) - 2.0 * expected + np.append(0.0, expected[:-1]))
    np.testing.assert_allclose(np.concatenate(slopes), 2.0 * expected, rtol=1e-10, atol=1e-13)
