"""What a time loop holds and for how long: poisoned buffers, live states, exceptions, storages left clean."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.storages import Delegating

from ebbtide import Budget, MutationError, ReleasedValueError, StorageError, grad, timeloop, vjp
from ebbtide.arrays.context import current
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Memory

STEPS = 9
SCHEDULES = (StoreAll(), Revolve(1), Revolve(2), Revolve(4))
REVOLVES = SCHEDULES[1:]
U0 = np.linspace(0.2, 1.1, 5)
LARGE = 16384


class Poisoning(Delegating):
    """Overwrites with NaN whatever it handed out before, and whatever it deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[np.ndarray] = []

    def get(self, key):
        return self.handed(self.inner.get(key))

    def take(self, key):
        held = self.inner.take(key)
        copies = [array.copy() for array in held]
        spoil(held)
        return self.handed(copies)

    def delete(self, key):
        spoil(self.inner.take(key))

    def handed(self, arrays):
        spoil(self.out)
        self.out = list(arrays)
        return arrays


class Faulty(Delegating):
    """Raises at one of its operations."""

    def __init__(self, at: int, error: type[BaseException] = OSError) -> None:
        super().__init__()
        self.at, self.error, self.done = at, error, 0

    def fail(self) -> None:
        self.done += 1
        if self.done == self.at:
            raise self.error("injected")

    def put(self, key, arrays, *, kind=""):
        self.fail()
        return super().put(key, arrays)

    def get(self, key):
        self.fail()
        return super().get(key)

    def take(self, key):
        self.fail()
        return super().take(key)


def spoil(arrays: Any) -> None:
    """Overwrite arrays, so that a stale reference shows."""
    for array in arrays:
        array[...] = np.nan


def step(u: Any, i: Any) -> Any:
    """A nonlinear step that makes a new object."""
    return u + 0.1 * np.sin(u) * np.roll(u, 1)


def in_place(u: Any, i: Any) -> Any:
    """A nonlinear step that writes into its state."""
    u[1:] += 0.1 * np.sin(u[1:]) * u[:-1]
    return u


def misfit(u: Any, **options: Any) -> Any:
    """A scalar of the final state."""
    return np.sum(timeloop(options.pop("step", step), u, STEPS, **options) ** 2)


def expected(one: Any = step) -> np.ndarray:
    """The gradient of `misfit`."""
    return grad(lambda u: misfit(u, step=one, schedule=StoreAll()))(U0)


