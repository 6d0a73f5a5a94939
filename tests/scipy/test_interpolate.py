"""Interpolation: SciPy's values, and derivatives with respect to values and points."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import interpolate as original
from scipy.sparse.linalg import spsolve
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, BudgetError, TraceError, checkpoint, grad, jit, jvp, timeloop, vjp, vmap
from ebbtide.scipy.interpolate import CubicSpline, PchipInterpolator, RegularGridInterpolator
from ebbtide.scipy.interpolate.hermite import hermite, slopes_of_shape
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(11)
GRID = (np.array([0.0, 0.5, 2.0, 3.0]), np.array([3.0, 1.0, 0.0]), np.array([-1.0, 1.0]))
VALUES = RANDOM.random((4, 3, 2))
POINTS = np.array([[0.2, 2.5, 0.3], [1.7, 0.4, -0.9], [2.9, 1.2, 0.6]])
# Values, points and options: axes, trailing axes of the values, points of several axes, and outside.
GRIDS = [
    (VALUES[:, 0, 0], POINTS[:, :1], 1, {}),
    (VALUES[:, :, 0], POINTS[:, :2], 2, {}),
    (VALUES, POINTS, 3, {}),
    (VALUES, POINTS[:, :2].reshape(1, 3, 2), 2, {}),
    (VALUES[:, :, 0], POINTS[:, :2] * 2, 2, {"bounds_error": False, "fill_value": 0.5}),
    (VALUES[:, :, 0], POINTS[:, :2] * 2, 2, {"bounds_error": False, "fill_value": None}),
]


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("call", GRIDS, ids=range(len(GRIDS)))
def test_grid(call, method):
    """Interpolation on a grid has SciPy's bits, and right derivatives with respect to values and points."""
    values, points, count, options = call
    for dtype in (np.float64, np.float32, np.complex128):
        given = values.astype(dtype) * dtype(1 + 0.5j if dtype is np.complex128 else 1)
        expected = original.RegularGridInterpolator(GRID[:count], given, method, **options)(points)
        f = lambda v, x: RegularGridInterpolator(GRID[:count], v, method, **options)(x)
        value, pullback = vjp(f, given, points)
        assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes())
        assert [g.dtype for g in pullback(value)] == [given.dtype, points.dtype]
        assert f(given, points).tobytes() == expected.tobytes()
    loss = lambda v, x: np.sum(np.sin(f(v, x)))
    check_grads(loss, values, points, order=2)
    expected = grad(loss, (0, 1))(values, points)
    for one, other in zip(jit(grad(loss, (0, 1)))(values, points), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    members = np.stack([values, 2 * values]), np.stack([points, points * 0.9])
    found = vmap(grad(loss, (0, 1)))(*members)
    for k, other in enumerate(grad(loss, (0, 1))(2 * values, points * 0.9)):
        np.testing.assert_allclose(found[k][1], other, rtol=1e-12, atol=1e-14)


LONG = (np.array([0.0, 0.5, 1.2, 2.0, 2.4, 3.0, 3.3]), np.array([3.0, 2.5, 1.9, 1.0, 0.3, 0.0]))
LARGE = RANDOM.random((7, 6, 2))
INNER = np.stack([RANDOM.uniform(0, 3, 3), RANDOM.uniform(0, 3, 3)], axis=1)
EXACT = {"solver": spsolve}  # SciPy's own solver stops at 1e-6
METHODS = {
    "slinear": EXACT, "cubic": EXACT, "quintic": EXACT, "pchip": {}, "cubic_legacy": {},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bounds", [{}, {"fill_value": 0.5}, {"fill_value": None}], ids=["error", "fill", "extend"])
def test_methods(method, bounds):
    """Each method has SciPy's bits and dtypes, inside and outside of the grid, and the derivatives of its pieces."""
    options = {**METHODS[method], **bounds, "bounds_error": not bounds}
    points = INNER * 1.3 - 0.2 if bounds else INNER
    f = lambda v, x: RegularGridInterpolator(LONG, v, method, **options)(x)
    for dtype in (np.float32, np.float64) + (np.complex128,) * (method != "pchip"):
        given = LARGE.astype(dtype)
        expected = original.RegularGridInterpolator(LONG, given, method, **options)(points)
        value, pullback = vjp(f, given, points)
        assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes())
        assert [g.dtype for g in pullback(value)] == [dtype, np.float64]
        assert f(given, points).tobytes() == expected.tobytes()
        assert jvp(f, (given, points), (given, points))[1].dtype == expected.dtype
    check_grads(f, LARGE, points, order=1 if bounds or method == "cubic_legacy" else 2)


@pytest.mark.parametrize("method", ["cubic", "pchip"])
def test_methods_in_programs(method):
    """Programs and batches interpolate by splines as what they are made from does."""
    options = METHODS[method]
    loss = lambda v, x: np.sum(np.sin(RegularGridInterpolator(LONG, v, method, **options)(x)))
    gradient = grad(loss, (0, 1))
    for one, other in zip(jit(gradient)(LARGE, INNER), gradient(LARGE, INNER), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    found = vmap(gradient)(np.stack([LARGE, 2 * LARGE]), np.stack([INNER, INNER * 0.9]))
    for k, other in enumerate(gradient(2 * LARGE, INNER * 0.9)):
        np.testing.assert_allclose(found[k][1], other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("orders", [(1, 0), (2, 1), (0, 4)])
def test_derivatives_along_the_axes(orders):
    """With nu= the derivatives are SciPy's, and have derivatives; those of the pieces are what SciPy has for them."""
    f = RegularGridInterpolator(LONG, LARGE, "cubic", **EXACT)
    plain = original.RegularGridInterpolator(LONG, LARGE, "cubic", **EXACT)
    assert f(INNER, nu=orders).tobytes() == plain(INNER, nu=orders).tobytes()
    more = (orders[0], orders[1] + 1)
    along = jvp(lambda x: f(x, nu=orders), (INNER,), (np.array([[0.0, 1.0]]) * np.ones((3, 1)),))[1]
    np.testing.assert_allclose(along, plain(INNER, nu=more), rtol=1e-10, atol=1e-12)
    check_grads(lambda v: RegularGridInterpolator(LONG, v, "cubic", **EXACT)(INNER, nu=orders), LARGE)


def test_another_method():
    """A call may name another method than the interpolation was made for."""
    f, plain = (form(LONG, LARGE, "quintic") for form in (RegularGridInterpolator, original.RegularGridInterpolator))
    assert f(INNER, "pchip").tobytes() == plain(INNER, "pchip").tobytes()
    check_grads(lambda x: f(x, method="pchip"), INNER)


def test_forms_of_points():
    """Points are given as an array, as one array for each axis, or as one point."""
    f = RegularGridInterpolator(GRID[:2], VALUES[:, :, 0])
    plain = original.RegularGridInterpolator(GRID[:2], VALUES[:, :, 0])
    for xi in (POINTS[0, :2], (POINTS[:, 0], 0.7), [[0.1, 0.2]]):
        np.testing.assert_array_equal(f(xi), plain(xi))
    np.testing.assert_allclose(
        grad(lambda x, y: np.sum(f((x, y))), 1)(POINTS[:, 0], 0.7),
        np.sum(grad(lambda p: np.sum(f(p)))(np.stack([POINTS[:, 0], np.full(3, 0.7)], axis=1))[:, 1]),
    )


def test_refusals():
    """Methods that there are not, points outside, and axes and orders that no derivative is for are errors."""
    with pytest.raises(ValueError, match="Method 'septic' is not defined"):
        RegularGridInterpolator(GRID, VALUES, "septic")
    with pytest.raises(ValueError, match="nu=\\(1, 0, 0\\) for the methods"):
        RegularGridInterpolator(GRID, VALUES)(POINTS, nu=(1, 0, 0))
    with pytest.raises(ValueError, match="each of the 2 axes"):
        RegularGridInterpolator(LONG, LARGE, "cubic")(INNER, nu=(1, -1))
    with pytest.raises(TraceError, match="axis of one coordinate"):
        RegularGridInterpolator((GRID[0], [1.0]), VALUES[:, :1, 0])
    with pytest.raises(ValueError, match="only works with real values"):
        grad(lambda v: abs(RegularGridInterpolator(LONG, v, "pchip")(INNER)[0, 0]))(LARGE * 1j)
    with pytest.raises(ValueError, match="out of bounds"):
        grad(lambda x: np.sum(RegularGridInterpolator(GRID, VALUES)(x)))(POINTS + 10)
    with pytest.raises(ValueError, match="2 coordinates were asked for on a grid of 3"):
        RegularGridInterpolator(GRID, VALUES)(POINTS[:, :2])
    with pytest.raises(TraceError, match="periodic"):
        CubicSpline(X, Y[0], bc_type="periodic")(AT)


X = np.array([0.0, 0.7, 1.1, 2.0, 2.6, 3.0])
Y = RANDOM.random((3, 6))
MONOTONE = np.array([0.1, 0.3, 0.35, 1.2, 0.9, 0.8])
AT = np.array([[0.3, 0.9], [2.2, 2.9], [-0.4, 3.3]])
SPLINES = [
    (CubicSpline, {}, Y[0]),
    (CubicSpline, {"bc_type": "natural"}, Y[0]),
    (CubicSpline, {"bc_type": "clamped", "axis": 1}, Y),
    (CubicSpline, {"bc_type": ((1, 0.5), (2, -0.3))}, Y[0]),
    (CubicSpline, {"extrapolate": False}, Y[0]),
    (PchipInterpolator, {}, MONOTONE),
    (PchipInterpolator, {"axis": 1}, np.stack([MONOTONE, -MONOTONE, MONOTONE[::-1]])),
    (PchipInterpolator, {}, MONOTONE[:2]),
]


@pytest.mark.parametrize("call", SPLINES, ids=range(len(SPLINES)))
def test_splines(call):
    """Splines have SciPy's bits, and right derivatives with respect to values and points, also of their derivatives."""
    form, options, y = call
    x = X[: y.shape[-1]]
    plain = getattr(original, form.__name__)
    for nu in (0, 1):
        f = lambda y, t: form(x, y, **options)(t, nu)
        expected = plain(x, y, **options)(AT, nu)
        assert vjp(f, y, AT)[0].tobytes() == expected.tobytes()
        assert f(y, AT).tobytes() == expected.tobytes()
        inside = AT[:2]
        loss = lambda y, t: np.sum(np.sin(f(y, t)))
        check_grads(loss, y, inside, order=2)
    np.testing.assert_allclose(jit(grad(loss))(y, inside), grad(loss)(y, inside), rtol=1e-12)
    np.testing.assert_allclose(
        vmap(grad(loss), (0, None))(np.stack([y, 2 * y]), inside)[1], grad(loss)(2 * y, inside), rtol=1e-12
    )
    assert grad(loss)(y.astype(np.float32), inside).dtype == np.float32


def test_derivative_of_a_spline():
    """The derivative with respect to the points is SciPy's derivative of the spline, also beyond the ends."""
    for form in (CubicSpline, PchipInterpolator):
        found = grad(lambda t: np.sum(form(X, MONOTONE)(t)))(AT)
        np.testing.assert_allclose(found, getattr(original, form.__name__)(X, MONOTONE)(AT, 1), rtol=1e-12)
        pushed = jvp(form(X, MONOTONE), (AT,), (np.ones_like(AT),))[1]
        np.testing.assert_allclose(pushed, found, rtol=1e-12)


def test_slopes_of_plain_values():
    """In a program and under vmap there are derivatives by the points of values that are plain."""
    f = RegularGridInterpolator((np.arange(3.0), np.arange(2.0)), np.arange(6.0).reshape(3, 2) ** 2)
    slope, points = grad(lambda x: f(x)[0]), np.array([[0.5, 0.25], [1.7, 0.9]])
    expected = np.stack([slope(x) for x in points])
    np.testing.assert_allclose(jit(slope)(points[1]), expected[1], rtol=1e-14)
    np.testing.assert_allclose(vmap(slope)(points), expected, rtol=1e-14)
    along = jit(lambda x: jvp(lambda x: f(x)[0], (x,), (points[0],))[1])(points[1])
    np.testing.assert_allclose(along, expected[1] @ points[0], rtol=1e-14)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_slopes_and_cubics(count):
    """The slopes that keep the shape are SciPy's, and so are the cubics between knots and all their derivatives."""
    x = np.cumsum(RANDOM.uniform(0.2, 1.0, count))
    flat = np.round(RANDOM.standard_normal((count, 40)), 1)
    flat[:, ::4] = flat[:1, ::4]  # all values the same
    expected = original.PchipInterpolator(x, flat)
    slopes = slopes_of_shape(x, flat)
    np.testing.assert_allclose(slopes, expected(x, 1), rtol=1e-12, atol=1e-14)
    for k in range(count - 1):
        width = x[k + 1] - x[k]
        for order in range(5):
            found = hermite(0.3 * width, width, (flat[k], flat[k + 1]), (slopes[k], slopes[k + 1]), order)
            np.testing.assert_allclose(found, expected(x[k] + 0.3 * width, order), rtol=1e-9, atol=1e-11)


def test_derivatives_of_slopes():
    """Slopes that keep the shape have derivatives with respect to values and knots, at ends that are cut off too."""
    x = np.array([0.0, 0.4, 1.1, 1.5, 2.5])
    flat = np.array([[0.0, 0.0], [1.0, 0.1], [1.7, 3.0], [1.2, 3.1], [1.0, 0.0]])
    check_grads(slopes_of_shape, x, flat, order=2)


def test_splines_of_many_knots_take_vectors():
    """A derivative makes no matrix of the slopes, which has the square of the number of knots."""
    knots, values = np.arange(2000.0), np.sin(np.arange(2000.0))
    slope = grad(lambda y: np.sum(CubicSpline(knots, y)(np.array([3.5, 1200.2])) ** 2))
    slope(values)
    assert peak_bytes(lambda: slope(values)) < 60 * values.nbytes


@pytest.mark.parametrize("count", [2, 3, 4, 9])
@pytest.mark.parametrize("ends", ["not-a-knot", "natural", ("clamped", "natural"), ((1, 0.3), (2, -0.2))])
def test_slopes_of_splines_are_scipys(count, ends):
    """The tangent of the values is the difference of two of SciPy's splines, whatever the ends and their number."""
    x, points = np.cumsum(np.linspace(0.5, 1.5, count)), np.linspace(0.4, 2.0, 7)
    y, along = np.sin(x), np.cos(3 * x)
    found = jvp(lambda y: CubicSpline(x, y, bc_type=ends)(points), (y,), (along,))[1]
    plain = [original.CubicSpline(x, values, bc_type=ends)(points) for values in (y + along, y)]
    np.testing.assert_allclose(found, plain[0] - plain[1], rtol=1e-12, atol=1e-12)


LINE, SQUARE = np.linspace(0, 1, 10_000), (np.linspace(0, 1, 100),) * 2
ALONG, WITHIN = np.linspace(0.01, 0.99, LINE.size), RANDOM.uniform(0.01, 0.99, (LINE.size, 2))
ON_SQUARE = np.cos(SQUARE[0])[:, None] * SQUARE[1] / 2 + 0.25
# Interpolations by values and by points, and what they are of.
MANY = {
    "spline, values": (lambda y: CubicSpline(LINE, y)(ALONG), np.sin(5 * LINE)),
    "spline, points": (lambda x: CubicSpline(LINE, LINE**2)(0.01 + 0.98 * x), ALONG),
    "pchip, values": (lambda y: PchipInterpolator(LINE, y)(ALONG), np.sin(5 * LINE)),
    "pchip, points": (lambda x: PchipInterpolator(LINE, LINE**2)(0.01 + 0.98 * x), ALONG),
    "linear, values": (lambda y: RegularGridInterpolator(SQUARE, y)(WITHIN).reshape(y.shape), ON_SQUARE),
    "cubic, points": (lambda x: x * RegularGridInterpolator(SQUARE, ON_SQUARE, "cubic")(x)[:, None], WITHIN),
}
AROUND = {
    "nothing": lambda f, x: np.sum(f(x) ** 2),
    "a checkpoint": lambda f, x: np.sum(checkpoint(f)(x) ** 2),
    "a loop": lambda f, x: np.sum(timeloop(lambda u, _: f(u), x, 8) ** 2),
}


@pytest.mark.parametrize(("name", "around", "disk"), list(product(MANY, AROUND, [0, 2**30])))
def test_the_first_least_is_enough(name, around, disk):
    """What a pull takes is followed in any budget: a gradient runs in the least that its first refusal names."""
    step, x = MANY[name]
    f = lambda x: AROUND[around](step, x)
    expected, found = grad(f)(x), []

    def refused(memory):
        with pytest.raises(BudgetError) as error:
            grad(f, budget=Budget(memory, disk))(x)
        return error.value.least

    # With less than a step saves, loops cannot try what its rules take: that is told by the second refusal.
    least, alone = refused(4 * x.nbytes), peak_bytes(lambda: f(x))
    assert peak_bytes(lambda: found.append(grad(f, budget=Budget(least, disk))(x))) - alone <= least
    assert np.array_equal(found[0], expected)
    if not disk:
        assert refused(least - 1) == least


@pytest.mark.parametrize(("count", "many"), [(50, 2500), (20, 400)])
def test_index_arrays_that_numpy_repeats_are_in_the_budget(count, many):
    """NumPy repeats index arrays of several shapes, 64 KiB of each at a time: loops of small grids have room for it."""
    grid, at = (np.linspace(0, 1, count),) * 2, np.random.default_rng(3).uniform(0, 1, (many, 2))

    def f(u):
        def step(u, _):
            return 0.9 * u + 0.1 * np.mean(np.sin(RegularGridInterpolator(grid, u)(at)))

        return np.sum(timeloop(step, u, 10) ** 2)

    u = np.random.default_rng(4).uniform(0, 1, (count, count))
    expected, found = grad(f)(u), []
    bounded = lambda memory: grad(f, budget=Budget(memory))(u)
    least, alone = find_least(bounded), peak_bytes(lambda: f(u))
    assert peak_bytes(lambda: found.append(bounded(least))) - alone <= least
    assert np.array_equal(found[0], expected)
