"""Loops in a batch whose members end after different numbers of steps: each is its own loop."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import (
    Budget,
    TraceError,
    grad,
    hessian,
    hvp,
    jacobian,
    jit,
    jvp,
    linearize,
    profile,
    stop_gradient,
    timeloop,
    vjp,
    vmap,
)
from ebbtide.schedules import Online, StoreAll

A = np.array([2.0, 9.0, 0.25, 1.0, 1e4, 5.0])
U = np.random.default_rng(1).standard_normal((6, 3)) * np.array([[0.1], [3.0], [1.0], [0.0], [9.0], [0.7]])


def root(a, schedule=None):
    """Newton's iteration from 1, which is the root of 1."""
    def step(u, i):
        return u - (u * u - a) / (2 * u)

    return timeloop(step, 0 * a + 1.0, until=lambda u: np.abs(u * u - a) < 1e-9, max_steps=60, schedule=schedule)


def shrinks(u):
    """A vector that is made shorter in place, with the number of steps and a number that begins the same for all."""
    def step(state, i):
        u, count, total = state
        u *= np.array([0.5, 0.7, 0.6])
        return u, count + 1, total + np.sum(u)

    u, count, total = timeloop(step, (u, 0, 0.0), until=lambda s: np.sum(np.abs(s[0])) < 0.5, max_steps=7)
    return np.sum(u**2) * count + total


def driven(u):
    """Inputs, a static value that differs by member, and a loop in a loop that ends on its own terms."""
    weights = np.cos(u)

    def step(v, f):
        inner = timeloop(lambda w, i: w * 0.5, v, until=lambda w: np.max(np.abs(w)) < 1, max_steps=9)
        return inner * weights + f

    end = timeloop(step, {"v": u}["v"], until=lambda v: np.sum(v) > 4, max_steps=8, inputs=np.linspace(0.1, 1.5, 8))
    return np.sum(end**3)


def at_the_edge(u):
    """The last state is one at which the step has no derivative."""
    return timeloop(
        lambda u, i: np.maximum(u - np.sqrt(u), 0.0), np.abs(u[0]) * 3, until=lambda u: u <= 0, max_steps=20
    )


CASES = {"root": (root, A), "shrinks": (shrinks, U), "driven": (driven, U), "edge": (at_the_edge, U)}


def close(found, expected):
    """Compare to rounding."""
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_members_are_their_own_loops(name):
    """Values, and derivatives of all kinds, inside of the batch and through it."""
    f, xs = CASES[name]
    np.testing.assert_array_equal(vmap(f)(xs), [f(x) for x in xs])
    expected = [grad(f)(x) for x in xs]
    assert len({count_steps(f, x) for x in xs}) > 2
    close(vmap(grad(f))(xs), expected)
    close(grad(lambda xs: np.sum(vmap(f)(xs)))(xs), expected)
    ts = np.cos(xs)
    pushed = [jvp(f, (x,), (t,))[1] for x, t in zip(xs, ts, strict=True)]
    close(jvp(vmap(f), (xs,), (ts,))[1], pushed)
    close(vmap(lambda x, t: jvp(f, (x,), (t,))[1])(xs, ts), pushed)
    close(linearize(vmap(f), xs)[1](ts), pushed)
    second = [hvp(f)(x, t) for x, t in zip(xs, ts, strict=True)]
    close(vmap(hvp(f))(xs, ts), second)
    close(hvp(lambda xs: np.sum(vmap(f)(xs)))(xs, ts), second)


def count_steps(f, x):
    """The number of steps that a call runs."""
    with profile() as p:
        f(x)
    return p.steps_forward


