"""What the loops of one call hold beside each other, and the share of one more."""

from __future__ import annotations

from typing import Any

from ebbtide.agree import is_alone
from ebbtide.ledger import Ledger, Mark
from ebbtide.lender import Lender
from ebbtide.loop.holding.ahead import steps_to_end
from ebbtide.loop.holding.held import last_bytes
from ebbtide.loop.planning.plan import Sizes
from ebbtide.schedules import Revolve


def claim(region: Any, ledger: Ledger, lenders: list[Lender], held: int, sizes: Sizes, steps: int) -> int:
    """
    Let the loops before one more give up what is more than their share; return how many bytes.

    Loops that run one after the other have equal shares of what they can give up and of what is left beside the sweep
    of a step; loops in their steps are asked first. What their last steps saved goes where fewer steps run again for it
    than without; of many processes each would find that otherwise, and none does it.

    Args:
        region: The region of the steps of the one more.
        ledger: The account.
        lenders: Those who were there before the first step, in which there may be others.
        held: Bytes in the account without those of the first step.
        sizes: Those of its steps.
        steps: Their number.
    """
    left, before, pager = room_beside(ledger, held), ledger.live, region.outer.pager
    if left is None:
        return 0
    known: list[tuple[Lender, Any]] = [(one, one()) for one in lenders]
    loops = [(one, loop) for one, loop in known if hasattr(loop, "stepper")]
    loops = [(one, loop) for one, loop in loops if loop.stepper.region.outer is region.outer]
    lasts = {one: last_bytes(loop) for one, loop in loops}
    beside = {one: loop.sheddable - lasts[one] for one, loop in loops}
    cost = sum([_cost_of_last(loop, sizes) for one, loop in loops if lasts[one]])
    inside = sum([inner.sheddable for _, loop in loops for inner in loops_inside(loop, ledger)])
    # A loop in a step that another one gives up dies with it, and what it held counts as given up: nobody else has it.
    del known, loops
    spare, last = sum(beside.values()) + inside, sum(lasts.values())
    wanted, more = (share_of(sizes, steps, left, lent, len(beside)) for lent in (spare, spare + last))
    few, many = (_forward_steps(steps, sizes, max(left, room)) for room in (wanted, more))
    wanted = more if last and is_alone() and few - many > cost else wanted
    for asked in (beside, lenders):
        ledger.relieve(wanted - left - (before - ledger.live), asked)
    if pager is not None:
        pager.reserve(wanted + seen_by_none(ledger) - before + held)
    return before - ledger.live


def share_of(sizes: Sizes, steps: int, left: int, lent: int, others: int) -> int:
    """
    Return the bytes that one more loop asks for, its part in what can be shared.

    That is what is beyond the sweep of its steps, which the others have no use for: they rest meanwhile.

    Args:
        sizes: Those of its steps.
        steps: Their number.
        left: Bytes that there are.
        lent: Bytes that the others could give up.
        others: The number of these.
    """
    fewest = sizes.fixed + sizes.restart
    # No more than to store what all steps save, beside the initial state.
    most = fewest + max(0, steps - 1) * sizes.taped_beside
    return min(fewest + max(0, left + lent - fewest) // (1 + others), most)


def _cost_of_last(loop: Any, sizes: Sizes) -> float:
    """Return the steps that a loop runs again for what its last step saved, in steps of another one with such sizes."""
    return steps_to_end(loop.position) * max(1.0, loop.plan.sizes.saved / max(1, sizes.saved))


def _forward_steps(steps: int, sizes: Sizes, room: int) -> int:
    """Return the forward steps of a loop that has so many bytes for restart states and what a step takes."""
    return Revolve(max(1, (room - sizes.fixed) // sizes.restart)).forward_steps(steps)


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


def room_beside(ledger: Ledger, held: int) -> int | None:
    """Return the bytes that a bound leaves to a loop beside what others hold; None for no bound."""
    return None if ledger.limit is None else ledger.limit - held - seen_by_none(ledger)


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
