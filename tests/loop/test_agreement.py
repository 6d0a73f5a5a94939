from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.storages import Delegating

from ebbtide import Budget, grad, primitive, profile, timeloop, vjp
from ebbtide.arrays.context import current, entered
from ebbtide.errors import BudgetError, StorageError
from ebbtide.loop.measuring.inside import Inside
from ebbtide.loop.planning.plan import make_plan
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.resuming.journal import Journal
from ebbtide.loop.resuming.journal_entries import Forward, Leaves, Reverse
from ebbtide.loop.run import LoopRule
from ebbtide.schedules import Costs, Hierarchical, Mixed, Revolve
from ebbtide.storage import Disk

U = np.linspace(0.0, 1.0, 4000)
STEPS = 24


class Processes:
    """Threads that stand for the processes of a run: the largest value over them counts, and they all come to it."""

    def __init__(self, count: int) -> None:
        self.size = count
        self.changed = threading.Condition()
        self.rounds: list[dict[int, Any]] = []
        self.failed = False

    def agree(self, rank: int, turn: int, value: Any) -> Any:
        """Return the largest value over all processes, entry by entry for tuples."""
        with self.changed:
            if turn == len(self.rounds):
                self.rounds.append({})
            given = self.rounds[turn]
            given[rank] = value
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(given) == self.size or self.failed, timeout=60)
        assert len(given) == self.size, "another process failed"
        if isinstance(value, tuple):
            return tuple(max(entries) for entries in zip(*given.values(), strict=True))
        return max(given.values())

    def fail(self) -> None:
        """Let nobody wait for a process that is gone."""
        with self.changed:
            self.failed = True
            self.changed.notify_all()


class Process:
    """One of them, as the calls of a context see it; counts what it is asked."""

    def __init__(self, group: Processes, rank: int) -> None:
        self.group, self.rank, self.size, self.own = group, rank, group.size, None
        self.watch = SimpleNamespace(loops=0)
        self.asked = 0

    def agree(self, value: Any) -> Any:
        self.asked += 1
        return self.group.agree(self.rank, self.asked - 1, value)