@pytest.mark.parametrize("executor", ["reference", "machine"])
@pytest.mark.parametrize("name", CASES)
def test_programs(name, executor):
    """Programs of such loops, which find out anew with each call where the members end."""
    f, xs = CASES[name]
    through = grad(lambda xs: np.sum(vmap(f)(xs)))
    for g in (vmap(f), vmap(grad(f)), through):
        program = jit(g, executor=executor)
        for x in (xs, xs[::-1] * 0.5, xs):
            np.testing.assert_array_equal(program(x), g(x))
    pair = np.stack([xs, xs[::-1]])
    np.testing.assert_array_equal(jit(vmap(vmap(f)), executor=executor)(pair), vmap(vmap(f))(pair))


@pytest.mark.parametrize("schedule", [StoreAll(), Online(2), Online(3)])
def test_schedules_make_no_difference(schedule):
    """A batch whose members end apart is one loop, with the schedule that was given."""
    expected = grad(lambda a: np.sum(vmap(root)(a)))(A)
    assert grad(lambda a: np.sum(vmap(lambda a: root(a, schedule))(a)))(A).tobytes() == expected.tobytes()
    assert vmap(grad(lambda a: root(a, schedule)))(A).tobytes() == vmap(grad(root))(A).tobytes()


def test_a_budget_makes_no_difference():
    """Nor does a budget."""
    xs = np.random.default_rng(2).random((4, 2000)) + np.arange(4)[:, None]

    def run(u):
        return np.sum(timeloop(lambda u, i: np.sin(u) * u, u, until=lambda u: np.max(u) < 0.03, max_steps=400))

    gradient = grad(lambda xs: np.sum(vmap(run)(xs)))(xs)
    close(gradient, [grad(run)(x) for x in xs])
    bounded = grad(lambda xs: np.sum(vmap(run)(xs)), budget=Budget(30 * xs.nbytes))(xs)
    assert bounded.tobytes() == gradient.tobytes()


def test_batches_of_batches():
    """Conditions that differ in one batch, or in both; batches without members, and such as have all ended."""
    both = A.reshape(2, 3)
    np.testing.assert_array_equal(vmap(vmap(root))(both), [[root(a) for a in row] for row in both])
    close(vmap(vmap(grad(root)))(both), [[grad(root)(a) for a in row] for row in both])
    close(vmap(lambda a, u: root(a) * u, (None, 0))(A[0], A), [root(A[0]) * u for u in A])
    outer = vmap(lambda row: vmap(lambda k: root(row * 1.0) + k)(np.arange(2.0)))(A)
    close(outer, [[root(a), root(a) + 1] for a in A])
    assert vmap(root)(A[:0]).shape == (0,)
    ended = np.ones(3)
    np.testing.assert_array_equal(vmap(root)(ended), ended)
    np.testing.assert_array_equal(vmap(grad(root))(ended), np.zeros(3))


def damped(u, k):
    """Numbers that begin the same for all, and a state without a derivative where a member ends at the start."""
    def step(state, i):
        s, count, total = state
        s = s * 0.5 * np.cos(u * k) + 0 * (k / s)
        return s, count + 1, total + count * k[0]

    begin = np.where(k[1] > 0, np.ones(3), np.zeros(3)), 0, 0.0
    s, count, total = timeloop(step, begin, until=lambda s: np.sum(np.abs(s[0])) < 0.8, max_steps=9)
    return np.sum(np.sin(s)) * (count + 1.0) + total * np.sum(u)


def constant(u, k):
    """All of the state begins the same for all."""
    def step(state, i):
        return state[0] * 0.5 * np.cos(u * k), state[1] + 1

    s, count = timeloop(step, (np.ones(3), 0), until=lambda s: np.sum(np.abs(s[0])) < 0.8, max_steps=9)
    return np.sum(np.sin(s)) * (count + 1.0)


