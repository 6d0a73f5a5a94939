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
