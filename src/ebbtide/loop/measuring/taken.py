"""What the steps of a loop took that have run in the block of a profile, which may be more than the first one did."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, final

from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import is_paged
from ebbtide.profiling.peak import measured_peak
from ebbtide.schedules import Forward

# A step that takes as much more than any before is none of those that are known.
_MARGIN = 1.02


@final
class Taken:
    """
    Measures steps by `tracemalloc`: a step that only some of the states lead to has temporaries that no other has.

    Of slopes on disk one loop took 1.23 times what was predicted by its first step, and one with a wide step 1.20.

    Attributes:
        plain: The most bytes that plain steps took at a time, by number.
        taped: The same of steps on a tape.
        more: Bytes that these took at most, beside what they saved, beyond what the first one took beside that.
    """

    __slots__ = ("_is_most", "_latest", "_least", "_most", "more", "plain", "taped")

    def __init__(self) -> None:
        self.plain: dict[int, int] = {}
        self.taped: dict[int, int] = {}
        self.more = self._latest = self._most = 0
        # What plain steps took at least: all of them may take more than on a tape.
        self._least, self._is_most = sys.maxsize, False

    def measuring(self, run: Callable[..., Any], first: int, *, tape: bool) -> Callable[..., Any]:
        """
        Return what runs a step, given its number first, and takes note of what it takes.

        Args:
            run: Runs it.
            first: The bytes that the first one took on a tape.
            tape: Whether it runs on one.
        """
        return partial(self._run_taped, run, first) if tape else partial(self._run_plain, run)

    def _run_plain(self, run: Callable[..., Any], index: int, *rest: Any) -> Any:
        found, nbytes = _measured(run, index, *rest)
        self.plain[index], self._least = nbytes, min(self._least, nbytes)
        return found

    def _run_taped(self, run: Callable[..., Any], first: int, index: int, *rest: Any) -> Any:
        found, nbytes = _measured(run, index, *rest)
        known = max(first, self._most, self.plain.get(index, 0))
        self._latest, self._most, self._is_most = nbytes, max(self._most, nbytes), nbytes > _MARGIN * known
        self.taped[index] = nbytes
        return found

    def on_tape(self, step: int, planned: int) -> int:
        """Return what a step takes on a tape that is *planned* to take so much."""
        if step in self.taped:
            return max(planned, self.taped[step])
        plain = self.plain.get(step)  # what it takes for a moment is in that, too
        more = self.more if plain is None else min(self.more, plain)
        return max(planned + more, max(plain, self._most) if plain is not None and self.is_wide(step) else 0)

    def off_tape(self, action: Forward) -> int:
        """Return what the plain steps of an action take, of those that have run."""
        return max([self.plain.get(step, 0) for step in range(action.start, action.stop)])

    def is_wide(self, step: int) -> bool:
        """Return whether a step has taken more on plain values than others."""
        return self.plain.get(step, 0) > _MARGIN * self._least

    def is_narrow(self, step: int) -> bool:
        """Return whether a step has taken no more on plain values than those that took least."""
        return self.plain.get(step, sys.maxsize) <= _MARGIN * self._least

    def beside(self, first: int) -> int:
        """Return what a step takes at most that no ledger has, if the *first* one took so many bytes of that."""
        return first + max([self.more, *[nbytes - self._least for nbytes in self.plain.values()]])

    def shown(self, record: TapedStep, beside: int) -> bool:
        """
        Take note of what the latest step took beside what it saved; return whether that is more than was known.

        Args:
            record: The step. Of one that has some of that on disk it is told whether it took the most of all.
            beside: The bytes that the first one took beside what it saved.
        """
        if is_paged(record):
            return self._is_most
        more, known = self._latest - record.nbytes - record.before - beside, self.more
        self.more = max(known, more)
        return self.more - known > (_MARGIN - 1) * self._latest


def _measured(run: Callable[..., Any], index: int, *rest: Any) -> tuple[Any, int]:
    """Return what a step returns, and the most bytes that were allocated for it at a time; 0 if nobody looks."""
    if not tracemalloc.is_tracing():
        return run(index, *rest), 0
    with measured_peak() as peak:
        found = run(index, *rest)
    return found, peak.nbytes
