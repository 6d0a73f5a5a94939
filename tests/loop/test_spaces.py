"""Time loops over vectors of registered types: each schedule and storage, disk, budgets, and resumed runs."""

from __future__ import annotations

import gc
import itertools
import weakref
from functools import cache

import numpy as np
import pytest
from tests.fields import Field, Tensor, pack, product, random_field, same_bits, sine, spread, velocity
from tests.measure import peak_bytes
from tests.nestings import loop_in_python

from ebbtide import (
    Budget,
    BudgetError,
    DeterminismError,
    MutationError,
    ResumeError,
    TraceError,
    axpy,
    checkpoint,
    grad,
    inner,
    jit,
    jvp,
    linearize,
    primitive,
    profile,
    timeloop,
    value_and_grad,
)
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Memory
from ebbtide.testing import check_grads

STEPS = 11
V, W, CONSTANT = random_field(1), random_field(2), random_field(3)
FORCING = [random_field(10 + k) for k in range(STEPS)]
COSTS = Costs(write=1.0, read=1.0)
SCHEDULES = (
    Revolve(1), Revolve(3), StoreAll("disk"), Mixed(8, restart=1, saved=3), Hierarchical(2, 2, COSTS), Periodic(3, 2),
    Online(3),
)  # fmt: skip


def objective(parameters, loop=timeloop, **options):
    """A loop whose state mixes vectors and arrays, with vectors for static values, a constant, and inputs."""
    v, k = parameters["v"], parameters["k"]

    def step(state, x):
        u, mean, count = state["u"], state["mean"], state["count"]
        mean = 0.5 * mean + velocity(u) * k
        if count % 3 == 0:
            u = u + 0.05 * product(v, CONSTANT)
        u = axpy(0.1, product(sine(u), x), u) + 0.01 * spread(mean, u)
        return {"u": u, "mean": mean, "count": count + 1}

    start = {"u": 0.5 * parameters["start"], "mean": np.zeros(4), "count": 0}
    forcing = [x + 0.1 * v for x in FORCING] if parameters.get("forced") else FORCING
    last = loop(step, start, STEPS, inputs=forcing, **options)
    return inner(last["u"], last["u"]) + np.sum(last["mean"] ** 3)


CONTROLS = {"v": V, "k": np.linspace(0.1, 0.4, 4), "start": W}


def same(a, b):
    """Whether two gradients have the same bits."""
    return same_bits(a["v"], b["v"]) and same_bits(a["start"], b["start"]) and a["k"].tobytes() == b["k"].tobytes()


EXPECTED = grad(lambda c: objective(c, schedule=StoreAll()))(CONTROLS)


def test_derivatives():
    """Derivatives of a loop over vectors agree with differences, also the second, and with those of a `for` loop."""
    check_grads(lambda c: objective(c, schedule=Revolve(2)), CONTROLS, order=2)
    check_grads(lambda v: objective({**CONTROLS, "v": v, "forced": True}, schedule=Revolve(2)), V, order=1)
    by_hand = grad(lambda c: objective(c, loop=loop_in_python))(CONTROLS)
    for name in ("v", "start"):
        assert np.allclose(pack(EXPECTED[name])[0], pack(by_hand[name])[0], rtol=1e-13)


def test_value_without_derivatives():
    """A loop that is not differentiated gives the bits of the loop with `for`, on plain vectors."""
    assert objective(CONTROLS) == objective(CONTROLS, loop=loop_in_python) == value_and_grad(objective)(CONTROLS)[0]


