"""Reductions, running values, order statistics and histograms: what they save, their arguments, and how they end."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import ebbtide
from ebbtide import grad, hessian, jit, vjp, vmap
from ebbtide.testing import check_grads

from .example import M, V

MASK = np.arange(12).reshape(3, 4) % 3 > 0
WITH_NAN = np.where(MASK, M, np.nan)
F8, I1, U1, B1 = "float64", "int8", "uint8", "bool"


# (function of an array of shape (3, 4), what it saves: dtypes and shapes)
SAVED = (
    (np.sum, []),
    (np.mean, []),
    (np.cumsum, []),
    (np.diff, []),
    (np.trapezoid, []),
    (np.ediff1d, []),
    (lambda x: np.gradient(x, 0.5)[1], []),
    (lambda x: np.bincount([0, 1, 1, 2], x[0]), [("int64", (4,))]),
    (lambda x: np.sum(x, where=MASK), [(B1, (3, 4))]),
    (lambda x: np.mean(x, where=MASK[0]), [(B1, (4,))]),
    (np.nansum, [(B1, (3, 4))]),
    (np.nanmean, [(B1, (3, 4))]),
    (np.max, [(B1, (3, 4))]),
    (np.nanmin, [(B1, (3, 4))]),
    (np.ptp, [(B1, (3, 4)), (B1, (3, 4))]),
    (np.prod, [(F8, (3, 4))]),
    (np.var, [(F8, (3, 4))]),
    (np.nanvar, [(F8, (3, 4))]),
    (np.std, [(F8, (1, 1)), (F8, (3, 4))]),
    (np.logaddexp.reduce, [(F8, (1, 4)), (F8, (3, 4))]),
    (lambda x: np.cumprod(x, 1), [(F8, (3, 4)), (F8, (3, 4))]),
    (lambda x: np.maximum.accumulate(x, 1), [(I1, (3, 4))]),
    (np.partition, [(U1, (3, 4))]),
    (np.median, [(F8, (1, 1)), (U1, (1, 1)), (U1, (1, 1))]),
    (lambda x: np.quantile(x, [0.2, 0.6], axis=1), [(F8, (1, 2)), (U1, (3, 2)), (U1, (3, 2))]),
)


@pytest.mark.parametrize(("function", "saved"), SAVED)
def test_saves_the_least(function, saved):
    """A record holds masks of bytes, small integers, or the one array that the derivative is made of."""
    run = function if function is not np.partition else lambda x: np.partition(x, 2)
    with ebbtide.profile() as p:
        grad(lambda x: np.sum(run(x * 1.5)))(M)
    entries = [(entry.dtype, entry.shape) for entry in p.saved]
    assert Counter(entries) == Counter(saved)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3, 5])
@pytest.mark.parametrize(
    "function", [np.prod, np.cumprod, lambda x: np.multiply.accumulate(x[::-1]), lambda x: np.nanprod(x, initial=2.0)]
)
def test_products_with_zeros(function, zeros):
    """Derivatives of products to second order are right with any number of zeros."""
    x = np.array([1.5, -0.5, 2.0, 0.7, -1.2])
    x[[1, 3, 0, 4, 2][:zeros]] = 0
    check_grads(function, x)


def test_hessian_of_a_product_with_zeros():
    """The second derivatives of a product are the products of all others, to the bit."""
    x = np.array([2.0, 0.0, 3.0, 0.0])
    expected = np.zeros((4, 4))
    expected[1, 3] = expected[3, 1] = 6.0
    assert np.array_equal(hessian(np.prod)(x), expected)
    assert np.array_equal(hessian(lambda x: np.cumprod(x)[-1])(x), expected)


METHODS = (
    "linear", "weibull", "hazen", "interpolated_inverted_cdf", "median_unbiased", "normal_unbiased", "inverted_cdf",
    "averaged_inverted_cdf", "closest_observation", "lower", "higher", "midpoint", "nearest",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_quantile_methods(method):
    """Every method of NumPy's has its derivative, by the elements and by the fraction."""
    check_grads(lambda x, q: np.quantile(x, q, method=method), V, np.array([0.07, 0.37, 0.93]), order=1)
    check_grads(lambda x, q: np.nanpercentile(x, q, axis=1, method=method), WITH_NAN, np.array([37.0]), order=1)


