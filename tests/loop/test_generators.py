"""Random generators in the state of a time loop: each run of a step draws the same numbers."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import FULL

from ebbtide import Budget, DeterminismError, ResumeError, TraceError, checkpoint, grad, jvp, timeloop, vjp
from ebbtide.loop.values.generators import pack_generator, unpack_generator
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Memory

STEPS = 11
U0 = np.linspace(0.2, 1.3, 6)
KINDS = (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(1), Revolve(3), Mixed(8, restart=1, saved=3),
    Hierarchical(2, 2, Costs(write=1.0, read=1.0)), Periodic(3, 2), Online(3),
)  # fmt: skip


def by_key(key: int) -> Any:
    """A bit generator of a key, which has no seeds."""
    return np.random.Philox(key=2**100 + key, counter=2**63)


def walk(state: Any, i: Any) -> Any:
    """A nonlinear step with noise, and a choice that only every third step makes."""
    u, random = state
    u = u + 0.1 * np.sin(u) * random.standard_normal(u.shape)
    return (u * random.choice([0.9, 1.1]) if i % 3 == 1 else u), random


def misfit(u: Any, random: Any = None, **options: Any) -> Any:
    """A scalar of the final state."""
    random = np.random.default_rng(7) if random is None else random
    return np.sum(timeloop(options.pop("step", walk), (u, random), STEPS, **options)[0] ** 2)


def by_hand(u: Any, random: Any) -> Any:
    """The same without the library's loop."""
    state = u, random
    for i in range(STEPS):
        state = walk(state, i)
    return np.sum(state[0] ** 2)


CASES = [(schedule, place, np.random.PCG64) for schedule in SCHEDULES for place in (Memory, Disk)]
CASES += [(Revolve(2), Memory, kind) for kind in (*KINDS, by_key)]


@pytest.mark.parametrize(("schedule", "place", "kind"), CASES)
def test_a_step_draws_the_same_each_time(schedule, place, kind):
    """Under every schedule and storage the gradient is that of the plain loop, and bit for bit that of StoreAll."""

    def make() -> np.random.Generator:
        return np.random.Generator(kind(7))

    right = grad(lambda u: misfit(u, make(), schedule=StoreAll()))(U0)
    np.testing.assert_allclose(right, grad(lambda u: by_hand(u, make()))(U0), rtol=1e-12)
    with place() as storage:
        found = grad(lambda u: misfit(u, make(), schedule=schedule, storage=storage))(U0)
    assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("traced", [True, False])
def test_the_callers_generator_stays_where_it_is(traced):
    """The loop draws from a copy; the generator that it returns goes on where the last step left it."""
    random, twin = np.random.default_rng(3), np.random.default_rng(3)
    found = []

    def f(u):
        _, after = timeloop(walk, (u, random), STEPS, schedule=Revolve(2))
        found.append(after)
        return np.sum(u)

    (grad(f) if traced else f)(U0)
    by_hand(U0, twin)
    assert found[0].random() == twin.random()
    assert random.random() == np.random.default_rng(3).random()


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_second_derivatives_and_repeated_pullbacks(schedule):
    """Forward mode, both second derivatives and each of several pullbacks see the same numbers."""
    f, t = partial(misfit, schedule=schedule), np.cos(U0)

    def plain(u):
        return by_hand(u, np.random.default_rng(7))

    np.testing.assert_allclose(jvp(f, (U0,), (t,)), jvp(plain, (U0,), (t,)), rtol=1e-12)
    bent = jvp(grad(plain), (U0,), (t,))[1]
    np.testing.assert_allclose(jvp(grad(f), (U0,), (t,))[1], bent, rtol=1e-11)
    np.testing.assert_allclose(grad(lambda u: jvp(f, (u,), (t,))[1])(U0), bent, rtol=1e-11)
    _, pullback = vjp(f, U0, retain=True)
    for _ in range(3):
        assert pullback(np.float64(1))[0].tobytes() == grad(f)(U0).tobytes()


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_in_loops_within_loops_and_checkpoints(schedule):
    """A generator passes through a loop inside a loop, and a loop inside a checkpoint."""

    def inner(state, i):
        return timeloop(walk, state, 3, schedule=Revolve(1))

    def nested(state, i):
        for k in range(3):
            state = walk(state, k)
        return state

    found = grad(lambda u: misfit(u, step=inner, schedule=schedule))(U0)
    np.testing.assert_allclose(found, grad(lambda u: misfit(u, step=nested, schedule=StoreAll()))(U0), rtol=1e-12)
    again = grad(checkpoint(lambda v: misfit(v, schedule=schedule)))(U0)
    np.testing.assert_allclose(again, grad(misfit)(U0), rtol=1e-12)


