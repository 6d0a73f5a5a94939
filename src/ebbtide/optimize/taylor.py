"""The Taylor test: how fast remainders fall along a direction, and whether derivatives promise just that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, final

import numpy as np

from ebbtide.arrays.functions import check_function
from ebbtide.optimize.functional import ReducedFunctional, as_functional
from ebbtide.optimize.line import Expansion, Line, Rounding, expanded, walk
from ebbtide.optimize.plot import draw_taylor

EPS = float(np.finfo(np.float64).eps)
# How far below its promise a rate may be.
TOLERANCE = 0.2
# Rates that change by more than this have not come to what they tend to.
SETTLED = 0.15
# Those that differ by more are of remainders that are rounding, whatever was measured of it.
SCATTERED = 1.0
# A remainder this small against that of the order before confirms the derivative without a rate.
EXPLAINED = 1e-3
# What a remainder may be of that of the order before, so that a derivative that is off by a tenth would be seen. With
# such a one these parts are |0.1 - a e| for some a: at most 0.1 for e < 0.2 / a, but there the rates have not settled;
# and never at most 0.03 at two distances, e and 2 e. Of 9600 tests of random functions whose derivatives are off by a
# tenth 400 passed by the rates alone, in float32 and across the gradient most of them, and with these none does.
TENTH, TOLD = 0.1, 0.03
# A derivative is zero where all of its parts together are this many units of rounding of the change of the functional.
IDLE = 32.0
# The rates judged: those at the smallest distances, where higher terms have died out.
JUDGED = 3
# So many in all where rates have not settled, as near a distance at which a remainder changes its sign.
MOST_HALVINGS = 28


@final
@dataclass(frozen=True, slots=True)
class TaylorTest:
    """
    The result of a Taylor test: `print` shows it as a table, `plot` draws it.

    Args:
        value: The value at distance 0.
        distances: The distances, each smaller than the one before.
        remainders: For each order of the expansion, the remainder at each distance.
        floors: At each distance, the size up to which a remainder may be rounding and has no rate.
        idle: The orders whose derivative is zero, to rounding, in all that it is summed up of: there is nothing in it
            that could be off by a part of itself.

    Memory:
        Some numbers.

    Example:
        >>> test = TaylorTest(1.0, (0.1, 0.05), ((0.2, 0.1), (0.002, 0.0005)), (1e-14, 1e-14))
        >>> [round(test.rate(order), 9) for order in range(2)], test.passed
        ([1.0, 2.0], True)
    """

    value: float
    distances: tuple[float, ...]
    remainders: tuple[tuple[float, ...], ...]
    floors: tuple[float, ...]
    idle: tuple[int, ...] = ()

    @property
    def orders(self) -> int:
        """How many expansions there are: order 0, order 1, and so on."""
        return len(self.remainders)

    @property
    def passed(self) -> bool:
        """Whether the remainders of each order fall as its derivatives promise."""
        return all(self.is_right(order) for order in range(self.orders))

    def rates(self, order: int) -> tuple[float, ...]:
        """Return the exponents by which the remainder of an order falls with each distance; nan in rounding."""
        if not 0 <= order < self.orders:
            raise ValueError(f"There is no order {order!r} in this test: there are those from 0 to {self.orders - 1}.")
        found: list[float] = []
        rows = zip(self.distances, self.remainders[order], self.floors, strict=True)
        for (far, large, first), (near, small, second) in pairwise(rows):
            seen = large > first and small > second
            found.append(math.log(large / small) / math.log(far / near) if seen else math.nan)
        return tuple(found)

    def judged(self, order: int) -> tuple[float, ...]:
        """Return the rates that an order is judged by: the last ones above rounding, at the smallest distances."""
        return tuple([rate for rate in self.rates(order) if not math.isnan(rate)])[-JUDGED:]

    def rate(self, order: int) -> float:
        """Return the median of the rates that an order is judged by; nan if there is none."""
        return median(self.judged(order) or [math.nan])

    def is_known(self, order: int) -> bool:
        """Whether the remainders say enough of an order to call it right or wrong."""
        if self.is_right(order):
            return True
        if self.falls(order) or not self._has_rates(order):
            return False
        if not math.isnan(self.rates(order)[-1]):
            # A wrong derivative leaves remainders that fall at one rate; those of rounding have any.
            return max(self.judged(order)) - min(self.judged(order)) <= SCATTERED
        # Where rounding cut the rates off, they may have been on their way up: those of a wrong derivative have settled
        # near the rate below.
        before, last = (self.judged(order) * 2)[-2:]
        return last < order + 0.5 and abs(last - before) <= SETTLED

    def is_right(self, order: int) -> bool:
        """Whether the remainder falls as it should, and would not if the derivative were off by a tenth."""
        return self.falls(order) and self._is_told(order)

    def falls(self, order: int) -> bool:
        """Whether the rate is order + 1, to within 0.2, or so small a remainder is left that it has no rate."""
        # A larger rate is no error: it means that the next term vanishes.
        return self.rate(order) >= order + 1 - TOLERANCE if self._has_rates(order) else self._is_exact(order)

    def shares(self, order: int) -> tuple[float, ...]:
        """Return at each distance which part of the remainder of the order before is left, or may be, of this one."""
        earlier = self.remainders[order - 1] if order else (math.inf,) * len(self.distances)
        rows = zip(self.remainders[order], earlier, self.floors, strict=True)
        return tuple([max(size, floor) / before if before else math.inf for size, before, floor in rows])

    def _is_told(self, order: int) -> bool:
        """Whether a derivative that is off by a tenth would leave other remainders."""
        if not order or order in self.idle:
            return True
        shares = self.shares(order)
        if self._has_rates(order):
            last = max(k for k, rate in enumerate(self.rates(order)) if not math.isnan(rate))
            shares = shares[last : last + 2]
            if self._is_settled(order) and shares[-1] <= TENTH:
                return True
        return len([share for share in shares if share <= TOLD]) >= 2

    def _is_settled(self, order: int) -> bool:
        known = self.judged(order)
        return len(known) == JUDGED and max(known) - min(known) <= SETTLED

    def _has_rates(self, order: int) -> bool:
        return len(self.judged(order)) >= min(JUDGED, len(self.distances) - 1)

    def _is_exact(self, order: int) -> bool:
        """Whether each remainder is rounding, or the last term explained nearly all of the one before."""
        before = self.remainders[order - 1] if order else (0.0,) * len(self.distances)
        rows = zip(self.remainders[order], before, self.floors, strict=True)
        return all(size <= max(floor, EXPLAINED * last) for size, last, floor in rows)

    def verdict(self, order: int) -> str:
        """Return a line on an order: its rates and what they should be."""
        if self.falls(order) and not self._is_told(order):
            return f"Taylor order {order}: unknown, a derivative that is off by a tenth would leave the same remainders"
        if self._has_rates(order):
            known = self.judged(order)
            doubt = "" if self.is_known(order) else "; unknown, they have not settled"
            return f"Taylor order {order}: rates {min(known):.3f} to {max(known):.3f}, {order + 1} is right{doubt}"
        if self._is_exact(order):
            return f"Taylor order {order}: exact, the remainders are as small as rounding"
        return f"Taylor order {order}: unknown, rounding leaves {len(self.judged(order))} rates"

    def table(self) -> str:
        """Return the remainders and rates, a line for each distance."""
        heads = "".join(f"{f'order {order}':>14} {'rate':>6}" for order in range(self.orders))
        lines = [f"{'e':>9}{heads}"]
        rates = [(math.nan, *self.rates(order)) for order in range(self.orders)]
        # A fixed number of decimals lines up; small distances would lose their digits in it.
        style = ".5f" if min(self.distances) >= 1e-4 else ".2e"
        for row, distance in enumerate(self.distances):
            cells = [f"{distance:>9{style}}"]
            for order in range(self.orders):
                rate = rates[order][row]
                shown = "" if math.isnan(rate) else f"{rate:.3f}"
                cells.append(f"{self.remainders[order][row]:>14.6e} {shown:>6}")
            lines.append("".join(cells))
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [self.table(), f"value {self.value:.12g}; up to {self.floors[-1]:.1e} a remainder may be rounding"]
        words = [f"{'ok  ' if self.is_right(order) else 'FAIL'}  {self.verdict(order)}" for order in range(self.orders)]
        return "\n".join([*lines, *words])

    def plot(self, path: str | Path) -> None:
        """
        Draw the remainders over the distances, both logarithmic, with the slopes that are right.

        Args:
            path: Where the picture goes; its suffix says the format.

        Raises:
            ImportError: There is no matplotlib.
            ValueError: The path is that of a directory, or in none.
        """
        rates = [self.rate(order) for order in range(self.orders)]
        draw_taylor(self.distances, self.remainders, self.floors, rates, path)


def taylor_remainders(
    along: Callable[[float], float],
    value: float,
    derivatives: Sequence[float],
    distances: Sequence[float],
    floor: float | None = None,
) -> TaylorTest:
    """
    Compare a function along a direction with its Taylor expansions, where the derivatives are known already.

    Args:
        along: The function of the distance e.
        value: Its value at e = 0.
        derivatives: Its first, second, ... derivative at e = 0.
        distances: Values of e, each smaller than the one before.
        floor: A remainder up to here may be rounding; 1e-12 of the value if None.

    Returns:
        The test of the remainders |along(e) - sum over k <= order of derivatives[k] e^k / k!|.

    Raises:
        ValueError: The distances do not fall, the value or a derivative is no number, or something is not finite.
        TypeError: *along* is no function.

    Memory:
        What *along* takes.

    Source:
        Taylor's theorem with remainder; as a test of adjoints: Farrell, Ham, Funke, Rognes (2013).

    Example:
        >>> taylor_remainders(math.exp, 1.0, [1.0], [0.02, 0.01]).passed
        True
    """
    check_function(along, "taylor_remainders")
    chosen = _checked(distances)
    try:
        value, *derivatives = [float(number) for number in (value, *derivatives)]
    except (TypeError, ValueError):
        raise ValueError(f"value={value!r:.60}, derivatives={derivatives!r:.60}: give numbers.") from None
    found = [along(distance) for distance in chosen]
    floors = (1e-12 * abs(value) if floor is None else floor,) * len(found)
    return _tested(Expansion(value, derivatives, [abs(d) for d in derivatives]), chosen, found, floors)


def _tested(
    expansion: Expansion, distances: list[float], found: list[float], floors: Sequence[float], eps: float = EPS
) -> TaylorTest:
    """Return the test of an expansion by the values that were found at the distances."""
    expansion.check()
    for distance, there in zip(distances, found, strict=True):
        if not math.isfinite(there):
            raise ValueError(
                f"The functional is {there} at the distance {distance:.3g}, and finite at m: a remainder there says "
                "nothing. Give distances at which it is finite, or another direction."
            )
    remainders = _remainders(found, expansion.value, expansion.derivatives, distances)
    sizes = {order: expansion.size(order, distances[0]) for order in range(1, len(remainders))}
    # A functional that grows without bound at the largest distance says nothing of the size of its terms.
    change = min(max(remainders[0]), max(abs(expansion.value), *sizes.values(), 0.0))
    idle = tuple([order for order, size in sizes.items() if size <= IDLE * eps * change])
    return TaylorTest(expansion.value, tuple(distances), remainders, tuple(floors), idle)


def _remainders(
    found: Sequence[float], value: float, derivatives: Sequence[float], distances: Sequence[float]
) -> tuple[tuple[float, ...], ...]:
    """Return for each order the distance of each found value from its expansion."""
    coefficients = [value] + [slope / math.factorial(k) for k, slope in enumerate(derivatives, start=1)]
    remainders: list[tuple[float, ...]] = []
    for order in range(len(coefficients)):
        expanded = [sum(c * np.float64(e) ** k for k, c in enumerate(coefficients[: order + 1])) for e in distances]
        remainders.append(tuple([abs(f - x) for f, x in zip(found, expanded, strict=True)]))
    return tuple(remainders)


def taylor_test(
    functional: ReducedFunctional | Callable[..., Any],
    m: Any,
    direction: Any,
    order: int = 2,
    distances: Sequence[float] | None = None,
) -> TaylorTest:
    """
    Check the derivatives of a functional by the rates at which Taylor remainders fall along a direction.

    The remainders of J(m + e d) of orders 0, 1, 2 fall as e, e^2, e^3. If the first derivative is wrong, that of order
    1 falls as e only; if the Hessian is, that of order 2 falls as e^2. The distances are chosen: 15 of them, each half
    of the one before, from half of the size of the controls on, and up to 29 until rates settle. The rounding error of
    the functional is measured by 6 values next to *m*, where it is a polynomial. Rates are judged where they say most:
    at the smallest distances above rounding. And no order passes if a derivative that is off by a tenth would do as
    well, as along a direction across the gradient, or where a large constant in the functional drowns what changes.

    Args:
        functional: A reduced functional, or a function of one control.
        m: Where, as the functional takes it: real or complex, float64 or float32 (which leaves few distances).
        direction: The direction d, of the form of *m*. Choose one that moves all that shall be tested.
        order: The highest order of the expansion: 0 uses no derivative, 1 the first, 2 the Hessian too.
        distances: Distances e to use, each smaller than the one before; chosen if None.

    Returns:
        The remainders with their rates; `passed` says whether all are right.

    Raises:
        ValueError: The functional or a derivative is not finite; the functional does not change along the direction,
            or so little that its rounding hides the rates (float32 often does, at order 2), or what a derivative has to
            do with it; the distances do not fall; *m* or the direction is not of the form of the controls.
        TypeError: A dtype is not that of the controls.
        BudgetError: The budget of the functional is too small.

    Memory:
        Some copies of *m*, and what one call of the functional takes at a time.

    Source:
        Farrell, Ham, Funke, Rognes, Automated Derivation of the Adjoint of High-Level Transient Finite Element
        Programs (2013).

    Example:
        >>> import numpy as np
        >>> test = taylor_test(lambda x: np.sum(np.sin(x)), np.array([0.3, 1.2]), np.array([1.0, 0.5]))
        >>> [round(test.rate(order), 1) for order in range(3)], test.passed
        ([1.0, 2.0, 3.0], True)
    """
    if isinstance(order, bool) or order not in (0, 1, 2):
        raise ValueError(f"order={order!r}: give 0, 1 or 2; 1 needs the first derivative and 2 the Hessian.")
    functional = as_functional(functional, m)
    points, directions = functional.split(m), functional.split(direction, "direction")
    line = Line(functional, points, directions)
    expansion = expanded(functional, m, direction, directions, order)
    rounding = Rounding(line, expansion)
    chosen, found = walk(line) if distances is None else (_checked(distances), list[float]())
    found += [line.at(distance) for distance in chosen[len(found) :]]
    while True:
        floors = list(map(rounding.floor, found, chosen))
        test = _tested(expansion, chosen, found, floors, line.eps)
        if distances is not None or _has_settled(test) or len(chosen) > MOST_HALVINGS:
            break
        chosen.append(chosen[-1] / 2)
        found.append(line.at(chosen[-1]))
    _check_seen(test, line.eps)
    return test


def _has_settled(test: TaylorTest) -> bool:
    """Return whether smaller distances would say no more of any order."""
    for order in range(test.orders):
        known = test.judged(order)
        is_done = test.is_right(order) or math.isnan(test.rates(order)[-1])
        if not is_done and (test.falls(order) or max(known) - min(known) > SETTLED):
            return False
    return True


def _check_seen(test: TaylorTest, eps: float) -> None:
    """Raise if rounding hides what was to be tested."""
    floor = test.floors[0]
    if all(size <= least for sizes in test.remainders for size, least in zip(sizes, test.floors, strict=True)):
        raise ValueError(
            f"The functional does not change along this direction: it is {test.value:.6g} at m, and differs by up to "
            f"{max(test.remainders[0]):.3g} up to the distance {test.distances[0]:.3g}, where its rounding is "
            f"{floor:.3g}. Choose a direction that the functional depends on."
        )
    for order in range(test.orders):
        if test.is_known(order):
            continue
        if test.falls(order) and not math.isnan(test.rate(order)):
            raise ValueError(
                f"A right derivative of order {order} cannot be told from one that is off by a tenth: the derivative "
                "along this direction has so little part in the change of the functional that the remainder of order "
                f"{order} is {min(test.shares(order)):.2g} of that of order {order - 1}, and more, where {TOLD} would "
                "tell. Choose a direction along which it is larger (for order 1 nearer to the gradient), or another m; "
                f"or leave a large constant out of the functional.\n{test.table()}"
            )
        rates = ", ".join(f"{rate:.2f}" for rate in test.judged(order)) or "none"
        what = "Take float64 controls and data" if eps > 1e-10 else "Lessen the rounding of the functional"
        raise ValueError(
            f"Rounding hides the rate of order {order}: it is up to {floor:.3g}, the remainder falls into it from "
            f"{max(test.remainders[order]):.3g}, and the rates on the way are {rates}. {what}, or leave a large "
            f"constant out of it; give larger distances, or another direction; or test a lower order.\n{test.table()}"
        )


def _checked(distances: Sequence[float]) -> list[float]:
    """Return given distances if they fall and are positive."""
    try:
        chosen = [float(distance) for distance in distances]
    except (TypeError, ValueError):
        chosen = []
    falls = all(far > near > 0 for far, near in pairwise(chosen))
    if len(chosen) < 2 or not falls or chosen[0] == math.inf:
        raise ValueError(f"distances={distances!r}: give two or more positive numbers, each smaller than the last.")
    return chosen
