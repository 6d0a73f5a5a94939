"""
`quad` on traced arrays: integrals of a function, by its limits, its arguments, and what it closes over.

The derivative by a limit is the function there; by all else it is the integral of the derivative, found by quadrature
again, to the tolerances of the call. That is an integral like any other, and so on to any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, final

import numpy as np
from scipy import integrate

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.context import current, entered, outside
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.scipy.closure import Closure, here
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp

_NUMBER = ArrayType((), np.dtype(np.float64))


class Integrand(ABC):
    """A function of a number, made from operands."""

    __slots__ = ()

    @property
    @abstractmethod
    def held_arrays(self) -> tuple[Any, ...]:
        """The plain arrays that it keeps beside operands: those that functions of the user's reach."""

    @property
    @abstractmethod
    def level(self) -> int:
        """That of the context that it was made in, whose traces it knows."""

    @property
    @abstractmethod
    def kind(self) -> ArrayType:
        """The type of its integral."""

    @abstractmethod
    def at(self, x: Any, operands: Sequence[Any]) -> Any:
        """Return its value, by operations that have derivatives."""

    @abstractmethod
    def integrate(self, low: Any, high: Any, operands: Sequence[Any], options: dict[str, Any]) -> Any:
        """Return its integral, of plain arrays."""

    def moved(self, x: Any, operands: Sequence[Any], places: Sequence[int]) -> tuple[Callable[..., Any], list[Any]]:
        """Return its value as a function of some operands, and these."""

        def function(*some: Any) -> Any:
            given = dict(zip(places, some, strict=True))
            return self.at(x, [given.get(k, operand) for k, operand in enumerate(operands)])

        return function, [operands[k] for k in places]


@final
class _Closed(Integrand):
    """
    A user's function.

    Args:
        closure: The function, and what it uses.
        report: Where what SciPy says of the integral goes.
    """

    __slots__ = ("_closure", "_report")

    def __init__(self, closure: Closure, report: list[Any]) -> None:
        self._closure = closure
        self._report = report

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `Integrand.held_arrays`."""
        return self._closure.held_arrays

    @property
    def level(self) -> int:
        """See `Integrand.level`."""
        return self._closure.level

    @property
    def kind(self) -> ArrayType:
        """See `Integrand.kind`."""
        return _NUMBER

    def at(self, x: Any, operands: Sequence[Any]) -> Any:
        """See `Integrand.at`."""
        with self._closure.bound(operands) as functions:
            return np.reshape(functions[0](x), ())

    def integrate(self, low: Any, high: Any, operands: Sequence[Any], options: dict[str, Any]) -> Any:
        """Return SciPy's value."""
        with self._closure.bound(operands, values=True) as functions:
            value, *self._report[:] = integrate.quad(functions[0], float(low), float(high), **options)
        return np.float64(value)


class _Slope(Integrand):
    """A derivative of another function."""

    __slots__ = ()

    def integrate(self, low: Any, high: Any, operands: Sequence[Any], options: dict[str, Any]) -> Any:
        """Return the integral of all elements of the derivative together."""
        shape, dtype = self.kind.shape, self.kind.dtype
        size = prod(shape)
        if not size:
            return np.zeros(shape, dtype)

        def values(x: float) -> Any:
            return np.reshape(np.astype(np.asarray(self.at(np.float64(x), operands)), np.float64), size)

        tolerances = {name: options[name] for name in ("epsabs", "epsrel", "points")}
        return np.reshape(integrate.quad_vec(values, float(low), float(high), **tolerances)[0].astype(dtype), shape)[()]


@final
class _Pulled(_Slope):
    """What a function gives of a cotangent, its first operand, to one of its operands."""

    __slots__ = ("_function", "_kind", "_place")

    def __init__(self, function: Integrand, place: int, kind: ArrayType) -> None:
        self._function = function
        self._place = place
        self._kind = kind

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `Integrand.held_arrays`."""
        return self._function.held_arrays

    @property
    def level(self) -> int:
        """See `Integrand.level`."""
        return self._function.level

    @property
    def kind(self) -> ArrayType:
        """See `Integrand.kind`."""
        return self._kind

    def at(self, x: Any, operands: Sequence[Any]) -> Any:
        """See `Integrand.at`."""
        g, *rest = operands
        with entered(level=max(current().level, self.level)):
            function, values = self._function.moved(x, rest, (self._place,))
            return vjp(function, *values)[1](g)[0]


@final
class _Pushed(_Slope):
    """How fast a function changes as some operands do; the first operands are their tangents."""

    __slots__ = ("_function", "_places")

    def __init__(self, function: Integrand, places: tuple[int, ...]) -> None:
        self._function = function
        self._places = places

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `Integrand.held_arrays`."""
        return self._function.held_arrays

    @property
    def level(self) -> int:
        """See `Integrand.level`."""
        return self._function.level

    @property
    def kind(self) -> ArrayType:
        """See `Integrand.kind`."""
        return self._function.kind

    def at(self, x: Any, operands: Sequence[Any]) -> Any:
        """See `Integrand.at`."""
        count = len(self._places)
        with entered(level=max(current().level, self.level)):
            function, values = self._function.moved(x, operands[count:], self._places)
            return jvp(function, values, list(operands[:count]))[1]


