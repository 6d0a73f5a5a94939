"""What a Taylor test says where the numbers say little: no wrong derivative passes, and no right one fails."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest

from ebbtide import stop_gradient
from ebbtide.optimize import taylor_remainders, taylor_test

X = np.array([0.3, -1.2, 0.7])
D = np.array([1.0, 0.5, -0.3])


@pytest.mark.parametrize(
    ("f", "m", "text"),
    [
        (lambda x: np.sum(np.sqrt(x)), np.array([0.0, 1.0, 2.0]), "derivative of order 1 .* is inf, .* is 2.41421"),
        (lambda x: np.sum(np.sqrt(x) - np.log1p(x)) + x[0], np.zeros(3), "derivative of order 1 .* is (inf|nan)"),
        (lambda x: np.sum(x**1.5), np.array([0.0, 1.0, 2.0]), "derivative of order 2 .* is inf, .* is 3.82843"),
        (lambda x: np.sum(x * 0.0) + np.inf, X, "functional is inf at m"),
    ],
)
def test_derivatives_that_are_not_finite(f, m, text):
    """An infinite derivative is told as one, with its order and the value, and not as rounding."""
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=text):
        taylor_test(f, m, np.array([1.0, 0.5, 0.3]))


def test_values_that_are_not_finite():
    """At a given distance where the functional is not finite, that is told, with the distance."""
    f = lambda x: np.sum(np.where(x > 1.25, np.nan, 1.0) * np.exp(x))
    with pytest.raises(ValueError, match=r"functional is nan at the distance 0\.3, and finite at m"):
        taylor_test(f, np.ones(2), np.ones(2), distances=[0.3, 0.2, 0.1])
    with pytest.raises(ValueError, match=r"functional is inf at the distance 0\.1"):
        taylor_remainders(lambda e: 1.0 / (0.05 - e) if e < 0.1 else math.inf, 20.0, [400.0], [0.1, 0.01])
    with pytest.raises(ValueError, match=r"derivative of order 1 .* is nan"):
        taylor_remainders(math.exp, 1.0, [math.nan], [0.1, 0.01])
    with pytest.raises(ValueError, match="functional is inf at m"):
        taylor_remainders(math.exp, math.inf, [1.0], [0.1, 0.01])


def off(f, error):
    """A function of the same value, with derivatives that are off by a part of themselves."""
    return lambda x: f(x) + x.dtype.type(error) * (f(x) - stop_gradient(f(x)))


def verdict(f, m, direction, order=1, **options):
    """What a test says: right, wrong, or (by an error) unknown."""
    try:
        return "right" if taylor_test(f, m, direction, order, **options).passed else "wrong"
    except ValueError:
        return "unknown"


def wavy(x):
    """A functional with all derivatives."""
    return np.sum(np.array([1.0, -2.0, 0.5], x.dtype) * np.sin(x))


@pytest.mark.parametrize("constant", [1e6, 1e8])
def test_a_large_constant_hides_no_wrong_derivative(constant):
    """Where the rounding of a large value leaves order 1 no rates, a derivative that is off by 10 % does not pass."""
    told = set()
    for size in 10.0 ** np.arange(-9, 1, 0.25):
        m = size * np.array([1.0, 0.5, 2.0])
        told.add(verdict(off(lambda x: constant + wavy(x), 0.1), m, D))
        assert verdict(lambda x: constant + wavy(x), m, D) != "wrong"
    assert told == {"wrong", "unknown"}
    with pytest.raises(ValueError, match=r"Rounding hides the rate of order 1.*leave a large constant out of it"):
        taylor_test(lambda x: constant + wavy(x), 5e-14 * constant * np.array([1.0, 0.5, 2.0]), np.ones(3), 1)


def test_a_large_constant_in_single_precision():
    """The same in float32, beside a value of 100."""
    for size in 10.0 ** np.arange(-6, 1, 0.25):
        m = (size * np.array([1.0, 0.5, 2.0])).astype(np.float32)
        assert verdict(off(lambda x: np.float32(100) + wavy(x), 0.1), m, D.astype(np.float32)) != "right"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("part", [1e-2, 1e-4, 1e-6, 1e-9, 0.0])
def test_across_the_gradient_is_no_pass(part, dtype):
    """Along a direction nearly across the gradient no derivative passes that may be off by 10 %, and no right fails."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        m, d = rng.standard_normal((2, 5))
        f = lambda x: np.sum(np.exp(x))
        across = d - np.exp(m) * (np.exp(m) @ d) / (np.exp(m) @ np.exp(m)) * (1 - part)
        m, across = m.astype(dtype), across.astype(dtype)
        assert verdict(off(f, 0.1), m, across) != "right"
        assert verdict(f, m, across) != "wrong"
        if dtype == np.float64 and part >= 1e-4:
            assert verdict(f, m, across) == "right"


