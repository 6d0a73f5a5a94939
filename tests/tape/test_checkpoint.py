"""`checkpoint`: run again in the sweep instead of kept."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes

from ebbtide import (
    Budget,
    BudgetError,
    DeterminismError,
    MutationError,
    checkpoint,
    grad,
    hvp,
    jacobian,
    jit,
    jvp,
    linearize,
    timeloop,
    value_and_grad,
    vjp,
    vmap,
)
from ebbtide.schedules import Revolve, StoreAll
from ebbtide.tape.plain_checkpoint import plain_checkpoint

N = 50_000
UNIT = N * 8


def sines(x, steps=10):
    """Apply sin some times."""
    for _ in range(steps):
        x = np.sin(x)
    return x


def ten_blocks(x, block):
    """Apply ten blocks."""
    for _ in range(10):
        x = block(x)
    return np.sum(x)


def test_memory_of_ten_blocks():
    """Ten blocks of ten sines take ten blocks' arguments, one block's values, and two: 22 units where all take 101."""
    x = np.linspace(0, 1, N)
    assert peak_bytes(lambda: grad(ten_blocks)(x, checkpoint(sines))) <= 22 * UNIT
    assert peak_bytes(lambda: grad(ten_blocks)(x, sines)) >= 100 * UNIT


def test_bits():
    """A checkpointed function has the value and gradient of the function, bit for bit."""
    x = np.linspace(0, 1, 1000)
    value, gradient = value_and_grad(ten_blocks)(x, checkpoint(sines))
    same, expected = value_and_grad(ten_blocks)(x, sines)
    assert value == same
    assert np.array_equal(gradient, expected)


@pytest.mark.parametrize("arguments", [1, 2, 5])
def test_calls(arguments):
    """The body runs once forward and once in the sweep, whatever the number of arguments and outputs."""
    calls = []

    def body(*args):
        calls.append(1)
        return [np.sin(a) * args[0] for a in args]

    def f(*args):
        return sum(np.sum(r) for r in checkpoint(body)(*args))

    args = [np.ones(3)] * arguments
    gradients = grad(f, tuple(range(arguments)))(*args)
    assert len(gradients) == arguments
    assert len(calls) == 2
    calls.clear()
    checkpoint(body)(*args)
    assert len(calls) == 1
    calls.clear()
    jvp(f, args, args)
    assert len(calls) == 1
    calls.clear()
    vjp(f, *args)
    assert len(calls) == 1


def test_containers_in_and_out():
    """Arguments and results are any containers, keywords included, with what is no array in them."""
    def body(t, *, k, text):
        assert text == "yes"
        return {"s": np.sin(t["a"]) * k, "n": 3, "t": (t["b"][0] * t["a"], None), "same": t["a"]}

    def f(t, k, wrap):
        out = wrap(body)(t, k=k, text="yes")
        assert out["n"] == 3
        assert out["t"][1] is None
        return np.sum(out["s"]) + np.sum(out["t"][0]) + np.sum(out["same"] * out["s"])

    t = {"a": np.linspace(0, 1, 4), "b": [2.0]}
    got = grad(f, (0, 1))(t, 1.5, checkpoint)
    want = grad(f, (0, 1))(t, 1.5, lambda g: g)
    assert np.allclose(got[0]["a"], want[0]["a"], rtol=1e-15)
    assert got[0]["b"][0] == pytest.approx(want[0]["b"][0], rel=1e-15)
    assert got[1] == pytest.approx(want[1], rel=1e-15)


@pytest.mark.parametrize("f", [
    lambda x: (1.3 + 0.7j) / np.sin(x), lambda x: abs((1.3 + 0.7j) / np.sin(x)),
    lambda x: (((0.3 + 0.7j) ** np.sin(x)).real + 0.1, 0.5), lambda x: np.abs((1.3 + 0.7j) / np.sin(x)),
])
def test_complex_numbers_of_python_and_floats_of_numpy(f):
    """Of the two Python makes one of its numbers where nothing is recorded, which has its derivative all the same."""
    first = lambda y: y[0] if isinstance(y, tuple) else y
    for budget in (None, Budget("1 MiB")):
        for x in np.linspace(0.1, 1, 10):
            loss = lambda x, wrap: np.abs(first(wrap(f)(x))) ** 2
            found = grad(lambda x: loss(x, checkpoint), budget=budget)(x)
            assert found == pytest.approx(grad(lambda x: loss(x, lambda g: g))(x), rel=1e-12)


def test_closures_are_found():
    """Traced values that the body closes over, or finds in an object, have their gradients."""
    class Layer:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return np.tanh(x @ self.w)

    def f(w, x, b, wrap):
        layer = Layer(w)
        block = wrap(lambda x: layer(x) + b)
        for _ in range(3):
            x = block(x)
        return np.sum(x * b)

    rng = np.random.default_rng(1)
    args = rng.standard_normal((4, 4)), rng.standard_normal((2, 4)), rng.standard_normal(4)
    got = grad(f, (0, 1, 2))(*args, checkpoint)
    want = grad(f, (0, 1, 2))(*args, lambda g: g)
    for a, b in zip(got, want, strict=True):
        assert np.allclose(a, b, rtol=1e-13, atol=1e-14)


def test_unused_outputs_and_arguments():
    """Outputs that nothing depends on and arguments that nothing is made of have no part in the gradient."""
    block = checkpoint(lambda x, y, z: (np.sin(x), np.exp(y), 1.0))
    a, b, c = grad(lambda *v: np.sum(block(*v)[0]), (0, 1, 2))(np.ones(2), np.ones(3), np.ones(4, np.float32))
    assert np.array_equal(a, np.cos(np.ones(2)))
    assert np.array_equal(b, np.zeros(3))
    assert np.array_equal(c, np.zeros(4))
    assert c.dtype == np.float32


def test_nested_checkpoints():
    """A checkpointed body may have checkpoints inside, with closures over all levels."""
    def f(x, wrap):
        closed = x * 2.0

        def inner(v, u):
            return np.sin(v) * closed * u

        def outer(u):
            return wrap(lambda v: inner(v, u))(np.cos(u)) + closed

        return np.sum(wrap(outer)(wrap(outer)(x)))

    x = np.linspace(0.1, 1, 6)
    assert np.allclose(grad(f)(x, checkpoint), grad(f)(x, lambda g: g), rtol=1e-14)


def test_higher_orders():
    """Derivatives of derivatives go through checkpoints in all mixtures of the modes."""
    def f(x, wrap):
        c = x[0] * 1.0
        return np.sum(wrap(lambda u: np.sin(u) * u * c)(wrap(np.exp)(x)))

    x = np.linspace(0.1, 0.5, 4)
    v = np.array([1.0, -1.0, 2.0, 0.5])
    for product in (
        lambda wrap: grad(lambda y: np.sum(grad(f)(y, wrap) * v))(x),
        lambda wrap: jvp(lambda y: grad(f)(y, wrap), (x,), (v,))[1],
        lambda wrap: grad(lambda y: jvp(lambda u: f(u, wrap), (y,), (v,))[1])(x),
    ):
        assert np.allclose(product(checkpoint), product(lambda g: g), rtol=1e-12)


def test_recursive_checkpoints_take_logarithmic_memory():
    """Halving a chain by recursive checkpoints holds a state a level: doubling its length adds about one unit."""
    x = np.linspace(0, 1, N)

    def halved(steps):
        if steps == 1:
            return np.sin
        first, second = halved(steps // 2), halved(steps - steps // 2)
        return checkpoint(lambda u: second(first(u)))

    peaks = [peak_bytes(lambda s=s: grad(lambda u: np.sum(halved(s)(u)))(x)) / UNIT for s in (16, 32, 64, 128)]
    growth = np.diff(peaks)
    assert max(growth) <= 3.1, peaks
    assert peaks[-1] <= 3 * 7 + 4, peaks


def test_recursive_calls():
    """In a recursion of depth d each operation runs at most d + 1 times, as the call tree says."""
    calls = []

    def leaf(u):
        calls.append(1)
        return np.sin(u)

    def halved(steps):
        if steps == 1:
            return leaf
        first, second = halved(steps // 2), halved(steps - steps // 2)
        return checkpoint(lambda u: second(first(u)))

    grad(lambda u: np.sum(halved(16)(u)))(np.ones(2))
    assert len(calls) == 16 * 5


def test_traced_array_that_is_written_after():
    """The second run is given arrays from outside as they were in the first, though they were written since."""

    def f(x, wrap):
        w = 2 * x
        y = wrap(lambda x: np.sin(x) * w)(x)
        w *= 3
        return np.sum(y * w)

    x = np.linspace(0.1, 0.7, 3)
    np.testing.assert_allclose(grad(f)(x, checkpoint), grad(f)(x, lambda body: body), rtol=1e-13)


@pytest.mark.parametrize("change", ["random", "counter", "closed-over", "static"])
def test_nondeterminism_is_found(change):
    """A body that gives another result the second time is an error that names it and says what to do."""
    rng = np.random.default_rng(0)
    state = {"n": 0, "array": np.ones(3)}

    def body(u):
        state["n"] += 1
        if change == "random":
            return u * rng.standard_normal(3)
        if change == "counter":
            return u * state["n"]
        return u * state["array"]

    def f(x):
        y = checkpoint(body)(x)
        if change == "closed-over":
            state["array"][0] = 2.0
        elif change == "static":
            state["array"] = x * 2.0
        return np.sum(y)

    error = MutationError if change == "closed-over" else DeterminismError
    with pytest.raises(error, match=r"body.*run again"):
        grad(f)(np.ones(3))
    state.update(n=0, array=np.ones(3))
    assert np.array_equal(grad(lambda x: np.sum(checkpoint(np.sin)(x)))(np.zeros(3)), np.ones(3))


def test_results_that_are_numbers_are_compared():
    """A number that comes out differently the second time is an error, too."""
    rng = np.random.default_rng(0)
    with pytest.raises(DeterminismError, match=r"run again"):
        grad(checkpoint(lambda x: np.sum(x) * rng.random()))(np.ones(3))


@pytest.mark.parametrize("view", [lambda y: y.T[:, ::2], lambda y: y[::-1, 1:], lambda y: y.T, lambda y: y[:, None].T])
def test_results_are_compared_however_they_lie(view):
    """The copy of a result that the caller got and the view that the second run gives are the same numbers."""
    x = np.arange(24.0).reshape(4, 6)
    found = grad(lambda x: np.sum(checkpoint(lambda x: view(np.sin(x)))(x)))(x)
    assert np.array_equal(found, grad(lambda x: np.sum(view(np.sin(x))))(x))


@pytest.mark.parametrize("inner", [lambda f: f, checkpoint])
def test_arguments_that_are_python_numbers(inner):
    """They are Python numbers in both runs, for derivatives within, too; what is closed over has the derivative."""
    seen = []

    def body(x, c):
        seen.append(type(x))
        return grad(inner(lambda x: x * x * c))(x)

    assert grad(lambda c: checkpoint(lambda x: body(x, c))(0.7))(1.3) == 1.4
    assert seen == [float, float]
    value, pushforward = linearize(lambda c: checkpoint(lambda x: body(x, c))(0.7), 1.3)
    assert (value, pushforward(1.0), set(seen)) == (1.4 * 1.3, 1.4, {float})


@pytest.mark.parametrize(
    "wrapped", [lambda f: f, jit, grad, lambda f: lambda x: linearize(f, x)[1](np.ones(3))]
)
def test_results_that_are_python_numbers(wrapped):
    """They are Python numbers for the caller, and do what these do."""
    seen = []

    def body(x, wrap):
        y, t, n, z = wrap(lambda x: (x * x, 1.5, 2, 3j))(x)
        seen.append((type(t), type(n), type(z)))
        return np.sum(y) * (t + 1) * np.abs(t) * n * abs(z)

    x = np.arange(3.0)
    found, expected = [np.sum(wrapped(lambda x, w=w: body(x, w))(x)) for w in (checkpoint, lambda f: f)]
    assert found == expected
    assert set(seen) == {(float, int, complex)}
    assert np.array_equal(grad(lambda x: body(x, checkpoint))(x), grad(lambda x: body(x, lambda f: f))(x))


def test_body_that_writes_its_argument():
    """A body may write into its argument, which is its own copy, in both runs."""
    def body(u):
        u *= 2.0
        u[0] = u[1]
        return u

    x = np.arange(1.0, 4.0)
    before = x.copy()
    gradient = grad(lambda x: np.sum(checkpoint(body)(x) * x))(x)
    expected = grad(lambda x: np.sum(body(x * 1.0) * x))(x)
    assert np.array_equal(gradient, expected)
    assert np.array_equal(x, before)


def written(u):
    """Write into the argument."""
    u *= 2.0
    return np.sin(u)


def given_back(u):
    """Return the argument, and a part of it, into which the caller writes."""
    v, part = u, u[::2]
    return v, part


def total(x, body, apart):
    """Use the argument after a body that may write into it, or whose results the caller writes into."""
    u = x * 1.0
    results = body(apart(u))
    if isinstance(results, tuple):
        v, part = results[0], apart(results[1])
        part *= 0.5
        return np.sum(u * v) + np.sum(part**3)
    return np.sum(u * results)


WITHIN = {
    "jvp": lambda f, x: np.array([jvp(f, (x,), (row,))[1] for row in np.eye(3)]),
    "linearize": lambda f, x: np.array([linearize(f, x)[1](row) for row in np.eye(3)]),
    "checkpoint": lambda f, x: grad(checkpoint(f))(x),
    "step": lambda f, x: grad(lambda x: timeloop(lambda s, i: (s[0], f(s[0])), (x, 0.0), 4, schedule=Revolve(1))[1])(x),
    "program": lambda f, x: jit(grad(f))(x),
    "differentiated program": lambda f, x: grad(jit(f))(x),
    "program of tangents": lambda f, x: np.array([jit(lambda x, v: jvp(f, (x,), (v,))[1])(x, v) for v in np.eye(3)]),
    "members": lambda f, x: vmap(grad(f))(np.stack([x, x]))[1],
}


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("body", [written, given_back])
def test_arrays_of_its_own_in_each_derivative(body, within):
    """What a body writes into its argument, and the caller into results, is seen by nobody else, whoever runs it."""
    x = np.arange(1.0, 4.0)
    expected = grad(lambda x: total(x, body, np.copy))(x)
    assert np.array_equal(grad(lambda x: total(x, checkpoint(body), lambda u: u))(x), expected)
    found = WITHIN[within](lambda x: total(x, checkpoint(body), lambda u: u), x)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("run", [lambda f: f, jit, lambda f: lambda x: value_and_grad(f)(x)[0]])
@pytest.mark.parametrize("body", [written, given_back])
def test_arrays_of_its_own_without_a_derivative(body, run):
    """A function has one value, with a derivative and without, also where a body writes into its argument."""
    x = np.arange(1.0, 4.0)
    assert run(lambda x: total(x, checkpoint(body), lambda u: u))(x) == total(x, body, np.copy)


def test_under_a_budget(tmp_path):
    """Checkpoints under a budget keep it, and have the same bits."""
    x = np.linspace(0, 1, N)
    budget = Budget(30 * UNIT)
    block = checkpoint(sines)
    assert np.array_equal(grad(ten_blocks, budget=budget)(x, block), grad(ten_blocks)(x, sines))
    paged = Budget(12 * UNIT, "1 GiB", tmp_path)
    call = grad(ten_blocks, budget=paged)
    assert np.array_equal(call(x, block), grad(ten_blocks)(x, sines))
    # Beside the arrays there are the records of two tapes and the storage's own.
    assert peak_bytes(lambda: call(x, block)) - peak_bytes(lambda: ten_blocks(x, sines)) <= paged.memory + 2**16
    assert list(tmp_path.iterdir()) == []


def test_outside_of_derivatives():
    """Where nothing is traced a checkpointed function does what the function does, on arrays of its own."""
    x = np.ones(3)
    wrapped = checkpoint(sines)
    assert wrapped.__name__ == "sines"
    assert np.array_equal(wrapped(x), sines(x))
    assert wrapped(x, steps=0) is x


def test_an_argument_that_is_handed_back_as_it_was_is_that_argument_outside_of_derivatives():
    """One that was written into, and a part of one, are new arrays, and the caller's has what it had."""
    x = np.arange(1.0, 4.0)
    same, part, other = plain_checkpoint(lambda u, v: (u, u[:2], v.__imul__(2.0)), (x, x), {})
    assert same is x
    assert not np.shares_memory(part, x)
    assert np.array_equal(other, 2.0 * np.arange(1.0, 4.0))
    assert np.array_equal(x, np.arange(1.0, 4.0))


