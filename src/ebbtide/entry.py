"""Entries of what lines of the user's program save, for a profile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class SavedEntry:
    """What one line of the user's program saves: bytes, number, and the most bytes held at a time."""

    operation: str
    location: str
    reason: str
    shape: tuple[int, ...]
    dtype: str
    count: int = 0
    bytes: int = 0
    _live: int = field(default=0, repr=False)
    _living: int = field(default=0, repr=False)

    def take(self, nbytes: int) -> None:
        """Count one more buffer."""
        self.count += 1
        self._living += 1
        self._live += nbytes
        self.bytes = max(self.bytes, self._live)

    def drop(self, nbytes: int) -> None:
        """Count one buffer less among those that are held."""
        self._living -= 1
        self._live -= nbytes

    def now(self) -> SavedEntry | None:
        """Return the entry of what is held now, its number and bytes; None if nothing is."""
        return replace(self, count=self._living, bytes=self._live) if self._living else None
