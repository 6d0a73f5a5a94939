"""Cubic polynomials between knots from values and slopes there, and the slopes that keep the shape of the values."""

from __future__ import annotations

from typing import Any

import numpy as np


def hermite(step: Any, width: Any, ends: tuple[Any, Any], slopes: tuple[Any, Any], order: int = 0) -> Any:
    """
    Return cubic polynomials, or their derivatives of an order.

    Args:
        step: The distance from the knot below.
        width: That between the knots.
        ends: The values at the knots below and above.
        slopes: The slopes there.
        order: That of the derivative.
    """
    (low, high), (before, after) = ends, slopes
    mean = (high - low) / width
    bend = (before + after - 2 * mean) / width
    coefficients = [bend / width, (mean - before) / width - bend, before, low]
    for _ in range(order):
        degrees = range(len(coefficients) - 1, 0, -1)
        coefficients = [c * degree for c, degree in zip(coefficients, degrees, strict=False)] or [0 * low]
    total = coefficients[0] + 0 * step
    for coefficient in coefficients[1:]:
        total = total * step + coefficient
    return total


def slopes_of_shape(x: Any, flat: Any) -> Any:
    """
    Return the slopes at the knots that keep the shape: the harmonic means of those beside, where signs agree.

    Args:
        x: The knots.
        flat: The values, of shape (knots, columns).

    Source:
        F. N. Fritsch and J. Butland, A method for constructing local monotone piecewise cubic interpolants, SIAM J.
        Sci. Stat. Comput. 5 (1984).
    """
    h = np.reshape(np.diff(x), (-1, 1))
    m = (flat[1:] - flat[:-1]) / h
    if len(x) == 2:
        return np.concatenate([m, m])
    w1, w2 = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    agree = np.sign(m[1:]) * np.sign(m[:-1]) > 0
    left, right = np.where(agree, m[:-1], 1.0), np.where(agree, m[1:], 1.0)
    inner = np.where(agree, (w1 + w2) / (w1 / left + w2 / right), 0.0)
    return np.concatenate([_end(h[0], h[1], m[0], m[1]), inner, _end(h[-1], h[-2], m[-1], m[-2])])


def _end(h0: Any, h1: Any, m0: Any, m1: Any) -> Any:
    """Return the slope at an end: of the parabola through three points, unless that would change the shape."""
    slope = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    slope = np.where(np.logical_and(np.sign(m0) != np.sign(m1), np.abs(slope) > 3 * np.abs(m0)), 3 * m0, slope)
    return np.reshape(np.where(np.sign(slope) != np.sign(m0), 0.0, slope), (1, -1))
