"""Interpolation between points of which two are at one place: a jump, with the derivative of the side that counts."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jit, jvp, vjp
from ebbtide.testing import check_grads

XP, FP = np.array([0.0, 1.0, 1.0, 2.0, 2.0]), np.array([0.0, 1.0, 5.0, 7.0, 9.0])


@pytest.mark.parametrize(
    ("x", "shares", "slope"),
    [
        (0.25, [0.75, 0.25, 0, 0, 0], 1.0),
        (1.0, [0, 0, 1, 0, 0], 2.0),
        (1.5, [0, 0, 0.5, 0.5, 0], 2.0),
        (2.0, [0, 0, 0, 0, 1], 0.0),
        (3.0, [0, 0, 0, 0, 1], 0.0),
        (-1.0, [1, 0, 0, 0, 0], 0.0),
    ],
)
def test_jumps(x, shares, slope):
    """At a jump the point to the right has all of the value, and at the right end there is no slope."""
    assert np.interp(x, XP, FP) == pytest.approx(np.dot(shares, FP), rel=1e-15)
    assert grad(lambda fp: np.interp(x, XP, fp))(FP).tolist() == shares
    assert grad(lambda x: np.interp(x, XP, FP))(x) == slope
    assert jvp(lambda x, fp: np.interp(x, XP, fp), (x, FP), (1.0, np.ones(5)))[1] == slope + 1.0
    by_points = grad(lambda xp: np.interp(x, xp, FP))(XP)
    assert np.sum(by_points) == pytest.approx(-slope, abs=1e-15)


def test_one_point():
    """One point is a constant function."""
    one = np.ones(1)
    for x in (0.5, 1.0, 1.5):
        assert grad(lambda fp, x=x: np.interp(x, one, fp))(one).tolist() == [1.0]
        assert grad(lambda x: np.interp(x, one, one))(x) == 0.0


@pytest.mark.parametrize("period", [4.0, 3.1, -2.7])
def test_period(period):
    """The period may be traced: points and values go around it, in another order, with NumPy's bits."""
    x, xp, fp = np.array([-3.3, 0.5, 4.5, 9.7, 2.0]), np.array([0.1, 1.3, 2.2, 3.9]), np.array([1.0, 3.0, -1.0, 0.5])
    f = lambda x, xp, fp, period: np.interp(x, xp, fp, period=period)
    assert vjp(f, x, xp, fp, period)[0].tobytes() == f(x, xp, fp, period).tobytes()
    check_grads(f, x, xp, fp, period, order=2)
    slope = grad(lambda period: np.sum(np.interp(x + 0 * period, xp, fp, period=period)))
    np.testing.assert_allclose(jit(slope)(period), slope(period), rtol=1e-13)
    with pytest.raises(ValueError, match="non-zero"):
        slope(0.0)


@pytest.mark.parametrize("discont", [None, 2.5])
def test_period_of_phases(discont):
    """The period of phases may be traced, with what counts as a jump: a phase moves by multiples of it."""
    p = np.array([[0.1, 3.3, -2.4, 6.9], [2.0, 9.1, -9.3, 0.4]])
    f = lambda p, period, discont: np.unwrap(p, discont, 1, period=period)
    for period in (2 * np.pi, 1.7):
        assert vjp(f, p, period, discont or 2.0)[0].tobytes() == f(p, period, discont or 2.0).tobytes()
        check_grads(lambda p, period: np.unwrap(p, discont, 0, period=period), p, period, order=2)
    slope = grad(lambda period: np.sum(f(p * (0 * period + 1), period, discont)))
    np.testing.assert_allclose(jit(slope)(1.7), slope(1.7), rtol=1e-13)
