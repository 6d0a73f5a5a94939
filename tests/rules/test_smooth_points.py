"""Points that a rule has to guard, where an operand is zero or two are equal, and where the function is smooth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from ebbtide import grad, hessian
from ebbtide.scipy import linalg, stats
from ebbtide.scipy import special as wrapped
from ebbtide.testing import check_grads

ONE, HALF, ZERO = np.array([1.0]), np.array([0.5]), np.array([0.0])
PAIR, ZEROS, TIE = np.array([2.0, 0.5]), np.zeros(2), np.full(3, 0.5)
POINTS = {
    "logaddexp of equals": (np.logaddexp, TIE, TIE),
    "logaddexp2 of equals": (np.logaddexp2, TIE, TIE),
    "logaddexp.reduce of equals": (np.logaddexp.reduce, TIE),
    "logaddexp.accumulate of equals": (np.logaddexp.accumulate, TIE),
    "logaddexp2.accumulate of equals": (np.logaddexp2.accumulate, TIE),
    "logsumexp with a weight of 0": (lambda a, b: wrapped.logsumexp(a, b=b), TIE, np.array([1.0, 0.0, 2.0])),
    "power to 0 and 1": (np.power, np.array([2.0, 0.7]), np.array([0.0, 1.0])),
    "float_power to 0 and 1": (np.float_power, np.array([2.0, 0.7]), np.array([0.0, 1.0])),
    "powers of 0": (lambda x: np.power(x, np.arange(1.0, 5.0)), np.zeros(4)),
    "operator to 0": (lambda x, y: x**y, PAIR, ZEROS),
    "xlogy at 0": (special.xlogy, ZEROS, PAIR),
    "xlog1py at 0": (special.xlog1py, ZEROS, PAIR),
    "rgamma at poles of gamma": (special.rgamma, np.array([-5.0, -2.0, -1.0, 0.0])),
    "sinc at whole numbers": (np.sinc, np.array([0.0, 1.0, 2.0])),
    "boxcox to 0": (special.boxcox, PAIR, ZEROS),
    "inv_boxcox to 0": (special.inv_boxcox, PAIR / 4, ZEROS),
    "powm1 to 0": (special.powm1, PAIR, ZEROS),
    "ellipe at 0": (special.ellipe, ZERO),
    "jv at 0": (lambda x: special.jv(2, x), ZERO),
    "lambertw at 0": (lambda x: np.real(wrapped.lambertw(x)), ZERO),
    "poch to 0": (special.poch, PAIR + 1, ZEROS),
    "hypot on an axis": (np.hypot, np.array([0.0, 2.0]), np.array([1.0, 0.0])),
    "norm with zeros": (np.linalg.norm, np.array([0.0, 3.0, 0.0])),
    "absolute on the axes": (np.absolute, np.array([1.0 + 0j, 2j])),
    "prod with a zero": (np.prod, np.array([0.0, 2.0, 3.0])),
    "polynomial of equal roots": (np.poly, np.array([1.0, 1.0])),
    "pinv of the identity": (np.linalg.pinv, np.eye(3)),
    "sqrtm of the identity": (linalg.sqrtm, np.eye(3)),
    "logm of the identity": (linalg.logm, np.eye(3)),
    "expm of zero": (linalg.expm, np.zeros((3, 3))),
    "polar of the identity": (linalg.polar, np.eye(3)),
    "flat dirichlet": (lambda x, a: stats.dirichlet.logpdf(x / np.sum(x), a), np.array([0.2, 0.3, 0.5]), np.ones(3)),
    "flat beta": (stats.beta.logpdf, HALF, ONE, ONE),
    "gamma of shape 1": (stats.gamma.pdf, HALF, ONE),
    "chi2 of 2 degrees": (stats.chi2.logpdf, HALF, 2 * ONE),
    "poisson without events": (lambda rate: stats.poisson.logpmf(0, rate), HALF),
}


@pytest.mark.parametrize("point", POINTS)
def test_second_derivatives(point):
    """What keeps 0/0 and inf - inf out of a derivative cuts nothing off the next one."""
    function, *operands = POINTS[point]
    check_grads(function, *operands)


def test_hessians_are_symmetric():
    """Mixed derivatives by a power to 0, and by equal terms of a logarithm of a sum, are those of both orders."""
    at_zero = hessian(lambda v: v[0] ** v[1])(np.array([2.0, 0.0]))
    np.testing.assert_allclose(at_zero, [[0.0, 0.5], [0.5, np.log(2) ** 2]], rtol=1e-15)
    equal = hessian(lambda v: np.logaddexp(v[0], v[1]))(np.array([3.0, 3.0]))
    np.testing.assert_allclose(equal, [[0.25, -0.25], [-0.25, 0.25]], rtol=1e-15)


def test_powers_to_zero_stay_zero():
    """Where the exponent is 0, the derivative by the base is 0, for zeros, the smallest numbers and infinities too."""
    for dtype in (np.float64, np.float32):
        x = np.array([0.0, np.finfo(dtype).smallest_subnormal, -2.0, np.inf], dtype)
        assert not np.any(grad(lambda x: np.sum(np.power(x, np.zeros(4, x.dtype))))(x))