@pytest.mark.parametrize("executor", [None, "reference"])
@pytest.mark.parametrize("f", [damped, constant])
@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered")
def test_what_begins_the_same_in_two_batches(f, executor):
    """In both batches what a member has comes to differ; in one row all have ended at the start."""
    us, ks = U[:2], np.abs(U[1:5]) * np.array([[1.0], [1.0], [0.0], [1.0]]) + np.array([0.1, 0.0, 0.2])

    def both(g):
        every = vmap(vmap(g, (0, None)), (None, 0))
        return every if executor is None else jit(every, executor=executor)

    def expected(g):
        return [[g(u, k) for u in us] for k in ks]

    assert len({count_steps(lambda u, k=k: f(u, k), u) for u in us for k in ks}) > 1
    np.testing.assert_allclose(both(f)(us, ks), expected(f), rtol=1e-14)
    second = lambda u, k: hvp(lambda u: f(u, k))(u, k)
    pushed = lambda u, k: jvp(f, (u, k), (k, u))[1]
    for g in (grad(f), grad(f, 1), pushed, second):
        close(both(g)(us, ks), expected(g))
    if executor is None:
        total = lambda us, ks: np.sum(both(f)(us, ks))
        close(grad(total)(us, ks), np.sum(expected(grad(f)), axis=0))
        close(grad(total, 1)(us, ks), np.sum(expected(grad(f, 1)), axis=1))
        bounded = grad(total, 1, budget=Budget(80_000))(us, ks)
        assert bounded.tobytes() == grad(total, 1)(us, ks).tobytes()


def plain_loop(step, state, until, max_steps, outputs):
    """What a loop with outputs does."""
    assert outputs
    rows = []
    while len(rows) < max_steps and not until(state):
        state, row = step(state, len(rows))
        rows.append(row)
    return state, np.stack(rows)


def branching(loop, decide):
    """A loop with outputs whose step and condition ask for values, of a state that begins with no tangent."""
    def run(k):
        def step(state, i):
            s, count, time = state
            s = s * np.cos(k) if np.sum(stop_gradient(s)) > 2 else s * s * k[::-1]
            return (s, count + 1, time + 0.25), np.sum(s) * s + np.sum(np.stack([time, time])) * k[0]

        until = lambda state: decide(np.sum(stop_gradient(state[0])) + state[2] < 1.4)
        (s, count, time), rows = loop(step, (np.ones(3), 0, 0.0), until=until, max_steps=6, outputs=True)
        return np.sum(np.sin(s)) * count + np.sum(s) * time + np.sum(rows**3)

    return run


K = np.array([0.7, 0.8, 0.9])
OF_TANGENTS = {
    "hessian": hessian,
    "third": lambda f: jacobian(hessian(f)),
    "jvp": lambda f: lambda k: vmap(lambda d: jvp(f, (k,), (d,))[1])(U),
    "hvp": lambda f: lambda k: vmap(lambda d: hvp(f)(k, d))(U),
    "two batches": lambda f: lambda k: vmap(lambda c: vmap(lambda d: hvp(f)(k, c[0] * d))(U))(U[:2]),
    "grad of jvp": lambda f: lambda k: vmap(lambda d: grad(lambda k: jvp(f, (k,), (d,))[1])(k))(U),
    "reverse": lambda f: lambda k: vmap(lambda d: grad(lambda k: np.sum(d * grad(f)(k)))(k))(U),
    "through": lambda f: grad(lambda k: np.sum(vmap(lambda d: hvp(f)(k, d))(U) ** 2)),
    "through jvp": lambda f: grad(lambda k: np.sum(vmap(lambda d: jvp(f, (k,), (d,))[1])(U) ** 2)),
    "linearize": lambda f: lambda k: vmap(lambda d: linearize(lambda k: d[0] * f(k), k)[1](d))(U),
}


@pytest.mark.parametrize("decide", [bool, lambda c: c], ids=["bool", "array"])
@pytest.mark.parametrize("schedule", [None, Online(2)], ids=["chosen", "online"])
@pytest.mark.parametrize("name", OF_TANGENTS)
def test_only_tangents_differ(name, schedule, decide):
    """In a batch of derivatives at one point values can be asked for, and there are outputs, as in one member."""
    derivative = OF_TANGENTS[name]
    found = derivative(branching(lambda *args, **options: timeloop(*args, schedule=schedule, **options), decide))(K)
    expected = derivative(branching(plain_loop, decide))(K)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def python_loop(step, state, steps=6, until=None, inputs=None):
    """What a loop without outputs does."""
    for i in range(steps):
        ended = until is not None and until(stop_gradient(state))
        state = state if ended else step(state, i if inputs is None else inputs[i])
    return state


