"""`linearize` of functions without loops: the bits of forward mode, again and again, for the linear part only."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import (
    Budget,
    CotangentError,
    DeterminismError,
    MutationError,
    ReleasedValueError,
    RuleMissingError,
    TraceError,
    checkpoint,
    grad,
    jvp,
    linearize,
    primitive,
    timeloop,
    vjp,
    vmap,
)
from ebbtide.schedules import Revolve, StoreAll

X = np.linspace(0.2, 1.3, 6)
M = np.cos(np.arange(36.0)).reshape(6, 6)


def views(x, y):
    """Writes into views, masks, indices, products and containers."""
    z = np.sin(x) @ M
    w = z * 1.0
    w[1:3] = y[:2] * x[1:3]
    w *= np.exp(y)
    w[[0, 5]] += x[[5, 0]]
    return {"a": np.sum(w**2), "b": w[::2] / (1 + x[0]), "c": np.maximum(x, y), "d": 3.0, "e": x, "n": np.arange(3)}


def numbers(x, y):
    """Reductions, sorting, products, complex numbers."""
    z = np.sort(x * y[::-1]) + np.cumsum(x)
    a = np.outer(x, y) + 3 * np.eye(6)
    return a @ z, np.max(z) * np.prod(y), np.abs(x + 1j * y) + np.einsum("i,i", x, y), np.var(z)


def checkpointed(x, y):
    """Checkpointed parts, and gradients inside."""
    return checkpoint(lambda u: np.tanh(u * y))(x), grad(lambda u: np.sum(np.sin(u * x) * y))(y)


def members(x, y):
    """Writes of what differs from member to member into what begins the same for all."""
    def of_one(w):
        u = np.zeros_like(w)
        u[1:] = w[1:] * x[1:]
        u[0] += u[1] * y[0]
        return u

    return [vmap(of_one)(np.arange(18.0).astype(x.dtype).reshape(3, 6))]


@pytest.mark.parametrize("f", [views, numbers, checkpointed, members])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_pushforward_is_forward_mode(f, dtype):
    """Each push, in any order, gives the bits of jvp, also with zeros and infinities."""
    x, y = X.astype(dtype), np.cos(X).astype(dtype)
    value, pushforward = linearize(f, x, y)
    rng = np.random.default_rng(5)
    directions = [tuple(rng.standard_normal((2, 6)).astype(dtype)) for _ in range(3)] + [(x * 0, y)]
    for v in [*directions, *directions[::-1]]:
        expected, tangent = jvp(f, (x, y), v)
        for found, known in ((value, expected), (pushforward(*v), tangent)):
            known = list(known.values() if isinstance(known, dict) else known)  # noqa: PLW2901 - as a list
            for a, b in zip(found.values() if isinstance(found, dict) else found, known, strict=True):
                assert type(a) is type(b)
                assert np.asarray(a).dtype == np.asarray(b).dtype
                assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_results_are_the_callers():
    """What a pushforward returns is in memory of its own: no argument's, no other result's, and writable."""
    _, pushforward = linearize(lambda x: (x, x, x[1:], x.reshape(2, 3), np.broadcast_to(x, (2, 6)), x + 0), X)
    direction = np.ones(6)
    results = pushforward(direction)
    for k, result in enumerate(results):
        result[...] = k + 2.0
    assert all(np.array_equal(result, np.full(result.shape, k + 2.0)) for k, result in enumerate(results))
    assert np.array_equal(direction, np.ones(6))


def test_results_are_the_callers_where_they_are_traced():
    """So it is where the pushforward is differentiated itself."""
    _, pushforward = linearize(lambda x: x, X)

    def f(t):
        result = pushforward(t)
        result[0] = 0.0
        return np.sum(t) + np.sum(result)

    assert grad(f)(X).tolist() == [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_infinite_derivatives_warn_where_they_are_used():
    """At the point there is no warning, as there is no tangent yet; a push has those of forward mode."""
    _, pushforward = linearize(np.sqrt, np.array([0.0, 1.0]))
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert pushforward(np.array([1.0, 1.0])).tolist() == [np.inf, 0.5]
    with pytest.warns(RuntimeWarning, match="invalid"):
        assert np.isnan(pushforward(np.array([0.0, 1.0]))[0])


def test_linear_part_only():
    """The function runs once, and a push does not evaluate its non-linear operations."""
    calls = []

    def slow(x):
        calls.append("value")
        return np.exp(x)

    def push(t, out):
        calls.append("push")
        return t * out

    op = primitive(slow, jvp=push, vjp=lambda g, out: g * out)
    _, pushforward = linearize(op, X)
    assert calls.count("value") == 1
    for _ in range(3):
        np.testing.assert_allclose(pushforward(X), np.exp(X) * X)
    assert calls.count("value") == 1


def test_checkpointed_functions_run_again():
    """A checkpointed function keeps its arguments, also closed over, and runs once for each push."""
    calls = []
    x = np.linspace(0, 1, 100_000)
    k = np.cos(x)

    def f(x, k):
        @checkpoint
        def inner(y, n):
            calls.append(1)
            y[0] = k[1] * n
            for _ in range(10):
                y = np.sin(y) * k
            return y, (2.0, k)

        y, (two, again) = inner(x * 2.0, 3)
        return np.sum(y * again) * two, inner(y, 2)[0]

    pair = []
    assert peak_bytes(lambda: pair.extend(linearize(f, x, k))) < 18 * x.nbytes
    assert len(calls) == 2
    for v in ((k, x), (x, x)):
        assert len(calls) % 2 == 0
        found = pair[1](*v)
        expected, tangent = jvp(f, (x, k), v)
        for a, b in zip((*pair[0], *found), (*expected, *tangent), strict=True):
            np.testing.assert_array_equal(a, b)
    step = checkpoint(lambda u, _: np.sin(u) * k)
    _, pushforward = linearize(lambda x: timeloop(step, x, 3), x)
    np.testing.assert_array_equal(pushforward(x), jvp(lambda x: timeloop(step, x, 3), (x,), (x,))[1])


def test_a_checkpointed_function_that_changes():
    """A checkpointed function that gives another result, or uses another array, when it runs again is an error."""
    numbers = iter(range(100))
    _, pushforward = linearize(checkpoint(lambda y: y * next(numbers)), X)
    with pytest.raises(DeterminismError, match="another result"):
        pushforward(X)
    used = []

    def f(x, k):
        def inner(y):
            used.append(1)
            return y * k if len(used) > 1 else y * np.ones(6)

        return checkpoint(inner)(x)

    _, pushforward = linearize(f, X, np.ones(6))
    with pytest.raises(DeterminismError, match="had not used before"):
        pushforward(X, X)


def opaque(x):
    """A function that no trace can follow."""
    return np.array([float(v) ** 3 for v in np.asarray(x, float)])


def opaque_rule(t, x):
    """Its derivative along a tangent, which no trace can follow either."""
    return np.array([3 * float(v) ** 2 * float(s) for v, s in zip(x, t, strict=True)])


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
def test_opaque_rules(schedule):
    """A user's rule for tangents is one operation, which may do what cannot be recorded, also with static values."""
    op = primitive(lambda x, k: opaque(x) * k, jvp=(lambda t, x, k: opaque_rule(t, x) * k, lambda t, x: opaque(x) * t))

    def f(x, k):
        w = np.sin(x)
        return timeloop(lambda u, _: op(u, k) * 0.1 + op(w, k), op(x, k), 4, schedule=schedule)

    value, pushforward = linearize(f, X, 0.5)
    for v in ((np.cos(X), 0.3), (X, -1.0)):
        expected, tangent = jvp(f, (X, 0.5), v)
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_array_equal(pushforward(*v), tangent)
    with pytest.raises(RuleMissingError, match="no jvp rule"):
        linearize(primitive(opaque, vjp=(lambda g, x: g * x,)), X)


