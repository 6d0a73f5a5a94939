"""Interpolation between points of which two are at one place: a jump, with the derivative of the side that counts."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jvp

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