def test_across_the_gradient_says_what_to_do():
    """The error has the part that is left of the change, and names another direction."""
    with pytest.raises(ValueError, match=r"order 1 cannot be told from one that is off by a tenth.*nearer to the grad"):
        taylor_test(lambda x: np.sum(np.exp(x)), np.zeros(2), np.array([1.0, -1.0]), order=1)
    test = taylor_remainders(lambda e: 1e-9 * e + e * e, 0.0, [1e-9], [2.0**-k for k in range(8)], 1e-14)
    assert (test.passed, test.falls(1), test.is_known(1)) == (False, True, False)
    assert min(test.shares(1)) > 0.9
    assert "FAIL  Taylor order 1: unknown" in str(test)
    assert test.shares(0) == (0.0,) * 8


def test_what_is_zero_is_not_off_by_a_part():
    """A derivative that vanishes in all its parts passes where the functional has none; another is wrong."""
    for f, m, order, idle in (
        (lambda x: np.sum(np.cosh(x - X)), X, 1, (1,)),
        (lambda x: np.sum(3.0 * x), X, 2, (2,)),
        (lambda x: np.sum(np.exp(np.log(x))), np.abs(X), 2, (2,)),
        (lambda x: np.sum(x * x), X, 2, ()),
    ):
        test = taylor_test(f, m, D, order)
        assert test.passed, str(test)
        assert test.idle == idle
    assert verdict(lambda x: stop_gradient(wavy(x)) + 0.0 * x[0], X, D) == "wrong"


def test_a_functional_that_explodes_has_terms_all_the_same():
    """At a distance where it is 1e20 times larger its first derivative is no rounding of that."""
    for scale in (20.0, 100.0):
        f = lambda x, s=scale: np.sum(np.exp(s * x))
        test = taylor_test(f, np.ones(1), np.ones(1), order=1)
        assert test.passed, str(test)
        assert test.idle == ()
        assert verdict(off(f, 0.1), np.ones(1), np.ones(1)) == "wrong"


def functions(rng, n, dtype):
    """Random functions with right derivatives: polynomials, waves, exponentials, least squares, with constants."""
    w = rng.standard_normal(n).astype(dtype)
    matrix = (rng.standard_normal((n, n)) / np.sqrt(n)).astype(dtype)
    constant = dtype(10.0 ** rng.uniform(0, 8 if dtype is np.float64 else 3))
    return (
        lambda x: np.sum(w * x),
        lambda x: np.sum(w * x) + np.sum((matrix @ x) ** 2),
        lambda x: np.sum(w * x**3) + np.sum(x**2),
        lambda x: np.sum(w * np.sin(x)),
        lambda x: np.sum(w * np.exp(dtype(0.3) * x)),
        lambda x: dtype(0.5) * np.sum((np.tanh(matrix @ x) - w) ** 2),
        lambda x: constant + np.sum(w * np.sin(x)),
        lambda x: constant + np.sum(w * x),
        lambda x: constant + np.sum(dtype(0) * x),
    )


@pytest.mark.parametrize(("dtype", "least"), [(np.float64, 0.85), (np.float32, 0.6)])
def test_random_functions(dtype, least):
    """
    No right derivative is called wrong, none that is off by 10 % right, and most right ones pass.

    In tests like these at 120 points, a fifth of them along directions nearly across the gradient, none of 4800
    right derivatives failed, and none of 9600 that are off by 10 % passed (400 did by the rates alone). Undecided, but
    for the constants, were 8 of 2160 right ones in float64 and 793 of 2160 in float32, 423 of them across the gradient.
    Of those off by 1e-3 in float64 along other directions 1738 of 1960 failed, and 18 passed.
    """
    rng = np.random.default_rng(7)
    told = []
    for _ in range(12):
        n = int(rng.integers(1, 12))
        m = (rng.choice([0.1, 1.0, 3.0]) * rng.standard_normal(n)).astype(dtype)
        d = rng.standard_normal(n).astype(dtype)
        for f in functions(rng, n, dtype):
            for order in (1, 2):
                told.append(verdict(f, m, d, order))
                assert told[-1] != "wrong"
                for error in (0.1, -0.1):
                    assert verdict(off(f, error), m, d, order) != "right"
    assert told.count("right") >= least * len(told)


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    "f",
    [lambda x: np.sum(np.sqrt(1 + x**2) - 1), lambda x: np.sum(np.log(1 + x**2)), lambda x: np.sum(1 - np.cos(x))],
    ids=["pseudo-Huber", "logarithm", "cosine"],
)
def test_rounding_within_a_small_functional_fails_no_right_derivative(f, size):
    """Near to its least such a functional is far smaller than what it is the difference of, whose rounding it has."""
    random, passed = np.random.default_rng(0), 0
    for _ in range(12):
        m, direction = 0.03 * random.standard_normal(size), random.standard_normal(size)
        with suppress(ValueError):  # it says that rounding hides a rate
            assert taylor_test(f, m, direction).passed
            passed += 1
    assert passed >= 10