class Failing(Delegating):
    """A storage that loses what it is given for some steps."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        super().__init__()
        self._steps = steps
        self.refused = False

    def put(self, key: Any, arrays: Any, *, kind: str = "") -> int:
        if int(key.rsplit("-", 2)[1]) in self._steps:
            self.refused = True
            raise StorageError("This storage is out of order.")
        return super().put(key, arrays, kind=kind)


def run_processes(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> tuple[list[Any], list[list[str]]]:
    """Return the results of calls that run side by side, and the actions that the loop of each followed."""
    results, actions, _ = run_all(monkeypatch, calls)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results, actions


def run_all(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> tuple[list[Any], list[list[str]], list[int]]:
    """Return the results or errors of calls that run side by side, their actions, and how often each was asked."""
    group = Processes(len(calls))
    processes = [Process(group, rank) for rank in range(len(calls))]
    actions: list[list[str]] = [[] for _ in calls]
    follow = LoopRule.follow

    def noted(rule: LoopRule, action: Any, *args: Any, **kwargs: Any) -> None:
        follow(rule, action, *args, **kwargs)
        ranks = current().ranks
        if ranks is not None:
            actions[ranks.rank].append(str(action))

    monkeypatch.setattr(LoopRule, "follow", noted)
    results: list[Any] = [None] * len(calls)

    def work(rank: int) -> None:
        try:
            with entered(ranks=processes[rank]):
                results[rank] = calls[rank]()
        except BaseException as error:  # noqa: BLE001 - told to the test, and the others do not wait for it
            results[rank] = error
            group.fail()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, actions, [process.asked for process in processes]


def objective(u: Any, **options: Any) -> Any:
    """Return a number that all steps of a loop lead to."""
    u = timeloop(lambda u, i: u + 0.1 * np.sin(u) * np.cos(u), u, STEPS, **options)
    return np.sum(u * u)


EXPECTED = grad(objective)(U)


@pytest.mark.parametrize("schedule", [Revolve(5), Hierarchical(2, 4, Costs(write=2.0, read=2.0)), Mixed(4)], ids=repr)
@pytest.mark.parametrize("lost", [((), (0, 6)), ((9, 16), (17,)), (tuple(range(1, STEPS)), ())], ids=repr)
def test_a_process_that_loses_a_state_ends_and_the_others_go_no_other_way(schedule, lost, monkeypatch):
    """A process that cannot store a state raises the reason; one that can goes on as planned, without being asked."""
    storages = [Failing(steps) for steps in (*lost, ())]

    def call(storage: Failing) -> Any:
        try:
            return grad(lambda u: objective(u, schedule=schedule, storage=storage))(U)
        finally:
            storage.close()

    calls = [lambda storage=storage: call(storage) for storage in storages]
    results, actions, _ = run_all(monkeypatch, calls)
    whole = actions[-1]
    assert any(storage.refused for storage in storages)
    assert whole[-1] == "EndReverse()"
    for storage, result, followed in zip(storages, results, actions, strict=True):
        if storage.refused:
            assert isinstance(result, StorageError)
            assert "out of order" in str(result)
            assert followed == whole[: len(followed)]
        else:
            assert followed == whole
            assert result.tobytes() == EXPECTED.tobytes()


@pytest.mark.parametrize("budget", [Budget(memory=12 * U.nbytes), Budget(memory=9 * U.nbytes, disk=2**30)], ids=str)
def test_a_sweep_asks_nobody(budget, monkeypatch):
    """How often processes are asked for what they agree on does not depend on the number of steps."""

    def call(steps: int) -> Any:
        def f(u: Any) -> Any:
            return np.sum(timeloop(lambda u, i: u + 0.1 * np.sin(u), u, steps, costs=Costs()) ** 2)

        return grad(f, budget=budget)(U)

    counts = [run_all(monkeypatch, [lambda steps=steps: call(steps)] * 2)[2] for steps in (12, 96)]
    assert counts[0] == counts[1]
    assert max(counts[0]) < 12


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
def test_a_step_that_grows_in_one_process_ends_it(rank, monkeypatch):
    """Where a step of one process saves more than planned, it says what would do, and the others go on as planned."""

    def grown(u: Any, big: bool) -> Any:
        def step(u: Any, i: int) -> Any:
            u = u + 0.1 * np.sin(u) * np.cos(u)
            for _ in range(3 if big and i > 12 else 0):
                u = np.sin(u) + 0.01 * np.cos(u)
            return u

        u = timeloop(step, u, STEPS, costs=Costs())
        return np.sum(u * u)

    expected = grad(lambda u: grown(u, False))(U)
    budget = Budget(memory=22 * U.nbytes)
    calls = [lambda me=me: grad(lambda u: grown(u, me == rank), budget=budget)(U) for me in (0, 1)]
    results, actions, _ = run_all(monkeypatch, calls)
    assert isinstance(results[rank], BudgetError)
    assert results[rank].least > 22 * U.nbytes
    assert results[1 - rank].tobytes() == expected.tobytes()
    assert actions[rank] == actions[1 - rank][: len(actions[rank])]


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

    def call(rank: int, nbytes: int) -> Any:
        def told(text: str, value: Any) -> Any:
            orders[rank].append(text)
            return value

        exchange = primitive(lambda u: told("forward", 1.0 * u), vjp=(lambda g: told("reverse", 1.0 * g),))

        def step(u: Any, i: int) -> Any:
            u = exchange(u)
            return u + 0.1 * np.sin(u) * np.cos(u)

        return grad(lambda u: np.sum(timeloop(step, u, 40) ** 2), budget=Budget(memory=nbytes))(U)

    # In the second process there is room for a sweep that leaves the step as it is.
    budgets = enumerate((274_000, 40 * U.nbytes))
    calls = [lambda rank=rank, nbytes=nbytes: call(rank, nbytes) for rank, nbytes in budgets]
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


@pytest.mark.parametrize(("states", "wider"), [(60, 1), (120, 6), (160, 12)])
def test_later_steps_of_inner_loops_that_are_wider_in_one_process(states, wider, monkeypatch):
    """Where steps of loops in steps save more in one process, all compare the same plans, and follow the same one."""

    def call(big: bool) -> Any:
        def inner(u: Any, i: int) -> Any:
            u = u + 0.1 * np.sin(u)
            for _ in range(wider if big and i > 2 else 0):
                u = np.sin(u) + 0.01 * np.cos(u)
            return u

        def f(u: Any) -> Any:
            return np.sum(timeloop(lambda u, i: timeloop(inner, u, 7), u, 9) ** 2)

        return grad(f, budget=Budget(memory=states * U.nbytes))(U)

    _, actions = run_processes(monkeypatch, [lambda: call(False), lambda: call(True)])
    assert actions[0] == actions[1]


def test_what_inner_loops_run_again_is_asked_once(monkeypatch):
    """Each process finds it for the loops that it holds, with plans of which no other one hears; the most counts."""
    sizes, costs = Sizes(state=400, saved=4000, sweep=6000, gradients=0, stored=4096), Costs(forward=1.0, reverse=2.0)
    plan, inner = (make_plan(n, sizes, memory=sizes.fixed + 15_000, disk=0, costs=costs) for n in (40, 9))
    held = [Inside([inner] * count, 0, 0, 0) for count in (1, 2)]
    calls = [lambda inside=inside: inside.again(plan, plan.predicted_peak_bytes, 10_000) for inside in held]
    alone = [call() for call in calls]
    results, _, asked = run_all(monkeypatch, calls)
    assert alone[0] != alone[1]
    assert results == [max(alone)] * 2
    assert asked == [1, 1]


def test_journals_go_on_from_what_all_processes_have(tmp_path, monkeypatch):
    """What only some of them kept before a kill, restart states and places in a sweep, is given up, and no other."""
    some, kept = Leaves([np.ones(2)]), [((10, 20, 30), (4, 8), (9, 6)), ((10, 30, 35), (4,), (9,))]
    (tmp_path / "run").mkdir()
    for rank, (anchors, forward, reverse) in enumerate(kept):
        directory = ResumeDirectory(tmp_path / "run" / f"rank-{rank}")
        journal = Journal(directory, {"steps": "40"})
        journal.begin()
        for step in forward:
            journal.save_forward(Forward(step, some, some, step))
        for step in reverse:
            journal.save_reverse(Reverse(step, some, some, some, 0, 0))
        assert all(journal.save_anchor(step, some) for step in anchors)
        directory.close()

    def call() -> Any:
        directory = ResumeDirectory(tmp_path / "run")
        journal = Journal(directory, {"steps": "40"})
        journal.begin()
        places = journal.latest_forward(), journal.latest_reverse()
        left = sorted(directory.storage.keys())
        directory.close()
        return [place.step if isinstance(place, Forward) else place.end for place in places], left

    for places, left in run_all(monkeypatch, [call] * 2)[0]:
        assert places == [4, 9]
        assert left == [f"loop-0/{name}" for name in ("anchor/10", "anchor/30", "begin/0", "forward/4", "reverse/9")]