@pytest.mark.parametrize(
    "function",
    [
        np.median, np.nanstd, np.logaddexp.accumulate, lambda x: np.sum(x, where=x > 0.1, initial=1.0),
        lambda x: np.prod(x, where=x > 0.1), lambda x: np.std(x, where=x > -1, ddof=1), lambda x: np.partition(x, 1),
        lambda x: np.max(x, where=x < 1, initial=-5.0), lambda x: np.mean(x, where=abs(x) > 0.2, axis=0),
        lambda x: np.gradient(x[0], x[0] * np.arange(4) ** 2), lambda x: np.quantile(x, np.abs(x[0, 0]) / 3),
    ],
)  # fmt: skip
def test_in_programs_and_batches(function):
    """What depends on values without a shape by them goes through jit, and in vmap differs from member to member."""
    def value_and_slope(x):
        value, pullback = vjp(function, x)
        return value, pullback(np.ones(value.shape, value.dtype))[0]

    members = np.stack([M, M[::-1] * 1.1, M + 0.3])
    expected = [value_and_slope(x) for x in members]
    for found, wanted in zip(jit(value_and_slope)(M), expected[0], strict=True):
        assert np.array_equal(found, wanted)
    for k, found in enumerate(vmap(value_and_slope)(members)):
        np.testing.assert_allclose(found, np.stack([one[k] for one in expected]), rtol=1e-12, atol=1e-12)


def test_out():
    """The result goes into the array that is given as `out`, by its place or its name, in functions and methods."""
    def f(x):
        y = np.zeros_like(x)
        assert np.sum(x, 0, None, y[0]) is not None
        x.mean(axis=0, out=y[1])
        np.max(x, 0, y[2])
        z = np.zeros_like(x)
        np.cumprod(x, 0, out=z)
        np.median(x, axis=0, out=z[0])
        np.add.reduce(x, out=z[1])
        return np.sum(y * M) + np.sum(z * M)

    def plain(x):
        y, z = np.zeros_like(x), np.cumprod(x, 0)
        y[0], y[1], y[2] = np.sum(x, 0), np.mean(x, 0), np.max(x, 0)
        z[0], z[1] = np.median(x, 0), np.sum(x, 0)
        return np.sum(y * M) + np.sum(z * M)

    assert f(M) == plain(M)
    np.testing.assert_allclose(grad(f)(M), grad(plain)(M), rtol=1e-14)
    check_grads(plain, M, order=1)


def test_mask_of_the_user_may_change():
    """A mask given as where= is copied: a change of it between the forward run and the sweep has no effect."""
    mask = MASK.copy()
    _, pullback = vjp(lambda x: np.sum(x, where=mask), M)
    mask[:] = False
    assert np.array_equal(pullback(1.0)[0], MASK)


@pytest.mark.parametrize("kth", [0, 137, (5, 700), -1])
def test_partition_has_the_order_of_numpy(kth):
    """Elements are where NumPy's partition puts them, which depends on the machine, and so are their cotangents."""
    x = np.random.default_rng(0).standard_normal((2, 999))
    weights = np.arange(999.0)
    value, pullback = vjp(lambda x: np.partition(x, kth), x)
    expected = np.partition(x, kth)
    assert np.array_equal(value, expected)
    cotangents = pullback(np.broadcast_to(weights, x.shape))[0]
    for row, gradient, placed in zip(x, cotangents, expected, strict=True):
        assert np.array_equal(gradient[np.argsort(row)], weights[np.argsort(placed)])


