"""
The ways to run a program in fewer bytes for more work: from no extra work to the least bytes.

They are made without knowledge of a budget, and the one that a budget takes is the one with the least work among those
that fit. So what is held and what is computed again are monotone in the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from ebbtide.budget import format_bytes
from ebbtide.errors import BudgetError
from ebbtide.program.chain import chain_orders
from ebbtide.program.costs import is_product, loops_of, weighed
from ebbtide.program.cuts import smallest_cut
from ebbtide.program.delay import delayed
from ebbtide.program.equation import Inner
from ebbtide.program.keep import Keeper
from ebbtide.program.layout import Layout, find_layout
from ebbtide.program.memory import Memory, least_peak, plan_apart
from ebbtide.program.program import Program
from ebbtide.program.repeat import repeat
from ebbtide.program.values import Values, values_of

# Work up to so many times that of the program is tried.
_MOST_WORK = 4
# Values of less than this part of the peak are always kept.
_SMALL = 1 / 1024
# Numbers of bytes to try, each smaller than the one before; programs of more equations get by with fewer of them.
_LIMITS, _MANY_EQUATIONS = 20, 1000
# Bytes of an array without its elements, of one axis or a few, and of what a run takes beside arrays.
_OBJECT, _RUN = 320, 8192
# Orders that are tried of a chain, each of them as it is and with what can be squeezed out of it.
_CHAINS, _SQUEEZE = 8, 0.7
# Without a budget: the extra work that is worth a quarter of the peak, as long as that is of this size.
_UNASKED, _WORTH, _LARGE = 1 / 8, 3 / 4, 1 << 20
# How many of the largest values there is room for beside those that are kept: fewer take more work. With a sixteenth
# there is room for what is small, such as a loss.
_WORK_PLACES = (3, 3 + 1 / 16, 4, 6)


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
        extra_work: What they cost, as a part of what the program costs.
        place: Number of the equation at the peak.
    """

    program: Program
    layout: Layout
    forward: int
    peak: int
    work: int
    again: int = 0
    products: int = 0
    extra_work: float = 0.0
    place: int = 0


def within(rungs: Sequence[Rung], limit: int) -> Rung:
    """
    Return the way to run a program with the least work of those on a ladder that hold no more than *limit* bytes.

    Raises:
        BudgetError: None does.
    """
    needs = [rung.peak + objects_of(rung.program) for rung in rungs]
    found = [rung for rung, need in zip(rungs, needs, strict=True) if need <= limit]
    if found:
        return found[-1]
    least = min(needs)
    more = ", and its time loops more" if loops_of(rungs[0].program) else ""
    raise BudgetError(
        f"{rungs[0].program.name} cannot run in {format_bytes(limit)} above its arguments: of the ways to compute "
        f"values again that were found, the one that holds least takes {least:,} bytes ({format_bytes(least)}), "
        f"results included{more}. Give it Budget(memory={least}) or more.",
        least,
    )


def objects_of(program: Program) -> int:
    """Return an upper bound for the bytes of the Python objects of a run: its arrays without their elements."""
    inner = [equation.function for equation in program.equations if isinstance(equation.function, Inner)]
    return _RUN + _OBJECT * len(program.equations) + sum(one.threads * objects_of(one.program) for one in inner)


def plain_rung(program: Program, strides: Sequence[tuple[int, ...]]) -> Rung:
    """
    Return how a program runs without a budget.

    Equations are put off where less is held then; and values are computed again where that takes no products, a quarter
    off the peak, and an eighth more work at most.
    """
    first = _rung(program, find_layout(program, strides), 0)
    return first if first.peak < _LARGE else _unasked(first, _delayed(first))


