"""
The running cotangent of one value: who owns it, and how the next contribution is added.

The first contribution is taken as it is: owned if the rule made it or passed on what was ours, else
borrowed and never written. Later ones are added in place into whichever of the two arrays is ours, and
only where neither is, a new one is allocated.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.primitive import Pull
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.saved import BLOCK


@final
class Accumulator:
    """
    The running cotangent of one node.

    Args:
        node: The node whose output it belongs to.
        value: The sum so far; for operations with several outputs a list with one for each.
        owned: Whether the sweep may write into it.

    Memory:
        One array, whatever the number of contributions.
    """

    __slots__ = ("node", "owned", "value")

    def __init__(self, node: Any, value: Any, owned: bool) -> None:
        self.node = node
        self.value = value
        self.owned = owned

    def add(self, value: Any, owned: bool) -> None:
        """
        Add a contribution.

        Args:
            value: The contribution; read, and written only if *owned*.
            owned: Whether it may be written.
        """
        mine = self.value
        if self.owned and type(mine) is np.ndarray and type(value) is not TracedArray:
            np.add(mine, value, mine)
        elif owned and type(value) is np.ndarray and type(mine) is not TracedArray:
            np.add(mine, value, value)
            self.value, self.owned = value, True
        else:
            self.value = mine + value
            # A NumPy scalar is immutable, a traced sum is its own trace's business.
            self.owned = type(self.value) is np.ndarray

    def own(self) -> Any:
        """Return the sum in memory that is ours, copying a borrowed one."""
        if not self.owned:
            self.value, self.owned = np.array(self.value, order="C"), True
        return self.value


def blockwise(
    pull: Pull, g: Any, kind: ArrayType, saved: list[Any], slot: Accumulator | None, exclusive: bool
) -> Any:
    """
    Do an elementwise pull on large plain arrays, in blocks.

    Args:
        pull: The pull, with a derivative.
        g: Cotangent of the output, of the type *kind*.
        kind: Type of the operand.
        saved: The saved values.
        slot: The running cotangent of the operand, if it has one.
        exclusive: Whether *g* is ours and not used after this.

    Returns:
        The array with the result, or None if the arrays do not fit together and the caller has to do
        the pull in one piece. With a slot the result includes what was in it.

    Memory:
        No array where *exclusive* or the slot is owned, else one; and two blocks.
    """
    shape = kind.shape
    derivative: Any = pull.derivative
    if not shape or g.shape != shape or g.dtype is not kind.dtype:
        return None
    for value in saved:
        if type(value) is np.ndarray and value.ndim and value.shape != shape:
            return None
    running: Any = None
    if slot is not None:
        running = slot.value
        if type(running) is not np.ndarray or running.shape != shape or running.dtype is not kind.dtype:
            return None
    if slot is not None and slot.owned:
        target = running
    elif exclusive:
        target = g
    else:
        target = np.empty(shape, kind.dtype)
    rows = max(1, BLOCK * shape[0] // max(1, kind.nbytes))
    for start in range(0, shape[0], rows):
        part = slice(start, start + rows)
        values = [v[part] if type(v) is np.ndarray and v.ndim else v for v in saved]
        if pull.scaled:
            product = derivative(g[part], *values)
        elif running is not None:
            product = np.multiply(g[part], derivative(*values))
        else:
            np.multiply(g[part], derivative(*values), out=target[part], casting="same_kind")
            continue
        if running is None:
            target[part] = product
        else:
            np.add(running[part], product, out=target[part], casting="same_kind")
    return target
