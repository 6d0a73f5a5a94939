"""The time loops of a call, which let go of what they hold when it fails."""

from __future__ import annotations

import os
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
        process: The number of the process of the call.

    Memory:
        A weak reference to each one that lives, and the directories to resume from.
    """

    __slots__ = ("_directories", "_loops", "begun", "process")

    def __init__(self) -> None:
        self.begun, self.process = 0, os.getpid()
        self._loops: WeakValueDictionary[int, Any] | None = None  # most calls have no loop
        self._directories: dict[int, Any] | None = None  # and no directory

    def add(self, loop: Any, directory: Any) -> None:
        """Let a loop fail with the call, by its method `fail`, as long as it lives, and its directory go with it."""
        if self._loops is None:
            self._loops = WeakValueDictionary()
        self.begun += 1
        self._loops[self.begun] = loop
        if directory is not None:
            self._directories = {**(self._directories or {}), self.begun: directory}

    def fail(self, before: int, last: int, error: BaseException) -> None:
        """
        Let those fail that came after so many others, up to the *last* one, the youngest first.

        Where the *error* is that the steps of one disagree, nobody goes on from the directories of the others either.
        """
        directories = self._take(before, last)
        if any(directory.is_spoiled for directory in directories):
            for directory in directories:
                directory.spoil(error)
        for number, loop in sorted((self._loops or {}).items(), reverse=True):
            if before < number <= last:
                loop.fail()
        for directory in directories:
            directory.close()

    def finish(self, before: int, last: int) -> None:
        """Let the directories go of those loops that no reverse sweep has passed, as nothing depends on them."""
        for directory in self._take(before, last):
            if not directory.is_finished:
                directory.finish()

    def _take(self, before: int, last: int) -> list[Any]:
        known = self._directories or {}
        return [known.pop(number) for number in [*known] if before < number <= last]
