"""Extrema with an initial value: of no elements, too, and in the dtype of the array."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jit, vjp, vmap
from ebbtide.testing import check_grads

NONE = np.zeros((0, 3))
EXTREMA = {
    "max": lambda x, v: np.max(x, axis=0, initial=v),
    "max of all": lambda x, v: np.max(x, initial=v),
    "min": lambda x, v: np.min(x, axis=0, initial=v, keepdims=True),
    "nanmax": lambda x, v: np.nanmax(x, axis=0, initial=v),
    "nanmin": lambda x, v: np.nanmin(x, axis=0, initial=v),
    "maximum": lambda x, v: np.maximum.reduce(x, axis=0, initial=v),
    "fmin": lambda x, v: np.fmin.reduce(x, axis=0, initial=v),
}
NORMS = {
    "1": lambda x: np.linalg.norm(x.T, 1),
    "infinity": lambda x: np.linalg.norm(x, np.inf),
    "2": lambda x: np.linalg.norm(x, 2),
    "of vectors": lambda x: np.linalg.norm(x, np.inf, axis=0),
}


@pytest.mark.parametrize("extremum", EXTREMA.values(), ids=EXTREMA)
@pytest.mark.parametrize("given", [NONE, np.array([[0.5, -2.0, 3.0]])], ids=["none", "some"])
def test_initial_value(extremum, given):
    """The extremum of no elements is the initial value, which has the derivative and takes the dtype of the array."""
    check_grads(extremum, given, np.float64(1.5))
    for x in (given, given.astype(np.float32)):
        for value in (1.5, np.float64(1.5), np.array(1.5)):
            expected = extremum(x, value)
            f = lambda x, v=value: extremum(x, v)
            for found in (vjp(f, x)[0], jit(f)(x), vmap(f)(x[None])[0]):
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert np.array_equal(found, expected)
            loss = lambda x, f=f: np.sum(f(x) ** 2)
            for gradient in (grad(loss)(x), jit(grad(loss))(x)):
                assert (gradient.dtype, gradient.shape) == (x.dtype, x.shape)


def test_what_is_no_initial_value():
    """An initial value is one number; without one no elements have no extremum."""
    with pytest.raises(ValueError, match=r"initial= has to be a number, and has the shape \(3,\)"):
        grad(lambda x: np.sum(np.max(x, axis=0, initial=np.ones(3))))(NONE)
    with pytest.raises(ValueError, match="no identity"):
        grad(lambda x: np.sum(np.max(x, axis=0)))(NONE)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norms_of_no_elements(norm):
    """A norm of an empty matrix is zero, as it is in NumPy."""
    expected = norm(NONE)
    for found in (vjp(norm, NONE)[0], jit(norm)(NONE), vmap(norm)(NONE[None])[0]):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    assert grad(lambda x: np.sum(norm(x)))(NONE).shape == NONE.shape