def asking(loop, known):
    """A loop without outputs whose step asks for values, and whose condition, if there is one, does not."""
    def run(k):
        def step(state, x):
            s, count = state
            s = s * np.cos(k) if np.sum(stop_gradient(s)) > 2 else s * s * k[::-1]
            return (s + x, count + 1) if known else (s, count + 1)

        options = {"inputs": np.stack([0.1 * k * i for i in range(6)])} if known else {"until": near}
        s, count = loop(step, (np.ones(3), 0), **options)
        return np.sum(np.sin(s)) * count

    def near(state):
        return np.sum(state[0]) < 1.4

    return run


@pytest.mark.parametrize("known", [True, False], ids=["steps", "until"])
@pytest.mark.parametrize("schedule", [None, Online(2)], ids=["chosen", "online"])
@pytest.mark.parametrize("name", OF_TANGENTS)
def test_steps_may_ask_where_only_tangents_differ(name, schedule, known):
    """So may the steps of a loop without outputs whose condition answers with an array, or that has none."""
    def loop(step, state, until=None, **options):
        length = {"steps": 6} if until is None else {"until": until, "max_steps": 6}
        return timeloop(step, state, schedule=schedule, **length, **options)

    found, expected = (OF_TANGENTS[name](asking(one, known))(K) for one in (loop, python_loop))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_an_integer_that_differs():
    """A leaf that is no floating-point number may differ as well, if the first step shows it."""
    def run(u, k):
        return timeloop(lambda s, i: (s[0] + u, np.argmax(k)), (u, 0), 2)

    u, k = vmap(lambda k: vmap(lambda u: run(u, k))(U))(U)
    np.testing.assert_array_equal(u, np.broadcast_to(3 * U, (6, 6, 3)))
    np.testing.assert_array_equal(k, np.repeat(np.argmax(U, axis=1)[:, None], 6, axis=1))


def test_bytes_of_values_that_are_one_for_all():
    """In a batch of derivatives at one point a state has its values once, and the tangents of all members."""
    x, vs = np.linspace(0.1, 0.9, 4000), np.random.default_rng(0).random((10, 4000))

    def value(x):
        step = lambda u, i: np.sin(u * x)
        return np.sum(timeloop(step, np.ones(4000), until=lambda u: np.sum(u) < 1e-3, max_steps=30) ** 2)

    with profile() as p:
        found = vmap(lambda v: hvp(value)(x, v))(vs)
    assert p.loops[0].plan.sizes.state < 1.3 * (1 + len(vs)) * x.nbytes
    bounded = lambda v: hvp(value, budget=Budget(200 * x.nbytes))(x, v)
    assert vmap(bounded)(vs).tobytes() == found.tobytes()
    assert peak_bytes(lambda: vmap(bounded)(vs)) < 200 * x.nbytes


@pytest.mark.parametrize("g", [lambda f: f, grad, hessian])
def test_what_differs_late_ends_apart(g):
    """Where no value is asked for, members that a later step alone makes different end apart."""
    def total(u, loop):
        step = lambda s, i: s * np.sin(u) if i > 1 else s * 0.9
        return np.sum(loop(step, np.ones(3), lambda s: np.sum(s) < 0.5) ** 2)

    def loop(step, state, until):
        return timeloop(step, state, until=until, max_steps=9)

    def in_python(step, state, until):
        return python_loop(step, state, 9, until)

    us = np.abs(U) + 0.2
    expected = [g(lambda u: total(u, in_python))(u) for u in us]
    close(vmap(g(lambda u: total(u, loop)))(us), expected)