def test_until_a_random_end():
    """A loop of unknown length whose end depends on what was drawn ends there each time."""

    def f(u, schedule):
        def step(state, i):
            u, random, _ = state
            return u * (1 + 0.1 * np.sin(u)), random, random.random()

        end = {"until": lambda state: state[2] > 0.9, "max_steps": 1000, "schedule": schedule}
        return np.sum(timeloop(step, (u, np.random.default_rng(1), 0.0), **end)[0])

    assert grad(lambda u: f(u, Online(2)))(U0).tobytes() == grad(lambda u: f(u, Online(50)))(U0).tobytes()


def test_generators_among_the_inputs():
    """A generator that is the input of a step is drawn from in a copy, each time the step runs."""
    randoms = [np.random.default_rng(k) for k in range(STEPS)]

    def f(u, schedule):
        return np.sum(timeloop(lambda u, g: np.sin(u) * g.random(), u, STEPS, inputs=randoms, schedule=schedule))

    assert grad(lambda u: f(u, Revolve(2)))(U0).tobytes() == grad(lambda u: f(u, StoreAll()))(U0).tobytes()
    assert randoms[3].random() == np.random.default_rng(3).random()


def test_spawned_generators_are_the_same():
    """How many generators were spawned is a part of the state."""

    def step(state, i):
        u, random = state
        (child,) = random.spawn(1)
        return u + 0.1 * np.sin(u) * child.standard_normal(u.shape), random

    right = grad(lambda u: misfit(u, step=step, schedule=StoreAll()))(U0)
    assert grad(lambda u: misfit(u, step=step, schedule=Revolve(2)))(U0).tobytes() == right.tobytes()


def resumed(path: Any, seed: int, stop: int | None) -> Any:
    """The gradient of a run that is kept in a directory; its step is stopped when it runs for the *stop*-th time."""
    # An iterator, of which the code of a step has the type only: the contents of a list would make it another step.
    stops = itertools.chain(itertools.repeat(False, (stop or 1) - 1), [stop is not None], itertools.repeat(False))

    def step(state, i):
        if next(stops):
            raise InterruptedError
        return walk(state, i)

    options = {"schedule": Revolve(2), "resume": path, "resume_every": 2}
    return grad(lambda u: misfit(u, np.random.default_rng(seed), step=step, **options))(U0)


@pytest.mark.parametrize("stop", [3, 8, STEPS + 3, STEPS + 9])
def test_a_run_that_is_resumed(stop, tmp_path):
    """Stopped in any step and called again, a loop goes on with the numbers that it would have drawn."""
    with pytest.raises(InterruptedError):
        resumed(tmp_path / "run", 7, stop)
    with pytest.raises(ResumeError, match="initial value of leaf 1"):
        resumed(tmp_path / "run", 8, None)
    assert resumed(tmp_path / "run", 7, None).tobytes() == grad(misfit)(U0).tobytes()


def test_a_generator_from_outside_is_no_static_value():
    """A step that draws from a generator that is not in the state is not deterministic, and an error says so."""
    random = np.random.default_rng(1)

    def step(state, i):
        return state[0] * random.random(), state[1]

    with pytest.raises(DeterminismError, match="generator"):
        grad(lambda u: misfit(u, step=step, schedule=Revolve(2)))(U0)