@pytest.mark.parametrize("storage", [None, Memory, Disk], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_gradient_is_that_of_store_all(schedule, storage):
    """Each schedule and storage gives the bits of `StoreAll`."""
    place = None if storage is None else storage()
    found = grad(lambda c: objective(c, schedule=schedule, storage=place))(CONTROLS)
    assert same(found, EXPECTED)
    if place is not None:
        place.close()


@pytest.mark.parametrize("schedule", SCHEDULES[:4], ids=str)
def test_second_derivatives_are_those_of_store_all(schedule):
    """So do Hessian actions, forward over reverse and reverse over forward."""
    directions = {"v": W, "k": np.ones(4), "start": V}

    def actions(schedule):
        f = lambda c: objective(c, schedule=schedule)
        return (
            jvp(grad(f), (CONTROLS,), (directions,))[1],
            grad(lambda c: jvp(f, (c,), (directions,))[1])(CONTROLS),
        )

    for found, expected in zip(actions(schedule), actions(StoreAll()), strict=True):
        assert same(found, expected)


def test_checkpoint_around_a_loop():
    """A loop over vectors inside of a checkpointed function has the same gradient."""
    found = grad(checkpoint(lambda c: objective(c, schedule=Revolve(2))))(CONTROLS)
    assert same(found, EXPECTED)


def test_until():
    """The condition of a loop of unknown length is given plain vectors."""
    seen = []

    def f(v):
        def ends(state):
            seen.append(type(state["u"]))
            return inner(state["u"], state["u"]) > 30.0

        last = timeloop(lambda s, i: {"u": axpy(0.2, s["u"], s["u"])}, {"u": v}, until=ends, max_steps=100)
        return inner(last["u"], W)

    gradient = grad(f)(V)
    assert set(seen) == {Field}
    steps = np.ceil(np.log(30.0 / inner(V, V)) / np.log(1.2**2))
    assert np.allclose(pack(gradient)[0], pack(W)[0] * 1.2**steps, rtol=1e-13)


# Operators, of a type that has none of its own.


def _times(g, y):
    return times(g, y)


def _components(g):
    return components(g)


def _tensor(g):
    return tensor(g)


times = primitive(lambda x, y: Tensor(x.data * y.data), vjp=(_times, _times), jvp=(_times, _times))
components = primitive(lambda x: x.data * 1.0, vjp=(_tensor,), jvp=(_components,))
tensor = primitive(lambda a: Tensor(a * 1.0), vjp=(_components,), jvp=(_tensor,))
T, S, K = (Tensor(np.array(x)) for x in ([0.9, 0.4, 0.6], [0.1, 0.7, -0.4], [0.3, 0.2, 0.5]))


def of_state(t, loop, **options):
    """Multiples and sums of the state, of a constant, and of a static value alone."""
    v = 0.3 * t
    last = loop(lambda s, i: s * 0.5 + times(s, s) - K * inner(s, s) / 7 + (-v) * 0.1, t, 6, **options)
    return inner(last, last)


def of_arrays(t, loop, **options):
    """Vectors that are made of the arrays of the state, and arrays that are filled with numbers made of vectors."""

    def step(a, i):
        b = np.zeros_like(a)
        b[0] = inner(t * 0.5, t)
        return b * 0.1 + components(tensor(a) * 0.5 + tensor(np.sin(a)))

    return np.sum(loop(step, components(t), 6, **options))


def of_loops(t, loop, **options):
    """A loop in a step, and a gradient in the step of that."""

    def inner_step(z, s):
        return z * 0.5 + 0.1 * grad(lambda q: inner(q * 0.5, times(q, s)))(z) - K

    last = loop(lambda s, i: loop(lambda z, j: inner_step(z, s), s * 0.9, 3, **options), t, 5, **options)
    return inner(last, K)


MODES = {
    "grad": lambda f: grad(f)(T).data,
    "budget": lambda f: grad(f, budget=Budget(memory="400 KiB"))(T).data,
    "jvp": lambda f: jvp(f, (T,), (S,))[1],
    "linearize": lambda f: linearize(f, T)[1](S),
    "jvp of grad": lambda f: jvp(grad(f), (T,), (S,))[1].data,
    "grad of jvp": lambda f: grad(lambda t: jvp(f, (t,), (S,))[1])(T).data,
    "grad of grad": lambda f: grad(lambda t: inner(grad(f)(t), S))(T).data,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("objective", [of_state, of_arrays, of_loops])
@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1), Online(2)], ids=str)
def test_operators_in_steps(objective, mode, schedule):
    """What is done to vectors in a step of a differentiated function needs no operators of their type, in any step."""
    derivative = MODES[mode]
    found = derivative(lambda t: objective(t, timeloop, schedule=schedule))
    assert np.allclose(found, derivative(lambda t: objective(t, loop_in_python)), rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
def test_operators_on_inputs(mode, schedule):
    """Vectors among inputs= are traced in each step, too, also those that a function of the step number gives."""
    rows = [Tensor(np.array([0.1, 0.2, 0.3]) * k) for k in range(6)]

    def f(t, inputs=rows):
        last = timeloop(lambda s, x: s * 0.5 + times(s, x * 2.0) - x / 3, t, 6, inputs=inputs, schedule=schedule)
        return inner(last, last)

    def by_hand(t):
        for x in rows:
            t = t * 0.5 + times(t, Tensor(x.data * 2.0)) - Tensor(x.data / 3)
        return inner(t, t)

    assert np.allclose(MODES[mode](f), MODES[mode](by_hand), rtol=1e-12)
    assert MODES[mode](lambda t: f(t, lambda k: rows[k])).tobytes() == MODES[mode](f).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_inputs_beside_arrays(mode):
    """So they are where the state has no vectors; what is beside them stays as it is."""
    rows = [Tensor(np.array([0.1, 0.2, 0.3]) * k) for k in range(6)]
    mask = np.array([True, False, True])

    def step(a, x):
        x, mask = x
        return np.sin(a) * np.where([bool(one) for one in mask], 0.5, 0.7) + components(x * 2.0 - x / 3)

    def by_hand(t):
        a = components(t)
        for x in rows:
            a = np.sin(a) * np.where(mask, 0.5, 0.7) + (x.data * 2.0 - x.data / 3)
        return np.sum(a * a)

    for schedule in (StoreAll(), Revolve(1)):
        def f(t):
            last = timeloop(step, components(t), 6, inputs=lambda k: (rows[k], mask), schedule=schedule)
            return np.sum(last * last)

        assert np.allclose(MODES[mode](f), MODES[mode](by_hand), rtol=1e-12)


def test_inputs_in_programs():
    """So they are where a derivative is traced, as when its program runs."""
    rows = [Tensor(np.array([0.1, 0.2, 0.3]) * k) for k in range(6)]

    def step(s, x):
        vector, b = s
        b = b * 0.5
        b[1] = inner(x, vector) * b[0]
        return vector * 0.5 + times(x, x * 2.0) - x / 3 * inner(vector, x), b

    for inputs in (rows, lambda k: rows[k]):
        def f(t):
            last, b = timeloop(step, (t, np.ones(3)), 6, inputs=inputs)
            return inner(last, last) + np.sum(b)

        assert jit(grad(f))(T).data.tobytes() == grad(f)(T).data.tobytes()
        assert jit(lambda t: jvp(f, (t,), (S,))[1])(T) == jvp(f, (T,), (S,))[1]


def test_step_that_is_not_differentiated():
    """Where nothing is differentiated a step is given the user's own type."""
    seen = set()

    def step(s, i):
        seen.add(type(s))
        return s

    timeloop(step, T, 3)
    assert seen == {Tensor}


@pytest.mark.parametrize("mode", MODES)
def test_condition_on_vectors(mode):
    """A condition is given vectors of the user's type, whatever derivative is taken."""
    seen = []

    def f(t):
        def ends(s):
            seen.append(type(s))
            return s.data.max() > 3.0

        last = timeloop(lambda s, i: s * 1.3, t, until=ends, max_steps=30)
        return inner(last, last)

    found = MODES[mode](f)
    assert set(seen) == {Tensor}
    assert np.allclose(found, MODES[mode](lambda t: inner(1.3**5 * t, 1.3**5 * t)), rtol=1e-12)


def test_solver_that_returns_the_same_vector_each_time():
    """A step may return one vector of its solver's each time: the states before stay what they were."""
    work = Tensor(np.zeros(3))

    def solve(t):
        np.sin(t.data, out=work.data)
        return work

    op = primitive(solve, vjp=(lambda g, t: Tensor(g.data * np.cos(t.data)),))
    x = np.array([0.3, 0.7, 1.1])

    def f(t, schedule):
        return inner(timeloop(lambda s, i: op(s), t, 6, schedule=schedule), Tensor(np.ones(3)))

    expected, y = np.ones(3), x
    for _ in range(6):
        expected, y = expected * np.cos(y), np.sin(y)
    for schedule in (StoreAll(), Revolve(1), Revolve(3), StoreAll("disk")):
        gradient = grad(lambda t, schedule=schedule: f(t, schedule))(Tensor(x))
        assert np.allclose(gradient.data, expected, rtol=1e-14), schedule
    assert f(Tensor(x), None) == np.sum(y)


# Guards.


def test_step_that_is_not_deterministic():
    """A step that gives another vector when it runs again is an error that names the leaf."""
    noise = iter(np.arange(1e6))
    disturb = primitive(lambda v: axpy(1e-9 * next(noise), v, v), vjp=(lambda g: g,))

    def f(v):
        return inner(timeloop(lambda s, i: {"u": disturb(s["u"])}, {"u": v}, 6, schedule=Revolve(2))["u"], W)

    with pytest.raises(DeterminismError, match=r"another result in \['u'\]"):
        grad(f)(V)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=str)
