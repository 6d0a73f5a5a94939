"""Checks that steps that run again give the same result as before."""

from __future__ import annotations

from array import array
from copy import copy
from typing import Any, final

import numpy as np

from ebbtide.errors import DeterminismError
from ebbtide.loop.values.state import checksums_of
from ebbtide.loop.values.sums import Sums

# A waypoint is noted every 10 steps, with a checksum of each leaf; where they would be more than 1024 checksums, every
# second waypoint goes and the spacing doubles.
_SPACING, _MOST = 10, 1024


@final
class Waypoints:
    """
    Checksums of the states before evenly spaced steps, at least 10 apart.

    Args:
        width: The leaves of a state.

    Attributes:
        spacing: The steps from one to the next.

    Memory:
        8 bytes for each leaf of each of these states, at most 8 KiB; none are left of a state of more than 1024 leaves.
    """

    __slots__ = ("_checks", "_width", "spacing")

    def __init__(self, width: int) -> None:
        self._width, self.spacing = width, _SPACING
        self._checks = array("q")

    def find_change(self, step: int, checks: list[Any]) -> int | None:
        """Return which leaf of the state before a step has changed since that was met first; None if none has."""
        width, found = self._width, array("q", [hash(one) | 1 for one in checks])  # never 0, which stands for none
        place = (step // self.spacing - 1) * width
        known = self._checks[place : place + width]
        if any(known):
            return next((leaf for leaf in range(width) if known[leaf] != found[leaf]), None)
        self._checks.extend([0] * (place + width - len(self._checks)))  # a run that goes on begins later
        self._checks[place : place + width] = found
        while len(self._checks) > _MOST:
            self._thin()
        return None

    def _thin(self) -> None:
        """Keep each second one; in its place, as lists of them took 80 KiB where budgets have room for 8."""
        checks, width = self._checks, self._width
        left = len(checks) // width // 2
        for k in range(left):
            checks[k * width : (k + 1) * width] = checks[(2 * k + 1) * width : (2 * k + 2) * width]
        del checks[left * width :]
        self.spacing *= 2


@final
class Verifier:
    """
    Checksums of what a time loop ran through.

    The states before evenly spaced steps are compared whenever they are met again. And a step that is taped in the
    reverse sweep must lead to the state that the step after it, taped before, started from, and the last one to the
    result of the forward sweep. So each run again is compared, step by step, and the steps that are swept are those of
    one run. Those that the forward sweep tapes count, too: of a row of them the first.

    Args:
        names: Names of the leaves of the state, for messages.
        outputs: Whether steps have outputs.
        active: Whether to check at all.

    Memory:
        The checksums of the states that taped steps started from until the step before has been swept, those of
        `Waypoints`, and of outputs those of `Sums`.
    """

    __slots__ = ("_active", "_begun", "_last", "_names", "_outputs", "_row", "_starts", "_starts_again", "waypoints")

    def __init__(self, names: list[str], outputs: bool, active: bool) -> None:
        self.waypoints = Waypoints(len(names))
        self._names = names
        self._active = active
        # What taped steps started from: of the forward sweep, which hold for every reverse sweep, and of this one.
        self._starts: dict[int, Any] = {}
        self._starts_again: dict[int, Any] = {}
        self._row = -1  # the step that the forward sweep taped last
        self._begun = 0  # where the steps that run now began
        self._last: Any = None
        self._outputs = Sums() if outputs and active else None

    def again(self, first: int, total: int) -> Verifier:
        """Return one for steps that run again in their order; see `Sums.again`, here of outputs."""
        made = copy(self)
        made._outputs = None if self._outputs is None else self._outputs.again(first, total)
        return made

    @property
    def total(self) -> int:
        """A sum of the checksums of the outputs of all steps."""
        return 0 if self._outputs is None else self._outputs.total

    def start_of(self, index: int) -> tuple[Any, ...]:
        """Return the checksums of what a step started from that is swept; none where nobody has taken them."""
        return (*self._starts_again.get(index, self._starts.get(index, ())),)

    def goes_on(self, end: int, start: tuple[Any, ...]) -> None:
        """Take over what `start_of` gave in another process, whose reverse sweep has come to step `end`."""
        if self._active and start:
            self._starts_again[end] = [*start]

    def begin(self) -> None:
        """Begin another reverse sweep."""
        self._starts_again.clear()

    def relax(self) -> None:
        """Check no more: a rounded state was loaded, so that steps run again lead elsewhere by design."""
        self._active, self._outputs = False, None
        self._starts.clear()
        self._starts_again.clear()

    def loaded(self, step: int) -> None:
        """Note that steps run again from a stored state."""
        self._begun = step

    def passed(self, step: int, state: list[Any]) -> None:
        """Note or check the state before a step, one of the `waypoints`."""
        if self._active:
            leaf = self.waypoints.find_change(step, checksums_of(state))
            if leaf is not None:
                raise self._error(step - 1, self._another_in(self._names[leaf]))
            self._begun = step

    def before(self, index: int, state: list[Any], *, again: bool) -> None:
        """Note what a step starts from that is about to be taped, in the forward sweep or *again*."""
        follows, self._row = not again and index == self._row + 1, index
        if self._active and not follows:
            (self._starts_again if again else self._starts)[index] = checksums_of(state)

    def ended(self, steps: int, state: list[Any]) -> None:
        """Note or check the result of the last step."""
        if not self._active:
            return
        found = checksums_of(state)
        if self._last is None:
            self._last = found
        elif self._last != found:
            raise self._changed(steps - 1, self._last, found)

    def taped(self, index: int, state: list[Any]) -> None:
        """Check the result of a step that was taped in the reverse sweep."""
        expected = self._starts_again.get(index + 1, self._starts.get(index + 1))
        if expected is not None:
            found = checksums_of(state)
            if found != expected:
                raise self._changed(index, expected, found)

    def swept(self, index: int, found: int) -> None:
        """Forget what the step after one that was swept started from; check its output, of which `emitted` *found*."""
        self._starts_again.pop(index + 1, None)
        if self._outputs is not None:
            self._check_outputs(self._outputs.swept(index, found))

    def emitted(self, index: int, output: list[Any]) -> int:
        """Note the output of a step, or check it if the step ran before; return its checksum, 0 for none."""
        if self._outputs is None:
            return 0
        # A number of Python's comes back as one of NumPy's where a run is resumed.
        kept = [np.asarray(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf for leaf in output]
        check = hash((index, *checksums_of(kept)))  # with the step, as in a sum two equal ones are none
        self._check_outputs(self._outputs.meet(index, check))
        return check

    def _check_outputs(self, changed: tuple[int, int] | None) -> None:
        if changed is not None:
            self._begun = min(self._begun, changed[0])
            raise self._error(changed[1], "another output")

    def _changed(self, index: int, expected: list[Any], found: list[Any]) -> DeterminismError:
        pairs = zip(self._names, expected, found, strict=True)
        leaf = next((name for name, a, b in pairs if a != b), self._names[0] if self._names else "")
        return self._error(index, self._another_in(leaf))

    @staticmethod
    def _another_in(leaf: str) -> str:
        return f"another result in {leaf}" if leaf else "another result"

    def _error(self, index: int, what: str) -> DeterminismError:
        return DeterminismError(
            f"Step {index} gave {what} when it was run again, so the gradient would be wrong (what changed is one of "
            f"the steps {min(self._begun, index)} to {index}, which were run again from a state that was the same). A "
            "step depends on its state, its input and static values only: put the generator of random numbers into "
            "the state, and what changes from step to step, too; inputs, and what names mean that a step reads from "
            "outside, stay as they are until the gradient is there (a name that is bound anew after the loop, as by "
            "`s = ...`, is another value to a step that closes over it: give one of the two another name); and a run "
            "that is resumed has the same code. What a step does with a complex number of Python's and a float of "
            "NumPy's, as in 1j / x, later than in the first step, is rounded by Python's rules or by NumPy's: write "
            "np.complex128(1j) / x. verify=False switches this check off."
        )
