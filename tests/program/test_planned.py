"""Derivatives of jitted functions are programs: as exact, no larger, and nothing of them outlives its use."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
from optree import tree_leaves, tree_map
from tests.measure import peak_bytes
from tests.program.test_tracing import bits, functions_of, traced
from tests.rules.examples import label, typed_cases
from tests.scale import sample_of_each

from ebbtide import Budget, checkpoint, grad, hvp, jit, jvp, profile, stop_gradient, timeloop, vjp
from ebbtide.errors import MutationError, ReleasedValueError, TraceError
from ebbtide.program.planned import PlannedProgram
from ebbtide.schedules import Mixed, Revolve, StoreAll


@pytest.fixture
def planned(monkeypatch):
    """How programs were run: on tapes, on pairs of values and tangents."""
    runs: list[str] = []
    for name in ("_on_tape", "_on_duals"):
        original = getattr(PlannedProgram, name)

        def counted(self, *args, original=original, name=name):
            found = original(self, *args)
            runs.append(name if found is not None else "as it stands")
            return found

        monkeypatch.setattr(PlannedProgram, name, counted)
    return runs


def close(found, expected, tolerance):
    """Whether all leaves agree."""
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "case", sample_of_each(typed_cases(np.float64, np.float32, np.complex64, smooth=True), 12), ids=label
)
def test_every_pullback(case):
    """The pullback of each jitted function is that of the function."""
    key, example, dtype = case
    operands = example.operands(dtype)
    f = functions_of(key, example)[0]
    jitted = jit(f)

    def pulled(f):
        value, pullback = vjp(f, *operands)
        return value, pullback(tree_map_half(value))

    if traced(f, operands) is None:
        with pytest.raises(TraceError):
            pulled(jitted)
    else:
        close(pulled(jitted), pulled(f), 1e-12 if dtype is np.float64 else 1e-4)


def tree_map_half(value):
    """A cotangent for a value."""
    return tree_map(lambda part: part * 0.5, value)


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64, smooth=True), 10), ids=label)
def test_every_tangent(case):
    """The tangent of each jitted function is that of the function."""
    key, example, dtype = case
    operands = example.operands(dtype)
    f = functions_of(key, example)[0]
    tangents = [np.cos(np.arange(np.size(x), dtype=float)).reshape(np.shape(x)) for x in operands]
    if traced(f, operands) is None:
        with pytest.raises(TraceError):
            jvp(jit(f), operands, tangents)
    else:
        close(jvp(jit(f), operands, tangents), jvp(f, operands, tangents), 1e-12)


def energy(x, w):
    """A function with views, products, a sum over an axis and fan-out."""
    y = np.tanh(x @ w)
    z = np.sin(y[1:] - y[:-1]) * y[1:]
    return np.sum(z * z) + np.sum(np.max(y, axis=0))


X = np.random.default_rng(0).standard_normal((6, 5))
W = np.random.default_rng(1).standard_normal((5, 5))

ORDERS = {
    "grad": lambda f: grad(f, (0, 1))(X, W),
    "jvp": lambda f: jvp(f, (X, W), (np.cos(X), np.sin(W))),
    "jvp of grad": lambda f: jvp(lambda x: grad(f)(x, W), (X,), (np.cos(X),)),
    "grad of jvp": lambda f: grad(lambda x: jvp(lambda w: f(x, w), (W,), (np.sin(W),))[1])(X),
    "grad of grad": lambda f: grad(lambda w: np.sum(grad(f)(X, w) ** 2))(W),
    "hvp": lambda f: hvp(lambda x: f(x, W))(X, np.cos(X)),
    "jvp of jvp": lambda f: jvp(lambda x: jvp(lambda y: f(y, W), (x,), (X,))[1], (X,), (np.cos(X),)),
    "grad of checkpoint": lambda f: grad(checkpoint(f), (0, 1))(X, W),
}


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_of_derivatives(order, planned):
    """Each derivative of a jitted function is that of the function, and every part of it is planned."""
    f = jit(energy)
    close(ORDERS[order](f), ORDERS[order](energy), 1e-13)
    assert planned
    assert "as it stands" not in planned
    assert f.reasons == []


@pytest.mark.parametrize("inside", ["loop", "loop in a loop", "checkpoint in a loop"])
def test_second_derivatives_have_the_same_bits_whatever_the_schedule(inside):
    """The first step of a loop, which is measured, is recorded as those are that run again."""
    square = jit(lambda u: u * u)
    u, v = np.random.default_rng(3).uniform(-1, 1, 60), np.random.default_rng(4).standard_normal(60)

    def inner(z, i):
        return 0.5 * square(z[0]), z[1] * 0.9 + 0.1 * z[0]

    def step(z, i):
        if inside == "loop in a loop":
            return timeloop(inner, z, 2)
        return checkpoint(lambda z: inner(z, 0))(z) if inside == "checkpoint in a loop" else inner(z, i)

    def product(schedule=None, **budget):
        return hvp(lambda u: np.sum(timeloop(step, (u, u * 0.7), 5, schedule=schedule)[1] ** 2), **budget)(u, v)

    expected = bits(product())
    for schedule in (StoreAll(), Revolve(1), Revolve(2), Mixed(2)):
        assert bits(product(schedule)) == expected
    assert bits(product(budget=Budget(memory=2**18))) == expected


def test_first_derivatives_have_the_same_bits():
    """Of a function that is jitted as a whole the gradient has the bits of the plain one, products apart."""
    def f(u):
        slope = u[1:] - u[:-1]  # read once more, the two reads would be one in the program, and another sum
        return np.sum(slope * np.abs(slope) + np.exp(-slope) * np.maximum(slope, 0.1))

    u = np.random.default_rng(2).standard_normal(1000)
    assert bits(grad(jit(f))(u)) == bits(grad(f)(u))
    assert bits(jvp(jit(f), (u,), (np.cos(u),))) == bits(jvp(f, (u,), (np.cos(u),)))


def test_constants_to_derivatives():
    """What stop_gradient makes a constant is one in programs, too, also where these are differentiated from outside."""
    def f(x):
        return np.sum(np.sin(stop_gradient(x)) * x) + np.sum(stop_gradient({"a": x * 2.0})["a"])

    for derivative in (grad, hvp, lambda f: lambda x, v=X: jvp(f, (x,), (v,))):
        arguments = (X, X) if derivative is hvp else (X,)
        assert bits(derivative(jit(f))(*arguments)) == bits(derivative(f)(*arguments))
        assert bits(derivative(jit(checkpoint(f)))(*arguments)) == bits(derivative(f)(*arguments))
        assert bits(jit(derivative(f))(*arguments)) == bits(derivative(f)(*arguments))
    single = grad(jit(lambda x, k: np.sum(stop_gradient(k) * x)))(X.astype(np.float32), 0.5)
    assert single.dtype == np.float32


def test_only_what_is_asked_for_is_differentiated():
    """Plain arguments get no cotangent, and what only their cotangents need is not saved."""
    w = np.ones((400, 400))
    f = jit(lambda x, w: np.sum((x @ w) ** 2))
    x = np.ones((3, 400))
    assert bits(grad(f)(x, w)) == bits(2 * ((x @ w) @ w.T))
    _, pullback = vjp(lambda x: f(x, w), x)
    value, both = vjp(f, x, w)
    assert value == np.sum((x @ w) ** 2)
    assert [g.shape for g in both(1.0)] == [(3, 400), (400, 400)]
    assert [g.shape for g in pullback(1.0)] == [(3, 400)]


def test_results_that_nothing_depends_on():
    """Results without a cotangent, integer results and constants are as those of the function."""
    def f(x):
        return np.sin(x), np.argmax(x), np.cos(x) * np.inf, 3.0, stop_gradient(x * 2.0), x > 0

    jitted = jit(f)
    x = np.linspace(-1, 1, 5)

    def loss(f):
        def inner(x):
            y, k, _, c, s, positive = f(x)
            return y[k] * c + np.sum(s) + np.sum(y[positive])

        return inner

    assert bits(grad(loss(jitted))(x)) == bits(grad(loss(f))(x))
    # A cotangent of zeros for the infinite one would be a nan.
    assert np.isfinite(grad(loss(jitted))(x)).all()


def test_arrays_around_are_inputs(planned):
    """An array that is differentiated around a jitted function gets its part, from any trace, without a new trace."""
    def outer(wrap):
        def f(x, w):
            inner = wrap(lambda x: np.sum(np.sin(x @ w)))
            return inner(x) + inner(2.0 * x)

        return f

    close(grad(outer(jit), (0, 1))(X, W), grad(outer(lambda f: f), (0, 1))(X, W), 1e-14)
    assert "as it stands" not in planned

    holder = {}
    held = jit(lambda x: np.sum(np.sin(x @ holder["w"])))

    def late(w):
        holder["w"] = w
        return held(X)

    for scale in (1.0, 2.0):
        expected = grad(lambda w: np.sum(np.sin(X @ w)))(W * scale)
        close(grad(late)(W * scale), expected, 1e-14)
    assert held.reasons == []
    holder["w"] = W
    assert held(X) == np.sum(np.sin(X @ W))


def test_arrays_around_that_were_the_same():
    """Two names for one array are two inputs when they are two arrays."""
    holder = {}
    f = jit(lambda x: np.sum(x * holder["a"] * holder["b"]))

    def of(a, b):
        holder.update(a=a, b=b)
        return f(np.ones(3))

    assert grad(lambda a: of(a, a))(np.full(3, 2.0)).tolist() == [4.0] * 3
    assert [g.tolist() for g in grad(of, (0, 1))(np.full(3, 2.0), np.full(3, 5.0))] == [[5.0] * 3, [2.0] * 3]


def test_changed_arrays_are_found():
    """Arguments and arrays around that were changed before the sweep are errors, as without `jit`."""
    w = np.ones(5)
    f = jit(lambda x: np.sum(np.sin(x) * w))
    x = np.linspace(0, 1, 5)
    for changed in (x, w):
        _, pullback = vjp(f, x)
        changed[2] += 1.0
        with pytest.raises(MutationError, match="was changed after"):
            pullback(1.0)
        changed[2] -= 1.0
    value, pullback = vjp(jit(np.exp), x)
    value += 1.0
    with pytest.raises(MutationError):
        pullback(np.ones(5))


def test_a_pullback_is_consumed_unless_it_is_retained():
    """A second pullback is an error that says who consumed the first, and with `retain` has the same bits."""
    value, pullback = vjp(jit(energy), X, W)
    first = pullback(1.0)
    with pytest.raises(ReleasedValueError, match="consumed"):
        pullback(1.0)
    again, retained = vjp(jit(energy), X, W, retain=True)
    assert again == value
    assert bits(retained(1.0)) == bits(retained(1.0)) == bits(first)


def test_nothing_is_left():
    """Values, saved values and programs die with their last name, without the collector, also after an error."""
    def fails(x):
        return jit(np.exp)(x) + len(3)

    gc.collect()
    gc.disable()
    try:
        x = np.ones(100)
        f = jit(lambda x: np.sum(np.sin(np.exp(x))))
        value, pullback = vjp(f, x)
        gradient = pullback(1.0)[0]
        hvp(f)(x, x)
        with pytest.raises(TypeError):
            grad(fails)(x)
        references = [weakref.ref(thing) for thing in (x, gradient, f)]
        del x, gradient, f, value, pullback
        assert [reference() for reference in references] == [None] * 3
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_what_is_saved_is_what_the_rules_name():
    """A forward program holds what the reverse program takes, views of it once, and no more than a tape."""
    x = np.linspace(0.1, 1, 100_000)

    def f(x):
        y = np.exp(x)  # saved once, for itself and both views
        return np.sum(y[1:] * y[:-1]) + np.sum(np.sin(x))

    for function in (f, jit(f)):
        vjp(function, x)
        tracemalloc.start()
        try:
            kept = vjp(function, x)
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert x.nbytes <= held <= 1.02 * x.nbytes
        del kept


def test_a_deep_net_takes_as_much_as_its_tape():
    """The gradient of a jitted net holds its activations and gradients, and one array beside them."""
    random = np.random.default_rng(3)
    weights = [random.standard_normal((200, 200)) / 14 for _ in range(20)]
    x = random.standard_normal((200, 200))

    def net(weights):
        y = x
        for w in weights:
            y = np.tanh(y @ w)
        return np.sum(y)

    f = jit(net)
    expected = grad(net)(weights)
    close(grad(f)(weights), expected, 1e-12)
    assert peak_bytes(lambda: grad(f)(weights)) <= 22.1 * x.nbytes


@pytest.mark.parametrize("schedule", [StoreAll(), StoreAll("disk"), Revolve(3), Mixed(4)], ids=repr)
def test_steps_of_a_loop(schedule, planned):
    """A jitted step is planned in a loop, with what it finds around it, and has the same bits under any schedule."""
    def run(u, w, nu, wrap, schedule):
        step = wrap(lambda u, i: np.sin(u) * w + nu * (np.roll(u, 1) - u))
        return np.sum(timeloop(step, u, 12, schedule=schedule) ** 2)

    u, w = np.linspace(0, 1, 50), np.linspace(1, 2, 50)
    found = grad(lambda u, w, nu: run(u, w, nu, jit, schedule), (0, 1, 2))(u, w, 0.1)
    assert "as it stands" not in planned
    assert bits(found) == bits(grad(lambda u, w, nu: run(u, w, nu, jit, StoreAll()), (0, 1, 2))(u, w, 0.1))
    close(found, grad(lambda u, w, nu: run(u, w, nu, lambda f: f, StoreAll()), (0, 1, 2))(u, w, 0.1), 1e-14)


def test_within_a_budget():
    """A gradient of jitted functions keeps within its budget, and is refused below the least, at which it runs."""
    x = np.linspace(0, 1, 40_000)
    f = jit(lambda x: np.sin(np.exp(x) * x) + x)

    def loss(x):
        for _ in range(6):
            x = f(x)
        return np.sum(x)

    expected = bits(grad(loss)(x))
    with pytest.raises(Exception, match="too small") as caught:
        grad(loss, budget=Budget(memory=x.nbytes))(x)
    least = caught.value.least
    found = []
    peak = peak_bytes(lambda: found.append(grad(loss, budget=Budget(memory=least))(x)))
    assert bits(found[0]) == expected
    assert peak <= least + peak_bytes(lambda: loss(x))
    disk = Budget(memory=8 * x.nbytes, disk=100 * x.nbytes)
    found.clear()
    peak = peak_bytes(lambda: found.append(grad(loss, budget=disk)(x)))
    assert bits(found[0]) == expected
    assert peak <= 8 * x.nbytes + peak_bytes(lambda: loss(x))


def test_a_profile_sees_saved_values():
    """A profile lists what a jitted function saves, by the line that calls it."""
    x = np.ones(1000)
    with profile() as report:
        grad(jit(lambda x: np.sum(np.sin(x) * np.cos(x))))(x)
    assert any("jit" in entry.operation for entry in report.saved)


def test_donated_memory_is_used_again():
    """The result is made in the memory of a donated argument, which may be written, and nothing is allocated."""
    def step(u):
        u[1:-1] += 0.1 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        return u

    u = np.random.default_rng(4).standard_normal(100_000)
    expected = step(step(u.copy()))
    jitted = jit(step, donate_argnums=0)
    state = jitted(u.copy())
    address = state.ctypes.data
    state = jitted(state)
    assert state.ctypes.data == address
    assert bits(state) == bits(expected)
    assert peak_bytes(lambda: jitted(state)) < 200_000  # NumPy's buffers for operands that overlap
    found = grad(lambda u: np.sum(jitted(jitted(u)) ** 2))(u)
    close(found, grad(lambda u: np.sum(step(step(u.copy())) ** 2))(u), 1e-14)


def test_what_cannot_be_donated():
    """An argument that is read-only, given twice, or used by the function itself is refused."""
    w = np.ones(5)
    f = jit(lambda x, y: x * y + w, donate_argnums=0)
    x = np.ones(5)
    with pytest.raises(TypeError, match="shares memory"):
        f(x, x[::-1])
    memory = bytearray(40)
    for y in (x, x[:], np.ndarray(5, buffer=x)):
        with pytest.raises(TypeError, match="shares memory"):
            f(x, y)
    with pytest.raises(TypeError, match="shares memory"):
        f(np.frombuffer(memory), np.frombuffer(memory))
    with pytest.raises(TypeError, match="shares memory"):
        f(w, x)
    x.flags.writeable = False
    with pytest.raises(TypeError, match="cannot be written"):
        f(x, np.ones(5))
    with pytest.raises(TypeError, match="donate_argnums"):
        jit(np.sin, donate_argnums=-1)


def test_a_loop_in_donated_states(planned):
    """A step in place, jitted and given its state, has the loop's gradients; static arrays are never overwritten."""
    def step(u, w):
        u[1:-1] += w[1:-1] * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        return u

    jitted = jit(step, donate_argnums=0)
    u, w = np.linspace(0, 1, 40) ** 2, np.full(40, 0.1)
    before = bits([u, w])
    for schedule in (StoreAll(), Revolve(2)):
        def loss(u, w, step, schedule=schedule):
            return np.sum(timeloop(lambda u, i: step(u, w), u, 10, schedule=schedule) ** 2)

        found = grad(loss, (0, 1))(u, w, jitted)
        close(found, grad(loss, (0, 1))(u, w, step), 1e-14)
    assert bits([u, w]) == before
    assert "as it stands" not in planned

    # What the step gives away comes from outside of it: its memory is somebody else's.
    given = jit(lambda w: w * 2.0, donate_argnums=0)

    def outside(w):
        return np.sum(timeloop(lambda u, i: u * given(w), np.ones(3), 3))

    w = np.full(3, 1.5)
    assert grad(outside)(w).tolist() == [3 * 8 * 1.5**2] * 3
    assert w.tolist() == [1.5] * 3
