"""`jacobian` and `hessian`: whole derivatives, row by row or many at once, in little more memory than they take."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import check_leaves_nothing, peak_bytes

from ebbtide import checkpoint, grad, hessian, hvp, jacobian, jit, jvp, primitive, timeloop, vjp, vmap
from ebbtide.schedules import Revolve, StoreAll

RANDOM = np.random.default_rng(11)
A = RANDOM.normal(size=(7, 5))
X = RANDOM.normal(size=5)
CHUNKS = (None, 1, 3, 7, 100)


def residual(x):
    """Seven outputs of five numbers."""
    return np.tanh(A @ x) * np.sum(x) + np.roll(np.append(x, x[:2]), 1) ** 2


def cost(x):
    """A function with a full Hessian."""
    return np.sum(np.sin(A @ x) ** 2) * x[0]


def close(found, expected):
    """Compare to rounding, shapes and dtypes exactly."""
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def slopes(f, x, step=1e-6):
    """Central differences along each element of a vector, as columns."""
    return np.stack([(f(x + step * d) - f(x - step * d)) / (2 * step) for d in np.eye(len(x))], axis=-1)


@pytest.mark.parametrize("mode", ["forward", "reverse", None])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_jacobian(mode, chunk):
    """Rows are gradients, columns are tangents, and both are slopes, in chunks of any size."""
    found = jacobian(residual, mode=mode, chunk_size=chunk)(X)
    close(found, [grad(lambda x, k=k: residual(x)[k])(X) for k in range(7)])
    close(found, np.stack([jvp(residual, (X,), (d,))[1] for d in np.eye(5)], axis=-1))
    np.testing.assert_allclose(found, slopes(residual, X), atol=1e-8)
    assert found.flags.writeable
    wide = jacobian(lambda x: residual(x)[:3], mode=mode, chunk_size=chunk)(X)
    close(wide, found[:3])


@pytest.mark.parametrize("chunk", CHUNKS)
def test_hessian(chunk):
    """A Hessian is symmetric, its columns are products with unit vectors, and it is the slope of the gradient."""
    found = hessian(cost, chunk_size=chunk)(X)
    close(found, np.stack([hvp(cost)(X, d) for d in np.eye(5)], axis=-1))
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    np.testing.assert_allclose(found, slopes(grad(cost), X), atol=1e-6)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_structure(mode):
    """In the place of each output is a container of the argument's form, with the shapes of both."""
    p = {"u": RANDOM.normal(size=2), "k": 1.5}
    y = RANDOM.normal(size=3)

    def f(p, y):
        return {"a": p["u"][:, None] * y, "b": (np.sum(p["k"] * y), 3.0), "c": None}

    found = jacobian(f, (0, 1), mode)(p, y)
    close(found["a"][0]["u"], np.einsum("ik,j->ijk", np.eye(2), y))
    close(found["a"][0]["k"], np.zeros((2, 3)))
    close(found["a"][1], np.einsum("i,jk->ijk", p["u"], np.eye(3)))
    assert type(found["b"][0][0]["k"]) is np.float64
    close(found["b"][0][0]["k"], np.sum(y))
    close(found["b"][0][1], np.full(3, 1.5))
    assert not np.any(found["b"][1][1])
    assert found["c"] is None
    alone = jacobian(f, -1, mode)(p, y)
    close(alone["a"], found["a"][1])
    second = hessian(lambda p, y: np.sum(p["u"]) ** 2 * np.sum(y**3) * p["k"] ** 2, (0, 1))(p, y)
    close(second[0]["u"][1], np.outer(np.ones(2), 6 * 2.25 * np.sum(p["u"]) * y**2))
    close(second[1][0]["u"], second[0]["u"][1].T)
    close(second[0]["k"][0]["k"], 2 * np.sum(p["u"]) ** 2 * np.sum(y**3))


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_edges(mode):
    """No outputs, no inputs, outputs that depend on nothing, numbers, and dtypes."""
    assert jacobian(lambda x: x[:0], mode=mode)(X).shape == (0, 5)
    assert jacobian(lambda x: x * 2, mode=mode)(np.zeros(0)).shape == (0, 0)
    assert jacobian(lambda x: np.ones(3), mode=mode)(np.zeros(0)).shape == (3, 0)
    close(jacobian(lambda x: np.ones(3), mode=mode)(X), np.zeros((3, 5)))
    assert jacobian(lambda x: 3.0, mode=mode)(2.0) == 0
    assert jacobian(np.sin, mode=mode)(1.0) == np.cos(1.0)
    assert type(jacobian(np.sin, mode=mode)(1.0)) is np.float64
    single = jacobian(np.sin, mode=mode)(X.astype(np.float32))
    assert single.dtype == np.float32
    assert jacobian(lambda x: np.sin(x)[None] * X[:, None], mode=mode)(X).shape == (5, 5, 5)


