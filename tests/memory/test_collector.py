"""Nothing of the library waits for the garbage collector."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import ebbtide
from ebbtide import Budget, checkpoint, grad, jvp, profile, value_and_grad, vjp
from ebbtide.arrays.context import current_or_none


def dots(x, z):
    """Multiply by the left factor in twenty steps."""
    for _ in range(20):
        z = np.dot(x, z)
    return np.sum(z)


def net(weights, x):
    """Apply a net of tanh layers."""
    for w in weights:
        x = np.tanh(x @ w)
    return np.sum(x)


def recurrent(weights, h):
    """Apply a recurrent net."""
    w1, b1, w2, b2 = weights
    for _ in range(10):
        h = np.tanh(np.dot(h, w1) + b1)
    return np.sum(np.dot(h, w2) + b2)


def fan_out(x):
    """Use a value fifty times."""
    h = x * 1.0
    return sum(np.sum(h * c) for c in range(1, 51))


def relus(x):
    """Apply a chain of relus."""
    for _ in range(20):
        x = np.maximum(x, 0.0)
    return np.sum(x)


def in_place(x):
    """Write into views."""
    u = x.copy()
    left, right = u[:-2], u[2:]
    u[1:-1] = (left + right) / 2
    v = u[1:]
    v *= 2.0
    for row in u:
        row += 1.0  # noqa: PLW2901 - writes into u
    return np.sum(u * u)


def loop(x):
    """Run a time loop over a static value."""
    return np.sum(ebbtide.timeloop(lambda u, k: np.sin(u) * x, x, 10, schedule=ebbtide.schedules.Revolve(3)))


def blocks(x):
    """Apply checkpointed blocks, one inside another."""
    closed = x * 2.0
    block = checkpoint(lambda u: np.sin(checkpoint(lambda v: np.sin(np.sin(v)) * closed)(u)))
    for _ in range(4):
        x = block(x)
    return np.sum(x)


def cube(x):
    """Return the sum of fourth powers."""
    return np.sum(x * x * x * x)


def nested(x):
    """Take a gradient inside."""
    return np.sum(grad(cube)(x) * x)


S = np.linspace(0.1, 0.9, 64).reshape(8, 8)
F = (0.1 * S).astype(np.float32)
CASES = {
    "dots": (lambda: grad(dots)(S, S)),
    "net": (lambda: grad(net)([S, S, S], S)),
    "recurrent": (lambda: grad(recurrent)([F, F[0], F[:, :1], F[0, :1]], F)),
    "fan-out": (lambda: grad(fan_out)(S)),
    "relus": (lambda: grad(relus)(S)),
    "in place": (lambda: grad(in_place)(S)),
    "loop": (lambda: grad(loop)(S)),
    "checkpoint": (lambda: grad(blocks)(S)),
    "nested": (lambda: grad(nested)(S)),
    "forward": (lambda: jvp(cube, (S,), (S,))),
    "forward over reverse": (lambda: jvp(grad(cube), (S,), (S,))),
    "retained": (lambda: vjp(cube, S, retain=True)[1](1.0)),
    "dropped": (lambda: vjp(cube, S)),
    "budget": (lambda: grad(dots, budget=Budget("1 MiB"))(S, S)),
    "aux": (lambda: value_and_grad(lambda x: (cube(x), x * 2), has_aux=True)(S)),
}


@pytest.mark.parametrize("name", CASES)
def test_collector_finds_nothing(no_garbage, resident_bytes, name):
    """With the collector off, a hundred gradients take no memory, and it finds no object of ours afterwards."""
    call = CASES[name]
    for _ in range(10):
        call()
    with no_garbage() as found:
        before = resident_bytes()
        for _ in range(100):
            call()
        growth = resident_bytes() - before
    assert found == []
    assert growth <= 2**20


def test_collector_finds_nothing_of_paging(no_garbage, tmp_path):
    """Also what was paged to disk is given up without the collector, and so is a profile."""
    x = np.linspace(0, 1, 64 * 64).reshape(64, 64)
    call = grad(dots, budget=Budget(8 * x.nbytes + 100_000, "1 GiB", tmp_path))
    with no_garbage() as found:
        for _ in range(5):
            call(x, x)
            with profile() as p:
                call(x, x)
            assert p.bytes_written > 0
            del p
    assert found == []


class StopError(Exception):
    """What the tests raise."""


def failing(place, error):
    """Return a function whose gradient fails in its forward run, in a rule, or in what the sweep checks."""
    shape = (3,) if place == "sweep" else (8, 8)

    def rule(g):
        if place == "rule":
            raise error
        return np.zeros(shape)

    mark = ebbtide.primitive(lambda x: x * 1.0, vjp=(rule,), jvp=(lambda t: t,))

    def f(x):
        x = mark(np.sin(x))
        x[1:] *= np.cos(x[:-1])
        if place == "forward":
            raise error
        return np.sum(x)

    return f


def run_failing(transform, f, error):
    """Call a gradient that fails, and let go of the exception with its frames."""
    try:
        transform(f)
    except error:
        return True
    return False


TRANSFORMS = {
    "grad": lambda f: grad(f)(S),
    "budget": lambda f: grad(f, budget=Budget("1 MiB", "1 MiB"))(S),
    "vjp": lambda f: vjp(f, S)[1](1.0),
    "second order": lambda f: grad(lambda x: np.sum(grad(f)(x)))(S),
    "forward over reverse": lambda f: jvp(grad(f), (S,), (S,)),
    "checkpoint": lambda f: grad(checkpoint(f))(S),
    "loop": lambda f: grad(lambda x: np.sum(ebbtide.timeloop(lambda u, _: u + f(u), x, 3)))(S),
    "profile": lambda f: profiled(f),  # noqa: PLW0108 - defined below
}


def profiled(f):
    """Take a gradient in a profile."""
    with profile():
        grad(f)(S)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("forward", StopError),
        ("forward", KeyboardInterrupt),
        ("rule", StopError),
        ("rule", KeyboardInterrupt),
        ("sweep", ebbtide.CotangentError),
    ],
)
def test_exceptions_leave_nothing(no_garbage, name, place, error):
    """An exception in forward, rule or sweep leaves no object, no context, and the next gradient right."""
    f = failing(place, error)
    transform = TRANSFORMS[name]
    expected = grad(cube)(S)
    with no_garbage() as found:
        for _ in range(20):
            assert run_failing(transform, f, error)
        assert current_or_none() is None
    assert found == []
    assert np.array_equal(grad(cube)(S), expected)


@pytest.mark.parametrize("place", ["rule", "sweep"])
def test_memory_after_an_exception(place):
    """Once the exception is gone, no intermediate of the failed gradient is alive."""
    refs = []

    def seen(x):
        y = np.sin(x)
        refs.append(weakref.ref(y))
        return y

    sine = ebbtide.primitive(seen, vjp=(lambda g, x: g * np.cos(x),))
    g = failing(place, StopError)
    error = StopError if place == "rule" else ebbtide.CotangentError
    gc.disable()
    try:
        assert run_failing(TRANSFORMS["grad"], lambda x: np.sum(sine(x)) + g(sine(x)), error)
        assert [r() for r in refs] == [None] * len(refs)
    finally:
        gc.enable()
    assert len(refs) >= 2


def test_no_intermediate_survives():
    """Every intermediate, traced and plain, saved and not, is dead when the gradient returns."""
    refs = []

    def noted(x):
        refs.append(weakref.ref(x))
        return x

    sine = ebbtide.primitive(lambda x: noted(np.sin(x)), vjp=(lambda g, x: noted(g * np.cos(x)),))

    def f(x):
        for _ in range(5):
            x = noted(sine(noted(x * 2.0)) + noted(np.cos(x)[1:].sum()))
            x[0] = 0.0
        return np.sum(x * x)

    gc.disable()
    try:
        gradient = grad(f)(np.linspace(0, 1, 7))
        alive = [r() for r in refs if r() is not None]
        assert [a for a in alive if a is not gradient] == []
    finally:
        gc.enable()
    assert len(refs) == 5 * 3 + 5 * 2


def test_what_is_not_needed_dies_in_the_forward_run():
    """An intermediate that no rule saves dies with its last use, while the function still runs."""
    died = []

    def f(x):
        y = x + 1.0
        reference = weakref.ref(y)
        z = y * 3.0
        del y
        died.append(reference() is None)
        return np.sum(z)

    grad(f)(np.ones(3))
    assert died == [True]


def test_a_result_keeps_nothing_alive():
    """A gradient is an array of its own: it has no base, and the pullback and value that came with it can go."""
    value, pullback = vjp(lambda x: np.exp(x)[::2], np.ones(10))
    reference = weakref.ref(pullback)
    (gradient,) = pullback(np.ones(5))
    assert gradient.base is None
    assert value.base is None or value.base.nbytes <= 2 * 80
    del pullback
    assert reference() is None
