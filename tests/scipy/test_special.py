"""Special functions at the points where formulas fail, and what they have no rule for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special as original

from ebbtide import RuleMissingError, TraceError, grad, jvp, vjp
from ebbtide.scipy import special
from ebbtide.testing import check_grads

INF = np.inf


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([1.0, -INF, 1.0], [0.5, 0.0, 0.5]),
        ([-INF, -INF], [0.5, 0.5]),
        ([INF, 0.0, INF, INF], [1 / 3, 0.0, 1 / 3, 1 / 3]),
        ([1000.0, 0.0], [1.0, 0.0]),
        ([-1000.0, -1000.0], [0.5, 0.5]),
    ],
)
def test_logsumexp_of_extremes(x, expected):
    """What is infinite shares equally, what is -inf among others has no part, nothing is nan, and nothing warns."""
    x = np.array(x)
    np.testing.assert_allclose(grad(special.logsumexp)(x), expected, rtol=1e-12)
    assert jvp(special.logsumexp, (x,), (np.arange(1.0, len(x) + 1),))[1] == pytest.approx(
        np.dot(expected, np.arange(1.0, len(x) + 1))
    )
    assert not np.any(np.isnan(jvp(grad(special.logsumexp), (x,), (np.ones_like(x),))[1]))


def test_weights_of_logsumexp():
    """An element of weight zero has no part, whatever it is; signs are those of SciPy, with the derivative of |sum|."""
    a, b = np.array([0.3, 5.0, -1.0]), np.array([1.0, 0.0, -4.0])
    (value, sign), pullback = vjp(lambda a, b: special.logsumexp(a, b=b, return_sign=True), a, b)
    assert (value, sign) == original.logsumexp(a, b=b, return_sign=True)
    assert sign == -1
    by_a, _ = pullback((1.0, 0.0))
    assert by_a[1] == 0.0
    assert np.isnan(grad(lambda a: special.logsumexp(a, b=b))(a)).all()
    with pytest.raises(TraceError, match="return_sign=True"):
        vjp(lambda a: special.logsumexp(a, b=b, return_sign=True)[0], a + 0j)


def test_softmax_of_extremes():
    """Softmax and its logarithm of huge differences have derivatives without nan."""
    x = np.array([0.0, 1000.0, -1000.0])
    np.testing.assert_array_equal(grad(lambda x: special.softmax(x)[1])(x), [0.0, 0.0, 0.0])
    np.testing.assert_array_equal(grad(lambda x: special.log_softmax(x)[0])(x), [1.0, -1.0, 0.0])


@pytest.mark.parametrize(
    ("function", "x", "slopes"),
    [
        (original.exprel, 0.0, (1 / 2, 1 / 3)),
        (original.j1, 0.0, (1 / 2, 0.0)),
        (original.i1, 0.0, (1 / 2, 0.0)),
        (original.ellipk, 1e-12, (np.pi / 8, 9 * np.pi / 64)),
        (original.ellipe, 0.0, (-np.pi / 8, -3 * np.pi / 64)),
        (lambda x: original.boxcox(3.0, x), 0.0, (np.log(3) ** 2 / 2, np.log(3) ** 3 / 3)),
        (lambda x: original.inv_boxcox(3.0, x), 0.0, (-4.5 * np.exp(3.0), (18.0 + 20.25) * np.exp(3.0))),
        (lambda x: special.polygamma(1, x), 1.0, (original.polygamma(2, 1.0), original.polygamma(3, 1.0))),
    ],
)
def test_slopes_where_formulas_cancel(function, x, slopes):
    """First and second derivatives are exact where the usual formulas divide by zero or cancel."""
    assert grad(function)(x) == pytest.approx(slopes[0], rel=1e-10)
    assert grad(grad(function))(x) == pytest.approx(slopes[1], rel=1e-8, abs=1e-12)


def test_reciprocal_of_gamma_at_its_zeros():
    """1 / gamma has no pole: its slope at -n is (-1)^n n!."""
    assert [grad(original.rgamma)(-float(n)) for n in range(4)] == pytest.approx([1.0, -1.0, 2.0, -6.0])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: original.jv(v, 1.5), "the order of jv"),
        (lambda v: original.kn(v, 1.5), "the order of kn"),
        (lambda a: original.hyp2f1(2.0, a, 1.5, 0.5), "the parameters of hyp2f1"),
        (lambda n: special.polygamma(n, 1.5), "the order of polygamma"),
        (special.zeta, "the exponent of zeta"),
        (lambda m: original.ellipkinc(0.5, m), "the parameter m of ellipkinc"),
        (original.struve, "struve"),
    ],
)
def test_operands_without_a_rule(function, message):
    """What has no rule raises in both modes, with its name and the user's line."""
    call = (lambda x: function(1.0, x)) if function is original.struve else function
    for run in (lambda: grad(call)(2.0), lambda: jvp(call, (2.0,), (1.0,))):
        with pytest.raises(RuleMissingError, match=message) as caught:
            run()
        assert "test_special.py:" in str(caught.value)


