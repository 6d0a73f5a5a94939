"""Quotas: the bytes of disk that several storages share."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, final


@final
class Quota:
    """
    The disk of a budget, or a part of it.

    Args:
        limit: The most bytes that all storages in it take together; None for no limit but those around.
        around: The quota of which this one is a part.

    Attributes:
        promised: So many bytes count as taken in the quota around, also while less is.
        lenders: Weak references to those who can do with less of it, by `give_up`: time loops, the oldest first.

    Memory:
        A weak reference to each storage and each part in it.

    Example:
        >>> whole = Quota(100)
        >>> part = Quota(None, whole)
        >>> part.promised = 70
        >>> whole.left, part.left, whole.passed_by(31), part.passed_by(101)
        (30, 100, (100, 1), (100, 1))
    """

    __slots__ = ("__weakref__", "_around", "_limit", "_parts", "lenders", "promised")

    def __init__(self, limit: int | None, around: Quota | None = None) -> None:
        self._limit, self._around, self.promised = limit, around, 0
        self._parts: list[weakref.ref[Any]] = []
        self.lenders: list[weakref.ref[Any]] = []
        if around is not None:
            around.add(self)

    def add(self, part: Any) -> None:
        """Count what a part has `allocated`, as long as it lives."""
        self._parts[:] = [one for one in self._parts if one() is not None]
        self._parts.append(weakref.ref(part))

    def remove(self, part: Any) -> None:
        """Count a part no more."""
        self._parts[:] = [one for one in self._parts if one() is not None and one() is not part]

    @property
    def held(self) -> int:
        """The bytes that its parts have allocated, or were promised."""
        return sum(part.allocated for part in self._living())

    @property
    def allocated(self) -> int:
        """The bytes that it has of the quota around."""
        return max(self.promised, self.held)

    @property
    def limit(self) -> int | None:
        """The most bytes that there may be in it; None for any number."""
        limits = [self._limit, None if self._around is None else self._around.limit]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def left(self) -> int | None:
        """The bytes that may still be taken; below 0 if too many are, None for any number."""
        held, own = self.held, self._limit
        found = [] if own is None else [own - held]
        around = None if self._around is None else self._around.left
        if around is not None:
            found.append(around + max(self.promised, held) - held)
        return min(found, default=None)

    def passed_by(self, more: int = 0) -> tuple[int, int] | None:
        """Return the limit that *more* bytes would pass, and by how many they would; None if they would not."""
        if self._limit is None and self._around is None:
            return None
        held = self.held
        if self._limit is not None and held + more > self._limit:
            return self._limit, held + more - self._limit
        if self._around is None:
            return None
        return self._around.passed_by(max(self.promised, held + more) - max(self.promised, held))

    def relieve(self) -> bool:
        """Let a time loop do with less of it if one can, at the price of more work; return whether one did."""
        lenders = [reference() for reference in self.lenders]
        if any(lender.give_up() for lender in lenders if lender is not None):
            return True
        return self._around is not None and self._around.relieve()

    @property
    def whole(self) -> Quota:
        """The outermost quota around; itself if there is none."""
        return self if self._around is None else self._around.whole

    def return_space(self) -> None:
        """Let all storages in it give what they do not use back to the file system."""
        for part in list(self._living()):
            part.return_space()

    def _living(self) -> Iterator[Any]:
        return (part for part in [reference() for reference in self._parts] if part is not None)
