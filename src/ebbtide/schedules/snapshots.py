"""What is stored of a loop, by ascending step: a tuple while it is short, chunks that positions share beyond that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, final, overload

from ebbtide.errors import ScheduleError
from ebbtide.schedules.records import make_plain

KINDS = ("restart", "saved")
TIERS = ("memory", "disk")
# The longest tuple that is copied for a change, which takes 0.4 us; a copy of 10,000 snapshots takes 24 or more.
CHUNK = 256

_step_of = attrgetter("step")
_new = object.__new__


class _Fields:
    """The fields of a snapshot while it is made; see `actions`."""

    __slots__ = ("kind", "step", "tier")


@final
@dataclass(frozen=True, slots=True)
class Snapshot(_Fields):
    """
    What is stored of one step.

    Args:
        step: The step.
        kind: What it holds: `"restart"`, the state from which the step can be run, or `"saved"`, what the
            step saves for its reverse sweep.
        tier: Where it lies, `"memory"` or `"disk"`.
    """

    step: int
    kind: str = "restart"
    tier: str = "memory"


def made(step: int, kind: str, tier: str) -> Snapshot:
    """Return a `Snapshot`, several times as fast as its initializer."""
    snapshot: Any = _new(_Fields)
    snapshot.step = step
    snapshot.kind = kind
    snapshot.tier = tier
    snapshot.__class__ = Snapshot
    return snapshot


def checked(snapshots: Snapshots, steps: int) -> Snapshots:
    """
    Return snapshots whose steps are Python's own integers.

    Raises:
        ScheduleError: They are no snapshots of a loop of so many steps, each step once and in ascending order.
    """
    if type(snapshots) is Stack:
        return snapshots  # made of those of another position
    try:
        snapshots, last = tuple(snapshots), -1
    except TypeError:
        raise ScheduleError(f"{snapshots!r} are no snapshots. Give a tuple of Snapshot.") from None
    for one in snapshots:
        if type(one) is not Snapshot:
            raise ScheduleError(f"{one!r} is no snapshot. Give a tuple of Snapshot.")
        make_plain(one, "step")
        if one.kind not in KINDS or one.tier not in TIERS:
            raise ScheduleError(f"{one} has no kind of {KINDS} or no tier of {TIERS}. Give one of each.")
        if not last < one.step < steps:
            held = [kept.step for kept in snapshots]
            raise ScheduleError(
                f"The snapshots of the steps {held} do not fit a loop of {steps} steps: "
                "give ascending steps, each once, all below the number of steps."
            )
        last = one.step
    return snapshots


@final
class Stack(Sequence[Snapshot]):
    """
    Many snapshots: equal to the tuple of them, with the same hash, and as immutable.

    A change at the end makes one new chunk and shares all others, wherever the sequence is as long as it may be.

    Args:
        below: All snapshots but the last ones, at least one.
        tail: The last ones, at least one and at most `CHUNK`.

    Memory:
        What is below belongs to all that were made of it.
    """

    __slots__ = ("_base", "_below", "_count", "_start", "_tail")

    def __init__(self, below: tuple[Snapshot, ...] | Stack, tail: tuple[Snapshot, ...]) -> None:
        self._below, self._tail, self._start = below, tail, len(below)
        self._count = self._start + len(tail)
        # The first chunk, as schedules ask for the first snapshot before each action.
        self._base: tuple[Snapshot, ...] = below if isinstance(below, tuple) else below._base

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Snapshot: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Snapshot, ...]: ...
    def __getitem__(self, index: int | slice) -> Snapshot | tuple[Snapshot, ...]:
        if index == -1:
            return self._tail[-1]
        if index == 0:
            return self._base[0]
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            # Who asks for the first ones does not wait for all.
            return self._base[start:stop:step] if 0 <= start <= stop <= len(self._base) else tuple(self)[index]
        place = index if index >= 0 else index + len(self)
        if 0 <= place < len(self._base):
            return self._base[place]
        if not 0 <= place < len(self):
            raise IndexError(f"There is no snapshot {index} of {len(self)}.")
        chunk = self
        while place < chunk._start:
            assert isinstance(chunk._below, Stack)
            chunk = chunk._below
        return chunk._tail[place - chunk._start]

    def __iter__(self) -> Iterator[Snapshot]:
        for chunk in reversed([*self._chunks()]):
            yield from chunk

    def __reversed__(self) -> Iterator[Snapshot]:
        for chunk in self._chunks():
            yield from reversed(chunk)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Stack):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, tuple[tuple[Snapshot, ...]]]:
        return shared, (tuple(self),)

    def place(self, step: int) -> int:
        """Return the number of snapshots of earlier steps."""
        chunk = self
        while chunk._tail[0].step > step:
            if not isinstance(chunk._below, Stack):
                return bisect_left(chunk._below, step, key=_step_of)
            chunk = chunk._below
        return chunk._start + bisect_left(chunk._tail, step, key=_step_of)

    def added(self, place: int, snapshot: Snapshot) -> Stack:
        """Return the same with one more."""
        at, tail = place - self._start, self._tail
        if at < 0:
            return Stack(add(self._below, place, snapshot), tail)
        if len(tail) < CHUNK:
            return self._ending_in(tail[:at] + (snapshot,) + tail[at:])  # noqa: RUF005 - see `add`
        if at == CHUNK:
            return Stack(self, (snapshot,))
        half = CHUNK // 2
        return Stack(Stack(self._below, tail[:half]), tail[half:]).added(place, snapshot)

    def removed(self, place: int) -> tuple[Snapshot, ...] | Stack:
        """Return the same without one."""
        at, tail = place - self._start, self._tail
        if at < 0:
            below = remove(self._below, place)
            return Stack(below, tail) if below else tail
        return self._ending_in(tail[:at] + tail[at + 1 :]) if len(tail) > 1 else self._below

    def _ending_in(self, tail: tuple[Snapshot, ...]) -> Stack:
        """Return the same with another last chunk; the initializer would ask for what is known."""
        stack = _new(Stack)
        stack._below = self._below
        stack._start = self._start
        stack._count = self._start + len(tail)
        stack._base = self._base
        stack._tail = tail
        return stack

    def _chunks(self) -> Iterator[tuple[Snapshot, ...]]:
        """All chunks, the last one first."""
        chunk: tuple[Snapshot, ...] | Stack = self
        while isinstance(chunk, Stack):
            yield chunk._tail
            chunk = chunk._below
        yield chunk


Snapshots = tuple[Snapshot, ...] | Stack
"""What is stored."""


def shared(snapshots: Sequence[Snapshot]) -> Snapshots:
    """Return snapshots as positions hold them: as a tuple, or as chunks if they are many."""
    if isinstance(snapshots, Stack):
        return snapshots
    whole = tuple(snapshots)
    if len(whole) <= CHUNK:
        return whole
    found: Snapshots = whole[:CHUNK]
    for start in range(CHUNK, len(whole), CHUNK):
        found = Stack(found, whole[start : start + CHUNK])
    return found


def find_place(snapshots: Snapshots, step: int) -> int:
    """Return the number of snapshots of earlier steps."""
    count = len(snapshots)
    if count == 0:
        return 0
    # Nearly all changes happen at the end.
    last = snapshots[-1].step
    if last <= step:
        return count - (last == step)
    return bisect_left(snapshots, step, key=_step_of) if isinstance(snapshots, tuple) else snapshots.place(step)


def add(snapshots: Snapshots, place: int, snapshot: Snapshot) -> Snapshots:
    """Return the snapshots with one more, so many others below it."""
    if not isinstance(snapshots, tuple):
        return snapshots.added(place, snapshot)
    if place < len(snapshots):
        return shared((*snapshots[:place], snapshot, *snapshots[place:]))
    # A sum of tuples takes half the time of (*snapshots, snapshot), which makes a list first.
    return snapshots + (snapshot,) if place < CHUNK else Stack(snapshots, (snapshot,))  # noqa: RUF005


def remove(snapshots: Snapshots, place: int) -> Snapshots:
    """Return the snapshots without one, so many others below it."""
    if not isinstance(snapshots, tuple):
        return snapshots.removed(place)
    return snapshots[:-1] if place == len(snapshots) - 1 else snapshots[:place] + snapshots[place + 1 :]