def _unasked(first: Rung, best: Rung) -> Rung:
    """Return the rung that is taken without a budget, from a program as it stands and with what is put off."""
    values = values_of(best.program, best.layout)
    place, anchors = _narrowest(best, values)
    for places in _WORK_PLACES if place else ():
        limit = sum(values.nbytes[one] for one in anchors) + int(places * max(values.nbytes))
        found = _tried(best, first, values, anchors, limit, products=False) if limit <= _WORTH * best.peak else None
        if found is not None and found.peak <= _WORTH * best.peak and found.work <= (1 + _UNASKED) * first.work:
            return found
    return best


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
    start = _delayed(first)
    plain = first if first.peak < _LARGE else _unasked(first, start)
    values = values_of(start.program, start.layout)
    place, anchors = _narrowest(start, values)
    found = [first, start, plain]
    many = len(values.steps) > _MANY_EQUATIONS
    for order in chain_orders(values, place, anchors, _CHAINS // 2 if many else _CHAINS, _MOST_WORK * first.work):
        chained = _repeated(start, first, order)
        found += [chained, *_squeezed(chained, first)]
    if not many or len(found) == 3:
        found += _looked_for(start, first, values, anchors)
    best: list[Rung] = []
    for rung in sorted(found, key=lambda rung: (rung.peak, rung.work)):
        if not best or rung.work < best[-1].work:
            best.append(rung)
    return tuple(best)


def settled(program: Program, layout: Layout) -> tuple[Rung, Memory]:
    """Return a program as the one way to run it, its equations as they stand, and how it holds least."""
    plan = plan_apart(program, layout)
    return Rung(program, layout, 0, plan.peak, _work(program, layout)), plan


def _rung(program: Program, layout: Layout, forward: int) -> Rung:
    peak, place = least_peak(program, layout)
    return Rung(program, layout, forward, peak, _work(program, layout), place=place)


def _work(program: Program, layout: Layout) -> int:
    return sum(weighed(equation, layout)[0] for equation in program.equations)


def _repeated(rung: Rung, first: Rung, order: Sequence[int]) -> Rung:
    """Return a rung with its equations in an order; *first* is the program that none of them was repeated in."""
    program, layout, forward = repeat(rung.program, rung.layout, order, rung.forward)
    made = _rung(program, layout, forward)
    counts = [counts_of(one) for one in (made, first)]
    again, products = counts[0][0] - counts[1][0], counts[0][1] - counts[1][1]
    return replace(made, again=again, products=products, extra_work=made.work / max(1, first.work) - 1)


def counts_of(rung: Rung) -> tuple[int, int]:
    """Return the numbers of equations of a rung that are no views, and of products."""
    equations = [equation for equation in rung.program.equations if equation.output not in rung.layout.bases]
    return len(equations), sum(map(is_product, equations))


def _delayed(rung: Rung) -> Rung:
    """Return a rung with what is put off where less is held then."""
    values = values_of(rung.program, rung.layout)
    return min(_repeated(rung, rung, delayed(values, rung.forward)), rung, key=lambda one: one.peak)


def _narrowest(rung: Rung, values: Values) -> tuple[int, set[int]]:
    """Return where the peak is, and the fewest bytes by which that place can be passed without extra products."""
    place = rung.forward or rung.place
    return place, smallest_cut(values, place)


def _looked_for(start: Rung, first: Rung, values: Values, anchors: set[int]) -> Iterator[Rung]:
    """Yield rungs that hold less and less, without more products and with them."""
    least = max(values.nbytes, default=0)
    count = _LIMITS if len(values.steps) < _MANY_EQUATIONS else _LIMITS // 3
    shrink = (min(1.0, max(1, 2 * least) / max(1, start.peak))) ** (1 / count)
    for products in (False, True):
        failed = 0
        for step in range(count + 1):
            limit = int(start.peak * shrink**step)
            rung = _tried(start, first, values, anchors, limit, products=products)
            if rung is not None:
                yield rung
            # With less room there will be no order that costs less.
            failed = failed + 1 if rung is None or rung.peak > 1.5 * limit else 0
            if failed == 2:
                break


def _squeezed(start: Rung, first: Rung) -> Iterator[Rung]:
    """Yield rungs that hold less by what takes no more products."""
    for _ in range(2):
        values = values_of(start.program, start.layout)
        anchors = _narrowest(start, values)[1]
        rung = _tried(start, first, values, anchors, int(_SQUEEZE * start.peak), products=False)
        if rung is None or rung.peak >= start.peak:
            return
        yield rung
        start = rung


def _tried(
    start: Rung, first: Rung, values: Values, anchors: set[int], limit: int, *, products: bool
) -> Rung | None:
    """Return the rung that tries to hold no more than a number of bytes; None if it costs too much."""
    if not products:
        values = replace(values, repeats=values.cheap)
    small = max(1, int(_SMALL * start.peak))
    order = Keeper(values, limit, anchors, _MOST_WORK * first.work, small, by_time=products).run()
    return None if order is None else _repeated(start, first, order)
