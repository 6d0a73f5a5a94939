"""The demo on ranks of a real MPI run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scale import FULL

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PROGRAMS = Path(__file__).with_name("programs")
# The class docstrings of the decompositions, and what launchers set: ebbtide.demo.decomposition, ebbtide.demo.cartesian.


def run(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on ranks; a run that hangs is ended."""
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-W", "error", *arguments]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)


def test_the_gradient_is_that_of_one_process():
    """On 1, 2 and 4 ranks it is the gradient of one process to 1e-13, and one number for all schedules and storages."""
    done = run(4, str(PROGRAMS / "burgers.py"), *(("41", "60") if FULL else ("15", "6")))
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["1 ranks", "2 ranks", "4 ranks"]


def test_one_report(tmp_path):
    """`mpiexec -n 2 ebbtide demo burgers` gives one report, with the bars of one rank and the verdicts of both ranks."""
    picture = tmp_path / "memory.png"
    options = ("--nodes", "17", "--steps", "8", "--memory", "8 MiB", "--plot", str(picture))
    done = run(2, "-m", "ebbtide.cli", "demo", "burgers", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 x 1 ranks" in done.stdout
    assert done.stdout.count("Verdict of all ranks") == done.stdout.count("Plan\n") == 1
    assert "FAIL" not in done.stdout
    assert done.stderr.count("| 8/8 [") == 4  # forward and reverse, of the gradient and of its tangent


def test_one_message(tmp_path):
    """What the demo cannot run with is said once, by the first rank, and all of them end with the same status."""
    options = ("--nodes", "17", "--steps", "8", "--memory", "1 KiB", "--plot", str(tmp_path / "memory.png"))
    done = run(2, "-m", "ebbtide.cli", "demo", "burgers", *options)
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1), done.stderr
    assert "Give at least" in done.stderr