def test_constant_that_changes(schedule):
    """A plain vector that changes while the loop runs is an error, or the gradient is that of what was run."""
    constant = Tensor(np.ones(3))

    def step(s, i):
        constant.data[0] += 1.0
        return axpy(inner(constant, s), s, s)

    with pytest.raises((MutationError, DeterminismError)):
        grad(lambda t: inner(timeloop(step, t, 5, schedule=schedule), constant))(Tensor(np.ones(3)))


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (lambda s, i: random_field(1, rows=5), TypeError, r"structure .*Field\[\(\(5, 4\)"),
        (lambda s, i: random_field(1, dtype=np.float32), TraceError, r"float32\[22\] for .* that was float64\[22\]"),
        (lambda s, i: np.ones(22), TypeError, "structure"),
        (lambda s, i: Tensor(np.ones(3)), TypeError, "structure .*Tensor"),
    ],
)
@pytest.mark.parametrize("differentiated", [True, False])
def test_step_that_returns_another_type(step, error, message, differentiated):
    """A step returns vectors of the forms and dtypes that it was given."""

    def run(v):
        timeloop(step, v, 3)
        return inner(v, v)

    with pytest.raises(error, match=message):
        grad(run)(V) if differentiated else run(V)


def test_outputs_are_arrays():
    """Outputs are stacked, and vectors cannot be: the error says what to do; what is computed from them can."""

    def run(v, output):
        return timeloop(lambda s, i: (s, output(s)), v, 3, outputs=True)

    with pytest.raises(TypeError, match=r"returned a vector as its output.*keep it in the state"):
        run(V, lambda s: {"s": s})
    with pytest.raises(TypeError, match="returned a vector as its output"):
        grad(lambda v: inner(run(v, sine)[0], v))(V)
    assert run(V, velocity)[1].shape == (3, 4)


