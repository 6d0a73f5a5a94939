"""Communication between real processes of an MPI run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scale import FULL, sample

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
CHECKS = ("transposes", "linear", "extremes", "owners", "refusals", "checkpoints", "loops")


def on_ranks(count: int, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script on ranks; one that hangs is ended."""
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-W", "error", str(HERE / script), *arguments]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)


def test_on_ranks():
    """All that the checks state is true on one, two, three and four ranks; second derivatives on two in the gate."""
    checks = [*CHECKS, "page@4", "second_order" if FULL else "second_order@2"]
    run = on_ranks(4, "on_ranks.py", *checks)
    expected = [f"{name} on {size}" for name in CHECKS for size in (4, 3, 1, 2, 2)]
    expected += ["page on 4", *[f"second_order on {size}" for size in ((4, 3, 1, 2, 2) if FULL else (2, 2))]]
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == sorted(expected), run.stderr


CASES = [(end, place) for end in ("raise", "kill", "block") for place in ("forward", "reverse")]


@pytest.mark.parametrize(("end", "place"), sample(CASES, 2))
def test_a_rank_fails(end, place):
    """Where a rank raises or is killed all end, with one message, also those that wait in other communication."""
    run = on_ranks(2, "failing.py", place, end)
    assert run.returncode != 0
    assert run.stderr.count("Traceback") == (end != "kill")
    assert ("ValueError: This rank fails on purpose." in run.stderr) == (end != "kill")
    assert "finished" not in run.stdout
