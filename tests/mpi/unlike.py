"""What the ranks of a group state of loops that are not the same on all; each check is run by on_ranks.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from group import Group, refused

import ebbtide as eb
from ebbtide import mpi
from ebbtide.errors import ScheduleError
from ebbtide.mpi import watch
from ebbtide.optimize import Control, ReducedFunctional, minimize
from ebbtide.schedules import Costs, Mixed, Revolve, StoreAll


def check_constant_loops(group: Group) -> None:
    """Loops that do not communicate are swept by all ranks, also where all of one depends on nothing on some."""
    x = group.random((49,), np.float64, 13)

    def loop(v: Any, steps: int = 9) -> Any:
        return eb.timeloop(lambda w, i: np.sin(w), v, steps)

    def nested(v: Any) -> Any:
        return eb.timeloop(lambda w, i: 1.01 * loop(w, 3), v, 5)

    def of_static(v: Any) -> Any:
        return eb.timeloop(lambda w, i: w + np.sin(v), np.ones(49), 5)

    functions = (
        loop, nested, of_static, eb.checkpoint(loop), eb.checkpoint(lambda v: v * eb.checkpoint(nested)(v)),
        lambda v: eb.timeloop(lambda w, i: eb.checkpoint(loop)(w), v, 5, schedule=Revolve(2)),
    )  # fmt: skip
    with group.directory() as directory:
        for number, inner in enumerate(functions):
            active = group.rank == number % group.size
            f = lambda v, inner=inner, active=active: np.sum(inner(v if active else np.ones(49)) ** 2) + np.sum(v)
            expected = eb.grad(f)(x)
            budget, resume = eb.Budget(memory="1 MiB"), directory / f"run{number}"
            many: tuple[dict[str, Any], ...] = ({}, {"budget": budget}, {"resume": resume})
            for options in many:
                with mpi.distributed(group.comm):
                    found = eb.grad(f, **options)(x)
                np.testing.assert_array_equal(found, expected)
        group.meet()
        assert list(directory.iterdir()) == []


def check_unlike_loops(group: Group) -> None:
    """Ranks that call a loop in different ways, or different loops, raise one error that says so, and none waits."""
    first = group.rank == 0
    one: dict[str, Any] = {"budget": eb.Budget(memory="1 MiB")}
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("budget= is", one if first else {}, {}),
        ("budget= is", {} if first else one, {}),
        ("budget= is", {"budget": eb.Budget(memory="1 MiB", disk="1 MiB")} if first else one, {}),
        ("the number of steps is", {}, {"steps": 8 + first}),
        ("schedule= is Revolve", {}, {"schedule": Revolve(2 + first)}),
        ("costs= is", one, {"costs": Costs() if first else None}),
        ("The ranks do different things", one, {"twice": first}),
    ]
    x = np.ones(49)

    def functional(x: Any, *, communicates: bool, twice: bool = False, steps: int = 8, **options: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            return np.sin(mpi.sendrecv(u, group.comm, group.up, group.down) if communicates else u)

        for _ in range(1 + twice):
            x = eb.timeloop(step, x, steps, **options)
        return np.sum(x)

    with group.directory() as directory:
        cases.append(("resume= is", {"resume": directory / "run"} if first else {}, {}))
        for text, options, arguments in cases if group.size > 1 else []:
            f = partial(functional, communicates="twice" not in arguments, **arguments)
            with refused(ScheduleError, text), mpi.distributed(group.comm):
                eb.grad(f, **options)(x)
            group.meet()
        assert list(directory.iterdir()) == []


@contextmanager
def impatient() -> Iterator[None]:
    """Have ranks in the block say that they wait at once."""
    before, watch.PATIENCE = watch.PATIENCE, 0.1
    try:
        yield
    finally:
        watch.PATIENCE = before


def check_waiting_for_each_other(group: Group) -> None:
    """Where some ranks wait in a loop, or at the end, and others to communicate with them, all raise one error."""
    last, line = group.rank == group.size - 1, group.comm.Create_cart([group.size])

    def loops(x: Any, count: int) -> Any:
        for _ in range(count):
            x = eb.timeloop(lambda u, i: np.sin(u), x, 5)
        return x

    def ring(x: Any) -> Any:
        return mpi.sendrecv(x, group.comm, group.up, group.down)

    def large(x: Any) -> Any:
        x = np.sum(x) + np.zeros(1 << 18)
        if last:
            mpi.send(x, group.comm, 0)
        x = loops(x, 1)
        return x if group.rank else mpi.recv(group.comm, group.size - 1)

    def halos(x: Any) -> Any:
        for _ in range(3 - last):
            x = x + mpi.halo_exchange(x, line)[1:-1]
        return x

    def in_step(u: Any, i: int) -> Any:
        return loops(mpi.allreduce(u, group.comm), last and i == 3)

    functions = (
        lambda x: ring(loops(ring(loops(x, 1)), 1 - last)),  # one has a loop less
        lambda x: ring(loops(mpi.allreduce(loops(x, last), group.comm), 1)),  # or one more
        lambda x: loops(mpi.bcast(loops(x, 1), group.comm, 0) if group.rank else loops(x, 1), 1),
        lambda x: x if last else ring(x),  # is at the end
        lambda x: loops(halos(x), 1),
        large,
        lambda x: eb.timeloop(in_step, x, 6),
    )
    value = 0.0
    with impatient():
        for number, f in enumerate(functions if group.size > 1 else ()):
            for budget in (None, eb.Budget(memory="16 MiB", disk=number)):
                said = ""
                try:
                    with mpi.distributed(group.comm):
                        eb.grad(lambda x, f=f: np.sum(f(x)), budget=budget)(np.ones(3))
                except ScheduleError as error:
                    said = str(error)
                assert said.startswith("Ranks wait for each other: rank "), (number, said)
                assert group.comm.allgather(said) == [said] * group.size
        with mpi.distributed(group.comm):  # goes on after that, and where ranks wait for one that computes
            for _ in range(3):
                if last:
                    time.sleep(0.3)
                value = mpi.allreduce(loops(1.0, 1), group.comm)
        assert value > 0.0


def check_leasts(group: Group) -> None:
    """Ranks whose parts differ, and what they hold before a loop, refuse it with one least, at which it runs."""
    rank, u = group.rank, np.ones(3000 + 2000 * group.rank)

    def step(v: Any, i: int) -> Any:
        return np.sin(v) + 1e-3 * mpi.allreduce(np.sum(v), group.comm)

    def held(v: Any) -> Any:
        for _ in range(2 + 3 * rank):
            v = np.sin(v * v)
        return eb.timeloop(step, v, 9)

    def wider(v: Any) -> Any:
        for _ in range(2 + rank):
            v = np.sin(np.concatenate([v, v, v]))[: v.size] + v
        return eb.timeloop(step, v[:100], 9)

    def nested(v: Any) -> Any:
        return eb.timeloop(lambda w, i: eb.timeloop(step, np.sin(w) * w, 5), v, 7)

    def asked(v: Any, schedule: Any) -> Any:
        return eb.timeloop(step, np.sin(v) * v, 12, schedule=schedule)

    revolve, mixed, stored = (partial(asked, schedule=s) for s in (Revolve(4), Mixed(5, 1, 2), StoreAll("disk")))
    for inner, disk in (
        (held, 0), (held, 1000), (wider, 0), (nested, 0), (revolve, 0), (mixed, 0), (stored, 1000),
    ):  # fmt: skip
        whole = lambda v, inner=inner: mpi.total(np.sum(inner(v)), group.comm)
        refusals = [(eb.Budget(memory=1, disk=disk), "")]
        while (found := refusal_of(group, whole, u, refusals[-1][0])) is not None:
            assert group.comm.allgather(found) == [found] * group.size
            refusals.append(found)
            assert len(refusals) < 16, refusals
        assert len(refusals) > 1, inner

    def later(v: Any, i: int) -> Any:
        for _ in range(30 if i == 3 else 1):
            v = np.sin(v * v)
        return step(v, i)

    whole = lambda v: mpi.total(np.sum(eb.timeloop(later, v, 9)), group.comm)
    least = refusal_of(group, whole, u, eb.Budget(memory=1))
    assert least is not None
    found = refusal_of(group, whole, u, least[0])
    assert found is not None
    assert "Step 3 of a time loop saves" in found[1]
    assert group.comm.allgather(found) == [found] * group.size


def refusal_of(group: Group, functional: Any, u: Any, budget: eb.Budget) -> tuple[eb.Budget, str] | None:
    """Return the budget that an error names, and its text; None where the gradient fits."""
    try:
        with mpi.distributed(group.comm):
            eb.grad(functional, budget=budget)(u)
    except eb.BudgetError as error:
        return eb.Budget(memory=error.least, disk=max(error.least_disk, budget.disk)), str(error)
    return None


def check_minimize(group: Group) -> None:
    """Ranks that have the same controls find one minimum; controls that are parts are refused on all of them."""
    target = 1.0 + group.rank

    def misfit(m: Any) -> Any:
        return mpi.total(np.sum((eb.timeloop(lambda u, i: u + 0.1 * (target - u), m, 8) - target) ** 2), group.comm)

    def whole(m: Any) -> Any:
        return misfit(mpi.replicated(m, group.comm))

    with mpi.distributed(group.comm):
        found = minimize(ReducedFunctional(whole, Control(np.zeros(3)), budget=eb.Budget(memory="1 MiB")))
    assert found.converged
    np.testing.assert_allclose(found.m, np.mean(1.0 + np.arange(group.size)), rtol=1e-6)
    for start in (np.zeros(3), np.full(3, float(group.rank)), np.zeros(3 + group.rank)) if group.size > 1 else ():
        with refused(ValueError, "each has the same copy"), mpi.distributed(group.comm):
            minimize(misfit, start)
        group.meet()
