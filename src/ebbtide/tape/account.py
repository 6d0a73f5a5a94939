"""The account of a call: which ledger it writes, and which budget binds it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, final

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.context import current, current_or_none
from ebbtide.arrays.reach import arrays_of
from ebbtide.arrays.registry import declare_further
from ebbtide.bound import Bound
from ebbtide.budget import Budget, check_budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import BUFFERS, Ledger
from ebbtide.quota import Quota
from ebbtide.storage.places import find_absolute
from ebbtide.tape.forecast import Forecast
from ebbtide.tape.holders import pageable_bytes
from ebbtide.tape.node import Node
from ebbtide.tape.pager import Pager
from ebbtide.tape.refusal import refusal
from ebbtide.tape.saved import parts_of

# What the interpreter takes beside arrays and records, as tracemalloc sees it: 14 KiB to 26 KiB for functions of one
# and two operations, 33 KiB for a gradient of a gradient. Loops and checkpointed functions have it in what they say to
# need, and storages have room for it in theirs. Around programs and solvers it is less: three runs of a program of
# three operations took 9 KiB more than what they need.
_RESERVE, _RESERVE_AROUND_JOINTS = 48 * 1024, 16 * 1024


@final
class Account:
    """
    What a call may hold and who counts it.

    Args:
        ledger: The ledger of the outermost call.
        budget: The budget of this call, or of the calls around it.
        pager: Counts and pages saved values; None when nobody looks.
        bound: That of a budget of this call; None without one.

    Memory:
        The pager's files until it is closed or dropped.
    """

    __slots__ = ("__weakref__", "_alone", "_before", "_bound", "_last", "_lent", "_open", "budget", "ledger", "pager")

    def __init__(self, ledger: Ledger, budget: Budget | None, pager: Pager | None, bound: Bound | None) -> None:
        self.ledger = ledger
        self.budget = budget
        self.pager = pager
        self._bound = bound
        self._alone = ledger.alone
        self._open: Any = None  # what closes it if it is dropped
        self._lent = 0
        # Of the time loops of the outermost call those that are this one's: how many came before, and up to its end.
        self._before = ledger.unfinished.begun
        self._last: int | None = None

    def exclude(self, values: list[Any]) -> None:
        """Do not count these arrays: they are the caller's."""
        if self.pager is not None:
            self.pager.exclude(values)

    def exclude_reached(self, function: Any) -> None:
        """Do not count what the function of the call closes over or finds by name: the caller holds it meanwhile."""
        if self.pager is not None:
            self.pager.exclude([array for array in arrays_of(function) if not array.dtype.hasobject])

    def lend(self, packed: list[Any]) -> None:
        """Count packed vectors, which may be copies, until the account is closed, whoever saves them."""
        if self.pager is not None:
            self.pager.exclude(packed)
            self._lent += sum(array.nbytes for array in packed)
            self.ledger.add(BUFFERS, sum(array.nbytes for array in packed))

    def settle(self, seeds: list[Any], leaves: list[Node]) -> None:
        """Raise `BudgetError` if the sweep from these seeds to these leaves would pass the budget."""
        if self.pager is not None:
            self.pager.budget = self.pager.budget or self.budget  # it may have fitted in the sweep before
            _settle(self.pager, seeds, leaves)

    def borrow(self, seeds: list[Any]) -> None:
        """Do not count, in the sweep from these seeds, the cotangents that it does not own: others hold them."""
        if self.pager is not None:
            owners = [owner_of(part) for _, value, owned in seeds if not owned for part in parts_of(value)]
            self.pager.lent = {id(owner): weakref.ref(owner) for owner in owners}

    def at_work(self) -> AbstractContextManager[None]:
        """Let the budget of the call bind in the block, in which the pullback that it is open for runs."""
        return self.ledger.within(self._bound)

    def keep_open(self) -> None:
        """Let the account outlive its call, for the pullback, and be closed when that is dropped."""
        self._open = weakref.finalize(self, _close, self.ledger, self.pager, self._lent, self._alone)
        self._open.atexit = False
        self._last = self.ledger.unfinished.begun

    def fail(self, error: BaseException) -> None:
        """End a call that failed: its loops give up all that they hold, though its traceback may hold them."""
        try:
            self.ledger.unfinished.fail(*self._loops(), error)
        finally:
            self.close()

    def finish(self) -> None:
        """Let its loops have nothing to be resumed from: its only reverse sweep has come to its end."""
        self.ledger.unfinished.finish(*self._loops())

    def _loops(self) -> tuple[int, int]:
        return self._before, self.ledger.unfinished.begun if self._last is None else self._last

    def leave(self) -> None:
        """End the call; the account is closed unless it was kept open."""
        if self._open is None:
            self.close()

    def close(self) -> None:
        """Give up all files, and count no more what was lent."""
        if self._open is not None:
            self._open.detach()
        _close(self.ledger, self.pager, self._lent, self._alone)
        self._lent = 0


def _close(ledger: Ledger, pager: Pager | None, lent: int, alone: int) -> None:
    if pager is not None:
        pager.close()
        ledger.add(BUFFERS, -lent)
        # What the call keeps to be run again goes with it.
        ledger.alone = min(ledger.alone, alone)


