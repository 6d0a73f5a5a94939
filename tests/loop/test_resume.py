"""Runs that are killed and started again: real processes, real kills, the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebbtide
from ebbtide import ResumeError, grad, timeloop
from ebbtide.schedules import Revolve

U = np.linspace(0.5, 1.0, 20)


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
