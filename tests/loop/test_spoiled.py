"""
Runs whose steps disagree, in what no fingerprint sees, leave nothing that a later call goes on from.

What a step computes with stands in a context variable, as it could in a file: no code tells of it by a name.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop.lost import unsynchronized

from ebbtide import DeterminismError, checkpoint, grad, timeloop
from ebbtide.schedules import Mixed, Revolve, StoreAll
from ebbtide.storage.listing import list_storage

U = np.linspace(0.5, 1.0, 6)
STEPS = 12
SCHEDULES = {"store all": StoreAll(), "revolve": Revolve(3), "mixed": Mixed(3)}
HIDDEN: ContextVar[Any] = ContextVar("HIDDEN")


def step(u: Any, i: int) -> Any:
    """A step that computes with what is hidden, but for the first one, which each run has to do again."""
    return u + 0.1 * HIDDEN.get()(i) * np.sin(u)


def hidden(scale: float, stop: int = 0) -> Any:
    """What steps find: a number, or Ctrl-C in the step that is run as number *stop*."""
    count = 0

    def find(i: int) -> float:
        nonlocal count
        count += 1
        if count == stop:
            raise KeyboardInterrupt
        return scale if i else 1.0

    return find


def gradient(found: Any, directory: Path | None, *, own: bool = False, **options: Any) -> bytes:
    """The bits of a gradient, for its directory or with a directory of the loop's own."""
    HIDDEN.set(found)
    inside, outside = (directory, None) if own else (None, directory)
    with unsynchronized():
        run = grad(lambda u: np.sum(timeloop(step, u, STEPS, resume=inside, **options) ** 2), resume=outside)
        return run(U).tobytes()


def right_again(expected: bytes, wrong: Any, directory: Path, **options: Any) -> None:
    """Check that a call is refused by its steps, leaves nothing, says so, and that the right one ends right."""
    with pytest.raises(DeterminismError) as caught:
        gradient(wrong, directory, **options)
    assert f"kept in {directory} is removed" in str(caught.value)
    assert not directory.exists()
    assert gradient(hidden(1.0), directory, **options) == expected
    assert not directory.exists()


PLACES = [("store all", 1, 7), ("store all", 4, 12), ("revolve", 1, 7), ("revolve", 4, 17), ("mixed", 1, 17)]


@pytest.mark.parametrize(("name", "every", "stop"), PLACES)
def test_the_right_call_ends_right_after_steps_that_disagree(
    name: str, every: int, stop: int, tmp_path: Path
) -> None:
    """A killed run, the same with other steps, which is refused, and the first one once more."""
    options = {"own": name == "mixed", "schedule": SCHEDULES[name], "resume_every": every}
    expected = gradient(hidden(1.0), None, **options)
    with pytest.raises(KeyboardInterrupt):
        gradient(hidden(1.0, stop), tmp_path / "run", **options)
    right_again(expected, hidden(2.0), tmp_path / "run", **options)


def test_steps_that_change_within_a_run(tmp_path: Path) -> None:
    """Other steps for a while, of one process: what it kept of them was the beginning of the next one."""
    options = {"schedule": SCHEDULES["revolve"], "resume_every": 1}
    expected = gradient(hidden(1.0), None, **options)
    for begin, end in ((4, 14), (9, 19)):
        count = iter(range(100))
        right_again(expected, lambda i: 2.0 if begin <= next(count) < end else 1.0, tmp_path / "run", **options)


def test_the_directories_of_other_loops_go_too(tmp_path: Path) -> None:
    """Where each loop has one; but not where a function after the loops is what gives another result."""

    def objective(u: Any, after: Any = np.cos) -> Any:
        for name in ("first", "second"):
            u = timeloop(step, u, STEPS, resume=tmp_path / name, schedule=Revolve(3), resume_every=1)
        return np.sum(after(u))

    def kept() -> set[str]:
        return {path.name for path in tmp_path.iterdir()}

    HIDDEN.set(hidden(1.0))
    with unsynchronized():
        expected = grad(objective)(U)
        assert kept() == set()
        found = iter(range(10))
        with pytest.raises(DeterminismError, match="checkpoint"):
            grad(lambda u: objective(u, checkpoint(lambda x: np.cos(x * next(found)))))(U)
        assert kept() == {"first", "second"}
        HIDDEN.set(hidden(2.0))
        with pytest.raises(DeterminismError) as caught:
            grad(objective)(U)
        assert all(f"kept in {tmp_path / name} is removed" in str(caught.value) for name in ("first", "second"))
        assert kept() == set()
        HIDDEN.set(hidden(1.0))
        assert np.array_equal(grad(objective)(U), expected)


@pytest.mark.parametrize("stop", [7, 17])
def test_another_first_step_is_told_before_anything_is_kept(stop: int, tmp_path: Path) -> None:
    """What was kept is as it was, and the right call goes on from there."""
    options = {"schedule": SCHEDULES["revolve"], "resume_every": 1}
    expected, ran = gradient(hidden(1.0), None, **options), list[int]()
    with pytest.raises(KeyboardInterrupt):
        gradient(hidden(1.0, stop), tmp_path / "run", **options)
    before = {entry.key: entry.generation for entry in list_storage(tmp_path / "run").entries}
    for _ in range(2):
        with pytest.raises(DeterminismError, match=f"Step 0 .*ebbtide clean {tmp_path / 'run'}"):
            gradient(lambda i: 2.0, tmp_path / "run", **options)
        assert {entry.key: entry.generation for entry in list_storage(tmp_path / "run").entries} == before

    def counted(i: int) -> float:
        ran.append(i)
        return 1.0

    assert gradient(counted, tmp_path / "run", **options) == expected
    assert (ran[0], 1 in ran[:2]) == (0, False)
