"""Runs that are killed and started again: real processes, real kills, the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop.resume_run import SCHEDULES, STEPS

import ebbtide
from ebbtide import ResumeError, grad, timeloop
from ebbtide.schedules import Revolve

PROGRAM = Path(__file__).with_name("resume_run.py")
# `make campaign` kills at each step and at each write.
FULL = bool(os.environ.get("EBBTIDE_CAMPAIGN"))
U = np.linspace(0.5, 1.0, 20)


def run(directory: Any, name: str, what: str, at: int, out: Path) -> dict[str, Any] | None:
    """Run the program; return what it found, None if it was killed."""
    command = [sys.executable, str(PROGRAM), str(directory), name, what, str(at), str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return for each schedule what an undisturbed run finds, with a journal and without."""
    path = tmp_path_factory.mktemp("whole")
    found = {}
    for name in SCHEDULES:
        plain = run("-", name, "none", 0, path / "out")
        kept = run(path / name, name, "none", 0, path / "out")
        assert plain is not None
        assert kept is not None
        assert kept["bits"] == plain["bits"], f"the journal changes the gradient of {name}"
        assert kept["steps"] == plain["steps"], f"the journal changes the steps of {name}"
        assert not (path / name).exists()
        found[name] = kept
    assert len({tuple(one["bits"]) for one in found.values()}) == 1
    return found


@pytest.mark.parametrize("what", ["steps", "half"] + ["writes"] * FULL)
@pytest.mark.parametrize("name", SCHEDULES)
def test_killed_and_started_again(name: str, what: str, whole: dict[str, Any], tmp_path: Path) -> None:
    """Killed at a step, before a write or within one, in either sweep, and once more: the same bits, little lost."""
    expected = whole[name]
    count = expected["steps" if what == "steps" else "writes"]
    every = 1 if name == "revolve" else 7
    places = range(1, count + 1, every) if FULL else (count // 3, 4 * count // 5)
    killed = 0
    for at in places:
        directory = tmp_path / f"{at}"
        if run(directory, name, what, at, tmp_path / "out") is not None:
            continue  # the last writes may come after the gradient
        killed += 1
        # Killed once more, while it goes on.
        run(directory, name, "steps", 7, tmp_path / "out")
        found = run(directory, name, "none", 0, tmp_path / "out")
        assert found is not None
        assert found["bits"] == expected["bits"], (name, what, at)
        assert found["steps"] <= expected["steps"] + STEPS, (name, what, at)
        assert not directory.exists()
    assert killed >= len(places) - 1


def test_time_limit(whole: dict[str, Any], tmp_path: Path) -> None:
    """A job that is killed after a tenth of the steps, again and again, comes to its end."""
    expected = whole["revolve"]
    share = expected["steps"] // 10
    found, leg = None, 0
    while found is None and leg < 40:
        leg += 1
        found = run(tmp_path / "run", "revolve", "steps", share + 6, tmp_path / "out")
    assert found is not None
    assert found["bits"] == expected["bits"]
    assert leg <= 13


class Ticker:
    """Inputs that are the step numbers, and end the run at one of its steps. They are no part of the step's code."""

    def __init__(self, stop: int = 0) -> None:
        self.calls, self.stop = 0, stop

    def __call__(self, index: int) -> int:
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt
        return index


def scaled(directory: Path, u: Any, factor: Any, steps: int = 12, stop: int = 0) -> Any:
    """A gradient through a loop that may be interrupted."""

    def objective(u: Any) -> Any:
        return np.sum(
            timeloop(
                lambda x, i: np.sin(x) * factor,
                u,
                steps,
                inputs=Ticker(stop),
                schedule=Revolve(3),
                resume=directory,
                resume_every=2,
            )
        )

    return grad(objective)(u)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"u": U * 2.0}, "initial value of leaf 0"),
        ({"u": U.astype(np.float32), "factor": np.full(20, 2.0, np.float32)}, "float32"),
        ({"u": U[:5], "factor": np.full(5, 2.0)}, r"float64\[5\]"),
        ({"steps": 13}, "steps: 13 now, 12 in"),
        ({"factor": np.full(20, 3.0)}, "code of step|static value"),
    ],
)
def test_another_run_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    """A call that is not the one that was interrupted is refused with both values, and spoils nothing."""
    given: dict[str, Any] = {"u": U, "factor": np.full(20, 2.0)}
    with pytest.raises(KeyboardInterrupt):
        scaled(tmp_path / "run", **given, stop=10)
    with pytest.raises(ResumeError, match=words):
        scaled(tmp_path / "run", **(given | change))
    found = scaled(tmp_path / "run", **given)
    assert np.array_equal(found, scaled(tmp_path / "other", **given))


def test_another_cotangent_is_refused(tmp_path: Path) -> None:
    """What comes after the loop must give the same cotangent as before the kill."""

    def gradient(weight: float, stop: int = 0) -> Any:
        options = {"schedule": Revolve(3), "inputs": Ticker(stop), "resume": tmp_path / "run", "resume_every": 2}
        return grad(lambda u: weight * np.sum(timeloop(lambda x, i: np.sin(x), u, 20, **options)))(U)

    expected = gradient(2.0)
    with pytest.raises(KeyboardInterrupt):
        gradient(2.0, 45)
    with pytest.raises(ResumeError, match="incoming cotangent"):
        gradient(3.0)
    assert np.array_equal(gradient(2.0), expected)


def test_several_loops_of_a_gradient(tmp_path: Path) -> None:
    """`resume=` of a gradient serves all its loops, by their order."""
    directory = tmp_path / "run"

    def gradient(ticker: Ticker) -> Any:
        def step(x: Any, i: Any) -> Any:
            return np.sin(x) * 1.01

        def objective(u: Any) -> Any:
            options = {"schedule": Revolve(2), "inputs": ticker, "resume_every": 2}
            first = timeloop(step, u, 15, **options)
            return np.sum(timeloop(step, first * 2.0, 10, **options) ** 2)

        return grad(objective, resume=directory)(U)

    whole = Ticker()
    expected = gradient(whole)
    for stop in range(3, whole.calls, 11):
        with pytest.raises(KeyboardInterrupt):
            gradient(Ticker(stop))
        again = Ticker()
        assert np.array_equal(gradient(again), expected)
        assert again.calls < whole.calls + 10
        assert not directory.exists()


def test_nested_derivatives_are_refused(tmp_path: Path) -> None:
    """Derivatives of a derivative cannot be resumed, and say so before any step is lost."""

    def inner(u: Any) -> Any:
        return np.sum(timeloop(lambda x, i: np.sin(x), u, 5, resume=tmp_path / "run"))

    with pytest.raises(ebbtide.TraceError, match="resume="):
        grad(lambda u: np.sum(grad(inner)(u) ** 2))(U)


def test_an_error_gives_the_directory_free(tmp_path: Path) -> None:
    """After an interrupt the same process may go on at once, though its traceback is still held."""
    given: dict[str, Any] = {"u": U, "factor": np.full(20, 2.0)}
    held = []
    for stop in (10, 4):
        with pytest.raises(KeyboardInterrupt) as caught:
            scaled(tmp_path / "run", **given, stop=stop)
        held.append(caught)
    assert np.array_equal(scaled(tmp_path / "run", **given), scaled(tmp_path / "other", **given))
    assert not (tmp_path / "run").exists()
