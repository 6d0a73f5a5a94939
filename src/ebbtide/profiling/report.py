"""The profile: peak bytes, steps, saved values by line, and the timeline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, final

from ebbtide.arrays.context import current, entered
from ebbtide.arrays.functions import check_call, check_function
from ebbtide.bound import Bound
from ebbtide.budget import format_bytes
from ebbtide.entry import SavedEntry
from ebbtide.ledger import KINDS, Ledger
from ebbtide.profiling.lines import lines_of
from ebbtide.profiling.loops import LoopReport
from ebbtide.profiling.peak import Peak, measured_peak
from ebbtide.profiling.plot import draw_timeline
from ebbtide.timeline import Timeline

# A printed profile fits on a screen.
_MOST_LINES, _MOST_LOOPS = 20, 8


@final
class Profile:
    """
    What was held and done in a `with ebbtide.profile()` block.

    Attributes:
        peak_bytes: Peak of memory in the block less what was allocated at its start, by `tracemalloc`.
        held_bytes: Peak of what the library itself held, by its ledger, less what the sweeps of steps leave to the
            function alone, which holds as much; the most of all is `timeline.most_held`.
        predicted_whole_bytes: What the plans of time loops predicted of `peak_bytes`, the function's own memory
            included but for what it takes after a loop; None without a plan.
        predicted_peak_bytes: The most that a plan of a time loop predicted beyond the function alone, with what the
            library held when that loop began; without a plan held_bytes.
        steps_forward: Steps of time loops that were run, recomputed ones included.
        predicted_steps_forward: What the plans predicted: of each loop its forward sweep when it begins, and what its
            reverse sweep runs again when that does. How often loops inside of steps and of checkpointed functions run,
            and how often a retained pullback is pulled, no plan knows beforehand.
        bytes_written: Bytes written to disk.
        bytes_read: Bytes read from there.
        disk_writes: How many snapshots and saved values were written there.
        disk_reads: How many were read from there; what was still in a buffer is not.
        disk_seconds: How long the sweeps waited for it, in seconds: what a thread did behind them is not in it.
        gradient_error: Estimate of the relative error that lossy compression of snapshots (asked for by name) makes in
            the gradients, within a factor of 10 for gradients of many numbers; 0 without, NaN where it is not known.
        saved: What each line of the program saved, the largest first.
        loops: For each time loop that was recorded, in the order of their beginnings, its plan and what came of it. A
            loop inside of a step of another, or of a checkpointed function, is a part of that, planned anew each time
            it runs, and not listed; its steps count in `steps_forward`.

    Memory:
        One entry for each line that saves and each loop, and a timeline of at most 4096 points.
    """

    __slots__ = (
        "_ledger", "_limit", "_on_plan", "_peak", "_within_regions", "bytes_read", "bytes_written", "disk_reads",
        "disk_seconds", "disk_writes", "gradient_error", "held_bytes", "loops", "predicted_steps_forward",
        "steps_forward", "within",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, peak: Peak, on_plan: Callable[[Any], None] | None = None) -> None:
        self._ledger = ledger
        self._peak = peak
        self._on_plan = on_plan
        self._limit: int | None = None
        self._within_regions: int | None = None  # predicted by loops that are not listed
        self.held_bytes = 0
        self.steps_forward = 0
        self.predicted_steps_forward = 0
        self.bytes_written = self.bytes_read = self.disk_writes = self.disk_reads = 0
        self.disk_seconds = 0.0
        self.gradient_error = 0.0
        self.within = 0  # what loops in the step in work took beyond their plans
        self.loops: list[LoopReport] = []

    @property
    def peak_bytes(self) -> int:
        """Peak of memory in the block less what was allocated at its start; 0 in the block."""
        return self._peak.nbytes

    @property
    def allocated(self) -> int:
        """Bytes that are allocated now and were not at the start of the block."""
        return self._peak.held

    @property
    def allocated_peak(self) -> int:
        """The most of them so far."""
        return self._peak.so_far

    @property
    def predicted_whole_bytes(self) -> int | None:
        """What the plans of the loops predicted of the peak in the block; None without one."""
        wholes = [loop.plan.predicted_whole_bytes for loop in self.loops]
        return max((whole for whole in wholes if whole is not None), default=None)

    @property
    def predicted_peak_bytes(self) -> int:
        """What the plans predicted to be held beyond the function alone."""
        if self.loops:
            return max(loop.predicted_peak for loop in self.loops)
        return self.held_bytes if self._within_regions is None else self._within_regions

    @property
    def saved(self) -> list[SavedEntry]:
        """What each line saved: bytes held at most at a time, dtype, shape, operation, place and reason."""
        return sorted((self._ledger.entries or {}).values(), key=lambda entry: -entry.bytes)

    def now(self) -> tuple[list[SavedEntry], dict[str, int], int]:
        """Return what each line now holds, the largest first, the bytes held of each kind, and what is allocated."""
        nbytes = self._peak.held
        held = [entry.now() for entry in (self._ledger.entries or {}).values()]
        found = sorted([entry for entry in held if entry is not None], key=lambda entry: -entry.bytes)
        return found, dict(self._ledger.held), nbytes

    @property
    def held_by_kind(self) -> dict[str, int]:
        """The most bytes that were held of each kind by the ledger, not all at the same time."""
        return dict(zip(KINDS, self.timeline.most, strict=True))

    @property
    def timeline(self) -> Timeline:
        """Bytes held by kind over time."""
        assert self._ledger.timeline is not None
        return self._ledger.timeline

    def limited(self, limit: int | None) -> None:
        """Take over the bound of a budget in the block; the picture shows the last one."""
        if limit is not None:
            self._limit = limit

    def plan_of_loop(self, plan: Any, held: int, seconds: float, *, listed: bool) -> LoopReport:
        """
        Take over the plan of a time loop and return where the loop tells what comes of it.

        Args:
            plan: The plan.
            held: Bytes that are held when the loop begins.
            seconds: What its first step took.
            listed: Whether it is one of `loops`.
        """
        limit = self._ledger.limit
        most = None if limit is None else limit + self._ledger.left_out
        loop = LoopReport(plan, held, seconds, most)
        if listed:
            self.loops.append(loop)
        else:
            self._within_regions = max(self._within_regions or 0, loop.predicted_peak)
        self.limited(limit)
        self.steps_forward += plan.measuring_steps
        self.predicted_steps_forward += loop.predicted_now
        if self._on_plan is not None:
            self._on_plan(plan)
        return loop

    def count_step(self, loop: LoopReport | None) -> None:
        """Count a step that was run; one of a loop without a plan, which runs each of its steps once, is predicted."""
        self.steps_forward += 1
        if loop is None:
            self.predicted_steps_forward += 1
        else:
            loop.steps_forward += 1

    def plan_changed(self, loop: LoopReport, plan: Any) -> None:
        """Take over a plan that was changed."""
        before = loop.predicted_now
        loop.take(plan, self._ledger)
        self.predicted_steps_forward += loop.predicted_now - before
        if self._on_plan is not None:
            self._on_plan(plan)

    def sweep_begins(self, loop: LoopReport) -> None:
        """Count what a loop is going to run again: its reverse sweep begins."""
        before, loop.waits = loop.predicted_now, False
        self.predicted_steps_forward += loop.predicted_now - before

    def taken_up(self, loop: LoopReport, earlier: int, again: int) -> None:
        """
        Take over that a loop goes on where another process was killed.

        Args:
            loop: The loop.
            earlier: Steps that were run by then; they count in the loop, and not in this block.
            again: Steps that this process ran to go on.
        """
        loop.steps_forward += earlier + again
        self.steps_forward += again
        self.predicted_steps_forward -= earlier

    def wrote(self, nbytes: int, since: float) -> None:
        """Count what was brought to disk, begun at a time of `time.perf_counter`."""
        self.bytes_written += nbytes
        self.disk_writes += 1
        self.disk_seconds += time.perf_counter() - since

    def read(self, nbytes: int, since: float) -> None:
        """Count what was brought back, unless it was in a buffer, begun at a time of `time.perf_counter`."""
        self.bytes_read += nbytes
        self.disk_reads += nbytes > 0
        self.disk_seconds += time.perf_counter() - since

    def rounded(self, error: float) -> None:
        """Take over the estimate of a time loop of how much rounded snapshots changed its gradient."""
        self.gradient_error = math.hypot(self.gradient_error, error)

    def plot(self, path: str | Path) -> None:
        """
        Draw the timeline: bytes held by kind, forward and reverse marked, with the budget as a line.

        All that the library holds is drawn, and a budget bounds what is beyond the function alone: where the function
        holds as much as a step that is swept, both may come to more than the line, which says so then.

        Args:
            path: Where the picture goes; its ending says the format.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: The path is that of a directory, or in none.
        """
        draw_timeline(self.timeline, KINDS, self._limit, path)

    def __str__(self) -> str:
        whole = self.predicted_whole_bytes
        told = "" if whole is None else f", {format_bytes(whole)} predicted"
        lines = [
            f"peak          {format_bytes(self.peak_bytes):>12}  measured in the block{told}",
            f"held          {format_bytes(self.timeline.most_held):>12}  at most by the library, by its ledger",
            *[f"              {format_bytes(most):>12}  of {kind}" for kind, most in self.held_by_kind.items() if most],
            f"predicted     {format_bytes(self.predicted_peak_bytes):>12}  beyond the function alone",
            f"steps         {self.steps_forward:>12,}  run forward, {self.predicted_steps_forward:,} predicted",
            f"written       {format_bytes(self.bytes_written):>12}  to disk, in {self.disk_writes:,} parts",
            f"read          {format_bytes(self.bytes_read):>12}  from disk, in {self.disk_reads:,} parts",
            f"waited        {self.disk_seconds:>10.3g} s  of the sweeps, for the disk",
            *([f"rounded       {self.gradient_error:>12.1e}  of the gradient, estimated"][: bool(self.gradient_error)]),
            *[f"loop          {loop.line}" for loop in self.loops[:_MOST_LOOPS]],
            "",
            *lines_of(self.saved, _MOST_LINES),
        ]
        return "\n".join(lines)


def profile(on_plan: Callable[[Any], None] | None = None) -> AbstractContextManager[Profile]:
    """
    Measure what derivatives hold and do in the block.

    Within a budget, as in a function that is differentiated with one, they have what is left of it when the block
    begins, and what they hold counts for it, also after the block.

    Args:
        on_plan: Called with the plan of each time loop when it is made, before the loop runs, and again when it
            changes, as where a loop has to do with less, is resumed, or is pulled once more.

    Returns:
        A context whose value is the profile, complete after the block. Each block in which it is used has its own.

    Raises:
        TypeError: *on_plan* is no function of one plan.

    Memory:
        See `Profile`. Python's `tracemalloc` runs in the block, which makes small operations slower. Before Python 3.13
        it never frees its list of the lines that allocated, about 0.1 MB for each block: start it once for many.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> with profile() as p:
        ...     _ = grad(lambda x: np.sum(np.sin(x)))(np.ones(1000))
        >>> [(entry.operation, entry.reason) for entry in p.saved]
        []
        >>> p.peak_bytes > 8000
        True
    """
    if on_plan is not None:
        check_function(on_plan, "on_plan=", "on_plan(plan)")
        check_call(on_plan, "The function on_plan=", "on_plan(plan)", "It takes the plan of a time loop.", 1)
    return _Blocks(on_plan)


@final
class _Blocks(AbstractContextManager[Profile], ContextDecorator):
    """What measures the blocks in which it is used, one after another or in each other."""

    def __init__(self, on_plan: Callable[[Any], None] | None) -> None:
        self._on_plan = on_plan
        self._open: list[AbstractContextManager[Profile]] = []

    def __enter__(self) -> Profile:
        block = _profiled(self._on_plan)
        report = block.__enter__()
        self._open.append(block)
        return report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._open.pop().__exit__(kind, error, trace)


@contextmanager
def _profiled(on_plan: Callable[[Any], None] | None) -> Iterator[Profile]:
    """Measure what derivatives hold and do in the block; see `profile`."""
    around = current().ledger
    ledger = Ledger(watched=True, unfinished=around.unfinished, around=around if around.watched else None)
    ledger.timeline = Timeline(len(KINDS))
    ledger.entries = {}
    left = None if around.limit is None else max(0, around.limit - around.live)
    bound = None if left is None else Bound(left, around.quota, around.binding(left))
    with measured_peak() as peak:
        ledger.report = report = Profile(ledger, peak, on_plan)
        try:
            with entered(ledger=ledger), ledger.within(bound):
                yield report
        finally:
            report.held_bytes = ledger.peak
            ledger.report = None