@contextmanager
def nothing_to_collect():
    """Assert that the collector, off in the block, has no object of ours to collect after it."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [x for x in gc.garbage if type(x).__module__.startswith("ebbtide") or isinstance(x, np.ndarray)]
        assert ours == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


# Poison.


@pytest.mark.parametrize("schedule", REVOLVES, ids=str)
@pytest.mark.parametrize("one", [step, in_place])
def test_no_buffer_of_a_storage_is_used_after_the_next_load(one, schedule):
    """What a storage handed out or deleted is overwritten with NaN: the gradient has the same bits."""
    storage = Poisoning()
    found = grad(lambda u: misfit(u, step=one, schedule=schedule, storage=storage))(U0)
    assert found.tobytes() == expected(one).tobytes()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_no_state_is_used_after_its_step(schedule):
    """Plain states that a step was given or returned are overwritten at the next step: the same bits."""
    seen: list[np.ndarray] = []

    def poisoning(u, i):
        spoil(a for a in seen if a is not u)
        seen.clear()
        after = step(u, i)
        seen.extend(a for a in (u, after) if isinstance(a, np.ndarray))
        return after

    assert grad(lambda u: misfit(u, step=poisoning, schedule=schedule))(U0).tobytes() == expected().tobytes()
    seen.clear()
    assert misfit(U0, step=poisoning) == misfit(U0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("one", [step, in_place])
def test_callers_state_may_change_after_the_forward_run(one, schedule):
    """The caller's initial state is copied once: what happens to it before the pullback changes nothing."""
    u = U0.copy()
    _, pullback = vjp(lambda u: misfit(u, step=one, schedule=schedule), u)
    u[:] = np.nan
    assert pullback(np.float64(1))[0].tobytes() == expected(one).tobytes()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_state_traced_outside_may_be_written_after_the_loop(schedule):
    """A traced initial state or input that is written after the loop was copied before: the right gradient."""

    def f(u, loop):
        a = np.zeros_like(u)
        a[1:] = u[1:]
        rows = [a, a * 2, a]
        final = loop(lambda v, x: np.sin(v) * x, a + 1, rows)
        more = loop(lambda v, x: np.sin(v) * x, a, np.stack(rows))
        a[0] = u[0] * 2
        a[3] = 7.0
        return np.sum(final * more) + np.sum(a)

    def plain(one, state, inputs):
        for k in range(3):
            state = one(state, np.copy(inputs[k]))
        return state

    def traced(one, state, inputs):
        return timeloop(one, state, 3, inputs=inputs, schedule=schedule)

    np.testing.assert_allclose(grad(lambda u: f(u, traced))(U0), grad(lambda u: f(u, plain))(U0), rtol=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_input_array_written_after_the_loop_does_not_reach_it(schedule):
    """A traced array of inputs whose memory only its own writes hold is not written under the loop."""

    def f(u):
        rows = np.zeros((3, 5)) * u
        rows[1:] = u * 2
        final = timeloop(lambda v, x: np.sin(v) * (1 + x), u, 3, inputs=rows, schedule=schedule)
        rows[0] = 9.0
        return np.sum(final) + np.sum(rows)

    def g(u):
        v = np.sin(u)
        for _ in range(2):
            v = np.sin(v) * (1 + 2 * u)
        return np.sum(v) + np.sum(u * 4)

    np.testing.assert_allclose(grad(f)(U0), grad(g)(U0), rtol=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_change_of_a_returned_value_is_an_error(which, schedule):
    """Final state and outputs that vjp returned may share memory with saved values: a change of one is found."""

    def f(u):
        (a, b), out = timeloop(
            lambda s, i: ((np.exp(-s[0] * s[1]), s[1]), np.exp(s[0])), (u, u + 1), 3, schedule=schedule, outputs=True
        )
        return a, b, out

    ones = (np.ones(5), np.ones(5), np.ones((3, 5)))
    right = vjp(f, U0)[1](ones)[0]
    value, pullback = vjp(f, U0)
    value[which][...] = np.nan
    try:
        found = pullback(ones)[0]
    except MutationError:
        return
    assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_gradients_are_the_callers(schedule):
    """Cotangents of state, inputs and statics that are one array inside come back as arrays of their own."""
    c, x = np.ones(5), np.ones((STEPS, 5))

    def f(u, c, rows, x):
        inputs = [(rows, x[k]) for k in range(STEPS)]
        return timeloop(lambda s, r: s + c + r[0] + r[1], u, STEPS, inputs=inputs, schedule=schedule)

    value, pullback = vjp(f, U0, c, c, x, retain=True)
    seed = np.arange(5.0)
    first = pullback(seed)
    for k, array in enumerate(first):
        assert not any(np.shares_memory(array, other) for other in (*first[:k], seed, value, U0, c, x))
    kept = [array.copy() for array in first]
    spoil(first)
    for array, other in zip(pullback(seed), kept, strict=True):
        assert array.tobytes() == other.tobytes()


# States alive.


@pytest.mark.parametrize("snapshots", [1, 3, 6])
def test_states_alive_are_snapshots_and_working_set(snapshots):
    """At the start of each step there live, with the collector off, the snapshots and at most 2 states more."""
    size = 16 * LARGE * 8  # so large that frames and nodes are nothing beside it
    storage = Memory()
    forward: list[tuple[int, int]] = []
    reverse: list[tuple[int, int]] = []
    base = 0

    def measured(u, i):
        alive = round((tracemalloc.get_traced_memory()[0] - base) / size)
        (forward if len(forward) < 40 else reverse).append((alive, len(storage.keys())))
        return u * 0.5  # saves nothing

    def f(u):
        return np.sum(timeloop(measured, u, 40, schedule=Revolve(snapshots), storage=storage))

    u = np.ones(16 * LARGE)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        grad(f)(u)
        left = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
        gc.enable()
    assert len(forward) + len(reverse) == Revolve(snapshots).forward_steps(40)
    # Forward the state of the step; in reverse its cotangent, too.
    assert max(alive - held for alive, held in forward) <= 1
    assert max(alive - held for alive, held in reverse) <= 2
    assert max(held for _, held in forward + reverse) == snapshots
    assert left < size


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_nothing_is_left_to_collect(schedule):
    """A gradient, a pullback and a dropped pullback make no cycles."""
    with nothing_to_collect():
        grad(lambda u: misfit(u, schedule=schedule))(U0)
        vjp(lambda u: misfit(u, schedule=schedule), U0, retain=True)[1](np.float64(1))
        vjp(lambda u: misfit(u, schedule=schedule), U0)


@pytest.mark.parametrize("schedule", [None, *SCHEDULES, Mixed(4), Online(3)], ids=str)
def test_objects_are_as_many_after_each_gradient(schedule):
    """With the collector off 50 gradients leave no more objects than two, and it would collect none."""
    counts, storage = [0] * 50, Memory()
    f = grad(lambda u: misfit(u, schedule=schedule, storage=storage))
    gc.collect()
    gc.disable()
    try:
        for k in range(len(counts)):
            f(U0)
            counts[k] = len(gc.get_objects())
            assert storage.keys() == ()
        assert gc.collect() == 0
    finally:
        gc.enable()
    # Whoever runs the tests may hear of the next ones meanwhile, in a thread: a few objects, once.
    assert counts[-1] - counts[1] < 5


def test_outer_tape_grows_by_nothing_with_the_steps():
    """The tape around has as many nodes after 300 steps as after 3, with closed-over traced coefficients."""

    def nodes(steps):
        found = []

        def f(c):
            tape = current().tape
            before = tape.count
            u = timeloop(lambda u, i: u * c[0] + c[1] * np.sin(c[0]), U0, steps, schedule=Revolve(3))
            found.append(tape.count - before)
            return np.sum(u)

        grad(f)((np.float64(0.5), U0))
        return found

    assert nodes(300) == nodes(3)
    assert nodes(3)[0] <= 4


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_peak_does_not_grow_with_the_steps(kind, tmp_path):
    """2,000 steps more (on disk 1,000) with the same snapshots have the same peak within 8 KiB."""
    few, many = 500, 2_500 if kind == "memory" else 1_500

    def run(steps):
        with Memory() if kind == "memory" else Disk(tmp_path) as storage:
            grad(lambda c: timeloop(lambda u, i: u * c, 1.0, steps, schedule=Revolve(8), storage=storage))(0.99999)

    def peak(steps):
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            run(steps)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    run(few)
    assert abs(peak(many) - peak(few)) < 8 * 1024


@pytest.mark.parametrize("used", [lambda i: True, lambda i: i % 3 == 0, lambda i: i >= 7, lambda i: i == 0])
@pytest.mark.parametrize("schedule", [*SCHEDULES, StoreAll("disk"), Mixed(4), Periodic(3, 2), Online(3)], ids=str)
def test_static_values_are_kept_once(schedule, used):
    """A static value is held by reference and stored nowhere, if it is used at each step, every third, or late."""
    stored = []

    class Counting(Delegating):
        def put(self, key, arrays, *, kind=""):
            stored.extend(arrays)
            return super().put(key, arrays, kind=kind)

    def f(c):
        def one(u, i):
            return np.sin(u * np.sum(c * u)) if used(i) else np.sin(u)

        return np.sum(timeloop(one, np.ones(3)[:1], STEPS, schedule=schedule, storage=Counting()))

    c = np.linspace(0.1, 0.2, LARGE)
    grad(f)(c)
    assert all(array.nbytes <= 64 for array in stored)
    # In units of the static value: two products of a step, their cotangents, its sum, and what becomes the gradient.
    assert peak_bytes(lambda: grad(f)(c)) < 6 * c.nbytes


# Exceptions.


class Stop(BaseException):
    """An exception that no handler of ours names."""


def raising(at: int, error: type[BaseException]) -> Any:
    """A step that raises when it is called for the *at*-th time."""
    calls = [0]

    def one(u, i):
        calls[0] += 1
        if calls[0] == at:
            raise error("injected")
        return step(u, i)

    return one


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_exception_in_any_step_leaves_nothing(schedule, error):
    """An exception in any run of a step, forward or reverse, passes; nothing is left; the next call is right."""
    right = expected().tobytes()
    storage = Memory()
    with nothing_to_collect():
        for at in range(1, schedule.forward_steps(STEPS) + 1):
            with pytest.raises(error, match="injected"):
                grad(lambda u: misfit(u, step=raising(at, error), schedule=schedule, storage=storage))(U0)
            assert storage.keys() == ()
            assert current().tape is None
            assert current().capture is None
    assert grad(lambda u: misfit(u, schedule=schedule, storage=storage))(U0).tobytes() == right


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("schedule", REVOLVES, ids=str)
def test_exception_in_any_storage_operation_leaves_nothing(schedule, error):
    """An exception in any put, get or take passes as it is; the storage is left clean and good for the next call."""
    right = expected().tobytes()
    at = 0
    while True:
        at += 1
        storage = Faulty(at, error)
        try:
            found = grad(lambda u: misfit(u, schedule=schedule, storage=storage))(U0)
        except error as raised:
            assert str(raised) == "injected"  # noqa: PT017 - whether it is raised is what ends the loop
            assert storage.keys() == ()
            assert grad(lambda u: misfit(u, schedule=schedule, storage=storage))(U0).tobytes() == right
        else:
            assert found.tobytes() == right
            break
    assert at > 2 * schedule.peak_snapshots(STEPS)


@pytest.mark.parametrize("at", [1, 3, STEPS, STEPS + 2])
def test_exception_removes_files(at, tmp_path):
    """A loop that made its own files on disk removes them when a step raises."""
    budget = Budget(memory=LARGE * 8 * 8, disk="1 GiB", directory=tmp_path)

    def f(u):
        return np.sum(timeloop(raising(at, ValueError), u, STEPS, schedule=Hierarchical(0, 3, Costs())) ** 2)

    written: list[int] = []

    def g(u):
        noted = lambda u, i: (written.append(len(list(tmp_path.iterdir()))), step(u, i))[1]
        # With a free disk the planner takes it, however slow that of this machine is just now.
        return np.sum(timeloop(noted, u, STEPS, costs=Costs(forward=100.0)))

    grad(g, budget=budget)(np.ones(LARGE))
    assert max(written) == 1  # this budget does need files
    with pytest.raises(ValueError, match="injected"):
        grad(f, budget=budget)(np.ones(LARGE))
    assert list(tmp_path.iterdir()) == []


def test_exception_after_the_loop_leaves_a_users_storage_clean():
    """A function that fails after its loop, or does not use its result, leaves no key in the user's storage."""
    storage = Memory()

    def fails(u):
        misfit(u, schedule=Revolve(3), storage=storage)
        raise KeyError("after")

    with pytest.raises(KeyError, match="after"):
        grad(fails)(U0)
    assert storage.keys() == ()

    def unused(u):
        misfit(u, schedule=Revolve(3), storage=storage)
        return np.sum(u)

    for _ in range(3):
        np.testing.assert_array_equal(grad(unused)(U0), np.ones(5))
        assert storage.keys() == ()


def test_pullback_that_is_never_called_leaves_a_users_storage_clean():
    """Snapshots in the user's storage go when the pullback is dropped or freed."""
    storage = Memory()
    value, pullback = vjp(lambda u: misfit(u, schedule=Revolve(3), storage=storage), U0)
    assert len(storage.keys()) == 3
    del pullback
    assert storage.keys() == ()
    value, pullback = vjp(lambda u: misfit(u, schedule=Revolve(3), storage=storage), U0, retain=True)
    pullback(value)
    pullback.free()
    assert storage.keys() == ()
    with pytest.raises(ReleasedValueError):
        pullback(value)


def test_unused_loop_gives_its_budget_back():
    """Snapshots of loops whose results were dropped no longer count: the loops after them have all the budget."""
    u = np.full(LARGE, 0.5)
    budget = Budget(memory=LARGE * 8 * 12)

    def f(u):
        for _ in range(8):
            timeloop(step, u, 30)
        return np.sum(timeloop(step, u, 30))

    expected = grad(lambda u: np.sum(timeloop(step, u, 30)))(u)
    assert grad(f, budget=budget)(u).tobytes() == expected.tobytes()


def test_exception_in_a_pull_does_not_spoil_a_retained_pullback_silently():
    """After an exception in a retained pull the next pull is right or an error, never a partial gradient."""
    calls = [0]
    fail_at = [10**9]

    def one(u, i):
        calls[0] += 1
        if calls[0] == fail_at[0]:
            raise ValueError("injected")
        return step(u, i)

    # The first pull makes the runs that the forward one has not made, the second one all.
    runs = Revolve(2).forward_steps(STEPS) - STEPS + 1
    for at in range(1, 2 * runs):
        calls[0], fail_at[0] = 0, 10**9
        _, pullback = vjp(lambda u: misfit(u, step=one, schedule=Revolve(2)), U0, retain=True)
        fail_at[0] = calls[0] + at
        if at >= runs:
            pullback(np.float64(1))
        with pytest.raises(ValueError, match="injected"):
            pullback(np.float64(1))
        try:
            found = pullback(np.float64(1))[0]
        except (MutationError, ReleasedValueError, StorageError):
            continue
        assert found.tobytes() == expected().tobytes()


def test_two_pullbacks_share_a_storage():
    """Two loops that use one storage at the same time have keys of their own."""
    storage = Memory()
    pulls = [vjp(lambda u: misfit(u, schedule=Revolve(3), storage=storage), U0)[1] for _ in range(2)]
    assert len(storage.keys()) == 6
    for pull in pulls:
        assert pull(np.float64(1))[0].tobytes() == expected().tobytes()
    assert storage.keys() == ()


def test_pullback_in_another_thread():
    """A pullback may be called from another thread than the forward run."""
    _, pullback = vjp(lambda u: misfit(u, schedule=Revolve(2)), U0)
    found = []
    thread = threading.Thread(target=lambda: found.append(pullback(np.float64(1))[0]))
    thread.start()
    thread.join()
    assert found[0].tobytes() == expected().tobytes()


def test_threads_have_loops_of_their_own():
    """Eight threads that differentiate loops of one step function at once all get the right gradient."""
    right = expected().tobytes()
    found: list[bytes] = []

    def work():
        for schedule in SCHEDULES * 4:
            found.append(grad(lambda u: misfit(u, schedule=schedule))(U0).tobytes())  # noqa: PERF401 - one by one, as they come

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [right] * 8 * 4 * len(SCHEDULES)


@pytest.mark.parametrize("transformed", [lambda f: f, grad], ids=["plain", "grad"])
def test_an_initial_state_that_the_caller_does_not_hold_goes_before_the_first_step(transformed):
    """The loop has its own copy, and no frame or list of it keeps the one that it was given."""
    given: list[Any] = []
    alive: list[int] = []

    def initial(u: Any) -> dict[str, Any]:
        state = {"u": 0.5 * u, "v": u + 1.0}
        given.extend(weakref.ref(getattr(leaf, "_value", leaf)) for leaf in state.values())
        return state

    def step(s: Any, i: Any) -> dict[str, Any]:
        alive.append(sum(ref() is not None for ref in given))
        return {"u": s["u"] * s["v"], "v": s["v"] - 0.1}

    transformed(lambda u: timeloop(step, initial(u), STEPS)["u"].sum())(np.linspace(0.2, 1.1, LARGE))
    assert len(given) == 2
    assert set(alive) == {0}


@pytest.mark.parametrize("transformed", [lambda f: f, grad], ids=["plain", "grad"])
def test_an_output_goes_before_the_next_step(transformed):
    """What a step emitted is in the array of all outputs, and nowhere else when the next one runs."""
    emitted: list[Any] = []
    alive: list[int] = []

    def step(u: Any, i: Any) -> tuple[Any, Any]:
        alive.append(sum(ref() is not None for ref in emitted))
        row = np.sin(u)
        emitted.append(weakref.ref(getattr(row, "_value", row)))
        return 0.9 * u, row

    transformed(lambda u: timeloop(step, u, STEPS, outputs=True)[1].sum())(np.linspace(0.2, 1.1, LARGE))
    assert set(alive[:STEPS]) == {0}
