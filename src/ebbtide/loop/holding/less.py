"""How a time loop does with less memory than it has: fewer snapshots, and more on disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ebbtide.agree import is_alone
from ebbtide.errors import ScheduleError
from ebbtide.ledger import SAVED, SNAPSHOTS
from ebbtide.loop.holding import ahead, held
from ebbtide.schedules import Delete, Hierarchical, Mixed, Online, Periodic, Revolve, Snapshot, StoreAll


def ways(rule: Any, nbytes: int = 0) -> tuple[Callable[[], bool], ...]:
    """Return how a loop does with *nbytes* less, the cheapest way first; each returns whether there was anything."""
    first = (partial(give_up_last, rule),) if _is_last_cheapest(rule, nbytes) else ()
    one = partial(give_up_one, rule, ahead.Cheapest(rule.room.disk.tier))
    saved = partial(give_up_first, rule), partial(give_up_on_disk, rule, ahead.Cheapest("disk", "saved"))
    last = partial(go_back, rule), partial(move_first, rule), partial(give_up_last, rule)
    entries = partial(give_up_entries, rule, ahead.Cheapest("disk")), partial(give_up_table, rule)
    return *first, rule.snapshots.resize_buffers, one, *saved, *last, *entries


def _is_last_cheapest(rule: Any, nbytes: int) -> bool:
    """
    Return whether what the last step saved goes before snapshots of a loop at rest.

    It goes if there is not enough without it, or if the steps that run again for it are fewer than the snapshots that
    would do instead, each of which is worth a step at least. Of many processes each is asked for other bytes.
    """
    last, data = held.last_bytes(rule), rule.plan.sizes.data
    if not last or not data or not is_alone():
        return False
    return nbytes > rule.sheddable - last or (last >= nbytes and ahead.steps_to_end(rule.position) <= nbytes // data)


def give_up_one(rule: Any, cheapest: ahead.Cheapest) -> bool:
    """Give up one snapshot of a loop, the *cheapest* where its schedule has no choice; return whether there was one."""
    schedule, position = rule.plan.schedule, rule.position
    action = None
    if isinstance(schedule, (Revolve, Mixed)):
        schedule = ahead.with_less(schedule, position)
        # Of saved values without a way back to their steps it has none to give.
        with suppress(ScheduleError):
            action = schedule.next_action(position)
    if not isinstance(action, Delete):
        kept = cheapest.take(position)
        if kept is None:
            return False
        action, schedule = Delete(step=kept.step), ahead.with_less(schedule, position)
    # Not an action that is agreed on: other processes may not give up anything now.
    rule.delete(action)
    rule.position = position.after(action)
    rule.plan = replace(rule.plan, schedule=schedule)
    _without_table(rule)
    return True


def _without_table(rule: Any) -> None:
    """Of one snapshot no table is left, up to a megabyte; in the sweep there may be room for one again."""
    if len(rule.position.snapshots) == 1 and isinstance(rule.plan.schedule, (Mixed, Hierarchical, StoreAll)):
        rule.plan = replace(rule.plan, schedule=Revolve(1))
        rule.room.stale = rule.room.lean = True


def give_up_first(rule: Any) -> bool:
    """
    Give up what the first of the steps at hand saved, if it can run again from the initial state and is not the last.

    When that is due, what the steps after it saved is gone, and there is room. Where more have to run again than are
    left, another schedule runs fewer.
    """
    if not held.count_at_hand(rule):
        return False
    start, stop = rule.position.saved
    rule.room.forget(rule, range(start + 1, stop))
    rule.position, rule.room.spare.is_there = ahead.without_first(rule.position), False
    rule.room.stale |= start + 1 > stop - start - 1
    return True


def give_up_on_disk(rule: Any, cheapest: ahead.Cheapest | None = None) -> bool:
    """
    Give up one snapshot on disk, which the loop plans without from then on.

    Args:
        rule: The loop.
        cheapest: Those on disk of the kind `"saved"` for what a step saved, of which there are nodes in memory; None
            for any.

    Returns:
        Whether there was one without which all steps can still run again, from the initial state if need be.
    """
    cheapest = ahead.Cheapest("disk") if cheapest is None else cheapest
    kept, kind = cheapest.take(rule.position), cheapest.kind
    if kept is None:
        is_there = any(one.tier == "disk" and kind in (None, one.kind) for one in rule.position.snapshots)
        if not is_there or not rule.room.fallback.go_back(rule):
            return False
    else:
        action = Delete(step=kept.step)
        rule.delete(action)
        rule.position = rule.position.after(action)
    rule.room.stale = True
    _without_table(rule)
    return True


def go_back(rule: Any) -> bool:
    """Give up saved values but those of the step in work, if the others can run again from the initial state."""
    went = rule.room.spare.go_back(rule)
    rule.room.stale |= went
    return bool(went)


def move_first(rule: Any) -> bool:
    """
    Bring the last restart state in memory to disk; return whether it is there.

    So that a loop can do with as little, whichever of its schedules the clock has chosen.
    """
    first, sizes = ahead.find_first(rule.position), rule.plan.sizes
    if first is None or not held.may_move(rule):
        return False
    while not rule.room.disk.has_room(sizes.stored):
        # Not known before, as others may count on the same bytes: what another loop has there.
        if not give_up_on_disk(rule) and not rule.room.disk.relieve():
            return False
    ledger = rule.stepper.region.ledger
    before = ledger.held[SNAPSHOTS]
    rule.snapshots.put_state(first.step, rule.snapshots.get_state(first.step, keep=False), "disk", vital=True)
    if ledger.held[SNAPSHOTS] >= before:
        rule.room.disk.lacks += sizes.stored  # it could not be written, and is back
        return False
    rule.position = ahead.on_disk(rule.position, first)
    rule.prefix = None if rule.prefix is None else ahead.on_disk(rule.prefix, first)
    rule.room.stale = rule.room.lean = True
    return True


def store_last(rule: Any) -> None:
    """Bring what the last step saved to disk, where that of others is; at hand it would stay beside their sweeps."""
    position, record = rule.position, held.last_record(rule)
    are_others = 0 < position.steps - 1 == position.on_disk == position.saved_snapshots
    if record is None or not are_others or not is_alone() or not rule.room.disk.has_room(rule.plan.sizes.stored_saved):
        return
    last = Snapshot(position.steps - 1, "saved", "disk")
    rule.snapshots.put_saved(last.step, rule.records.pop(last.step), last.tier)
    there = replace(position, state=None, saved=None, snapshots=(*position.snapshots, last))
    rule.position = rule.room.fallback.without_lost(rule, there)


def give_up_last(rule: Any) -> bool:
    """Give up what the last step saved, for what comes after a loop at rest: that step runs again in its sweep."""
    if not held.last_bytes(rule) or not ahead.find_way_back(rule.position):
        return False
    rule.room.forget(rule)
    rule.position = ahead.without_last(rule.position)
    # Others go on from there; what is recorded, or a schedule of the user's, may not know that place.
    rule.room.stale |= not isinstance(rule.plan.schedule, (Hierarchical, Mixed, Online, Periodic, Revolve))
    _without_table(rule)
    return True


def give_up_entries(rule: Any, cheapest: ahead.Cheapest) -> bool:
    """Give up one restart state on disk of a loop at rest, for what the interpreter takes for it; see `move_first`."""
    if not held.entries_bytes(rule) or not give_up_on_disk(rule, cheapest):
        return False
    rule.snapshots.count(held.beyond_now(rule))
    return True


def give_up_table(rule: Any) -> bool:
    """Give up the table of a schedule that has one state left, for what comes after a loop at rest."""
    if not held.table_beside_bytes(rule):
        return False
    _without_table(rule)
    rule.snapshots.count(held.beyond_now(rule))
    return True


def need_less(rule: Any) -> bool:
    """Have loops in steps that run again hold the least, for what comes after a loop; return whether that is less."""
    sizes, room = rule.plan.sizes, rule.room
    if not sizes.lent_swept or not room.bounded or room.runs or rule.records:
        return False
    rule.plan = replace(rule.plan, sizes=sizes.without_lent())
    room.planned = None if room.planned is None else room.planned.without_lent()
    room.stale = room.lean = True
    return True


def page_outside(rule: Any) -> bool:
    """
    Bring the oldest that the code around a loop saved to disk, where it may be; return whether that freed bytes.

    In the sweep of that code what comes after the loop may have fitted, and be in memory, as it is kept for another.
    """
    ledger, pager = rule.stepper.region.ledger, rule.stepper.region.outer.pager
    if rule.room.planned is None or pager is None or pager.ledger is not ledger:
        return False
    before = ledger.live
    while ledger.live >= before and pager.page_oldest((), []):
        pass
    return bool(ledger.live < before)


def page(rule: Any, nbytes: int) -> None:
    """Bring what steps saved beyond the plan to disk until *nbytes* are free, first of those that are swept last."""
    ledger = rule.stepper.region.ledger
    for record in held.wide_records(rule):
        before = ledger.held[SAVED]
        while before - ledger.held[SAVED] < nbytes and record.tape.pager.page_oldest((), []):
            pass
        freed = before - ledger.held[SAVED]
        record.nbytes, nbytes = record.nbytes - freed, nbytes - freed
        rule.room.disk.learn(record)