def test_nesting():
    """Jacobians are functions like others: of derivatives, in derivatives, in batches and in programs."""
    for mode in ("forward", "reverse"):
        for chunk in (None, 2):
            f = jacobian(residual, mode=mode, chunk_size=chunk)
            close(vmap(f)(np.stack([X, 2 * X])), np.stack([f(X), f(2 * X)]))
            close(jit(f)(X), f(X))
            second = jacobian(f, mode=mode, chunk_size=chunk)(X)
            close(second, jacobian(jacobian(residual))(X))
            through = grad(lambda x, f=f: np.sum(f(x) ** 2))(X)
            close(through, 2 * np.einsum("ij,ijk->k", f(X), second))
            close(jvp(f, (X,), (X,))[1], second @ X)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2), None])
def test_loops_and_checkpoints(schedule):
    """The cotangents and tangents of all rows and columns go through a time loop at once, under its schedule."""

    def run(u):
        return timeloop(lambda u, i: checkpoint(np.sin)(A[:5] @ u), u, 6, schedule=schedule)

    rows = [grad(lambda u, k=k: run(u)[k])(X) for k in range(5)]
    for mode in ("forward", "reverse"):
        close(jacobian(run, mode=mode)(X), rows)
        close(jacobian(run, mode=mode, chunk_size=2)(X), rows)
    found = hessian(lambda u: np.sum(run(u) ** 2))(X)
    close(found, np.stack([hvp(lambda u: np.sum(run(u) ** 2))(X, d) for d in np.eye(5)], axis=-1))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_products_with_what_is_traced_have_the_same_bits(mode, chunk):
    """A matrix that is traced lies as a plain one does: a checkpointed function rounds alike when it runs again."""
    weights = RANDOM.normal(size=(9, 3))

    def product(x):
        found = jacobian(lambda x: np.sin(x).T @ weights, mode=mode, chunk_size=chunk)(np.outer(x, x))
        return np.reshape(found, (27, 81)) @ np.cos(np.arange(81.0) * x[0])

    x = RANDOM.normal(size=9)
    value, pullback = vjp(product, x)
    assert value.tobytes() == product(x).tobytes()
    assert jvp(product, (x,), (x,))[0].tobytes() == value.tobytes()
    held, pull = vjp(checkpoint(product), x)
    assert pull(held)[0].tobytes() == pullback(held)[0].tobytes()


def test_rules_of_users():
    """A rule of plain code is done for one row after the other."""
    cube = primitive(
        lambda x: np.array([float(v) ** 3 for v in np.asarray(x)]),
        vjp=lambda g, x: g * 3 * np.asarray(x) ** 2,
        jvp=lambda t, x: t * 3 * np.asarray(x) ** 2,
    )
    for mode in ("forward", "reverse"):
        close(jacobian(cube, mode=mode)(X), np.diag(3 * X**2))


def test_complex():
    """A complex derivative is given where one array holds it, and refused where it does not."""
    z = X + 1j * X[::-1]
    for mode in ("forward", "reverse", None):
        close(jacobian(np.sin, mode=mode, holomorphic=True)(z), np.diag(np.cos(z)))
        with pytest.raises(TypeError, match="holomorphic=True"):
            jacobian(np.conj, mode=mode)(z)
    close(jacobian(lambda x: np.exp(1j * x))(X), np.diag(1j * np.exp(1j * X)))
    with pytest.raises(TypeError, match="needs forward mode"):
        jacobian(lambda x: np.exp(1j * x), mode="reverse")(X)
    close(jacobian(lambda z: np.abs(z) ** 2)(z), np.diag(2 * np.conj(z)))  # as grad has it
    with pytest.raises(TypeError, match="needs reverse mode"):
        jacobian(lambda z: np.abs(z) ** 2, mode="forward")(z)
    with pytest.raises(TypeError, match="Argument 0 of a hessian is complex"):
        hessian(lambda z: np.sum(np.abs(z) ** 2))(z)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_peak(mode):
    """In chunks the peak is a tenth above the result and what one chunk takes; by default 2 MiB above it."""
    n = 600
    w, x = RANDOM.normal(size=(n, n)), RANDOM.normal(size=n)

    def f(x):
        return np.sin(w @ x)

    result = 8 * n * n
    one = jacobian(f, mode=mode, chunk_size=10)
    one(x)
    chunk = peak_bytes(lambda: jacobian(lambda x: f(x)[:10], mode="reverse")(x))
    assert peak_bytes(lambda: one(x)) < 1.1 * result + chunk
    assert peak_bytes(lambda: one(x)) < 1.15 * result
    assert peak_bytes(lambda: jacobian(f, mode=mode)(x)) < result + (1 << 21)


