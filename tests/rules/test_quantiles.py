"""Medians and quantiles at the ends and at elements, where the share of one neighbor is zero, by all methods."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jit, jvp, vjp, vmap
from ebbtide.rules.quantiles import SLOPES, positions

X = np.array([0.9, -1.2, 2.5, 0.1, 1.7])
ORDER = np.argsort(X)
METHODS = (
    "linear", "weibull", "hazen", "interpolated_inverted_cdf", "median_unbiased", "normal_unbiased", "inverted_cdf",
    "averaged_inverted_cdf", "closest_observation", "lower", "higher", "midpoint", "nearest",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("q", "element"), [(0.0, 0), (1.0, -1)])
def test_at_the_ends(method, q, element):
    """The quantile of 0 is the least element and that of 1 the largest, which have all of the derivative."""
    value, pullback = vjp(lambda x: np.quantile(x, q, method=method), X)
    assert value == np.quantile(X, q, method=method) == X[ORDER[element]]
    expected = np.zeros(5)
    expected[ORDER[element]] = 1.0
    assert pullback(1.0)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_shares_sum_to_one(method):
    """At any fraction the elements share one derivative, as the quantile moves with all of them."""
    for q in (0.01, 0.2, 0.25, 0.5, 0.6, 0.75, 0.99):
        found = grad(lambda x, q=q: np.quantile(x, q, method=method))(X)
        assert np.sum(found) == pytest.approx(1.0, rel=1e-14)
        assert np.count_nonzero(found) <= 2
        assert np.quantile(X, q, method=method) == pytest.approx(found @ X, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_slope_by_the_fraction(method):
    """Methods that interpolate have a slope by q, which may be zero near the ends; those that step have none."""
    slope = grad(lambda q: np.quantile(X, q, method=method))
    step = 1e-6
    for q in (0.001, 0.43, 0.9999):
        ends = [np.quantile(X, q + sign * step, method=method) for sign in (1, -1)]
        assert slope(q) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-9)
    assert (slope(0.43) != 0) == (method in SLOPES)


def test_percents_are_fractions():
    """A percentile is the quantile of a hundredth, and so is its slope."""
    for q in (10.0, 43.0, 90.0):
        by_percent = grad(lambda q: np.percentile(X, q))(q)
        assert by_percent == pytest.approx(grad(lambda q: np.quantile(X, q))(q / 100) / 100, rel=1e-12)


def test_elements_that_are_equal():
    """Of equal elements the quantile takes one after the other, and their derivatives sum to one."""
    for q in (0.0, 0.3, 0.5, 1.0):
        found = grad(lambda x, q=q: np.quantile(x, q))(np.full(4, 2.0))
        assert np.sum(found) == pytest.approx(1.0, rel=1e-14)
        assert np.all(found >= 0)


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_medians(size):
    """The median has the one element in the middle, or half of each of two; of one element it is the element."""
    x = np.random.default_rng(size).permutation(np.arange(float(size)))
    found = grad(np.median)(x)
    middle = {(size - 1) // 2, size // 2}
    assert found.tolist() == [1 / len(middle) if value in middle else 0.0 for value in x]
    assert jvp(np.median, (x,), (np.ones(size),))[1] == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_positions(method):
    """The place of a quantile is NumPy's quantile of 0, 1, 2 ..., for rows of different numbers of elements."""
    found = positions(np.array([[0.0, 0.3, 1.0]]), np.array([[1], [4]]), method)
    expected = [np.quantile(np.arange(float(n)), [0.0, 0.3, 1.0], method=method) for n in (1, 4)]
    np.testing.assert_array_equal(found, expected)


WEIGHTS = np.array([0.3, 0.0, 1.2, 0.5, 0.9])
TABLE = np.random.default_rng(4).standard_normal((3, 5, 2))
TABLE[1, 2, 0] = TABLE[2, 3, 1] = np.nan
OF_TABLE = np.random.default_rng(5).random((3, 5, 2))
# Arrays, q, weights, and the other arguments.
WEIGHTED = [
    (X, 0.4, WEIGHTS, {}),
    (X.astype(np.float32), np.array([[0.0, 0.5], [0.7, 1.0]]), WEIGHTS.astype(np.float32), {}),
    (np.array([1.0, 1.0, 0.0, 1.0, 2.0]), np.array([0.3, 0.6]), WEIGHTS, {}),
    (TABLE, np.array([0.2, 0.5]), WEIGHTS, {"axis": 1}),
    (TABLE, 0.7, OF_TABLE, {"axis": (2, 0), "keepdims": True}),
    (TABLE, 0.7, OF_TABLE[:, 0].T, {"axis": (2, 0)}),
    (TABLE, 0.1, OF_TABLE, {}),
]


