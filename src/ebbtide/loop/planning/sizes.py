"""What the parts of a time loop take, in bytes: measured on its first step, and the interpreter's own share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import final

from ebbtide.loop.values.state import NUMBER_BYTES
from ebbtide.schedules import Snapshot
from ebbtide.storage.extents import round_up

# What the interpreter takes beside arrays, as tracemalloc sees it (measured on loops of one number): 20 KiB for a
# loop, 20 KiB more in the first call of a function (with 42 KiB a call took 46.8 KiB at a least of 46.5), and
# 620 to 700 bytes for a snapshot's entries; on disk 720 to 910 (`LISTED` is what that is more), and 330 to 750 for
# those of what a step saved, beside the step's own.
RESERVE = 42 * 1024 + 512
# The objects of tangents, or of members of a batch, beside values: up to 5.8 KB measured of `hvp` of 8 numbers.
RESERVE_PER_TRACE = 6 * 1024
RESERVE_PER_SNAPSHOT = 704
LISTED, LEFT_BEHIND = 224, 800
# Of a profile, whose lines and source texts are in no budget: measured 22 KiB to 75 KiB on Runge-Kutta steps.
RESERVE_PER_PROFILE = 96 * 1024
# Of a step whose saved values are held: its tape, lists and entries, beside the nodes that `saved` counts. Measured
# with these nodes: 0.9 KiB to 2.4 KiB for steps of one to six operations.
RESERVE_PER_STEP = 2560
# Of each leaf of a state but the first. Measured on states of 100 to 2000 leaves: in a loop its path, checksums,
# lists and cotangents take 114 to 525 bytes beside what `fixed` has, in a taped step 26 to 33; an array 126 to 130 in a
# snapshot beside its data, and 192 to 203 where that is on disk; a number stays in memory, see `NUMBER_BYTES`.
LEAF_BYTES, TAPED_LEAF_BYTES, ARRAY_BYTES, ENTRY_BYTES = 560, 40, 136, 208
# Of each element but the first of inputs that are a list of traced arrays: its place among the parents of a loop, with
# lists and numbers (210 to 290 bytes measured of 40 to 1000 elements), and its cotangent beside its data.
LINK_BYTES, INPUT_BYTES = 296, 224
# While an array goes to disk and back, beside its data: measured 540 to 1030, for its part of the entry's header.
TRANSFER_BYTES = 1040
# CPython 3.11 puts dead tuples of exactly 20 elements on a list of up to 2000 from which it never takes: a position
# with 20 snapshots leaves one at each change. Measured: 150 KiB after 2000 steps with 21 snapshots.
TUPLE, TUPLE_BYTES, MOST_TUPLES = 20, 216, 2000 if sys.version_info < (3, 12) else 0
# A writer thread fills one entry while the step makes the next.
BUFFERED_ENTRIES = 2


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """
    What was measured on the first steps, in bytes.

    Args:
        state: One restart state.
        saved: What one step saves for its reverse sweep, and no other step does.
        sweep: Peak of the sweep of one step: saved values, temporaries, and cotangents, that of the new state included.
        gradients: Running sums for static values and inputs.
        stored: One restart state on disk, with the header of its file.
        nodes: What stays in memory of a step's saved values that go to disk; None if that is not known, and all of
            them may stay.
        swapped: What is on disk of them, with the header; None if that is not known, and all of them may be.
        shared: What all steps save, such as static values; it is held once, and part of *sweep*.
        leaves: The leaves of a state.
        numbers: Those of them that are numbers.
        passed_on: Part of *saved* that is held once where the next step is held, too: the state between them, if steps
            save the one before them and the one after.
        alone: Part of *sweep* that the function alone takes as well, for the values of a step, so that it is no part of
            what is beyond it; known of steps in whose sweep more than three cotangents wait.
        run: What a step has to have beside a cotangent while it runs on a tape: what it saves in the ledger, also where
            nothing comes to depend on it, or all that it takes beyond what it takes on plain values.
        seen: What the ledger has of a step at most while it runs on a tape.
        unseen: What a step takes for a moment, at most, while it runs on a tape, beyond the function alone and in no
            ledger.
        spent: What the function alone takes in a step, its state included, which is free in the sweep of a step; known
            of a loop that is in no step or other function that is run again, if it was measured, else 0.
        again: Where *spent* is known, what a step takes beyond it while it runs on a tape.
        asked: Where *spent* is known, the most bytes for which there has to be room in the ledger before an operation
            of a step on a tape.
        covered: Bytes in the ledger of a step that runs on a tape for which there need be no room, whatever it saves:
            the function alone takes so many beyond what is in no ledger. A large number where that is not known.
        lent: Part of *saved*, *run* and *seen* that loops in a step hold where there is room, and can do without.
        lent_swept: By how much *sweep* is less without that.
        theirs: The most bytes of snapshots that a storage of the user has in memory: all restart states go there, and
            what steps save where its tier is the disk. None without one.
        tried: What there has to be room for, whatever the schedule, while the rules of the first step are measured.
        traces: The traces around in which arrays come with values: tangents, or members of a batch.
    """

    state: int
    saved: int
    sweep: int
    gradients: int
    stored: int
    nodes: int | None = None
    swapped: int | None = None
    shared: int = 0
    leaves: int = 1
    numbers: int = 0
    passed_on: int = 0
    alone: int = 0
    run: int = 0
    seen: int = 0
    unseen: int = 0
    spent: int = 0
    again: int = 0
    asked: int = 0
    covered: int = sys.maxsize
    lent: int = 0
    lent_swept: int = 0
    theirs: int | None = None
    tried: int = 0
    traces: int = 0

    def widened(self, saved: int, sweep: int, seen: int) -> Sizes:
        """Return the sizes of a loop of which one step took more; what steps take beside that is as it was."""
        seen = max(self.seen, seen)
        grown, more = seen - self.seen, max(0, saved - self.saved)
        swapped = None if self.swapped is None else self.swapped + more
        # As `excused_of` has it; what steps take at once may be less.
        run, again = (max(taken + grown, seen - self.covered) for taken in (self.run, self.again))
        sizes = replace(self, saved=self.saved + more, swapped=swapped, sweep=max(self.sweep, sweep))
        return replace(sizes, seen=seen, run=run, again=again, asked=self.asked + grown)

    def without_lent(self) -> Sizes:
        """Return the sizes of a loop in whose steps loops hold the least."""
        saved, run, seen = (taken - self.lent for taken in (self.saved, self.run, self.seen))
        passed_on = 0 if self.lent else self.passed_on
        sizes = replace(self, saved=saved, run=run, seen=seen, sweep=self.sweep - self.lent_swept, passed_on=passed_on)
        return replace(sizes, lent=0, lent_swept=0)

    @property
    def measured_alone(self) -> tuple[int, int, int, int]:
        """What one more run of a step tells, on plain values: *spent*, *again*, *asked* and *covered*."""
        return self.spent, self.again, self.asked, self.covered

    def with_alone(self, spent: int, again: int, asked: int, covered: int) -> Sizes:
        """Return the sizes of a loop for which `measured_alone` is known."""
        return replace(self, spent=spent, again=again, asked=asked, covered=covered)

    @property
    def _others(self) -> int:
        """The leaves but one, with which the interpreter's share of a loop was measured."""
        return max(0, self.leaves - 1)

    @property
    def interpreter(self) -> int:
        """Bytes that the interpreter takes for a loop, whatever it holds."""
        return RESERVE + self._others * LEAF_BYTES + self.traces * RESERVE_PER_TRACE

    @property
    def sweep_beyond(self) -> int:
        """Peak of the sweep of one step beyond what the function alone takes."""
        return self.sweep - self.alone

    @property
    def data(self) -> int:
        """Bytes of a restart state that a ledger counts."""
        return max(0, self.state - self.numbers * NUMBER_BYTES)

    @property
    def fixed(self) -> int:
        """
        Bytes beside all snapshots: the sweep of a step, and the running sums.

        Or the step that runs on a tape before it, beside a cotangent. Or what is there before the first sweep: what
        that step saved, and of a function that saves the final state, as most do, this one and its cotangent.
        """
        running = self.run + self.state + RESERVE_PER_STEP if self.run > 0 else 0
        reverse = max(self.sweep_beyond, running) + self.gradients
        return max(reverse, self.saved + self.shared + 2 * self.state) + self.interpreter

    @property
    def more_in_reverse(self) -> int:
        """
        Bytes that are free for snapshots in the reverse sweep, and not in the forward sweep.

        At the end of that what code after the loop saves and makes is there with all snapshots, and it may take as much
        as the function took in steps before.
        """
        if not self.spent:
            return 0
        reverse = max(self.sweep - self.spent, self.again + self.state + RESERVE_PER_STEP) + self.gradients
        # Of saved values the last that are stored have the state after them to themselves.
        return max(0, self.fixed - self.interpreter - reverse - self.passed_on)

    @property
    def excused(self) -> int:
        """
        Bytes in the ledger of a step that runs on a tape beside a cotangent, for which there is no room in `fixed`.

        It is the state that the step starts from: saved here, and held by the function alone. Or what it makes, where
        it is known what the function takes for that.
        """
        return max(0, min(max(self.state, self.spent), -self._left_to_taped))

    def excused_of(self, *, grown: bool, swept: bool) -> int:
        """
        Return the bytes in the ledger of a step that runs on a tape for which there need be no room.

        Args:
            grown: Whether it saves more than planned, so that nobody has left room for what is in no ledger.
            swept: Whether that is in the reverse sweep.
        """
        excused = self.excused if swept else 0
        return min(excused - self.unseen, self.covered) if grown else excused

    @property
    def idle(self) -> int:
        """Bytes of `fixed` that are of no use as long as a step runs on a tape, in the reverse sweep."""
        return max(0, self._left_to_taped - self.unseen)

    @property
    def _left_to_taped(self) -> int:
        """Bytes of `fixed` less those in the ledger of a step that runs on a tape, beside a cotangent and all sums."""
        left = self.fixed - self.interpreter - self.more_in_reverse
        return left - max(self.seen, self.asked) - self.state - self.gradients

    @property
    def transfer(self) -> int:
        """Bytes that it takes to bring a state to disk and back beside the first step, with all that is held of it."""
        return self.data + self.interpreter + min(self._others, self.leaves - self.numbers) * TRANSFER_BYTES

    @property
    def restart(self) -> int:
        """Bytes of memory of a restart state whose tier is the memory, with its entries."""
        return self.entry_on_disk if self.theirs == 0 else self.entry + self.data

    @property
    def listed(self) -> int:
        """The same of one whose tier is the disk."""
        return self.entry_on_disk + (self.data if self.theirs else 0)

    @property
    def entry(self) -> int:
        """Bytes of the entries of a restart state in memory, and its numbers, which no ledger counts."""
        arrays = min(self._others, self.leaves - self.numbers)
        return RESERVE_PER_SNAPSHOT + arrays * ARRAY_BYTES + self.numbers * NUMBER_BYTES

    @property
    def entry_on_disk(self) -> int:
        """The same of one on disk."""
        arrays = min(self._others, self.leaves - self.numbers)
        return RESERVE_PER_SNAPSHOT + LISTED + arrays * ENTRY_BYTES + self.numbers * NUMBER_BYTES

    @property
    def taped(self) -> int:
        """Bytes of a step whose saved values are held in memory, with its entries."""
        return self.saved + RESERVE_PER_STEP + self._others * TAPED_LEAF_BYTES

    @property
    def taped_beside(self) -> int:
        """The same of a step beside another one whose saved values are held: what that passed on is there already."""
        return self.taped - self.passed_on

    @property
    def left_behind(self) -> int:
        """Bytes of memory of a step whose saved values have the disk for their tier."""
        return self.taped + LEFT_BEHIND - (0 if self.nodes is None or self.theirs else self.saved - self.nodes)

    def of(self, kept: Snapshot) -> int:
        """Return the bytes of memory of a snapshot beside others."""
        if kept.tier == "memory":
            return self.restart if kept.kind == "restart" else self.taped_beside
        return self.listed if kept.kind == "restart" else self.left_behind

    @property
    def stored_saved(self) -> int:
        """Bytes on disk of what one step saves, with the header, in whole pages."""
        known = self.swapped
        return round_up(self.saved + max(0, self.stored - self.state) if known is None else known)


def count_tuples(snapshots: int, forward: int = MOST_TUPLES) -> int:
    """
    Return the bytes of dead tuples that the interpreter keeps.

    Args:
        snapshots: The largest number of snapshots at the same time.
        forward: The number of forward steps, of which each may leave one.
    """
    return min(MOST_TUPLES, forward) * TUPLE_BYTES if snapshots >= TUPLE else 0


def count_fitting(available: int, each: int, others: int = 0, units: int = 1) -> int:
    """
    Return how many snapshots, or units of them, fit; below 0 if there is no room for the others.

    Args:
        available: Bytes of memory for them.
        each: Bytes of each.
        others: Other snapshots at the same time, whose bytes are not in *available*.
        units: How many a snapshot has at least.
    """
    count, few = available // each, (TUPLE - others) * units
    return count if count < few else max(few - 1, (available - count_tuples(TUPLE)) // each)
