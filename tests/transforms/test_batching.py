"""`vmap`: what a loop over the members gives, in one operation for all, with other transforms in and around it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from tests.fields import Field, product, random_field, same_bits, spread, velocity
from tests.measure import check_leaves_nothing, peak_bytes

from ebbtide import (
    Budget,
    BudgetError,
    RuleMissingError,
    TraceError,
    checkpoint,
    grad,
    hvp,
    jacobian,
    jit,
    jvp,
    linearize,
    primitive,
    stop_gradient,
    timeloop,
    trace,
    value_and_grad,
    vjp,
    vmap,
)
from ebbtide.schedules import Revolve, StoreAll

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(3, 5))
Y = RANDOM.normal(size=(3, 5))
W = RANDOM.normal(size=(5, 4))


def close(found, expected):
    """Compare to rounding, shapes and dtypes exactly."""
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def loss(x, w):
    """Products, reductions, a maximum, and a row that is chosen by value."""
    z = np.tanh(x @ w)
    return np.sum(z**2) + np.max(x) * z[np.argmax(z)]


def written(x, y):
    """Rows written one by one, views, masks and indices."""
    u = np.zeros_like(x + y)
    for k in range(len(x)):
        u[k] = np.sin(x[k]) * y[0]
    u[1:3] += y[:2]
    row = u[::-1]
    row[0] = x[1] * row[1]
    u[u < 0] = -0.5
    u[[0, 2]] *= x[[2, 0]]
    u -= y
    return u


def test_value_and_gradient():
    """Values and gradients of a function of members and of an array that is the same for all."""
    close(vmap(loss, (0, None))(X, W), [loss(x, W) for x in X])
    for k in range(2):
        close(vmap(grad(loss, k), (0, None))(X, W), [grad(loss, k)(x, W) for x in X])
    value, gradient = vmap(value_and_grad(loss), (0, None))(X, W)
    close(value, [loss(x, W) for x in X])
    close(gradient, [grad(loss)(x, W) for x in X])


def test_gradients_against_finite_differences():
    """The gradient of members, and the gradient through a batch, are slopes."""
    gradient, step = vmap(grad(loss), (0, None))(X, W), 1e-6
    for place in np.ndindex(X.shape):
        shift = np.zeros_like(X)
        shift[place] = step
        ahead, behind = vmap(loss, (0, None))(X + shift, W), vmap(loss, (0, None))(X - shift, W)
        slopes = (ahead - behind) / (2 * step)
        assert abs(slopes[place[0]] - gradient[place]) < 1e-7
        assert np.all(np.delete(slopes, place[0]) == 0)  # members do not mix
    weights = np.arange(1.0, 4)
    through = grad(lambda w: weights @ vmap(loss, (0, None))(X, w))(W)
    direction = np.cos(np.arange(20.0)).reshape(5, 4)
    ahead, behind = (weights @ vmap(loss, (0, None))(X, W + s * step * direction) for s in (1, -1))
    assert abs((ahead - behind) / (2 * step) - np.sum(through * direction)) < 1e-7


def test_every_nesting():
    """Derivatives of batches of derivatives of batches, in both modes, are those of the members."""

    def of_grad(x):
        return np.sum(grad(lambda x: np.sum(np.sin(x) * np.roll(x, 1)))(x) ** 2)

    close(grad(lambda x: np.sum(vmap(of_grad)(x)))(X), [grad(of_grad)(x) for x in X])
    close(vmap(grad(lambda x: grad(of_grad)(x)[0]))(X), [grad(lambda x: grad(of_grad)(x)[0])(x) for x in X])
    close(vmap(hvp(loss), (0, None, 0))(X, W, Y), [hvp(loss)(x, W, y) for x, y in zip(X, Y, strict=True)])
    close(hvp(lambda x: np.sum(vmap(loss, (0, None))(x, W)))(X, Y),
          [hvp(loss)(x, W, y) for x, y in zip(X, Y, strict=True)])  # fmt: skip
    close(jvp(vmap(grad(loss), (0, None)), (X, W), (Y, W))[1],
          [jvp(grad(loss), (x, W), (y, W))[1] for x, y in zip(X, Y, strict=True)])  # fmt: skip
    close(linearize(vmap(loss, (0, None)), X, W)[1](Y, W),
          [jvp(loss, (x, W), (y, W))[1] for x, y in zip(X, Y, strict=True)])  # fmt: skip
    pushforward = linearize(lambda x: loss(x, W), X[0])[1]
    close(vmap(pushforward)(Y), [pushforward(y) for y in Y])
    pullback = vjp(lambda x: np.sin(x) * x[0], X[0], retain=True)[1]
    close(vmap(lambda g: pullback(g)[0])(Y), [pullback(g)[0] for g in Y])


def test_batches_in_batches():
    """The members of members, over any axes of each."""
    table = vmap(vmap(lambda a, b: a @ b, (None, 0)), (0, None))(X, Y)
    close(table, X @ Y.T)
    of_pairs = vmap(vmap(lambda a, b: np.sum(a * b), (0, 1)), (1, 0))
    a, b = RANDOM.normal(size=(2, 3, 4)), RANDOM.normal(size=(3, 4, 2))
    close(of_pairs(a, b), [[np.sum(a[i, j] * b[j, :, i]) for i in range(2)] for j in range(3)])
    close(vmap(grad(lambda x: np.sum(vmap(lambda u, v: u * v)(x, x[::-1]))))(X), 2 * X[:, ::-1])


def test_in_place():
    """Writes into arrays, their views and elements are those of each member, and reach no argument."""
    x, y = X.copy(), Y.copy()
    close(vmap(written)(x, y), [written(a.copy(), b) for a, b in zip(X, Y, strict=True)])
    for k in range(2):
        of_one = grad(lambda *xs: np.sum(written(*xs) ** 2), k)
        close(vmap(of_one)(x, y), [of_one(a, b) for a, b in zip(X, Y, strict=True)])
        through = grad(lambda *xs: np.sum(vmap(written)(*xs) ** 2), k)
        close(through(x, y), [of_one(a, b) for a, b in zip(X, Y, strict=True)])

    def scaled(x):
        x *= 2
        x[0] = 1
        return x

    close(vmap(scaled)(x), [scaled(a.copy()) for a in X])
    assert x.tobytes() == X.tobytes()
    assert y.tobytes() == Y.tobytes()


def test_written_memory_is_not_shared():
    """What was read or saved before a write in place keeps its value."""

    def early(x):
        u = np.zeros_like(x)
        u[0] = x[0]
        before, doubled = u.copy(), u * 2
        kept = np.sin(u)
        u[1] = x[1]
        u[0] = x[2]
        return before, doubled, kept, u

    for found, expected in zip(vmap(early)(X), zip(*[early(x) for x in X], strict=True), strict=True):
        close(found, expected)
    of_early = grad(lambda x: sum(np.sum(part**2) for part in early(x)))
    close(vmap(of_early)(X), [of_early(x) for x in X])


def test_rows_are_written_in_place():
    """A loop that writes one row after the other holds one array, also where it is differentiated."""
    x = RANDOM.normal(size=(10, 200, 50))

    def rows(x):
        u = np.zeros_like(x)
        for k in range(len(x)):
            u[k] = x[k] * 0.5
        return u

    vmap(rows)(x)
    assert peak_bytes(lambda: vmap(rows)(x)) < 1.3 * x.nbytes
    of_sum = vmap(grad(lambda x: np.sum(rows(x))))
    of_sum(x)
    assert peak_bytes(lambda: of_sum(x)) < 4 * x.nbytes


def test_shared_operand_stays_one():
    """An operand that is the same for all members is not copied for each, and its product is one product."""
    w = RANDOM.normal(size=(300, 300))
    x = RANDOM.normal(size=(8, 300))
    products = {
        "rows": lambda x, w: x @ w,
        "columns": lambda x, w: w @ x,
        "dot": np.dot,
        "einsum": lambda x, w: np.einsum("i,ij->j", x, w),
    }
    for name, f in products.items():
        close(vmap(f, (0, None))(x, w), np.stack([f(a, w) for a in x]))
        assert peak_bytes(lambda f=f: vmap(f, (0, None))(x, w)) < 0.2 * w.nbytes, name
    matrices = [equation.name for equation in trace(vmap(lambda x: np.tanh(x @ w) @ w), x).equations]
    assert matrices.count("matmul") == 2


def test_program():
    """A batch of gradients is traced into one program, whose runs are those of the batch."""
    f = vmap(grad(loss), (0, None))
    jitted = jit(f)
    close(jitted(X, W), f(X, W))
    close(jitted(Y, W), f(Y, W))
    assert jitted.reasons == []
    program = jitted.program(X, W)
    assert len(program.source.splitlines()) < 200
    close(vmap(jit(grad(loss)), (0, None))(X, W), f(X, W))
    close(jit(vmap(written))(X, Y), vmap(written)(X, Y))
    close(grad(lambda x: np.sum(jit(vmap(written))(x, Y)))(X), grad(lambda x: np.sum(vmap(written)(x, Y)))(X))


def test_indices_that_differ():
    """An index that was computed, or mapped, takes and writes for each member its own elements."""
    labels = np.array([1, 2, 0])
    table = RANDOM.normal(size=(4, 5))
    close(vmap(lambda x, k: x[k])(X, labels), [x[k] for x, k in zip(X, labels, strict=True)])
    close(vmap(lambda t, k: t[k], (None, 0))(table, labels), table[labels])
    close(vmap(lambda t, k: t[1:, k], (None, 0))(table, labels), table[1:, labels].T)
    close(vmap(lambda x: np.take_along_axis(x, np.argsort(-x), 0))(X), -np.sort(-X, axis=1))
    cross = grad(lambda x, k: np.log(np.sum(np.exp(x))) - x[k])
    close(vmap(cross)(X, labels), [cross(x, k) for x, k in zip(X, labels, strict=True)])
    assert vmap(lambda x: x[:0])(X).shape == (3, 0)


def test_containers_and_axes():
    """Axes of arguments and results are given for containers, or for what they begin with; negative ones too."""
    p = OrderedDict(u=X.T, v=[Y, 2.0])

    def f(p, c):
        return {"a": p["u"] * c, "b": (np.sum(p["v"][0] * p["v"][1]), 1.5)}

    found = vmap(f, (OrderedDict(u=-1, v=[0, None]), None), {"a": 1, "b": (0, None)})(p, 3.0)
    close(found["a"], X.T * 3)
    close(found["b"][0], 2 * np.sum(Y, axis=1))
    assert found["b"][1] == 1.5
    close(vmap(lambda x, *, by: x * by, -1, -1)(X, by=2.0), X * 2)
    close(vmap(lambda x: np.ones(2), out_axes=1)(X), np.ones((2, 3)))
    assert vmap(lambda x: None)(X) is None
    close(vmap(lambda n: n * 2)(np.arange(3)), np.arange(3) * 2)


def test_constants_in_a_batch():
    """What does not depend on the members is computed once, and its values can be asked for."""
    asked = []

    def f(x, w):
        scale = np.sum(np.zeros_like(x)) + 2.0
        asked.append(bool(scale > 1) and bool(np.sum(w) < 1e9))
        return x * scale if asked[-1] else x

    close(vmap(f, (0, None))(X, W), X * 2)
    assert asked == [True]
    close(vmap(grad(lambda x: np.sum(x * stop_gradient(x))))(X), X)
    close(grad(lambda x: np.sum(vmap(lambda u: u * stop_gradient(np.sin(u)))(x)))(X), np.sin(X))


EMITTED = {
    "arrays": lambda u, i: u * 2,
    "numbers": lambda u, i: np.sum(u),
    "one for all from step 2 on": lambda u, i: u * 2 if i < 2 else np.ones(4),
    "one for all before step 2": lambda u, i: np.ones(4) if i < 2 else u * 2,
    "Python numbers from step 2 on": lambda u, i: np.sum(u) if i < 2 else 1.0,
}


@pytest.mark.parametrize("emit", EMITTED.values(), ids=EMITTED)
def test_outputs_of_a_loop_within_a_batch(emit):
    """Outputs of members that a gradient inside takes are those of each member, also of batches in batches."""

    def f(u):
        last, out = timeloop(lambda u, i: (0.9 * np.sin(u), emit(u, i)), u, 5, outputs=True, schedule=Revolve(2))
        weights = np.arange(5.0).reshape(5, *[1] * (out.ndim - 1))
        return np.sum(last) + np.sum(np.sin(out) * weights)

    u = np.linspace(0.1, 1, 12).reshape(3, 4)
    pair = np.stack([u, 0.5 * u])
    found = vmap(vmap(grad(f)))(pair)
    assert np.array_equal(found, [[grad(f)(member) for member in members] for members in pair])
    assert np.array_equal(vmap(grad(f))(u), found[0])


@pytest.mark.parametrize("factor", [1, 2])
def test_outputs_of_a_batch_are_no_more_than_without_derivatives(factor):
    """A budget of a gradient in a batch is kept beside the outputs of all steps, which the function alone has, too."""

    def f(u):
        last, out = timeloop(lambda u, i: (0.8 * u + 0.2 * np.sin(u), u * 1.0), u, 33, outputs=True)
        return np.sum(last + 1e-3 * np.mean(out, axis=0))

    u = np.stack([np.linspace(0.2, 1.1, 8192) * k for k in (1.0, 0.9, 1.05)])
    least = 1
    for _ in range(4):
        try:
            vmap(grad(f, budget=Budget(least)))(u)
            break
        except BudgetError as error:
            least = error.least
    bounded = vmap(grad(f, budget=Budget(factor * least)))
    alone = peak_bytes(lambda: vmap(f)(u))
    assert peak_bytes(lambda: bounded(u)) - alone - u.nbytes <= factor * least


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2), None])
def test_time_loops(schedule):
    """A time loop in a batch, differentiated inside or around, with inputs and outputs, is that of each member."""
    forcing = RANDOM.normal(size=(3, 6, 5))

    def run(u, k, forcing):
        def step(u, x):
            u = np.sin(u * k) + 0.1 * np.roll(u, 1) + x
            return u, np.sum(u)

        u, sums = timeloop(step, u, 6, inputs=forcing, outputs=True, schedule=schedule)
        return np.sum(u**2) + np.sum(np.cos(sums))

    k = np.linspace(0.5, 1, 5)
    close(vmap(run, (0, None, 0))(X, k, forcing), [run(x, k, f) for x, f in zip(X, forcing, strict=True)])
    for n in range(3):
        expected = [grad(run, n)(x, k, f) for x, f in zip(X, forcing, strict=True)]
        close(vmap(grad(run, n), (0, None, 0))(X, k, forcing), expected)
        through = grad(lambda *xs: np.sum(vmap(run, (0, None, 0))(*xs)), n)(X, k, forcing)
        close(through, np.sum(expected, axis=0) if n == 1 else expected)
    tangents = (Y, k, forcing)
    close(jvp(vmap(run, (0, None, 0)), (X, k, forcing), tangents)[1],
          [jvp(run, (x, k, f), (y, k, f))[1] for x, y, f in zip(X, Y, forcing, strict=True)])  # fmt: skip
    second = hvp(lambda u: run(u, k, forcing[0]))
    close(vmap(second, (None, 0))(X[0], Y), [second(X[0], y) for y in Y])


def test_loops_in_parts():
    """Loops over lists and functions of inputs, in steps, with a condition on what is the same, and checkpoints."""

    def nested(u, f):
        def step(u, x):
            inner = timeloop(lambda v, i: np.sin(v) + x["a"], u, 2)
            return checkpoint(lambda v: np.tanh(v * f[1]))(inner)

        return np.sum(timeloop(step, u, 3, inputs=[{"a": f[k]} for k in range(3)], schedule=Revolve(1)))

    def counted(u, f):
        def step(state, x):
            return state[0] * np.cos(x), state[1] + 1

        end = timeloop(step, (u, 0), until=lambda s: s[1] >= 2, max_steps=9, inputs=lambda k: f[k])
        return np.sum(end[0])

    forcing = RANDOM.normal(size=(3, 9, 5))
    for run in (nested, counted):
        for n in range(2):
            expected = [grad(run, n)(x, f) for x, f in zip(X, forcing, strict=True)]
            close(vmap(grad(run, n))(X, forcing), expected)
            close(grad(lambda *xs, run=run: np.sum(vmap(run)(*xs)), n)(X, forcing), expected)

def with_inputs(kind, loop):
    """Return a function of three arrays, a loop with each of them in some of its inputs, and 1.0 in one."""
    def run(u, k, c):
        given = [(k, {"f": u}), (c, {"f": k}), (k, {"f": c}), (k * c, {"f": 1.0}), (np.ones(5), {"f": 0.3})]
        inputs = {"list": given, "tuple": tuple(given), "function": lambda i: given[i]}[kind]
        return np.sum(loop(lambda u, x: np.sin(u * x[0]) + x[1]["f"], u, inputs) ** 2)

    return run


def plain_loop(step, u, inputs):
    """What a time loop does."""
    for i in range(5):
        u = step(u, inputs(i) if callable(inputs) else inputs[i])
    return u


@pytest.mark.parametrize("mapped", [(0, 1), (1, 2), (2, 0), (0, 2), (0, 0), (2, 2)])
@pytest.mark.parametrize("kind", ["list", "tuple", "function"])
def test_inputs_of_some_batches(kind, mapped):
    """Inputs that differ in one of two batches, of other sizes, or in none, are those of each member."""
    long, short = RANDOM.normal(size=(3, 5)), RANDOM.normal(size=(2, 5))

    def both(f):
        def of_pair(x, y):
            args = [W[:, 0], W[:, 1], W[:, 2]]
            args[mapped[1]] = args[mapped[1]] + y
            args[mapped[0]] = args[mapped[0]] * x
            return f(*args)

        return of_pair

    found = both(with_inputs(kind, lambda step, u, inputs: timeloop(step, u, 5, inputs=inputs)))
    known = both(with_inputs(kind, plain_loop))
    close(vmap(lambda y: vmap(lambda x: found(x, y))(short))(long), [[known(x, y) for x in short] for y in long])

    def total(f, loop_of_pair):
        return lambda x, y: np.sum(vmap(lambda b: vmap(lambda a: loop_of_pair(x * a, b * y))(short))(long) ** f)

    x, y = long[0], long[1]
    of_found, of_known = total(2, found), total(2, known)
    for n in range(2):
        close(grad(of_found, n)(x, y), grad(of_known, n)(x, y))
        close(vmap(vmap(grad(found, n), (0, None)), (None, 0))(short, long),
              [[grad(known, n)(a, b) for a in short] for b in long])  # fmt: skip
    close(jvp(of_found, (x, y), (y, x))[1], jvp(of_known, (x, y), (y, x))[1])
    close(hvp(lambda x: of_found(x, y))(x, y), hvp(lambda x: of_known(x, y))(x, y))
    close(linearize(lambda y: of_found(x, y), y)[1](x), linearize(lambda y: of_known(x, y), y)[1](x))


@pytest.mark.parametrize("kind", ["list", "tuple", "function"])
def test_inputs_that_are_one_for_all(kind):
    """Inputs that no member has of its own, as arguments of the batch, have their derivatives through it."""
    def total(loop):
        run = with_inputs(kind, loop)
        return lambda us, k, c: np.sum(vmap(lambda u, k, c: run(u * 1.0, k, c), (0, None, None))(us, k, c) ** 2)

    found, known = total(lambda step, u, inputs: timeloop(step, u, 5, inputs=inputs)), total(plain_loop)
    args, tangents = (X, Y[0], Y[1]), (Y, X[0], X[1])
    for n in range(3):
        close(grad(found, n)(*args), grad(known, n)(*args))
    close(jvp(found, args, tangents)[1], jvp(known, args, tangents)[1])
    close(hvp(lambda k: found(X, k, Y[1]))(Y[0], X[0]), hvp(lambda k: known(X, k, Y[1]))(Y[0], X[0]))


def test_loops_of_numbers():
    """A number of the state becomes one for each member; an integer that comes to differ is an error."""
    close(vmap(lambda k: timeloop(lambda u, i: u * k, 1.0, 3))(X[0]), X[0] ** 3)
    with pytest.raises(TraceError, match=r"leaf \[1\].*test_batching\.py.*in_axes=0"):
        vmap(lambda u: timeloop(lambda s, i: (s[0], np.argmax(s[0])), (u, 0), 3))(X)


def test_budget_inside_counts_all_members():
    """A budget of a gradient inside of a batch bounds the bytes of all members, by a schedule or by an error."""
    x = RANDOM.normal(size=(4, 5000))

    def run(u):
        return np.sum(timeloop(lambda u, i: np.sin(u) * np.cos(u), u, 64) ** 2)

    budget = 24 * x.nbytes
    f = vmap(grad(run, budget=Budget(budget)))
    close(f(x), [grad(run)(u) for u in x])
    assert peak_bytes(lambda: f(x)) < budget + 4 * x.nbytes


def cubes():
    """Return a cube of plain code, with its rules, for one member after the other, and as a function of all."""

    def plainly(x):
        return np.array([float(v) ** 3 for v in np.asarray(x)])

    rules = {"vjp": lambda g, x: g * 3 * np.asarray(x) ** 2, "jvp": lambda t, x: t * 3 * np.asarray(x) ** 2}
    calls = []

    def batch(mapped, x):
        calls.append(mapped)
        return x**3

    whole = {"vjp": lambda g, x: g * 3 * x**2, "jvp": lambda t, x: t * 3 * x**2}
    return primitive(plainly, **rules), primitive(plainly, **whole, batch=batch), calls


def test_users_primitives():
    """A primitive of plain code is done for one member after the other, its rules too; with batch= for all at once."""
    alone, together, calls = cubes()
    for cube in (alone, together):
        close(vmap(cube)(X), X**3)
        close(vmap(grad(lambda x, cube=cube: np.sum(cube(x))))(X), 3 * X**2)
        close(grad(lambda x, cube=cube: np.sum(vmap(cube)(x)))(X), 3 * X**2)
        close(vmap(lambda x, cube=cube: jvp(cube, (x,), (x,))[1])(X), 3 * X**3)
        close(jvp(vmap(cube), (X,), (X,))[1], 3 * X**3)
    assert calls[0] == (True,)
    with pytest.raises(TraceError, match=r"plainly.*test_batching\.py.*batch="):
        vmap(alone)(X[:0])
    assert vmap(together)(X[:0]).shape == (0, 5)
    with pytest.raises(TraceError, match=r"shapes \[\(\d,\), \(\d,\)"):
        vmap(primitive(lambda x: x[x > 0]))(np.array([[1.0, 2.0], [-1.0, 1.0]]))
    with pytest.raises(TraceError, match=r"batch rule of .* shape"):
        vmap(primitive(lambda x: x, batch=lambda mapped, x: np.sum(x)))(X)


def masked(x):
    """Write an element, which is a view, where a mask says: the value is one for all places of a member."""
    u = x * 1.0
    u[x > 0.5] = u[0]
    return u


def test_a_mask_of_each_member_takes_a_view():
    """A view of the array that is written is a value like another; one with axes is refused with what to write."""
    close(vmap(masked)(X), np.stack([masked(x) for x in X]))
    slopes = np.stack([grad(lambda x: np.sum(masked(x) ** 2))(x) for x in X])
    close(vmap(grad(lambda x: np.sum(masked(x) ** 2)))(X), slopes)

    def part(x):
        u = x * 1.0
        u[x > 0.5] = u[:1]
        return u

    for call in (lambda: vmap(part)(X), lambda: jit(part)(X[0])):
        with pytest.raises(TraceError, match=r"test_batching\.py.*np\.where\(mask"):
            call()


def counted(x):
    """Use a function without a rule."""
    return np.setxor1d(x, x)


REFUSED = (
    (lambda x: x if np.sum(x) > 0 else -x, TraceError, r"`if`.*test_batching\.py.*member of vmap.*np\.where"),
    (lambda x: x[x > 0], TraceError, r"test_batching\.py.*np\.where\(mask"),
    (lambda x: range(int(x[0])), TraceError, r"`int`.*test_batching\.py"),
    (np.nonzero, TraceError, r"nonzero at .*test_batching\.py.*member of vmap"),
    (lambda x: f"{x[0]:.2f}", TraceError, r"text .*test_batching\.py"),
    (lambda x: W[np.argmax(x)], TraceError, r"test_batching\.py.*table\[x\]"),
    (counted, RuleMissingError, r"setxor1d.*test_batching\.py"),
    (lambda x: "text", TypeError, "vmap was given a function that returned 'text'"),
)


@pytest.mark.parametrize(("function", "error", "message"), REFUSED)
def test_refused(function, error, message):
    """What has no one value for all members is an error with the user's line and what to do."""
    with pytest.raises(error, match=message):
        vmap(function)(X)