def growing(u):
    """A loop that ends by its state."""
    return timeloop(lambda v, i: v + 0.1 * np.sin(u), u, until=lambda v: np.sum(v) > 7, max_steps=100)


def drawn(u):
    """A loop with a random generator in its state."""
    state = u, np.random.default_rng(3)
    return timeloop(lambda s, i: (s[0] + 0.1 * np.sin(u) * s[1].standard_normal(u.shape), s[1]), state, 4)[0]


def branching(u):
    """A loop whose step looks at its values."""
    return timeloop(lambda v, i: (0.9 * v if np.max(v) > 0.85 else v) + 0.1 * np.sin(u), u, 4)


@pytest.mark.parametrize("f", [growing, drawn, branching])
def test_functionals_of_a_loop_inside(f):
    """A batch of cotangents runs a checkpointed loop once more, and gives the bits of each; so does a program."""
    x, ran = np.linspace(0.1, 0.9, 6), []

    def counted(u):
        ran.append(u)
        return f(u)

    rows = jacobian(checkpoint(counted), mode="reverse")(x)
    assert len(ran) == 2
    value, pullback = vjp(checkpoint(f), x, retain=True)
    for row, seed in zip(rows, np.eye(6), strict=True):
        assert np.array_equal(row, pullback(seed)[0])
        assert np.array_equal(row, jit(lambda g: pullback(g)[0])(seed))
    tangents = vmap(linearize(checkpoint(f), x)[1])(np.eye(6))
    assert np.array_equal(tangents, np.stack([jvp(f, (x,), (v,))[1] for v in np.eye(6)]))
    assert np.array_equal(value, f(x))


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
def test_pullback_in_a_step(schedule):
    """A retained pullback of a checkpointed function is a linear function that a step may call."""
    x, c = np.linspace(0.1, 0.9, 6), np.float64(2.0)
    pullback = vjp(checkpoint(lambda u: np.sum(sines(u))), x, retain=True)[1]

    def total(c):
        return np.sum(timeloop(lambda u, i: u + pullback(c)[0], x, 3, schedule=schedule))

    np.testing.assert_allclose(grad(total)(c), 3 * np.sum(pullback(1.0)[0]), rtol=1e-14)


