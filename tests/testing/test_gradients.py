"""`check_grads` passes right derivatives of any order, mode and type, and finds wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import primitive
from ebbtide.testing import check_grads

X = np.array([0.5, -1.25, 2.0])


def double(t):
    """Return twice a tangent or cotangent."""
    return 2 * t


def square_with(vjp, jvp):
    """Return the square with rules for its slope."""
    return primitive(lambda x: x * x, vjp=lambda g, x: g * vjp(x), jvp=lambda t, x: t * jvp(x))


right = square_with(double, double)
wrong_second = primitive(lambda x: 2 * x, vjp=lambda g: g * 3.0, jvp=lambda t: t * 3.0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.complex64])
def test_right_derivatives(dtype):
    """Right derivatives pass to the second order in both modes, real and complex, in double and single precision."""
    x = X.astype(dtype) * (1 + 0.5j if np.dtype(dtype).kind == "c" else 1)
    x = x.astype(dtype)
    check_grads(lambda x: np.sin(x) * right(x), x)
    check_grads(lambda p: {"a": np.tanh(p["b"]) @ p["c"], "n": 3}, {"b": x, "c": x[::-1]})
    check_grads(lambda x: np.sum(np.real(np.exp(x))), x, order=3)
    check_grads(lambda s: s * s * 2.0, x[0])


WRONG = {
    "vjp": (square_with(lambda x: x, double), 1, "vjp: a random cotangent with the direction"),
    "jvp": (square_with(double, lambda x: x), 1, "jvp: output 0 along a random direction"),
    "both": (square_with(lambda x: x, lambda x: x), 1, "jvp: output 0 along a random direction"),
    "second order": (square_with(wrong_second, wrong_second), 2, "then jvp: output 0"),
    "rounding of one mode": (square_with(lambda x: 2 * x + 1e-9, double), 1, "the dot-product test"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_derivatives(name):
    """A wrong rule is found in its mode and order, with the place and both numbers; not in orders below."""
    f, order, message = WRONG[name]
    with pytest.raises(AssertionError, match=f"{message}.* was expected"):
        check_grads(f, X, order=order)
    if order > 1:
        check_grads(f, X, order=order - 1)


ANYWHERE = {
    "far": (lambda x: 2.0 * x, 1e12),
    "far, with a curve": (lambda x: x * x, 1e6),
    "beside a pole": (np.log, 1e-7),
    "beside zero": (lambda x: np.cos(x) + x, 1e-12),
    "beside zero, with cancellation": (lambda x: (1 + x) - 1, 1e-12),
    "at zero": (lambda x: x**3, 0.0),
    "small": (lambda x: 1e-8 * np.sin(x), 0.7),
    "small, with cancellation": (lambda x: np.sin(x) ** 2 + np.cos(x) ** 2 + 1e-8 * x, 0.7),
    "far, on a scale of one": (np.sin, 1e3),
}


@pytest.mark.parametrize("name", ANYWHERE)
def test_right_derivatives_of_any_size(name):
    """Points and derivatives that are not of the order of one pass, where the step is of use or a fitting one is."""
    f, at = ANYWHERE[name]
    check_grads(f, at)
    check_grads(f, np.array([at, 1.5 * at]))


def scaled_with(f, slope):
    """Return a function with rules in both modes that agree."""
    return primitive(f, vjp=lambda g, x: g * slope(x), jvp=lambda t, x: t * slope(x))


WRONG_ANYWHERE = {
    "far": (scaled_with(lambda x: x**0.5, lambda x: x**-0.5), 1e13),
    "far, the step is lost": (scaled_with(lambda x: 2 * x, lambda x: 0 * x), 1e17),
    "small": (scaled_with(lambda x: 1e-8 * np.sin(x), lambda x: 2e-8 * np.cos(x)), 0.7),
    "beside a pole": (scaled_with(lambda x: np.log(2 * x), lambda x: 2 / x), 1e-7),
    "beside zero": (scaled_with(lambda x: (1 + x) - 1, lambda x: 0 * x), 1e-12),
}


@pytest.mark.parametrize("name", WRONG_ANYWHERE)
@pytest.mark.parametrize("mode", ["fwd", "rev"])
def test_wrong_derivatives_of_any_size(name, mode):
    """A rule that is off by its own size is found, however small or large that is."""
    f, at = WRONG_ANYWHERE[name]
    with pytest.raises(AssertionError, match="was expected"):
        check_grads(f, np.array([at, 1.5 * at]), order=1, modes=(mode,))


def test_a_step_that_leaves_the_domain_is_told():
    """Where a function is finite at the point and not beside it, the error says so, and a shorter step passes."""
    x = np.array([1e-7, 1.0])
    with pytest.raises(AssertionError, match=r"the step leaves the domain\. Give a shorter one, as eps=6e-08"):
        check_grads(np.log, x, order=1)
    check_grads(np.log, x, order=1, eps=1e-12, rtol=1e-3)
    for eps in (0, -1e-6, np.nan, np.inf):
        with pytest.raises(ValueError, match="give a number above 0"):
            check_grads(np.log, x, eps=eps)


def test_modes():
    """Only the modes that are asked for are checked."""
    f = square_with(lambda x: x, double)
    check_grads(f, X, order=1, modes=("fwd",))
    with pytest.raises(AssertionError, match="vjp: a random cotangent"):
        check_grads(f, X, order=1, modes=("rev",))
    for modes in ((), ("forward",)):
        with pytest.raises(ValueError, match="give a tuple of 'fwd', 'rev' or both"):
            check_grads(f, X, modes=modes)


def test_nan_agrees_with_nothing():
    """A derivative that is nan, or infinite, passes no check."""
    f = square_with(lambda x: x * np.nan, double)
    with pytest.raises(AssertionError, match="the derivative is nan"):
        check_grads(f, X, order=1)


@pytest.mark.parametrize("modes", [("fwd",), ("rev",)], ids=["fwd", "rev"])
def test_an_infinite_difference_agrees_with_nothing(modes):
    """Where a function overflows at the point and not beside it, a wrong rule passed: so large was the tolerance."""
    wrong = primitive(lambda x: 1.0 * np.exp(x), vjp=lambda g, x: 0.0 * g * x, jvp=lambda t, x: 0.0 * t * x)
    x = np.array([np.log(np.finfo(float).max) + 1e-6, 1.0])
    with np.errstate(over="ignore"), pytest.raises(AssertionError, match=r"the derivative is 0\.0, and -?inf was"):
        check_grads(wrong, x, order=1, modes=modes)


def test_arguments_stay_as_they_are():
    """A function that writes into its argument is checked at the point that was given."""

    def writes(x):
        x[0] = np.sin(x[1])
        return x * x

    point = X.copy()
    check_grads(writes, point)
    assert np.array_equal(point, X)


def test_what_has_nothing_to_check_is_refused():
    """A function without a `return`, integers, and options that are none: no check is passed that was not made."""
    for f, arguments in ((lambda x: None, (1.0,)), (lambda x: 3, (1.0,)), (np.sin, (3,)), (lambda: 3.0, ())):
        with pytest.raises(TypeError, match="check"):
            check_grads(f, *arguments)
    for options in ({"modes": "fwd"}, {"modes": ()}, {"order": 0}, {"order": 2.0}, {"order": True}):
        with pytest.raises(ValueError, match="give a"):
            check_grads(np.sin, 1.0, **options)
    for name in ("rtol", "atol", "eps"):
        for wrong in (-1.0, np.nan, np.inf, "1e-6", True):
            with pytest.raises(ValueError, match=f"{name}=.*give a"):
                check_grads(np.sin, 1.0, **{name: wrong})  # pyright: ignore[reportArgumentType]
    for modes in (3, [["rev"]]):
        with pytest.raises(ValueError, match="give a tuple of 'fwd', 'rev' or both"):
            check_grads(np.sin, 1.0, modes=modes)  # pyright: ignore[reportArgumentType]
    for arguments in (("a",), (None,), (object(),)):
        with pytest.raises(TypeError, match="needs arguments of floating-point or complex numbers"):
            check_grads(np.sin, *arguments)
    with pytest.raises(TypeError, match="nothing to check"):
        check_grads(lambda x: "a", 1.0)