@contextmanager
def account(budget: Budget | None, *, retain: bool = False) -> Iterator[Account]:
    """
    Open the account of a call.

    Args:
        budget: What the call may take; inside of another budget the smaller of this and what that
            has left. In a function that is traced, what its program may take.
        retain: Whether there may be several sweeps.

    Yields:
        The account, closed at the end of the block.
    """
    check_budget(budget)
    context = current()
    if budget is not None and context.follower is not None:
        # Nothing is held now: the program that is traced keeps to the budget when it runs.
        context.follower.bound(budget)
        budget = None
    ledger, around = context.ledger, context.budget
    if ledger.watched and ledger.unfinished.process != os.getpid():
        # A step has forked this process: what is counted there is its parent's, as are the loops that could give room.
        ledger, around = Ledger(), None
    if budget is not None and not ledger.watched:
        ledger = Ledger(watched=True, unfinished=ledger.unfinished)
    bound, before = None, ledger.retained
    if budget is not None:
        if budget.directory is not None:
            # One place for all files of the call, also where a step changes the working directory.
            budget = replace(budget, directory=find_absolute(budget.directory))
        bound = Bound(budget.memory, Quota(budget.disk, ledger.quota))
    elif current_or_none() is not None:
        budget = around
    if ledger.watched:
        declare_further()  # not in the middle of the call, where the memory of modules would count
    pager = Pager(ledger, budget) if ledger.watched else None
    opened = Account(ledger, budget, pager, bound)
    ledger.retained = before or retain
    with opened.at_work():
        if bound is not None and ledger.report is not None:
            ledger.report.limited(ledger.limit)
        try:
            yield opened
        except BaseException as error:
            opened.fail(error)
            raise
        finally:
            ledger.retained = before
        opened.leave()


def _settle(pager: Pager, seeds: list[Any], leaves: list[Node]) -> None:
    """
    Raise if the forward run passed the budget, or if the sweep will whatever is paged.

    Raises:
        BudgetError: Says where the budget was passed and the least that would do.
    """
    ledger, budget = pager.ledger, pager.budget
    if ledger.limit is None or budget is None:
        return
    budget, least = replace(budget, memory=ledger.binding(budget.memory)), pager.needed
    if pager.passed is None:
        if pager.on_disk and pager.pages is None and pager.forecast(seeds, leaves=leaves).peak <= ledger.limit:
            pager.budget = None  # it fits, and what a pager asks for beforehand is more than a sweep takes
            return
        # A time loop took room for snapshots before it was known what comes after it; and so did those in its steps.
        forecast = _forecast(pager, seeds, leaves)
        while (over := _passed_by(pager, forecast)) > 0 and (
            forecast.shed(over) or forecast.need_less() or ledger.relieve(over) or _relieve_disk(pager, seeds)
        ):
            forecast = _forecast(pager, seeds, leaves)
        if over <= 0:
            return
        least = forecast.peak
    bare = _forecast(pager, seeds, leaves, bare=True)
    while _relieve_disk(pager, seeds):
        bare = _forecast(pager, seeds, leaves, bare=True)
    least = max(least, bare.peak, bare.least)
    if not budget.disk:
        least = max(least, ledger.peak + sum(rule.holding(True).beyond for rule in bare.joints))
    least += _reserve(pager, bare)
    if budget.disk and pager.passed is None and bare.place is not None:
        raise refusal(ledger, budget, bare.place, least - ledger.live, _advice(pager, budget, seeds))
    least += budget.memory - ledger.limit
    place = "It would be passed in the reverse sweep." if pager.passed is None else f"It was passed by {pager.passed}."
    raise BudgetError(
        f"The budget of {budget} is too small: the saved values and cotangents of this gradient take "
        f"{least} bytes ({format_bytes(least)}) of memory. {place} Give at least {least} bytes of "
        f"memory{_advice(pager, budget, seeds)}, or recompute with ebbtide.checkpoint or a time loop.",
        least,
    )


def _advice(pager: Pager, budget: Budget, seeds: list[Any]) -> str:
    """Return what else than memory would help."""
    if not budget.disk:
        return ", or let it page with disk="
    if not _lacks_disk(pager, seeds):
        return ""
    if pager.disk.is_full:
        return ", or free the disk"
    quota = pager.ledger.quota
    most = budget.disk if quota is None or quota.limit is None else quota.limit  # that of a budget around, too
    return f", or more of disk than {format_bytes(most)}"


def _reserve(pager: Pager, forecast: Forecast) -> int:
    """Return the bytes for the interpreter that are in no forecast."""
    if pager.on_disk or any(rule.has_reserve for rule in forecast.joints):
        return 0
    return _RESERVE_AROUND_JOINTS if forecast.joints else _RESERVE


def _passed_by(pager: Pager, forecast: Forecast) -> int:
    """Return by how many bytes a sweep would pass the limit, which is more when a loop has given up its nodes."""
    assert pager.ledger.limit is not None
    return forecast.peak + _reserve(pager, forecast) - pager.ledger.limit


def _forecast(pager: Pager, seeds: list[Any], leaves: list[Node], *, bare: bool = False) -> Forecast:
    """Return what a sweep is going to hold, with all on disk that can be if there is disk."""
    return pager.forecast(seeds, leaves=leaves, paged=pager.on_disk, bare=bare, left=pager.disk.left)


def _lacks_disk(pager: Pager, seeds: list[Any]) -> bool:
    """Return whether more of what is saved could be on disk if there were more."""
    _, more = pageable_bytes([node for node, *_ in seeds], pager.ledger.holds, pager.disk.left)
    return pager.on_disk and more > 0


def _relieve_disk(pager: Pager, seeds: list[Any]) -> bool:
    """Have a loop give up disk for saved values if there is too little; return whether one did."""
    quota = pager.ledger.quota
    return quota is not None and _lacks_disk(pager, seeds) and quota.relieve()
