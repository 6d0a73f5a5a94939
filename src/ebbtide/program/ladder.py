"""
The ways to run a program in fewer bytes for more work: from no extra work to the least bytes.

They are made without knowledge of a budget, and the one that a budget takes is the one with the least work among those
that fit. So what is held and what is computed again are monotone in the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from ebbtide.program.chain import chain_orders
from ebbtide.program.costs import cost_of, is_product
from ebbtide.program.cuts import smallest_cut
from ebbtide.program.delay import delayed
from ebbtide.program.keep import keep
from ebbtide.program.layout import Layout, find_layout
from ebbtide.program.memory import least_peak
from ebbtide.program.program import Program
from ebbtide.program.repeat import repeat
from ebbtide.program.values import Values, values_of

# Work up to so many times that of the program is tried.
_MOST_WORK = 4
# Values of less than this part of the peak are always kept.
_SMALL = 1 / 1024
# Numbers of bytes to try, each smaller than the one before; programs of more equations get by with fewer of them.
_LIMITS, _MANY_EQUATIONS = 24, 1000
# How much the time until the next use counts beside the cost: products mostly by time, other things by cost.
_FAR = (1.0, 0.3)
# Orders that are tried of a chain.
_CHAINS = 12
# Without a budget: the extra work that is worth a quarter of the peak, as long as that is of this size.
_UNASKED, _WORTH, _LARGE = 1 / 8, 3 / 4, 1 << 20


@final
@dataclass(frozen=True, slots=True)
class Rung:
    """
    One way to run a program.

    Args:
        program: The equations, some of them more than once.
        layout: How its values lie.
        forward: How many equations come first that are a part of their own; 0 if there is none.
        peak: The most bytes of arrays that it holds, if large ones are arrays of their own.
        work: What it costs (see `costs`).
        again: How many equations it computes beyond those of the program that it was made from.
        products: How many of these are products of matrices.
    """

    program: Program
    layout: Layout
    forward: int
    peak: int
    work: int
    again: int = 0
    products: int = 0


def plain_rung(program: Program, strides: Sequence[tuple[int, ...]], forward: int = 0) -> Rung:
    """
    Return how a program runs without a budget.

    Equations are put off where less is held then; and values are computed again where that takes no products, a quarter
    off the peak, and an eighth more work at most.
    """
    layout = find_layout(program, strides)
    first = _rung(program, layout, forward)
    if first.peak < _LARGE:
        return first
    best = min(_delayed(first), first, key=lambda rung: rung.peak)
    values = values_of(best.program, best.layout)
    place, anchors = _narrowest(best, values)
    held = sum(values.nbytes[one] for one in anchors) + 4 * max(values.nbytes)
    if not place or held > _WORTH * best.peak:
        return best
    found = _tried(best, first, values, anchors, held, 0.0, products=False)
    pays = found is not None and found.peak <= _WORTH * best.peak and found.work <= (1 + _UNASKED) * first.work
    return found if found is not None and pays else best


def ladder(program: Program, strides: Sequence[tuple[int, ...]], forward: int = 0) -> tuple[Rung, ...]:
    """
    Return the ways to run a program, from the least bytes to the least work.

    Args:
        program: The program, in which sums have taken their products (`add_products`): all ways compute the same
            equations, so that all give the same bits.
        strides: Of its inputs, in bytes.
        forward: How many equations come first that are a part of their own, as the forward part of a derivative that
            is reversed in another call; 0 if there is no such part. What is computed again for the equations after it
            is computed after it, so a part of the first equations remains: `Rung.forward` of them.

    Returns:
        Rungs with more and more bytes, and less and less work.
    """
    first = _rung(program, find_layout(program, strides), forward)
    start = min(_delayed(first), first, key=lambda rung: rung.peak)
    plain = plain_rung(program, strides, forward)
    found = [first, start, plain, *_looked_for(start, first)]
    values = values_of(start.program, start.layout)
    place, anchors = _narrowest(start, values)
    for order in chain_orders(values, place, anchors, _CHAINS):
        chained = _repeated(start, first, order)
        found += [chained, *_squeezed(chained, first)]
    best: list[Rung] = []
    for rung in sorted(found, key=lambda rung: (rung.peak, rung.work)):
        if not best or rung.work < best[-1].work:
            best.append(rung)
    return tuple(best)


def _rung(program: Program, layout: Layout, forward: int) -> Rung:
    work = sum(cost_of(equation) for equation in program.equations if equation.output not in layout.bases)
    return Rung(program, layout, forward, least_peak(program, layout)[0], work)


def _repeated(rung: Rung, first: Rung, order: Sequence[int]) -> Rung:
    """Return a rung with its equations in an order; *first* is the program that none of them was repeated in."""
    program, layout, forward = repeat(rung.program, rung.layout, order, rung.forward)
    made = _rung(program, layout, forward)
    counts = [_counts(one) for one in (made, first)]
    return replace(made, again=counts[0][0] - counts[1][0], products=counts[0][1] - counts[1][1])


def _counts(rung: Rung) -> tuple[int, int]:
    """Return the numbers of equations that are no views, and of products."""
    equations = [equation for equation in rung.program.equations if equation.output not in rung.layout.bases]
    return len(equations), sum(map(is_product, equations))


def _delayed(rung: Rung) -> Rung:
    values = values_of(rung.program, rung.layout)
    return _repeated(rung, rung, delayed(values, rung.forward))


def _narrowest(rung: Rung, values: Values) -> tuple[int, set[int]]:
    """Return where the peak is, and the fewest bytes by which that place can be passed without extra products."""
    place = least_peak(rung.program, rung.layout)[1]
    if rung.forward:
        place = rung.forward
    return place, smallest_cut(values, place)


def _looked_for(start: Rung, first: Rung) -> Iterator[Rung]:
    """Yield rungs that hold less and less."""
    values = values_of(start.program, start.layout)
    anchors = _narrowest(start, values)[1]
    few = len(values.steps) > _MANY_EQUATIONS
    count = _LIMITS // 4 if few else _LIMITS
    least = max(values.nbytes, default=0)
    shrink = (min(1.0, max(1, 2 * least) / max(1, start.peak))) ** (1 / count)
    for products, far in ((False, 0.0), *((True, far) for far in _FAR[: 1 if few else None])):
        failed = 0
        for step in range(count + 1):
            limit = int(start.peak * shrink**step)
            rung = _tried(start, first, values, anchors, limit, far, products=products)
            if rung is not None:
                yield rung
            # With less room there will be no order that costs less.
            failed = failed + 1 if rung is None or rung.peak > 1.5 * limit else 0
            if failed == 2:
                break


def _squeezed(start: Rung, first: Rung) -> Iterator[Rung]:
    """Yield rungs that hold less by what takes no more products."""
    for _ in range(3):
        values = values_of(start.program, start.layout)
        anchors = _narrowest(start, values)[1]
        best = None
        for part in (0.85, 0.65):
            rung = _tried(start, first, values, anchors, int(part * start.peak), 0.0, products=False)
            if rung is not None and rung.peak < (best or start).peak:
                best = rung
                yield rung
        if best is None:
            return
        start = best


def _tried(
    start: Rung, first: Rung, values: Values, anchors: set[int], limit: int, far: float, *, products: bool
) -> Rung | None:
    """Return the rung that tries to hold no more than a number of bytes; None if it costs too much."""
    if not products:
        values = replace(values, repeats=values.cheap)
    small = max(1, int(_SMALL * start.peak))
    order = keep(values, limit, anchors, _MOST_WORK * first.work, small, far)
    return None if order is None else _repeated(start, first, order)
