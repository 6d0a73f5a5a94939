"""A functional along a line through its controls: its values, and how much of them is rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.arrays.array_type import type_of
from ebbtide.optimize.functional import ReducedFunctional
from ebbtide.optimize.vectors import moved, pairing

# A remainder is compared with this many times the rounding error, so that its rate is right to within that of the test.
ABOVE_ROUNDING = 32.0
# The largest step of `taylor_test` moves the controls by this part of their size.
FIRST_STEP = 0.5
# Enough to see a relative error of 1e-3 in a derivative, and still few runs.
HALVINGS = 14
# The rounding error of a functional is seen at distances of this power of a unit of rounding: by less, and sums like
# 1 + x^2 keep their bits; by more, and what changes is no polynomial of low degree. At equal distances all errors
# may be one: in 1 of 30 tests of log(1 + x^2) near 0 they were.
NEAR, AT, DEGREE = 0.4, (0.0, 1.0, 1.7, 2.9, 3.4, 4.6, 5.3), 3


@final
@dataclass(frozen=True, slots=True)
class Expansion:
    """
    The value and the derivatives of a functional along a line.

    Args:
        value: The value.
        derivatives: The first, the second derivative.
        sizes: What these would be if nothing canceled in the sums that they are.
    """

    value: float
    derivatives: list[float]
    sizes: list[float]

    def size(self, order: int, distance: float) -> float:
        """Return the size of the term of an order at a distance if nothing canceled in it."""
        return self.sizes[order - 1] * distance**order / math.factorial(order)

    def check(self) -> None:
        """Raise if there is something in it that is not finite."""
        if not math.isfinite(self.value):
            raise ValueError(
                f"The functional is {self.value} at m, where it cannot be expanded. Give an m where it is finite."
            )
        for order, derivative in enumerate(self.derivatives, start=1):
            if not math.isfinite(derivative):
                raise ValueError(
                    f"The derivative of order {order} along the direction is {derivative}, where the functional is "
                    f"{self.value:.6g}: there is no expansion. Look with np.isfinite for what is not finite in the "
                    "derivative (as the slope of np.sqrt at 0), or give another m."
                )


def expanded(
    functional: ReducedFunctional, m: Any, direction: Any, directions: list[list[Any]], order: int
) -> Expansion:
    """Return the value at m, and the first *order* derivatives along the direction."""
    value, first = functional.value_and_derivative(m) if order else (functional.value(m), None)
    Expansion(float(value), [], []).check()
    cotangents = [first] if order else []
    if order == 2:
        cotangents.append(functional.hessian(m, direction))
    slopes: list[float] = []
    sizes: list[float] = []
    for cotangent in cotangents:
        pairs = list(zip(functional.split(cotangent, "derivative"), directions, strict=True))
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told below
            slopes.append(sum(pairing(c, d) for c, d in pairs))
            sizes.append(sum(pairing(list(map(np.abs, c)), list(map(np.abs, d))) for c, d in pairs))
    expansion = Expansion(float(value), slopes, sizes)
    expansion.check()
    return expansion


@final
class Line:
    """The values of a functional along a line through the controls."""

    __slots__ = ("_directions", "_functional", "_points", "eps", "scale")

    def __init__(self, functional: ReducedFunctional, points: list[list[Any]], directions: list[list[Any]]) -> None:
        self._functional = functional
        self._points = points
        self._directions = directions
        self.eps = max(float(np.finfo(type_of(x).dtype).eps) for xs in points for x in xs)
        self.scale = _scale([x for xs in points for x in xs], [d for ds in directions for d in ds])

    def at(self, distance: float) -> float:
        """Return the value at a distance."""
        pairs = zip(self._points, self._directions, strict=True)
        values = [moved(leaves, distance, direction) for leaves, direction in pairs]
        return float(self._functional.value(self._functional.containers(values)))


def _scale(points: list[Any], directions: list[Any]) -> float:
    """Return the distance at which the first leaf changes by its own size; leaves that are zero have none."""
    sizes = [(_size(x), _size(d)) for x, d in zip(points, directions, strict=True)]
    if not all(math.isfinite(x) and math.isfinite(d) for x, d in sizes):
        raise ValueError("m or the direction is not finite: there is no expansion. Check both with np.isfinite.")
    if not any(d for _, d in sizes):
        raise ValueError("The direction is zero, so there is nothing to expand. Give one that moves the controls.")
    return min([x / d for x, d in sizes if x and d] or [1.0 / max(d for _, d in sizes)])


def _size(x: Any) -> float:
    return float(np.max(np.abs(x))) if np.size(x) else 0.0


@final
class Rounding:
    """
    How much of a remainder is rounding: as measured near to the point, and in proportion to the value and its change.

    Near to the point a smooth function is a polynomial of low degree; what is left beside one is rounding.
    """

    __slots__ = ("_eps", "_expansion", "_noise")

    def __init__(self, line: Line, expansion: Expansion) -> None:
        self._eps = line.eps
        self._expansion = expansion
        step = line.scale * self._eps**NEAR
        values = np.array([expansion.value, *[line.at(step * k) for k in AT[1:]]])
        self._noise = max(self._eps * abs(expansion.value) / 4, _noise_of(values))

    def floor(self, value: float, distance: float) -> float:
        """Return the size up to which a remainder may be rounding at a distance, with this value there."""
        # Across the gradient the summands of a derivative are far larger than it is, and so is its rounding.
        terms = sum(self._expansion.size(order + 1, distance) for order in range(len(self._expansion.sizes)))
        return ABOVE_ROUNDING * max(self._noise, self._eps * abs(value) / 4, self._eps * terms / 4)


def _noise_of(values: NDArray[np.float64]) -> float:
    """Return the size of the errors of values at the distances `AT`."""
    changes = values - values[0]
    size = float(np.max(np.abs(changes)))
    if not math.isfinite(size) or not size:
        return 0.0
    powers = np.vander(AT, DEGREE + 1)
    left = changes / size - powers @ np.linalg.lstsq(powers, changes / size)[0]
    return size * math.sqrt(left @ left / (len(AT) - DEGREE - 1))


def walk(line: Line) -> tuple[list[float], list[float]]:
    """Return distances, each half of the one before, and the values there."""
    chosen = [FIRST_STEP * line.scale / 2**k for k in range(HALVINGS + 1)]
    found = [line.at(distance) for distance in chosen]
    # A step so large that a simulation blows up says nothing about derivatives.
    start = max((k + 1 for k, there in enumerate(found) if not math.isfinite(there)), default=0)
    if start > HALVINGS - 1:
        raise ValueError(
            f"The functional is finite at m, but not at the distance {chosen[start - 1]:.3g} along the direction. "
            "Choose another direction, or give distances."
        )
    return chosen[start:], found[start:]
