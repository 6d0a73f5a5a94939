"""What a profile knows of one time loop: its plan, and beside each prediction what was measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from ebbtide.budget import format_bytes
from ebbtide.ledger import Ledger


@final
class LoopReport:
    """
    The plan of a time loop, and what came of it.

    Args:
        plan: The plan.
        held: Bytes that the library held when the loop began.
        seconds: What the loop has taken already: its first steps run before there is a plan.
        most: What the library may hold in all; None for no bound.

    Attributes:
        plan: The plan; another one if the loop had to do with less before its reverse sweep.
        schedule: The schedule that was planned first: given to `timeloop(schedule=)`, within the same budget, it
            repeats the run with the same bits and the same steps, less those that were run to measure their time.
        steps_forward: Steps that were run, recomputed ones included; of `plan.predicted_steps_forward`. Of a resumed
            run those of all its processes.
        held_bytes: The most bytes that the library held while the loop ran, beyond what it held before, by its ledger;
            what the function alone holds as well is in it, and not in `plan.predicted_peak_bytes`.
        peak_bytes: The peak in the block of the profile when the loop had run, by `tracemalloc`; of
            `plan.predicted_whole_bytes`.
        waits: Whether its reverse sweep has not begun.
        seconds: The time of both sweeps; of `plan.predicted_time`, in seconds where the costs were measured.

    Memory:
        A plan and five numbers.
    """

    __slots__ = (
        "_before", "_is_running", "_most", "held_bytes", "peak_bytes", "plan", "schedule", "seconds", "steps_forward",
        "waits",
    )  # fmt: skip

    def __init__(self, plan: Any, held: int = 0, seconds: float = 0.0, most: int | None = None) -> None:
        self._before, self._most = held, most
        self.plan = plan
        self.schedule = plan.schedule
        self.steps_forward = plan.measuring_steps
        self.held_bytes = self.peak_bytes = 0
        self.seconds = seconds
        self.waits = True
        self._is_running = False

    @property
    def predicted_peak(self) -> int:
        """What the plan predicts that the library holds at most while the loop runs, others' values included."""
        # Loops before it give up some of theirs where that is more than there may be.
        peak = self.plan.predicted_peak_bytes + self._before
        return peak if self._most is None else min(peak, self._most)

    @property
    def predicted_now(self) -> int:
        """The steps that it is known to run: those of its forward sweep alone, as long as there is no other."""
        plan = self.plan
        return plan.steps + plan.measuring_steps if self.waits else plan.predicted_steps_forward

    @contextmanager
    def running(self, ledger: Ledger) -> Iterator[None]:
        """Measure the block, in which the loop runs."""
        start, before, ledger.peak = time.perf_counter(), ledger.peak, ledger.live
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            self.seconds += time.perf_counter() - start
            self.held_bytes = max(self.held_bytes, ledger.peak - self._before)
            ledger.peak = max(before, ledger.peak)
            self.peak_bytes = self.peak_bytes if ledger.report is None else ledger.report.allocated_peak

    def take(self, plan: Any, ledger: Ledger) -> None:
        """Take over a plan that was changed, whose peak is no less than what the loop has held by now."""
        # The peak of the ledger is that of the loop as long as it runs, and else has what others hold by then.
        now = ledger.peak - self._before if self._is_running else 0
        held = max(self.held_bytes, now) + plan.sizes.interpreter
        self.plan = replace(plan, predicted_peak_bytes=max(plan.predicted_peak_bytes, held))

    @property
    def line(self) -> str:
        """The schedule, and steps and bytes of those predicted, in one line."""
        plan = self.plan
        steps = f"{self.steps_forward:,} of {plan.predicted_steps_forward:,} steps"
        return f"{plan.schedule}: {steps}, {' of '.join(map(format_bytes, self._bytes))}"

    @property
    def _bytes(self) -> tuple[int, int]:
        """The peak and the predicted one: of the whole call, or of what the library holds where that is not known."""
        whole = self.plan.predicted_whole_bytes
        return (self.held_bytes, self.plan.predicted_peak_bytes) if whole is None else (self.peak_bytes, whole)

    def __str__(self) -> str:
        plan = self.plan
        predicted = f"{plan.predicted_time:.4g}" if plan.has_time else "unknown"
        measured, whole = map(format_bytes, self._bytes)
        return (
            f"{plan.schedule}\n"
            f"{'':<10}{'predicted':>16}{'measured':>16}\n"
            f"{'steps':<10}{plan.predicted_steps_forward:>16,}{self.steps_forward:>16,}\n"
            f"{'bytes':<10}{whole:>16}{measured:>16}\n"
            f"{'time':<10}{predicted:>16}{self.seconds:>16.4g}"
        )
