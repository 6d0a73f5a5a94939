"""Runs on real ranks that a fault of one of them ends, and that go on."""

from __future__ import annotations

import random
import re
import time

import pytest
from tests.mpi.launch import on_ranks
from tests.scale import FULL, SEED, bar

pytest.importorskip("mpi4py", reason="the extra `mpi` is not installed")

# What each run meets in turn: the faults of failing.py. A run goes on where the one before was ended.
CHAINS = {"chain": [["kill@5"], ["stuck@14"], ["raise@9"], ["none"]]}
# In a whole run there are 59 places for a fault, the first 16 of them in the forward sweep.
PLACES = random.Random(SEED).sample(range(1, 59), 50)
if FULL:
    for kind in ("kill", "raise", "full", "collect", "block", "hurry", "interrupt", "stuck"):
        for part in range(5 if kind in {"kill", "raise", "full", "collect"} else 1):
            first, *others = [f"{kind}@{place}" for place in PLACES[part::5]]
            CHAINS[f"{kind} {part}"] = [[first], *[["none", fault] for fault in others], ["none"]]
# How many ranks there are, of which the last one has the fault: two, and four whose one disk is full.
RUNS = [(name, 2) for name in CHAINS] + [(name, 4) for name in CHAINS if name.startswith("full")]
INTERRUPTED = {"hurry", "interrupt", "stuck"}
ENDS, GOES_ON = {"kill", "raise", "block"} | INTERRUPTED, {"none", "collect"}


@pytest.mark.parametrize(("name", "ranks"), RUNS)
def test_ranks_end_and_go_on(name, ranks, tmp_path, record_property):
    """Where a rank fails all end within 10 seconds, with one message; what goes on there has the same bits."""
    stamp, slowest = tmp_path / "stamp", 0.0
    for faults in bar(CHAINS[name], f"{name} on {ranks}"):
        stamp.unlink(missing_ok=True)
        kind = faults[-1].partition("@")[0]
        interrupted_at = stamp if kind in INTERRUPTED else None
        run = on_ranks(ranks, "failing.py", str(tmp_path), *faults, STAMP=str(stamp), interrupted_at=interrupted_at)
        ended = run.returncode != 0
        if ended:
            slowest = max(slowest, time.time() - stamp.stat().st_mtime)
            assert slowest < 10.0, faults
        assert ended is (kind in ENDS) or kind not in ENDS | GOES_ON, (faults, run.stderr)
        whole = faults[:-1] if ended else faults
        expected = [f"{number} {fault} on {rank}: True" for number, fault in enumerate(whole) for rank in range(ranks)]
        assert sorted(re.findall(r"^\d+ .* on \d: .*$", run.stdout, re.MULTILINE)) == expected, (faults, run.stderr)
        check_messages(kind, ended, run.stderr)
    record_property("runs", len(CHAINS[name]))
    record_property("seconds at most until all ranks were gone", round(slowest, 1))
    # Of all runs nothing is left, the dead ones and what MPI did not live to see closed included.
    assert {path.name for path in tmp_path.iterdir()} <= {"stamp"}


def check_messages(kind: str, ended: bool, said: str) -> None:
    """Check that what ended a run is said once, and nothing where nothing did."""
    errors = re.findall(r"^[\w.]*(?:Error|Exception|Interrupt)\b.*$", said, re.MULTILINE)
    if kind in {"raise", "block", "hurry"}:
        assert errors == ["ValueError: This rank fails on purpose."], said
    elif kind == "full" and ended:
        first, *others = errors
        assert first == "OSError: [Errno 28] No space left on device", said
        assert len(others) == 1, said
        assert "StorageFullError" in others[0], said
    elif kind in {"interrupt", "stuck"}:
        assert set(errors) == {"KeyboardInterrupt"}, said  # as Python says it in each process
    elif kind == "kill":
        assert errors == [], said
    else:
        assert said == ""
