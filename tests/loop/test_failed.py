"""
What is left of a call that failed, while its error is held.

A traceback holds the frames of the user's function, and with them the results of its loops; a notebook holds the last
traceback until the next one. Loops let go of their snapshots, files and locks all the same.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, BudgetError, checkpoint, grad, hvp, profile, timeloop, value_and_grad, vjp
from ebbtide.schedules import Hierarchical, Revolve
from ebbtide.storage import Disk

U = np.linspace(0.1, 0.9, 20_000)
COUNT = 20


class StoppedError(Exception):
    """Stops the user's function where it is raised."""


def step(u: Any, i: int) -> Any:
    """A step that saves."""
    return u * (1.0 - 1e-3 * np.sin(u))


def after(u: Any, fails: Callable[[], None], **options: Any) -> Any:
    """Fails after a loop."""
    u = timeloop(step, u, COUNT, **options)
    fails()
    return np.sum(u * u)


def in_second(u: Any, fails: Callable[[], None], **options: Any) -> Any:
    """Fails in the third step of a second loop."""
    u = timeloop(step, u, COUNT, **options)

    def failing(u: Any, i: int) -> Any:
        if i == 3:
            fails()
        return step(u, i)

    return np.sum(timeloop(failing, u, COUNT))


def in_first_step(u: Any, fails: Callable[[], None], **options: Any) -> Any:
    """Fails in the first step of a loop, which is measured, after a loop in it."""
    return in_outer_step(u, fails, 0, **options)


def in_outer_step(u: Any, fails: Callable[[], None], index: int = 2, **options: Any) -> Any:
    """Fails in a step of a loop, after a loop in it."""

    def outer(u: Any, i: int) -> Any:
        inner = timeloop(step, u, COUNT, **options)
        if i == index:
            fails()
        return inner

    return np.sum(timeloop(outer, u, 4))


def in_checkpoint(u: Any, fails: Callable[[], None], **options: Any) -> Any:
    """Fails in a checkpointed function, after a loop in it, when it runs again."""
    runs = []

    @checkpoint
    def inner(u: Any) -> Any:
        u = timeloop(step, u, COUNT, **options)
        runs.append(0)
        if len(runs) == 2:
            fails()
        return u * u

    return np.sum(inner(u))


def in_inner_gradient(u: Any, fails: Callable[[], None], **options: Any) -> Any:
    """Fails in an inner gradient, after its loop."""
    return np.sum(grad(lambda v: after(v, fails, **options))(u))


def in_profile(u: Any, fails: Callable[[], None], **options: Any) -> Any:
    """Fails after the block of a profile with a loop in it."""
    with profile():
        u = timeloop(step, u, COUNT, **options)
    fails()
    return np.sum(u * u)


PLACES = [after, in_second, in_first_step, in_outer_step, in_checkpoint, in_inner_gradient, in_profile]


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("where", ["budget", "own budget", "storage"])
def test_files_go_with_a_call_that_failed(where: str, place: Any, error: Any, tmp_path: Path) -> None:
    """They were there when it failed."""
    budget, seen = Budget(8 * U.nbytes, disk=400 * U.nbytes, directory=tmp_path), list[int]()

    def fails() -> None:
        seen.append(len(list(tmp_path.iterdir())))
        raise error

    asked: dict[str, Any] = {"schedule": Hierarchical(1, 8)}
    if where != "budget":
        asked |= {"budget": budget} if where == "own budget" else {"storage": Disk(tmp_path)}
    run = grad(lambda u: place(u, fails, **asked), budget=budget if where == "budget" else None)
    with pytest.raises(error) as caught:
        run(U)
    assert seen[-1] >= 1
    assert caught.value.__traceback__ is not None
    if where == "storage":
        asked["storage"].close()  # the user's own, which loops do not close
    assert list(tmp_path.iterdir()) == []


def test_files_go_with_a_pullback_that_failed(tmp_path: Path) -> None:
    """Those of the loops that it had not come to, too; not those of another pullback."""
    fails = [False]

    def failing(u: Any, i: int) -> Any:
        if fails[0]:
            raise StoppedError
        return step(u, i)

    def f(u: Any) -> Any:
        u = timeloop(step, u, COUNT, schedule=Hierarchical(1, 8))
        return timeloop(failing, u, COUNT, schedule=Hierarchical(1, 8), verify=False)

    budget = Budget(20 * U.nbytes, disk=400 * U.nbytes, directory=tmp_path)
    expected = vjp(f, U)[1](U)[0]
    _, earlier = vjp(f, U, budget=budget)
    _, pullback = vjp(f, U, budget=budget)
    _, later = vjp(f, U, budget=budget)
    fails[0] = True
    with pytest.raises(StoppedError) as caught:
        pullback(U)
    fails[0] = False
    assert len(list(tmp_path.iterdir())) == 4
    for other in (earlier, later):
        assert other(U)[0].tobytes() == expected.tobytes()
    assert caught.value.__traceback__ is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("transform", ["grad", "vjp", "hvp"])
def test_snapshots_go_with_a_call_that_failed(transform: str) -> None:
    """What the frames of the user's function hold is left."""

    def fails() -> None:
        raise StoppedError

    def f(u: Any) -> Any:
        return after(u, fails, schedule=Revolve(16))

    runs = {"grad": lambda: grad(f)(U), "vjp": lambda: vjp(f, U), "hvp": lambda: hvp(f)(U, U)}
    with pytest.raises(StoppedError):
        runs[transform]()  # once for what is made at the first use
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(StoppedError) as caught:
            runs[transform]()
        held = tracemalloc.get_traced_memory()[0] - before
        assert caught.value.__traceback__ is not None
    finally:
        tracemalloc.stop()
    assert held < 5 * U.nbytes * (2 if transform == "hvp" else 1)


def test_a_refusal_after_a_loop_leaves_no_file(tmp_path: Path) -> None:
    """The budget does for the loop and is too small for what comes after it."""

    def f(u: Any) -> Any:
        u = timeloop(step, u, COUNT)
        for _ in range(5):
            u = np.sin(u) * np.exp(-u)
        return np.sum(u)

    def refused(memory: int) -> int:
        with pytest.raises(BudgetError) as caught:
            grad(f, budget=Budget(memory, disk=400 * U.nbytes, directory=tmp_path))(U)
        assert list(tmp_path.iterdir()) == []
        return int(caught.value.least)

    assert refused(refused(0)) > refused(0)


@pytest.mark.parametrize("place", [after, in_second], ids=lambda place: place.__name__)
@pytest.mark.parametrize("of_loop", [True, False])
def test_a_resumable_call_that_failed_is_taken_up_while_its_error_is_held(
    place: Any, of_loop: bool, tmp_path: Path
) -> None:
    """By the same process, as from the next cell of a notebook."""
    directory = tmp_path / "run"

    def fails() -> None:
        if not (tmp_path / "mended").exists():  # nothing that the step knows changes
            raise StoppedError

    def f(u: Any) -> Any:
        return place(u, fails, **({"resume": directory} if of_loop else {}))

    run = value_and_grad(f, resume=None if of_loop else directory)
    with pytest.raises(StoppedError) as caught:
        run(U)
    (tmp_path / "mended").touch()
    value, gradient = run(U)
    assert caught.value.__traceback__ is not None
    expected_value, expected = value_and_grad(lambda u: place(u, fails))(U)
    assert value == expected_value
    assert gradient.tobytes() == expected.tobytes()