UNUSED = {
    "checkpoint": checkpoint(lambda u, c: np.sin(u)),
    "inputs": lambda u, c: timeloop(lambda u, x: np.sin(u), u, 2, inputs=[c, c]),
    "state": lambda u, c: timeloop(lambda s, i: (np.sin(s[0]), s[1]), (u, c), 2)[0],
    "vjp": lambda u, c: vjp(lambda u, c: np.sin(u), u, c)[1](u)[0],
}


@pytest.mark.parametrize("name", UNUSED)
def test_an_argument_that_nothing_uses(name):
    """What a function or a step gives to another one, which does not use it, is no sign of another run."""
    f, x = UNUSED[name], np.linspace(0.2, 1.3, 5)

    def held(x):
        c = np.cos(x)
        return np.sum(checkpoint(lambda u: f(u, c))(x))

    def stepped(x):
        c = np.cos(x)
        step = lambda u, i: f(u, c) if i == 2 else u * 0.9
        return np.sum(timeloop(step, x, 4, schedule=Revolve(1)))

    def in_python(x):
        return np.sum(f(x * 0.9 * 0.9, np.cos(x)) * 0.9)

    plain = lambda x: np.sum(f(x, np.cos(x)))
    for d in (grad, lambda f: lambda x: hvp(f)(x, x)):
        np.testing.assert_allclose(d(held)(x), d(plain)(x), rtol=1e-13)
        np.testing.assert_allclose(d(stepped)(x), d(in_python)(x), rtol=1e-13)