WRONG = (
    (0, 0, (X, Y[:2]), r"argument 0 has 3 along axis 0; argument 1 has 2 along axis 0"),
    ((0,), 0, (X, Y), r"is for 1 arguments, and the function was called with 2"),
    ((0, 2), 0, (X, Y), r"axis 2 of argument 1, which has the shape \(3, 5\)"),
    (0, 0, (X, 2.0), r"axis 0 of argument 1, which is a number"),
    (None, 0, (X, Y), r"vmap has no members"),
    (({"a": 0}, 0), 0, (X, Y), r"in_axes has \{'a': 0\}"),
    (0, None, (X, Y), r"out_axes is None for the result, which differs"),
    (0, 2, (X, Y), r"axis 2 of the result, which has the type float64\[5\]"),
    (0, (0, 0), (X, Y), r"out_axes has \(0, 0\)"),
    ((0, True), 0, (X, Y), r"in_axes has True"),
)


@pytest.mark.parametrize(("in_axes", "out_axes", "args", "message"), WRONG)
def test_wrong_axes(in_axes, out_axes, args, message):
    """Axes that do not fit are an error that says which leaf has which length or form."""
    with pytest.raises(ValueError, match=message):
        vmap(lambda x, y: x + y, in_axes, out_axes)(*args)
    with pytest.raises(TypeError, match="argument 1, which is of type str"):
        vmap(lambda x, y: x)(X, "text")