@pytest.mark.parametrize("g", [lambda f: f, grad, hessian, lambda f: lambda a: hvp(f)(a, 1.0)])
def test_all_have_ended_at_numbers(g):
    """A loop that ends before its first step gives the number that it was given."""
    run = lambda a: a * timeloop(lambda u, i: u * a, 1.0, until=lambda u: np.abs(u) > 0.3, max_steps=9)
    np.testing.assert_array_equal(vmap(g(run))(A), vmap(g(lambda a: a * 1.0))(A))


@pytest.mark.parametrize("g", [lambda f: f, grad, hessian, lambda f: lambda a: hvp(f)(a, 1.0)])
def test_a_condition_of_one_element(g):
    """A condition may answer with an array of one element, whose axes no state has."""
    run = lambda a, shape: timeloop(
        lambda u, i: u * np.cos(u), a, until=lambda u: np.reshape(u < 0.3, shape), max_steps=9
    )
    a = np.array([1.0, 0.5, 2.0])
    np.testing.assert_array_equal(vmap(g(lambda a: run(a, (1, 1))))(a), vmap(g(lambda a: run(a, ())))(a))


def test_generators_of_hessians():
    """A random generator in the state is one for all of a batch of tangents; the caller's stays where it is."""
    def run(k, loop):
        def step(state, i):
            s, generator = state
            s = s * k + 0.1 * generator.standard_normal(3)
            return (s, generator), s

        until = lambda state: np.sum(stop_gradient(state[0])) < 1.4
        return np.sum(loop(step, (k, np.random.default_rng(3)), until=until, max_steps=6, outputs=True)[1] ** 3)

    np.testing.assert_allclose(hessian(lambda k: run(k, timeloop))(K), hessian(lambda k: run(k, plain_loop))(K), 1e-11)


def timed(u, loop, **options):
    """A number of the state, of which the condition asks, is one for all members."""
    def step(state, i):
        return (state[0] * np.cos(u), state[1] + 0.25), state[0]

    (s, _), rows = loop(step, (u, 0.0), until=lambda s: bool(s[1] > 0.8), max_steps=9, outputs=True, **options)
    return np.sum(s) + np.sum(rows**2)


