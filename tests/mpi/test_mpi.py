"""Communication between real processes of an MPI run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.scale import FULL

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
# What is checked on groups of one, two, three and four ranks; what is checked on some of them, in the gate.
CHECKS = (
    "transposes", "linear", "extremes", "owners", "refusals", "checkpoints",
    "files", "templates", "reservations", "endings", "parts_of_ranks_load", "unshared_directories",
)  # fmt: skip
SOME = (
    "loops@3", "hot_path@4", "page@4", "second_order@2", "contract@2", "faults@2", "other_counts@3", "behind@2",
    "killed_between@3", "times@2", "leaks@2",
)  # fmt: skip


def on_ranks(count: int, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script on ranks; one that hangs is ended."""
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-W", "error", str(HERE / script), *arguments]
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=alone, check=False)


def test_on_ranks():
    """All that the checks state is true on one, two, three and four ranks; some of it on some, in the gate."""
    some = [check if check == "page@4" else check.partition("@")[0] for check in SOME] if FULL else list(SOME)
    run = on_ranks(4, "on_ranks.py", *CHECKS, *some)
    expected = []
    for check in (*CHECKS, *some):
        name, _, size = check.partition("@")
        expected += [f"{name} on {ranks}" for ranks in (4, 3, 1, 2, 2) if not size or ranks == int(size)]
    assert run.returncode == 0, run.stderr
    assert sorted(run.stdout.splitlines()) == sorted(expected), run.stderr


FAULTS = [(kind, place) for place in range(1, 51) for kind in ("kill", "raise", "block")[: 3 if place % 10 == 5 else 1]]
CHAINS = [[fault] for fault in FAULTS] if FULL else [[("kill", 5), ("block", 14), ("raise", 9)]]


@pytest.mark.parametrize("chain", CHAINS, ids=repr)
def test_ranks_end_and_go_on(chain, tmp_path):
    """Where a rank is killed or raises all end within 10 seconds, with one message; the last run has the same bits."""
    stamp = tmp_path / "stamp"
    for kind, place in chain:
        run = on_ranks(2, "failing.py", str(tmp_path), kind, str(place), STAMP=str(stamp))
        assert run.returncode != 0
        assert time.time() - stamp.stat().st_mtime < 10.0
        assert run.stderr.count("Traceback") == (kind != "kill"), run.stderr
        assert run.stderr.count("ValueError: This rank fails on purpose.") == (kind != "kill")
        assert run.stdout.count("rank") == 0
    run = on_ranks(2, "failing.py", str(tmp_path), "none", "-1")
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(run.stdout.splitlines()) == ["rank 0: True", "rank 1: True"]
    # Of all runs nothing is left, the dead ones and what MPI did not live to see closed included.
    assert {path.name for path in tmp_path.iterdir()} == {"stamp"}
