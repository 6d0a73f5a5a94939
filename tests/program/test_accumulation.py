"""Terms that are added where their sum is: which sums take them, and that they are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ebbtide import grad, jit, trace, vjp
from ebbtide.program.accumulation import add_products, add_scatters, plus_product, plus_scatter
from ebbtide.program.evaluate import evaluate

X, W, T = (np.random.default_rng(k).standard_normal((4, 4)) for k in range(3))
INDEX = np.array([0, 2, 2])


def names(program):
    """The operations, in order."""
    return [equation.name for equation in program.equations]


def parts(x):
    """Use parts of a matrix, so that its cotangent is a sum of scatters."""
    return np.sum(np.sin(x[1:]) * 2) + np.sum(np.cos(x[:, ::2])) + np.sum(x * x)


def used_twice(x, w, t):
    """Use a product in a sum and beside it."""
    product = x @ w
    return (t + product) * np.sin(product)


def returned(x, w, t):
    """Return a sum and its term."""
    product = x @ w
    return t + product, product


# What a function gives -> how many of its sums take a term.
SUMS = {
    "a sum": (lambda x, w, t: t + x @ w, 1),
    "the other way round": (lambda x, w, t: x @ w + t, 1),
    "two terms": (lambda x, w, t: t + x @ w + w @ x, 2),
    "sum of two terms": (lambda x, w, t: x @ w + w @ x, 1),
    "the double of a term": (lambda x, w, t: np.add(*[x @ w] * 2), 0),
    "a term that is used twice": (used_twice, 0),
    "a term that is a result": (returned, 0),
    "a sum that broadcasts": (lambda x, w, t: t[0] + x @ w, 0),
    "a sum with a number": (lambda x, w, t: 2.0 + x @ w, 0),
    "a product of vectors": (lambda x, w, t: t[0] + x @ w[0], 0),
    "a stack": (lambda x, w, t: np.stack([t, t]) + np.stack([x, t]) @ w, 0),
    "another dtype": (lambda x, w, t: t + x.astype(np.float32) @ w.astype(np.float32), 0),
    "a difference": (lambda x, w, t: t - x @ w, 0),
}


@pytest.mark.parametrize("name", SUMS)
def test_products(name):
    """A sum takes a product of matrices of its own type that nothing else uses, and has the numbers that it had."""
    f, count = SUMS[name]
    program = trace(f, X, W, T)
    added = add_products(program)
    assert names(added).count("add_product") == count
    assert names(added).count("matmul") == names(program).count("matmul") - count
    for one, two in zip(evaluate(added, [X, W, T]), evaluate(program, [X, W, T]), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-13, atol=1e-14)
        assert one.dtype == two.dtype


def test_parts():
    """The cotangents of parts are added to those elements alone, and no array of zeros is made for them."""
    program = trace(grad(parts), X)
    added = add_scatters(program)
    assert (names(program).count("scatter"), names(program).count("add_scatter")) == (2, 0)
    assert (names(added).count("scatter"), names(added).count("add_scatter")) == (0, 2)
    assert np.array_equal(evaluate(added, [X])[0], evaluate(program, [X])[0])


# Indices of parts, and how many sums are made with them: with the whole array as one more term, and without.
ZEROS = {
    "apart": ((0, 1, 2), 3, 2),
    "neighbors": ((slice(1, -1), slice(2, None), slice(None, -2)), 3, 2),
    "columns": (((slice(None), slice(None, None, 2)), (slice(None), slice(1, None, 2)), (..., -1)), 3, 2),
    "backwards": ((slice(None, None, -2), (1, slice(None, None, -3))), 2, 1),
    "an element": (((3, 3), (0, 0), (3, 3)), 3, 2),
    "inside": (((slice(1, -1), slice(1, -1)), (slice(2, -2), slice(2, -2))), 2, 1),
    "nothing": ((slice(2, 2), 1), 2, 1),
    "too many": (((slice(None, None, 4), slice(None, None, 5)),), 0, 0),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("with_whole", [True, False])
@pytest.mark.parametrize("name", ZEROS)
def test_the_sign_of_zero(name, with_whole, dtype):
    """What is not in a part has 0.0 added to it: each sum has the bits of that of whole arrays, also -0.0 and 0.0."""
    indices, *counts = ZEROS[name]

    def f(x, *factors):
        terms = [np.sum(x[index] * factor) for index, factor in zip(indices, factors, strict=False)]
        return sum(terms, np.sum(x * factors[-1]) if with_whole else 0.0)

    x, random = np.ones((10, 10), dtype), np.random.default_rng(0)
    shapes = [np.shape(x[index]) for index in indices]
    factors = [np.asarray(random.choice([-0.0, -0.0, 0.0, 1.0], shape), dtype) for shape in (*shapes, x.shape)]
    pull = lambda *args: vjp(lambda x: f(x, *args[1:]), args[0])[1](dtype(1))
    program = trace(pull, x, *factors)
    expected = evaluate(program, [x, *factors])[0].tobytes()
    added = add_scatters(program)
    assert names(added).count("add_scatter") == counts[not with_whole]
    assert evaluate(added, [x, *factors])[0].tobytes() == expected
    for executor in ("reference", "machine"):
        assert np.asarray(jit(pull, executor=executor)(x, *factors)).tobytes() == expected
    if with_whole and counts[0] and dtype is not np.complex128:  # products of complex numbers have few -0.0
        signed = [
            replace(one, params={**one.params, "unsigned": ()}) if one.name == "add_scatter" else one
            for one in added.equations
        ]
        assert evaluate(replace(added, equations=tuple(signed)), [x, *factors])[0].tobytes() != expected


def test_an_index_with_arrays_is_not_taken():
    """An index that may name an element twice is no part: its cotangents are summed before."""
    program = trace(grad(lambda x: np.sum(np.sin(x[INDEX])) + np.sum(x * x)), X)
    added = add_scatters(program)
    assert "add_scatter" not in names(added)
    assert names(added) == names(program)
    np.testing.assert_allclose(evaluate(added, [X])[0][2], 2 * np.cos(X[2]) + 2 * X[2], rtol=1e-14)


def test_operands_stay():
    """Sums are new arrays: what they are sums of is not written, in any layout and also where BLAS has no product."""
    for total in (T, T.T, np.asfortranarray(T), T.astype(np.float16), T[::-1]):
        before = total.copy()
        a, b = X.astype(total.dtype), W.astype(total.dtype)
        np.testing.assert_allclose(plus_product(total, a, b), total + a @ b, rtol=1e-2 if total.itemsize < 4 else 1e-13)
        expected = total.copy()
        expected[1:] += a[1:]
        assert np.array_equal(plus_scatter(total, a[1:], (slice(1, None),)), expected)
        assert np.array_equal(total, before)