VIEWS = {
    "inner": lambda u: u[1:-1, 1:-1],
    "inner, transposed": lambda u: u[1:-1, 1:-1].T,
    "steps": lambda u: u[::2, ::3],
    "reversed": lambda u: u[:, ::-1],
    "broadcast": lambda u: np.broadcast_to(u[:1], u.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("budget", [None, Budget("64 MiB"), Budget("7 MiB", "1 GiB")], ids=["free", "bound", "disk"])
def test_arguments_may_lie_in_any_way(view, budget):
    """Parts, reversed and broadcast arrays are arguments like others: last bits of their sums are no other result."""
    u = np.random.default_rng(0).uniform(0.6, 1.4, (300, 301))

    def f(x, wrap):
        parts = wrap(lambda x: (np.sum(x) ** 2, np.mean(np.sin(x), axis=-1), np.mean(x, axis=0), np.exp(x) @ x.T))(x)
        return sum(np.sum(part) for part in parts)

    def of_views(u, wrap):
        return sum(f(view(u * k), wrap) for k in (0.5, 1.0, 1.5))

    for g, x in (f, view(u)), (of_views, u):
        np.testing.assert_allclose(grad(g, budget=budget)(x, checkpoint), grad(g)(x, lambda part: part), rtol=1e-12)


@pytest.mark.parametrize("name", ["part", "integers"])
@pytest.mark.parametrize("disk", [0, "1 GiB"])
def test_copies_of_arguments_are_in_the_budget(name, disk):
    """Arguments that are copied are so beside what a function saves, for one at a time; the least has room for that."""
    plain = np.random.default_rng(0).uniform(0.6, 1.4, (2, 4 * N))
    plain = plain[:, ::2] if name == "part" else plain.view(np.int64)[:, : 2 * N].copy()

    line = np.linspace(0, 1, N // 4)

    def f(s, wrap):
        return sum(wrap(lambda s, x: np.sum(sines(s * line, 16)) * np.sum(x))(s, plain) for _ in range(4))

    with pytest.raises(BudgetError) as caught:
        grad(f, budget=Budget(1000, disk))(2.0, checkpoint)
    budget = Budget(caught.value.least, disk)
    call = grad(f, budget=budget)
    np.testing.assert_allclose(call(2.0, checkpoint), grad(f)(2.0, lambda g: g), rtol=1e-12)
    beyond = peak_bytes(lambda: call(2.0, checkpoint)) - peak_bytes(lambda: f(2.0, lambda g: g))
    assert beyond <= budget.memory + 2**16 <= 9 * UNIT


@pytest.mark.parametrize("budget", [None, Budget("64 MiB")], ids=["free", "bound"])
def test_body_that_writes_an_argument_of_integers(budget):
    """A body that counts in an argument counts in its own copy, in both runs, and the caller's stays as it is."""
    def body(x, counts):
        counts += 1
        return np.sum(x * counts)

    x, counts = np.arange(3.0), np.zeros(3, int)
    gradient = grad(lambda x: checkpoint(body)(x, counts), budget=budget)(x)
    assert (gradient.tolist(), counts.tolist()) == ([1.0] * 3, [0] * 3)
    pullback = vjp(lambda x: checkpoint(body)(x, counts), x, retain=True)[1]
    assert [pullback(1.0)[0].tolist() for _ in range(2)] == [[1.0] * 3] * 2


def logistic(u):
    """Apply three operations, of which one saves an array."""
    return u - 0.01 * u * u


def stepped(f):
    """Return a time loop of nine steps."""
    return lambda u: timeloop(lambda u, _: f(u), u, 9)


SMALL = {
    "alone": checkpoint(logistic),
    "in another one": checkpoint(checkpoint(logistic)),
    "around a loop": checkpoint(stepped(logistic)),
    "around that": checkpoint(checkpoint(stepped(logistic))),
    "three deep": checkpoint(checkpoint(checkpoint(stepped(logistic)))),
    "around two loops": checkpoint(lambda u: stepped(logistic)(stepped(logistic)(u))),
    "in a loop": stepped(checkpoint(logistic)),
    "after a loop": lambda u: checkpoint(logistic)(stepped(logistic)(u)),
}


@pytest.mark.parametrize("times", [1.0, 1.2])
@pytest.mark.parametrize("name", SMALL)
def test_small_functions_are_within_their_budgets(name, times):
    """What the interpreter takes for a function that runs again counts: of three operations it passed 32 KB by 7."""
    u = np.linspace(0.1, 1.0, 500)

    def f(u):
        return np.sum(SMALL[name](u) ** 2)

    alone = peak_bytes(lambda: f(u))
    budget = Budget(int(times * find_least(lambda memory: grad(f, budget=Budget(memory))(u))))
    call = grad(f, budget=budget)
    np.testing.assert_array_equal(call(u), grad(f)(u))
    assert peak_bytes(lambda: call(u)) - alone <= budget.memory
