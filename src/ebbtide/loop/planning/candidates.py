"""The schedules that a planner chooses among: of each kind those that make the most of the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from ebbtide.loop.planning.predict import buffer_of
from ebbtide.loop.planning.sizes import Sizes, count_fitting, count_tuples
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, Schedule, StoreAll
from ebbtide.schedules.mixed_table import MOST_LEVELS, MixedTable, count_bytes

# Work on a table: a length is as much as so many rows of it. Measured: 20 microseconds and 0.5 for each row, which is
# 1 for each row where there are 10,000 lengths; so a work of 150,000 takes about 0.1 s.
_ROWS_PER_LENGTH, _STEPS_PER_ROW, _MOST_WORK = 40, 10_000, 150_000
# Where steps are known to be slow, making a table may take so much of the time of one run of them, up to 1 s.
_SHARE, _WORK_PER_SECOND = 0.01, 1_500_000
# Each action makes a tuple of all snapshots.
_MOST_ON_DISK = 10_000
# Slots on disk with a table, which are more than enough for the steps for which there is time to make one.
_MOST_SLOTS = 64
# With more units the reverse sweep gains nothing by some that are free then.
_MOST_REVERSE = 64
# By so much a size may be rounded up for `Mixed`; finer units make larger tables.
_WASTE = 0.02


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """
    What a plan is made for.

    Args:
        steps: The number of steps of the loop, or its upper bound.
        sizes: The measured sizes.
        available: Bytes of memory beside those that every schedule takes, `Sizes.fixed`; below 0 not even they fit.
        disk: Bytes of disk.
        costs: What steps and transfers cost.
        timed: Whether the costs are measured seconds.
        making: Bytes of memory in which a table may be made, which are fewer where a running loop holds snapshots.
        open: Whether the length is not known, and *steps* is its upper bound.
    """

    steps: int
    sizes: Sizes
    available: int
    disk: int
    costs: Costs
    timed: bool
    making: int
    open: bool

    @property
    def work(self) -> int:
        """How much work on a table is worth it."""
        if not self.timed:
            return _MOST_WORK
        seconds = min(1.0, _SHARE * self.steps * (self.costs.forward + self.costs.reverse))
        return max(_MOST_WORK, int(_WORK_PER_SECOND * seconds))

    @property
    def rows(self) -> int:
        """The most rows of a table of all lengths for which there is time."""
        rows = self.work // self.steps - _ROWS_PER_LENGTH
        return max(0, rows * _STEPS_PER_ROW // (_STEPS_PER_ROW + self.steps))


def find_candidates(bounds: Bounds) -> Iterator[tuple[Schedule, bool]]:
    """
    Yield the schedules that fit, for a loop of at least one step.

    With more bytes of either tier there is, of each kind, one that takes no more time: what a candidate is made of
    depends on the bytes only such that more of them are more slots.

    Args:
        bounds: What the plan is made for.

    Yields:
        (schedule, whether there are buffers).

    Memory:
        One table at a time: that of a `Mixed` schedule stays with it, and it comes last; others are made again when the
        schedule is followed.
    """
    if bounds.available < 0:
        return
    # Its transfers are made in line; the planner gives it buffers if there is room for them.
    hierarchical = None if bounds.open else _find_hierarchical(bounds)
    if hierarchical is not None:
        yield hierarchical, False
        forget_table(hierarchical)
        del hierarchical
    for buffered in (False, True):
        yield from ((schedule, buffered) for schedule in _find_on_disk(bounds, buffered=buffered))
    snapshots = min(count_fitting(bounds.available, bounds.sizes.restart), bounds.steps)
    if bounds.open:
        yield from [(Online(snapshots), False)] if snapshots > 0 else []
        return
    if bounds.steps == 1 or snapshots > 0:
        yield Revolve(max(1, snapshots)), False
    mixed = _find_mixed(bounds)
    if mixed is not None:
        yield mixed, False


def forget_table(schedule: Schedule) -> None:
    """Let the table of a schedule go, which is made again when that is followed."""
    if isinstance(schedule, (Hierarchical, Mixed)):
        schedule._tables.clear()


def find_least(bounds: Bounds) -> int:
    """
    Return the least number of bytes of memory beside `Sizes.fixed` for which there is a candidate.

    Args:
        bounds: What the plan is made for; the bytes of memory are not looked at.
    """
    steps, sizes = bounds.steps, bounds.sizes
    others = max(0, steps - 1)
    least = min(others, 1) * sizes.restart
    if 0 < others <= _MOST_ON_DISK:
        tuples = count_tuples(others)
        if others * sizes.stored_saved + sizes.stored <= bounds.disk:
            least = min(least, others * sizes.left_behind + sizes.listed + tuples)
        if others * sizes.stored <= bounds.disk:
            least = min(least, others * sizes.listed + tuples)
    slots = 0 if bounds.open else _count_slots(bounds)
    if slots and others:
        least = min(least, _least_of_slots(bounds, slots))
    return least


# Restart states and saved values in memory.


def _find_unit(sizes: Sizes) -> tuple[int, int, int]:
    """
    The unit of `Mixed` in bytes, and the sizes of a restart state and of a step's saved values in it, rounded up.

    In units as small as bytes nearly each number of free units could occur, and have its row in the table.
    """
    small, large = sorted((sizes.restart, sizes.taped_beside))
    best: tuple[float, int] | None = None
    for parts in range(1, MOST_LEVELS):
        # The larger size in so many units, and the smaller one in about as many as their ratio says.
        few = parts * small // large
        for others in (few, few + 1) if few else (1,):
            unit = max(-(-large // parts), -(-small // others))
            waste = max(parts * unit / large, others * unit / small) - 1
            if best is None or waste < best[0]:
                best = waste, unit
        if best is not None and best[0] <= _WASTE:
            break
    assert best is not None
    unit = best[1]
    return unit, -(-sizes.restart // unit), -(-sizes.taped_beside // unit)


def _find_mixed(bounds: Bounds) -> Mixed | None:
    """
    The schedule with the fewest units of those with the fewest forward steps.

    The table takes bytes of the budget: for each unit a row.
    """
    steps, available = bounds.steps, bounds.available
    unit, restart, saved = _find_unit(bounds.sizes)
    rows = min(bounds.rows, MOST_LEVELS)
    if steps < 2 or rows <= restart:
        return None
    least = min(restart, saved)
    # Both are linear in the number of rows.
    (held, making), (held_more, making_more) = count_bytes(steps, 0), count_bytes(steps, 1)
    each, each_making = held_more - held, making_more - making
    by_table = (bounds.making - making) // each_making - 1
    # In the reverse sweep there may be room for more.
    room = available + bounds.sizes.more_in_reverse - held - each
    most = min(count_fitting(room, unit + each, units=least), by_table, rows - 1, (steps - 1) * max(restart, saved))
    units = min((available - held - each * (1 + most) - count_tuples(most // least)) // unit, most)
    if units < restart:
        return None
    most -= (most - units) % restart
    table = MixedTable(steps, most * unit, restart * unit, saved * unit)
    if not table.exact:
        return None
    # Where the first step's saved values come first, there is the initial state beside them; see `spare_tier`.
    rows_of = {count: table.row(count * unit) for count in range(restart, units + 1)}
    fitting = [count for count, row in rows_of.items() if count + restart <= units or table.place(row, steps) > 0]
    if not fitting:
        return None

    def made(count: int, reverse: int = 0) -> Mixed:
        """Return a schedule with the table of more units: it has all rows that fewer need."""
        schedule = Mixed(count * unit, restart * unit, saved * unit, reverse * unit)
        schedule._tables.append(table)
        return schedule

    cost, fewest = min((table.cost(rows_of[count], steps), count) for count in fitting)
    # Who repeats a schedule that says that it was measured for more measures as well, also where more are of no use.
    found = [(cost, fewest, fewest if bounds.sizes.spent else 0)]
    # The table has the rows of those that are some restart states less than the most.
    less = [one for one in fitting if one < most and one <= _MOST_REVERSE and not (most - one) % restart]
    found += [(made(count, most).forward_steps(steps), count, most) for count in less]
    return made(*min(found, key=lambda one: (one[0], one[2], one[1]))[1:])


# Disk.


def _find_on_disk(bounds: Bounds, *, buffered: bool) -> Iterator[Schedule]:
    """The schedules with snapshots on disk, with or without buffers for them."""
    steps, sizes = bounds.steps, bounds.sizes
    others = steps - 1
    if others < 1 or bounds.disk < min(sizes.stored, sizes.stored_saved):
        return
    available = bounds.available - (buffer_of(sizes, saved=True) if buffered else 0)
    fits = others * sizes.left_behind + sizes.listed + count_tuples(others) <= available
    if fits and others <= _MOST_ON_DISK and others * sizes.stored_saved + sizes.stored <= bounds.disk:
        yield StoreAll("disk")
    available = bounds.available - (buffer_of(sizes) if buffered else 0)
    for interval in _intervals(steps):
        on_disk = others // interval
        if not 1 <= on_disk <= _MOST_ON_DISK or on_disk * sizes.stored > bounds.disk:
            continue
        left = available - on_disk * sizes.listed
        fits = count_fitting(left, sizes.restart, on_disk)
        if interval == 1:
            if left >= count_tuples(on_disk):
                yield Periodic(1, 1)
        elif fits > 0:
            yield Periodic(interval, min(fits, interval - 1))


def _intervals(steps: int) -> Iterator[int]:
    """Lengths of intervals, each about a fifth longer than the one before; the same for all budgets."""
    interval = 1
    while interval < steps:
        yield interval
        interval += max(1, interval // 5)


def _count_slots(bounds: Bounds) -> int:
    """
    The most slots on disk for which there is a table.

    Whatever the budgets, so that more of them never means more table and fewer slots in memory. Making it takes no
    more bytes than a state and a sweep.
    """
    sizes, steps = bounds.sizes, bounds.steps
    if bounds.disk < sizes.stored:
        return 0
    (_, making), (_, making_more) = count_bytes(steps, 0), count_bytes(steps, 1)
    by_bytes = (sizes.state + sizes.sweep_beyond - making) // (making_more - making)
    return max(0, min(bounds.rows // 2, by_bytes, _MOST_SLOTS, steps - 1))


def _find_hierarchical(bounds: Bounds) -> Hierarchical | None:
    """The schedule with slots in both tiers and transfers in line."""
    sizes, slots = bounds.sizes, _count_slots(bounds)
    if slots == 0 or bounds.available < _least_of_slots(bounds, slots):
        return None
    if bounds.making < count_bytes(bounds.steps, slots)[1]:
        return None
    left = bounds.available - _entries_of_slots(bounds, slots)
    memory = min(count_fitting(left, sizes.restart, slots), bounds.steps)
    return Hierarchical(max(0, memory), min(slots, bounds.disk // sizes.stored), bounds.costs)


def _entries_of_slots(bounds: Bounds, slots: int) -> int:
    """Bytes of memory for slots on disk, table included."""
    table, _ = count_bytes(bounds.steps, slots)
    return slots * bounds.sizes.listed + table


def _least_of_slots(bounds: Bounds, slots: int) -> int:
    """Bytes of memory without which there is no room for slots on disk alone."""
    _, making = count_bytes(bounds.steps, slots)
    return max(_entries_of_slots(bounds, slots) + count_tuples(slots), making)
