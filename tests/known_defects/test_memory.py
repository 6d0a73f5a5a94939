"""
Memory that other systems keep, M1 to M9: that we do not.

Measured from outside: weak references with the collector off, tracemalloc, descriptors and files of the process. A
test's name has the label, its docstring the defect and our rule.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.storages import Delegating

from ebbtide import ReleasedValueError, grad, jvp, primitive, timeloop, value_and_grad, vjp
from ebbtide.arrays.context import current
from ebbtide.optimize import Control, ReducedFunctional, minimize
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Memory

STEPS = 50
SIZE = 16384
UNIT = SIZE * 8
DESCRIPTORS = Path("/proc/self/fd")
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(3), Mixed(4), Hierarchical(2, 2, Costs(write=1.0, read=1.0)),
    Periodic(10, 2), Online(3),
)  # fmt: skip


@contextmanager
def no_collector() -> Iterator[None]:
    """Switch the collector off: what lives then lives by references."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Seen:
    """Weak references to arrays, and how many of them lived at most at the same time."""

    def __init__(self) -> None:
        self.refs: list[Any] = []
        self.most = 0

    def add(self, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            self.refs.append(weakref.ref(array))
            self.most = max(self.most, self.alive)
        return array

    @property
    def alive(self) -> int:
        self.refs = [ref for ref in self.refs if ref() is not None]
        return len(self.refs)


class Recording(Delegating):
    """A storage in memory that notes bytes put and reads of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.put_bytes, self.reads = 0, {}

    def put(self, key, arrays, *, kind=""):
        self.put_bytes += sum(array.nbytes for array in arrays)
        return super().put(key, arrays, kind=kind)

    def get(self, key):
        self.reads[key] = self.reads.get(key, 0) + 1
        return super().get(key)

    def take(self, key):
        self.reads[key] = self.reads.get(key, 0) + 1
        return super().take(key)


def step(u: Any, i: Any) -> Any:
    """A nonlinear step in functional style: a new object for each state."""
    return u + 0.1 * np.sin(u) * u


def misfit(u: Any, steps: int = STEPS, **options: Any) -> Any:
    """A scalar of the final state."""
    return np.sum(timeloop(options.pop("step", step), u, steps, **options) ** 2)


def held_by(thing: Any, of: type) -> list[Any]:
    """Return the objects of a type that a thing keeps alive, found by following references."""
    found: dict[int, Any] = {}
    waiting, known = [thing], set()
    while waiting:
        now = waiting.pop()
        if id(now) in known or isinstance(now, (type, type(gc))):
            continue
        known.add(id(now))
        if isinstance(now, of):
            found[id(now)] = now
        waiting.extend(gc.get_referents(now))
    return list(found.values())


@pytest.mark.parametrize("schedule", SCHEDULES[2:], ids=str)
def test_m1_states_alive_are_those_of_the_schedule(schedule):
    """M1: the tape holds every state that a step returned. None but the working one lives beside the snapshots."""
    seen, storage = Seen(), Recording()
    copied: list[int] = []

    def watched(u, i):
        copied.append(len(storage.keys()))
        return seen.add(step(seen.add(u), i))

    u = np.full(SIZE, 0.3)
    with no_collector():
        peak = peak_bytes(lambda: grad(lambda u: misfit(u, step=watched, schedule=schedule, storage=storage))(u))
        assert seen.alive == 0
    assert seen.most <= 2  # the state before a step and the one after
    snapshots = schedule.peak_snapshots(STEPS)
    assert max(copied) <= snapshots < STEPS / 2
    # In units of a state: snapshots; state, saved values (3), cotangent, and temporaries of one step and its sweep.
    assert peak < (snapshots * (3 if isinstance(schedule, Mixed) else 1) + 9) * UNIT


@pytest.mark.parametrize("schedule", SCHEDULES[2:], ids=str)
def test_m2_nothing_grows_with_the_steps(schedule):
    """M2: blocks and variables of all steps are kept whatever the schedule. Ours takes nothing by the step."""

    def peak(steps):
        """Of an interval that grows with the steps, so that the number of snapshots stays the same."""
        same = Periodic(steps // 10, 2) if isinstance(schedule, Periodic) else schedule
        run = grad(lambda c: timeloop(lambda u, i: u * c, 1.0, steps, schedule=same))
        run(0.999)
        return peak_bytes(lambda: run(0.999))

    counts = []

    def nodes(u):
        before = current().tape.count
        for steps in (5, 100):
            timeloop(step, u, steps, schedule=Revolve(3))
            counts.append(current().tape.count - before)
            before = current().tape.count
        return np.sum(u)

    assert abs(peak(300) - peak(100)) < 6 * 1024  # 30 bytes a step
    grad(nodes)(np.ones(3))
    assert counts[0] == counts[1]


def test_m3_cotangents_go_with_the_sweep():
    """M3: no adjoint value is freed in or after a sweep. Ours die at their last use, with no loop and no schedule."""
    seen = Seen()
    linear = primitive(lambda x: x * 0.5, vjp=(lambda g: seen.add(g * 0.5),))

    def chain(u):
        for _ in range(50):
            u = linear(u)
        return np.sum(u)

    u = np.ones(SIZE)
    with no_collector():
        peak = peak_bytes(lambda: grad(chain)(u))
        assert seen.alive == 0
    assert seen.most <= 2
    assert peak < 4 * UNIT  # two values on the way forward, or two cotangents on the way back


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_m4_inputs_go_with_their_step(schedule):
    """M4: what is read for a step's forcing stays until the end. An input lives as long as its step, saved ones too."""
    seen = Seen()

    class Rows:
        def __len__(self):
            return STEPS

        def __getitem__(self, k):
            return seen.add(np.full(SIZE, 1.0 + 0.01 * k))

    u = np.full(SIZE, 0.3)
    with no_collector():
        peak = peak_bytes(
            lambda: grad(lambda u: np.sum(timeloop(lambda u, x: u * x, u, STEPS, inputs=Rows(), schedule=schedule)))(u)
        )
        assert seen.alive == 0
    assert seen.most <= 1
    if not isinstance(schedule, StoreAll):  # which keeps what each step saves: here the copy of its input
        assert peak < (2 * schedule.peak_snapshots(STEPS) + 9) * UNIT


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_m5_nothing_of_earlier_evaluations(place, tmp_path):
    """M5: entries of an earlier evaluation stay for ever, and hold its file. Nothing of one outlives it."""
    seen = Seen()
    counts = []
    for k in range(4):
        with Memory() if place == "memory" else Disk(tmp_path) as storage:

            def f(u, storage=storage):
                # A branch that only some evaluations take: its values belong to no later one.
                first = np.exp(u) if u[0] > 0.5 else u
                return misfit(first, step=lambda u, i: seen.add(step(seen.add(u), i)), steps=8, schedule=Revolve(2),
                              storage=storage)  # fmt: skip

            with no_collector():
                ReducedFunctional(f, Control(np.ones(5))).derivative(np.full(5, 0.3 * k))
                assert seen.alive == 0
            assert (storage.keys(), storage.nbytes) == ((), 0)
        counts.append((len(list(tmp_path.rglob("*"))), len(list(DESCRIPTORS.iterdir()))))
    assert len(set(counts)) == 1


def test_m6_only_what_the_derivative_needs():
    """M6: all operands of an operation are loaded if one is relevant, again each time. Ours saves what it names."""
    w = np.full(SIZE, 0.5)
    storage = Recording()

    def f(u):
        return np.sum(timeloop(lambda u, i: np.sin(u * w + 1.0) * 3.0, u, 10, schedule=StoreAll("disk"),
                               storage=storage))  # fmt: skip

    grad(f)(np.ones(SIZE))
    assert storage.put_bytes == 9 * UNIT  # the operand of the sine, of each step but the last, and nothing of w
    assert storage.reads
    assert set(storage.reads.values()) == {1}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_m7_what_is_given_up_is_gone(schedule):
    """M7: a cleared tape keeps checkpoints and counters. `free`, and dropping a pullback, leave nothing."""
    u = np.full(SIZE, 0.3)

    def run(free):
        storage = Memory()
        _, pullback = vjp(lambda u: misfit(u, schedule=schedule, storage=storage), u, retain=True)
        if free:
            pullback(np.float64(1))
            pullback.free()
            assert not [a for a in held_by(pullback, np.ndarray) if a.nbytes >= UNIT and a is not u]
            with pytest.raises(ReleasedValueError, match="free"):
                pullback(np.float64(1))
        del pullback
        assert storage.keys() == ()

    with no_collector():
        for free in (True, False):
            run(free)
            tracemalloc.start()
            try:
                run(free)
                assert tracemalloc.get_traced_memory()[0] < 16 * 1024
            finally:
                tracemalloc.stop()


def test_m8_what_nobody_else_holds():
    """M8: a tangent or control that nobody else holds is lost. What a derivative needs it holds itself."""
    with no_collector():
        value, tangent = jvp(misfit, (np.full(5, 0.3),), (np.full(5, 2.0),))
        _, pullback = vjp(lambda u: misfit(u, schedule=Revolve(2)), np.full(5, 0.3))
        rubbish = [np.full(5, np.nan) for _ in range(100)]  # takes the memory of what was freed
        (gradient,) = pullback(np.float64(1))
    assert len(rubbish) == 100
    assert np.isfinite(value)
    np.testing.assert_allclose(np.sum(gradient * 2.0), tangent, rtol=1e-13)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_m9_no_growth_from_one_evaluation_to_the_next(place, tmp_path):
    """M9: memory, descriptors and files grow with each evaluation of a minimization. Ours do not, collector off."""

    def f(u):
        if place == "memory":
            return misfit(u, steps=6, schedule=Revolve(2))
        with Disk(tmp_path) as storage:
            return value_of(u, storage)

    def value_of(u, storage):
        value, pullback = vjp(lambda u: misfit(u, steps=6, schedule=Revolve(2), storage=storage), u)
        return value, pullback(np.float64(1))[0]

    call = value_and_grad(f) if place == "memory" else f

    def look():
        # Nothing to collect; but it empties the interpreter's stores of dead tuples, which tracemalloc counts.
        assert gc.collect() == 0
        files = len(list(tmp_path.rglob("*")))
        return tracemalloc.get_traced_memory()[0], len(gc.get_objects()), len(list(DESCRIPTORS.iterdir())), files

    u = np.full(200, 0.3)
    with no_collector():
        call(u)
        tracemalloc.start()
        try:
            looks = []
            for _ in range(3):
                for _ in range(25):
                    call(u)
                looks.append(look())
        finally:
            tracemalloc.stop()
    first, last = looks[0], looks[-1]
    assert last[0] - first[0] < 16 * 1024  # one state of each evaluation would be 80 KiB
    assert last[1] - first[1] < 20
    assert last[2:] == first[2:]


def test_m9_minimize_keeps_nothing():
    """M9: an optimizer's callbacks hold tapes. After `minimize` no state of the functional is alive."""
    seen = Seen()

    def f(u):
        return misfit(u, steps=6, step=lambda u, i: seen.add(step(seen.add(u), i)), schedule=Revolve(2))

    with no_collector():
        found = minimize(ReducedFunctional(f, Control(np.full(5, 0.3))), np.full(5, 0.3), options={"maxiter": 3})
        assert found.iterations
        assert seen.alive == 0
