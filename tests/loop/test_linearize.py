"""Linearized time loops: the bits of forward mode for any tangent, within the schedule and the budget."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import optree
import pytest
from tests.loop.test_matrix import PROGRAMS, STEPS, Counted, assert_same_bits, direction
from tests.measure import peak_bytes
from tests.scale import sample

from ebbtide import (
    Budget,
    BudgetError,
    DeterminismError,
    MutationError,
    ReleasedValueError,
    TraceError,
    checkpoint,
    grad,
    jit,
    jvp,
    linearize,
    profile,
    timeloop,
    vmap,
)
from ebbtide.schedules import Mixed, Revolve, Schedule, StoreAll

MIXED = Mixed(8, restart=1, saved=3)
KEPT = {None: STEPS, StoreAll(): STEPS, MIXED: 2, Revolve(2): 0, StoreAll("disk"): 0}
U0 = np.linspace(0.2, 1.3, 40_000)
STATE = U0.nbytes


def tangents(control: Any) -> list[Any]:
    """Some tangents of a control, in no order."""
    v = direction(control)
    return [v, optree.tree_map(lambda x: np.sin(3 * x)[()], v), optree.tree_map(lambda x: x * 0, v), v]


@pytest.mark.parametrize(("name", "schedule"), sample(list(product(PROGRAMS, KEPT)), 3), ids=str)
def test_pushforward_is_forward_mode(name, schedule):
    """Each push gives the bits of jvp, and runs just the steps whose derivatives the schedule does not keep."""
    p = PROGRAMS[name]
    loop = Counted(schedule)
    directions = tangents(p.control)
    known = [jvp(partial(p.f, Counted(schedule)), (p.control,), (v,)) for v in directions]
    value, pushforward = linearize(partial(p.f, loop), p.control)
    assert loop.count == loop.loops * STEPS
    loops = loop.loops
    for v, (expected, tangent) in zip(directions, known, strict=True):
        before = loop.count
        found = pushforward(v)
        assert_same_bits(np.asarray(found), np.asarray(tangent))
        assert_same_bits(value, expected)
        kept = 0 if name == "loop_inside_of_checkpoint" else KEPT[schedule]
        assert loop.count - before == loops * (STEPS - kept)


def new(u, k=1.0):
    """A step that saves three arrays in reverse, and two or three in a linearization."""
    return u + 0.1 * np.sin(k * u) * np.roll(u, 1)


def final(u, k, steps=30, schedule=None, budget=None):
    """A function with a loop and something before and after it."""
    u = timeloop(lambda u, _: new(u, k), np.cos(u), steps, schedule=schedule, budget=budget)
    return np.sum(u**2) * k, u[::5]


@pytest.mark.parametrize("states", [10, 20, 50, 200])
@pytest.mark.parametrize("inner", [False, True])
def test_budget_is_kept(states, inner):
    """With more bytes more steps are kept; the peak of the run and of each push stays within budget and tangents."""
    budget = Budget(memory=states * STATE)
    v = np.cos(U0), 0.3
    alone = peak_bytes(lambda: jvp(final, (U0, 0.7), v))
    found: list[Any] = []

    def run():
        if inner:
            found.extend(linearize(lambda u, k: final(u, k, budget=budget), U0, 0.7))
        else:
            found.extend(linearize(final, U0, 0.7, budget=budget))

    assert peak_bytes(run) - alone <= budget.memory
    assert peak_bytes(lambda: found[1](*v)) <= alone + (1 << 16)
    assert_same_bits(found[1](*v), jvp(final, (U0, 0.7), v)[1])


@pytest.mark.parametrize("rows", [1, 10])
def test_arguments_that_steps_close_over_take_no_zeros(rows):
    """The tangent at hand of an argument is zeros, and none is held as long as the pushforward is there."""
    k = np.random.default_rng(5).uniform(0.2, 1.0, (rows, U0.size))

    def f(u, k):
        return np.sum(timeloop(lambda u, i: u + 0.05 * np.sin(k[i % rows] * u), u, 20) ** 2)

    v, budget = (np.cos(U0), np.sin(k)), Budget(memory=6 * STATE)
    alone = peak_bytes(lambda: jvp(f, (U0, k), v))
    pair: list[Any] = []
    assert peak_bytes(lambda: pair.extend(linearize(f, U0, k, budget=budget))) - alone <= budget.memory
    assert peak_bytes(lambda: pair[1](*v)) <= alone + (1 << 16)
    tracemalloc.start()
    try:
        held = linearize(f, U0, k, budget=budget)
        assert tracemalloc.get_traced_memory()[0] <= budget.memory + (1 << 16)
    finally:
        tracemalloc.stop()
    assert_same_bits(held[1](*v), jvp(f, (U0, k), v)[1])


def test_steps_of_a_budget():
    """The steps that run again are the fewer the larger the budget, down to none."""
    counts = []
    for states in (8, 12, 20, 40, 80, 140):
        with profile() as p:
            _, pushforward = linearize(final, U0, 0.7, budget=Budget(memory=states * STATE))
            first = p.steps_forward
            pushforward(U0, 1.0)
        assert first == 30
        counts.append(p.steps_forward - first)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 28
    assert counts[-1] == 0


def test_memory_does_not_grow_with_the_steps():
    """What is held between pushes under a schedule is two states, for any number of steps."""
    held = []
    for steps in (1000, 3000):
        pair: list[Any] = []

        def run(steps=steps, pair=pair):
            pair.extend(linearize(lambda u: final(u, 0.7, steps, Revolve(3)), U0[:1000]))

        held.append(peak_bytes(run))
    assert held[1] - held[0] < 1000 * 8


def test_what_is_kept_is_counted():
    """A profile sees the derivatives that are kept, and sees them go."""
    with profile() as p:
        pair = linearize(lambda u: final(u, 0.7), U0)
        assert p._ledger.live >= 30 * 2 * STATE
        pair[1].free()
        del pair
        assert p._ledger.live < STATE
    assert p.held_bytes >= 60 * STATE


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2), MIXED], ids=str)
def test_loops_in_loops(schedule):
    """A loop in a step is kept and run again with its step, or has its own schedule; inputs and outputs too."""

    def f(u, k):
        def step(u, x):
            w = timeloop(lambda v, j: new(v, k) + 0.01 * u * x, u, 3, schedule=Revolve(1))
            return timeloop(lambda v, j: (new(v) * w, v[:3]), w, 2, outputs=True)

        return timeloop(step, u, 5, schedule=schedule, inputs=[k * i for i in range(5)], outputs=True)

    u = np.linspace(0.1, 0.9, 7)
    value, pushforward = linearize(f, u, 0.4)
    for v in ((np.cos(u), 0.3), (np.sin(u), -1.0)):
        expected, tangent = jvp(f, (u, 0.4), v)
        assert_same_bits(value, expected)
        assert_same_bits(pushforward(*v), tangent)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2), MIXED], ids=str)
def test_static_values_that_are_returned(schedule):
    """A step may return an array from outside as it is, as state, as output, and first in a late step."""

    def f(u, k):
        def step(s, i):
            a, b = s
            return (b * 2.0, k if i == 3 else a), (k, a)

        return timeloop(step, (u, u), 5, schedule=schedule, outputs=True)

    u, k = np.linspace(0.1, 0.9, 7), np.ones(7)
    value, pushforward = linearize(f, u, k)
    for v in ((np.cos(u), np.sin(u)), (np.sin(u), u)):
        expected, tangent = jvp(f, (u, k), v)
        assert_same_bits(value, expected)
        assert_same_bits(pushforward(*v), tangent)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2), MIXED], ids=str)
def test_until(schedule):
    """The number of steps is that of the run at the point, and is not decided again."""
    asked = []

    def until(u):
        asked.append(1)
        return np.sum(u) > 9.0

    def f(u):
        return timeloop(lambda u, i: (u * 1.1, u[0]), u, until=until, max_steps=100, schedule=schedule, outputs=True)

    u = np.linspace(0.2, 1.3, 5)
    value, pushforward = linearize(f, u)
    assert 5 < len(asked) < 50
    asked.clear()
    found = pushforward(np.cos(u))
    assert asked == []
    assert_same_bits((value, found), jvp(f, (u,), (np.cos(u),)))
    assert_same_bits(linearize(lambda u: timeloop(new, u, until=lambda _: True, max_steps=3), u)[1](u), u)


def test_no_dependence():
    """A loop that depends on nothing is a constant; one of no steps is the identity."""
    value, pushforward = linearize(lambda u: timeloop(lambda s, i: s + 1.0, 2.0, 3), U0[:3])
    assert (value, pushforward(U0[:3])) == (5.0, 0.0)
    _, pushforward = linearize(lambda u: timeloop(lambda s, i: s + 1.0, u, 0), U0[:3])
    assert_same_bits(pushforward(U0[3:6]), U0[3:6])


@pytest.mark.parametrize("schedule", [None, Mixed(2)])
def test_python_numbers_after_the_loop(schedule):
    """A Python number of the state is one after the loop, in pushes too."""

    def f(u):
        u, t = timeloop(lambda s, i: (s[0] * (1 + 0.1 * s[1]), s[1] + 0.1), (u, 0.5), 6, schedule=schedule)
        assert type(t) is float
        return np.sum(u * u) * (t + 1) * np.abs(t)

    u = np.arange(3.0)
    value, pushforward = linearize(f, u)
    assert (value, pushforward(np.ones(3))) == jvp(f, (u,), (np.ones(3),))


def test_results_are_the_callers():
    """What the caller does to a value or to a tangent that was returned is not seen by the next push."""
    u = np.linspace(0.2, 1.3, 6)

    def f(u):
        return timeloop(lambda s, i: s, u, 3, schedule=Revolve(1)), timeloop(lambda s, i: s, u, 3)

    value, pushforward = linearize(f, u)
    for leaf in value:
        leaf[...] = np.nan
    for _ in range(2):
        found = pushforward(np.cos(u))
        assert_same_bits(found, (np.cos(u), np.cos(u)))
        for leaf in found:
            leaf[...] = np.nan


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_a_changed_array_is_an_error(schedule):
    """An array that the steps use and that was changed since is found, kept or run again."""
    k = np.linspace(0.5, 1.5, 6)
    _, pushforward = linearize(
        lambda u: timeloop(lambda s, i: np.sin(s) * k, u, 5, schedule=schedule), np.linspace(0.2, 1.3, 6)
    )
    k *= 2.0
    with pytest.raises((MutationError, DeterminismError)):
        pushforward(np.ones(6))


def test_a_step_that_is_not_deterministic():
    """A step that uses another array when it runs again, or gives another result, is an error."""
    calls = []

    def f(u, k):
        def step(s, i):
            calls.append(1)
            return s * k if len(calls) > 3 else s * 2.0

        return timeloop(step, u, 3, schedule=Revolve(1))

    _, pushforward = linearize(f, 1.0, 2.0)
    with pytest.raises(DeterminismError, match="had not used before"):
        pushforward(1.0, 1.0)
    noise = iter(np.linspace(0, 1, 100))
    _, pushforward = linearize(lambda u: timeloop(lambda s, i: s * next(noise), u, 3, schedule=Revolve(1)), 1.0)
    with pytest.raises(DeterminismError, match="another result"):
        pushforward(1.0)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_exceptions_leave_nothing(schedule):
    """After an exception in a step, at the point or in a push, the next call is right."""
    fails = [False]

    def f(u):
        def step(s, i):
            if fails[0] and i == 3:
                raise ZeroDivisionError
            return new(s)

        return timeloop(step, u, 6, schedule=schedule)

    u = np.linspace(0.2, 1.3, 6)
    fails[0] = True
    with pytest.raises(ZeroDivisionError):
        linearize(f, u)
    fails[0] = False
    _, pushforward = linearize(f, u)
    expected = jvp(f, (u,), (u,))[1]
    if schedule != StoreAll():
        fails[0] = True
        with pytest.raises(ZeroDivisionError):
            pushforward(u)
        fails[0] = False
    assert_same_bits(pushforward(u), expected)


def test_threads():
    """Pushes in several threads at a time give what they give alone."""
    u = np.linspace(0.2, 1.3, 500)
    _, pushforward = linearize(lambda u, k: final(u, k, schedule=MIXED), u, 0.7)
    directions = [(np.cos(j * u), 0.1 * j) for j in range(8)]
    expected = [pushforward(*v) for v in directions]
    found: dict[int, Any] = {}

    def run(j):
        found[j] = [pushforward(*directions[j]) for _ in range(3)][-1]

    threads = [threading.Thread(target=run, args=(j,)) for j in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for j in range(8):
        assert_same_bits(found[j], expected[j])


@pytest.mark.parametrize("schedule", [None, Revolve(2), MIXED], ids=str)
def test_no_cycles(schedule: Schedule | None):
    """Everything dies with the last reference, freed or dropped, pushed or not; the collector finds nothing."""
    gc.collect()
    gc.disable()
    try:
        for free in (False, True):
            u = np.linspace(0.2, 1.3, 100)
            marks: list[Any] = []

            def f(u, marks=marks):
                w = np.sin(u)
                marks.append(weakref.ref(w))
                return timeloop(lambda s, i: new(s) * w, u, 6, schedule=schedule)

            value, pushforward = linearize(f, u)
            pushforward(u)
            if free:
                pushforward.free()
                with pytest.raises(ReleasedValueError, match=r"free\(\) at .*test_linearize"):
                    pushforward(u)
                assert marks[0]() is None
            del value, pushforward, f
            assert marks[0]() is None
            assert gc.collect() == 0
    finally:
        gc.enable()


def test_other_derivatives_of_a_loop_inside():
    """Linearized together with other derivatives a loop gives the derivatives that follow its schedule."""

    def energy(u):
        return np.sum(timeloop(lambda s, i: new(s), u, 5) ** 2)

    u = np.linspace(0.2, 1.3, 6)
    second = jvp(grad(energy), (u,), (u,))[1]
    close = partial(np.testing.assert_allclose, rtol=1e-12)
    assert linearize(grad(energy), u)[1](u).tobytes() == second.tobytes()
    close(grad(lambda x: linearize(energy, x)[1](u))(u), second)
    close(linearize(lambda x: jvp(energy, (x,), (u,))[1], u)[1](u), np.sum(second * u))
    along = linearize(lambda x: linearize(energy, x)[1](x), u)[1](u)
    close(along, np.sum(second * u) + np.sum(grad(energy)(u) * u))


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_pushforward_can_be_differentiated(schedule):
    """A pushforward is linear: its gradient is that of the vjp, its jvp is itself."""
    u = np.linspace(0.2, 1.3, 6)
    _, pushforward = linearize(lambda u: timeloop(lambda s, i: new(s), u, 5, schedule=schedule), u)
    w = np.cos(u)
    transposed = grad(lambda t: np.sum(pushforward(t) * w))(u)
    expected = grad(lambda u: np.sum(timeloop(lambda s, i: new(s), u, 5) * w))(u)
    np.testing.assert_allclose(transposed, expected, rtol=1e-12)
    assert_same_bits(jvp(pushforward, (u,), (w,))[1], pushforward(w))


def test_steps_of_many_operations_on_few_numbers_keep_their_budget():
    """Where a step finds no room for its derivatives, nor has it nodes for them: these take more than the numbers."""
    u = np.linspace(0.1, 1, 30)

    def step(u, _):
        for _ in range(20):
            u = np.tanh(u * u + 0.1 * u[::-1])
        return u

    f = lambda u: timeloop(step, u, 20)
    expected = jvp(f, (u,), (np.cos(u),))[1]
    with pytest.raises(BudgetError) as error:
        linearize(f, u, budget=Budget(memory=1))
    least, alone, found = error.value.least, peak_bytes(lambda: jvp(f, (u,), (np.cos(u),))), []
    for memory in (least, least * 3 // 2, 2 * least):
        call = lambda memory=memory: found.append(linearize(f, u, budget=Budget(memory=memory))[1](np.cos(u)))
        assert peak_bytes(call) - alone <= memory
        assert_same_bits(found.pop(), expected)


def test_too_small_a_budget():
    """A function without a loop whose derivatives do not fit is refused, and runs with the bytes that are named."""

    def f(u):
        for _ in range(10):
            u = new(u)
        return u

    with pytest.raises(BudgetError) as caught:
        linearize(f, U0, budget=Budget(memory=3 * STATE))
    least = caught.value.least
    assert 10 * STATE < least < 40 * STATE
    value, pushforward = linearize(f, U0, budget=Budget(memory=least))
    assert_same_bits((value, pushforward(U0)), jvp(f, (U0,), (U0,)))


def test_pages_on_disk(tmp_path):
    """With disk the oldest derivatives are paged, and read again for each push."""

    def f(u):
        for _ in range(10):
            u = new(u)
        return u

    budget = Budget(memory=8 * STATE, disk="100 MiB", directory=tmp_path)
    v = np.cos(U0)
    alone = peak_bytes(lambda: jvp(f, (U0,), (v,)))
    pair: list[Any] = []
    assert peak_bytes(lambda: pair.extend(linearize(f, U0, budget=budget))) - alone <= budget.memory
    assert [path for path in tmp_path.rglob("*") if path.is_file()]
    for _ in range(2):
        assert peak_bytes(lambda: pair[1](v)) <= alone + 4 * STATE
        assert_same_bits(pair[1](v), jvp(f, (U0,), (v,))[1])
    pair[1].free()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("schedule", [None, Mixed(4), Revolve(2)], ids=repr)
def test_generators_in_the_state(schedule):
    """A generator in the state has no tangent, and each push draws what the point drew."""

    def f(u: Any) -> Any:
        def step(state: Any, i: Any) -> Any:
            x, generator = state
            return (x + 0.1 * np.sin(x) * generator.random(3), generator), generator.integers(5) * x[0]

        start = u, np.random.default_rng(1)
        (x, generator), firsts = timeloop(step, start, 9, outputs=True, schedule=schedule)
        return np.sum(x * x) * generator.random() + np.sum(firsts)

    u, t = np.linspace(0.1, 1.0, 3), np.array([1.0, -2.0, 0.5])
    value, push = linearize(f, u)
    assert [value, push(t), push(t)] == [*jvp(f, (u,), (t,)), jvp(f, (u,), (t,))[1]]
    np.testing.assert_allclose(push(t), grad(f)(u) @ t, rtol=1e-13)


def loop_of_loops(x: Any, count: Any = None, schedule: Schedule | None = None) -> Any:
    """A loop whose steps are loops that end by their state."""

    def small(v: Any) -> Any:
        if count is not None:
            count.append(1)
        return 0.9 * np.sin(v) + 0.01 * x

    def step(u: Any, i: Any) -> Any:
        return u + timeloop(lambda v, j: small(v), u, until=lambda v: np.sum(v) < 1.2, max_steps=9)

    return timeloop(step, x, 3, schedule=schedule)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1), Mixed(4, restart=1, saved=3)], ids=str)
def test_batches_of_tangents_share_the_steps_of_loops_inside(schedule):
    """A batch, and a batch of batches, runs as many steps as one tangent, and gives the bits of each."""
    x, ran = U0[:6000:1000], []
    pushforward = linearize(partial(loop_of_loops, count=ran, schedule=schedule), x)[1]
    singly = []
    for v in np.eye(6):
        ran.clear()
        singly.append(pushforward(v))
        steps = len(ran)
    for shape in ((6,), (3, 2), (1, 3, 2)):
        call: Any = pushforward
        for _ in shape:
            call = vmap(call)
        ran.clear()
        assert_same_bits(call(np.eye(6).reshape(*shape, 6)), np.stack(singly).reshape(*shape, 6))
        assert len(ran) == steps


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
def test_pushforward_in_a_step_of_another_loop(schedule):
    """A pushforward is a linear function that a step may call with what it uses from outside."""
    x = U0[:6000:1000]
    pushforward = linearize(partial(loop_of_loops, schedule=Revolve(1)), x)[1]

    def total(c: Any) -> Any:
        v = c * np.cos(x)
        return np.sum(timeloop(lambda u, i: u + pushforward(v), x, 3, schedule=schedule))

    np.testing.assert_allclose(grad(total)(1.0), 3 * np.sum(pushforward(np.cos(x))), rtol=1e-13)


@pytest.mark.parametrize("wrapped", [lambda f: f, checkpoint], ids=["loop", "checkpoint"])
@pytest.mark.parametrize("schedule", [None, StoreAll(), Revolve(1), MIXED], ids=str)
def test_pushforward_in_a_program(schedule, wrapped):
    """A pushforward in a traced function has the bits that it has outside: its steps run on values there, too."""
    x = U0[:6000:1000]

    def turned(x: Any) -> Any:
        after = timeloop(lambda u, i: np.outer(np.sin(u), x).T[:, ::2] @ u[:3] * 0.3, x, 5, schedule=schedule)
        return after + loop_of_loops(x, schedule=schedule)

    pushforward = linearize(wrapped(turned), x)[1]
    for executor in ("reference", "machine"):
        program = jit(pushforward, executor=executor)
        for v in (np.cos(x), np.sin(x)):
            np.testing.assert_allclose(program(v), pushforward(v), rtol=1e-14)
    elementwise = linearize(wrapped(partial(loop_of_loops, schedule=schedule)), x)[1]
    assert_same_bits(jit(elementwise)(np.cos(x)), elementwise(np.cos(x)))


@pytest.mark.parametrize("schedule", [None, Revolve(2)], ids=str)
def test_what_loops_return_and_are_given_is_not_kept(schedule):
    """A pushforward holds no outputs of its loop, and of inputs that have tangents one array for each."""

    def outputs(u):
        return np.sum(timeloop(lambda s, _: (s * 1.1, s * 2.0), u, 30, outputs=True, schedule=schedule)[1])

    def inputs(u):
        return np.sum(timeloop(lambda s, x: np.sin(s + x), u, 30, inputs=[u * k for k in range(30)], schedule=schedule))

    for f, most in ((outputs, 2.5), (inputs, 36)):
        found: list[Any] = []
        tracemalloc.start()
        try:
            found.extend(linearize(f, U0, budget=Budget(6 * STATE)))
            assert tracemalloc.get_traced_memory()[0] < most * STATE
        finally:
            tracemalloc.stop()
        assert_same_bits(found[1](U0), jvp(f, (U0,), (U0,))[1])


def followed(u: Any, schedule: Any = None) -> Any:
    """A loop with something after it that keeps five arrays."""
    u = timeloop(lambda u, _: np.sin(u * 1.1), u, 30, schedule=schedule)
    for _ in range(5):
        u = np.sin(u)
    return np.sum(u)


@pytest.mark.parametrize("schedule", [None, Mixed(40, restart=1, saved=1)], ids=repr)
def test_a_loop_makes_room_for_what_comes_after_it(schedule):
    """A refusal names what does, a loop giving up what it kept; no larger budget is refused, and each is kept."""
    f, v = partial(followed, schedule=schedule), np.cos(U0)
    with pytest.raises(BudgetError) as caught:
        linearize(f, U0, budget=Budget(memory=STATE))
    least = caught.value.least
    assert least < 7 * STATE
    expected = jvp(f, (U0,), (v,))
    alone = peak_bytes(lambda: jvp(f, (U0,), (v,)))
    again = []
    for memory in (least, least + STATE, 10 * STATE, 20 * STATE, 30 * STATE, 60 * STATE):
        found: list[Any] = []
        with profile() as p:
            peak = peak_bytes(lambda: found.extend(linearize(f, U0, budget=Budget(memory))))
            assert peak - alone <= memory + (1 << 14)  # what Python takes for the tape
            assert_same_bits((found[0], found[1](v)), expected)
        again.append(p.steps_forward - 30)
    assert again == sorted(again, reverse=True)
    assert again[0] == 30
    assert again[-1] == 0


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("steps", [10, 60])
def test_a_loop_with_nothing_after_it_keeps_the_budget(steps, inner):
    """The state that a loop keeps is refused where it does not fit, and the bytes that are named are enough."""

    def run(memory):
        own = Budget(memory) if inner else None
        f = partial(timeloop, lambda s, _: s + 0.01 * np.sin(s), steps=steps, budget=own)
        return linearize(f, U0, budget=None if inner else Budget(memory))

    with pytest.raises(BudgetError, match=r"test_linearize\.py:\d+") as caught:
        run(1)
    least = caught.value.least
    assert STATE <= least <= STATE + (1 << 15)
    alone = peak_bytes(lambda: jvp(partial(timeloop, lambda s, _: s + 0.01 * np.sin(s), steps=steps), (U0,), (U0,)))
    for memory in (least, 2 * STATE, 5 * STATE, 9 * STATE, 30 * STATE):
        found: list[Any] = []
        assert peak_bytes(lambda memory=memory, found=found: found.append(run(memory))) - alone <= memory
        assert found[0][1]._account.ledger.live <= memory


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("is_static", [False, True])
def test_a_state_of_several_leaves_keeps_the_budget(is_static, named):
    """Of the initial state the loop has its own copy alone, with no tangents, whatever its steps use from outside."""

    def f(u):
        w = np.tanh(u) if is_static else 1.1

        def step(s, _):
            x, v = s
            v += 0.01 * v * v
            for _ in range(3):
                v = v + 0.01 / (1.0 + v)
            return v * w, 0.9 * x + 0.1 * v

        if named:
            before = u + 1.0, 0.9 * u
            s = timeloop(step, before, 20)
        else:
            s = timeloop(step, (u + 1.0, 0.9 * u), 20)
        return np.sum(s[0]) + np.sum(s[1])

    with pytest.raises(BudgetError) as caught:
        linearize(f, U0, budget=Budget(1))
    least = caught.value.least
    alone = peak_bytes(lambda: jvp(f, (U0,), (U0,)))
    for memory in (least, int(1.2 * least), 2 * least, 6 * least):
        found: list[Any] = []
        peak = peak_bytes(lambda memory=memory, found=found: found.extend(linearize(f, U0, budget=Budget(memory))))
        assert peak - alone <= memory
        assert_same_bits((found[0], found[1](U0)), jvp(f, (U0,), (U0,)))


def test_loops_make_room_for_loops():
    """The first of two loops gives up steps for the second one, and nothing is left behind."""

    def f(u):
        for _ in range(2):
            u = followed(u) + u
        return u

    v = np.cos(U0)
    with pytest.raises(BudgetError) as caught:
        linearize(f, U0, budget=Budget(memory=STATE))
    least = caught.value.least
    assert least < 14 * STATE
    for memory in (least, 2 * least, 4 * least):
        with profile() as p:
            pair = linearize(f, U0, budget=Budget(memory))
            assert p._ledger.live <= memory
            assert_same_bits((pair[0], pair[1](v)), jvp(f, (U0,), (v,)))
            pair[1].free()
            del pair
            assert p._ledger.live == 0


@pytest.mark.parametrize("steps", [5, 20])
def test_loops_in_steps_are_a_part_of_what_a_loop_keeps(steps):
    """What is held stays within the budget where the loops in a step have the room that the step is to be kept in."""

    def step(s, _):
        w = np.cos(s)
        return timeloop(lambda v, _: np.sin(v * w), s, 3) * w

    u, v = U0[:2000], np.cos(U0[:2000])
    for states in range(6, 90, 3):
        budget = Budget(states * u.nbytes)
        _, pushforward = linearize(lambda u: timeloop(step, u, steps), u, budget=budget)
        assert pushforward._account.ledger.live <= budget.memory
    assert_same_bits(pushforward(v), jvp(lambda u: timeloop(step, u, steps), (u,), (v,))[1])


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("d", [grad, lambda f: lambda x: jvp(f, (x,), (x,))[1]], ids=["grad", "jvp"])
def test_loops_of_no_steps(d, steps):
    """A loop of no steps from a constant leaves nothing of the linearization in what it returns."""
    def f(x):
        step = lambda u, i: u + u * timeloop(lambda v, j: v, np.ones(3), 0)
        value, pushforward = linearize(lambda u: timeloop(step, u * timeloop(step, np.ones(3), 0), steps), x)
        return np.sum(pushforward(value) * x)

    x = np.array([0.3, 0.5, 0.2])
    np.testing.assert_allclose(d(f)(x), d(lambda x: 4.0**steps * np.sum(x * x))(x), rtol=1e-13)


@pytest.mark.parametrize("schedule", [StoreAll(), MIXED, Revolve(2), StoreAll("disk")], ids=str)
def test_what_the_first_step_leaves_in_a_closure_is_told(schedule):
    """A step that keeps a value of the argument for later ones is an error, where these would take it for constant."""

    def f(c: Any) -> Any:
        kept: dict[str, Any] = {}

        def step(u: Any, i: int) -> Any:
            if not kept:
                kept["sin"] = np.sin(c)
            return u * kept["sin"]

        return timeloop(step, np.ones(3), steps=STEPS, schedule=schedule)

    with pytest.raises(TraceError, match="uses a traced array after the function that it was made in had returned"):
        linearize(f, np.full(3, 0.3))


@pytest.mark.parametrize("count", [2, 6])
def test_what_steps_of_several_loops_close_over_is_in_the_budget(count: int) -> None:
    """A loop keeps what its steps reach: of what several loops keep all but the largest part is in the budget."""

    def one(u: Any, k: Any, j: int) -> Any:
        made = np.sin(j + 0.1 * k)
        return timeloop(lambda s, i: np.sin(s) + (0.1 * made if i > 2 else 0.0), u, 6)

    def f(u: Any, k: Any) -> Any:
        for j in range(count):
            u = one(u, k, j)
        return np.sum(u)

    args, directions = (U0, 2 * U0), (np.cos(U0), np.sin(U0))
    forward = lambda: jvp(f, args, directions)
    expected, alone = forward(), peak_bytes(forward)
    budget = 1
    for _ in range(12):
        try:
            found = linearize(f, *args, budget=Budget(budget))[1](*directions)
            break
        except BudgetError as error:
            budget = error.least
    assert_same_bits(found, expected[1])
    for factor in (1, 2):
        bound = factor * budget
        measured = peak_bytes(lambda b=bound: linearize(f, *args, budget=Budget(b))[1](*directions)) - alone
        assert measured <= bound + 16384


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
def test_a_push_takes_as_much_for_many_steps_as_for_few(schedule):
    """There was an empty list for each step of a loop without outputs, 100 bytes."""
    u = np.linspace(0.2, 1.3, 10)
    peaks = []
    for steps in (20, 1500):
        push = linearize(lambda u, n=steps: timeloop(lambda u, i: u - 0.01 * u * u, u, n, schedule=schedule), u)[1]
        push(u)
        peaks.append(peak_bytes(lambda push=push: push(u)))
    assert peaks[1] <= peaks[0] + 40_000


def test_pushes_free_dead_tuples():
    """Steps that run again in a push leave as few tuples of `np.roll` to the interpreter as those of the first run."""
    u, peaks = np.linspace(0.2, 1.3, 10), []
    for steps in (60, 1500):
        push = linearize(lambda u, n=steps: timeloop(lambda u, i: 0.9 * np.roll(u, 1), u, n, schedule=Revolve(1)), u)[1]
        push(u)
        peaks.append(peak_bytes(lambda push=push: push(u)))
    assert peaks[1] <= peaks[0] + 20_000