def test_memory_is_that_of_the_derivatives():
    """Between pushes there is an array for each derivative, none for what is linear; a push keeps nothing."""
    x = np.linspace(0, 1, 100_000)

    def f(x):
        for _ in range(5):
            x = np.sin(x) * 2.0 + x[::-1]
        return x

    pair = []
    assert peak_bytes(lambda: pair.extend(linearize(f, x))) < (5 + 8) * x.nbytes
    held = peak_bytes(lambda: pair[1](x))
    assert held < 6 * x.nbytes
    assert peak_bytes(lambda: [pair[1](x) for _ in range(5)]) < held + 5 * x.nbytes


@pytest.mark.parametrize(
    "f",
    [lambda x: M @ x, lambda x: np.where(x > 0.5, 1.0, x), lambda x: np.concatenate([M[0], np.sin(x)]),
     checkpoint(lambda y: M @ np.sin(y))],
)  # fmt: skip
def test_a_budget_changes_no_bit(f):
    """With a budget the pushforward has the same bits, also of operations whose first operand is a constant."""
    _, free = linearize(f, X)
    _, bounded = linearize(f, X, budget=Budget(memory="1 MiB"))
    assert bounded(np.cos(X)).tobytes() == free(np.cos(X)).tobytes()


def test_what_no_output_needs_dies():
    """A derivative that no output depends on is not kept."""

    def f(x):
        for _ in range(20):
            np.exp(np.sin(x))
        return x * 2.0

    x = np.linspace(0, 1, 100_000)
    assert peak_bytes(lambda: linearize(f, x)) < 8 * x.nbytes


