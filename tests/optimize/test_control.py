from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve

from ebbtide.errors import CotangentError
from ebbtide.optimize import Control

VALUE = {"u": np.arange(6.0).reshape(2, 3), "k": 0.5}
COTANGENT = {"u": np.linspace(1.0, 2.0, 6).reshape(2, 3), "k": np.float64(3.0)}


def mass_matrix(count):
    """The mass matrix of linear finite elements on a uniform mesh of [0, 1]."""
    h = 1.0 / (count - 1)
    full = np.diag(np.full(count, 4.0)) + np.diag(np.ones(count - 1), 1) + np.diag(np.ones(count - 1), -1)
    full[0, 0] = full[-1, -1] = 2.0
    return full * h / 6.0


def test_l2_gradient_is_the_cotangent():
    """In l2 the gradient has the values of the cotangent, in memory of its own."""
    found = Control(VALUE).gradient(COTANGENT)
    assert np.array_equal(found["u"], COTANGENT["u"])
    assert not np.shares_memory(found["u"], COTANGENT["u"])
    assert found["k"] == 3.0


@pytest.mark.parametrize(
    "riesz",
    [
        0.25,
        {"u": np.array([0.5, 1.0, 2.0]), "k": 4.0},
        {"u": np.array([[0.5], [1.0]]), "k": np.array(2.0)},
        lambda c: {"u": np.linalg.solve(np.array([[2.0, 1.0], [1.0, 3.0]]), c["u"]), "k": c["k"] / 7.0},
    ],
    ids=["number", "rows", "columns", "solve"],
)
def test_gradient_represents_the_cotangent(riesz):
    """<g, d>_M = c . d for every direction d, whatever gives the inner product, and the cotangent is not written."""
    kept = COTANGENT["u"].copy()
    g = Control(VALUE, riesz).gradient(COTANGENT)
    d = {"u": np.cos(np.arange(6.0)).reshape(2, 3), "k": -1.5}
    if callable(riesz):
        inner = np.sum(d["u"] * (np.array([[2.0, 1.0], [1.0, 3.0]]) @ g["u"])) + 7.0 * g["k"] * d["k"]
    else:
        weights = riesz if isinstance(riesz, dict) else {"u": riesz, "k": riesz}
        inner = np.sum(weights["u"] * g["u"] * d["u"]) + weights["k"] * g["k"] * d["k"]
    np.testing.assert_allclose(inner, np.sum(COTANGENT["u"] * d["u"]) + COTANGENT["k"] * d["k"], rtol=1e-14)
    assert np.array_equal(COTANGENT["u"], kept)
    assert isinstance(g["k"], np.float64)


def test_mass_matrix_gradient_does_not_depend_on_the_mesh():
    """The gradient of the integral of u^2 / 2 by the mass matrix is u on each mesh; the l2 one shrinks with h."""
    for count in (5, 50):
        u = np.cos(np.linspace(0.0, 3.0, count))
        matrix = mass_matrix(count)
        cotangent = matrix @ u
        found = Control(u, lambda c, m=matrix: solve(m, c)).gradient(cotangent)
        np.testing.assert_allclose(found, u, rtol=1e-12)
        assert np.abs(Control(u).gradient(cotangent)).max() < 1.1 / (count - 1)


def test_complex_gradient_is_the_direction_of_steepest_ascent():
    """Of c = dJ/dx - i dJ/dy the gradient is M^-1 conj(c): that of |z|^2 is 2 z."""
    z = np.array([1.0 + 2.0j, -3.0j])
    cotangent = 2.0 * np.conj(z)
    assert np.array_equal(Control(z).gradient(cotangent), 2.0 * z)
    assert np.array_equal(Control(z, 2.0).gradient(cotangent), z)
    assert np.array_equal(cotangent, 2.0 * np.conj(z))


