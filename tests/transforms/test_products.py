"""Products with Hessians and Gauss-Newton matrices."""

from __future__ import annotations

import gc
from functools import partial
from itertools import count

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import (
    Budget,
    BudgetError,
    CotangentError,
    DeterminismError,
    gauss_newton_product,
    grad,
    hvp,
    jvp,
    linearize,
    timeloop,
    vjp,
    vmap,
)

X = np.linspace(0.2, 1.3, 5)
W = np.cos(np.arange(35.0)).reshape(7, 5)


def energy(x):
    """A function whose Hessian is full."""
    return np.sum(np.tanh(W @ x) ** 2) + np.sum(x) ** 3


def residual(x):
    """More residuals than unknowns."""
    return np.tanh(W @ x) * x[0] - 0.1


def dense(product, x):
    """The matrix of a product, column by column."""
    return np.stack([product(x, e) for e in np.eye(len(x))], axis=1)


def jacobian(f, x):
    """The matrix of a derivative, by complex steps."""
    return np.stack([np.imag(f(x + 1e-30j * e)) / 1e-30 for e in np.eye(len(x))], axis=1)


def test_hessian():
    """The product is that of the matrix of second differences, which is symmetric."""
    matrix = dense(hvp(energy), X)
    e = 1e-5
    second = np.stack([(grad(energy)(X + e * d) - grad(energy)(X - e * d)) / (2 * e) for d in np.eye(5)], axis=1)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12)
    np.testing.assert_allclose(matrix, second, rtol=1e-6)


def test_hessian_of_chosen_arguments():
    """Several arguments take and give tuples; the others, and keywords, are constants."""

    def f(a, n, b, k=1.0):
        return np.sum(a["w"] ** 3) * b * n * k

    a, b, v = {"w": X}, 0.7, ({"w": np.cos(X)}, 0.3)
    found = hvp(f, argnums=(0, 2))(a, 2, b, v, k=3.0)
    np.testing.assert_allclose(found[0]["w"], 6 * (6 * X * 0.7 * np.cos(X) + 3 * X**2 * 0.3))
    np.testing.assert_allclose(found[1], 6 * np.sum(3 * X**2 * np.cos(X)))
    assert type(found[1]) is np.float64
    (alone,) = (hvp(f, argnums=-1)(a, 2, b, 0.3),)
    assert alone == 0.0


def test_products_are_the_callers():
    """A product shares no memory with the vector, has the dtype of the argument, and is an array for an array."""
    for x in (X, X.astype(np.float32), np.array(0.3), 0.3):
        v = np.cos(x)
        for product in (hvp(lambda x: np.sum(x * x) / 2), gauss_newton_product(lambda x: x)):
            found = product(x, v)
            np.testing.assert_allclose(found, v, rtol=1e-6)
            assert np.asarray(found).dtype == np.asarray(x).dtype
            assert isinstance(found, np.ndarray) == isinstance(x, np.ndarray)
            assert not np.shares_memory(found, v)


def test_hessian_of_complex_arguments():
    """The product is the change of the gradient, real-linear."""
    z, v = X[:3] + 0.3j * np.cos(X[:3]), np.sin(X[:3]) - 1j

    def f(z):
        return np.sum(np.abs(z * z) ** 2) + np.sum(np.real(z**3))

    e = 1e-6
    expected = (grad(f)(z + e * v) - grad(f)(z - e * v)) / (2 * e)
    np.testing.assert_allclose(hvp(f)(z, v), expected, rtol=1e-7)


def test_gauss_newton():
    """Without a loss it is J^T J; with one J^T H J; symmetric, with no negative eigenvalue."""
    j = jacobian(residual, X)
    np.testing.assert_allclose(dense(gauss_newton_product(residual), X), j.T @ j, rtol=1e-12)

    def loss(r):
        return np.log(np.sum(np.exp(r)))

    matrix = dense(gauss_newton_product(residual, loss), X)
    np.testing.assert_allclose(matrix, j.T @ dense(hvp(loss), residual(X)) @ j, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-10, atol=1e-14)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12


def test_gauss_newton_is_the_hessian_of_linear_residuals():
    """Where the residual is linear nothing of the Hessian is left out, whatever the loss."""

    def loss(r):
        return np.sum(np.sqrt(1 + r * r))

    found = dense(gauss_newton_product(lambda x: W @ x - 1.0, loss), X)
    np.testing.assert_allclose(found, dense(hvp(lambda x: loss(W @ x - 1.0)), X), rtol=1e-12)


def test_gauss_newton_of_containers():
    """Arguments, outputs and losses may be containers; constants among the outputs count for nothing."""

    def f(p):
        return {"a": W[:, :3] @ p["u"] * p["k"], "b": (np.sin(p["u"]), 2.0)}

    p, v = {"u": X[:3], "k": 0.7}, {"u": np.cos(X[:3]), "k": -0.4}
    found = gauss_newton_product(f)(p, v)

    def flat(x):
        out = f({"u": x[:3], "k": x[3]})
        return np.concatenate([out["a"], out["b"][0]])

    j = jacobian(flat, np.append(p["u"], p["k"]))
    expected = j.T @ (j @ np.append(v["u"], v["k"]))
    np.testing.assert_allclose(np.append(found["u"], found["k"]), expected, rtol=1e-12)

    def loss(out):
        return np.sum(out["a"] ** 2) / 2 + np.sum(out["b"][0] ** 2) / 2

    again = gauss_newton_product(f, loss)(p, v)
    np.testing.assert_allclose(np.append(again["u"], again["k"]), expected, rtol=1e-12)


