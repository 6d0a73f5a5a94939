"""
The ledger: who holds how many bytes for the reverse sweep, and since when.

Every save, release, cotangent, snapshot and I/O buffer passes a ledger. When nobody looks, that is
the addition of an integer. When a budget or a profile looks (`watched`), each buffer is counted once,
however many saved values are views of it, and is uncounted when the last of them dies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, final

from ebbtide.bound import Bound
from ebbtide.entry import SavedEntry
from ebbtide.lender import Lender, is_at_work, lent_by
from ebbtide.quota import Quota
from ebbtide.timeline import Timeline
from ebbtide.unfinished import Unfinished

SAVED = "saved values"
COTANGENTS = "cotangents"
SNAPSHOTS = "snapshots"
BUFFERS = "I/O buffers"
KINDS = (SAVED, COTANGENTS, SNAPSHOTS, BUFFERS)


@final
class Peak:
    """The most bytes that a ledger held in a block."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0


@final
class _Ticket(weakref.ref[Any]):
    """A weak reference to the holder of a buffer that knows what to uncount when the holder dies."""

    __slots__ = ("holder", "kept", "owner")

    holder: int
    owner: int
    kept: int  # the address under which it is in `Ledger.kept`; 0 if it is not


@final
@dataclass(frozen=True, slots=True)
class Mark:
    """
    Where an account stood.

    Args:
        lenders: How many lenders there had been.
        saved: Bytes of saved values that were held.
        snapshots: Bytes of snapshots.
    """

    lenders: int
    saved: int
    snapshots: int

    def without(self, saved: int, snapshots: int) -> Mark:
        """Return the mark as if what went later had not been there."""
        return replace(self, saved=self.saved - saved, snapshots=self.snapshots - snapshots)


