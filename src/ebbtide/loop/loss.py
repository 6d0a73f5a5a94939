"""By how much snapshots that were stored with loss change a gradient: an estimate, from a few steps swept twice."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from ebbtide.agree import agree, is_alone
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.loop.values.state import bytes_of
from ebbtide.tape.pager import Pager

# A state that is off by this part of its largest value is no longer near: of one that was rounded to zeros the estimate
# was 0, of a gradient that was off by 4.6 times itself.
_NEAR = 0.25
# Of rounding errors the largest is about three times the usual one.
_USUAL = 3.0
# Leaves that are not traced. A step draws from a copy of a generator, so that it draws the same when it is swept twice.
_PLAIN = (np.ndarray, np.generic, np.random.Generator, bool, int, float, complex)


@final
class Loss:
    """
    Estimates the relative error of a gradient whose steps were run again from rounded states.

    Where the reverse sweep comes back to a rounded state, the step from there is swept a second time, from that state
    plus random numbers of the size of its rounding errors, and with the same cotangent. The relative change of the
    cotangent and of the sums for static values is what rounding does to one step. All steps between this snapshot
    and the next one share its error, so there it adds up; errors of different snapshots are independent, so their
    squares add up. It is first order in the error, and right within a factor of 10 where steps have about the same
    effect, and the numbers of an array about the same size, for a gradient of about as many numbers as a state has. In
    a gradient of a few numbers errors cancel, and the estimate is too large. There is none where a state is off by more
    than a quarter of its largest value.

    Args:
        stepper: Runs steps.
        ledger: The account. Without a profile nobody asks, and nothing is swept twice; where a budget leaves no room
            for it, the other snapshots stand for this one.
        sweep: Bytes that the sweep of a step takes.

    Memory:
        While a step is swept twice, two states, a cotangent, and what the sweep takes.
    """

    __slots__ = (
        "_able", "_errors", "_intervals", "_ledger", "_measured", "_origin", "_squares", "_start", "_stepper",
        "_steps", "_sweep", "_unknown",
    )  # fmt: skip

    def __init__(self, stepper: Stepper, ledger: Any, sweep: int) -> None:
        self._stepper = stepper
        self._ledger = ledger
        self._sweep = sweep
        # Snapshots of states that came from a rounded one, by step; and that of the working state, if it did.
        self._errors: dict[int, float] = {}
        self._origin: tuple[int, float] | None = None
        self._start: tuple[int, list[Any], float] | None = None
        self._steps = self._intervals = self._measured = 0
        self._squares = 0.0
        self._unknown = False
        self._able: bool | None = None  # whether many processes can; None as long as they were not asked

    @property
    def relative_error(self) -> float:
        """The estimate, relative to the norm of the gradient; 0 without loss, NaN if it is not known."""
        if self._unknown or (self._intervals and not self._measured):
            return math.nan
        return math.sqrt(self._squares * self._intervals / max(1, self._measured))

    def tell(self) -> None:
        """Give the estimate of a sweep to the profile, if there is one, and begin anew."""
        if self._ledger.report is not None:
            self._ledger.report.rounded(self.relative_error)
        self._steps = self._intervals = self._measured = 0
        self._squares, self._unknown = 0.0, False
        self._origin = self._start = None

    def loaded(self, step: int, kind: str, error: float | None, verifier: Verifier) -> None:
        """Note that a snapshot was loaded with a relative error, which ends all checks; None for one without loss."""
        if error is not None:
            verifier.relax()
        if kind == "saved" or (error or 0.0) > _NEAR:
            self._unknown = self._unknown or error is not None
        if kind == "saved":
            return
        known = self._errors.get(step)
        found = error if known is None else max(known, error or 0.0)
        self._origin = None if found is None else (step, found)

    def stored(self, step: int) -> None:
        """Note that the working state was stored."""
        if self._origin is not None:
            self._errors[step] = self._origin[1]

    def taping(self, index: int, state: list[Any]) -> None:
        """Keep a copy of the state that a step is about to be taped from, if it is the one that was loaded."""
        if self._origin is None or self._origin[0] != index:
            return
        plain = all(isinstance(leaf, _PLAIN) for leaf in state)
        ledger, nbytes = self._ledger, bytes_of(state) if plain else 0
        fits = ledger.limit is None or ledger.live + 4 * nbytes + self._sweep <= ledger.limit
        able = plain and fits and ledger.report is not None
        if not is_alone():
            # A step that runs in one process may wait for others; they are asked once, and not for each snapshot.
            able = self._able = not agree(not able) if self._able is None else self._able
        if able:
            kept = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in state]
            self._start = index, kept, self._origin[1]

    def reversing(self, index: int, cotangent: list[Any]) -> list[Any] | None:
        """Return a copy of the cotangent of a step that is going to be swept twice; else None."""
        if self._origin is None:
            return None
        self._steps += 1
        if index == self._origin[0]:
            self._intervals += 1
        if self._start is None or self._start[0] != index:
            return None
        return [None if pair is None else (np.array(pair[0]), True) for pair in cotangent]

    def reversed(self, again: list[Any], outputs: list[Any], state: list[Any], sums: Any, total: Any) -> None:
        """
        Sweep a step again, from a state that is off by as much as it was rounded.

        Args:
            again: What `reversing` returned.
            outputs: The cotangents of the outputs of the step.
            state: What the first sweep gave for the state: (cotangent, owned) or None for each leaf.
            sums: What it gave for static values: (cotangent, owned) by their keys.
            total: The sums for static values up to now, this step included.
        """
        assert self._start is not None
        (index, start, error), self._start = self._start, None
        random = np.random.default_rng(index)
        changed = [_changed(leaf, error / _USUAL, random) for leaf in start]
        pager = Pager(self._ledger, None) if self._ledger.watched else None
        try:
            with np.errstate(all="ignore"):
                record, _, _ = self._stepper.taped(index, changed, pager)
                found, _, own = record.sweep(again, outputs, retain=False)
        except Exception:  # noqa: BLE001 - of the user's step, which may refuse a state that no run comes to
            self._unknown = True
            return
        if pager is not None:
            pager.close()
        pairs = [(a[0], b[0]) for a, b in zip(found, state, strict=True) if a is not None and b is not None]
        change = _distance(pairs)
        shares = [_distance([(own[key][0], sums[key][0])], total[key]) for key in sums if key in own]
        self._squares += (self._steps * max([change, *shares])) ** 2
        self._measured += 1
        self._steps = 0


def _changed(leaf: Any, error: float, random: np.random.Generator) -> Any:
    """Return a leaf with random numbers added, of *error* times its largest value."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "fc" or not leaf.size:
        return leaf
    size = error * float(np.max(np.abs(leaf)))
    noise = random.standard_normal(leaf.shape)
    if leaf.dtype.kind == "c":
        noise = (noise + 1j * random.standard_normal(leaf.shape)) / math.sqrt(2.0)
    return (leaf + size * noise).astype(leaf.dtype, copy=False)


def _distance(pairs: list[tuple[Any, Any]], whole: Any = None) -> float:
    """Return the norm of the differences relative to that of the second ones, or of *whole*."""
    off = sum(float(np.sum(np.abs(np.subtract(a, b)) ** 2)) for a, b in pairs)
    size = sum(float(np.sum(np.abs(b) ** 2)) for _, b in pairs) if whole is None else float(np.sum(np.abs(whole) ** 2))
    return math.sqrt(off / size) if size else 0.0
