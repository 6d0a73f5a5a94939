"""The part of the disk of a budget that a time loop has for its snapshots."""

from __future__ import annotations

import sys
import weakref
from typing import Any, final

from ebbtide.agree import is_alone
from ebbtide.budget import Budget
from ebbtide.errors import BudgetError
from ebbtide.ledger import Ledger
from ebbtide.loop.holding import less
from ebbtide.loop.planning.plan import Plan, make_plan
from ebbtide.quota import Quota
from ebbtide.storage import Storage


@final
class DiskPart:
    """
    Takes of the disk of a budget what the plan of a loop needs, so that nobody else does, and gives it up when asked.

    Steps that save more than planned have to go to the same disk.

    Args:
        ledger: The account.
        allowed: The budget of the loop or of the calls around it; None for no bound.
        is_own: Whether the budget is the loop's own.
        storage: One of the user's, where all restart states go; None without one. If it may have them in memory, no
            plan is made with a disk.

    Attributes:
        whole: All of the disk; None without a budget.
        snapshots: The part of it for snapshots.
        lacks: Bytes of it for which there is no room on the disk itself.
        theirs: The most bytes that the user's storage has in memory, see `Sizes`.
        tier: Of which tier snapshots in memory are; None for any.

    Memory:
        None of its own.
    """

    __slots__ = ("__weakref__", "_paged", "_rule", "_storage", "lacks", "snapshots", "theirs", "tier", "whole")

    def __init__(self, ledger: Ledger, allowed: Budget | None, storage: Storage | None = None, *, is_own: bool) -> None:
        self._storage, self.theirs = storage, None if storage is None else storage.memory_limit
        if storage is not None and self.theirs is None:
            self.theirs = sys.maxsize
        self.tier = None if self.theirs else "memory"
        self.whole = ledger.quota
        if allowed is not None and (is_own or self.whole is None):
            self.whole = Quota(allowed.disk, ledger.quota)
        self.snapshots = Quota(None, self.whole)
        self._rule: Any = None
        self.lacks = 0
        self._paged = 0  # the most that what one step saves has taken

    @property
    def left(self) -> int:
        """The bytes for a plan: what nobody else has."""
        return 0 if self.theirs else max(0, (self.snapshots.left or 0) + self.snapshots.held - self.lacks)

    def bytes_here(self, nbytes: int, tier: str) -> int:
        """Return how many of the bytes of a restart state that is stored next come to be in memory."""
        if self._storage is None or self.theirs is None:
            return nbytes if tier == "memory" else 0
        return min(nbytes, max(0, self.theirs - self._storage.memory_nbytes))

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many bytes more could be stored; where they do not fit, what is free goes back first."""
        if self.lacks or self.snapshots.passed_by(nbytes) is None:
            return not self.lacks
        # Up to 1 MiB of each file waits to be given back: eight states of 128 KiB that nobody has.
        self.snapshots.whole.return_space()
        return self.snapshots.passed_by(nbytes) is None

    @property
    def rule(self) -> Any:
        """The loop; None before it begins."""
        return None if self._rule is None else self._rule()

    def enlist(self, rule: Any) -> None:
        """Begin with what the plan of a loop needs; a storage of the user is beside the budget."""
        self._rule = weakref.ref(rule)
        self.promise(rule)
        if self.whole is not None:
            self.whole.lenders.append(weakref.ref(self))

    def dismiss(self) -> None:
        """Have no part any more."""
        self.snapshots.promised = 0
        if self.whole is not None:
            lenders = self.whole.lenders
            lenders[:] = [one for one in lenders if one() is not None and one() is not self]

    def promise(self, rule: Any) -> None:
        """Have what the plan of the loop needs, or what there is: a loop may go on with a plan that needs more."""
        self.snapshots.promised = 0
        if not rule.snapshots.are_theirs:
            needed = rule.plan.predicted_disk_bytes
            self.snapshots.promised = needed if self.snapshots.left is None else min(needed, self.left)

    def choose(self, *args: Any, reserve: int = 0, **options: Any) -> Plan:
        """Return a plan as `make_plan` does, for what is left of the disk but *reserve* bytes."""
        return make_plan(*args, disk=max(0, self.left - reserve), **options)

    def choose_first(self, *args: Any, **options: Any) -> Plan:
        """Return the first plan; where there is none, other loops give up what they have of the disk."""
        while True:
            try:
                return self.choose(*args, **options)
            except BudgetError:
                if not self.relieve():
                    raise

    def reserve_for(self, records: Any) -> int:
        """Return the bytes to be left for the pages of the widest step, beside those of the steps at hand."""
        return max(0, self._paged - sum(map(_paged_bytes, records)))

    def learn(self, record: Any) -> None:
        """Take note of what a step has on disk."""
        self._paged = max(self._paged, _paged_bytes(record))

    def relieve(self) -> bool:
        """Let a loop, this one too, do with less of the disk; return whether one did."""
        return self.whole is not None and self.whole.relieve()

    def give_up(self) -> bool:
        """Do with less, first with what nothing lies in yet; return whether there was anything."""
        rule = self.rule
        if rule is None or not is_alone():
            return False
        promised, self.snapshots.promised = self.snapshots.promised, 0
        rule.snapshots.unreserve()
        if promised <= self.snapshots.held:
            return less.give_up_on_disk(rule)
        rule.room.stale = True
        return True


def _paged_bytes(record: Any) -> int:
    pager = record.tape.pager
    return 0 if pager is None or pager.pages is None else pager.pages.nbytes
