"""A loop with disk brings its last restart state there, where others need its memory; and goes on from there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop import trouble
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, BudgetError, checkpoint, grad, profile, timeloop, vjp
from ebbtide.schedules import Costs, Hierarchical, Mixed, Periodic, Revolve

U = np.linspace(0.2, 1.1, 4 * 16384)
STATE = U.nbytes
STEPS = 12
# No plan goes to disk by choice.
DEAR = Costs(forward=1.0, reverse=2.0, write=1e6, read=1e6)


def step(u: Any, i: int) -> Any:
    """Save three values."""
    return u + 0.1 * np.sin(u) * np.cos(u)


def later(u: Any) -> Any:
    """What comes after the loop: it needs memory that nothing on disk can stand for."""

    def run(v: Any) -> Any:
        for _ in range(10):
            v = np.sin(v) * v
        return np.sum(v)

    return checkpoint(run)(u)


def known(u: Any, **options: Any) -> Any:
    """The last state of a loop."""
    return timeloop(step, u, STEPS, **{"costs": DEAR, **options})


def found_out(u: Any, **options: Any) -> Any:
    """The same of a loop that ends by a condition."""
    length = {"until": lambda x: x[1] >= STEPS, "max_steps": 2 * STEPS}
    return timeloop(lambda x, i: (step(x[0], i), x[1] + 1), (u, 0), **length, **{"costs": DEAR, **options})[0]


def drawn(u: Any, **options: Any) -> Any:
    """The same of a loop whose state has random numbers and a number."""

    def noisy(x: Any, i: int) -> Any:
        v, random, count = x
        return step(v, i) + 0.01 * random.standard_normal(v.shape), random, count + 1

    start = (u, np.random.default_rng(3), 0)
    return timeloop(noisy, start, STEPS, **{"costs": DEAR, **options})[0]


@pytest.mark.parametrize("loop", [known, found_out, drawn])
def test_code_after_a_loop_has_the_memory_of_its_last_state(loop: Any, tmp_path: Path) -> None:
    """Within a state less than without disk, once written and read back, with the same bits."""

    def f(u: Any) -> Any:
        return later(loop(u))

    def run(memory: int, disk: int = 4 * STATE) -> Any:
        return grad(f, budget=Budget(memory, disk, tmp_path))(U)

    expected, alone = grad(f)(U), peak_bytes(lambda: f(U))
    least, found = find_least(run), list[Any]()
    assert find_least(lambda memory: run(memory, 0)) >= least + 0.9 * STATE
    with profile() as p:
        assert run(least).tobytes() == expected.tobytes()
    assert p.disk_writes >= 1
    assert p.bytes_written >= STATE
    assert peak_bytes(lambda: found.append(run(least))) - alone <= least
    assert found[0].tobytes() == expected.tobytes()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "schedule", [Revolve(3), Mixed(6, 1, 3), Periodic(4, 2), Hierarchical(2, 2, Costs(write=1.0, read=1.0))], ids=repr
)
def test_whatever_the_schedule(schedule: Any, tmp_path: Path) -> None:
    """A schedule that was asked for gives up all but one state, and that is on disk; with room for two there, too."""

    def f(u: Any) -> Any:
        return later(known(u, schedule=schedule))

    def run(memory: int, disk: int = 40 * STATE) -> Any:
        return grad(f, budget=Budget(memory, disk, tmp_path))(U)

    expected, alone = grad(f)(U), peak_bytes(lambda: f(U))
    for disk in (40 * STATE, 2 * STATE + 16384) if not isinstance(schedule, Periodic) else (40 * STATE,):
        least, found = find_least(lambda memory, disk=disk: run(memory, disk)), list[Any]()
        peak = peak_bytes(lambda least=least, disk=disk, found=found: found.append(run(least, disk)))
        assert peak - alone <= least
        assert found[0].tobytes() == expected.tobytes()


def test_a_state_that_cannot_be_written_stays(tmp_path: Path) -> None:
    """With one warning; what then does not fit, here a second loop, is refused, and no file is left."""

    def f(u: Any) -> Any:
        return np.sum(timeloop(lambda v, i: np.sin(np.cos(v) * v) * np.exp(-v) * v, known(u), 4, costs=DEAR))

    def run(memory: int) -> Any:
        return grad(f, budget=Budget(memory, 4 * STATE, tmp_path))(U)

    least, before = find_least(run), len(list(Path("/proc/self/fd").iterdir()))
    events = trouble.Events(1, trouble.fail(errno.EIO), ("pwrite", "allocate"), lasting=True)
    with events.installed(), pytest.warns(RuntimeWarning) as warned, pytest.raises(BudgetError) as refused:
        run(least)
    assert len([one for one in warned if one.category is RuntimeWarning]) == 1
    assert refused.value.least > least
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(tmp_path.iterdir()) == []
    events = trouble.Events(1, trouble.fail(errno.EIO), ("pwrite", "allocate"), lasting=True)
    found: list[Any] = []
    with events.installed(), pytest.warns(RuntimeWarning):
        enough = find_least(lambda memory: found.append(run(memory)))
    assert found[-1].tobytes() == grad(f)(U).tobytes()
    assert refused.value.least <= enough <= least + 2.1 * STATE


def test_a_pullback_that_is_kept_begins_on_disk_each_time(tmp_path: Path) -> None:
    """The state that every pull begins with may lie there."""

    def f(u: Any) -> Any:
        return later(known(u))

    def run(memory: int) -> list[bytes]:
        _, pull = vjp(f, U, budget=Budget(memory, 4 * STATE, tmp_path), retain=True)
        return [pull(np.float64(scale))[0].tobytes() for scale in (1.0, -2.0, 1.0)]

    _, pull = vjp(f, U, retain=True)
    expected = [pull(np.float64(scale))[0].tobytes() for scale in (1.0, -2.0, 1.0)]
    assert run(find_least(run)) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_loop_at_rest_gives_up_what_the_interpreter_has_for_states_on_disk(tmp_path: Path) -> None:
    """So that code after a loop of many small states is refused by the same number, wherever these are."""
    u = np.linspace(0.2, 1.1, 2000)

    def named(transfer: float) -> int:
        costs = Costs(forward=1.0, reverse=2.0, write=transfer, read=transfer)

        def run(memory: int) -> Any:
            f = lambda v: later(timeloop(step, v, 19, costs=costs))
            return grad(f, budget=Budget(memory, 400 * u.nbytes, tmp_path))(u)

        least = find_least(run)
        run(least)
        return least

    assert named(0.01) == named(1e6)
