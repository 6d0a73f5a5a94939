from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from tests.storages import Delegating

from ebbtide import Budget, grad, primitive, profile, timeloop, vjp
from ebbtide.errors import StorageError
from ebbtide.loop import loss, measure, plan, room, run, snapshots
from ebbtide.loop.run import LoopRule
from ebbtide.schedules import Costs, Hierarchical, Mixed, Revolve
from ebbtide.storage import Disk

U = np.linspace(0.0, 1.0, 4000)
STEPS = 24


class Processes:
    """Threads that stand for the processes of a run: `agree` is the largest value over them, as they all come to it."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=60)
        self.given: dict[int, Any] = {}
        self.local = threading.local()

    def agree(self, value: Any) -> Any:
        """Return the largest value over all processes, entry by entry for tuples."""
        if not hasattr(self.local, "rank"):
            return value
        self.given[self.local.rank] = value
        self.barrier.wait()
        values = [self.given[rank] for rank in sorted(self.given)]
        self.barrier.wait()
        if isinstance(value, tuple):
            return tuple(max(entries) for entries in zip(*values, strict=True))
        return max(values)


class Failing(Delegating):
    """A storage that loses what it is given for some steps."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        super().__init__()
        self._steps = steps

    def put(self, key: Any, arrays: Any, *, kind: str = "") -> int:
        if int(key.rsplit("-", 2)[1]) in self._steps:
            raise StorageError("This storage is out of order.")
        return super().put(key, arrays, kind=kind)


