"""The time loops of a call, which let go of what they hold when it fails."""

from __future__ import annotations

from typing import Any, final
from weakref import WeakValueDictionary


@final
class Unfinished:
    """
    The time loops that have begun in the outermost call.

    Their snapshots, files and locks would live as long as the error of a call that failed: its traceback holds the
    frames of the user's function, and a notebook holds the traceback of the last error until the next one.

    Attributes:
        begun: How many there have been.

    Memory:
        A weak reference to each one that lives.
    """

    __slots__ = ("_loops", "begun")

    def __init__(self) -> None:
        self.begun = 0
        self._loops: WeakValueDictionary[int, Any] | None = None  # most calls have no loop

    def add(self, loop: Any) -> None:
        """Let a loop fail with the call, by its method `fail`, as long as it lives."""
        if self._loops is None:
            self._loops = WeakValueDictionary()
        self.begun += 1
        self._loops[self.begun] = loop

    def fail(self, before: int, last: int) -> None:
        """Let those fail that came after so many others, up to the *last* one, the youngest first."""
        for number, loop in sorted((self._loops or {}).items(), reverse=True):
            if before < number <= last:
                loop.fail()
