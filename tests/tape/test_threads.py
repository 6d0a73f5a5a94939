"""State belongs to a call: threads, contexts and exceptions do not meet."""

from __future__ import annotations

import contextvars
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from tests.scale import FULL

import ebbtide
from ebbtide import Budget, ReleasedValueError, TraceError, checkpoint, grad, jvp, profile, timeloop, vjp
from ebbtide.arrays.context import current_or_none
from ebbtide.schedules import Revolve, StoreAll

THREADS, CALLS = 8, 1500 if FULL else 500


@pytest.fixture
def short_switches():
    """Let threads take turns every ten microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_all(work):
    """Run a function of the thread's number in eight threads that start together."""
    barrier = Barrier(THREADS)

    def start(k):
        barrier.wait()
        return work(k)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


@pytest.mark.usefixtures("short_switches")
def test_nested_gradients_in_threads():
    """Eight threads of 1500 nested gradients each, 500 in the gate, are all right: 24 x for the third of x^4."""
    third = grad(grad(grad(lambda x: x**4)))

    def work(k):
        return [third(float(k + 1)) for _ in range(CALLS)]

    assert [set(map(float, values)) for values in run_all(work)] == [{24.0 * (k + 1)} for k in range(THREADS)]


@pytest.mark.usefixtures("short_switches")
def test_all_kinds_of_call_in_threads(tmp_path):
    """Budgets, profiles, checkpoints and loops in threads do not see each other."""
    x = np.linspace(0.1, 0.9, 300)

    def f(x):
        y = checkpoint(lambda u: np.sin(np.sin(u)) * x)(x)
        return np.sum(ebbtide.timeloop(lambda u, _: np.sin(u) * x, y, 4))

    expected = grad(f)(x)

    def work(k):
        directory = tmp_path / str(k)
        directory.mkdir()
        wrong = 0
        for n in range(20):
            if (k + n) % 3 == 0:
                with profile() as p:
                    got = grad(f)(x)
                wrong += p.steps_forward < 4
            elif (k + n) % 3 == 1:
                got = grad(f, budget=Budget("4 MiB", "1 MiB", directory))(x)
            else:
                got = jvp(f, (x,), (np.ones(300),))[1]
                wrong += not np.isclose(got, np.sum(expected), rtol=1e-12)
                continue
            wrong += not np.array_equal(got, expected)
        return wrong + len(list(directory.iterdir()))

    assert run_all(work) == [0] * THREADS


@pytest.mark.usefixtures("short_switches")
@pytest.mark.parametrize("budget", [None, Budget("8 MiB")], ids=["no bound", "budget"])
@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(5)], ids=str)
def test_one_pullback_in_threads(schedule, budget):
    """Threads take turns with a pullback that is retained; of one that is not the first call has the cotangents."""
    x = np.linspace(0.1, 0.9, 300)

    def f(x):
        return np.sum(ebbtide.timeloop(lambda u, _: u + 0.01 * np.sin(u), x, 60, schedule=schedule))

    expected = grad(f)(x)
    pullback = vjp(f, x, retain=True, budget=budget)[1]
    for found in run_all(lambda _: [pullback(1.0)[0] for _ in range(3)]):
        assert [np.array_equal(one, expected) for one in found] == [True] * 3
    once = vjp(f, x, budget=budget)[1]

    def pulled(_):
        try:
            return once(1.0)[0]
        except ReleasedValueError:
            return None

    found = [one for one in run_all(pulled) if one is not None]
    assert [np.array_equal(one, expected) for one in found] == [True]


def test_gradients_inside_of_a_thread_inside_of_a_gradient():
    """A thread started while a function is traced knows nothing of it: its gradients are right, and so is the outer."""
    def f(x):
        with ThreadPoolExecutor(4) as pool:
            inner = list(pool.map(grad(lambda v: v**3), [1.0, 2.0, 3.0]))
            contexts = list(pool.map(lambda _: current_or_none(), range(4)))
        assert contexts == [None] * 4
        return np.sum(x * np.array(inner))

    assert np.array_equal(grad(f)(np.ones(3)), [3.0, 12.0, 27.0])


def test_traced_arrays_in_threads():
    """Operations on traced arrays may run in threads of the traced function, whether or not the context was copied."""
    def f(x, copy):
        with ThreadPoolExecutor(4) as pool:
            if copy:
                parts = [pool.submit(contextvars.copy_context().run, np.sin, x[k]) for k in range(4)]
            else:
                parts = [pool.submit(np.sin, x[k]) for k in range(4)]
            return sum(part.result() for part in parts)

    x = np.linspace(0, 1, 4)
    for copy in (False, True):
        assert np.allclose(grad(f)(x, copy), np.cos(x), rtol=1e-15)


def test_copied_context_inside_of_a_gradient():
    """A context copied within a traced function carries the nesting: a gradient in it is one level deeper."""
    def f(x):
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as pool:
            inner = pool.submit(context.run, grad(lambda u: u**3 * x), x)
            return inner.result()  # 3 x^3

    assert grad(f)(2.0) == pytest.approx(36.0, rel=1e-15)
    assert grad(grad(f))(2.0) == pytest.approx(36.0, rel=1e-15)


def test_context_is_reset():
    """After a call, a failed call, and a generator that was left in the middle, no context is set."""
    def generator(x):
        yield x
        yield grad(lambda v: v * v)(x)

    steps = generator(3.0)
    next(steps)
    grad(np.sin)(1.0)
    assert current_or_none() is None
    with pytest.raises(ZeroDivisionError):
        grad(lambda x: x * (1 // 0))(1.0)
    assert current_or_none() is None
    assert next(steps) == 6.0
    assert current_or_none() is None


def test_profile_block_is_left():
    """Within a profile there is a context, and after it none."""
    with profile():
        assert current_or_none() is not None
    assert current_or_none() is None


@pytest.mark.parametrize("around", [checkpoint, lambda f: lambda u: timeloop(lambda s, i: f(s), u, 3)])
def test_threads_of_a_region_are_told_how_to_know_it(around):
    """In a thread that does not know its step, an array from outside is an error that says what does."""
    u = np.linspace(0.1, 0.9, 10)

    def loss(u, submit):
        made = np.cos(u)

        def work(s):
            with ThreadPoolExecutor(2) as pool:
                parts = [submit(pool, lambda p: np.sin(s[p]) * made[p], p) for p in (slice(0, 5), slice(5, 10))]
                return np.concatenate([part.result() for part in parts])

        return np.sum(around(work)(u))

    bare = lambda pool, work, part: pool.submit(work, part)
    known = lambda pool, work, part: pool.submit(contextvars.copy_context().run, work, part)
    with pytest.raises(TraceError, match=r"copy_context\(\).run"):
        grad(loss)(u, bare)
    slope = grad(loss)(u, known)
    e = 1e-6 * np.sin(np.arange(10))
    assert np.isclose(slope @ e, (loss(u + e, known) - loss(u - e, known)) / 2, rtol=1e-6)