def test_peak_of_a_hessian():
    """A hessian in chunks has its peak a tenth above the result and what the columns of one chunk take, too."""
    n, columns = 300, 10
    w, x = RANDOM.normal(size=(n, n)) / n, RANDOM.normal(size=n)
    gradient = grad(lambda x: np.sum(np.sin(w @ x) ** 2))
    one = hessian(lambda x: np.sum(np.sin(w @ x) ** 2), chunk_size=columns)
    one(x)
    of_some = jacobian(lambda some: gradient(np.concatenate([some, x[columns:]])), mode="forward")
    chunk = peak_bytes(lambda: of_some(x[:columns]))
    assert peak_bytes(lambda: one(x)) < 1.1 * 8 * n * n + chunk


def test_one_run():
    """In reverse mode the function runs once, whatever the number of rows; in forward mode once for each chunk."""
    runs = []

    def f(x):
        runs.append(1)
        return np.sin(x)

    jacobian(f, mode="reverse", chunk_size=2)(X)
    assert len(runs) == 1
    jacobian(f, mode="forward", chunk_size=2)(X)
    assert len(runs) == 1 + 3


def test_wrong_arguments():
    """Modes, chunks, functions and arguments that are none."""
    with pytest.raises(ValueError, match="mode='backward'"):
        jacobian(residual, mode="backward")
    for chunk in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="chunk_size="):
            jacobian(residual, chunk_size=chunk)
        with pytest.raises(ValueError, match="chunk_size="):
            hessian(cost, chunk_size=chunk)
    with pytest.raises(TypeError, match="only floating-point"):
        jacobian(residual)(np.arange(5))
    with pytest.raises(TypeError, match="jacobian was given a function that returned 'text'"):
        jacobian(lambda x: "text")(X)
    with pytest.raises(TypeError, match="scalar output"):
        hessian(residual)(X)
    with pytest.raises(TypeError, match="argument 1"):
        jacobian(residual, 1)(X)


def test_nothing_is_left_behind():
    """No reference cycle, and no argument or saved value that lives on."""
    calls = (
        jacobian(residual, mode="reverse"),
        jacobian(residual, mode="forward", chunk_size=2),
        hessian(cost),
    )
    check_leaves_nothing(calls, X)


def test_pullback_is_usable_once_more():
    """The rows of a Jacobian are those that a retained pullback gives."""
    value, pullback = vjp(residual, X, retain=True)
    close(jacobian(residual, mode="reverse")(X), [pullback(g)[0] for g in np.eye(len(value))])


@pytest.mark.parametrize("chunk", [0, -1, 1.5, 2.0, "2", True, np.nan, np.inf, [1]], ids=str)
def test_rows_of_a_chunk_are_a_positive_number(chunk):
    """What is no number of rows is refused when it is given; one of NumPy is one."""
    for transform in (jacobian, hessian):
        with pytest.raises(ValueError, match=r"chunk_size=.* is no positive number of rows"):
            transform(cost, chunk_size=chunk)
    assert np.array_equal(jacobian(residual, chunk_size=np.int64(2))(X), jacobian(residual)(X))


@pytest.mark.parametrize("mode", [None, "reverse", "forward"])
def test_an_argument_without_arrays_has_no_derivatives(mode):
    """A container with nothing in it is no error: its derivative is one, too."""
    assert jacobian(lambda x: 1.0, mode=mode)({}) == {}
    assert jacobian(lambda x: (1.0, 2.0), mode=mode)(None) == (None, None)
    assert hessian(lambda x: 1.0)({}) == {}