def test_a_change_of_the_generator_alone_is_seen():
    """A step that draws another number of times when it runs again is an error that names the generator."""
    calls = [0]

    def step(state, i):
        u, random = state
        calls[0] += 1
        random.random(1 + (calls[0] > STEPS))
        return u * 0.5, random

    with pytest.raises(DeterminismError, match=r"\[1\]"):
        grad(lambda u: misfit(u, step=step, schedule=Revolve(2)))(U0)


@pytest.mark.parametrize("call", [misfit, grad(misfit)], ids=["plain", "grad"])
def test_a_generator_in_two_places(call):
    """A generator that is twice in a state, at the start or later, would be two that draw the same: an error."""
    generator = np.random.default_rng(1)
    twins = [generator, np.random.Generator(generator.bit_generator)]

    def step(state, i):
        u, pair = state
        return u * pair[0].random(), pair if i < 3 else [pair[1], pair[1]]

    for pair in (twins, [generator, generator], [generator, np.random.default_rng(2)]):
        with pytest.raises(TypeError, match=r"same random generator.*called at .*test_generators\.py:"):
            call(U0, pair, step=step)


def test_a_generator_of_a_key_spawns_none():
    """Philox of a key has no seeds, in the loop as outside; what it draws half is kept."""
    random = np.random.Generator(by_key(1))
    random.integers(5, dtype=np.uint32)
    twin = unpack_generator(*pack_generator(random))
    drawn, again = [one.integers(2**31, size=9, dtype=np.uint32).tolist() for one in (random, twin)]
    assert drawn == again
    with pytest.raises(TypeError, match="spawning"):
        misfit(U0, random, step=lambda state, i: (state[0] * state[1].spawn(1)[0].random(), state[1]))


def test_what_is_no_generator_of_numpy():
    """Another kind of generator, one as an output, and one that becomes a number are errors that say so."""
    with pytest.raises(TypeError, match="RandomState"):
        misfit(U0, np.random.RandomState(1))

    class Mine(np.random.PCG64):
        pass

    with pytest.raises(TypeError, match="Mine"):
        misfit(U0, np.random.Generator(Mine(1)))
    with pytest.raises(TypeError, match="the output"):
        misfit(U0, step=lambda state, i: (state, state[1]), outputs=True)
    for call in (misfit, grad(misfit)):
        with pytest.raises(TraceError, match=r"a float for the leaf \[1\] of the state that was a Generator"):
            call(U0, step=lambda state, i: (state[0], 0.5))
    with pytest.raises(TypeError, match="argument 1"):
        grad(misfit, argnums=1)(U0, np.random.default_rng(1))


@pytest.mark.parametrize("seed", [0, [1, 2], np.random.SeedSequence(5, spawn_key=(1, 2), pool_size=8), 2**127 + 1])
def test_a_packed_generator_goes_on_the_same(seed):
    """Bytes and form bring back the numbers, the ones that are drawn half, and what is spawned; in few bytes."""
    for kind in KINDS:
        random = np.random.Generator(kind(seed))
        random.spawn(2)
        random.integers(0, 9, 3, dtype=np.uint16)
        packed, form = pack_generator(random)
        assert packed.nbytes < (3000 if kind is np.random.MT19937 else 256)
        twin = unpack_generator(packed, form)
        assert twin.integers(0, 9, 3, dtype=np.uint16).tolist() == random.integers(0, 9, 3, dtype=np.uint16).tolist()
        assert twin.spawn(1)[0].random() == random.spawn(1)[0].random()
        assert pack_generator(twin)[0].tobytes() == pack_generator(random)[0].tobytes()


@pytest.mark.parametrize(("kind", "kib"), [(np.random.PCG64, 75), (np.random.PCG64, 80), (np.random.MT19937, 110)])
def test_a_budget_counts_generators(kind, kib):
    """A budget in which generators are all that counts is kept."""

    def f(u):
        return timeloop(lambda s, i: (s[0] * 0.9, s[1]), (u, np.random.Generator(kind(1))), 300 if FULL else 80)[0]

    gradient = grad(f, budget=Budget(memory=f"{kib} KiB"))
    f(1.0)
    gradient(1.0)
    assert peak_bytes(lambda: gradient(1.0)) - peak_bytes(lambda: f(1.0)) <= kib * 1024
