"""Communication between real processes of an MPI run."""

from __future__ import annotations

import pytest
from tests.mpi.launch import on_ranks
from tests.scale import FULL

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

# What is checked on groups of one, two, three and four ranks; what is in the campaign, in the gate on some; programs.
CHECKS = (
    "transposes", "linear", "extremes", "owners", "operands", "integers", "refusals", "checkpoints",
    "files", "templates", "reservations", "endings", "parts_of_ranks_load", "unshared_directories",
)  # fmt: skip
SOME = (
    "loops@3", "timed_loops@2", "wide_steps@3", "hot_path@4", "second_order@2", "contract@2", "faults@2",
    "other_counts@3", "behind@2", "static@2", "thinned@2", "refusals_alike@4", "killed_between@3", "no_directory@2",
    "no_room@2", "times@2", "leaks@4", "disagreeing@3", "told@3", "unused_loops@2",
    "constant_loops@3", "unlike_loops@3", "minimize@3", "forecasts@2", "leasts@2", "late_statics@2",
    "waiting_for_each_other@4", "last_steps@2",
)  # fmt: skip
PROGRAMS = ("page@2", "job@2", "training@2")


def test_on_ranks():
    """All that the checks state is true on one, two, three and four ranks; some of it on some, in the gate."""
    checks = (*CHECKS, *([check.partition("@")[0] for check in SOME] if FULL else SOME), *PROGRAMS)
    run = on_ranks(4, "on_ranks.py", *checks)
    expected = []
    for check in checks:
        name, _, size = check.partition("@")
        expected += [f"{name} on {size}"] if size else [f"{name} on {ranks}" for ranks in (4, 3, 1, 2, 2)]
    assert (run.returncode, run.stderr) == (0, ""), run.stderr
    assert sorted(run.stdout.splitlines()) == sorted(expected)