def test_gauss_newton_of_complex_residuals():
    """Half the sum of squares of absolute values: real parts and imaginary parts are residuals alike."""

    def f(x):
        return np.exp(1j * (W @ x)) * x[0]

    def parts(x):
        return np.concatenate([np.cos(W @ x) * x[0], np.sin(W @ x) * x[0]])

    expected = dense(gauss_newton_product(parts), X)
    np.testing.assert_allclose(dense(gauss_newton_product(f), X), expected, rtol=1e-11, atol=1e-13)
    stated = gauss_newton_product(f, lambda r: np.sum(np.abs(r) ** 2) / 2)
    np.testing.assert_allclose(dense(stated, X), expected, rtol=1e-10, atol=1e-12)


def test_gauss_newton_of_chosen_arguments():
    """Several arguments take and give tuples."""
    found = gauss_newton_product(lambda a, n, b: a * b * n, argnums=(0, 2))(X, 2, 0.5, (X, 1.0))
    np.testing.assert_allclose(found[0], 2 * 0.5 * 2 * (0.5 * X + X), rtol=1e-12)
    np.testing.assert_allclose(found[1], np.sum(2 * X * 2 * (0.5 * X + X)), rtol=1e-12)


def test_wrong_vectors():
    """A vector of another structure, shape or dtype is refused with both."""
    for product in (hvp(energy), gauss_newton_product(residual)):
        for v in ((X,), X[:2], X + 1j):
            with pytest.raises(CotangentError):
                product(X, v)
        with pytest.raises(TypeError, match="after them, the vector"):
            product(X)
    for v in (1.0, np.ones((2, *X.shape))):
        with pytest.raises(CotangentError, match="tuple with a vector for each"):
            hvp(lambda x, y: np.sum(x * y), (0, 1))(X, X, v)
    with pytest.raises(TypeError, match="scalar"):
        hvp(residual)(X, X)
    with pytest.raises(TypeError, match="scalar"):
        gauss_newton_product(residual, lambda r: r)(X, X)


def test_a_residual_that_is_not_deterministic():
    """Two runs with different outputs are an error, not a wrong product."""
    numbers = count(1.0)
    with pytest.raises(DeterminismError, match="other outputs"):
        gauss_newton_product(lambda x: x * next(numbers))(X, X)


def test_padding_of_extended_floats_is_no_difference():
    """The bytes of an extended float that mean nothing are other ones in each array, and the residual is the same."""
    x = np.linspace(0.1, 1.0, 6).astype(np.longdouble)
    for _ in range(10):
        found = gauss_newton_product(lambda u: 2 * np.sin(u))(x, np.ones_like(x))
    np.testing.assert_allclose(found, 4 * np.cos(x) ** 2, rtol=1e-15)


def test_a_residual_that_is_one_for_all_members():
    """Of two runs one may have arrays of all members where the other has one: that tells nothing of the values."""
    def loop(u):
        return timeloop(lambda u, i: np.sin(u) * 0.7, u, 3)

    def in_python(u):
        for _ in range(3):
            u = np.sin(u) * 0.7
        return u

    def total(x, f):
        return np.sum(vmap(lambda v: gauss_newton_product(f)(x, v))(np.stack([x, x * x])) ** 2)

    found, expected = (grad(lambda x, f=f: total(x, f))(X) for f in (loop, in_python))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_budgets():
    """A product keeps within its budget, which is refused where it is too small."""
    x = np.linspace(0, 1, 100_000)

    def chain(x):
        for _ in range(6):
            x = np.sin(x) * x
        return x

    v = np.cos(x)
    alone = peak_bytes(lambda: jvp(chain, (x,), (v,)))
    for product, f in ((hvp, lambda x: np.sum(chain(x))), (gauss_newton_product, chain)):
        with pytest.raises(BudgetError) as caught:
            product(f, budget=Budget(memory=3 * x.nbytes))(x, v)
        budget = Budget(memory=caught.value.least)
        expected = product(f)(x, v)
        np.testing.assert_array_equal(product(f, budget=budget)(x, v), expected)
        bounded = product(f, budget=budget)
        assert peak_bytes(partial(bounded, x, v)) <= alone + budget.memory


def test_one_budget_for_all_of_a_product():
    """What the residual saved counts while the product with the loss is made; the least that is named does."""
    x = np.linspace(0, 1, 20_000)
    v = np.cos(x)

    def chain(x, steps):
        for _ in range(steps):
            x = np.sin(x)
        return x

    def residual(x):
        return chain(x, 20)

    def loss(r):
        return np.sum(chain(r, 9) ** 2)

    expected = gauss_newton_product(residual, loss)(x, v)
    alone = peak_bytes(lambda: jvp(lambda y: loss(residual(y)), (x,), (v,)))
    with pytest.raises(BudgetError) as caught:
        gauss_newton_product(residual, loss, budget=Budget(25 * x.nbytes))(x, v)
    least = caught.value.least
    product = gauss_newton_product(residual, loss, budget=Budget(least))
    assert np.array_equal(product(x, v), expected)
    assert peak_bytes(lambda: product(x, v)) - alone <= least


def test_nothing_is_left():
    """Products leave no cycle."""
    gc.collect()
    gc.disable()
    try:
        hvp(energy)(X, X)
        gauss_newton_product(residual, lambda r: np.sum(r**4))(X, X)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_products_agree():
    """J v and J^T w of all the ways to them fit together."""
    v, w = np.cos(X), np.sin(np.arange(7.0))
    _, push = linearize(residual, X)
    _, pull = vjp(residual, X, retain=True)
    np.testing.assert_allclose(w @ push(v), pull(w)[0] @ v, rtol=1e-13)
    np.testing.assert_array_equal(pull(push(v))[0], gauss_newton_product(residual)(X, v))
