"""Who looks at a time loop while it runs: progress bars, the report of a profile, the collector of garbage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Self, final

from ebbtide.machine import Heap

# Whatever writing to a terminal or a notebook raises that is closed or gone: it is no reason to lose a gradient.
_GONE = (Exception,)


@final
class Bar:
    """
    A bar on the terminal, or nothing.

    Args:
        label: What is shown beside it.
        total: The number of steps; None if it is not known.
        shown: Whether there is a bar at all.

    Memory:
        A few kilobytes while it is shown.
    """

    __slots__ = ("_bar", "_label", "_shown", "_total")

    def __init__(self, label: str, total: int | None, shown: bool | None) -> None:
        self._label = label
        self._total = total
        self._shown = bool(shown)
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from tqdm import tqdm

            with suppress(*_GONE):
                self._bar = tqdm(total=self._total, desc=self._label, unit="step", mininterval=0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(*_GONE):
                self._bar.close()

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            try:
                self._bar.update()
            except _GONE:
                self._bar.disable, self._bar = True, None


@final
class Watch:
    """
    Tells of a loop while it runs.

    Args:
        ledger: The account; a profile of the block is its `report`.
        shown: Whether there are bars.
        report: Where a profile keeps what came of this loop; None without one.

    Memory:
        A few kilobytes while a bar is shown.
    """

    __slots__ = ("_bar", "_heap", "_ledger", "_report", "_shown")

    def __init__(self, ledger: Any, shown: bool | None, report: Any) -> None:
        self._ledger = ledger
        self._shown = shown
        self._report = report
        self._bar: Bar | None = None
        self._heap: Any = None  # of the sweep under way; None where nothing is compiled

    @contextmanager
    def sweep(self, phase: str, steps: int | None) -> Iterator[None]:
        """
        Watch the block, in which the loop goes "forward" or in "reverse" through *steps* steps.

        Each step has the memory that those before it gave up: a step of 1 MB states that returns new arrays, swept,
        took a third of the time for it, beside other work.
        """
        report = self._ledger.report
        measured = nullcontext() if self._report is None else self._report.running(self._ledger)
        if phase == "reverse" and report is not None and self._report is not None:
            report.sweep_begins(self._report)
        with Heap() as self._heap, measured, Bar(phase, steps, self._shown) as bar:
            self._bar = bar if self._shown else None
            yield

    def ran(self) -> None:
        """Count a step that was run; one that runs again is one more."""
        if self._heap is not None:
            self._heap.passed()
        if self._ledger.report is not None:
            self._ledger.report.count_step(self._report)

    def passed(self) -> None:
        """Count a step that the sweep has passed."""
        if self._bar is not None:
            self._bar.advance()

    def changed(self, plan: Any) -> None:
        """Tell of a plan that was changed."""
        if self._ledger.report is not None:
            self._ledger.report.plan_changed(self._report, plan)

    def taken_up(self, earlier: int, again: int) -> None:
        """Tell that the loop goes on where other processes ran *earlier* steps, after it ran some *again*."""
        if self._ledger.report is not None:
            self._ledger.report.taken_up(self._report, earlier, again)
