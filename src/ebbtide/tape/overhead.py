"""What the record itself takes beside the saved values: nodes, their tuples and parameters, and what counts them."""

from __future__ import annotations

import sys
from typing import Any, final

import numpy as np

from ebbtide.ledger import BUFFERS, SAVED, Ledger
from ebbtide.tape.node import Node

# The record is counted in steps of so many bytes.
PAGE = 4096
# A node, its two numbers, and its share of what the interpreter keeps at hand.
NODE_BYTES = 208
# Of each array but the first with respect to which is differentiated: its node, the array that stands for it, and what
# tells who shares its memory; 866 to 877 measured of 200 and 400.
ARGUMENT_BYTES = 880
# What a node of an operation on vectors keeps of their kinds.
KINDS_BYTES = 256
# Of each operand of an operation of many: its pull, which each record makes anew; 428 measured of 24 and 64. Those of
# few are within what is left to the interpreter.
PULL_BYTES, MANY = 432, 16
# What the pager, the ledger and a forecast keep of a saved value; 1,180 bytes measured, and tables that double.
CELL_BYTES = 1312
# What tells of an array that it is the caller's: a weak reference and its place in a table that doubles; 166 to 196
# measured of 300 to 1000.
EXCLUDED_BYTES = 200
# What a node keeps of one that it uses: its checksum; 138 measured of 40 operations.
GUARD_BYTES = 136


def node_bytes(node: Node) -> int:
    """Return the bytes of a node without its saved values: with its tuples, its parameters, and its type."""
    parents, params = node.parents or (), node.params
    total = NODE_BYTES + sys.getsizeof(parents) + sys.getsizeof(node.saved)
    total += PULL_BYTES * len(parents) if len(parents) > MANY else 0
    if not parents or parents[0].type is not node.type:
        total += sys.getsizeof(node.type) + _bytes_of_object(getattr(node.type, "shape", ())) + 32
    if params:
        total += _bytes_of_object(params) + (KINDS_BYTES if "kinds" in params else 0)
    return total


def _bytes_of_object(value: Any) -> int:
    """Return the bytes of a parameter with its parts; the data of arrays are counted elsewhere."""
    if isinstance(value, np.ndarray):
        return 128 + (0 if value.base is None else 128)
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        return total + sum(_bytes_of_object(part) for part in value.values())
    if isinstance(value, (tuple, list)):
        return total + sum(_bytes_of_object(part) for part in value)
    if isinstance(value, slice):
        return total + 96
    return total


@final
class Overhead:
    """
    Counts the record of a tape in its ledger, in pages, as small objects come and go.

    Args:
        ledger: The ledger of the tape.
        around: Of a function that is measured, the pager of the tape around: the record of the function is there,
            though its values are not.
    """

    __slots__ = ("_around", "_ledger", "counted", "total")

    def __init__(self, ledger: Ledger, around: Any = None) -> None:
        self._ledger, self._around = ledger, around
        self.total = self.counted = 0

    @property
    def uncounted(self) -> int:
        """Bytes that have not filled a page yet, and so are not in the ledger."""
        return self.total - self.counted

    def count(self, nbytes: int) -> None:
        """Count *nbytes* more."""
        self.total += nbytes
        more = self.uncounted
        if more >= PAGE:
            self._ledger.add(SAVED, more)
            self.counted = self.total
            if self._around is not None:
                self._around.reserve(more)
                self.lend(more)

    def settle(self) -> None:
        """Count what has not filled a page: the record is whole, and there may be many of them."""
        self._ledger.add(SAVED, self.uncounted)
        self.counted = self.total

    def lend(self, nbytes: int) -> None:
        """Count the record of a function that is measured where it is bounded."""
        if self._around is not None:
            self._around.overhead.lend(nbytes)
        else:
            self._ledger.add(BUFFERS, nbytes)

    @property
    def lent(self) -> int:
        """Bytes that are counted around."""
        return 0 if self._around is None else self.counted

    def clear(self) -> None:
        """Uncount everything: the record is gone."""
        self._ledger.add(SAVED, -self.counted)
        if self._around is not None:
            self.lend(-self.counted)
        self.total = self.counted = 0
