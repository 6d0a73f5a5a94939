"""Distributions: every function of each, by all its arguments, with SciPy's values."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy import stats as original

from ebbtide import RuleMissingError, TraceError, grad, jit, jvp, vjp, vmap
from ebbtide.scipy import stats
from ebbtide.scipy.stats.univariate import Continuous, Discrete
from ebbtide.testing import check_grads

NAMES = [name for name in stats.__all__ if isinstance(getattr(stats, name), Continuous)]
COUNTS = [name for name in stats.__all__ if isinstance(getattr(stats, name), Discrete)]
X, Q = np.array([0.37, 0.72]), np.array([0.2, 0.9])
SHAPES = (np.array(1.7), np.array(2.3))
LOC, SCALE = np.array([0.05]), np.array(1.3)
PARAMETERS = {"poisson": (1.7,), "bernoulli": (0.3,), "binom": (5.0, 0.3), "geom": (0.3,), "nbinom": (2.5, 0.4)}
K = np.array([1.0, 3.0])


def functions(name: str) -> list[str]:
    """Return the names of the functions of a distribution."""
    return [slot for slot in type(getattr(stats, name)).__slots__ if not slot.startswith("_")]


def shapes_of(name: str) -> tuple[np.ndarray, ...]:
    """Return shape parameters of a distribution."""
    return SHAPES[: getattr(original, name).numargs]


@pytest.mark.parametrize("function", functions("norm"))
@pytest.mark.parametrize("name", NAMES)
def test_continuous(name, function):
    """Values are SciPy's, and derivatives by variable, shape parameters, location and scale are right."""
    call, shapes = getattr(getattr(stats, name), function), shapes_of(name)
    x = Q if function in ("ppf", "isf") else X + (1.2 if name == "pareto" else 0)
    operands = (x, *shapes, LOC, SCALE)
    np.testing.assert_array_equal(vjp(call, *operands)[0], call(*operands))
    check_grads(call, *operands, order=2 if function in ("pdf", "logpdf") else 1)


@pytest.mark.parametrize("name", ["t", "gamma", "beta"])
def test_second_derivatives_of_probabilities(name):
    """Probabilities have second derivatives by shape parameters, too."""
    distribution = getattr(stats, name)
    check_grads(lambda *shapes: distribution.cdf(X, *shapes), *shapes_of(name))
    check_grads(lambda *shapes: distribution.ppf(Q[0], *shapes), *shapes_of(name), modes=("rev",))


@pytest.mark.parametrize("name", NAMES)
def test_outside_of_the_support(name):
    """Where a density is zero all derivatives are, in both modes, and nothing warns."""
    inside = getattr(original, name).support(*shapes_of(name))
    far = [end for end in (inside[0] - 1, inside[1] + 1) if np.isfinite(end)]
    for x in map(np.array, far):
        for function in ("pdf", "logpdf", "cdf", "sf", "logcdf", "logsf"):
            def call(x, loc, scale, function=function):
                return getattr(getattr(stats, name), function)(x, *shapes_of(name), loc, scale)

            point = (x, np.array(0.0), np.array(1.0))
            assert grad(call, (0, 1, 2))(*point) == (0.0, 0.0, 0.0)
            assert jvp(call, point, point)[1] == 0.0


@pytest.mark.parametrize("function", functions("poisson"))
@pytest.mark.parametrize("name", COUNTS)
def test_discrete(name, function):
    """Values are SciPy's, and derivatives by the last shape parameter are right; by the count they are zero."""
    call, shapes = getattr(getattr(stats, name), function), PARAMETERS[name]
    k = np.minimum(K, 1.0) if name == "bernoulli" else K
    if name == "bernoulli" and function == "logsf":
        k = k - 1  # above, the probability is zero
    p = np.array([shapes[-1]])
    if name == "nbinom" and not function.endswith("pmf"):
        with pytest.raises(RuleMissingError, match=r"the shape parameter p of scipy\.stats\.nbinom"):
            grad(lambda p: np.sum(call(k, *shapes[:-1], p)))(p)
        return
    np.testing.assert_array_equal(vjp(lambda p: call(k, *shapes[:-1], p), p)[0], call(k, *shapes[:-1], p))
    check_grads(lambda p: call(k, *shapes[:-1], p), p)
    assert grad(lambda k: np.sum(call(k, *shapes)))(k).tolist() == [0.0, 0.0]
    assert grad(lambda p: np.sum(call(k - 20, *shapes[:-1], p)))(p) == 0.0


def test_number_of_successes():
    """The negative binomial distribution has a derivative by the number of successes, which may be any number."""
    check_grads(lambda n: stats.nbinom.logpmf(K, n, 0.4), np.array([2.5]))


def test_arguments_are_scipys():
    """Arguments go by place or by name, and others are refused, as in SciPy; the original is `__wrapped__`."""
    slope = grad(stats.gamma.logpdf)(2.0, 1.5, 0.1, 3.0)
    assert slope == grad(lambda x: stats.gamma.logpdf(x, scale=3.0, a=1.5, loc=0.1))(2.0)
    with pytest.raises(TypeError, match="size"):
        grad(lambda x: stats.norm.pdf(x, size=3))(2.0)
    assert str(inspect.signature(stats.gamma.pdf)) == "(x, a, loc=0, scale=1)"
    assert stats.gamma.pdf.__wrapped__ == original.gamma.pdf
    assert repr(stats.gamma) == "<gamma of ebbtide.scipy.stats>"


def test_programs_and_batches():
    """A density goes into a program, and over members at once, with the same bits."""
    def f(x, loc):
        return np.sum(stats.t.logpdf(x, 3.5, loc))

    expected = grad(f, (0, 1))(X, 0.5)
    assert [x.tolist() for x in jit(grad(f, (0, 1)))(X, 0.5)] == [x.tolist() for x in expected]
    assert vmap(grad(f, 1), (None, 0))(X, np.array([0.5, 0.7]))[0] == expected[1]


