"""What the ledger of a loop has of the step in work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from ebbtide.ledger import SAVED, SNAPSHOTS, Ledger, Mark
from ebbtide.loop.holding.share import paged_outside
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.machine import Meter


@final
class InWork:
    """
    Tells what of the ledger came with the step in work, whatever others give up or page while it runs.

    Args:
        ledger: The account of the loop.
    """

    __slots__ = ("_given_up", "_ledger", "_mark", "_paged", "_peak")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._mark, self._paged = ledger, ledger.mark(), 0
        self._given_up = {SAVED: 0, SNAPSHOTS: 0}
        self._peak: int | None = None  # what the ledger has held at most, before the step

    def begin(self, outer: Any, *, bounded: bool) -> None:
        """Begin with a step, in code whose pager is *outer*; within a bound what is held most counts from now."""
        ledger, self._given_up = self._ledger, {SAVED: 0, SNAPSHOTS: 0}
        self._mark, self._paged = ledger.mark(), 0 if outer is None else outer.paged
        if bounded:
            self._peak, ledger.peak = ledger.peak, ledger.live

    @contextmanager
    def running(self, rule: Any) -> Iterator[None]:
        """Hear what other loops give up in the block."""
        with self._ledger.hearing(but=rule) as self._given_up:
            yield

    def since(self, rule: Any) -> Mark:
        """Return where the account stood before the step, without what others have given up and paged since then."""
        paged, given_up = paged_outside(rule.stepper.region), self._given_up
        self._mark = self._mark.without(paged - self._paged + given_up[SAVED], given_up[SNAPSHOTS])
        given_up[SAVED], given_up[SNAPSHOTS], self._paged = 0, 0, paged
        return self._mark

    @property
    def kept(self) -> int:
        """Bytes that the step has saved so far, by what is known now."""
        return sum(self._ledger.kept_since(self._mark))

    @contextmanager
    def metered(self, sizes: Sizes, excused: int) -> Iterator[Callable[[int, int], int]]:
        """
        Yield what says for how many bytes there has to be room beside what an operation of the step asks for.

        What the function alone takes is room for what the ledger has of a step, as long as the step has no more beside
        that than the first one had. One that goes on with other operations may: where the first one had saved all, and
        two temporaries were left, it took 0.6 states more than the budget.

        Args:
            sizes: What steps are planned to take.
            excused: Bytes in the ledger for which there is no room in a plan.
        """
        ledger, planned = self._ledger, self._ledger.live + sizes.seen
        if not sizes.spent or Meter is None:
            yield lambda made, saved: max(0, excused - sizes.covered) if ledger.live > planned else 0
            return
        alone = sizes.spent - sizes.data
        with Meter() as meter:

            def unplanned(made: int, saved: int) -> int:
                if meter.live + made <= sizes.again + alone:
                    return 0
                # It has what it takes more on plain values, too: of a step with nothing excused nothing is asked.
                return max(0, min(excused, excused - alone + meter.live - self.kept - saved))

            yield unplanned

    @contextmanager
    def giving_up(self, rule: Any) -> Iterator[None]:
        """Take what the loop gives up in the block for no part of the step."""
        self.since(rule)
        before = self._ledger.mark()
        try:
            yield
        finally:
            after = self._ledger.mark()
            self._mark = self._mark.without(before.saved - after.saved, before.snapshots - after.snapshots)
            self._paged = paged_outside(rule.stepper.region)

    def most_held(self) -> int:
        """Return the most that was held since the step began, by the ledger; 0 of one that is there already."""
        before, self._peak, most = self._peak, None, self._ledger.peak
        self._ledger.peak = max(most, before or 0)
        return 0 if before is None else most
