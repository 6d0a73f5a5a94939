"""Gradients that are killed or interrupted at any moment and started again: the same bits, and little lost."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop import lost
from tests.loop.kill_run import SAVING, bound_of, launch
from tests.loop.trouble import SCHEDULES, Events, gradient, interrupt
from tests.scale import FULL, SEED, bar

from ebbtide.storage.listing import list_storage


def strides(often: int, seldom: int) -> dict[str, int]:
    """Every so many events of one schedule, and fewer of the others."""
    return {name: often if name == "revolve" else seldom for name in SCHEDULES}


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_killed_anywhere(torn: bool, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """Killed at a step, before or within a write, or in the clean-up, and once more: the same bits, little lost."""
    # Each event of one schedule, some of the others.
    found = launch(tmp_path, strides(*((1, 2) if FULL else (17, 35) if torn else (61, 101))), *["torn"] * torn)
    for name, counts in found.items():
        record_property(f"processes of {name} killed", counts["kills"])
        record_property("most extra steps", max(counts["extra"], default=0))
        assert counts["problems"] == []
        assert max(counts["extra"], default=0) <= bound_of(name), (name, counts)
        if name not in SAVING:
            # Without what was kept all that had been run would have been in vain.
            assert sum(counts["extra"]) <= sum(counts["without"]) / 3, (name, counts)
    assert sum(counts["kills"] for counts in found.values()) >= ((500 if torn else 1500) if FULL else 50)
    assert sum(len(counts["extra"]) for counts in found.values()) >= (200 if FULL else 10)
    assert all(found[name]["last"] for name in SAVING)


def test_a_termination_is_a_kill(tmp_path: Path, record_property: Callable[..., None]) -> None:
    """SIGTERM, as a batch system sends it, ends the process at once, and the next one goes on."""
    found = launch(tmp_path, strides(*((1, 1) if FULL else (61, 101))), "SIGTERM")
    for name, counts in found.items():
        record_property(f"processes of {name} terminated", counts["kills"])
        assert counts["problems"] == []
        assert max(counts["extra"], default=0) <= bound_of(name), (name, counts)
        assert counts["kills"] >= (300 if FULL else 6 if name == "revolve" else 4), (name, counts)


def test_no_signal_handler_is_installed(tmp_path: Path) -> None:
    """While a loop runs that may be resumed, the handlers of signals are those of before."""
    numbers = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    before = [signal.getsignal(number) for number in numbers]
    seen = []
    events = Events(100, lambda write: seen.append([signal.getsignal(number) for number in numbers]))
    with events.installed():
        gradient("revolve", tmp_path / "run")
    assert seen == [before]


# Interrupts.


def held() -> tuple[int, int]:
    """How many descriptors are open, and how many threads run."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - fewer objects than Path's


@pytest.mark.parametrize("name", ["revolve", "hierarchical", "store on disk", "until"])
def test_interrupted_anywhere(name: str, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """Interrupted at a step or system call, in I/O too, the same process goes on: same bits, nothing left open."""
    expected = gradient(name, None)
    stride, before, at = (3 if FULL else 83), held(), 0
    (tmp_path / "local").mkdir()
    for at in bar(itertools.count(1, stride), f"interrupts of {name}"):
        events = Events(at, interrupt)
        with events.installed():
            try:
                gradient(name, tmp_path / "run", tmp_path / "local")
                break
            except KeyboardInterrupt:
                pass
        assert gradient(name, tmp_path / "run", tmp_path / "local") == expected, at
        assert [path.name for path in tmp_path.iterdir()] == ["local"], at
        assert list((tmp_path / "local").iterdir()) == [], at
        assert held() == before, at
    record_property("interrupts", at // stride)
    assert at > 300


class Lines:
    """A tracer that interrupts at a line of the library, by its number."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.count, self.where = at, 0, ""

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        return self.trace if f"{os.sep}ebbtide{os.sep}" in frame.f_code.co_filename else None

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        """Count a line."""
        self.count += event == "line"
        if event == "line" and self.count == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise KeyboardInterrupt
        return self.trace


@pytest.fixture
def traced() -> Iterator[Any]:
    """Return a function that runs the gradient under a tracer, and put the tracer of before back."""
    before = sys.gettrace()

    def run(lines: Lines, *arguments: Any) -> bytes:
        sys.settrace(lines)
        try:
            return gradient(*arguments)
        finally:
            sys.settrace(before)

    yield run
    sys.settrace(before)


def test_interrupted_at_any_line(
    traced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    """Interrupted between any two lines of the library, by a fixed sample of 300,000: the same process goes on."""
    # In the finalizer of an object Python tells of an interrupt, and goes on.
    told = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lambda caught: told.append(caught.exc_type))
    random, count = np.random.default_rng(SEED), 400 if FULL else 8
    arguments = "hierarchical", tmp_path / "run", tmp_path / "local"
    (tmp_path / "local").mkdir()
    whole = Lines()
    expected = traced(whole, *arguments)
    assert whole.count > 200_000
    before, struck, interrupted = held(), 0, 0
    for part in bar(range(count), "interrupts at lines"):
        lines = Lines(1 + int((part + random.random()) / count * whole.count))
        try:
            traced(lines, *arguments)
        except KeyboardInterrupt:
            interrupted += 1
        struck += bool(lines.where)
        assert gradient(*arguments) == expected, lines.where
        assert [path.name for path in tmp_path.iterdir()] == ["local"], lines.where
        assert list((tmp_path / "local").iterdir()) == [], lines.where
        assert held() == before, lines.where
    record_property("interrupts", interrupted)
    assert interrupted + told.count(KeyboardInterrupt) == struck >= count - 2


# What a kill costs.


def test_ten_kills_cost_one_leg(tmp_path: Path) -> None:
    """A gradient over 1000 steps whose jobs may each run a tenth of its steps is there after at most 11 jobs."""
    for every in (5, 20, 50):
        assert lost.count_legs(tmp_path / "run", every=every) <= 11


def test_the_way_to_a_late_static_value_costs_once(tmp_path: Path) -> None:
    """A run that goes on keeps the state before the step that it has to run again, and the next one starts there."""
    kept = []
    for steps in (1100, 200, 200):
        with pytest.raises(lost.StopError), lost.unsynchronized():
            lost.run(lost.Job(steps), tmp_path / "run", 70)
        kept.append({str(entry.key) for entry in list_storage(tmp_path / "run").entries})
    late = f"loop-0/anchor/{lost.LATE}"
    assert [late in keys for keys in kept] == [False, True, True]


def test_a_kill_costs_little(tmp_path: Path, record_property: Callable[..., None]) -> None:
    """Over random kills of 1000 steps with 10 snapshots the mean loss, gains not counted, is 1 %, and none over 4 %."""
    found = lost.losses(tmp_path / "run", every=10, kills=300 if FULL else 6, seed=SEED)
    record_property("kills", len(found))
    # A run that goes on has the journal's restart states, too, and may run fewer steps than an undisturbed one.
    mean = float(np.mean(np.maximum(found, 0.0)))
    record_property("% lost on average", round(100 * mean, 2))
    assert mean <= 0.01
    assert max(found) <= 0.04