def test_a_number_that_is_one_for_all(tmp_path, monkeypatch):
    """What no member has of its own can be asked for, in two batches, within a budget, and by a run that goes on."""
    for g in (lambda f: f, grad, hessian):
        found, known = g(lambda u: timed(u, timeloop)), g(lambda u: timed(u, plain_loop))
        expected = np.stack([known(u) for u in U])
        np.testing.assert_allclose(vmap(found)(U), expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(vmap(vmap(found))(U.reshape(2, 3, 3)).reshape(expected.shape), expected, rtol=1e-12)

    def total(us, **options):
        return np.sum(vmap(lambda u: timed(u, timeloop, **options))(us))

    expected = grad(total)(U)
    assert grad(total, budget=Budget(60_000))(U).tobytes() == expected.tobytes()
    monkeypatch.setenv("STEPS", "0")

    def interrupted(step, *args, **options):
        def counted(state, i):
            os.environ["STEPS"] = str(int(os.environ["STEPS"]) + 1)
            if os.environ["STEPS"] == os.environ["LAST"]:
                raise KeyboardInterrupt
            return step(state, i)

        return timeloop(counted, *args, resume=tmp_path / "run", resume_every=1, **options)

    gradient = grad(lambda us: np.sum(vmap(lambda u: timed(u, interrupted))(us)))
    monkeypatch.setenv("LAST", "4")
    with pytest.raises(KeyboardInterrupt):
        gradient(U)
    assert list((tmp_path / "run").iterdir())
    monkeypatch.setenv("LAST", "")
    assert gradient(U).tobytes() == expected.tobytes()


def test_what_differs_later_is_refused():
    """What only a later step makes another one for each member is never taken as one for all."""
    def run(u):
        step = lambda s, i: s * u if i > 1 else s * 0.9
        return timeloop(step, np.ones(3), until=lambda s: bool(np.sum(s) < 0.5), max_steps=5)

    with pytest.raises(TraceError, match=r"The leaf that is the state .*test_masked\.py.*begins the same for all"):
        vmap(run)(U)
    with pytest.raises(TraceError, match=r"was asked at .*test_masked\.py"):
        vmap(grad(lambda u: np.sum(run(u))))(U)
    with pytest.raises(TraceError, match="A leaf of the state of a time loop"):
        vmap(lambda k: vmap(lambda u: timeloop(lambda s, i: (s[0] + u, np.argmax(k) if i else s[1]), (u, 0), 2))(U))(U)


def test_no_step_is_run_in_vain():
    """Where the members end apart, steps run until the last one has ended, and not once more."""
    ran = []

    def step(state, i):
        ran.append(i)
        return state[0] - 1, state[1] + 0.5

    run = lambda u: timeloop(step, (u, 0.0), until=lambda s: s[0] < 0, max_steps=9)
    np.testing.assert_array_equal(vmap(run)(np.array([0.5, 3.5, 1.5]))[1], [0.5, 2.0, 1.0])
    assert ran == [0, 1, 2, 3]


def test_the_result_is_the_callers():
    """Also where all had ended, the state that comes back shares no memory with the one that was given."""
    u = np.zeros((2, 3))
    end = vmap(lambda u: timeloop(lambda u, i: u + 1, u, until=lambda u: np.sum(u) == 0, max_steps=3))(u)
    assert not np.shares_memory(end, u)
    np.testing.assert_array_equal(end, u)


def test_what_is_refused():
    """Outputs, which would be another number for each, and generators; steps that change the structure of the state."""
    def run(u, **options):
        return timeloop(lambda u, i: u * 2, u, until=lambda u: np.sum(u) > 9, max_steps=5, **options)

    with pytest.raises(TraceError, match=r"test_masked\.py.*differs from member to member of vmap.*outputs"):
        vmap(lambda u: run(u, outputs=True))(U)
    with pytest.raises(TraceError, match=r"test_masked\.py.*generator"):
        vmap(lambda u: timeloop(
            lambda s, i: s, (u, np.random.default_rng(0)), until=lambda s: np.sum(s[0]) > 9, max_steps=5
        ))(U)  # fmt: skip
    with pytest.raises(TypeError, match="structure"):
        vmap(lambda u: timeloop(lambda u, i: (u, u), u, until=lambda u: np.sum(u) > 9, max_steps=5))(U)


def test_two_pullbacks():
    """A pullback that is kept is called twice."""
    _, pullback = vjp(vmap(root), A, retain=True)
    first = pullback(np.ones(6))[0]
    np.testing.assert_array_equal(pullback(np.ones(6))[0], first)


def test_a_run_is_resumed(tmp_path, monkeypatch):
    """A gradient of a batch whose members end apart goes on where it was interrupted."""
    monkeypatch.setenv("STEPS", "0")

    def run(a):
        def step(u, i):
            # Not in what the step closes over, which has to be what it was.
            os.environ["STEPS"] = str(int(os.environ["STEPS"]) + 1)
            if os.environ["STEPS"] == os.environ["LAST"]:
                raise KeyboardInterrupt
            return u - (u * u - a) / (2 * u)

        until = lambda u: np.abs(u * u - a) < 1e-9
        return timeloop(step, 0 * a + 1.0, until=until, max_steps=60, resume=tmp_path / "run", resume_every=1)

    gradient = grad(lambda a: np.sum(vmap(run)(a)))
    monkeypatch.setenv("LAST", "8")
    with pytest.raises(KeyboardInterrupt):
        gradient(A)
    assert list((tmp_path / "run").iterdir())
    monkeypatch.setenv("LAST", "")
    assert gradient(A).tobytes() == grad(lambda a: np.sum(vmap(root)(a)))(A).tobytes()