@pytest.mark.parametrize("function", [original.betaincc, original.betaincinv, original.betainccinv])
def test_shape_parameters(function):
    """The relatives of the incomplete beta function have derivatives by both shape parameters."""
    check_grads(lambda a, b: function(a, b, 0.3), np.array([1.7, 0.6]), np.array(2.3), order=1)


@pytest.mark.parametrize(
    ("function", "x", "slope"),
    [
        (lambda a: original.gammainc(a, 1.37), 137.0, -1.2693314913728255e-216),
        (lambda a: original.gammainc(a, 9900.0), 1e4, -0.0024237533683262443),
        (lambda a: original.gammainc(a, 1e-9), 1e-3, -19.7458425079),
        (lambda a: original.betainc(a, 45.0, 0.0004), 30.0, -3.68544658940312e-81),
        (lambda b: original.betainc(30.0, b, 9 / 10030), 1e4, 5.773496531575628e-11),
    ],
)
def test_shape_parameters_far_out(function, x, slope):
    """Derivatives by shape parameters keep their accuracy in far tails: against integrals done in 30 digits."""
    assert grad(function)(x) == pytest.approx(slope, rel=1e-9)


def test_complex_digamma():
    """The slopes of digamma of complex numbers, sums of powers, have all digits, near poles and far away."""
    z = np.array([1.3 + 0.4j, -2.3 + 0.5j, -7.01 + 0.001j, 0.2 - 3j, 40 + 1j, -30 + 20j, 0.5 + 1e8j])
    slope = jvp(original.digamma, (z,), (np.ones_like(z),))[1]
    after = jvp(original.digamma, (z + 1,), (np.ones_like(z),))[1]
    np.testing.assert_allclose(slope, after + np.square(1 / z), rtol=1e-12)
    np.testing.assert_allclose(slope[-1], 1 / (z[-1] - 0.5), rtol=1e-15)
    x = np.array([0.3, 1.0, 17.5])
    real = jvp(original.digamma, (x,), (np.ones_like(x),))[1]
    np.testing.assert_allclose(jvp(original.digamma, (x + 0j,), (np.ones(3) + 0j,))[1], real, rtol=1e-14)
    check_grads(original.digamma, z[[0, 1, 3, 4, 5]])  # differences see nothing beside a pole
    far = np.array([-1e7 + 0.5j, -1e7 + 0.5 + 0j])
    expected = np.square(np.pi / np.sin(np.pi * (far + 1e7)))
    np.testing.assert_allclose(jvp(original.digamma, (far,), (np.ones(2) + 0j,))[1], expected, rtol=1e-6)


def test_complex_numbers_without_a_rule():
    """Scaled Bessel functions of complex numbers that have no rule are refused."""
    z = np.array(1.3 + 0.4j)
    with pytest.raises(RuleMissingError, match="no derivative rule for jve"):
        jvp(lambda z: original.jve(0, z), (z,), (z,))
