"""The way of a step's saved values to a storage and back."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of
from ebbtide.loop.steps import TapedStep
from ebbtide.tape.node import Node, nodes_before
from ebbtide.tape.saved import SavedValue


@final
class Swap:
    """
    The saved values of one step, out of memory.

    Args:
        record: The taped step; its nodes forget the arrays that `arrays` has.

    Memory:
        The nodes of the step. Its arrays are in `arrays` until they are taken, and go back by `restore`. What the
        user can reach (static values, by a guard) and what parameters hold (indices, conditions) stays in memory.
    """

    __slots__ = ("_forms", "_holders", "_ledger", "arrays")

    def __init__(self, record: TapedStep) -> None:
        self.arrays: list[np.ndarray] = []
        self._ledger = record.tape.ledger
        # How each array lay in memory: results of reductions and products depend on it.
        self._forms: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        # Who saved which array: (node, place in its saved values, number of the array) or (cell, None, number).
        self._holders: list[tuple[Any, int | None, int]] = []
        numbers: dict[int, int] = {}
        for node in nodes_of(record):
            for place, value in enumerate(node.saved or ()):
                array = _swappable(value)
                if array is None:
                    continue
                cell = value if type(value) is SavedValue else None
                number = numbers.setdefault(id(array), len(self.arrays))
                if number == len(self.arrays):
                    self._pack(array)
                self._holders.append((node, place, number) if cell is None else (cell, None, number))
        self.forget()

    def forget(self) -> None:
        """Let the nodes forget the arrays."""
        for holder, place, _ in self._holders:
            if place is None:
                if holder.value is not None:
                    self._ledger.let_go(holder)
                holder.value = None
            else:
                holder.saved = (*holder.saved[:place], None, *holder.saved[place + 1 :])

    def _pack(self, array: np.ndarray) -> None:
        axes = tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
        packed = array.transpose(axes)
        self._forms.append((packed.shape, tuple(np.argsort(axes).tolist())))
        self.arrays.append(packed)

    def take(self) -> list[np.ndarray]:
        """Return the arrays and forget them."""
        arrays, self.arrays = self.arrays, []
        return arrays

    def restore(self, arrays: list[np.ndarray]) -> None:
        """Put the arrays back where they were saved; called again with arrays read again, it does so again."""
        back = [a.reshape(shape).transpose(axes) for a, (shape, axes) in zip(arrays, self._forms, strict=True)]
        for holder, place, number in self._holders:
            if place is None:
                if holder.value is None:
                    self._ledger.hold(holder, owner_of(back[number]))
                holder.value = back[number]
            else:
                holder.saved = (*holder.saved[:place], back[number], *holder.saved[place + 1 :])


def swappable_bytes(record: TapedStep) -> int:
    """Return the bytes of the arrays that `Swap` would take; of a step that did not fit those that it would have."""
    found: dict[int, int] = {}
    for value in (value for node in nodes_of(record) for value in node.saved or ()):
        if type(value) is SavedValue and value.dropped:
            if value.crc is None and type(value.type) is ArrayType:
                found[id(value.size)] = value.type.nbytes
        elif (array := _swappable(value)) is not None:
            found[id(array)] = array.nbytes
    return sum(found.values())


def _swappable(value: Any) -> np.ndarray | None:
    """Return the array of a saved value if nobody else can reach it."""
    if type(value) is SavedValue:
        value = value.value if value.crc is None else None
    return value if type(value) is np.ndarray else None


def nodes_of(record: TapedStep) -> list[Node]:
    """Return all nodes that the results of a step depend on."""
    return nodes_before(record.state_nodes + record.output_nodes)


def is_paged(record: TapedStep) -> bool:
    """Return whether saved values of a step are on disk, each by itself."""
    values = (value for node in nodes_of(record) for value in node.saved or ())
    return any(type(value) is SavedValue and value.page is not None for value in values)
