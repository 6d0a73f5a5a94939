"""Examples of SciPy's special functions, those that dispatch."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from .example import Example, Fixed, M, between, binary, calls, steps, unary

ORDERS = Fixed(np.arange(3))


def few(low: float, high: float, *, complex: bool = False) -> tuple[Example, ...]:  # noqa: A002 - what an operand is
    """Return one example of a function of one array: how operands are taken is tested with others of the kind."""
    return calls((between(low, high, 2, 3),), complex=complex)


def pair(low: float, high: float, low2: float, high2: float) -> tuple[Example, ...]:
    """Return examples of a function of two arrays."""
    x, y = between(low, high, 2, 3), between(low2, high2, 2, 3)
    return calls((x, y), (x[:, :1], y[0]), (x[0, 0], 1.2), complex=False)


def second(first: Any, low: float, high: float, *, complex: bool = False) -> tuple[Example, ...]:  # noqa: A002
    """Return examples of a function whose first argument, a number or an array, has no rule."""
    return calls((Fixed(first), between(low, high, 2, 3)), (ORDERS, between(low, high, 2, 3)), complex=complex)


SPECIAL: dict[Any, tuple[Example, ...]] = {
    **{f: unary(-2, 2, complex=True) for f in (special.erf, special.erfc, special.ndtr, special.log_ndtr)},
    **{f: unary(-2, 2) for f in (special.expit, special.log_expit)},
    **{f: few(-2, 2, complex=True) for f in (special.erfcx, special.erfi, special.dawsn, special.wofz,
                                             special.expm1)},
    **{f: unary(-0.8, 0.8) for f in (special.erfinv,)},
    **{f: unary(0.2, 0.8) for f in (special.ndtri, special.logit)},
    **{f: few(0.2, 1.8) for f in (special.erfcinv, special.cbrt, special.exp10, special.exp2)},
    special.ndtri_exp: few(-3, -0.2),
    special.owens_t: pair(-2, 2, -2, 2),
    **{f: unary(0.4, 3) for f in (special.gammaln, special.entr)},
    special.digamma: unary(0.4, 3, complex=True),
    **{f: binary(0.3, 2, 0.4, 2, complex=True) for f in (special.xlogy, special.xlog1py)},
    **{f: pair(0.3, 2, 0.4, 2) for f in (special.rel_entr, special.kl_div, special.pseudo_huber, special.powm1,
                                         special.boxcox, special.boxcox1p, special.inv_boxcox, special.inv_boxcox1p)},
    special.huber: pair(0.9, 1.1, 1.3, 2) + pair(0.9, 1.1, -0.8, 0.8)[:1],
    **{f: few(-2, 2) for f in (special.exprel, special.cosm1, special.sindg, special.cosdg, special.tandg)},
    special.log1p: few(-0.5, 2, complex=True),
    special.wrightomega: few(-1, 2, complex=True),
    # Gamma functions.
    **{f: few(0.4, 3, complex=True) + few(-1.9, -1.1, complex=True) for f in (special.gamma, special.rgamma)},
    special.loggamma: few(0.4, 3, complex=True),
    special.gammasgn: steps((M,)),
    **{f: pair(0.4, 2, 0.5, 3) for f in (special.beta, special.betaln, special.poch)},
    special.binom: pair(3.1, 5, 0.4, 2),
    **{f: pair(0.4, 3, 0.4, 3)[:2] for f in (special.gammainc, special.gammaincc)},
    **{f: pair(0.7, 3, 0.2, 0.8)[1:2] for f in (special.gammaincinv, special.gammainccinv)},
    special.betainc: calls((between(0.7, 3, 2, 1), between(0.8, 2, 2), between(0.2, 0.8, 2)), complex=False),
    **{f: calls((Fixed(1.7), Fixed(2.3), between(0.2, 0.8, 2, 3)), complex=False)
       for f in (special.betaincc, special.betaincinv, special.betainccinv)},
    # Bessel functions.
    **{f: second(0.5, 0.4, 3, complex=True) for f in (special.jv, special.iv, special.yv, special.kv)},
    **{f: second(0.5, 0.4, 3, complex=True)[:1] for f in (special.ive, special.kve)},
    **{f: second(2, 0.4, 3) for f in (special.yn, special.kn, special.expn)},
    **{f: few(-3, 3) for f in (special.j0, special.j1, special.i0, special.i1, special.i0e, special.i1e)},
    **{f: few(0.4, 3) for f in (special.y0, special.y1, special.k0, special.k1, special.k0e, special.k1e)},
    **{f: few(0.4, 2, complex=True) for f in (special.exp1, special.expi)},
    special.hyp0f1: second(1.3, -2, 2, complex=True)[:1],
    **{f: calls((Fixed(0.7), Fixed(1.3), between(0.2, 2, 2, 3)), complex=False)
       for f in (special.hyp1f1, special.hyperu)},
    special.hyp2f1: calls((Fixed(0.7), Fixed(1.3), Fixed(2.1), between(-0.7, 0.7, 2, 3))),
    **{f: few(-0.5, 0.8) for f in (special.ellipk, special.ellipe)},
    **{f: calls((between(-1.2, 1.2, 2, 3), Fixed(0.4)), complex=False)
       for f in (special.ellipkinc, special.ellipeinc)},
}  # fmt: skip
