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
from ebbtide.arrays.primitive import Pull, unbroadcast
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.blocks import blocks, cut, row_blocks, under


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
            # Of two that lie in different orders the one in C order, in which a new sum would lie as well: later sums
            # along memory have the bits of a program then.
            if owned and type(value) is np.ndarray and not mine.flags.c_contiguous and value.flags.c_contiguous:
                mine, value = value, mine
                self.value = mine
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
        g: Cotangent of the output, which goes in blocks.
        kind: Type of the operand, which may have been broadcast.
        saved: The saved values.
        slot: The running cotangent of the operand, if it has one.
        exclusive: Whether *g* is ours and not used after this.

    Returns:
        The array with the result, or None if the running cotangent is no plain array and the caller has to do
        the pull in one piece. With a slot the result includes what was in it.

    Memory:
        No array where the slot is owned, or *exclusive* and nothing was broadcast; else one, of the operand. Beside
        it the temporaries of a block.
    """
    running: Any = None if slot is None else slot.value
    if type(running) is TracedArray:
        return None
    if kind.shape != g.shape:
        return _summed(pull, g, kind, saved, slot)
    derivative: Any = pull.derivative
    owned = slot is not None and slot.owned
    target: Any = running if owned else g if exclusive else np.empty(kind.shape, kind.dtype)
    for block in blocks(g.shape, g.nbytes):
        values = [cut(v, g.ndim, block) for v in saved]
        if pull.scaled:
            product = derivative(g[block], *values)
        elif running is not None:
            product = np.multiply(g[block], derivative(*values))
        else:
            np.multiply(g[block], derivative(*values), out=target[block], casting="same_kind")
            continue
        if running is None:
            target[block] = product
        else:
            np.add(running[block], product, out=target[block], casting="same_kind")
        del product  # before the next is made
    return target


def _summed(pull: Pull, g: Any, kind: ArrayType, saved: list[Any], slot: Accumulator | None) -> Any:
    """Do the pull of a broadcast operand in blocks, each summed into what lies under it."""
    derivative: Any = pull.derivative
    if slot is None:
        target = np.zeros(kind.shape, kind.dtype)
    else:
        # A sum of no axes may be a NumPy scalar, which cannot be written.
        ours = slot.owned and type(slot.value) is np.ndarray
        target = slot.value if ours else np.array(slot.value, order="C")
    for block in blocks(g.shape, g.nbytes):
        values = [cut(v, g.ndim, block) for v in saved]
        product = derivative(g[block], *values) if pull.scaled else np.multiply(g[block], derivative(*values))
        place = target[under(kind.shape, g.ndim, block)] if kind.shape else target
        np.add(place, unbroadcast(product, ArrayType(place.shape, kind.dtype)), out=place)
        del product  # before the next is made
    return target


def rowwise(
    pull: Pull, g: Any, kind: ArrayType, params: Any, saved: list[Any], slot: Accumulator | None
) -> Any:
    """
    Do a pull that has to do with whole rows on large plain arrays, in blocks of these.

    Args:
        pull: The pull, which says along which axes.
        g: Cotangent of the output.
        kind: Type of the operand.
        params: Parameters of the operation.
        saved: The saved values.
        slot: The running cotangent of the operand, if it has one.

    Returns:
        The array with the result, and what was in the slot; None if that is no plain array.

    Memory:
        No array where the slot is owned, else one, of the operand. Beside it what the rule takes for a block.
    """
    assert pull.along is not None
    running: Any = None if slot is None else slot.value
    if type(running) is TracedArray:
        return None
    like = next((v for v in saved if type(v) is np.ndarray and v.shape == kind.shape), None)
    if slot is not None and slot.owned:
        target = running
    else:  # which lies in memory as what the rule would return
        target = np.empty(kind.shape, kind.dtype) if like is None else np.empty_like(like, kind.dtype, subok=False)
    for block in row_blocks(kind, pull.along(kind, params)):
        place = target[block]
        part = pull.rule(cut(g, kind.ndim, block), ArrayType(place.shape, kind.dtype), params,
                         *[cut(v, kind.ndim, block) for v in saved])
        if running is None:
            place[...] = part
        else:
            np.add(running[block], part, out=place, casting="same_kind")
        del part  # before the next is made
    return target
