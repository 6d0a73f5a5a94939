"""
What a sweep is going to hold, found by a sweep over sizes: no array is touched.

It follows the same rules of ownership as the sweep itself: which pulls pass the cotangent on, which write into it,
which add in place, and which allocate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, final

from ebbtide.arrays.array_type import ArrayType, owner_of
from ebbtide.arrays.primitive import BORROWED, PASSED, Pull, Signature
from ebbtide.tape.node import PROJECTION, Node
from ebbtide.tape.saved import BLOCK, SavedValue, parts_of


@final
@dataclass(slots=True)
class _Buffer:
    """Memory of a cotangent, and how many running cotangents are in it."""

    nbytes: int
    holders: int = 1


@final
@dataclass(slots=True)
class _Slot:
    """The running cotangent of a node."""

    buffer: _Buffer
    owned: bool


@final
@dataclass(slots=True)
class Forecast:
    """
    The forecast of a sweep.

    Args:
        live: Bytes held when the sweep starts.

    Attributes:
        peak: The most bytes that are held at a time.
        joints: Joint rules (time loops, checkpointed functions) that the sweep will come to.
    """

    live: int
    peak: int = 0
    joints: list[Any] = field(default_factory=list)
    _slots: dict[int, _Slot] = field(default_factory=dict)

    def allocate(self, nbytes: int, temporary: int = 0) -> _Buffer:
        """Count a new buffer, beside which temporaries live for a moment."""
        self.peak = max(self.peak, self.live + nbytes + temporary)
        self.live += nbytes
        return _Buffer(nbytes)

    def release(self, slot: _Slot | None) -> None:
        """Uncount the buffer of a slot if nobody else is in it."""
        if slot is not None:
            slot.buffer.holders -= 1
            if slot.buffer.holders == 0:
                self.live -= slot.buffer.nbytes

    def pull(self, pull: Pull, node: Node, parent: Node, g: _Slot, exclusive: bool) -> bool:
        """Account for one pull; return whether the cotangent of the node is shared or moved by it."""
        kind: ArrayType = parent.type
        running = self._slots.get(parent.number)
        same_size = kind.nbytes == node.type.nbytes
        if pull.derivative is not None and kind.nbytes > BLOCK and kind.shape == node.type.shape:
            if running is not None and running.owned:
                return False
            buffer = self._moved(g) if exclusive else self.allocate(kind.nbytes)
            self._put(parent, running, _Slot(buffer, True))
            return False
        if pull.result is PASSED and same_size and pull.accumulate is None and running is None:
            self._put(parent, None, _Slot(self._moved(g), exclusive))
            return not exclusive
        if pull.result is BORROWED and running is None:
            self._put(parent, None, _Slot(self._moved(g), False))
            return True
        in_place = pull.accumulate is not None or (pull.result is PASSED and same_size)
        if running is not None and running.owned and in_place:
            return pull.result is PASSED and same_size
        temporary = pull.temporaries * max(kind.nbytes, node.type.nbytes) + (0 if same_size else node.type.nbytes)
        if running is not None and running.owned:
            self.peak = max(self.peak, self.live + kind.nbytes + temporary)
            return False
        self._put(parent, running, _Slot(self.allocate(kind.nbytes, temporary), True))
        return False

    def _moved(self, g: _Slot) -> _Buffer:
        g.buffer.holders += 1
        return g.buffer

    def _put(self, parent: Node, before: _Slot | None, slot: _Slot) -> None:
        self.release(before)
        self._slots[parent.number] = slot

    def run(self, seeds: list[Any]) -> None:
        """Follow the sweep from output nodes."""
        self.peak = self.live
        order, holders = reached([node for node, _, _ in seeds])
        for node, _, _ in seeds:
            self._slots.setdefault(node.number, _Slot(_Buffer(0), False))
        for node in order:
            slot = self._slots.pop(node.number, None) or _Slot(_Buffer(0), False)
            signature = node.signature
            if signature is None or node.parents is None:
                continue  # a leaf keeps its cotangent to the end
            if type(signature) is Signature:
                self._pull_all(node, slot, signature, holders)
            elif signature is PROJECTION:
                # The cotangent goes into the list of those of the operation, and is held with it.
                gathered = self._slots.setdefault(node.parents[0].number, _Slot(_Buffer(0), True))
                gathered.buffer.nbytes += slot.buffer.nbytes
                continue
            else:
                self.joints.append(signature)
                # What such a rule returns is part of what it says to need.
                self.peak = max(self.peak, self.live + signature.need)
                for parent in node.parents:
                    if parent.number not in self._slots:
                        self._slots[parent.number] = _Slot(self.allocate(parent.type.nbytes), True)
            self.release(slot)

    def _pull_all(self, node: Node, slot: _Slot, signature: Signature, holders: dict[int, int]) -> None:
        parents: Any = node.parents
        saved: Any = node.saved
        shared = False
        for n, ((pull, _, releases), parent) in enumerate(zip(signature.pulls, parents, strict=True)):
            exclusive = slot.owned and n == len(parents) - 1 and not shared
            shared = self.pull(pull, node, parent, slot, exclusive) or shared
            for cell in (saved[s] for s in releases):
                if type(cell) is SavedValue:
                    holders[id(cell)] -= 1
                    if not holders[id(cell)]:
                        self.live -= bytes_of(cell)


def bytes_of(cell: SavedValue) -> int:
    """Return the bytes that a saved value keeps alive."""
    return cell.size.nbytes if cell.size else sum(owner_of(part).nbytes for part in parts_of(cell.value))


def reached(roots: list[Node]) -> tuple[list[Node], dict[int, int]]:
    """Return the nodes that a sweep passes, in its order, and for each saved value how many of them hold it."""
    nodes = {node.number: node for node in roots}
    heap = [-number for number in nodes]
    heapify(heap)
    holders: dict[int, int] = {}
    order = []
    while heap:
        node = nodes[-heappop(heap)]
        order.append(node)
        for cell in node.saved or ():
            if type(cell) is SavedValue:
                holders[id(cell)] = holders.get(id(cell), 0) + 1
        for parent in node.parents or ():
            if parent.number not in nodes:
                nodes[parent.number] = parent
                heappush(heap, -parent.number)
    return order, holders
