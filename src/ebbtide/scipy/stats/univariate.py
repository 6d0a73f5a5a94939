"""
How a distribution of one variable is declared: by the derivatives of the logarithm of its density.

From the slope of log f along the standard variable z = (x - loc) / scale, and from those along the shape parameters,
follow the derivatives of all its functions, by every argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ebbtide.arrays.kinds import elementwise
from ebbtide.rules.originals import is_traced
from ebbtide.rules.special import without_rule
from ebbtide.scipy.stats.frozen import Frozen

Expression = Callable[..., Any]


@final
@dataclass(frozen=True, slots=True)
class Support:
    """
    Where a density is not zero.

    Args:
        inside: `inside(z)` says whether the standard variable is inside; None for all real numbers.
        point: A point inside, at which expressions are computed for the others, so that none of them is nan.
    """

    inside: Expression | None = None
    point: float = 0.0

    def only(self, expression: Expression, z: Any, shapes: Sequence[Any]) -> Any:
        """Return an expression of z and shape parameters, and 0 outside."""
        if self.inside is None:
            return expression(z, *shapes)
        inside = self.inside(z)
        return np.where(inside, expression(np.where(inside, z, self.point), *shapes), 0)


REAL = Support()
POSITIVE = Support(lambda z: z > 0, 1.0)
UNIT = Support(lambda z: np.logical_and(z > 0, z < 1), 0.5)
ABOVE_ONE = Support(lambda z: z > 1, 2.0)


def saving(names: Sequence[str], expression: Expression) -> Expression:
    """Return *expression* as one with parameters of these names: what a rule saves is read off them."""

    def named(*values: Any) -> Any:
        return expression(*values)

    vars(named)["__signature__"] = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])
    return named


def function_of(original: Any, name: str, names: Sequence[str], derivatives: Sequence[Any]) -> Callable[..., Any]:
    """
    Return a function of a distribution, with derivatives.

    Args:
        original: SciPy's, which is called on plain arrays and gives the values.
        name: Its name, such as `norm.pdf`.
        names: Names of its arguments, the last of which may be `loc` and `scale`.
        derivatives: By each argument, as `elementwise` takes them.
    """
    primitive = elementwise(original, d=tuple(derivatives), operands=tuple(names), name=name)
    defaults = {"loc": 0, "scale": 1}
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(n, kind, default=defaults.get(n, Parameter.empty)) for n in names])

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_traced(args, kwargs):
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return primitive.bind(tuple([bound.arguments[n] for n in names]))

    call.__name__ = call.__qualname__ = name
    vars(call).update(__wrapped__=original, __signature__=signature)
    return call


def _standard(x: Any, *parameters: Any) -> tuple[Any, Any, Any]:
    """Return z, the shape parameters, and the scale."""
    *values, loc, scale = parameters
    return (x - loc) / scale, values, scale


@final
class Continuous:
    """
    The functions of a continuous distribution of SciPy, with derivatives by all their arguments.

    They take what SciPy's take: x (or a probability), shape parameters, loc=0, scale=1, as arrays that are broadcast.
    Outside of the support, and at its ends, derivatives are 0.

    Args:
        original: SciPy's distribution.
        score: `score(z, *shapes)`, the derivative of the logarithm of the standard density by z; 0 if it is constant.
        support: Where the standard density is not zero.
        shapes: By each shape parameter, by its name, the derivative of that logarithm: `shapes[name](z, *shapes)`.
        totals: By each shape parameter the derivative of the probability below z.
        drifts: The same over the density, where that is known: logarithms of probabilities that underflow then have
            derivatives, too.

    Memory:
        A record saves x and the parameters that are arrays; `pdf`, `logcdf` and `logsf` the result, too, and `ppf` and
        `isf` the result in place of the probability.
    """

    __slots__ = ("_names", "_original", "_shapes", "cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf")

    def __init__(
        self,
        original: Any,
        score: Any,
        support: Support = REAL,
        shapes: Mapping[str, Expression] = MappingProxyType({}),
        totals: Mapping[str, Expression] = MappingProxyType({}),
        drifts: Mapping[str, Expression] = MappingProxyType({}),
    ) -> None:
        self._original = original
        self._names = ("x", *shapes, "loc", "scale")
        # Of each shape parameter the derivative of the probability, or that over the density.
        self._shapes = tuple([
            (None, self._of_drift(drifts[name], support)) if name in drifts
            else (self._of_shape(totals[name], support), None)
            for name in shapes
        ])  # fmt: skip
        self.logpdf, self.pdf = self._densities(score, support, shapes.values())
        self.cdf, self.sf = self._probability("cdf", 1), self._probability("sf", -1)
        self.logcdf, self.logsf = self._logarithm("logcdf", 1), self._logarithm("logsf", -1)
        self.ppf, self.isf = self._quantile("ppf", 1), self._quantile("isf", -1)

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        """Return the distribution with these parameters."""
        return Frozen(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<{self._original.name} of ebbtide.scipy.stats>"

    @staticmethod
    def _of_shape(expression: Expression, support: Support) -> Expression:
        """Return an expression of z and shape parameters as one of all arguments, 0 outside of the support."""

        def by(*arguments: Any) -> Any:
            z, values, _ = _standard(*arguments)
            return support.only(expression, z, values)

        return by

    @staticmethod
    def _of_drift(expression: Expression, support: Support) -> Expression:
        """Return how far less x moves with a shape parameter for one probability."""

        def by(*arguments: Any) -> Any:
            z, values, scale = _standard(*arguments)
            return support.only(expression, z, values) * scale

        return by

    def _densities(self, score: Any, support: Support, shapes: Iterable[Expression]) -> tuple[Any, Any]:
        """Return `logpdf` and `pdf`."""

        def slope(sign: int) -> Expression:
            def by(*arguments: Any) -> Any:
                z, values, scale = _standard(*arguments)
                return support.only(lambda z, *s: score(z, *s) * sign, z, values) / scale

            return by

        def by_scale(*arguments: Any) -> Any:
            z, values, scale = _standard(*arguments)
            return support.only(lambda z, *s: -1 - (z * score(z, *s) if score else 0), z, values) / scale

        by_shapes = [self._of_shape(expression, support) for expression in shapes]
        ends = (slope(1) if score else 0, *by_shapes, slope(-1) if score else 0, by_scale)
        of_density = [
            saving((*self._names, "out"), lambda *values, d=d: values[-1] * d(*values[:-1])) if d else 0 for d in ends
        ]
        of_logarithm = [saving(self._names, d) if d else 0 for d in ends]
        return self._function("logpdf", of_logarithm), self._function("pdf", of_density)

    def _by_shapes(self, of_total: Expression, of_drift: Expression) -> list[Expression]:
        """Return the derivative by each shape parameter, from the one of both that is declared."""
        return [of_total(total) if drift is None else of_drift(drift) for total, drift in self._shapes]

    def _probability(self, name: str, sign: int) -> Any:
        """Return `cdf` or `sf`."""
        by_shapes = self._by_shapes(
            lambda total: lambda *values: total(*values) * sign,
            lambda drift: lambda *values: self.pdf(*values) * drift(*values) * sign,
        )
        return self._moving(name, self._names, lambda *values: self.pdf(*values) * sign, by_shapes)

    def _logarithm(self, name: str, sign: int) -> Any:
        """Return `logcdf` or `logsf`: the ratio of density and probability does not underflow, as both of them do."""

        def by(*values: Any) -> Any:
            *arguments, out = values
            nothing = np.isneginf(out)
            gap = np.where(nothing, -np.inf, self.logpdf(*arguments) - np.where(nothing, 0, out))
            return np.exp(gap) * sign

        by_shapes = self._by_shapes(
            lambda total: lambda *values: total(*values[:-1]) * sign / np.exp(_finite(values[-1])),
            lambda drift: lambda *values: by(*values) * drift(*values[:-1]),
        )
        return self._moving(name, (*self._names, "out"), by, by_shapes)

    def _moving(self, name: str, names: tuple[str, ...], by: Expression, by_shapes: Sequence[Expression]) -> Any:
        """Return a function of z and the shape parameters, from its derivatives by x and these."""
        place = self._names.index("loc")

        def by_scale(*values: Any) -> Any:
            return by(*values) * ((values[place] - values[0]) / values[place + 1])

        derivatives = (by, *by_shapes, lambda *values: by(*values) * -1, by_scale)
        return self._function(name, [saving(names, derivative) for derivative in derivatives])

    def _quantile(self, name: str, sign: int) -> Any:
        """Return `ppf` or `isf`: where the probability is the given one."""
        names = ("out", *self._names[1:])
        by_shapes = self._by_shapes(
            lambda total: saving(names, lambda *values: total(*values) * -1 / self.pdf(*values)),
            lambda drift: saving(names, lambda *values: drift(*values) * -1),
        )
        by = saving(names, lambda *values: sign / self.pdf(*values))
        by_scale = saving(("out", "loc", "scale"), lambda out, loc, scale: (out - loc) / scale)
        return self._function(name, [by, *by_shapes, 1, by_scale], ("q", *self._names[1:]))

    def _function(self, name: str, derivatives: Sequence[Any], names: tuple[str, ...] | None = None) -> Any:
        full = f"{self._original.name}.{name}"
        return function_of(getattr(self._original, name), full, names or self._names, derivatives)


@final
class Discrete:
    """
    The functions of a discrete distribution of SciPy, with derivatives by its shape parameters.

    They take what SciPy's take: k, shape parameters, loc=0. The first argument is a count, along which the derivative
    is 0; so it is along `loc`.

    Args:
        original: SciPy's distribution.
        shapes: By each shape parameter, by its name, the derivative of the logarithm of the probability:
            `shapes[name](k, *shapes)`; None where there is none.
        total: By each shape parameter the derivative of the probability of at most k, which is whole, over exp(log):
            `total[name](k, *shapes, log)`, in one exponential, as both may underflow; None where there is none.
        counts: `counts(k, *shapes)` says whether a whole number k may come up.

    Memory:
        A record saves k and the shape parameters that are arrays; `pmf` and `logcdf` the result, too.
    """

    __slots__ = ("_names", "_original", "cdf", "logcdf", "logpmf", "logsf", "pmf", "sf")

    def __init__(
        self,
        original: Any,
        shapes: Mapping[str, Expression | None],
        total: Mapping[str, Expression | None],
        counts: Expression = lambda k, *shapes: k >= 0,
    ) -> None:
        self._original = original
        self._names = ("k", *shapes, "loc")

        def inside(k: Any, *values: Any) -> Any:
            return np.logical_and(np.floor(k) == k, counts(k, *values))

        def slope(expression: Expression) -> Expression:
            def by(k: Any, *parameters: Any) -> Any:
                *values, loc = parameters
                return np.where(inside(k - loc, *values), expression(k - loc, *values), 0)

            return by

        def summed(expression: Expression, sign: int) -> Expression:
            def by(k: Any, *parameters: Any) -> Any:
                *values, loc = parameters[: len(shapes) + 1]
                k, log = np.floor(k - loc), _finite(parameters[-1]) if len(parameters) > len(shapes) + 1 else 0
                return np.where(counts(k, *values), expression(k, *values, log) * sign, 0)

            return by

        density = {name: expression and slope(expression) for name, expression in shapes.items()}
        below, above = (
            {name: expression and summed(expression, sign) for name, expression in total.items()} for sign in (1, -1)
        )
        of_pmf = {name: d and (lambda *values, d=d: d(*values[:-1]) * values[-1]) for name, d in density.items()}
        self.logpmf = self._function("logpmf", density)
        self.pmf = self._function("pmf", of_pmf, "out")
        self.cdf, self.sf = self._function("cdf", below), self._function("sf", above)
        self.logcdf, self.logsf = self._function("logcdf", below, "out"), self._function("logsf", above, "out")

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        """Return the distribution with these parameters."""
        return Frozen(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<{self._original.name} of ebbtide.scipy.stats>"

    def _function(self, name: str, slopes: Mapping[str, Expression | None], *out: str) -> Any:
        """Return a function of the distribution from its derivatives, which take the result, too, if it is named."""
        full = f"{self._original.name}.{name}"
        derivatives: list[Any] = [0]
        for shape, slope in slopes.items():
            derivatives.append(
                without_rule(f"the shape parameter {shape} of scipy.stats.{full}")
                if slope is None
                else saving((*self._names, *out), slope)
            )
        return function_of(getattr(self._original, name), full, self._names, [*derivatives, 0])


def _finite(out: Any) -> Any:
    """Return logarithms with 0 for those of probability 0, whose derivative is 0."""
    return np.where(np.isneginf(out), 0, out)