def test_vectors_of_registered_types():
    """A vector that is the same for all members can be used; members of one, and Jacobians, are refused."""
    field = random_field()
    found = vmap(lambda x, f: x[:4] * velocity(product(f, f)), (0, None))(X, field)
    close(found, X[:, :4] * velocity(product(field, field)))
    kept = vmap(lambda x, f: f, (0, None), None)(X, field)
    assert same_bits(kept, field)
    with pytest.raises(TypeError, match="returned a vector"):
        vmap(lambda x, f: f, (0, None))(X, field)
    with pytest.raises(TypeError, match="argument 1, a vector of a registered type"):
        vmap(lambda x, f: x)(X, field)
    with pytest.raises(TraceError, match=r"test_batching\.py.*no members"):
        vmap(lambda x: velocity(spread(x[:4], field)))(X)
    with pytest.raises(TypeError, match="arguments of a function whose jacobian"):
        jacobian(velocity)(field)
    for mode in ("forward", "reverse"):
        with pytest.raises(TypeError, match="outputs of a function whose jacobian"):
            jacobian(lambda a: Field(field.u, field.p), mode=mode)(X[0])


def test_results_belong_to_the_caller():
    """No result shares memory with an argument, and none is read-only."""
    for f in (lambda x: x, lambda x: x[1:], lambda x: 2.0, lambda x: np.broadcast_to(x, (2, 5)), lambda x: W):
        for axis in (0, -1):
            found = vmap(f, out_axes=axis)(X)
            assert found.flags.writeable
            assert not np.may_share_memory(found, X)
            assert not np.may_share_memory(found, W)


