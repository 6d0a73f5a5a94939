"""What the loops of one call hold beside each other, and the share of one more."""

from __future__ import annotations

from typing import Any

from ebbtide.ledger import Ledger
from ebbtide.loop.plan import Sizes


def claim(region: Any, ledger: Ledger, lenders: list[Any], held: int, sizes: Sizes, steps: int) -> int:
    """
    Let the loops before one more give up what is more than their share; return how many bytes.

    Loops that run one after the other have equal shares of the bytes that they can give up.

    Args:
        region: The region of the steps of the one more.
        ledger: The account.
        lenders: Weak references to those who were there before the first step, in which there may be others.
        held: Bytes in the account without those of the first step.
        sizes: Those of its steps.
        steps: Their number.
    """
    if ledger.limit is None:
        return 0
    before, pager = ledger.live, region.outer.pager
    known = [one for one in [each() for each in lenders] if one is not None]
    loops = [one for one in known if hasattr(one, "stepper")]
    beside = [one for one in loops if one.stepper.region.outer is region.outer]
    left = ledger.limit - held - seen_by_none(ledger)
    share = (left + sum(one.sheddable for one in beside)) // (1 + len(beside)) if beside else 0
    wanted = min(max(share, sizes.fixed + sizes.restart), sizes.fixed + sizes.restart + steps * sizes.taped)
    for one in [*beside, *known]:
        one.shed(wanted - left - (before - ledger.live))
    if pager is not None:
        pager.reserve(wanted + seen_by_none(ledger) - before + held)
    return before - ledger.live


def seen_by_none(ledger: Ledger, but: Any = None) -> int:
    """
    Return the bytes that the interpreter takes for loops, which are in no ledger and not left out of its bound.

    Args:
        ledger: The account.
        but: The `Room` of a loop that does not count.
    """
    others = [one for one in _lenders(ledger) if but is None or getattr(one, "room", None) is not but]
    return sum(one.holding(False).beyond for one in others) - ledger.left_out


def held_outside(region: Any, ledger: Ledger) -> int:
    """
    Return by how many bytes more is held than a ledger says, when it matters for the least budget.

    Other loops hold less then, if they hold what they could do without. A function that is measured holds what it
    saves, which is counted elsewhere until then.
    """
    pager = region.outer.pager
    others: int = sum(one.holding(True).beyond for one in _lenders(ledger))
    if not ledger.lent:
        others = max(others, seen_by_none(ledger))
    if pager is None or pager.ledger is ledger or pager.on_disk:
        return others
    return others + int(pager.ledger.live)


def other_ways(ledger: Ledger) -> list[tuple[tuple[int, int], ...]]:
    """Return what the loops before one more may hold next time, with the plans that other costs lead to."""
    return [one.holding(True).others for one in _lenders(ledger)]


def _lenders(ledger: Ledger) -> list[Any]:
    """Return the loops that a ledger may ask for room."""
    return [one for one in [reference() for reference in ledger.lenders] if one is not None]
