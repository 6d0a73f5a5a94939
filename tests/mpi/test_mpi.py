"""Communication between real processes of an MPI run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.scale import FULL

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
CHECKS = ("transposes", "linear", "extremes", "owners", "refusals", "checkpoints", "loops")


def on_ranks(count: int, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script on ranks; one that hangs is ended."""
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-W", "error", str(HERE / script), *arguments]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_on_ranks(count):
    """On each number of ranks all that on_ranks.py states is true; second derivatives on two, and in a campaign."""
    checks = (*CHECKS, "second_order") if FULL or count == 2 else CHECKS
    run = on_ranks(count, "on_ranks.py", *checks)
    assert run.stdout.split("\n") == [*[f"{check} ok" for check in checks], ""], run.stderr
    assert run.returncode == 0


def test_page(tmp_path):
    """The program of the page about many ranks runs on three, and compares its derivative with a difference."""
    page = (HERE.parents[1] / "docs" / "mpi.md").read_text(encoding="utf-8")
    (tmp_path / "heat.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    run = on_ranks(3, str(tmp_path / "heat.py"))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("value ")


@pytest.mark.parametrize("place", ["forward", "reverse"])
@pytest.mark.parametrize("end", ["raise", "block", "kill"])
def test_a_rank_fails(end, place):
    """Where a rank raises or is killed all end, with one message, also those that wait in other communication."""
    run = on_ranks(3, "failing.py", place, end)
    assert run.returncode != 0
    assert run.stderr.count("Traceback") == (end != "kill")
    assert ("ValueError: This rank fails on purpose." in run.stderr) == (end != "kill")
    assert "finished" not in run.stdout