@pytest.mark.parametrize("riesz", ["l2", 2.0, lambda c: c / 2.0])
def test_a_real_cotangent_of_a_complex_control(riesz):
    """Where the imaginary part of a cotangent is zero it may be left out, and the gradient is complex all the same."""
    found = Control(np.zeros(2, complex), riesz).gradient(np.array([2.0, -4.0]))
    assert found.dtype == np.complex128
    assert np.array_equal(found, [2.0, -4.0] if riesz == "l2" else [1.0, -2.0])


@pytest.mark.parametrize("riesz", ["l2", 3.0, np.full(4, 3.0), lambda c: np.asarray(c, np.float64) / 3.0])
def test_float32_stays_float32(riesz):
    """A gradient has the dtype of its control, also if weights or a solve are in double precision."""
    assert Control(np.ones(4, np.float32), riesz).gradient(np.ones(4, np.float32)).dtype == np.float32


def test_an_array_that_a_solve_keeps_is_copied():
    """A gradient belongs to the caller: the buffer of a solver is not handed out."""
    kept = np.zeros(3)

    def solver(c):
        kept[:] = c
        return kept

    control = Control(np.zeros(3), solver)
    first = control.gradient(np.ones(3))
    control.gradient(np.full(3, 2.0))
    assert np.array_equal(first, np.ones(3))


@pytest.mark.parametrize(
    ("value", "riesz", "error", "text"),
    [
        (np.arange(3), "l2", TypeError, "a control: it is of type int64"),
        ({"a": "text"}, "l2", TypeError, r"a control\['a'\]: it is a str"),
        ({}, "l2", ValueError, "no leaves"),
        (np.zeros(3), "L2", ValueError, "'L2'"),
        (np.zeros(3), np.zeros(3), ValueError, "positive"),
        (np.zeros(3), np.array([1.0, -1.0, 1.0]), ValueError, r"least is np.float64\(-1.0\)"),
        (np.zeros(3), np.array([1.0, np.nan, 1.0]), ValueError, "finite"),
        (np.zeros(3), np.array([1.0, np.inf, 1.0]), ValueError, "finite"),
        (np.zeros(3), np.ones(3, complex), ValueError, "complex128"),
        (np.zeros(3), np.ones(4), ValueError, r"\(4,\).*\(3,\)"),
        (np.zeros(3), np.ones((2, 3)), ValueError, r"\(2, 3\).*\(3,\)"),
        (np.zeros(3), np.array([None] * 3), ValueError, "dtype object: an inner product"),
        ({"a": np.zeros(3)}, {"b": np.ones(3)}, ValueError, "structure"),
        (np.zeros(3), lambda: 1.0, TypeError, r"function riesz= .*called as riesz\(c\) \(too many"),
    ],
)
def test_bad_controls_are_refused(value, riesz, error, text):
    """A control says at once what it cannot be, with the offending place and number."""
    with pytest.raises(error, match=text):
        Control(value, riesz)


@pytest.mark.parametrize(
    ("cotangent", "text"),
    [
        (np.zeros(2), r"is of type float64\[2\], .* of type float64\[3\]"),
        (np.zeros(3, complex), r"is of type complex128\[3\], .* of type float64\[3\]"),
        (0.0, r"is of type float64\[\], .* of type float64\[3\]"),
        ((np.zeros(3),), "has the structure"),
    ],
    ids=["shape", "complex", "number", "structure"],
)
@pytest.mark.parametrize("riesz", ["l2", 2.0, lambda c: np.zeros(3)], ids=["l2", "weight", "solve"])
def test_bad_cotangents_are_refused(riesz, cotangent, text):
    """A cotangent of another structure, shape or kind than the control is told, whatever the inner product."""
    with pytest.raises(CotangentError, match=f"A cotangent {text}"):
        Control(np.zeros(3), riesz).gradient(cotangent)


@pytest.mark.parametrize(
    ("returned", "text"), [((np.zeros(3),), "structure"), (np.zeros(4), r"\[4\]"), (np.zeros(3, complex), "complex128")]
)
def test_bad_riesz_maps_are_refused(returned, text):
    """A Riesz map that returns another structure, shape or kind is told, never broadcast."""
    with pytest.raises(CotangentError, match=text):
        Control(np.zeros(3), lambda _: returned).gradient(np.ones(3))