# ------------------------------------------------------------------------------------------------
# Several variables

ROOT = np.array([[1.2, 0.3], [-0.4, 0.9]])
MEAN = np.array([0.3, -0.2])
POINTS = np.array([[0.5, 1.0], [-0.3, 0.4], [0.9, -1.1]])


def covariance(root):
    """Return a symmetric, positive definite matrix."""
    return root @ root.T + np.eye(2)


@pytest.mark.parametrize("function", ["logpdf", "pdf"])
@pytest.mark.parametrize("x", [POINTS, POINTS[0], POINTS[:, None]])
def test_multivariate_normal(function, x):
    """Derivatives by points, mean and covariance are right, and values are SciPy's."""
    call = getattr(stats.multivariate_normal, function)
    expected = getattr(original.multivariate_normal, function)(x, MEAN, covariance(ROOT))
    np.testing.assert_array_equal(vjp(lambda x: call(x, MEAN, covariance(ROOT)), x)[0], expected)
    check_grads(lambda x, mean, root: call(x, mean, covariance(root)), x, MEAN, ROOT)


def test_short_forms_of_a_normal_distribution():
    """A number or a diagonal stands for a covariance, and nothing for a mean, as in SciPy; one variable as many."""
    normal = stats.multivariate_normal
    check_grads(lambda x, d: normal.logpdf(x, MEAN, d), POINTS, np.array([0.7, 1.3]))
    check_grads(lambda x, v: normal.logpdf(x, MEAN, v), POINTS, np.array(1.3))
    check_grads(lambda x, v: normal.logpdf(x, cov=v), np.array([0.7, 1.3]), np.array(1.3))
    check_grads(normal.pdf, np.array(0.7), np.array(1.3))
    check_grads(lambda root: normal.entropy(cov=covariance(root)), ROOT)
    slopes = vmap(grad(normal.logpdf), (0, None))(POINTS, MEAN)
    np.testing.assert_allclose(slopes, MEAN - POINTS, rtol=1e-13)
    with pytest.raises(TraceError, match="allow_singular"):
        grad(lambda x: normal.logpdf(x, MEAN, np.eye(2), allow_singular=True))(MEAN)


@pytest.mark.parametrize("function", ["logpdf", "pdf"])
def test_dirichlet(function):
    """Derivatives by points and concentrations are right, also with the last component left out."""
    call, alpha = getattr(stats.dirichlet, function), np.array([0.8, 1.5, 2.2])
    x = np.array([[0.2, 0.1], [0.3, 0.6]])
    whole = np.concatenate([x, 1 - np.sum(x, axis=0, keepdims=True)])
    np.testing.assert_array_equal(vjp(call, x, alpha)[0], getattr(original.dirichlet, function)(x, alpha))
    check_grads(call, x, alpha)
    check_grads(call, x[:, 0], alpha)
    check_grads(lambda alpha: call(whole, alpha), alpha)
    by_all, by_some = grad(lambda x: np.sum(call(x, alpha)))(whole), grad(lambda x: np.sum(call(x, alpha)))(x)
    np.testing.assert_allclose(by_all[:-1] - by_all[-1:], by_some, rtol=1e-12)


def test_logarithms_of_probabilities_that_underflow():
    """Where a probability is 0 to rounding and its logarithm is not, that has derivatives by the shape parameters."""
    survival = grad(lambda c: stats.weibull_min.logsf(20.0, c))
    assert survival(2.5) == pytest.approx(-np.log(20) * 20**2.5, rel=1e-12)
    assert grad(survival)(2.5) == pytest.approx(-(np.log(20) ** 2) * 20**2.5, rel=1e-9)
    failures = grad(lambda p: stats.geom.logsf(5000, p))
    assert failures(0.5) == pytest.approx(-5000 / 0.5, rel=1e-9)
    assert grad(failures)(0.5) == pytest.approx(-5000 / 0.25, rel=1e-6)
    for function, x in (("logcdf", 1e-30), ("logsf", 1e150)):
        call = getattr(stats.lognorm, function)
        high, low = (getattr(original.lognorm, function)(x, s) for s in (1.5 + 1e-6, 1.5 - 1e-6))
        assert grad(lambda s, call=call, x=x: call(x, s))(1.5) == pytest.approx((high - low) / 2e-6, rel=1e-7)


FROZEN = {
    "norm": lambda s, x, p: s.norm(p[0], scale=p[1]).logsf(x),
    "gamma": lambda s, x, p: s.gamma(p[1], scale=p[0]).cdf(x),
    "poisson": lambda s, x, p: s.poisson(p[0]).pmf(np.array([0, 2])) * x[0],
    "multivariate_normal": lambda s, x, p: s.multivariate_normal(x[:2], np.diag(np.square(p))).pdf([[0.1, 0.5]] * 2),
    "entropy": lambda s, x, p: s.multivariate_normal(None, np.diag(p)).entropy() * x,
    "dirichlet": lambda s, x, p: s.dirichlet(p).logpdf([0.3, 0.7]) * x,
}


@pytest.mark.parametrize("call", FROZEN.values(), ids=FROZEN)
def test_frozen_distributions(call):
    """A distribution with its parameters given has SciPy's values and the derivatives of its functions."""
    x, p = np.array([0.4, 1.3]), np.array([0.8, 1.7])
    np.testing.assert_array_equal(vjp(lambda x, p: call(stats, x, p), x, p)[0], call(original, x, p))
    check_grads(lambda x, p: call(stats, x, p), x, p)
    with pytest.raises(AttributeError, match="rvs"):
        stats.norm(0.0).rvs()
