"""Progress bars of long loops."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, final

from tqdm import tqdm


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
            self._bar = tqdm(total=self._total, desc=self._label, unit="step", mininterval=0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update()