@final
class Ledger:
    """
    The account of one outermost call.

    Args:
        watched: Whether a budget or a profile wants exact numbers.
        unfinished: The time loops of the call; none yet if None.
        around: That of a call around a profile, in which all counts, too.

    Memory:
        Unwatched, a few integers. Watched, one entry for each live saved value.
    """

    __slots__ = (
        "__weakref__", "_around", "_at_work", "_excused", "_hearers", "_owners", "_resting", "_tickets", "_uncount",
        "alone", "entries", "given_up", "held", "kept", "left_out", "lenders", "lendings", "limit", "meters", "peak",
        "phase", "quota", "refusals", "report", "retained", "saved", "taken", "timeline", "unfinished", "warned",
        "watched",
    )  # fmt: skip

    def __init__(
        self, *, watched: bool = False, unfinished: Unfinished | None = None, around: Ledger | None = None
    ) -> None:
        self.unfinished = unfinished or Unfinished()
        self._around = around
        self.saved = self.peak = 0
        self.watched = watched
        self.held: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.limit: int | None = None
        self.retained = False  # whether a call at work may have several sweeps, which begin with what is there
        self.quota: Quota | None = None  # of disk
        # The bounds of those at work, of which the smallest is the limit, and of those that rest with what may be shed.
        self._at_work: list[Bound] = []
        self._resting: weakref.WeakSet[Bound] = weakref.WeakSet()
        self.left_out = 0  # by so many bytes the limit is less, for what no ledger counts
        self._excused = 0  # and by so many it is more
        # The most that an operation keeps to be run again: the function alone holds that while it runs, and of all that
        # is held so many bytes are not beyond it. And the tickets of what is kept, by the address of the owner.
        self.alone = 0
        self.kept: dict[int, _Ticket] = {}
        self.meters: list[Any] = []  # those of steps that are measured: told what is counted, and given up
        # Of loops in a step that is measured: the tape of its derivative, and a list of (error, plan).
        self.refusals: tuple[Any, list[Any]] = None, []
        # What pulls that no forecast knows took where they were measured, by address, cotangent and operand.
        self.taken: dict[tuple[int, Any, Any], int] = {}
        self.phase = "forward"
        self.timeline: Timeline | None = None
        self.entries: dict[tuple[Any, ...], SavedEntry] | None = None
        self.report: Any = None
        self.warned = False  # of a storage that failed
        # Those who hold what they could do without: time loops and programs, the oldest first; and how many there were.
        self.lenders: list[Lender] = []
        self.lendings = 0
        # The bytes that they gave up until now: whoever measures by differences of what is held has to know.
        self.given_up = 0
        # Who wants to know what lenders from before give up: (how many there were, what they gave up, but for one).
        self._hearers: list[tuple[int, dict[str, int], Any]] = []
        # Buffers that values share: (kind, address of the owner) -> [number of holders, bytes, entry of the first].
        self._owners: dict[tuple[str, int], list[Any]] = {}
        self._tickets: dict[int, _Ticket] = {}
        # One function for all tickets, which knows the ledger weakly: no cycle.
        me = weakref.ref(self)

        def uncount(ticket: Any) -> None:
            ledger = me()
            if ledger is not None:
                ledger._drop(ticket)

        self._uncount = uncount

    @property
    def live(self) -> int:
        """The bytes now held, of all kinds, beyond those that the function alone is known to hold."""
        return sum(self.held.values()) - self.alone

    def add(self, kind: str, count: int) -> None:
        """Count *count* more bytes of *kind*; negative to release."""
        self.held[kind] += count
        for meter in self.meters if kind != BUFFERS else ():
            meter.count(count)
        if self._around is not None:
            self._around.add(kind, count)
        live = self.live
        if live > self.peak:
            self.peak = live
        if self.timeline is not None:
            self.timeline.record(list(self.held.values()), self.phase)

    @contextmanager
    def within(self, bound: Bound | None) -> Iterator[None]:
        """Let a bound bind in the block, too, whose owner is at work there; None for none, as for one that does."""
        if bound is None or bound in self._at_work:
            yield
            return
        base, lendings = self.live - bound.held, self.lendings
        bound.limit = base + bound.memory - self._excused + self.left_out
        self._resting.discard(bound)
        self._at_work.append(bound)
        self._bind()
        try:
            yield
        finally:
            self._at_work.remove(bound)
            self._bind()
            bound.held = max(0, self.live - base)
            bound.lenders = bound.lenders or range(lendings + 1, self.lendings + 1)
            if bound.lenders:
                self._resting.add(bound)

    def _bind(self) -> None:
        """Have the limit be what the bounds of those at work make it, and the disk that of the last of them."""
        limits = [bound.limit for bound in self._at_work]
        self.limit = min(limits) + self._excused - self.left_out if limits else None
        self.quota = self._at_work[-1].quota if limits else None

    def binding(self, memory: int) -> int:
        """Return the bytes of the budget that binds: one of so many bytes, or one around it that has less left."""
        return min(reversed(self._at_work), key=lambda bound: bound.limit).budget if self._at_work else memory

    @contextmanager
    def beside(self, nbytes: int) -> Iterator[None]:
        """Have the bound and the peak leave out, in the block, *nbytes* bytes that the function alone takes as well."""
        before, self.peak = self.peak, self.live
        self._excused += nbytes
        self._move(nbytes)
        try:
            yield
        finally:
            self._excused -= nbytes
            self._move(-nbytes)
            self.peak = max(before, self.peak - nbytes)

    def leave_out(self, nbytes: int) -> None:
        """Have the bound be less by *nbytes* bytes that are held and are in no ledger; or more, if there are fewer."""
        self.left_out += nbytes
        self._move(-nbytes)

    def _move(self, nbytes: int) -> None:
        if self.limit is not None:
            self.limit += nbytes

    @contextmanager
    def watching(self) -> Iterator[Peak]:
        """Give the most bytes that are held at a time in the block, which it has after it."""
        found, before, self.peak = Peak(), self.peak, self.live
        try:
            yield found
        finally:
            found.nbytes, self.peak = self.peak, max(before, self.peak)

    def lend(self, lender: Any) -> None:
        """Let one be asked for what it could do without, as long as it lives."""
        if self._around is not None:
            self._around.lend(lender)
        self.lendings += 1
        reference = Lender(lender)
        reference.number = self.lendings
        self.lenders.append(reference)

    def mark(self) -> Mark:
        """Return where the account stands."""
        return Mark(self.lendings, self.held[SAVED], self.held[SNAPSHOTS])

    def lenders_since(self, mark: Mark) -> list[Lender]:
        """Return those who came after a mark, the youngest first."""
        return list(takewhile(lambda one: one.number > mark.lenders, reversed(self.lenders)))

    def lenders_before(self, mark: Mark) -> list[Lender]:
        """Return those who were there at a mark."""
        return [one for one in self.lenders if one.number <= mark.lenders]

    def held_since(self, mark: Mark) -> int:
        """Return the bytes of saved values and snapshots that came since a mark."""
        return self.held[SAVED] - mark.saved + max(0, self.held[SNAPSHOTS] - mark.snapshots)

    def kept_since(self, mark: Mark) -> tuple[int, int]:
        """Return the bytes of what was saved since a mark, and of snapshots that loops since then cannot do without."""
        spare = lent_by(self.lenders_since(mark))
        return self.held[SAVED] - mark.saved, max(0, self.held[SNAPSHOTS] - mark.snapshots - spare)

    def relieve(self, nbytes: int, lenders: Iterable[Lender] | None = None) -> int:
        """
        Let time loops give up at least *nbytes* bytes if they can, at the price of more work; return how many.

        Args:
            nbytes: The bytes.
            lenders: Those who are asked; None for all, and of these first the ones at work, the youngest of them first:
                what a loop in a step runs again is less than what the loop around would have to.
        """
        freed = 0
        if lenders is None:
            at_work = [one for one in reversed(self.lenders) if is_at_work(one)]
            lenders = at_work + [one for one in self.lenders if one not in at_work]
        for reference in list(lenders):
            lender, before, live = reference(), [*self.held.values()], self.live  # of a dict CPython keeps dead keys
            if lender is None or freed >= nbytes:
                continue
            freed += lender.shed(nbytes - freed)
            less = live - self.live
            self.given_up += less
            for bound in self._resting:
                bound.held -= less if reference.number in bound.lenders else 0
            for known, heard, but in self._hearers:
                if reference.number <= known and lender is not but:
                    for kind, held in zip(KINDS, before, strict=True):
                        heard[kind] += held - self.held[kind]
        return freed

    @contextmanager
    def hearing(self, but: Any = None) -> Iterator[dict[str, int]]:
        """Give what is given up in the block, by kind, by those who are lenders when it begins, but for one of them."""
        heard: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._hearers.append((self.lendings, heard, but))
        try:
            yield heard
        finally:
            self._hearers.pop()

    @property
    def lent(self) -> int:
        """The bytes that time loops could give up."""
        return lent_by(self.lenders)

    def hold(self, holder: Any, owner: Any, entry: SavedEntry | None = None) -> None:
        """
        Count the buffer *owner* until *holder* dies or lets go.

        Args:
            holder: The object whose life is the life of the saved value; it takes weak references.
            owner: The array that owns the memory; shared by all views of it and counted once.
            entry: Where the profile lists it.
        """
        key = id(owner)
        ticket = _Ticket(holder, self._uncount)
        ticket.holder, ticket.owner, ticket.kept = id(holder), key, 0
        self._tickets[id(holder)] = ticket
        self.share(SAVED, key, owner.nbytes, entry)

    def keep(
        self, owners: dict[int, Any], make: Callable[[Any], Any], nbytes: int, counted: Callable[[Any], Any]
    ) -> list[Any]:
        """
        Count buffers that an operation keeps to be run again; return their holders, which it has to keep.

        Args:
            owners: The arrays that own the memory, by their address.
            make: Makes the holder of one, which keeps it alive; operations that keep the same have the same holder.
            nbytes: Bytes of all that the operation keeps, which the function alone holds at a time, too.
            counted: Returns what stands for one where it was saved.
        """
        self.alone = max(self.alone, nbytes)
        found = []
        for key, owner in owners.items():
            ticket = self.kept.get(key)
            holder = None if ticket is None else ticket()
            if holder is None:
                self.hold(holder := make(owner), counted(owner))
                ticket = self.kept[key] = self._tickets[id(holder)]
                ticket.kept = key
            found.append(holder)
        return found

    def keeps(self, key: int) -> bool:
        """Return whether an operation keeps the buffer of an address to be run again."""
        ticket = self.kept.get(key)
        return ticket is not None and ticket() is not None

    def holds(self, holder: Any) -> bool:
        """Return whether the buffer of *holder* is counted for it."""
        ticket = self._tickets.get(id(holder))
        return ticket is not None and ticket() is holder

    def outlived(self, holders: dict[int, int]) -> list[int]:
        """Return which buffers are kept to run an operation again, by others than so many of the holders of each."""
        kept = [ticket.owner for ticket in self.kept.values()]
        return [key for key in kept if 0 < holders.get(key, 0) < self.count_holders(key)]

    def share(self, kind: str, key: int, nbytes: int, entry: SavedEntry | None = None) -> None:
        """Count one more holder of a buffer; the profile lists it where its first holder is listed."""
        shared = self._owners.get((kind, key))
        if shared is not None:
            shared[0] += 1
            return
        self._owners[kind, key] = [1, nbytes, entry]
        self.add(kind, nbytes)
        if entry is not None:
            entry.take(nbytes)

    def shares(self, kind: str, key: int) -> bool:
        """Return whether a buffer is counted."""
        return (kind, key) in self._owners

    def count_holders(self, key: int) -> int:
        """Return how many hold a buffer as a saved value."""
        return self._owners.get((SAVED, key), [0])[0]

    def unshare(self, kind: str, key: int) -> int:
        """Count one holder of a buffer less; return the bytes that this frees."""
        shared = self._owners.get((kind, key))
        if shared is None:
            return 0  # an interrupt came before it was counted
        shared[0] -= 1
        if shared[0]:
            return 0
        _, nbytes, entry = self._owners.pop((kind, key))
        self.add(kind, -nbytes)
        if entry is not None:
            entry.drop(nbytes)
        return nbytes

    def nbytes_of(self, kind: str, keys: Iterable[int]) -> int:
        """Return the bytes of buffers that are shared."""
        return sum(self._owners[kind, key][1] for key in set(keys))

    def let_go(self, holder: Any) -> None:
        """Uncount the buffer of *holder*, which lives on without it."""
        ticket = self._tickets.get(id(holder))
        if ticket is not None:
            self._drop(ticket)

    def _drop(self, ticket: _Ticket) -> None:
        if self._tickets.pop(ticket.holder, None) is None:
            return
        if ticket.kept and self.kept.get(ticket.kept) is ticket:
            del self.kept[ticket.kept]
        self.unshare(SAVED, ticket.owner)
