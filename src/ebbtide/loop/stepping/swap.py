"""The way of a step's saved values to a storage and back."""

from __future__ import annotations

from collections import Counter
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of
from ebbtide.arrays.cover import cover
from ebbtide.ledger import Ledger
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.storage import entry_nbytes
from ebbtide.tape.holders import held_by
from ebbtide.tape.node import Node, nodes_before
from ebbtide.tape.saved import SavedValue, bytes_of, key_of, parts_of, value_of


@final
class Swap:
    """
    The saved values of one step, out of memory.

    Args:
        record: The taped step; its nodes forget the arrays that `arrays` covers.

    Attributes:
        arrays: What the saved values cover of memory, once for all that share it.

    Memory:
        The nodes of the step. Its arrays are in `arrays` until they are taken, and go back by `restore`. What the
        user can reach (static values, by a guard) and what parameters hold (indices, conditions) stays in memory, and
        so does what shares its memory.
    """

    __slots__ = ("_holders", "_ledger", "_views", "arrays")

    def __init__(self, record: TapedStep) -> None:
        self._ledger = record.tape.ledger
        # Who saved which array: (node, place in its saved values, number of the array) or (cell, None, number).
        self._holders: list[tuple[Any, int | None, int]] = []
        numbers: dict[int, int] = {}
        arrays: list[np.ndarray] = []
        for node, place, value in _swappable(record):
            array: np.ndarray | None = value_of(value)
            if array is None:
                continue
            cell = value if type(value) is SavedValue else None
            number = numbers.setdefault(id(array), len(arrays))
            if number == len(arrays):
                arrays.append(array)
            self._holders.append((node, place, number) if cell is None else (cell, None, number))
        self.arrays, self._views = cover(arrays)
        del arrays
        before = self._ledger.live
        self.forget()
        record.left = record.nbytes - (before - self._ledger.live)

    def forget(self) -> None:
        """Let the nodes forget the arrays."""
        for holder, place, _ in self._holders:
            if place is None:
                if holder.value is not None:
                    self._ledger.let_go(holder)
                holder.value = holder.page = None  # what a sweep paged is here as well
            else:
                holder.saved = (*holder.saved[:place], None, *holder.saved[place + 1 :])

    def take(self) -> list[np.ndarray]:
        """Return the arrays and forget them."""
        arrays, self.arrays = self.arrays, []
        return arrays

    def restore(self, arrays: list[np.ndarray]) -> None:
        """Put the arrays back where they were saved; called again with arrays read again, it does so again."""
        back = [view.of(arrays) for view in self._views]
        for holder, place, number in self._holders:
            if place is None:
                if holder.value is None:
                    self._ledger.hold(holder, owner_of(back[number]))
                holder.value = back[number]
            else:
                holder.saved = (*holder.saved[:place], back[number], *holder.saved[place + 1 :])


def swappable_bytes(record: TapedStep) -> tuple[int, int]:
    """
    Return what `Swap` would do for a step; for one that did not fit what it would have done.

    Returns:
        (the bytes in the ledger of memory that nobody would hold any more, those of the entry in a storage).
    """
    # What counts them is gone before they are laid out: of 600 saved values it took 27 KB.
    found = list({id(value): value for _, _, value in _swappable(record)}.values())
    freed, lost = _freed_and_lost([value for value in found if type(value) is SavedValue], record.tape.ledger)
    arrays, _ = cover([array for value in found if (array := value_of(value)) is not None])
    return freed, entry_nbytes(arrays + [np.broadcast_to(np.uint8(0), nbytes) for nbytes in lost])


def _freed_and_lost(cells: list[SavedValue], ledger: Ledger) -> tuple[int, list[int]]:
    """Return the bytes in the ledger that only these hold, and of a step that did not fit those of each array."""
    holders, kept = Counter([key_of(cell) for cell in cells]), {key_of(cell): bytes_of(cell) for cell in cells}
    freed = sum([kept[key] for key in kept if 0 < ledger.count_holders(key) <= holders[key]])
    return freed, list({key_of(cell): bytes_of(cell) for cell in cells if cell.dropped}.values())


def _swappable(record: TapedStep) -> list[tuple[Node, int, Any]]:
    """Return the saved values of a step whose memory is its own, each with its node and its place among those of it."""
    nodes = nodes_of(record)
    found = [(node, n, value) for node in nodes for n, value in enumerate(node.saved or ()) if _is_swappable(value)]
    ours, others = {id(value) for _, _, value in found}, [met._value for _, met in record.tape.statics.values()]
    for node in nodes:
        others += [value for value in (*held_by(node, _always), *(node.saved or ())) if id(value) not in ours]
    stay = {id(owner_of(part)) for value in others for part in parts_of(value_of(value))}
    return [one for one in found if (array := value_of(one[2])) is None or id(owner_of(array)) not in stay]


def _is_swappable(value: Any) -> bool:
    """Return whether nobody else can reach the array of a saved value, which is there or did not fit."""
    if type(value) is SavedValue:
        if value.crc is not None:
            return False
        if value.dropped:
            return type(value.type) is ArrayType
        value = value.value
    return type(value) is np.ndarray and not value.dtype.hasobject


def _always(value: Any) -> bool:
    del value
    return True


def nodes_of(record: TapedStep) -> list[Node]:
    """Return all nodes that the results of a step depend on."""
    return nodes_before(record.state_nodes + record.output_nodes)


def is_paged(record: TapedStep) -> bool:
    """Return whether saved values of a step are on disk, each by itself."""
    values = (value for node in nodes_of(record) for value in node.saved or ())
    return any(type(value) is SavedValue and value.page is not None for value in values)
