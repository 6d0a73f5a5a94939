"""Where a profile lists saved values: by operation, line and reason."""

from __future__ import annotations

from typing import Any, final

from ebbtide.arrays.location import line_of
from ebbtide.arrays.primitive import Signature
from ebbtide.entry import SavedEntry
from ebbtide.ledger import Ledger
from ebbtide.tape.node import Node


@final
class Entries:
    """
    Finds the entries of a ledger.

    Args:
        ledger: The ledger, which may have none.

    Memory:
        The lines of a program that saved something.
    """

    __slots__ = ("_ledger", "_lines")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lines: dict[tuple[Any, int], str] = {}

    def find(self, node: Node, signature: Signature | None, position: int, array: Any) -> SavedEntry | None:
        """
        Return the entry of a saved value; None if nobody looks.

        Args:
            node: The node that saves it.
            signature: Says why; None for what is no operand, output or mask.
            position: Its place among the saved values of the node.
            array: The value.
        """
        entries = self._ledger.entries
        if entries is None:
            return None
        place = (node.code, node.instruction)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = line_of(*place)
        if signature is None:
            reason = "argument"
        elif position < len(signature.saves):
            k = signature.saves[position]
            reason = "output" if k < 0 else f"operand {k}"
        else:
            reason = "mask"
        key = (node.name, line, reason, array.shape, str(array.dtype))
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = SavedEntry(node.name, line, reason, array.shape, str(array.dtype))
        return entry
