"""
Distributions of `scipy.stats` whose functions have derivatives, with SciPy's arguments and values.

    >>> import numpy as np
    >>> from ebbtide import grad
    >>> from ebbtide.scipy import stats
    >>> data = np.array([1.0, 2.0, 6.0])
    >>> grad(lambda mean: np.sum(stats.norm.logpdf(data, mean, scale=2.0)))(3.0)
    np.float64(0.0)

`stats.norm(3.0, scale=2.0).logpdf(data)` is the same, as in SciPy. Random numbers are not here.
"""

from ebbtide.scipy.stats.continuous import beta as beta
from ebbtide.scipy.stats.continuous import cauchy as cauchy
from ebbtide.scipy.stats.continuous import chi2 as chi2
from ebbtide.scipy.stats.continuous import expon as expon
from ebbtide.scipy.stats.continuous import gamma as gamma
from ebbtide.scipy.stats.continuous import gumbel_l as gumbel_l
from ebbtide.scipy.stats.continuous import gumbel_r as gumbel_r
from ebbtide.scipy.stats.continuous import halfcauchy as halfcauchy
from ebbtide.scipy.stats.continuous import halfnorm as halfnorm
from ebbtide.scipy.stats.continuous import invgamma as invgamma
from ebbtide.scipy.stats.continuous import laplace as laplace
from ebbtide.scipy.stats.continuous import logistic as logistic
from ebbtide.scipy.stats.continuous import lognorm as lognorm
from ebbtide.scipy.stats.continuous import norm as norm
from ebbtide.scipy.stats.continuous import pareto as pareto
from ebbtide.scipy.stats.continuous import rayleigh as rayleigh
from ebbtide.scipy.stats.continuous import t as t
from ebbtide.scipy.stats.continuous import uniform as uniform
from ebbtide.scipy.stats.continuous import weibull_min as weibull_min
from ebbtide.scipy.stats.discrete import bernoulli as bernoulli
from ebbtide.scipy.stats.discrete import binom as binom
from ebbtide.scipy.stats.discrete import geom as geom
from ebbtide.scipy.stats.discrete import nbinom as nbinom
from ebbtide.scipy.stats.discrete import poisson as poisson
from ebbtide.scipy.stats.multivariate import dirichlet as dirichlet
from ebbtide.scipy.stats.multivariate import multivariate_normal as multivariate_normal

__all__ = [
    "bernoulli",
    "beta",
    "binom",
    "cauchy",
    "chi2",
    "dirichlet",
    "expon",
    "gamma",
    "geom",
    "gumbel_l",
    "gumbel_r",
    "halfcauchy",
    "halfnorm",
    "invgamma",
    "laplace",
    "logistic",
    "lognorm",
    "multivariate_normal",
    "nbinom",
    "norm",
    "pareto",
    "poisson",
    "rayleigh",
    "t",
    "uniform",
    "weibull_min",
]
