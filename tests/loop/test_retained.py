"""A pullback that is kept, of loops with disk: each call goes on from what the first one left there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import sample

from ebbtide import Budget, grad, timeloop, vjp
from ebbtide.schedules import Costs, StoreAll

U = np.linspace(0.3, 1.2, 40_000)
STATE = U.nbytes
STEPS = 30
# What is stored there costs next to nothing.
CHEAP = Costs(forward=1.0, reverse=2.0, write=0.01, read=0.01)
NEAR, FAR = Costs(forward=1.0, reverse=2.0, write=0.1, read=0.1), Costs(forward=1.0, reverse=2.0, write=1.0, read=1.0)


def loop(k: Any, u: Any, **options: Any) -> Any:
    """A loop whose steps save two states."""
    return timeloop(lambda u, i: u + 0.01 * np.sin(u * k), u, STEPS, **options)


def one(k: Any) -> Any:
    """A loop that stores on disk what its steps save."""
    return np.sum(loop(k, k, schedule=StoreAll("disk")) ** 2)


def two(k: Any) -> Any:
    """Two in turn whose plans do so by choice, and give it up for each other."""
    return np.sum(loop(k, loop(k, k, costs=CHEAP), costs=CHEAP) ** 2)


@pytest.mark.parametrize("states", sample([6.2, 7, 7.5, 8, 8.2, 8.5, 8.7, 9, 9.5, 10, 11, 12], 3))
def test_no_pull_is_refused_in_a_budget_in_which_the_function_ran(states: float, tmp_path: Path) -> None:
    """What the first pull has paged of a step goes with that, though the next begins with what the step saved."""
    _check(one, int(states * STATE), tmp_path)


@pytest.mark.parametrize("states", sample([12, 9, 10.5, 15.5, 13.5, 14, 17, 20], 3))
def test_loops_that_gave_up_what_steps_saved_begin_again(states: float, tmp_path: Path) -> None:
    """A loop that goes back to its initial state in one sweep does so in the next."""
    _check(two, int(states * STATE), tmp_path)


# A loop between what is kept for the sweeps to come, which costs as much to store as to run a step.
EVEN = Costs(forward=1.0, reverse=2.0, write=1.0, read=1.0)


def between(u: Any) -> Any:
    """A loop of steps that save three states, after two saved values and before three."""
    start = np.exp(-np.sin(u) * u)
    end = timeloop(lambda x, i: x + 0.01 * np.sin(x) * np.cos(x), start, 40, costs=EVEN)
    return np.sum(np.sin(np.sin(np.sin(end))))


@pytest.mark.parametrize("states", [7.55, 7.9, 8.3, 8.65, 9, 9.8])
def test_what_is_kept_beside_a_loop_goes_to_disk_for_it(states: float, tmp_path: Path) -> None:
    """
    The second pull was refused for what the sweep after the loop had fitted with: the loop has its pages, and the disk.

    The disk is full by then, and the loop gives up a part of its own while it plans.
    """
    _check(between, int(states * STATE), tmp_path, disk=16 * STATE)


def unequal(u: Any) -> Any:
    """Two in turn, of which the first has wider steps in between."""
    wide = lambda x: np.maximum(x + 0.01 * np.sin(np.sin(np.sin(x))), 0.5 * x * x)
    first = lambda x, i: x * (1 - 0.01 * np.cos(x)) if i % 3 else wide(x)
    between = timeloop(first, np.sin(u) + u, 12, costs=NEAR)
    return np.sum(timeloop(lambda x, i: x + 0.02 * np.cos(x), between, 6, costs=NEAR) * u)


def before(u: Any) -> Any:
    """Two in turn, after code that saves some."""
    between = timeloop(lambda x, i: x * (1 - 0.01 * x), np.exp(-np.sin(u) * u), 12, costs=FAR)
    return np.sum(timeloop(lambda x, i: x + 0.02 * np.cos(x), between, 6, costs=NEAR) * u)


@pytest.mark.parametrize("disk", sample([5, 8, 10], 2))
@pytest.mark.parametrize(
    ("f", "states"), [(before, 7), (before, 7.45), (before, 7.9), (unequal, 8.25), (unequal, 8.7), (unequal, 9.1)]
)
def test_two_loops_in_turn_share_a_small_disk(f: Any, states: float, disk: int, tmp_path: Path) -> None:
    """
    Where the disk is full of what one loop has there, the other one brings its state there all the same.

    It was refused: the bytes on disk that were free had not gone back, a loop whose sweep was over had its state in
    memory to the end, and one that is kept did not give up what its last step saved.
    """
    _check(f, int(states * STATE), tmp_path, disk=disk * STATE)


@pytest.mark.parametrize("loops", [2, 3])
def test_loops_in_turn_do_with_little_where_there_is_disk(loops: int, tmp_path: Path) -> None:
    """Each has its state there, and runs its last step again: in 6.7 and 6.8 states, where it took 8.7 and 10.8."""

    def f(k: Any) -> Any:
        u = k
        for _ in range(loops):
            u = loop(k, u, costs=NEAR)
        return np.sum(u**2)

    _check(f, int((6.6 + 0.1 * loops) * STATE), tmp_path)


def _check(f: Any, memory: int, directory: Path, disk: Any = "64 MiB") -> None:
    """Pull three times, within the budget, with the same bits, and leave nothing behind."""
    expected, budget, found = grad(f)(U), Budget(memory, disk, directory), list[Any]()

    def call() -> None:
        found.clear()
        pull = vjp(f, U, retain=True, budget=budget)[1]
        for _ in range(3):
            found[:] = [*found[-1:], pull(1.0)[0]]
            assert np.array_equal(found[-1], expected)

    alone = peak_bytes(lambda: f(U))
    call()
    found.clear()
    # The gradient of the pull before is the caller's.
    assert peak_bytes(call) - alone <= memory + 2 * STATE
    found.clear()
    assert list(directory.iterdir()) == []


def test_a_sweep_leaves_no_file_for_each_step(tmp_path: Path) -> None:
    """Where steps page while they are swept, their files are removed, and not kept until the pullback is dropped."""
    _, pull = vjp(one, U, retain=True, budget=Budget(int(8.6 * STATE), "64 MiB", tmp_path))
    counts = []
    for _ in range(3):
        pull(1.0)
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[1] == counts[2] <= counts[0]
    assert len(list(tmp_path.iterdir())) <= 2


@pytest.mark.parametrize("pulled", [0, 1, 2])
@pytest.mark.parametrize("share", sample([0.14, 0.3, 0.5, 0.7, 0.86, 0.98], 2))
def test_what_is_lost_in_one_sweep_is_not_asked_for_in_the_next(pulled: int, share: float, tmp_path: Path) -> None:
    """A loop that goes back to its initial state, as what a step saved is lost, begins each sweep from there."""
    u = U[:4000]

    def f(k: Any) -> Any:
        return np.sum(timeloop(lambda u, i: u + 0.01 * np.sin(u * k), k, 12, schedule=StoreAll("disk")) ** 2)

    expected = grad(f)(u)
    _, pull = vjp(f, u, retain=True, budget=Budget("4 MiB", "8 MiB", tmp_path))
    for _ in range(pulled):
        assert np.array_equal(pull(1.0)[0], expected)
    for path in [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > u.nbytes]:
        with path.open("r+b") as file:
            file.seek(int(path.stat().st_size * share))
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 255]))
    with pytest.warns(RuntimeWarning, match="are lost"):
        found = pull(1.0)[0]
    for _ in range(2):
        assert np.array_equal(found, expected)
        found = pull(1.0)[0]
    assert np.array_equal(found, expected)
