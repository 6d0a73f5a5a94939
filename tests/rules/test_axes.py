"""Axes are what NumPy takes for them: one is a number, and a tuple of one is none."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jit, vjp

X = np.arange(12.0).reshape(3, 4) + 1
ALONG_ONE = {
    "sort": np.sort,
    "partition": lambda x, axis: np.partition(x, 1, axis),
    "take": lambda x, axis: np.take(x, [0], axis),
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "nancumsum": np.nancumsum,
    "diff": lambda x, axis: np.diff(x, axis=axis),
    "delete": lambda x, axis: np.delete(x, 0, axis),
    "insert": lambda x, axis: np.insert(x, 0, 1.0, axis),
    "concatenate": lambda x, axis: np.concatenate([x, x], axis),
    "stack": lambda x, axis: np.stack([x, x], axis),
    "trapezoid": lambda x, axis: np.trapezoid(x, axis=axis),
    "cross": lambda x, axis: np.cross(x[:, :3], x[:, 1:], axis=axis),
    "apply_along_axis": lambda x, axis: np.apply_along_axis(lambda v: v, axis, x),
}
ALSO_TUPLES = {
    "accumulate": np.add.accumulate,
    "maximum.accumulate": np.maximum.accumulate,
    "cumulative_sum": lambda x, axis: np.cumulative_sum(x, axis=axis),
    "sum": np.sum,
    "max": np.max,
    "median": np.median,
    "fftshift": np.fft.fftshift,
}


@pytest.mark.parametrize("function", ALONG_ONE.values(), ids=ALONG_ONE)
@pytest.mark.parametrize("axis", [(0,), [0], 0.0], ids=str)
def test_one_axis(function, axis):
    """What goes along one axis takes a number alone, as NumPy does."""
    with pytest.raises(TypeError):
        function(X, axis)
    with pytest.raises(TypeError):
        grad(lambda x: np.sum(function(x, axis)))(X)
    with pytest.raises(TypeError):
        jit(lambda x: function(x, axis))(X)


@pytest.mark.parametrize("function", [*ALONG_ONE.values(), *ALSO_TUPLES.values()], ids=[*ALONG_ONE, *ALSO_TUPLES])
def test_numbers_of_axes(function):
    """An axis may be any integer, of NumPy, too, and a tuple of one where NumPy takes that."""
    expected = function(X, 0)
    axes = [np.int64(0), -2, *([(0,)] if function in ALSO_TUPLES.values() else [])]
    for axis in axes:
        assert np.array_equal(function(X, axis), expected) or axis == -2
        assert np.array_equal(vjp(lambda x, axis=axis: function(x, axis), X)[0], function(X, axis))


@pytest.mark.parametrize("num", [0, 1])
def test_step_of_a_single_number(num):
    """One number has no step: `linspace` gives NumPy's nan for it, which is no array, and depends on nothing."""
    for start, stop in ((X[0], X[1]), (X[0].astype(np.float32), 7.0)):
        f = lambda x, stop=stop: np.linspace(x, stop, num, retstep=True)
        expected = f(start)
        for found in (vjp(f, start)[0], jit(f)(start)):
            assert (found[0].dtype, found[0].tobytes()) == (expected[0].dtype, expected[0].tobytes())
            assert np.shape(found[1]) == ()
            assert np.isnan(found[1])
    assert grad(lambda x: np.sum(np.linspace(x, 5.0, num, retstep=True)[0]))(X[0]).tolist() == [float(num)] * 4