def test_state_of_a_type_that_is_not_registered():
    """A state of an unknown type is refused with how to register it."""

    class Stranger:
        pass

    with pytest.raises(TypeError, match=r"the state is a Stranger.*register it with ebbtide.register_space"):
        timeloop(lambda s, i: s, {"s": Stranger()}, 3)


# Memory.

BIG, BIG_START = random_field(1, rows=3000), random_field(2, rows=3000)


def big_objective(v, **options):
    """A loop over large vectors with a vector for a static value."""
    start = axpy(0.5, v, BIG_START)
    last = timeloop(lambda s, i: axpy(0.1, product(sine(s), v), s), start, 20, **options)
    return inner(last, last)


@cache
def big_expected():
    """The gradient by `StoreAll`, and the peak of the function alone."""
    return grad(lambda v: big_objective(v, schedule=StoreAll()))(BIG), peak_bytes(lambda: big_objective(BIG))


def test_snapshots_take_their_bytes_and_die():
    """More steps take no more memory; the snapshots of a schedule are its number of packed vectors."""
    peaks = []
    for steps in (10, 40):
        f = lambda v, steps=steps: inner(timeloop(lambda s, i: sine(s), v, steps, schedule=Revolve(4)), v)
        peaks.append(peak_bytes(lambda f=f: grad(f)(BIG)))
    assert abs(peaks[1] - peaks[0]) <= 0.25 * BIG.nbytes