def _integral(integrand: Integrand, low: Any, high: Any, operands: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return an integral as a function of its limits and operands."""
    return _operation(len(operands)).bind((low, high, *operands), {"integrand": integrand, "options": options})


def _operation(count: int) -> Primitive:
    """Return the operation that integrates a function of so many operands."""
    needs = tuple([f"operand{k}" for k in range(count + 2)])

    def pull(number: int) -> Pull:
        def rule(g: Any, kind: ArrayType, params: Any, low: Any, high: Any, *operands: Any) -> Any:
            integrand: Integrand = params["integrand"]
            if number < 2:
                slope = np.sum(g * integrand.at((low, high)[number], operands))
                return matched(slope if number else -slope, kind)
            pulled = _Pulled(integrand, number - 2, kind)
            return matched(_integral(pulled, low, high, (g, *operands), params["options"]), kind)

        return Pull(rule, needs, FRESH, temporaries=8)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        integrand, (low, high, *operands) = params["integrand"], values
        moving = tuple([k for k, tangent in enumerate(tangents[2:]) if tangent is not None])
        terms = [
            integrand.at(values[k], operands) * tangents[k] * (1 if k else -1)
            for k in (0, 1) if tangents[k] is not None
        ]  # fmt: skip
        if moving:
            along = [tangents[2 + k] for k in moving]
            terms.append(_integral(_Pushed(integrand, moving), low, high, (*along, *operands), params["options"]))
        return promoted(terms, out)

    def integral(low: Any, high: Any, *operands: Any, integrand: Integrand, options: dict[str, Any]) -> Any:
        with outside():
            return integrand.integrate(low, high, operands, options)

    return Primitive(
        integral,
        name="quad",
        operands=None,
        pull=pull,
        push=push,
        infer=lambda *kinds, integrand, options: integrand.kind,
        batch=lambda values, mapped, params, size: by_members(
            "quad",
            lambda xs, given: _integral(given["integrand"], xs[0], xs[1], xs[2:], given["options"]),
            values, mapped, params, size, params["integrand"].kind,
        ),
        runs_user_code=True,
    )  # fmt: skip


def _inside(low: Any, high: Any) -> Any:
    """Return a number between two limits."""
    ends = [type(end) is TracedArray or np.isfinite(end) for end in (low, high)]
    if all(ends):
        return (low + high) * 0.5
    return low + 1.0 if ends[0] else high - 1.0 if ends[1] else 0.0


def quad(
    func: Callable[..., Any], a: Any, b: Any, args: Any = (), full_output: int = 0, epsabs: float = 1.49e-8,
    epsrel: float = 1.49e-8, limit: int = 50, points: Any = None, weight: Any = None, **others: Any,
) -> Any:  # fmt: skip
    """
    Return the integral of a function of a number, as `scipy.integrate.quad`.

    Args:
        func: `func(x, *args)` returns a number. What it uses by closure is found.
        a: The lower limit, which may be -np.inf; it has a derivative, too.
        b: The upper limit, which may be np.inf.
        args: Other arguments of the function: a tuple of arrays and containers of arrays.
        full_output: Must be 0.
        epsabs: Absolute tolerance, for derivatives, too.
        epsrel: Relative tolerance.
        limit: The most intervals that the value is a sum over.
        points: Where the function is difficult, plain numbers.
        weight: Must be None: multiply the function by it.
        others: SciPy's arguments for weights and complex functions, which are refused.

    Returns:
        The integral, with derivatives in each mode to any order, and SciPy's estimate of its error, which is nan in a
        program of `jit` and under `vmap`, where it is not known.

    Raises:
        TraceError: The full output, a weight or a complex function is asked for.

    Memory:
        A record keeps the limits and the arguments. Its pull finds for each argument an integral of its shape.

    Source:
        Leibniz's rule. Values are by QUADPACK, as SciPy has it; derivatives by Gauss and Kronrod's rule on arrays.

    Example:
        >>> from ebbtide import grad
        >>> round(grad(lambda k: quad(lambda x: np.exp(-k * x), 0, np.inf)[0])(2.0), 6)
        np.float64(-0.25)
    """
    refused = [name for name, value in {"full_output": full_output, "weight": weight, **others}.items() if value]
    if refused:
        raise refusal(f"quad has no derivative rule with {', '.join(refused)}: leave it out, or call SciPy's.")
    low, high = (end if type(end) is TracedArray else np.float64(end) for end in (a, b))
    closure = Closure((func,), np.float64(1) * _inside(low, high), args if isinstance(args, tuple) else (args,))
    report: list[Any] = []
    options = {"epsabs": epsabs, "epsrel": epsrel, "limit": limit, "points": points}
    value = _integral(_Closed(closure, report), here(low), here(high), closure.operands, options)
    return value, report[0] if report and closure.has_values else np.nan