def test_more_results_are_plain():
    """Positions and counts that come with values are plain arrays of integers."""
    seen = []

    def f(x):
        values, index, inverse, counts = np.unique(x, True, True, True)
        mean, _ = np.average(x, returned=True)
        heights, edges = np.histogram([0.5, 1.5, 1.7], 2, weights=x)
        seen.extend([index, inverse, counts, np.bincount(index), edges, np.histogram(x, 3)[0]])
        seen.extend([np.histogram2d(x, x, 2)[0], np.histogramdd([x, x], 2)[0], np.histogramdd(x[:, None], 2)[0]])
        return np.sum(values[inverse] * counts[inverse]) + mean + np.sum(heights * [1.0, 10.0])

    x = np.array([2.0, 1.0, 2.0])
    np.testing.assert_allclose(grad(f)(x), [4 + 1 + 1 / 3, 1 + 10 + 1 / 3, 10 + 1 / 3], rtol=1e-14)
    assert all(type(one) is np.ndarray for one in seen)


EDGES = np.array([-1.0, 0.1, 0.4, 2.0])
COUNTED = {
    "ten": lambda x, e: np.histogram(x),
    "number": lambda x, e: np.histogram(x, 4),
    "range": lambda x, e: np.histogram(x, 4, (-9.5, 25), density=True),
    "list": lambda x, e: np.histogram(x, [-1, 0, 2]),
    "given": np.histogram,
    "traced edges": lambda x, e: np.histogram([0.0, 0.2, 1.0], e, density=True),
    "edges": lambda x, e: np.histogram_bin_edges(x, 3),
    "nonzero": lambda x, e: np.count_nonzero(x > 0),
    "nonzero along": lambda x, e: np.count_nonzero(x > 0, axis=-1, keepdims=True),
}