def test_freed():
    """After free() a push says who gave up what it needs, and nothing is held."""
    gc.collect()
    gc.disable()
    try:
        _, pushforward = linearize(views, X, X)
        pushforward.free()
        pushforward.free()
        with pytest.raises(ReleasedValueError, match=r"free\(\) at .*test_linearize\.py:\d+ gave them up"):
            pushforward(X, X)
        del pushforward
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_changed_array_is_an_error():
    """An array that the function used, or returned, and that was changed since, is found."""
    a = np.cos(X)
    _, pushforward = linearize(lambda x: x * a, X)
    a[0] = 5.0
    with pytest.raises(MutationError, match="was changed after"):
        pushforward(X)
    value, pushforward = linearize(np.exp, X)
    value[0] = 5.0
    with pytest.raises(MutationError):
        pushforward(X)


@pytest.mark.parametrize("tangents", [(X,), (X, X, X), (X, X[:2]), (X, (X,)), (X, X + 1j)])
def test_wrong_tangents(tangents):
    """Tangents of another number, structure, shape or dtype are refused, and the pushforward stays good."""
    _, pushforward = linearize(views, X, X)
    with pytest.raises(CotangentError):
        pushforward(*tangents)
    assert pushforward(X, X)["d"] == 0.0


def test_arguments_that_have_no_derivative():
    """Integers are refused as by the other transforms, and other outputs than numbers too."""
    with pytest.raises(TypeError, match="argument 0"):
        linearize(np.sin, 3)
    with pytest.raises(TypeError, match="linearize was given a function"):
        linearize(lambda x: "text", X)


def test_escaped_array():
    """An array that left the function is no part of its derivative, and saying so is an error."""
    kept = []
    linearize(lambda x: kept.append(x * 2.0) or x, X)
    with pytest.raises(TraceError, match="had returned"):
        np.sin(kept[0])


def test_nested():
    """Derivatives of pushforwards, pushforwards in derivatives, and linearizations in linearizations are right."""
    v = np.cos(X)

    def f(x):
        return np.sum(np.sin(x) * x)

    second = grad(lambda x: jvp(f, (x,), (v,))[1])(X)
    np.testing.assert_allclose(grad(lambda x: linearize(f, x)[1](v))(X), second, rtol=1e-12)
    np.testing.assert_allclose(linearize(grad(f), X)[1](v), second, rtol=1e-12)
    np.testing.assert_allclose(linearize(lambda x: linearize(f, x)[1](v), X)[1](v), second @ v, rtol=1e-12)
    np.testing.assert_allclose(jvp(lambda x: linearize(f, x)[1](v), (X,), (v,))[1], second @ v, rtol=1e-12)
    _, pushforward = linearize(lambda x: np.tanh(M @ x), X)
    _, pullback = vjp(pushforward, v)
    np.testing.assert_allclose(pullback(X)[0], vjp(lambda x: np.tanh(M @ x), X)[1](X)[0], rtol=1e-12)


def test_dot_product():
    """A pushforward and a pullback of one function are transposes of each other."""
    w = np.sin(np.arange(6.0))
    value, pushforward = linearize(lambda x: np.tanh(M @ x) * x, X)
    pulled = vjp(lambda x: np.tanh(M @ x) * x, X)[1](w)[0]
    np.testing.assert_allclose(w @ pushforward(value), pulled @ value, rtol=1e-13)
