"""Integrals of functions by quadrature: derivatives by limits, arguments and what is closed over."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate as original

from ebbtide import TraceError, grad, hvp, jit, jvp, vjp, vmap
from ebbtide.scipy.integrate import quad
from ebbtide.testing import check_grads

P = np.array([0.3, 1.2, 2.0])


def wave(x, p, scale=1.0):
    """Return a number that depends on an array."""
    return np.sum(np.sin(p * x) * p) * scale


def integral(low, high, p):
    """Return the integral with the array as an argument."""
    return quad(wave, low, high, (p,))[0]


def closed(low, high, p):
    """Return the same with the array closed over."""
    return quad(lambda x: wave(x, p), low, high)[0]


@pytest.mark.parametrize("function", [integral, closed])
def test_derivatives(function):
    """Derivatives to second order in both modes, by both limits and the array, are those of finite differences."""
    check_grads(function, np.float64(0.1), np.float64(1.3), P)


def test_values_are_scipys():
    """Value and estimate of the error are those of SciPy on plain arrays, to the bit."""
    expected = original.quad(wave, 0.1, 1.3, (P,))
    assert quad(wave, 0.1, 1.3, (P,)) == expected
    assert vjp(integral, 0.1, 1.3, P)[0] == expected[0]
    assert jvp(lambda p: quad(wave, 0.1, 1.3, (p,)), (P,), (P,))[0] == expected


def test_closed_forms_on_the_half_line():
    """The integral of exp(-k x) over the half line is 1 / k, to any order of derivative; what is single stays so."""

    def f(k):
        return quad(lambda x, k: np.exp(-k * x), 0, np.inf, (k,))[0]

    assert grad(f)(2.0) == pytest.approx(-1 / 4, rel=1e-9)
    assert grad(grad(f))(2.0) == pytest.approx(1 / 4, rel=1e-9)
    assert hvp(f)(2.0, 1.0) == pytest.approx(1 / 4, rel=1e-9)
    assert grad(grad(grad(f)))(2.0) == pytest.approx(-3 / 8, rel=1e-8)
    assert grad(f)(np.float32(2)).dtype == np.float32


def test_containers_and_points():
    """Arguments may be in containers, and points where the function has kinks are kept for derivatives."""

    def f(arguments):
        return quad(lambda x, a: a["height"] * abs(x - 0.5) * np.sum(a["more"]), 0, 1, (arguments,), points=[0.5])[0]

    found = grad(f)({"height": np.float64(3.0), "more": P})
    assert found["height"] == pytest.approx(0.25 * P.sum(), rel=1e-12)
    np.testing.assert_allclose(found["more"], 0.75, rtol=1e-12)


def test_programs_and_batches():
    """In a program and under vmap are the same bits; the estimate of the error is not known there."""
    slope = grad(lambda p: integral(0.1, 1.3, p))
    assert jit(lambda p: integral(0.1, 1.3, p))(P) == integral(0.1, 1.3, P)
    assert jit(slope)(P).tolist() == slope(P).tolist()
    assert vmap(slope)(np.stack([P, 2 * P])).tolist() == [slope(P).tolist(), slope(2 * P).tolist()]
    assert np.isnan(jit(lambda p: p * quad(wave, 0, 1, (p,))[1])(P)).all()


@pytest.mark.parametrize(
    "options", [{"full_output": 1}, {"weight": "cos", "wvar": 2.0}, {"complex_func": True}], ids=str
)
def test_refusals(options):
    """What has no derivative says so, with the name of the argument."""
    with pytest.raises(TraceError, match=next(iter(options))):
        grad(lambda p: quad(wave, 0, 1, (p,), **options)[0])(P)