@pytest.mark.parametrize("executor", ["reference", "machine"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("name", COUNTED)
def test_counts_without_known_values(name, dtype, executor):
    """What is counted need not be known, only how many counts there are: programs and members count as NumPy does."""
    f = COUNTED[name]
    x = (10 * M).astype(dtype)
    members = np.stack([x, x[::-1] + 1, 2 * x])
    alone, together = jit(f, executor=executor)(x, EDGES), vmap(f, (0, None))(members, EDGES)
    expected = [f(one, EDGES) for one in members]
    for k in range(2):
        if isinstance(expected[0], tuple):
            found, batch, wanted = alone[k], together[k], [one[k] for one in expected]
        else:
            found, batch, wanted = alone, together, expected
        assert np.asarray(found).dtype == np.asarray(wanted[0]).dtype
        np.testing.assert_array_equal(found, wanted[0])
        # What no member has a part in is one for all.
        np.testing.assert_array_equal(np.broadcast_to(batch, np.shape(wanted)), wanted)


def test_counts_of_members_of_members():
    """Batches of batches, also empty ones, and programs of them."""
    x = np.random.default_rng(5).standard_normal((2, 3, 8))
    for f in (lambda x: np.histogram(x, 4)[0], lambda x: np.histogram_bin_edges(x, 4)):
        expected = np.stack([[f(one) for one in row] for row in x])
        for found in (vmap(vmap(f))(x), jit(vmap(vmap(f)))(x), vmap(vmap(f, 1), 1)(np.transpose(x, (2, 0, 1)))):
            np.testing.assert_array_equal(found, expected)
        assert vmap(f)(x[0][:0]).shape == (0, *expected.shape[2:])
        assert vmap(f)(x[0][:0]).dtype == expected.dtype


def test_bins_that_depend_on_values_are_refused():
    """How many bins an estimator finds depends on the values."""
    with pytest.raises(ebbtide.TraceError, match=r"histogram at .*test_statistics"):
        jit(lambda x: np.histogram(x, "auto"))(V)
    with pytest.raises(ebbtide.TraceError, match="histogram_bin_edges"):
        jit(lambda x: np.histogram_bin_edges(x, "auto"))(V)


def test_trimmed_zeros_are_a_view():
    """What is left of an array is a view of it, as in NumPy: a write goes through."""
    def f(x):
        y = x * 1.0
        np.trim_zeros(y)[0] = 7.0
        return np.sum(y * np.arange(5.0))

    x = np.array([0.0, 3.0, 0.0, 2.0, 0.0])
    assert f(x) == 13.0
    assert np.array_equal(grad(f)(x), [0.0, 0.0, 2.0, 3.0, 4.0])


def test_correlation_of_itself():
    """A correlation of one is constant, also where rounding takes it over its limit."""
    x = np.random.default_rng(1).standard_normal((4, 50))
    weights = np.diag([1.0, 2.0, 3.0, 4.0])
    assert np.max(abs(grad(lambda x: np.sum(np.corrcoef(x) * weights))(x))) < 1e-14


def test_wrong_arguments_raise_as_in_numpy():
    """Arguments that do not fit are the errors that they are in NumPy."""
    for function, error in (
        (lambda x: np.average(x, weights=[1.0, 2.0]), TypeError),
        (lambda x: np.average(x, 1, [1.0, 2.0]), ValueError),
        (lambda x: np.average(x, 1, [1.0, -1.0, 0.0, 0.0]), ZeroDivisionError),
        (lambda x: np.cov(x[None]), ValueError),
        (lambda x: np.gradient(x, [1.0, 2.0], [1.0, 2.0]), ValueError),
        (lambda x: np.gradient(x, 1.0, 2.0, 3.0), TypeError),
        (lambda x: np.gradient(x[:2], edge_order=2), ValueError),
        (lambda x: np.quantile(x, 1.5), ValueError),
        (np.cumulative_sum, ValueError),
        (lambda x: np.polyder(x[0], -1), ValueError),
        (lambda x: np.polyint(x[0], -1), ValueError),
        (lambda x: np.var(x, ddof=1, correction=1), ValueError),
        (lambda x: np.bincount([0, 1], x[0]), ValueError),
        (lambda x: np.partition(x, 9), ValueError),
        (lambda x: np.diff(x, -1), ValueError),
        (lambda x: np.nanmax(x, axis=2), np.exceptions.AxisError),
    ):
        for x in (M, np.asfortranarray(M)):
            with pytest.raises(error):
                function(x)
            with pytest.raises(error):
                grad(lambda x, function=function: np.sum(function(x)))(x)


def test_degrees_of_freedom():
    """A covariance without degrees of freedom warns, as in NumPy."""
    with pytest.warns(RuntimeWarning, match="Degrees of freedom"), np.errstate(all="ignore"):
        vjp(np.cov, M[:, :1])


def test_fractions_of_members():
    """Members of a batch may have fractions of their own, in a dtype that is not that of the array."""
    x, q = M.astype(np.float32), np.array([[0.2, 0.4], [0.5, 0.9]])
    found = vmap(lambda q: np.quantile(x + q[0].astype(np.float32) * 0, q, axis=1))(q)
    expected = np.stack([np.quantile(x, one, axis=1) for one in q])
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_covariance_of_two_arrays_in_columns():
    """A second array of one axis, or of one row, has one variable, also where variables are in columns."""
    for y in (M[:, 1], M[None, :, 1]):
        value, pullback = vjp(lambda x, y=y: np.cov(x, y, rowvar=False), M[:, 0])
        assert np.array_equal(value, np.cov(M[:, 0], y, rowvar=False))
        assert pullback(np.eye(2))[0].shape == (3,)


def test_differences_of_a_list_beside_a_traced_end():
    """The elements may be a list, as what is put behind them is traced."""
    x = np.array([2.0, 3.0])
    np.testing.assert_array_equal(jit(lambda x: np.ediff1d([1.0, 2.0, 4.0], to_end=x))(x), [1.0, 2.0, 2.0, 3.0])
    np.testing.assert_array_equal(grad(lambda x: np.sum(np.ediff1d([1.0, 2.0, 4.0], to_end=x) ** 2))(x), 2 * x)
