"""Arrays between their elements: `map_coordinates` with all modes, by the array and by the points."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage as original

from ebbtide import TraceError, grad, jit, jvp, vjp, vmap
from ebbtide.scipy import ndimage
from ebbtide.testing import check_grads

MODES = ["constant", "grid-constant", "nearest", "reflect", "grid-mirror", "mirror", "wrap", "grid-wrap"]
ARRAY = np.random.default_rng(5).standard_normal((4, 5))
# Inside, near the ends, and beyond them by more than a period; none of them where two pieces meet.
POINTS = np.array([[1.3, 0.2, 2.8, -0.4, -1.7, 3.4, 9.1], [0.6, 3.7, 2.2, 1.4, -0.3, 4.3, -7.6]])


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_values_and_derivatives(mode, order):
    """Values have SciPy's bits, and derivatives of both modes are right, inside and beyond the boundary."""

    def f(array, points):
        return ndimage.map_coordinates(array, points, order=order, mode=mode, cval=0.7)

    expected = original.map_coordinates(ARRAY, POINTS, order=order, mode=mode, cval=0.7)
    np.testing.assert_array_equal(vjp(f, ARRAY, POINTS)[0], expected)
    np.testing.assert_array_equal(jvp(f, (ARRAY, POINTS), (ARRAY, POINTS))[0], expected)
    check_grads(f, ARRAY, POINTS)
    check_grads(f, ARRAY + 0.3j * ARRAY[::-1], POINTS)


def test_points_as_they_are_given():
    """Points may be a list of arrays of any shape; single precision stays so; one axis is enough."""
    ys, xs = POINTS.reshape(2, 7, 1)[:, :6].reshape(2, 2, 3)
    by_y, by_x = grad(lambda ys, xs: np.sum(ndimage.map_coordinates(ARRAY, [ys, xs], order=1)), (0, 1))(ys, xs)
    both = grad(lambda points: np.sum(ndimage.map_coordinates(ARRAY, points, order=1)))(np.stack([ys, xs]))
    np.testing.assert_array_equal(np.stack([by_y, by_x]), both)
    single = ARRAY.astype(np.float32)
    found = grad(lambda a, p: np.sum(ndimage.map_coordinates(a, p, order=1)), (0, 1))(single, POINTS.astype("f"))
    assert [g.dtype for g in found] == [np.float32, np.float32]
    line = grad(lambda p: np.sum(ndimage.map_coordinates(ARRAY[0], p, order=1)))(np.array([[0.5, 2.25]]))
    np.testing.assert_allclose(line, [np.diff(ARRAY[0])[[0, 2]]], rtol=1e-13)


def test_output():
    """The result is in the dtype of output=, or written into that array."""
    f = lambda array: ndimage.map_coordinates(array, POINTS, np.float32, order=1)
    value, pullback = vjp(f, ARRAY)
    assert value.tobytes() == original.map_coordinates(ARRAY, POINTS, np.float32, order=1).tobytes()
    assert pullback(value)[0].dtype == np.float64

    def written(array):
        out = np.zeros_like(array[0, :1] * np.ones(7))
        assert ndimage.map_coordinates(array, POINTS, output=out, order=1) is out
        return np.sum(out**2)

    check_grads(written, ARRAY)


def test_programs_and_batches():
    """In a program and under vmap the same is computed."""

    def f(points):
        return np.sum(np.sin(ndimage.map_coordinates(ARRAY, points, order=1, mode="wrap")))

    expected = grad(f)(POINTS)
    np.testing.assert_allclose(jit(grad(f))(POINTS), expected, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(vmap(grad(f))(POINTS[None]), expected[None], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TraceError, "order=3 has no derivative rule"),
        ({"order": 1, "output": np.int32}, TraceError, "output=float"),
        ({"order": 1, "coordinates": POINTS[:1]}, ValueError, r"shape \(1, 7\) for an array of 2 axes"),
    ],
)
def test_refusals(options, error, message):
    """What has no derivative says so, with what to write."""
    with pytest.raises(error, match=message):
        grad(lambda a: np.sum(ndimage.map_coordinates(a, **{"coordinates": POINTS, **options})))(ARRAY)
