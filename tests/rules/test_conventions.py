"""The points at which a function has no derivative, or several: docs/conventions.md, row by row."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import special as original

from ebbtide import grad, jvp
from ebbtide.scipy import special, stats
from ebbtide.scipy.interpolate import PchipInterpolator, RegularGridInterpolator
from ebbtide.scipy.optimize import fixed_point
from ebbtide.testing import check_grads

INF, NAN = np.inf, np.nan
PAGE = Path(__file__).parents[2] / "docs" / "conventions.md"


def _put_twice(x):
    """Write two values into one place."""
    u = np.zeros_like(x)
    np.put(u, [1, 1, 2], x)
    return u


# (function, operands, derivative of the sum of the result with respect to each operand)
POINTS = (
    (np.maximum, ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([0.0, 0.5, 1.0], [1.0, 0.5, 0.0])),
    (np.minimum, ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), ([1.0, 0.5, 0.0], [0.0, 0.5, 1.0])),
    (np.fmax, ([1.0, 2.0, NAN, 1.0], [2.0, 2.0, 2.0, NAN]), ([0.0, 0.5, 0.0, 1.0], [1.0, 0.5, 1.0, 0.0])),
    (np.fmin, ([1.0, 2.0, NAN, 1.0], [2.0, 2.0, 2.0, NAN]), ([1.0, 0.5, 0.0, 1.0], [0.0, 0.5, 1.0, 0.0])),
    (np.maximum, ([NAN, 1.0], [0.0, NAN]), ([0.5, 0.5], [0.5, 0.5])),
    (np.minimum, ([NAN, 1.0], [0.0, NAN]), ([0.5, 0.5], [0.5, 0.5])),
    (np.max, ([1.0, 3.0, 3.0, 0.0],), ([0.0, 0.5, 0.5, 0.0],)),
    (np.min, ([1.0, 0.0, 0.0, 0.0],), ([0.0, 1 / 3, 1 / 3, 1 / 3],)),
    (np.max, ([1.0, NAN, NAN, 0.0],), ([0.0, 0.5, 0.5, 0.0],)),
    (np.min, ([1.0, NAN, NAN, 0.0],), ([0.0, 0.5, 0.5, 0.0],)),
    (lambda x: np.clip(x, -1, 1), ([-2.0, -1.0, 0.0, 1.0, 2.0],), ([0.0, 0.5, 1.0, 0.5, 0.0],)),
    (lambda x: np.sort(x) * [1.0, 2.0, 4.0], ([2.0, 1.0, 1.0],), ([4.0, 1.0, 2.0],)),
    (lambda x: np.partition(x, 1) * [1.0, 2.0, 4.0], ([2.0, 1.0, 1.0],), ([4.0, 1.0, 2.0],)),
    (lambda x: np.max(x, initial=2.0), ([2.0, 1.0],), ([0.5, 0.0],)),
    (lambda x: np.min(x, initial=1.0), ([1.0, 2.0],), ([0.5, 0.0],)),
    (np.nanmin, ([1.0, NAN, 1.0],), ([0.5, 0.0, 0.5],)),
    (np.nanmean, ([1.0, NAN, 3.0],), ([0.5, 0.0, 0.5],)),
    (np.nanvar, ([1.0, NAN, 3.0],), ([-1.0, 0.0, 1.0],)),
    (np.nanstd, ([1.0, NAN, 3.0],), ([-0.5, 0.0, 0.5],)),
    (np.nanstd, ([2.0, NAN, 2.0],), ([0.0, 0.0, 0.0],)),
    (np.nancumsum, ([1.0, NAN, 3.0],), ([3.0, 0.0, 1.0],)),
    (np.nancumprod, ([2.0, NAN, 3.0],), ([5.0, 0.0, 2.0],)),
    (lambda x: np.mean(x, where=[True, False, True]), ([1.0, NAN, 3.0],), ([0.5, 0.0, 0.5],)),
    (lambda x: np.var(x, where=[True, False, True]), ([1.0, NAN, 3.0],), ([-1.0, 0.0, 1.0],)),
    (lambda x: np.percentile(x, 50.0), ([1.0, 2.0, 2.0],), ([0.0, 1.0, 0.0],)),
    (lambda q: np.percentile(np.array([1.0, 2.0, 4.0]), q), (50.0,), (0.04,)),
    (np.absolute, ([-2.0, 0.0, 3.0],), ([-1.0, 0.0, 1.0],)),
    (np.absolute, ([3 + 4j, 0j],), ([0.6 - 0.8j, 0.0],)),
    (np.fabs, ([-2.0, 0.0, 3.0],), ([-1.0, 0.0, 1.0],)),
    (np.copysign, ([2.0, -2.0, 0.0], [-1.0, -0.0, 1.0]), ([-1.0, 1.0, 0.0], [0.0, 0.0, 0.0])),
    (np.hypot, ([0.0, 3.0], [0.0, 4.0]), ([0.0, 0.6], [0.0, 0.8])),
    (np.hypot, ([3e200, 3e-200], [4e200, 4e-200]), ([0.6, 0.6], [0.8, 0.8])),
    (np.linalg.norm, ([0.0, 0.0],), ([0.0, 0.0],)),
    (lambda x: np.linalg.norm(x, axis=1), ([[0.0, 0.0], [3.0, 4.0]],), ([[0.0, 0.0], [0.6, 0.8]],)),
    (lambda x: np.linalg.norm(x, 3, 1), ([[0.0, 0.0], [3.0, 0.0]],), ([[0.0, 0.0], [1.0, 0.0]],)),
    (lambda x: np.linalg.norm(x, 1), ([[1.0, 2.0], [1.0, 0.0]],), ([[0.5, 0.5], [0.5, 0.0]],)),
    (lambda x: np.linalg.norm(x, 2), ([[2.0, 0.0], [0.0, 2.0]],), ([[0.5, 0.0], [0.0, 0.5]],)),
    (np.poly, ([1.0, 2.0],), ([1.0, 0.0],)),
    (np.linalg.eigvalsh, ([[1.0, 3.0], [0.0, 2.0]],), ([[1.0, 0.0], [0.0, 1.0]],)),
    (lambda x: np.linalg.eigh(x)[0] ** 2, ([[2.0, 0.0], [0.0, 2.0]],), ([[4.0, 0.0], [0.0, 4.0]],)),
    (lambda x: np.linalg.cholesky(x)[1, 0], ([[4.0, 9.0], [2.0, 4.0]],), ([[-0.25 / 2, 0.0], [0.5, 0.0]],)),
    (np.linalg.det, ([[0.0, 0.0], [0.0, 3.0]],), ([[3.0, 0.0], [0.0, 0.0]],)),
    (np.linalg.pinv, ([[2.0, 0.0], [0.0, 0.0]],), ([[-0.25, 0.25], [0.25, 0.0]],)),
    (np.std, ([2.0, 2.0],), ([0.0, 0.0],)),
    (np.arctan2, ([0.0, 1e-200], [0.0, 1e-200]), ([0.0, 0.5e200], [0.0, -0.5e200])),
    (np.angle, ([0j, 1j],), ([0.0, -1.0],)),
    (np.power, ([0.0, 0.0, 0.0, 2.0], [0.0, 1.0, 2.0, 0.0]), ([0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, np.log(2)])),
    (lambda x: x**0, ([0.0, -1.0],), ([0.0, 0.0],)),
    (lambda x: x**1, ([0.0, -1.0],), ([1.0, 1.0],)),
    (lambda x: x**2, ([0.0, -1.0],), ([0.0, -2.0],)),
    (lambda x: x**3, ([0.0, -2.0],), ([0.0, 12.0],)),
    (lambda x: x**-1, ([-2.0],), ([-0.25],)),
    (lambda x: x ** np.array([2, 3]), ([0.0, -2.0],), ([0.0, 12.0],)),
    (lambda x: x ** np.array([2.0, 0.0]), ([-3.0, 0.0],), ([-6.0, 0.0],)),
    (lambda y: 0.0**y, ([1.0, 2.0],), ([0.0, 0.0],)),
    (lambda y: np.array([0.0, 2.0]) ** y, ([1.0, 2.0],), ([0.0, 4 * np.log(2)],)),
    (np.prod, ([2.0, 0.0, 3.0],), ([0.0, 6.0, 0.0],)),
    (np.prod, ([2.0, 0.0, 0.0],), ([0.0, 0.0, 0.0],)),
    (np.cumprod, ([2.0, 0.0, 3.0],), ([1.0, 8.0, 0.0],)),
    (np.multiply.accumulate, ([0.0, 2.0, 0.0],), ([3.0, 0.0, 0.0],)),
    (np.maximum.accumulate, ([1.0, 1.0, 2.0, 0.0],), ([1.5, 0.5, 2.0, 0.0],)),
    (np.minimum.accumulate, ([1.0, 1.0, 0.0, 2.0],), ([1.5, 0.5, 2.0, 0.0],)),
    (lambda x: np.maximum.accumulate(x)[1:], ([1.0, NAN, 2.0],), ([0.75, 0.75, 0.5],)),
    (np.fmax.accumulate, ([NAN, 1.0, NAN, 2.0],), ([1.0, 2.0, 0.0, 1.0],)),
    (np.fmin.accumulate, ([3.0, NAN, 1.0],), ([2.0, 0.0, 1.0],)),
    (np.nanmax, ([NAN, 1.0, 1.0, 0.0],), ([0.0, 0.5, 0.5, 0.0],)),
    (np.fmin.reduce, ([NAN, 1.0, 1.0, 2.0],), ([0.0, 0.5, 0.5, 0.0],)),
    (np.nansum, ([NAN, 1.0],), ([0.0, 1.0],)),
    (np.nanprod, ([NAN, 0.0, 3.0],), ([0.0, 3.0, 0.0],)),
    (np.nanstd, ([NAN, 2.0, 2.0],), ([0.0, 0.0, 0.0],)),
    (lambda x: np.std(x, where=[True, True, False]), ([2.0, 2.0, NAN],), ([0.0, 0.0, 0.0],)),
    (lambda x: np.max(x, where=[True, False, True], initial=3.0), ([3.0, 9.0, 1.0],), ([0.5, 0.0, 0.0],)),
    (lambda x: np.sum(x, where=[True, False]), ([1.0, NAN],), ([1.0, 0.0],)),
    (np.median, ([1.0, 1.0, 2.0, 0.0],), ([0.5, 0.5, 0.0, 0.0],)),
    (np.median, ([NAN, 1.0, 3.0],), ([0.0, 0.0, 1.0],)),
    (np.nanmedian, ([NAN, 1.0, 3.0],), ([0.0, 0.5, 0.5],)),
    (lambda q: np.quantile([1.0, 2.0, 4.0], q), ([0.0, 0.25, 0.5, 1.0],), ([2.0, 2.0, 4.0, 4.0],)),
    (lambda q: np.quantile([1.0, 2.0, 4.0], q, method="hazen"), ([0.0, 0.25, 0.5, 1.0],), ([0.0, 3.0, 6.0, 0.0],)),
    (lambda q: np.percentile([1.0, 2.0, 4.0], q, method="nearest"), ([10.0, 60.0],), ([0.0, 0.0],)),
    (np.unique, ([2.0, 1.0, 2.0],), ([1.0, 1.0, 0.0],)),
    (np.logaddexp.reduce, ([-INF, -INF],), ([0.5, 0.5],)),
    (np.logaddexp.reduce, ([INF, 1.0],), ([1.0, 0.0],)),
    (np.hypot.reduce, ([0.0, 0.0],), ([0.0, 0.0],)),
    (lambda x, y: np.where([True, False], x, y), ([1.0, NAN], [NAN, 1.0]), ([1.0, 0.0], [0.0, 1.0])),
    (lambda x, y: np.where([True, False], x, y), ([1.0, INF], [INF, 1.0]), ([1.0, 0.0], [0.0, 1.0])),
    (np.logaddexp, ([-INF, -INF, 0.0], [0.0, -INF, 0.0]), ([0.0, 0.5, 0.5], [1.0, 0.5, 0.5])),
    (np.logaddexp, ([INF, INF, 0.0], [0.0, INF, INF]), ([1.0, 0.5, 0.0], [0.0, 0.5, 1.0])),
    (np.logaddexp2, ([-INF, -INF, 0.0], [0.0, -INF, 0.0]), ([0.0, 0.5, 0.5], [1.0, 0.5, 0.5])),
    (np.logaddexp2, ([INF, INF, 0.0], [0.0, INF, INF]), ([1.0, 0.5, 0.0], [0.0, 0.5, 1.0])),
    (np.logaddexp, ([-700.0], [0.0]), ([np.exp(-700.0)], [1.0])),
    (special.logsumexp, ([-INF, -INF],), ([0.5, 0.5],)),
    (special.logsumexp, ([INF, 0.0, INF],), ([0.5, 0.0, 0.5],)),
    (lambda x: special.logsumexp(x, b=np.array([1.0, 0.0])), ([2.0, 700.0],), ([1.0, 0.0],)),
    (original.xlogy, ([0.0, 2.0], [0.5, 0.5]), ([np.log(0.5)] * 2, [0.0, 4.0])),
    (original.xlog1py, ([0.0, 2.0], [-0.5, -0.5]), ([np.log(0.5)] * 2, [0.0, 4.0])),
    (original.rel_entr, ([1.0], [0.5]), ([np.log(2) + 1], [-2.0])),
    (lambda y: original.rel_entr(0.0, y), ([0.0, 0.5],), ([0.0, 0.0],)),
    (lambda y: original.kl_div(0.0, y), ([0.0, 0.5],), ([1.0, 1.0],)),
    (lambda r: original.huber(1.0, r), ([-2.0, -1.0, 0.0, 1.0],), ([-1.0, -1.0, 0.0, 1.0],)),
    (original.i0e, ([0.0],), ([0.0],)),
    (original.i1e, ([0.0],), ([0.5],)),
    (lambda x: original.ive(0, x), ([0.0],), ([0.0],)),
    (stats.laplace.logpdf, ([0.0, 2.0],), ([0.0, -1.0],)),
    (stats.expon.logpdf, ([-1.0, 0.0, 2.0],), ([0.0, 0.0, -1.0],)),
    (stats.uniform.logcdf, ([-1.0, 0.0, 0.5, 2.0],), ([0.0, 0.0, 2.0, 0.0],)),
    (lambda k: stats.poisson.pmf(k, 1.5), ([1.0, 1.5],), ([0.0, 0.0],)),
    (np.remainder, ([1.0, -1.0, 5.5], [0.1, 0.3, -2.0]), ([1.0, 1.0, 1.0], [-9.0, 4.0, 3.0])),
    (np.fmod, ([1.0, -1.0, 5.5], [0.1, 0.3, -2.0]), ([1.0, 1.0, 1.0], [-9.0, 3.0, 2.0])),
    (lambda x, y: np.divmod(x, y)[1], ([1.0, 5.5], [0.1, -2.0]), ([1.0, 1.0], [-9.0, 3.0])),
    (lambda x: np.modf(x)[0], ([-1.5, 2.0],), ([1.0, 1.0],)),
    (lambda x: np.frexp(x)[0], ([0.5, -6.0, 0.0],), ([1.0, 0.125, 1.0],)),
    (lambda x: np.unwrap(x) * [1.0, 2.0, 4.0], ([0.0, np.pi, 9.0],), ([1.0, 2.0, 4.0],)),
    (lambda x: np.interp(x, [0.0, 1.0, 3.0], [0.0, 2.0, 8.0]), ([-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, NAN],),
     ([0.0, 2.0, 3.0, 3.0, 3.0, 0.0, 0.0],)),
    (lambda xp, fp: np.interp([-1.0, 0.0, 3.0, 4.0], xp, fp), ([0.0, 1.0, 3.0], [0.0, 2.0, 8.0]),
     ([-2.0, 0.0, -3.0], [2.0, 0.0, 2.0])),
    (lambda x: np.polymul(x, [1.0, 1.0]), ([0.0, 3.0],), ([0.0, 2.0],)),
    (lambda x: np.extract(x > 0, x), ([1.0, 0.0, -1.0],), ([1.0, 0.0, 0.0],)),
    (lambda x: np.piecewise(x, [x > 0], [np.square, 3.0]), ([2.0, 0.0],), ([4.0, 0.0],)),
    (_put_twice, ([1.0, 2.0, 3.0],), ([0.0, 1.0, 1.0],)),
    (np.nan_to_num, ([NAN, INF, -INF, 2.0],), ([0.0, 0.0, 0.0, 1.0],)),
    (np.sinc, ([0.0, 1e-9],), ([0.0, -(np.pi**2) / 3 * 1e-9],)),
    (lambda z: np.absolute(z) ** 2, ([1 + 2j],), ([2 - 4j],)),
    (lambda z: np.square(z.real) + np.square(z.imag), ([1 + 2j],), ([2 - 4j],)),
    (lambda x: np.real(x * (1 + 2j)), ([3.0],), ([1.0],)),
    (RegularGridInterpolator([[0.0, 1.0, 2.0]], [0.0, 1.0, 4.0]), ([[0.0], [1.0], [2.0]],), ([[1.0], [3.0], [3.0]],)),
    (lambda y: PchipInterpolator(np.arange(4.0), y)([1.5]), ([0.0, 1.0, 0.0, 2.0],), ([0.0, 0.5, 0.5, 0.0],)),
    (lambda x: fixed_point(np.cos, x), ([0.5],), ([0.0],)),
)  # fmt: skip


@pytest.mark.parametrize(("function", "operands", "expected"), POINTS)
def test_convention(function, operands, expected):
    """Where there is no derivative, or several, both modes give the documented one."""
    arrays = [np.array(x) for x in operands]

    def total(*xs):
        return np.sum(function(*xs))

    found = grad(total, tuple(range(len(arrays))))(*arrays)
    for k, (gradient, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12)
        assert gradient.dtype == arrays[k].dtype
        for place in np.ndindex(arrays[k].shape):
            direction = np.zeros(arrays[k].shape, arrays[k].dtype)
            direction[place] = 1
            tangents = [direction if j == k else np.zeros_like(x) for j, x in enumerate(arrays)]
            slope = jvp(total, arrays, tangents)[1]
            np.testing.assert_allclose(slope, np.real(np.array(wanted)[place]), rtol=1e-12)


@pytest.mark.parametrize("function", [np.sqrt, np.cbrt, original.entr])
def test_infinite_slope(function):
    """The slope of a root at zero is infinite, and of an entropy, and NumPy warns."""
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert grad(function)(0.0) == INF


def test_exponent_of_negative_base():
    """With respect to its exponent a power of a negative number has no derivative."""
    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert np.isnan(grad(operator.pow, 1)(-2.0, 2.0))
    assert grad(operator.pow)(-2.0, 2.0) == -4.0


@pytest.mark.parametrize("x", [0.0, 1e-9, 1e-3, 0.159, 0.16, 3.0])
def test_sinc_near_zero(x):
    """The second derivative of sinc keeps its accuracy where the formula cancels, on both sides of the change."""
    y = np.pi * x
    exact = -np.sin(y) / y - 2 * np.cos(y) / y**2 + 2 * np.sin(y) / y**3 if y > 0.1 else -1 / 3 + y**2 / 10
    np.testing.assert_allclose(grad(grad(np.sinc))(x), np.pi**2 * exact, rtol=1e-5 if 1e-4 < x < 0.1 else 1e-11)


def test_second_order_at_ties():
    """Derivatives of derivatives exist at ties, where the first one is shared."""
    assert grad(grad(lambda x: np.maximum(x, 0.0) * x))(0.0) == 1.0
    check_grads(np.prod, np.array([1.5, 0.0, 2.0]))


STEPS = (
    (np.floor, ()), (np.ceil, ()), (np.rint, ()), (np.trunc, ()), (np.round, ()), (np.sign, ()),
    (np.floor_divide, (0.5,)), (np.heaviside, (0.5,)),
)  # fmt: skip


@pytest.mark.parametrize(("function", "rest"), STEPS)
def test_steps(function, rest):
    """A function that is constant but for steps gives a plain array, whose derivative is 0 in both modes."""
    x = np.array([-1.5, 0.0, 0.5, 2.0])
    value = function(x, *rest)
    types = []

    def f(x):
        found = function(x, *rest)
        types.append(type(found))
        return np.sum(found * x)

    assert np.array_equal(grad(f)(x), value)
    assert jvp(f, (x,), (x,))[1] == np.sum(value * x)
    assert set(types) == {np.ndarray}


@pytest.mark.parametrize(
    "function",
    [np.argmax, np.argsort, np.argmin, np.nonzero, np.isnan, np.histogram, np.digitize, operator.lt, operator.eq],
)
def test_searches(function):
    """Comparisons and searches give plain arrays, of which nothing depends on the operand."""
    x = np.array([2.0, -1.0, 0.5])
    rest = {operator.lt: (0.0,), operator.eq: (0.0,), np.digitize: ([0.0],)}.get(function, ())

    def f(x):
        found = function(x, *rest)
        for part in found if isinstance(found, tuple) else (found,):
            assert isinstance(part, (np.ndarray, np.generic))
        return np.sum(x * 2.0)

    assert np.array_equal(grad(f)(x), np.full(3, 2.0))
    assert jvp(f, (x,), (x,))[1] == 3.0


def rows_of(page):
    """Return for each row of the table of a page the last names of its functions, of `x ** y` the operator."""
    lines = [line for line in page.splitlines() if line.startswith("| ") and "`" in line.split("|")[1]]
    found = [re.findall(r"`([\w.]+|x \*\* y)`", line.split("|")[1]) for line in lines]
    return [{name.rpartition(".")[2] for name in names} for names in found]


def mentioned_in(source):
    """Return how often each name, attribute, keyword, import and operator of powers is in a source."""
    nodes = list(ast.walk(ast.parse(source)))
    found = Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
    found.update(node.id for node in nodes if isinstance(node, ast.Name))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    found.update(alias.name for node in imports for alias in node.names)
    found.update((node.module or "").rpartition(".")[2] for node in imports)
    found.update(f"{node.arg}=" for node in nodes if isinstance(node, ast.keyword))
    found["x ** y"] = sum(isinstance(node, ast.Pow) for node in nodes)
    return found


def test_correlation_cut_off():
    """Where rounding makes a correlation larger than 1, it is cut off; the derivative is that of the formula."""
    x = np.array([1.0, 2.0, 4.0])
    gradient = grad(lambda x: np.corrcoef(x, 3.0 * np.array([1.0, 2.0, 4.0]))[0, 1])(x)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-15)


def test_each_row_has_a_test():
    """Each function of each row of the table is in these tests, as often at least as there are rows of it."""
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert len(rows) > 15
    wanted = Counter(name for row in rows for name in row)
    here = Path(__file__).parent
    files = [file for folder in (here, here.parent / "scipy") for file in folder.glob("test_*.py")]
    found = sum([mentioned_in(file.read_text(encoding="utf-8")) for file in files], Counter())
    assert {name: count for name, count in wanted.items() if found[name] < count} == {}


def test_rows_without_a_test_are_found():
    """A row of a function that no test names, or of one more point of it, is found missing."""
    page = "| `sinc` with `where=`, `special.zeta` | 0 | 1 |\n| `sinc` | nan | nan |\n| comparisons, `x ** y` | 0 | 0 |"
    assert rows_of(page) == [{"sinc", "zeta"}, {"sinc"}, {"x ** y"}]
    assert mentioned_in("np.sinc(x) ** 2")["sinc"] == 1
    assert mentioned_in("np.sinc(x) ** 2")["x ** y"] == 1


def test_powers_of_negative_numbers_by_complex_ones():
    """A negative number has a logarithm where the power is complex."""
    z, b = np.array([1.0 + 1.0j, 2.0 - 1.0j, 0.5 + 0.0j]), np.array([-2.0, 3.0, -0.5])
    for f, log in ((lambda z: (-2.0) ** z, np.log(-2.0 + 0j)), (lambda z: np.power(b, z), np.log(b + 0j))):
        pushed = jvp(f, (z,), (np.ones_like(z),))[1]
        np.testing.assert_allclose(pushed, f(z) * log, rtol=1e-13)


def test_variance_as_a_complex_number():
    """Its imaginary part is 0 everywhere, and so is the gradient of that."""
    z = np.array([1.0 + 1.0j, 2.0 - 1.0j, 0.5 + 0.0j])
    for f in (np.var, np.std, np.nanvar, np.nanstd):
        assert not np.any(grad(lambda z, f=f: np.imag(f(z, dtype=np.complex128)))(z))
        both = grad(lambda z, f=f: np.real((1 + 1j) * f(z, dtype=np.complex128)))(z)
        np.testing.assert_allclose(both, grad(lambda z, f=f: np.real(f(z)))(z), rtol=1e-13)