def test_escaped_array():
    """An array of a batch that is used after it is an error."""
    escaped = []
    vmap(lambda x: escaped.append(x) or x)(X)
    with pytest.raises(TraceError, match=r"test_batching\.py.*vmap had called"):
        escaped[0] * 2


def test_nothing_is_left_behind():
    """No reference cycle, and no array that lives on, after values, derivatives, programs and errors."""

    def refused(x):
        try:
            vmap(lambda x: np.sum(x * 2) > 0 and x)(x)
        except TraceError:
            return
        raise AssertionError("a value was asked for")

    calls = (
        lambda x: vmap(written)(x, x),
        lambda x: vmap(grad(loss), (0, None))(x, W),
        grad(lambda x: np.sum(vmap(written)(x, x))),
        vmap(grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 4)))),
        grad(lambda x: np.sum(vmap(checkpoint(np.sin))(x))),
        lambda x: vmap(lambda x, k: x[k])(x, np.array([0, 1, 1])),
    )
    check_leaves_nothing((*calls, refused), X)


@pytest.mark.parametrize("write", [
    lambda a: a.__setitem__(0, 0.0), lambda a: np.put(a, [0], 0.0), lambda a: np.fill_diagonal(a, 0.0),
], ids=["index", "put", "fill_diagonal"])  # fmt: skip
def test_members_of_a_batch_that_is_read_only_are_written_each(write):
    """Members of a batch that cannot be written are their own, and it stays as it is; the first was taken for all."""
    batch = np.random.default_rng(3).normal(size=(4, 2, 2))
    given = np.frombuffer(batch.tobytes()).reshape(batch.shape)

    def f(a):
        write(a)
        return np.sum(a**2)

    expected = [f(member.copy()) for member in batch]
    np.testing.assert_allclose(vmap(f)(given), expected)
    np.testing.assert_array_equal(given, batch)
    np.testing.assert_allclose(vmap(grad(f))(given), [grad(f)(member) for member in batch])
