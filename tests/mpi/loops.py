"""What the ranks of a group state of time loops and checkpointed functions; each check is run by on_ranks.py."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from group import Group
from tests.scale import FULL

import ebbtide as eb
from ebbtide import mpi
from ebbtide.errors import RankError
from ebbtide.schedules import Costs
from ebbtide.storage import Disk


def loss_of(group: Group, steps: int, dead: bool) -> Callable[..., Any]:
    """Return a functional of a loop of which each step communicates; on some ranks nothing of it is active."""

    def functional(u: Any, k: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            from_below = mpi.sendrecv(u, group.comm, group.up, group.down)
            mean = mpi.allreduce(np.sum(u), group.comm) / group.size
            return u + 0.1 * k * np.sin(from_below) - 0.01 * mean

        start = np.ones(3) * group.rank if dead and group.rank else u
        final = eb.timeloop(step, start, steps)
        return mpi.total(np.sum(final**2), group.comm)

    return functional


def check_loops(group: Group) -> None:
    """Loops that communicate have one gradient whatever the schedule, also where a rank has nothing to derive."""
    u = group.random((3,), np.float64, 8)
    for dead in (False, True):
        functional = loss_of(group, 12, dead)

        def coupled(u: Any, k: Any, f: Any = functional) -> Any:
            return f(u, mpi.replicated(k, group.comm))

        with mpi.distributed(group.comm):
            value, (by_u, by_k) = eb.value_and_grad(coupled, argnums=(0, 1))(u, 0.7)
            for budget in ("56 KiB", "72 KiB", "1 MiB"):
                again, (other_u, other_k) = eb.value_and_grad(coupled, (0, 1), budget=eb.Budget(memory=budget))(u, 0.7)
                np.testing.assert_array_equal(again, value)
                np.testing.assert_array_equal(other_u, by_u)
                np.testing.assert_array_equal(other_k, by_k)
            product = eb.hvp(lambda u: coupled(u, 0.7))(u, np.ones(3))
        h = 1e-5
        slope = (coupled(u, 0.7 + h) - coupled(u, 0.7 - h)) / (2 * h)
        assert np.isclose(by_k, slope, rtol=1e-7), (by_k, slope)
        v = group.random((3,), np.float64, 9)
        slope = (coupled(u + h * v, 0.7) - coupled(u - h * v, 0.7)) / (2 * h)
        assert np.isclose(group.inner(by_u, v).real, slope, rtol=1e-7), dead
        ahead, back = (eb.grad(lambda u: coupled(u, 0.7))(u + s * h) for s in (1, -1))
        np.testing.assert_allclose(product, (ahead - back) / (2 * h), rtol=1e-5, atol=1e-7)


def check_timed_loops(group: Group) -> None:
    """Loops of so many steps that these are timed: what a sweep communicates then is recorded on no tape around."""
    u = group.random((3_000,), np.float64, 11)

    def mixed(u: Any) -> Any:
        return u + 0.01 * np.sin(u) - 1e-3 * mpi.allreduce(u, group.comm) / group.size

    def nested(u: Any, i: int) -> Any:
        return mixed(eb.timeloop(lambda v, j: mixed(v), mixed(u), 3))

    def functional(u: Any, step: Any) -> Any:
        return mpi.total(np.sum(eb.timeloop(step, u, 36) ** 2), group.comm)

    def partly(k: Any) -> Any:
        start = k if group.rank == 0 else np.ones(3_000)
        return mpi.total(np.sum(eb.timeloop(lambda u, i: mixed(u) + 0.01 * k, start, 36) ** 2), group.comm)

    with mpi.distributed(group.comm):
        for step in (lambda u, i: mixed(mixed(u)), nested):
            expected = eb.grad(functional)(u, step)
            for states in (50, 64, 100):
                found = eb.grad(functional, budget=eb.Budget(memory=states * u.nbytes))(u, step)
                np.testing.assert_array_equal(found, expected)
        # The states of one rank have tangents from the first on, those of the others only later.
        expected, budget = eb.hvp(partly)(u, np.cos(u)), eb.Budget(memory=100 * u.nbytes)
        np.testing.assert_array_equal(eb.hvp(partly, budget=budget)(u, np.cos(u)), expected)


def check_wide_steps(group: Group) -> None:
    """What the function alone holds in a step is agreed on by ranks whose parts differ; all have the same least."""
    runs = []

    def step(u: Any, i: int) -> Any:
        runs.append(i)
        branches = [u * (0.9 + 0.01 * k) for k in range(2 if group.rank == 1 and is_uneven else 9)]
        while len(branches) > 1:
            branches = [np.maximum(branches[0], 0.9 * branches[1]), *branches[2:]]
        return branches[0]

    def functional(u: Any) -> Any:
        return mpi.total(np.sum(eb.timeloop(step, u, 6)), group.comm)

    u = group.random((30_000 + 5_000 * group.rank,), np.float64, 1)
    for is_uneven in (False, True):
        with mpi.distributed(group.comm):
            expected = eb.grad(functional)(u)
            least = 1
            for _ in range(3):
                del runs[:]
                try:
                    found = eb.grad(functional, budget=eb.Budget(memory=least))(u)
                except eb.BudgetError as error:
                    least = error.least
                    assert len(runs) == (1 if is_uneven and group.size > 1 else 2), runs
                else:
                    break
        np.testing.assert_array_equal(found, expected)
        assert len(set(group.comm.allgather(least))) == 1


def check_last_steps(group: Group) -> None:
    """What the last step saved is given up by all ranks or by none, also by one on which that frees nothing."""
    first, u = group.rank == 0, np.linspace(0.1, 1.0, 3 + 2 * group.rank)

    def inner(v: Any, i: int) -> Any:
        return v + 0.1 * mpi.allreduce(np.sum(np.sin(v)), group.comm, "max") * np.cos(v)

    def step(v: Any, i: int) -> Any:
        v = eb.timeloop(inner, v, 3)
        got = mpi.bcast(np.sin(v[:3]) if first else None, group.comm)
        return inner(v + 0.1 * np.sum(np.sin(got)) * np.cos(v) if first else v, i)

    def functional(v: Any) -> Any:
        v = eb.timeloop(step, v, until=lambda v: mpi.allreduce(np.sum(v), group.comm) > 1e9, max_steps=5)
        later = lambda v, i: v + 0.1 * np.sin(mpi.allreduce(np.sum(v), group.comm)) * np.cos(v)
        return mpi.total(np.sum(eb.timeloop(later, v, 5)), group.comm)

    expected, fitted = eb.grad(functional)(u), 0
    for memory in range(200_000, 240_000, 2_000):
        with suppress(eb.BudgetError, RankError), mpi.distributed(group.comm):
            found = eb.grad(functional, budget=eb.Budget(memory=memory))(u)
            np.testing.assert_array_equal(found, expected)
            fitted += 1
    assert fitted > 0


def check_checkpoints(group: Group) -> None:
    """A checkpointed function may communicate, also where its result is not used."""
    def block(x: Any) -> Any:
        return np.sin(mpi.sendrecv(x, group.comm, group.up, group.down))

    def functional(x: Any) -> Any:
        for _ in range(3):
            x = eb.checkpoint(block)(x)
        return np.sum(x**2) if group.rank == 0 else 0.0 * np.sum(x)

    x = group.random((4,), np.float64, 10)
    found = eb.grad(functional)(x)

    def unchecked(x: Any) -> Any:
        final = block(block(block(x)))
        return np.sum(final**2) if group.rank == 0 else np.sum(final) * 0.0

    plain = eb.grad(unchecked)(x)
    np.testing.assert_array_equal(found, plain)
    assert np.any(group.sum(np.abs(found)) > 0)
    _check_unused_inside(group, block, x)


def _check_unused_inside(group: Group, block: Callable[[Any], Any], x: Any) -> None:
    """Within a region the sweep passes one inside that communicates, though a rank does not use its result."""
    def step(x: Any, i: int = 0, block: Callable[[Any], Any] = block) -> Any:
        last = block(x)
        return x if group.rank == 0 else last

    def inner_loop(x: Any) -> Any:
        return eb.timeloop(lambda s, i: block(s), x, 1)

    for inside in (eb.checkpoint(block), eb.checkpoint(eb.checkpoint(block)), inner_loop):
        inner = partial(step, block=inside)
        checked = eb.grad(lambda x, inner=inner: np.sum(np.sin(eb.checkpoint(inner)(x))))(x)
        np.testing.assert_array_equal(checked, eb.grad(lambda x: np.sum(np.sin(step(x))))(x))
        looped = eb.grad(lambda x, inner=inner: np.sum(np.sin(eb.timeloop(inner, x, 2))))(x)
        np.testing.assert_allclose(looped, eb.grad(lambda x: np.sum(np.sin(step(step(x)))))(x), rtol=1e-14)


def check_unused_loops(group: Group) -> None:
    """Loops that do not communicate agree on their room, also with a rank that does not use their results."""
    x, uses = group.random((49,), np.float64, 12), group.rank > 0 or group.size == 1

    def loop(v: Any) -> Any:
        return eb.timeloop(lambda w, i: np.sin(w), v, 9)

    def unused(v: Any, i: int = 0, inner: Any = loop) -> Any:
        last = inner(v)
        return last if uses else np.cos(v)

    def constant(v: Any) -> Any:
        last = np.sum(loop(v))
        return last if uses else 0.0

    functions = (
        unused, constant, eb.checkpoint(unused), lambda v: unused(v, inner=eb.checkpoint(loop)),
        lambda v: eb.timeloop(unused, v, 5), lambda v: unused(v, inner=lambda v: eb.timeloop(unused, v, 5)),
    )  # fmt: skip
    with group.directory() as directory:
        for number, inner in enumerate(functions):
            f = lambda v, inner=inner: np.sum(inner(v))
            expected = eb.grad(f)(x)
            for options in ({"budget": eb.Budget(memory="1 MiB")}, {"resume": directory / f"run{number}"}):
                with mpi.distributed(group.comm):
                    found = eb.grad(f, **options)(x)
                np.testing.assert_array_equal(found, expected)


class UnspeakableError(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise TypeError("This error cannot be said.")


def check_told(group: Group) -> None:
    """What a rank failed with is told with its notes, and that it failed also where the error has no text."""
    told: list[str] = []
    last = group.rank == group.size - 1
    for error in (ValueError("too large"), UnspeakableError()):
        error.add_note("a note")
        try:
            with mpi.distributed(group.comm):
                if last:
                    raise error
                mpi.allreduce(1.0, group.comm)
        except RankError as heard:
            told.append(str(heard))
        except (ValueError, UnspeakableError):
            told.append("")
    assert last or ("too large\na note" in told[0] and "str() failed" in told[1]), told


class Counting:
    """A communicator that notes which collectives it is asked for; so do its duplicates."""

    def __init__(self, comm: Any, asked: list[str]) -> None:
        self.comm, self.asked = comm, asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.comm, name)
        if not callable(found) or name in {"Iprobe", "recv", "isend"}:
            return found

        def noted(*args: Any) -> Any:
            self.asked.append(name)
            result = found(*args)
            return Counting(result, self.asked) if name == "Dup" else result

        return noted


PASSED: list[Callable[[], None]] = []


def copied(u: Any) -> Any:
    """Return a copy."""
    PASSED[-1]()
    return np.array(u)


def pull(g: Any) -> Any:
    """Pass a cotangent."""
    PASSED[-1]()
    return g


SEEN = eb.primitive(copied, vjp=(pull,))


def measured(group: Group, comm: Any, directory: Path, steps: int, passed: Callable[[], None] = int) -> np.ndarray:
    """Return the gradient of a loop under a budget with disk, whose states go to a file of each rank."""
    PASSED[:] = [passed]

    def step(u: Any, i: int) -> Any:
        below = mpi.sendrecv(SEEN(u), group.comm, group.up, group.down)
        return u + 0.1 * np.sin(below)

    def functional(u: Any) -> Any:
        return mpi.total(np.sum(eb.timeloop(step, u, steps, costs=Costs(write=0.1, read=0.1)) ** 2), group.comm)

    budget = eb.Budget(memory="192 KiB", disk="4 MiB", directory=directory / "{hostname}" / "{rank}")
    with mpi.distributed(comm):
        return eb.grad(functional, budget=budget)(group.random((1000,), np.float64, 1))


def check_forecasts(group: Group) -> None:
    """What a sweep is going to take is found without a word to the others, also where parts are large on some ranks."""
    asked: list[str] = []
    comm = Counting(group.comm, asked)

    def gathering(u: Any, i: int) -> Any:
        return u + 0.1 * np.mean(np.sin(mpi.allgather(u, comm)))

    def largest(u: Any, i: int) -> Any:
        return u + 0.1 * np.mean(mpi.allreduce(np.sin(np.arange(600.0) * u[0]), comm, "max"))

    # Of an extreme, who has it is asked of all in the sweep.
    for step, names in ((gathering, ["Iallgatherv", "Ireduce_scatter"]), (largest, 3 * ["Iallreduce"])):
        asked.clear()
        eb.grad(lambda u, step=step: np.sum(eb.timeloop(step, u, 5)))(np.ones(400 + 200 * group.rank))
        found = sorted([name for name in asked if name in names])
        assert found == sorted(5 * names), found


def check_hot_path(group: Group) -> None:
    """From the plan to the end of a sweep ranks with a file each ask each other nothing but what the steps do."""
    totals = []
    with group.directory() as directory:
        for steps in (12, 60):
            asked: list[str] = []
            counts: list[int] = []
            written = disk_writes(lambda: counts.append(len(asked)))
            with written as states:
                measured(group, Counting(group.comm, asked), directory, steps, lambda: counts.append(len(asked)))
            assert states[0] > steps / 12
            # Before the plan, when the rule is measured as well, in the forward sweep, in the reverse sweep.
            assert len(set(counts[2:])) <= 2, counts
            totals.append(asked)
    assert totals[0] == totals[1]
    assert sorted(totals[0]) == [*["Dup"] * 3, *["Free"] * 3, *["Iallreduce"] * (len(totals[0]) - 6)]


@contextmanager
def disk_writes(passed: Callable[[], None]) -> Iterator[list[int]]:
    """Count what goes to files in the block."""
    count, put = [0], Disk.put

    def counted(self: Disk, *args: Any, **options: Any) -> int:
        count[0] += 1
        passed()
        return put(self, *args, **options)

    Disk.put = counted
    try:
        yield count
    finally:
        Disk.put = put


def check_leaks(group: Group) -> None:
    """After a hundred gradients there are as many communicators, files, descriptors, threads and bytes as before."""
    asked: list[str] = []
    comm, found = Counting(group.comm, asked), {}
    with group.directory() as directory:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            turns = 100 if FULL else 10
            for turn in range(1, turns + 1):
                measured(group, comm, directory, 8)
                assert gc.collect() == 0  # which empties Python's own lists of freed tuples, 1.3 kB for each gradient
                if turn in {2, 3, turns}:  # what this itself keeps is there after the first time
                    found[turn] = kept(group, directory)
                    assert asked.count("Dup") == asked.count("Free") > 0
                asked.clear()
        finally:
            tracemalloc.stop()
            gc.enable()
    (*first, before), (*last, after) = found[3], found[turns]
    assert last == first
    assert last[0] == 0
    assert after <= before + 1024, (before, after)


def kept(group: Group, directory: Path) -> tuple[int, int, int, int]:
    """Return how many files there are in a directory, and how many descriptors, threads and bytes this rank has."""
    group.meet()
    files = len([path for path in directory.rglob("*") if path.is_file()])
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    group.meet()
    # optree keeps some bytes of each of its first 1000 calls, 14 kB in all, and later those of others in their place.
    others = [tracemalloc.Filter(False, name) for name in ("*/optree/*", tracemalloc.__file__)]
    nbytes = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(others).traces)
    return files, open_files, threading.active_count(), nbytes
