"""The least of a loop where other code takes more: loops in its steps, and what is before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ebbtide.agree import agree
from ebbtide.arrays.context import current
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import Ledger, Lender
from ebbtide.loop.given import in_region
from ebbtide.loop.plan import Plan
from ebbtide.loop.sizes import RESERVE, RESERVE_PER_SNAPSHOT
from ebbtide.loop.state import bytes_of
from ebbtide.schedules import StoreAll


@contextmanager
def refusing_around(values: list[Any], allowed: Budget | None) -> Iterator[None]:
    """
    Have a refusal in the first step of a loop name what does with the loop around it, too.

    When that step runs again, there are a restart state and a cotangent beside it, which its first run does not meet.
    Where there is disk, that state is there.

    Args:
        values: Leaves of the state that the step starts from.
        allowed: The budget; None for no bound.

    Raises:
        BudgetError: What is in the block was refused.
    """
    try:
        yield
    except BudgetError as error:
        if allowed is None:
            raise
        why = "It is in the first step of a time loop, which holds more when it runs a step again."
        raise _with_more(error, why, error.least + _beside(bytes_of(values), allowed)) from error


@contextmanager
def refusing_before(tape: Any, leaves: list[Any], allowed: Budget | None) -> Iterator[None]:
    """
    Have a refusal of a loop name what does for the sweep of the code before it, too.

    Args:
        tape: The tape that the loop is going to be on.
        leaves: Leaves of its initial state.
        allowed: The budget of the call; None for no bound by it.

    Raises:
        BudgetError: What is in the block was refused.
    """
    try:
        yield
    except BudgetError as error:
        pager, ledger = tape.pager, tape.ledger
        if allowed is None or pager is None or ledger.limit is None or in_region(current().capture):
            raise
        nodes = [leaf._node for leaf in leaves if isinstance(leaf, TracedArray) and leaf._trace is tape]
        seeds = [(node,) for node in dict.fromkeys(nodes)]
        sweep = pager.forecast(seeds, [(True, True)] * len(seeds), paged=pager.on_disk, bare=True)
        least = max(sweep.peak, sweep.least) + allowed.memory - ledger.limit
        if least <= error.least:
            raise
        raise _with_more(error, "The sweep of the code before it takes more.", least) from error


def check_within(plan: Plan, ledger: Ledger, lenders: list[Lender], allowed: Budget | None) -> None:
    """
    Refuse a plan that leaves no room for loops in the steps, when a step is run again.

    Args:
        plan: The plan of the loop around.
        ledger: The account.
        lenders: The loops in its first step.
        allowed: The budget; None for no bound.

    Raises:
        BudgetError: There is no room.
    """
    plans = [getattr(one(), "plan", None) for one in lenders]
    inner = max([known.least for known in plans if known is not None], default=0)
    if not inner or ledger.limit is None or isinstance(plan.schedule, StoreAll):
        return
    least = inner + _beside(plan.sizes.state, allowed)
    if not agree(least > ledger.limit):
        return
    raise BudgetError(
        f"A time loop of {plan.steps} steps leaves no room for the loops in its steps, which take {inner} bytes "
        f"({format_bytes(inner)}), when it runs a step again. Give at least {least} bytes ({format_bytes(least)}) of "
        "memory.",
        least,
    )


def _with_more(error: BudgetError, why: str, least: int) -> BudgetError:
    """Return a refusal that names a larger least, and says why."""
    reason = str(error).partition(" Give at least")[0]
    return BudgetError(f"{reason} {why} Give at least {least} bytes ({format_bytes(least)}) of memory.", least)


def _beside(state: int, allowed: Budget | None) -> int:
    """Return the bytes beside a step that is run again: a cotangent, a restart state, and the interpreter's share."""
    states = 1 if allowed is not None and allowed.disk else 2
    return states * state + RESERVE_PER_SNAPSHOT + RESERVE