def run_processes(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> tuple[list[Any], list[list[str]]]:
    """Return the results of calls that run side by side, and the actions that the loop of each followed."""
    group = Processes(len(calls))
    for module in (loss, measure, plan, room, run, snapshots, sys.modules["ebbtide.loop.timeloop"]):
        monkeypatch.setattr(module, "agree", group.agree)
    actions: list[list[str]] = [[] for _ in calls]
    follow = LoopRule.follow

    def noted(rule: LoopRule, action: Any, *args: Any, **kwargs: Any) -> None:
        follow(rule, action, *args, **kwargs)
        if hasattr(group.local, "rank"):
            actions[group.local.rank].append(str(action))

    monkeypatch.setattr(LoopRule, "follow", noted)
    results: list[Any] = [None] * len(calls)

    def work(rank: int) -> None:
        group.local.rank = rank
        try:
            results[rank] = calls[rank]()
        except BaseException as error:  # noqa: BLE001 - told to the test, and the others do not wait for it
            results[rank] = error
            group.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results, actions


def objective(u: Any, **options: Any) -> Any:
    """Return a number that all steps of a loop lead to."""
    u = timeloop(lambda u, i: u + 0.1 * np.sin(u) * np.cos(u), u, STEPS, **options)
    return np.sum(u * u)


EXPECTED = grad(objective)(U)


@pytest.mark.filterwarnings("ignore:The restart values:RuntimeWarning", "ignore:The saved values:RuntimeWarning")
@pytest.mark.parametrize("schedule", [Revolve(5), Hierarchical(2, 4, Costs(write=2.0, read=2.0)), Mixed(4)], ids=repr)
@pytest.mark.parametrize("lost", [((), (0, 6)), ((9, 16), (17,)), (tuple(range(1, STEPS)), ())], ids=repr)
def test_what_one_process_loses_all_do_without(schedule, lost, monkeypatch):
    """Where one process cannot store a state, all follow the same schedule without it, and each gradient is right."""

    def call(steps: tuple[int, ...]) -> Any:
        storage = Failing(steps)
        try:
            return grad(lambda u: objective(u, schedule=schedule, storage=storage))(U)
        finally:
            storage.close()

    calls = [lambda steps=steps: call(steps) for steps in lost]
    results, actions = run_processes(monkeypatch, calls)
    assert actions[0] == actions[1]
    assert len(actions[0]) > STEPS // 2
    for result in results:
        assert result.tobytes() == EXPECTED.tobytes()


@pytest.mark.parametrize("budgets", [(40, 14), (11, 26), (100, 18)], ids=repr)
def test_the_process_with_the_least_room_decides(budgets, monkeypatch):
    """Processes with different budgets and costs follow the schedule that all of them have room for."""

    def call(states: int) -> Any:
        costs = Costs(forward=float(states), reverse=3.0)
        return grad(lambda u: objective(u, costs=costs), budget=Budget(memory=states * U.nbytes))(U)

    results, actions = run_processes(monkeypatch, [lambda states=states: call(states) for states in budgets])
    assert actions[0] == actions[1]
    for result in results:
        assert result.tobytes() == EXPECTED.tobytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_grows_in_one_process_changes_the_plan_of_all(rank, monkeypatch):
    """Where a step of one process saves more than planned, all give up the same snapshots."""

    def grown(u: Any, big: bool) -> Any:
        def step(u: Any, i: int) -> Any:
            u = u + 0.1 * np.sin(u) * np.cos(u)
            for _ in range(3 if big and i > 12 else 0):
                u = np.sin(u) + 0.01 * np.cos(u)
            return u

        u = timeloop(step, u, STEPS, costs=Costs())
        return np.sum(u * u)

    budget = Budget(memory=22 * U.nbytes)
    calls = [lambda me=me: grad(lambda u: grown(u, me == rank), budget=budget)(U) for me in range(2)]
    results, actions = run_processes(monkeypatch, calls)
    assert actions[0] == actions[1]
    for me, result in enumerate(results):
        assert result.tobytes() == grad(lambda u, me=me: grown(u, me == rank))(U).tobytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_retained_sweeps_begin_alike(rank, monkeypatch):
    """Where one process has to make room for a retained sweep, all begin it, and the next one, at the same place."""

    def call(me: int) -> list[bytes]:
        def f(u: Any) -> Any:
            y = objective(u)
            for _ in range(12 if me == rank else 0):
                u = np.sin(u) * 1.1
            return y + np.sum(u)

        _, pullback = vjp(f, U, retain=True, budget=Budget(memory=85 * U.nbytes))
        found = [pullback(1.0)[0].tobytes() for _ in range(2)]
        pullback.free()
        return found

    results, actions = run_processes(monkeypatch, [lambda me=me: call(me) for me in range(2)])
    assert actions[0] == actions[1]
    for first, second in results:
        assert first == second


def test_steps_are_measured_in_one_order(monkeypatch):
    """Steps and sweeps that are run for their time may wait for other processes, so that their order is the same."""
    orders: list[list[str]] = [[], []]

    def call(rank: int, halves: int) -> Any:
        def told(text: str, value: Any) -> Any:
            orders[rank].append(text)
            return value

        exchange = primitive(lambda u: told("forward", 1.0 * u), vjp=(lambda g: told("reverse", 1.0 * g),))

        def step(u: Any, i: int) -> Any:
            u = exchange(u)
            return u + 0.1 * np.sin(u) * np.cos(u)

        return grad(lambda u: np.sum(timeloop(step, u, 40) ** 2), budget=Budget(memory=halves * U.nbytes // 2))(U)

    # In the second process there is room for a sweep that leaves the step as it is.
    calls = [lambda rank=rank, halves=halves: call(rank, halves) for rank, halves in enumerate((17, 80))]
    results, actions = run_processes(monkeypatch, calls)
    assert actions[0] == actions[1]
    assert orders[0] == orders[1]
    assert results[0].tobytes() == results[1].tobytes()


def test_a_profile_of_one_process_runs_no_step_alone(tmp_path, monkeypatch):
    """The steps that are swept twice, to estimate a loss, are swept twice in all processes or in none."""

    def call(watched: bool) -> Any:
        def step(u: Any, i: int) -> Any:
            return timeloop(lambda u, j: u + 0.1 * np.sin(u) * np.cos(u), u, 2, schedule=Revolve(1))

        with Disk(tmp_path, compression={"restart": "float32"}) as storage, profile() if watched else nullcontext():
            return grad(lambda u: np.sum(timeloop(step, u, STEPS, schedule=Revolve(3), storage=storage) ** 2))(U)

    results, actions = run_processes(monkeypatch, [lambda watched=watched: call(watched) for watched in (True, False)])
    assert actions[0] == actions[1]
    assert results[0].tobytes() == results[1].tobytes()
