"""Distributions of several variables."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy import special, stats

from ebbtide.arrays.array_type import ArrayType, type_of, with_shape
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import stands_for
from ebbtide.scipy.stats.frozen import Frozen

__all__ = ["dirichlet", "multivariate_normal"]

_DOUBLE = np.dtype(np.float64)


def _declare(function: Any, name: str, operands: tuple[str, ...], pulls: tuple[Any, ...], push: Any, shape: Any) -> Any:
    """
    Declare an operation of few operands, each of which may need all of them: `pull(g, *operands)`.

    Members of `vmap` are done one after the other.
    """

    def make(pull: Any) -> Pull:
        return Pull(lambda g, kind, params, *values: matched(pull(g, *values), kind), operands, FRESH, temporaries=3)

    made = tuple([make(pull) for pull in pulls])
    primitive = Primitive(
        function,
        name=name,
        operands=operands,
        pull=made.__getitem__,
        push=lambda tangents, values, out, params, kept: matched(push(tangents, values), type_of(out)),
        infer=lambda *kinds: ArrayType(shape(*kinds), _DOUBLE),
        batch=lambda values, mapped, params, size: by_members(name, primitive.bind, values, mapped, params, size),
    )
    return primitive


def _total(terms: list[Any]) -> Any:
    return sum(terms[1:], terms[0])


# ------------------------------------------------------------------------------------------------
# The normal distribution: its derivatives are made of the inverse of the covariance, and of what that makes of
# x - mean. A covariance is symmetric, and so is the derivative by it.


def _turned(x: Any, mean: Any, cov: Any) -> tuple[Any, Any]:
    """Return cov^-1 (x - mean) for points on all axes of *x* but the last, and cov^-1."""
    inverse = np.linalg.inv(cov)
    return np.matmul(x - mean, inverse), inverse


def _by_points(g: Any, x: Any, mean: Any, cov: Any) -> Any:
    return -g[..., None] * _turned(x, mean, cov)[0]


def _by_mean(g: Any, x: Any, mean: Any, cov: Any) -> Any:
    return np.reshape(g, -1) @ np.reshape(_turned(x, mean, cov)[0], (-1, mean.shape[0]))


def _by_covariance(g: Any, x: Any, mean: Any, cov: Any) -> Any:
    turned, inverse = _turned(x, mean, cov)
    rows = np.reshape(turned, (-1, mean.shape[0]))
    return ((rows * np.reshape(g, (-1, 1))).T @ rows - np.sum(g) * inverse) * 0.5


def _push_normal(tangents: list[Any], values: Any) -> Any:
    turned, inverse = _turned(*values)
    x, mean, cov = tangents
    terms = []
    if x is not None:
        terms.append(np.sum(turned * x, axis=-1) * -1)
    if mean is not None:
        terms.append(turned @ mean)
    if cov is not None:
        terms.append((np.sum(turned @ cov * turned, axis=-1) - np.sum(inverse * cov)) * 0.5)
    return _total(terms)


_log_normal = _declare(
    lambda x, mean, cov: np.reshape(stats.multivariate_normal.logpdf(x, mean, cov), x.shape[:-1]),
    "multivariate_normal.logpdf",
    ("x", "mean", "cov"),
    (_by_points, _by_mean, _by_covariance),
    _push_normal,
    lambda x, mean, cov: x.shape[:-1],
)
_entropy = _declare(
    lambda cov: stats.multivariate_normal.entropy(None, cov),
    "multivariate_normal.entropy",
    ("cov",),
    (lambda g, cov: np.linalg.inv(cov) * (g * 0.5),),
    lambda tangents, values: np.sum(np.linalg.inv(values[0]) * tangents[0]) * 0.5,
    lambda cov: (),
)


def _parameters(mean: Any, cov: Any) -> tuple[Any, Any]:
    """Return mean and covariance as a vector and a matrix, as SciPy reads them."""
    dim = np.shape(mean)[0] if np.ndim(mean) else (np.shape(cov) or (1,))[0]
    mean = np.zeros(dim) if mean is None else np.broadcast_to(mean, (dim,))
    if np.ndim(cov) == 0:
        cov = cov * np.eye(dim)
    return mean, np.diag(cov) if np.ndim(cov) == 1 else cov


@final
class MultivariateNormal:
    """
    The functions of the normal distribution of several variables, with derivatives by points, mean and covariance.

    The derivative by the covariance is symmetric: that of a function of symmetric matrices.
    """

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        """Return the distribution with these parameters."""
        return Frozen(self, args, kwargs)

    @staticmethod
    @stands_for(stats.multivariate_normal.logpdf)
    def logpdf(x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False) -> Any:
        """
        Return the logarithm of the density, as SciPy's function.

        Args:
            x: Points; the components on the last axis.
            mean: Vector of d numbers, zeros by default.
            cov: Matrix (d, d), its diagonal, or a number.
            allow_singular: Must be False.

        Raises:
            TraceError: The covariance may be singular: its inverse has no derivative there.

        Memory:
            A record saves the points, the mean, and the covariance.
        """
        if allow_singular:
            raise refusal("multivariate_normal has no derivative with allow_singular=True. Write it without.")
        mean, cov = _parameters(mean, cov)
        dim = np.shape(mean)[0]
        if np.ndim(x) < 2:
            x = np.reshape(x, (-1, 1) if dim == 1 else (1, -1))
        return np.squeeze(_log_normal.bind((x, mean, cov)))

    @staticmethod
    @stands_for(stats.multivariate_normal.pdf)
    def pdf(x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False) -> Any:
        """Return the density; arguments and errors are those of `logpdf`."""
        return np.exp(MultivariateNormal.logpdf(x, mean, cov, allow_singular))

    @staticmethod
    @stands_for(stats.multivariate_normal.entropy)
    def entropy(mean: Any = None, cov: Any = 1) -> Any:
        """
        Return the differential entropy, as SciPy's function; the mean has no influence.

        Args:
            mean: Vector of d numbers.
            cov: Matrix (d, d), its diagonal, or a number.

        Memory:
            A record saves the covariance.
        """
        return _entropy.bind((_parameters(mean, cov)[1],))


# ------------------------------------------------------------------------------------------------
# The Dirichlet distribution


def _whole(x: Any, alpha: Any) -> Any:
    """Return points with their last component, which may be left out as it is 1 less the others."""
    if x.shape[0] == alpha.shape[0]:
        return x
    return np.concatenate([x, 1 - np.sum(x, axis=0, keepdims=True)])


def _down(alpha: Any, x: Any) -> Any:
    """Return a vector along the first axis of *x*."""
    return np.reshape(alpha, (-1,) + (1,) * (x.ndim - 1))


def _slope(x: Any, alpha: Any) -> Any:
    """Return the derivative of the logarithm of the density by the components that *x* has."""
    whole = _whole(x, alpha)
    power = _down(alpha, x) - 1
    slope = power / np.where(np.logical_and(power == 0, whole == 0), 1, whole)
    return slope if x.shape[0] == alpha.shape[0] else slope[:-1] - slope[-1:]


def _by_alpha(g: Any, x: Any, alpha: Any) -> Any:
    logarithms = np.sum(np.reshape(np.log(_whole(x, alpha)) * g, (alpha.shape[0], -1)), axis=1)
    return logarithms + (special.digamma(np.sum(alpha)) - special.digamma(alpha)) * np.sum(g)


def _push_dirichlet(tangents: list[Any], values: Any) -> Any:
    (x, alpha), (along_x, along_alpha) = values, tangents
    terms = []
    if along_x is not None:
        terms.append(np.sum(_slope(x, alpha) * along_x, axis=0))
    if along_alpha is not None:
        slope = np.log(_whole(x, alpha)) + _down(special.digamma(np.sum(alpha)) - special.digamma(alpha), x)
        terms.append(np.sum(slope * _down(along_alpha, x), axis=0))
    return _total(terms)


_log_dirichlet = _declare(
    lambda x, alpha: np.reshape(stats.dirichlet.logpdf(x, alpha), x.shape[1:]),
    "dirichlet.logpdf",
    ("x", "alpha"),
    (lambda g, x, alpha: _slope(x, alpha) * g, _by_alpha),
    _push_dirichlet,
    lambda x, alpha: x.shape[1:],
)


@final
class Dirichlet:
    """The density of the Dirichlet distribution, with derivatives by points and concentrations."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        """Return the distribution with these parameters."""
        return Frozen(self, args, kwargs)

    @staticmethod
    @stands_for(stats.dirichlet.logpdf)
    def logpdf(x: Any, alpha: Any) -> Any:
        """
        Return the logarithm of the density, as SciPy's function.

        Args:
            x: Points; the components on the first axis, all d or all but the last.
            alpha: Vector of d concentrations.

        Memory:
            A record saves the points and the concentrations.
        """
        x, alpha = map(with_shape, (x, alpha))
        return np.squeeze(_log_dirichlet.bind((x, alpha)))

    @staticmethod
    @stands_for(stats.dirichlet.pdf)
    def pdf(x: Any, alpha: Any) -> Any:
        """Return the density; arguments are those of `logpdf`."""
        return np.exp(Dirichlet.logpdf(x, alpha))


dirichlet = Dirichlet()
multivariate_normal = MultivariateNormal()
