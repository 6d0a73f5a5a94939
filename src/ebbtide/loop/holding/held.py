"""What a running time loop holds, what it could do without, and what of all that no ledger counts, in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, final

import numpy as np

from ebbtide.agree import is_alone
from ebbtide.arrays.array_type import owner_of
from ebbtide.ledger import COTANGENTS, Ledger
from ebbtide.loop.holding import ahead
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.planning.predict import table_bytes
from ebbtide.loop.planning.sizes import INPUT_BYTES, LEFT_BEHIND
from ebbtide.loop.stepping.collect import Collector
from ebbtide.loop.stepping.given import in_region
from ebbtide.schedules import Snapshot
from ebbtide.tape.holders import pageable_bytes
from ebbtide.tape.joint import Holding
from ebbtide.tape.overhead import PAGE
from ebbtide.tape.saved import parts_of

# Two pages of the record of what comes after a loop, which a ledger counts, are in the loop's reserve, too.
RECORD = 2 * PAGE


@final
class Waiting:
    """
    Counts, within a bound, what a reverse sweep holds between two steps: the cotangent of a state, and the sums so far.

    Args:
        ledger: The account.
    """

    __slots__ = ("_keys", "_known", "_ledger", "_sums")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._keys = ledger, list[int]()
        self._sums, self._known = 0, {"static": 0, "input": 0}

    def hold(self, cotangent: list[Any]) -> None:
        """Count the cotangent of each leaf of a state, (value, owned) or None, in place of those before."""
        self.let_go()
        for pair in cotangent if self._ledger.limit is not None else ():
            for part in () if pair is None else parts_of(pair[0]):
                owner = owner_of(part)
                self._ledger.share(COTANGENTS, id(owner), owner.nbytes)
                self._keys.append(id(owner))

    def let_go(self) -> None:
        """Count the cotangent no more."""
        while self._keys:  # each once, wherever it is interrupted
            self._ledger.unshare(COTANGENTS, self._keys.pop())

    def gather(self, collector: Collector) -> None:
        """Count the sums that are new; those of later steps are added to them in place."""
        if self._ledger.limit is None:
            return
        for name, sums in (("static", collector.static_sums), ("input", collector.input_sums)):
            new = islice(reversed(sums.values()), len(sums) - self._known[name])
            nbytes = sum(value.nbytes for value in new if isinstance(value, np.ndarray))
            if name == "input":
                nbytes += (max(1, len(sums)) - max(1, self._known[name])) * INPUT_BYTES
            self._known[name], self._sums = len(sums), self._sums + nbytes
            self._ledger.add(COTANGENTS, nbytes)

    @property
    def cotangent_nbytes(self) -> int:
        """Bytes of the cotangent."""
        return self._ledger.nbytes_of(COTANGENTS, self._keys)

    @property
    def nbytes(self) -> int:
        """All that it counts."""
        return self._sums + self.cotangent_nbytes

    def close(self) -> None:
        """Count nothing any more."""
        self.let_go()
        self._ledger.add(COTANGENTS, -self._sums)
        self._sums, self._known = 0, dict.fromkeys(self._known, 0)


@final
class Beyond:
    """
    Has the bound be less by what the interpreter takes for a loop at work, and more by what it gives up of that.

    Of 20 steps at hand it is 50 KiB, for which a step that saves more than planned was refused when they were gone.

    Args:
        ledger: The account, which counts none of it.
    """

    __slots__ = ("_ledger", "_nbytes")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._nbytes = ledger, 0

    @contextmanager
    def left_out(self, rule: Any, more: int) -> Iterator[None]:
        """Leave it out in the block, and so many bytes *more* of others."""
        around, self._nbytes = self._nbytes, beyond_now(rule)
        self._ledger.leave_out(self._nbytes + more)
        try:
            yield
        finally:
            self._ledger.leave_out(-self._nbytes - more)
            self._nbytes = around

    def changed(self, rule: Any) -> None:
        """Follow what the loop gave up in a block."""
        if self._nbytes:
            before, self._nbytes = self._nbytes, beyond_now(rule)
            self._ledger.leave_out(self._nbytes - before)


def size_of(rule: Any, kept: Snapshot) -> int:
    """Return the bytes of a snapshot that are in memory, as a ledger counts them beside others."""
    sizes, theirs = rule.plan.sizes, rule.room.disk.theirs
    if kept.kind == "restart":
        is_here = kept.tier == "memory" if theirs is None else theirs > 0
        return int(sizes.data) if is_here else 0
    if kept.tier == "memory":
        return rule.snapshots.nbytes_of(kept.step) or int(sizes.saved - sizes.passed_on)
    return int(sizes.saved - (sizes.nodes or 0)) if theirs else 0


def _stored_bytes(rule: Any) -> int:
    """Return the bytes of all snapshots that are in memory."""
    sizes = [(size_of(rule, kept), kept) for kept in rule.position.snapshots]
    theirs = sum([nbytes for nbytes, kept in sizes if (kept.kind, kept.tier) != ("saved", "memory")])
    return sum([nbytes for nbytes, _ in sizes]) - max(0, theirs - (rule.room.disk.theirs or theirs))


def held_bytes(rule: Any) -> int:
    """Return the bytes of snapshots in memory, of the saved values at hand, and of the nodes of those on disk."""
    first = rule.plan.sizes.data if rule.room.spare.is_there else 0
    at_hand = sum(record.nbytes for record in rule.records.values())
    return int(_stored_bytes(rule) + first + at_hand + rule.snapshots.left_behind)


def counted_bytes(rule: Any) -> int:
    """Return the bytes in the ledger of what a loop holds, with buffers, which it can do without."""
    buffers = rule.snapshots.buffer_nbytes + sum(map(buffer_nbytes, rule.records.values()))
    return int(held_bytes(rule) + rule.room.waiting.nbytes + rule.snapshots.counted + buffers)


def stays_bytes(rule: Any) -> int:
    """Return the bytes of what steps on disk saved that stays in memory, as masks and constants do, but their nodes."""
    stored = rule.snapshots.steps().items()
    return int(max(0, sum([one.left for step, one in stored if step not in rule.records]) - rule.snapshots.left_behind))


def _bytes_at_hand(rule: Any, but: int) -> int:
    """Return the bytes of what the steps at hand saved but the last ones, some of which may have saved less."""
    sizes, (start, stop) = rule.plan.sizes, rule.position.saved or (0, 0)
    count = max(0, stop - start - but)
    planned = count * int(sizes.saved - sizes.passed_on)
    if not is_alone():  # what they saved differs, and all processes give up the same
        return planned
    return min(planned, sum([record.nbytes for step, record in rule.records.items() if step < start + count]))


def beyond_initial_bytes(rule: Any) -> int:
    """Return the bytes of snapshots and of what steps saved, which are free where it goes back to its initial state."""
    # Not of the last step of the forward sweep.
    return _bytes_at_hand(rule, but=int(rule.position.forward_ended)) + _stored_bytes(rule)


def resumed_bytes(rule: Any) -> int:
    """Return the bytes of what steps saved that a loop holds in the forward sweep beside the initial state."""
    is_there = not rule.position.forward_ended and ahead.initial(rule.position)
    return _bytes_at_hand(rule, but=0) if is_there else 0


def count_at_hand(rule: Any) -> int:
    """Return how many steps have what they saved at hand but the last, if they can run again from the initial state."""
    position = rule.position
    is_there = rule.room.spare.is_there or ahead.initial(position)
    if not is_there or not position.forward_ended or position.saved is None:
        return 0
    return int(position.saved[1] - position.saved[0] - 1)


def at_hand_bytes(rule: Any) -> int:
    """Return the bytes of that."""
    return _bytes_at_hand(rule, but=1) if count_at_hand(rule) else 0


def last_bytes(rule: Any) -> int:
    """
    Return the bytes of what the last step saved, if a loop at rest can do without that: it can run again.

    Then what comes after the loop may hold as much, and the loop takes steps for it. Of a loop in a step, which runs
    again itself in each sweep of that step, the loop around has it as a part of what a step saves. Where there may be
    several sweeps, what comes after the loop stays, and there would be no room for that step beside it without disk.
    """
    record, position, sizes = last_record(rule), rule.position, rule.plan.sizes
    room, around = rule.room, rule.stepper.region.around
    stays = room.retained and room.planned is None
    if record is None or stays or room.runs or position.reversed or in_region(around):
        return 0
    if not (room.spare.is_there or ahead.find_way_back(position)):
        return 0
    # Of many processes one may have saved nothing but what stays; it gives that up with the others.
    return max(0 if is_alone() else 1, int(record.nbytes - sizes.shared - sizes.passed_on))


def sheddable_bytes(rule: Any) -> int:
    """Return the bytes of memory that a loop could do without."""
    position, last, at_hand = rule.position, last_bytes(rule), at_hand_bytes(rule)
    # Not of those that go as a whole.
    wide = [one for one in wide_records(rule) if not (last if one is last_record(rule) else at_hand)]
    paged = pageable_bytes_of(wide) + (rule.snapshots.left_behind if _can_lose_on_disk(rule) else 0)
    moved = movable_bytes(rule)
    if not rule.room.spare.is_there:
        spare = sum(size_of(rule, kept) for kept in ahead.find_spare(position, rule.room.disk.tier))
        spare += at_hand + resumed_bytes(rule)
        return spare + last + paged + moved + entries_bytes(rule) + table_beside_bytes(rule)
    # With the initial state no saved values are needed; and in the reverse sweep, as planned, that state is not.
    beyond, data = beyond_initial_bytes(rule) + last, rule.plan.sizes.data if position.forward_ended else 0
    return (beyond + moved if moved else max(beyond, data)) + paged


def movable_bytes(rule: Any) -> int:
    """Return the bytes of the state in memory without which no step can run again, if that could go to disk."""
    room, sizes = rule.room, rule.plan.sizes
    if not may_move(rule) or not (room.spare.is_there or ahead.find_first(rule.position) is not None):
        return 0
    return int(sizes.data) if room.disk.has_room(sizes.stored) or ahead.find_spare(rule.position, "disk") else 0


def may_move(rule: Any) -> bool:
    """Return whether a loop may bring a state that it has in memory to disk, if there is room."""
    return rule.room.planned is not None and not rule.snapshots.are_theirs and is_alone()


def _can_lose_on_disk(rule: Any) -> bool:
    """Return whether a loop can do without what steps saved on disk."""
    return rule.room.fallback.is_there or any(kept.kind == "restart" for kept in rule.position.snapshots[:1])


def may_go_on(rule: Any) -> bool:
    """Return whether a loop goes on where no plan fits: its steps have shown what they take, and it has only states."""
    all_seen = rule.position.forward_ended or rule.prefix is not None
    return all_seen and {kept.kind for kept in rule.position.snapshots} == {"restart"}


def last_record(rule: Any) -> Any:
    """Return the last step, if what it saved is at hand before the reverse sweep; else None."""
    return rule.records.get(rule.position.end - 1) if rule.position.forward_ended else None


def buffer_nbytes(record: Any) -> int:
    """Return the bytes of buffer and storage of what a step has on disk, which go with it."""
    pages = None if record.tape.pager is None else record.tape.pager.pages
    return 0 if pages is None else int(pages.buffer_nbytes + pages.storage_nbytes)


def wide_records(rule: Any) -> list[Any]:
    """Return the steps at hand before the reverse sweep that saved more than planned, if that may go to disk."""
    planned, found = rule.room.planned, rule.records.values() if rule.position.forward_ended else ()
    return [
        record for record in found
        if planned is not None and record.nbytes > planned.saved + planned.shared
        and record.tape.pager is not None and record.tape.pager.on_disk
    ]  # fmt: skip


def pageable_bytes_of(records: list[Any]) -> int:
    """Return the bytes of what steps saved that could go to disk."""
    nodes = [node for record in records for node in record.results]
    return pageable_bytes(nodes, records[0].tape.ledger.holds)[0] if nodes else 0


def sums_bytes(rule: Any) -> int:
    """Return the bytes of the running sums, those for static values that later steps than the first met included."""
    return max(int(rule.plan.sizes.gradients), sum(met.nbytes for met in rule.statics.values()))


def alone_bytes(rule: Any, ledger: Ledger) -> int:
    """Return what the function took in a step, and the sweep of one may take, beside what it is known to hold."""
    sizes = rule.plan.sizes
    return max(0, int(max(sizes.alone, sizes.spent)) - ledger.alone)


def needed_bytes(rule: Any, paged: int = 0, *, has_last: bool = True, bare: bool = False) -> int:
    """
    Return the bytes that the reverse sweep takes at most, beside what is held before it; see `JointRule.needs`.

    Args:
        rule: The loop.
        paged: Bytes of what the last step saved that go to disk before.
        has_last: Whether that is still there, if it was at all.
        bare: Whether loops in the steps hold the least.
    """
    sizes, planned, sums = rule.plan.sizes, rule.room.planned, sums_bytes(rule)
    if bare and not (rule.records and has_last):
        sizes, planned = sizes.without_lent(), None if planned is None else planned.without_lent()
    sweep = sizes.sweep_beyond
    if planned is None:
        taped = sizes.saved + sizes.shared if rule.records and has_last else 0  # those of the last are held already
    else:
        record, known = last_record(rule) if has_last else None, planned.saved + planned.shared
        taped, more = 0 if record is None else known, 0
        if record is not None and record.nbytes > known:
            # Of a step that saves more than planned, what has to goes to disk; snapshots of loops in it cannot.
            taped, left = record.nbytes - paged, record.nbytes - pageable_bytes_of([record])
            more = max(0, min(record.within, left - known))
        # Nor can what a step adds to the sum for a static value that was not known when the plan was made.
        added = max([met.nbytes for met in rule.statics.values()], default=0)
        more += min(added, max(0, sums - planned.gradients))
        sweep = min(sweep, planned.sweep_beyond + more)
    return int(max(0, sweep - taped)) + sums


def beyond_bytes(plan: Plan, restarts: int, listed: int, taped: int, paged: int) -> int:
    """
    Return what the interpreter takes for a loop beside the table of its schedule, which no ledger counts.

    Args:
        plan: Its plan.
        restarts: How many restart states it holds in memory.
        listed: How many on disk.
        taped: Of how many steps it holds saved values, wherever; one is part of what is measured of a loop.
        paged: Of how many of them on disk.
    """
    sizes = plan.sizes
    states = restarts * sizes.entry + listed * sizes.entry_on_disk
    steps = max(0, taped) * (sizes.taped - sizes.saved) + paged * LEFT_BEHIND
    return sizes.interpreter - RECORD + states + steps


def unrecorded_bytes(rule: Any) -> int:
    """
    Return the bytes of the record of what comes after a loop that no page is counted for, now.

    With disk they are of use: the storage, its threads and locks take 6 KiB, and without them a call took 4.8 KiB more
    than its budget. Of a loop in a step of another one the record is no part of the reserve.
    """
    outer = rule.stepper.region.outer.pager
    if rule.room.planned is None or outer is None:
        return 0
    return RECORD if in_region(rule.stepper.region.around) else max(0, RECORD - outer.overhead.counted)


def beyond_now(rule: Any) -> int:
    """Return what the interpreter takes for a loop now."""
    position, (saved, paged) = rule.position, rule.snapshots.saved_counts
    listed = max(0, position.on_disk - paged)
    restarts = max(0, len(position.snapshots) - saved - listed) + rule.room.spare.is_there
    table = table_bytes(rule.plan.schedule, rule.plan.steps)
    return table + beyond_bytes(rule.plan, restarts, listed, saved + max(0, len(rule.records) - 1), paged)


def entries_bytes(rule: Any) -> int:
    """Return what the interpreter takes for restart states on disk that a loop at rest could do without."""
    if not rule.snapshots.counted:
        return 0
    spare = [kept for kept in ahead.find_spare(rule.position, "disk") if kept.kind == "restart"]
    table = table_bytes(rule.plan.schedule, rule.plan.steps) if spare else 0
    return len(spare) * int(rule.plan.sizes.entry_on_disk) + table


def table_beside_bytes(rule: Any) -> int:
    """Return the bytes of the table of a schedule that a loop at rest has for its only state, which can do without."""
    snapshots = rule.position.snapshots
    if rule.room.spare.is_there or not rule.snapshots.counted or len(snapshots) != 1 or snapshots[0].kind != "restart":
        return 0
    return table_bytes(rule.plan.schedule, rule.plan.steps)


def holding(rule: Any, bare: bool) -> Holding:
    """Return what a loop holds; see `JointRule.holding`."""
    plan, position, held, more = rule.plan, rule.position, held_bytes(rule), 0
    listed = [one for one in position.snapshots if one.tier != "memory"]
    count, in_memory = len(listed), rule.room.spare.is_there or len(listed) < len(position.snapshots)
    beyond = beyond_now(rule)
    if bare:
        entries, moved, beside = entries_bytes(rule), movable_bytes(rule) > 0, table_beside_bytes(rule)
        swapped, last = sum(one.kind != "restart" for one in listed), last_record(rule)
        paged = pageable_bytes_of([one for one in wide_records(rule) if one is last])
        if entries or (swapped and _can_lose_on_disk(rule)):
            listed, swapped = listed[:1], 0
        # With more than its initial state it has a schedule with a table.
        table = table_bytes(plan.schedule, plan.steps) if len(listed) > 1 else 0
        count, in_memory = 1 if moved and entries else len(listed) - swapped + moved, in_memory and not moved
        beyond = table + beyond_bytes(plan, in_memory, count, swapped, swapped) - (rule.sheddable - entries - beside)
        more = needed_bytes(rule, paged, has_last=not last_bytes(rule), bare=True) - needed_bytes(rule)
    if ((bare and count + in_memory) or rule.room.stale) and not may_go_on(rule):
        # The loop has to find another plan first.
        more += max(0, plan.fewest - count * plan.sizes.listed - in_memory * plan.sizes.restart)
    counted = rule.snapshots.counted
    return Holding(held + counted + rule.snapshots.buffer_nbytes, beyond - counted, plan.least, more)
