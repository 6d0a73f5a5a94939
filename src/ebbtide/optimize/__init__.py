"""
Optimization with derivatives.

Controls, reduced functionals, the Taylor test and SciPy's minimizers; optimizers of first order that step parameters.
"""

from __future__ import annotations

from ebbtide.optimize.control import Control
from ebbtide.optimize.functional import ReducedFunctional
from ebbtide.optimize.minimize import Minimum, lbfgs, minimize
from ebbtide.optimize.steppers import Optimizer, OptimizerState, adam, adamw, momentum, rmsprop, sgd
from ebbtide.optimize.taylor import TaylorTest, taylor_remainders, taylor_test

__all__ = [
    "Control",
    "Minimum",
    "Optimizer",
    "OptimizerState",
    "ReducedFunctional",
    "TaylorTest",
    "adam",
    "adamw",
    "lbfgs",
    "minimize",
    "momentum",
    "rmsprop",
    "sgd",
    "taylor_remainders",
    "taylor_test",
]
