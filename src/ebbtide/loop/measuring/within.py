"""The least of a loop where other code takes more: loops in its steps, and what is before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from ebbtide.agree import agree
from ebbtide.arrays.context import current
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import Ledger
from ebbtide.lender import Lender
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.planning.sizes import RESERVE
from ebbtide.loop.stepping.given import in_region
from ebbtide.schedules import StoreAll
from ebbtide.tape.node import Node


@contextmanager
def refusing_before(tape: Any, nodes: list[Node | None], allowed: Budget | None) -> Iterator[list[BudgetError]]:
    """
    Have a refusal of a loop name what does for the sweep of the code before it, too.

    The block gets a list, and puts there what all processes of a run refuse: they name one least.

    Args:
        tape: The tape that the loop is going to be on.
        nodes: Nodes of the leaves of its initial state on that tape; None for constants of it.
        allowed: The budget of the call; None for no bound by it.

    Raises:
        BudgetError: What is in the block was refused.
    """
    common: list[BudgetError] = []
    try:
        yield common
    except BudgetError as error:
        pager, ledger = tape.pager, tape.ledger
        if allowed is None or pager is None or ledger.limit is None or in_region(current().capture):
            raise
        seeds = [(node,) for node in dict.fromkeys(nodes) if node is not None]
        sweep = pager.forecast(seeds, [(True, True)] * len(seeds), paged=pager.on_disk, bare=True)
        least = max(sweep.peak, sweep.least) + ledger.binding(allowed.memory) - ledger.limit
        least = agree(least) if common else least
        if least <= error.least:
            raise
        raise _with_more(error, "The sweep of the code before it takes more.", least) from error


@final
@dataclass(frozen=True, slots=True)
class Within:
    """
    Loops in the first step of another one, for which it has to leave room when a step is run again.

    Args:
        refused: The bytes without which one of them was refused; 0 if none was.
        lenders: These loops.
        freed: Bytes that were held when they began, and went since: code before gave them up.
    """

    refused: int
    lenders: list[Lender]
    freed: int

    @property
    def inner(self) -> int:
        """Bytes in the ledger without which one of them could not begin, what is there before it included; or 0."""
        plans = [getattr(one(), "plan", None) for one in self.lenders]
        return max(0, max([self.refused, *(known.least for known in plans if known is not None)]) - self.freed)

    def least(self, plan: Plan) -> int:
        """Return the bytes that they take, and what is beside a step that is run again; 0 if there are none."""
        return self.inner and self.inner + plan.sizes.state + plan.fewest + RESERVE

    def check(self, plan: Plan, ledger: Ledger) -> None:
        """
        Refuse a plan of the loop around that leaves no room for them.

        Raises:
            BudgetError: There is no room.
        """
        is_alone = not (self.lenders or self.refused)
        if is_alone or ledger.limit is None or isinstance(plan.schedule, StoreAll):
            return
        least = self.least(plan)
        if agree(least > ledger.limit):
            raise _refusal(plan, least + ledger.left_out)

    def check_refused(self, plan: Plan) -> None:
        """
        Refuse any plan if one of them was refused.

        Raises:
            BudgetError: One was.
        """
        if self.refused:
            raise _refusal(plan, self.least(plan))

    def larger(self, error: BudgetError, smallest: Plan) -> BudgetError:
        """Return a refusal of the loop around, with what does for those that were refused in it."""
        least = self.least(smallest)
        if not self.refused or least <= error.least:
            return error
        return _with_more(error, "Loops in its steps take more.", least)


def of_all(error: BudgetError) -> BudgetError:
    """Return what all processes of the run refuse: each says what it takes, and all name what the largest does."""
    least, least_disk = agree((error.least, error.least_disk))
    if (least, least_disk) == (error.least, error.least_disk):
        return error
    mine, largest = (f"{one} bytes ({format_bytes(one)}) of memory" for one in (error.least, least))
    return BudgetError(str(error).replace(mine, largest), least, least_disk)


def _refusal(plan: Plan, least: int) -> BudgetError:
    return BudgetError(
        f"A time loop of {plan.steps} steps leaves no room for the loops in its steps when it runs a step again. "
        f"Give at least {least} bytes ({format_bytes(least)}) of memory.",
        least,
    )


def _with_more(error: BudgetError, why: str, least: int) -> BudgetError:
    """Return a refusal that names a larger least, and says why."""
    reason = str(error).partition(" Give at least")[0]
    message = f"{reason} {why} Give at least {least} bytes ({format_bytes(least)}) of memory."
    return BudgetError(message, least, error.least_disk)