@pytest.mark.parametrize("units", [14, 20, 30])
@pytest.mark.parametrize("disk", [0, 1 << 30])
def test_budget(units, disk):
    """A loop keeps its budget, or is refused with bytes at which it runs; the plan is never below the measurement."""
    expected, alone = big_expected()
    budget = Budget(memory=units * BIG.nbytes, disk=disk)
    try:
        with profile() as p:
            found = grad(big_objective, budget=budget)(BIG)
    except BudgetError as error:
        budget = Budget(memory=error.least, disk=disk)
        with profile() as p:
            found = grad(big_objective, budget=budget)(BIG)
    assert budget.memory <= max(units, 15) * BIG.nbytes
    assert same_bits(found, expected)
    assert p.steps_forward == p.predicted_steps_forward
    # Each run chooses by what it has measured: its peak is compared with its own plan.
    profiles = []

    def run():
        with profile() as p:
            grad(big_objective, budget=budget)(BIG)
        profiles.append(p)

    measured = peak_bytes(run) - alone
    assert measured <= profiles[0].predicted_peak_bytes <= budget.memory


def test_constants_are_kept_once():
    """A plain vector that all steps save is kept once, whatever the schedule."""
    constant = random_field(3, rows=3000)

    def f(v, schedule):
        return inner(timeloop(lambda s, i: product(s, constant), v, 30, schedule=schedule), v)

    for schedule in (StoreAll(), Revolve(2)):
        assert peak_bytes(lambda s=schedule: grad(lambda v: f(v, s))(BIG)) <= 15.1 * BIG.nbytes


def test_nothing_is_left():
    """After a loop over vectors no vector is alive, and there are no cycles; after an exception neither."""
    refs = []

    def watch(v):
        refs.append(weakref.ref(v))
        return sine(v)

    def pull(g, v):
        return product(g, v)

    def fail(g):
        raise ValueError("in the sweep")

    good = primitive(watch, vjp=(pull,))
    bad = primitive(watch, vjp=(fail,))
    gc.collect()
    grad(lambda v: inner(timeloop(lambda s, i: good(s), v, 6, schedule=Revolve(2)), W))(V)
    with pytest.raises(ValueError, match="in the sweep"):
        grad(lambda v: inner(timeloop(lambda s, i: bad(s), v, 6, schedule=Revolve(2)), W))(V)
    assert len(refs) > 12
    assert not any(ref() for ref in refs)


# Resumed runs.


class StopError(Exception):
    """The end of a process, as far as the loop can see."""


@pytest.mark.parametrize("at", [3, 9, 16, 25])
def test_resume(tmp_path, at):
    """A loop over vectors that was stopped in either sweep goes on and ends with the same bits."""
    calls = itertools.count(1)  # whose state is no part of what is resumed

    def stop(v):
        if next(calls) == at:
            raise StopError
        return v * 1.0

    passed = primitive(stop, vjp=(lambda g: g,))

    def run(where, constant=V):
        def f(v):
            def step(s, i):
                u, mean = s
                return axpy(0.1, product(sine(passed(u)), v), u) + 0.01 * constant, 0.5 * mean + velocity(u)

            u, mean = timeloop(step, (W, np.zeros(4)), STEPS, schedule=Revolve(2), resume=where, resume_every=1)
            return inner(u, u) + np.sum(mean)

        return value_and_grad(f)(V)

    with pytest.raises(StopError):
        run(tmp_path / "run")
    if at > STEPS:
        with pytest.raises(ResumeError):
            run(tmp_path / "run", constant=W)
    value, gradient = run(tmp_path / "run")
    again, expected = run(None)
    assert value == again
    assert same_bits(gradient, expected)
    assert not (tmp_path / "run").exists()
