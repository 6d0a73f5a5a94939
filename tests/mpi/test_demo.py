"""The demo on ranks of a real MPI run."""

from __future__ import annotations

import re
import signal

import pytest
from tests.mpi.launch import on_ranks
from tests.scale import FULL

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

# The numbers of ranks on which a run is killed; on four it is in the campaign.
KILLED = (1, 2, 4) if FULL else (1, 2)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What programs/burgers.py said on four ranks, after it was killed on some, and where its picture is."""
    directory = tmp_path_factory.mktemp("demo")
    size, fatal_write = (("41", "60"), "40") if FULL else (("15", "6"), "5")
    program = ("programs/burgers.py", *size, str(directory))
    for count in KILLED:
        killed = on_ranks(count, *program, fatal_write)
        assert (killed.returncode, killed.stderr) == (signal.SIGKILL, "")
    return on_ranks(4, *program), directory


def test_the_gradient_is_that_of_one_process(done):
    """
    On 1, 2 and 4 ranks it is the gradient of one process to 1e-13, and one number for all schedules and storages.

    Also where it goes on after one of the ranks was killed in the reverse sweep.
    """
    run, _ = done
    assert run.returncode == 0, run.stderr
    assert re.findall(r"^(\d) ranks: ", run.stdout, re.MULTILINE) == ["1", "2", "4"]
    went_on = re.findall(r"^(\d) ranks went on$", run.stdout, re.MULTILINE)
    assert sorted(went_on) == [str(count) for count in KILLED]


def test_one_message(done):
    """What the demo cannot run with is said once, by one rank, and all of them return the same status."""
    run, _ = done
    assert run.stderr.count("error: ") == 1, run.stderr
    assert "Give at least" in run.stderr
    assert "statuses [2, 2, 2, 2]\n" in run.stdout


def test_one_report(done):
    """`ebbtide demo burgers` on ranks draws the bars of one, and gives one report with the verdicts of all."""
    run, directory = done
    report = run.stdout.partition("statuses [2, 2, 2, 2]\n")[2]
    assert "2 x 2 ranks" in report
    assert report.count("Verdict of all ranks") == report.count("Plan\n") == 1
    assert "FAIL" not in report, report
    assert report.endswith("statuses [0, 0, 0, 0]\n")
    bars = [text.split(":")[0] for text in run.stderr.replace("\r", "\n").splitlines() if "100%" in text]
    assert [bar for k, bar in enumerate(bars) if bars[:k][-1:] != [bar]] == ["forward", "reverse"] * 2
    # Also of the run that was killed nothing is left.
    (picture,) = directory.iterdir()
    assert picture.stat().st_size > 1000
