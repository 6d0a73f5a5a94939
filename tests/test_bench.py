"""The benches run without their peers; what they measure is not a matter of tests."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HELPERS = {"__init__", "__main__", "ensemble_plan", "measure"}
NAMES = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if path.stem not in HELPERS)
INSTALLED = set(importlib.metadata.packages_distributions())
PEERS = ("autograd", "checkpoint_schedules", "equinox", "h5py", "jax", "numba", "pyadjoint", "torch")


@pytest.mark.parametrize("name", NAMES)
def test_bench_runs_without_peers(name, monkeypatch, capsys):
    """A bench runs in a tiny size where no peer is installed, prints a table, and says which peers are missing."""
    monkeypatch.syspath_prepend(str(ROOT))
    for peer in PEERS:
        monkeypatch.setitem(sys.modules, peer, None)
    importlib.import_module(f"bench.{name}").main(quick=True)
    printed = capsys.readouterr().out
    head = [line for line in printed.splitlines() if line.startswith("| case")]
    assert head
    assert all("ours" in line and "bar" in line for line in head)
    # Ranks are processes of their own, in which a peer of theirs may be there.
    there = {"h5py"} & INSTALLED if name == "ranks" else set()
    asked = any(peer in line for line in head for peer in PEERS if peer not in there)
    assert ("not installed" in printed) == asked


def test_every_bench_is_listed():
    """The command line knows every bench."""
    source = (ROOT / "bench" / "__main__.py").read_text(encoding="utf-8")
    assert [name for name in NAMES if f'"{name}"' not in source] == []
