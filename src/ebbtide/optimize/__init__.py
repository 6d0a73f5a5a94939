"""Optimization with derivatives: controls, reduced functionals, the Taylor test, and SciPy's minimizers."""

from __future__ import annotations

from ebbtide.optimize.control import Control
from ebbtide.optimize.functional import ReducedFunctional
from ebbtide.optimize.minimize import Minimum, minimize
from ebbtide.optimize.taylor import TaylorTest, taylor_remainders, taylor_test

__all__ = [
    "Control",
    "Minimum",
    "ReducedFunctional",
    "TaylorTest",
    "minimize",
    "taylor_remainders",
    "taylor_test",
]
