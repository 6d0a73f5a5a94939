"""The planner of a time loop: from bytes and measured sizes to a schedule, with a prediction."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import final

from ebbtide.budget import format_bytes
from ebbtide.errors import BudgetError
from ebbtide.schedules import Revolve, Schedule, StoreAll

# What the interpreter takes beside arrays, as tracemalloc sees it (measured on loops of one number): 10 KiB for a
# loop, 18 KiB more in the first call of a function, and 620 to 700 bytes for a snapshot's entries.
RESERVE = 32 * 1024
RESERVE_PER_SNAPSHOT = 704
# Of a step whose saved values are held: its tape, lists and entries, beside the nodes that `saved` counts. Measured:
# 0.6 KiB to 1.5 KiB for steps of one to six operations.
RESERVE_PER_STEP = 2048
# CPython 3.11 puts dead tuples of exactly 20 elements on a list of up to 2000 from which it never takes: a position
# with 20 snapshots leaves one at each change. Measured: 150 KiB after 2000 steps with 21 snapshots.
TUPLE, TUPLE_BYTES, MOST_TUPLES = 20, 216, 2000 if sys.version_info < (3, 12) else 0


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """
    What was measured on the first step, in bytes.

    Args:
        state: One restart state.
        saved: What one step saves for its reverse sweep.
        sweep: Peak of the sweep of one step: saved values, cotangents and temporaries.
        gradients: Running sums for static values and inputs.
        stored: One restart state on disk, with the header of its file.
    """

    state: int
    saved: int
    sweep: int
    gradients: int
    stored: int


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """
    What a loop is going to hold and to do.

    Args:
        schedule: The schedule.
        steps: The number of steps.
        sizes: The measured sizes.
        snapshots: The largest number of snapshots at the same time.
        predicted_steps_forward: Forward steps of the whole gradient, taped ones included.
        predicted_peak_bytes: The peak of memory beyond that of the function alone.
        on_disk: Whether the snapshots lie on disk.
    """

    schedule: Schedule
    steps: int
    sizes: Sizes
    snapshots: int
    predicted_steps_forward: int
    predicted_peak_bytes: int
    on_disk: bool = False

    @property
    def state_bytes(self) -> int:
        """Bytes of one restart state."""
        return self.sizes.state

    @property
    def saved_bytes(self) -> int:
        """Bytes that one step saves."""
        return self.sizes.saved

    def __str__(self) -> str:
        place = "disk" if self.on_disk else "memory"
        runs = self.predicted_steps_forward / max(1, self.steps)
        return "\n".join(
            (
                f"schedule        {self.schedule}",
                f"snapshots       {self.snapshots} of {format_bytes(self.sizes.state)} in {place}",
                f"one step saves  {format_bytes(self.sizes.saved)} ({format_bytes(self.sizes.sweep)} with cotangents)",
                f"forward steps   {self.predicted_steps_forward:,} for {self.steps:,} ({runs:.2f} runs)",
                f"peak            {format_bytes(self.predicted_peak_bytes)} beyond the function alone",
            )
        )


def make_plan(
    steps: int, sizes: Sizes, available: int | None, disk: int, schedule: Schedule | None, held: int
) -> Plan:
    """
    Return the plan of a loop.

    Args:
        steps: The number of steps.
        sizes: The measured sizes.
        available: Bytes of memory that the loop may take; None for no bound.
        disk: Bytes of disk that it may take.
        schedule: What the user asked for; None to choose.
        held: Bytes that calls around the loop hold now, which add to the least budget.

    Returns:
        The plan whose schedule runs the fewest forward steps within the bytes.

    Raises:
        BudgetError: Not even one snapshot fits.
    """
    if schedule is not None:
        return _described(schedule, steps, sizes, on_disk=False)
    everything = _described(StoreAll(), steps, sizes, on_disk=False)
    if available is None or everything.predicted_peak_bytes <= available:
        return everything
    each = sizes.state + RESERVE_PER_SNAPSHOT
    in_memory = _most_snapshots(available - _fixed(sizes), each)
    on_disk = min(disk // max(1, sizes.stored), _most_snapshots(available - _fixed(sizes), RESERVE_PER_SNAPSHOT))
    snapshots = min(max(in_memory, on_disk), max(1, steps))
    if snapshots < 1:
        least = _fixed(sizes) + each + held
        raise BudgetError(
            f"A time loop of {steps} steps does not fit into {max(0, available)} bytes "
            f"({format_bytes(max(0, available))}): one step saves {sizes.saved} bytes and takes {sizes.sweep} with its "
            f"cotangents, and one state is {sizes.state} bytes. Give at least {least} bytes "
            f"({format_bytes(least)}) of memory.",
            least,
        )
    return _described(Revolve(snapshots), steps, sizes, on_disk=on_disk > in_memory)


def _most_snapshots(available: int, each: int) -> int:
    """Return how many snapshots fit that take *each* bytes of memory."""
    count = available // each
    return count if count < TUPLE else max(TUPLE - 1, (available - MOST_TUPLES * TUPLE_BYTES) // each)


def _fixed(sizes: Sizes) -> int:
    """Bytes beside the snapshots: the cotangent of the state, the sweep of a step, and the running sums."""
    return sizes.state + sizes.sweep + sizes.gradients + RESERVE


def _described(schedule: Schedule, steps: int, sizes: Sizes, *, on_disk: bool) -> Plan:
    snapshots = schedule.peak_snapshots(steps)
    forward = schedule.forward_steps(steps)
    if isinstance(schedule, StoreAll):
        peak = _fixed(sizes) + steps * sizes.saved + (steps - 1) * RESERVE_PER_STEP
    else:
        each = RESERVE_PER_SNAPSHOT + (0 if on_disk else sizes.state)
        tuples = min(MOST_TUPLES, forward) if snapshots >= TUPLE else 0
        peak = _fixed(sizes) + snapshots * each + tuples * TUPLE_BYTES
    return Plan(schedule, steps, sizes, snapshots, forward, peak, on_disk)
