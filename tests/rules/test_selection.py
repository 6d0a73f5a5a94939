"""Choosing and converting: what is not chosen has a derivative of zero, and masks are all that is saved."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide
from ebbtide import grad, jvp, vjp
from ebbtide.testing import check_grads

X = np.array([-2.0, -0.5, 0.25, 3.0])


def test_where_saves_a_mask():
    """A choice saves its condition as one byte for each element, and none of the values."""
    x = np.linspace(-1, 1, 1000)
    with ebbtide.profile() as p:
        grad(lambda x: np.sum(np.where(x > 0, x, 2 * x)))(x)
    assert [(e.operation, e.dtype, e.bytes) for e in p.saved if e.bytes > 8] == [("where", "bool", 1000)]


def test_branch_not_taken_is_not_felt():
    """A branch that is nan or infinite where it is not taken leaves the derivative finite, in both modes."""
    f = lambda x: np.sum(np.where(x > 0, np.sqrt(np.where(x > 0, x, 1.0)), 1 / np.where(x > 0, np.inf, x)))
    expected = np.where(X > 0, 0.5 / np.sqrt(np.abs(X)), -1 / X**2)
    np.testing.assert_allclose(grad(f)(X), expected)
    np.testing.assert_allclose([jvp(f, (X,), (e,))[1] for e in np.eye(4)], expected)


def test_condition_may_change_afterwards():
    """The mask is a copy: who changes the condition before the sweep gets the right derivative."""
    mask = np.array([True, False, True, False])
    _, pullback = vjp(lambda x: np.where(mask, x, 0.0), X)
    mask[:] = False
    assert np.array_equal(pullback(np.ones(4))[0], [1.0, 0.0, 1.0, 0.0])


def test_condition_that_is_no_mask():
    """Numbers choose as in NumPy, by not being zero, and have no derivative."""
    f = lambda c, x: np.where(c, x * 2, x)
    c = np.array([0.0, 1.0, -1.0, 0.0])
    assert np.array_equal(vjp(f, c, X)[0], np.where(c, X * 2, X))
    by_condition, by_value = vjp(f, c, X)[1](np.ones(4))
    assert np.array_equal(by_condition, np.zeros(4))
    assert np.array_equal(by_value, [1.0, 2.0, 2.0, 1.0])


@pytest.mark.parametrize(("low", "high"), [(-1.0, None), (None, 1.0), (-1.0, 1.0), (None, None)])
def test_clip_of_open_sides(low, high):
    """A limit that is not given does not bind."""
    inside = np.clip(X, low, high) == X
    assert np.array_equal(grad(lambda x: np.sum(np.clip(x, low, high)))(X), inside)
    assert np.array_equal(vjp(lambda x: np.clip(x, low, high), X)[0], np.clip(X, low, high))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex128])
def test_cast(dtype):
    """A cast gives the cotangent back in the dtype of its operand; the real part of a complex one."""
    value, pullback = vjp(lambda x: x.astype(dtype), X)
    assert np.array_equal(value, X.astype(dtype))
    (g,) = pullback(np.full(4, 2 + 3j if np.dtype(dtype).kind == "c" else 2, dtype))
    assert g.dtype == np.float64
    assert np.array_equal(g, np.full(4, 2.0))


def test_cast_to_integers_is_a_constant():
    """A cast to integers or booleans gives a plain array, as its derivative is zero."""
    kinds = []

    def f(x):
        kinds.extend([type(x.astype(int)), type(x.astype(bool))])
        return np.sum(x * x.astype(int))

    assert np.array_equal(grad(f)(X), X.astype(int))
    assert kinds == [np.ndarray, np.ndarray]


def test_parts_of_complex_numbers():
    """Real part, imaginary part, conjugate and angle have the derivatives of their convention, to second order."""
    z = np.array([1 + 2j, -0.5 + 1j, 2 - 1j])
    for f in (np.real, np.imag, np.conj, np.angle, lambda z: np.angle(z, deg=True), lambda z: z.real * z.imag):
        check_grads(f, z)
    assert np.array_equal(grad(lambda z: np.sum(np.imag(z)))(z), np.full(3, -1j))


def test_copy_is_no_view():
    """What is written into a copy is not in the array."""

    def f(x):
        y = np.copy(x)
        y[0] = 5.0
        return np.sum(x * y)

    assert np.array_equal(grad(f)(X), [5.0, *(2 * X[1:])])
