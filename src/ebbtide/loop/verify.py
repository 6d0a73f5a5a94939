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
    and the last one to the result of the forward sweep. So each run again is compared, step by step.

    Args:
        names: Names of the leaves of the state, for messages.
        outputs: Whether steps have outputs.
        active: Whether to check at all.

    Memory:
        The checksums of two states, and 8 bytes for each step with an output.
    """

    __slots__ = ("_active", "_expected", "_last", "_names", "_outputs")

    def __init__(self, names: list[str], outputs: bool, active: bool) -> None:
        self._names = names
        self._active = active
        # The step that was taped last in the reverse sweep, and the checksums of the state that it started from.
        self._expected: tuple[int, Any] | None = None
        self._last: Any = None
        self._outputs: array[int] | None = array("q") if outputs and active else None

    def begin(self) -> None:
        """Begin another reverse sweep."""
        self._expected = None

    def relax(self) -> None:
        """Check no more: a rounded state was loaded, so that steps run again lead elsewhere by design."""
        self._active, self._outputs = False, None

    def before(self, state: list[Any]) -> Any:
        """Return the checksums of the state that a step is about to start from."""
        return checksums_of(state) if self._active else None

    def ended(self, steps: int, state: list[Any]) -> None:
        """Note or check the result of the last step."""
        if not self._active:
            return
        found = checksums_of(state)
        if self._last is None:
            self._last = found
        elif self._last != found:
            raise self._changed(steps - 1, self._last, found)

    def taped(self, index: int, before: Any, state: list[Any]) -> None:
        """Check the result of a step that was taped in the reverse sweep, and note what it started from."""
        if not self._active:
            return
        if self._expected is not None and self._expected[0] == index + 1:
            found = checksums_of(state)
            if found != self._expected[1]:
                raise self._changed(index, self._expected[1], found)
        self._expected = index, before

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
            f"Step {index} gave {what} when it was run again, so the gradient would be wrong (step {index} itself or "
            "one between it and the snapshot before it changed). A step depends on its state, its input and static "
            "values only: make random numbers from the step index, or put the generator's state into the state; put "
            "what changes from step to step into the state. verify=False switches this check off."
        )
