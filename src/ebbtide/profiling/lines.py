"""Saved values by line of the user's program, as a table."""

from __future__ import annotations

from ebbtide.budget import format_bytes
from ebbtide.entry import SavedEntry


def lines_of(entries: list[SavedEntry], most: int) -> list[str]:
    """
    Return a table of saved values, the largest first.

    Args:
        entries: What each line of the program saves.
        most: How many of them are shown; the others are counted.
    """
    lines = [f"{'bytes':>12}  {'count':>7}  {'dtype':<10} {'shape':<16} {'operation':<12} {'reason':<10} place"]
    for entry in entries[:most]:
        shape = "x".join(map(str, entry.shape)) or "-"
        lines.append(
            f"{format_bytes(entry.bytes):>12}  {entry.count:>7}  {entry.dtype:<10} {shape:<16} "
            f"{entry.operation:<12} {entry.reason:<10} {entry.location}"
        )
    if len(entries) > most:
        lines.append(f"... and {len(entries) - most} more lines")
    return lines
