"""What the loops of one call hold beside each other, and the share of one more."""

from __future__ import annotations

from typing import Any

from ebbtide.ledger import Ledger, Mark
from ebbtide.lender import Lender
from ebbtide.loop.holding.held import last_bytes
from ebbtide.loop.planning.plan import Sizes


def claim(region: Any, ledger: Ledger, lenders: list[Lender], held: int, sizes: Sizes, steps: int) -> int:
    """
    Let the loops before one more give up what is more than their share; return how many bytes.

    Loops that run one after the other have equal shares of the bytes that they can give up.

    Args:
        region: The region of the steps of the one more.
        ledger: The account.
        lenders: Those who were there before the first step, in which there may be others.
        held: Bytes in the account without those of the first step.
        sizes: Those of its steps.
        steps: Their number.
    """
    if ledger.limit is None:
        return 0
    before, pager = ledger.live, region.outer.pager
    known: list[tuple[Lender, Any]] = [(one, one()) for one in lenders]
    loops = [(one, loop) for one, loop in known if hasattr(loop, "stepper")]
    loops = [(one, loop) for one, loop in loops if loop.stepper.region.outer is region.outer]
    beside = {one: loop.sheddable - last_bytes(loop) for one, loop in loops}  # no step runs again for a fair share
    # A loop in a step that another one gives up dies with it, and what it held counts as given up: nobody else has it.
    del known, loops
    left = ledger.limit - held - seen_by_none(ledger)
    share = (left + sum(beside.values())) // (1 + len(beside)) if beside else 0
    # No more than to store what all steps save, beside the initial state.
    most = sizes.fixed + sizes.restart + max(0, steps - 1) * sizes.taped_beside
    wanted = min(max(share, sizes.fixed + sizes.restart), most)
    for asked in (beside, lenders):
        ledger.relieve(wanted - left - (before - ledger.live), asked)
    if pager is not None:
        pager.reserve(wanted + seen_by_none(ledger) - before + held)
    return before - ledger.live


def paged_outside(region: Any) -> int:
    """Return the bytes of what code around the steps of a loop had saved and that left memory for the disk."""
    outer = region.outer.pager
    return 0 if outer is None else outer.paged


def count_spare(lenders: list[Lender]) -> int:
    """Return the bytes of the initial states that loops keep beside what their steps saved, where there is room."""
    known: list[Any] = [one() for one in lenders]
    return sum([loop.plan.sizes.data for loop in known if hasattr(loop, "room") and loop.room.spare.is_there])


def held_in_step(ledger: Ledger, mark: Mark) -> int:
    """Return the bytes that came since a mark, but for the initial states that loops keep where there is room."""
    return ledger.held_since(mark) - count_spare(ledger.lenders_since(mark))


def held_steps(rule: Any) -> dict[int, Any]:
    """Return the steps of a loop that it holds on a tape, by their number."""
    return {**rule.records, **rule.snapshots.steps()}


def loops_inside(rule: Any, ledger: Ledger) -> list[Any]:
    """Return the loops in those steps of a loop that it holds on a tape."""
    outer = rule.stepper.region.outer
    loops = [one for one in lenders_of(ledger) if hasattr(one, "stepper") and one.stepper.region.outer.outer is outer]
    steps = held_steps(rule).values() if loops else ()
    return [loop for loop in loops if any(step.tape is loop.stepper.region.outer for step in steps)]


def seen_by_none(ledger: Ledger, but: Any = None) -> int:
    """
    Return the bytes that the interpreter takes for loops, which are in no ledger and not left out of its bound.

    Args:
        ledger: The account.
        but: The `Room` of a loop that does not count.
    """
    others = [one for one in lenders_of(ledger) if but is None or getattr(one, "room", None) is not but]
    return sum(one.holding(False).beyond for one in others) - ledger.left_out


def room_beside(limit: int | None, ledger: Ledger, held: int) -> int | None:
    """Return the bytes that a bound leaves to a loop beside what others hold; None for no bound."""
    return None if limit is None else limit - held - seen_by_none(ledger)


def held_outside(region: Any, ledger: Ledger) -> int:
    """
    Return by how many bytes more is held than a ledger says, when it matters for the least budget.

    Other loops hold less then, if they hold what they could do without. A function that is measured holds what it
    saves, which is counted elsewhere until then.
    """
    pager = region.outer.pager
    others: int = sum(one.holding(True).beyond for one in lenders_of(ledger))
    if not ledger.lent:
        others = max(others, seen_by_none(ledger))
    if pager is None or pager.ledger is ledger or pager.on_disk:
        return others
    return others + int(pager.ledger.live)


def lenders_of(ledger: Ledger) -> list[Any]:
    """Return the loops that a ledger may ask for room."""
    return [one for one in [reference() for reference in ledger.lenders] if one is not None]