# NumPy's nanquantile takes weights of the shape of the array alone: with others it is an IndexError.
NAMED = [
    (name, k)
    for name in ("quantile", "percentile", "nanquantile", "nanpercentile")
    for k, (x, _, weights, _) in enumerate(WEIGHTED)
    if "nan" not in name or x.ndim == weights.ndim
]


@pytest.mark.parametrize(("name", "number"), NAMED)
def test_weights(name, number):
    """With weights a quantile is NumPy's to the last bit: one element, which has all of the derivative."""
    x, q, weights, options = WEIGHTED[number]
    q = q * 100 if "percent" in name else q
    original = getattr(np, name)
    f = lambda x, w: original(x, q, weights=w, method="inverted_cdf", **options)
    expected = np.asarray(f(x, weights))
    value, pullback = vjp(f, x, weights)
    assert (value.dtype, value.shape, value.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    by_x, by_weights = pullback(np.ones_like(value))
    assert (by_x.dtype, by_weights.dtype) == (x.dtype, weights.dtype)
    assert not np.any(by_weights)
    assert np.sum(by_x) == expected.size  # each in one place
    np.testing.assert_array_equal(np.sum(np.nan_to_num(x * by_x)), np.sum(np.nan_to_num(expected)), strict=False)
    np.testing.assert_array_equal(jvp(lambda x: f(x, weights), (x,), (x,))[1], expected)


@pytest.mark.parametrize("mapped", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("name", "number"), NAMED)
def test_weights_of_members(name, number, mapped):
    """A batch of arrays, of weights, or of both has for each member the quantiles and the derivative of that one."""
    x, q, weights, options = WEIGHTED[number]
    q = q * 100 if "percent" in name else q
    f = lambda x, w: getattr(np, name)(x, q, weights=w, method="inverted_cdf", **options)
    slope = lambda x, w: vjp(lambda x: f(x, w), x)[1](np.ones_like(f(x, w)))[0]
    given = [np.stack([v * (1 + k) for k in range(3)]) if m else v for v, m in zip((x, weights), mapped, strict=True)]
    given = [np.stack([v[0], v[1][..., ::-1], v[2]]) if m else v for v, m in zip(given, mapped, strict=True)]
    members = [[v[k] if m else v for v, m in zip(given, mapped, strict=True)] for k in range(3)]
    for function in (f, slope):
        found = vmap(function, [0 if m else None for m in mapped])(*given)
        expected = np.stack([np.asarray(function(*member)) for member in members])
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


def test_weights_in_programs():
    """Programs and batches choose by weights that are not known when they are made."""
    f = lambda x, w: np.quantile(x, [0.3, 0.8], weights=w, method="inverted_cdf")
    loss = grad(lambda x, w: np.sum(f(x, w) ** 2))
    assert jit(loss)(X, WEIGHTS).tobytes() == loss(X, WEIGHTS).tobytes()
    program = jit(lambda x, w: np.sum(f(x, w) ** 2))
    for by_program, expected in zip(grad(program, (0, 1))(X, WEIGHTS), (loss(X, WEIGHTS), 0 * WEIGHTS), strict=True):
        np.testing.assert_array_equal(by_program, expected)
    assert jvp(program, (X, WEIGHTS), (X, WEIGHTS))[1] == np.sum(loss(X, WEIGHTS) * X)
    assert jit(lambda w: f(X, w))(WEIGHTS).tobytes() == f(X, WEIGHTS).tobytes()
    members = np.stack([WEIGHTS, WEIGHTS[::-1]])
    np.testing.assert_array_equal(vmap(loss, (None, 0))(X, members), [loss(X, w) for w in members])
    with pytest.raises(ValueError, match="method='linear'"):
        grad(lambda x: np.quantile(x, 0.5, weights=WEIGHTS))(X)
    with pytest.raises(ValueError, match="non-negative"):
        grad(lambda w: np.quantile(X, 0.5, weights=w, method="inverted_cdf"))(-WEIGHTS)
