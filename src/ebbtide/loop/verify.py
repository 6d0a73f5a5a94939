"""Checks that steps that run again give the same result as before."""

from __future__ import annotations

from array import array
from typing import Any, final

from ebbtide.errors import DeterminismError
from ebbtide.loop.state import checksums_of


@final
class Verifier:
    """
    Checksums of what a time loop ran through.

    A step that is taped in the reverse sweep must lead to the state that the step after it, taped before, started from,
    and the last one to the result of the forward sweep. So each run again is compared, step by step, and the steps that
    are swept are those of one run. Those that the forward sweep tapes count, too: of a row of them the first.

    Args:
        names: Names of the leaves of the state, for messages.
        outputs: Whether steps have outputs.
        active: Whether to check at all.

    Memory:
        The checksums of the states that taped steps started from until the step before has been swept, and 8 bytes
        for each step with an output.
    """

    __slots__ = ("_active", "_begun", "_last", "_names", "_outputs", "_row", "_starts", "_starts_again")

    def __init__(self, names: list[str], outputs: bool, active: bool) -> None:
        self._names = names
        self._active = active
        # What taped steps started from: of the forward sweep, which hold for every reverse sweep, and of this one.
        self._starts: dict[int, Any] = {}
        self._starts_again: dict[int, Any] = {}
        self._row = -1  # the step that the forward sweep taped last
        self._begun = 0  # where the steps that run now began
        self._last: Any = None
        self._outputs: array[int] | None = array("q") if outputs and active else None

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

    def swept(self, index: int) -> None:
        """Forget what the step after one that was swept started from."""
        self._starts_again.pop(index + 1, None)

    def emitted(self, index: int, output: list[Any]) -> None:
        """Note the output of a step, or check it if the step ran before."""
        if self._outputs is None:
            return
        check = hash(tuple(checksums_of(output)))
        if index == len(self._outputs):
            self._outputs.append(check)
        elif self._outputs[index] != check:
            raise self._error(index, "another output")

    def _changed(self, index: int, expected: list[Any], found: list[Any]) -> DeterminismError:
        pairs = zip(self._names, expected, found, strict=True)
        leaf = next((name for name, a, b in pairs if a != b), self._names[0] if self._names else "")
        return self._error(index, f"another result in {leaf}" if leaf else "another result")

    def _error(self, index: int, what: str) -> DeterminismError:
        return DeterminismError(
            f"Step {index} gave {what} when it was run again, so the gradient would be wrong (what changed is one of "
            f"the steps {min(self._begun, index)} to {index}, which were run again from the snapshot before them). A "
            "step depends on its state, its input and static values only: put the generator of random numbers into "
            "the state, and what changes from step to step, too. verify=False switches this check off."
        )
