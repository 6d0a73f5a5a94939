"""Taylor remainders along a direction, their rates, and whether these are what the derivatives promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

NAMES = ("order 0", "order 1", "order 2")
TOLERANCE = 0.1
# A remainder this small against the value is rounding and has no rate.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class TaylorTest:
    """
    The result of a Taylor test.

    Args:
        value: The value at distance 0.
        distances: The distances, each smaller than the one before.
        remainders: For each order of the expansion, the remainder at each distance.
    """

    value: float
    distances: tuple[float, ...]
    remainders: tuple[tuple[float, ...], ...]

    @property
    def orders(self) -> int:
        """How many expansions there are: order 0, order 1, and so on."""
        return len(self.remainders)

    def rates(self, order: int) -> tuple[float, ...]:
        """Return the exponents by which the remainder of an order falls from each distance to the next."""
        found: list[float] = []
        pairs = zip(self.distances, self.remainders[order], strict=True)
        for (far, large), (near, small) in pairwise(pairs):
            found.append(math.log(large / small) / math.log(far / near) if large > 0.0 < small else math.nan)
        return tuple(found)

    def is_right(self, order: int) -> bool:
        """Whether every rate is order + 1 to within `TOLERANCE`, apart from remainders that are rounding."""
        noise = ROUNDING * abs(self.value)
        sizes = self.remainders[order]
        # A larger rate is no error: it means that the next term vanishes.
        return all(
            small <= noise or rate >= order + 1 - TOLERANCE
            for rate, small in zip(self.rates(order), sizes[1:], strict=True)
        )

    def verdict(self, order: int) -> str:
        """Return a line on an order: its rates and what they should be."""
        rates = [rate for rate in self.rates(order) if not math.isnan(rate)]
        if not rates:
            return f"Taylor {NAMES[order]}: all remainders are zero"
        return f"Taylor {NAMES[order]}: rates {min(rates):.3f} to {max(rates):.3f}, {order + 1} is right"

    def table(self) -> str:
        """Return the remainders and rates, a line for each distance."""
        heads = "".join(f"{NAMES[order]:>14} {'rate':>6}" for order in range(self.orders))
        lines = [f"{'e':>9}{heads}"]
        rates = [(math.nan, *self.rates(order)) for order in range(self.orders)]
        for row, distance in enumerate(self.distances):
            cells = [f"{distance:>9.5f}"]
            for order in range(self.orders):
                rate = rates[order][row]
                shown = "" if math.isnan(rate) else f"{rate:.3f}"
                cells.append(f"{self.remainders[order][row]:>14.6e} {shown:>6}")
            lines.append("".join(cells))
        return "\n".join(lines)


def taylor_remainders(
    along: Callable[[float], float], value: float, derivatives: Sequence[float], distances: Sequence[float]
) -> TaylorTest:
    """
    Compare a function along a direction with its Taylor expansions.

    Args:
        along: The function of the distance e.
        value: Its value at e = 0.
        derivatives: Its first, second, ... derivative at e = 0.
        distances: Values of e, each smaller than the one before.

    Returns:
        The remainders |along(e) - sum over k <= order of derivatives[k] e^k / k!|.
    """
    found = [along(distance) for distance in distances]
    coefficients = [value] + [slope / math.factorial(k) for k, slope in enumerate(derivatives, start=1)]
    remainders: list[tuple[float, ...]] = []
    for order in range(len(coefficients)):
        expanded = [sum(c * e**k for k, c in enumerate(coefficients[: order + 1])) for e in distances]
        remainders.append(tuple(abs(f - x) for f, x in zip(found, expanded, strict=True)))
    return TaylorTest(value, tuple(distances), tuple(remainders))
