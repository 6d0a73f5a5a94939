"""
The reverse sweep: pulls the cotangents of the outputs back to the leaves, and consumes the tape as it goes.

Nodes are taken by descending number from a heap, so no topological sort is needed. Each node gives its
cotangent to its pulls one after the other; a saved value is released after the last pull that takes it,
and the cotangent after the last pull of all.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from ebbtide.arrays.context import current
from ebbtide.arrays.primitive import FRESH, PASSED, Pull, Signature, unbroadcast
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import CotangentError, ReleasedValueError
from ebbtide.storage.checksum import compute_crc32c
from ebbtide.tape.accumulate import Accumulator, blockwise, rowwise
from ebbtide.tape.blocks import BLOCK, goes_in_blocks, goes_in_rows
from ebbtide.tape.communication import reached, required_nodes
from ebbtide.tape.node import PROJECTION, Node
from ebbtide.tape.record import Tape
from ebbtide.tape.saved import SavedValue

# Type of what a derivative rule may return beside arrays of any level.
_ARRAYS = (np.ndarray, np.generic, TracedArray)


def sweep(
    tape: Tape, seeds: list[tuple[Node, Any, bool]], leaves: list[Node], *, retain: bool = False
) -> list[tuple[Any, bool]]:
    """
    Return the cotangents of the leaves.

    Args:
        tape: The tape, for its ledger and its pager.
        seeds: Output nodes with their cotangents and whether the sweep owns these; emptied.
        leaves: The leaves whose cotangents are wanted.
        retain: Keep nodes and saved values for another sweep.

    Returns:
        For each leaf its cotangent and whether it is owned; (None, False) without a dependence.

    Raises:
        ReleasedValueError: The tape was consumed before.
        CotangentError: A rule returned what cannot be a cotangent of its operand.

    Memory:
        The cotangents between the place of the sweep and the outputs; unless *retain*, each node's saved
        values are gone once it is passed.
    """
    watch = tape.pager
    follower = current().follower
    before = None if follower is None else follower.node
    slots: dict[int, Accumulator] = {}
    heap: list[int] = []
    # The list is emptied, and no local name is left, so that a seed dies when the sweep has used it.
    seeds.reverse()
    while seeds:
        _add(watch, slots, heap, *seeds.pop())
    done: dict[int, Accumulator] = {}
    required = required_nodes(tape, heap, retain=retain)
    alone = not required
    quick = watch is None and not retain and follower is None and alone
    while heap:
        number = -heappop(heap)
        slot = slots.pop(number) if alone else reached(watch, required, slots, number)
        if slot is None:
            continue
        if quick and type(slot.node.signature) is Signature:
            slot = _pull_small(tape, slot, slots, heap)
        node = slot.node
        signature = node.signature
        if signature is None:
            done[node.number] = slot
            continue
        if follower is not None:
            follower.node = node
        if type(signature) is Signature:
            _pull_all(tape, slot, slots, heap, retain)
        elif signature is PROJECTION:
            _collect(slot, slots, heap)
        else:
            _pull_joint(tape, slot, slots, heap, retain)
        if watch is not None and type(slot.value) is not list:
            watch.drop(slot.value)
        del slot, node
    if follower is not None:
        follower.node = before
    found = [done.get(leaf.number) for leaf in leaves]
    if watch is not None:
        for slot in done.values():
            watch.drop(slot.value)
    return [(None, False) if slot is None else (slot.value, slot.owned) for slot in found]


def _pull_small(tape: Tape, slot: Accumulator, slots: dict[int, Accumulator], heap: list[int]) -> Accumulator:
    """
    Pull cotangents back through elementwise operations on small arrays; return the slot of the first other node.

    With small arrays the time of the sweep itself shows: this is `_pull_all` without what is for large arrays only, and
    the operand that is the next node in any case does not go through the heap.
    """
    node, g, owned, released = slot.node, slot.value, slot.owned, 0
    del slot
    while True:
        signature, kind = node.signature, node.type
        if type(signature) is not Signature or not signature.local or kind.nbytes > BLOCK:
            break
        parents, saved = _consume(tape, node, False) if node.parents is None else (node.parents, node.saved)
        node.parents = node.saved = None
        pulls = signature.pulls
        place, last, shared = 0, len(pulls) - 1, False
        while True:
            (pull, uses, _), parent, fresh = pulls[place], parents[place], True
            wanted = parent.type
            if len(uses) == 1:
                value = saved[uses[0]]
                if type(value) is SavedValue:
                    # `open` in short, for what it finds nearly always: an array in memory, unchanged.
                    sound = type(value.value) is np.ndarray and value.crc == compute_crc32c(value.value)
                    value = value.value if sound else value.open(node)
                derivative: Any = pull.derivative
                result = derivative(g, value) if pull.scaled else g * derivative(value)
                if result.dtype is not wanted.dtype or (wanted is not kind and result.shape != wanted.shape):
                    result = unbroadcast(result, wanted)
            elif uses:
                values = [v.open(node) if type(v) is SavedValue else v for v in saved]
                result = pull.rule(g, wanted, None, *[values[s] for s in uses])
            else:
                passed = pull.result is PASSED and (wanted is kind or wanted == kind)
                result = g if passed else pull.rule(g, wanted, None)
                if pull.result is not FRESH:
                    exclusive = owned and place == last and not shared
                    fresh = exclusive if passed else _ownership(pull, result, g, exclusive)
                    shared = True
            number = parent.number
            running = slots.get(number)
            if running is not None:
                total = running.value
                if running.owned and type(total) is type(result) is np.ndarray and total.flags.c_contiguous:
                    np.add(total, result, total)
                else:
                    running.add(result, fresh)
            elif place == last and (not heap or -heap[0] < number):
                node, g, owned = parent, result, fresh
                break
            else:
                slots[number] = Accumulator(parent, result, fresh)
                heappush(heap, -number)
            if place == last:
                following = slots.pop(-heappop(heap))
                node, g, owned = following.node, following.value, following.owned
                del following
                break
            place += 1
        for value in saved:
            if type(value) is np.ndarray:
                released += value.nbytes
        value = values = None  # names that would keep saved values alive in the operation that comes next
    tape.ledger.saved -= released
    return Accumulator(node, g, owned)


def _ownership(pull: Pull, result: Any, g: Any, exclusive: bool) -> bool:
    """Return whether the result of a pull that is not FRESH is ours, given that of its cotangent."""
    if pull.result is not PASSED:
        return False
    if result is g:
        return exclusive
    if type(result) is np.ndarray and result.base is not None:
        return exclusive and result.flags.writeable
    return True


def _consume(tape: Tape, node: Node, retain: bool) -> tuple[Any, Any]:
    """Return parents and saved values of a node, which forgets them unless they are retained."""
    parents, saved = node.parents, node.saved
    if parents is None:
        raise ReleasedValueError(
            f"The saved values of {node.name} at {node.line} are gone: {tape.consumer or 'an earlier sweep'} "
            "consumed them. Ask vjp for retain=True to pull back several times."
        )
    if not retain:
        node.parents = node.saved = None
    return parents, saved


def _pull_all(tape: Tape, slot: Accumulator, slots: dict[int, Accumulator], heap: list[int], retain: bool) -> None:
    """Pull the cotangent of one node back to its parents."""
    node = slot.node
    g, owned = slot.value, slot.owned
    parents, saved = _consume(tape, node, retain)
    params = node.params
    watch = tape.pager
    pulls, order = node.signature.ordered(parents)
    if watch is None:
        _count_released(tape, saved, retain)
    saved = list(saved)
    remaining = len(pulls)
    shared = False
    for (pull, uses, releases), parent in zip(pulls, order, strict=True):
        remaining -= 1
        kind = parent.type
        values = [saved[s] for s in uses]
        number = parent.number
        running = slots.get(number)
        # The cotangent may be used up by the last pull, unless an earlier one passed it on.
        exclusive = owned and not remaining and not shared
        if watch is not None:
            watch.room(pull, node, parent, running, exclusive, values)
        for n, value in enumerate(values):
            if type(value) is SavedValue:
                values[n] = value.open(node)
        result: Any = None
        if type(g) is np.ndarray and not _any_traced(values):
            if pull.derivative is not None and goes_in_blocks(kind, node.type, values):
                result = blockwise(pull, g, kind, values, running, exclusive)
            elif pull.along is not None and goes_in_rows(kind, pull.along(kind, params)):
                result = rowwise(pull, g, kind, params, values, running)
            if result is not None:
                if running is not None:
                    _replace(watch, running, result)
                else:
                    _add(watch, slots, heap, parent, result, True)
            elif running is not None and pull.accumulate is not None and kind.nbytes > BLOCK:
                result = _accumulated(watch, pull, g, params, values, running)
        if result is None:
            consume = pull.consume if exclusive and type(g) is np.ndarray else None
            result = pull.rule(g, kind, params, *values) if consume is None else consume(g, params)
            if not pull.trusted:
                result = _checked(result, node, parent)
            fresh = consume is not None or pull.result is FRESH or _ownership(pull, result, g, exclusive)
            shared = shared or not fresh
            _add(watch, slots, heap, parent, result, fresh)
        del values, result, running
        for s in releases:
            saved[s] = None


def _accumulated(watch: Any, pull: Pull, g: Any, params: Any, values: list[Any], running: Accumulator) -> Any:
    """Return the running cotangent of an operand with the contribution added in place; None where that cannot be."""
    if type(running.value) is not np.ndarray:
        return None
    if not running.owned:
        _replace(watch, running, np.array(running.value, order="C"))
    accumulate: Any = pull.accumulate
    return running.value if accumulate(running.value, g, params, *values) else None


def _any_traced(values: list[Any]) -> bool:
    return any(type(value) is TracedArray for value in values)


def _add(watch: Any, slots: dict[int, Accumulator], heap: list[int], node: Node, value: Any, owned: bool) -> None:
    """Add a contribution to the running cotangent of a node, or start it: that of an operand, or an output's own."""
    running = slots.get(node.number)
    if running is None:
        slots[node.number] = Accumulator(node, value, owned)
        heappush(heap, -node.number)
        if watch is not None:
            watch.take(value)
        return
    before = running.value
    running.add(value, owned)
    if watch is not None and running.value is not before:
        watch.take(running.value)
        watch.drop(before)


def _replace(watch: Any, running: Accumulator, value: Any) -> None:
    """Let a running cotangent be an owned array from now on."""
    if watch is not None and value is not running.value:
        watch.take(value)
        watch.drop(running.value)
    running.value, running.owned = value, True


def _count_released(tape: Tape, saved: Any, retain: bool) -> None:
    if not retain:
        released = 0
        for value in saved:
            if type(value) is np.ndarray:
                released += value.nbytes
        tape.ledger.saved -= released


def _checked(result: Any, node: Node, parent: Node) -> Any:
    """Return a contribution as an array of the right shape and dtype, if it is one."""
    kind = parent.type
    if not isinstance(result, _ARRAYS):
        result = np.asarray(result)
    if result.shape == kind.shape and (result.dtype is kind.dtype or result.dtype == kind.dtype):
        return result
    if result.shape == kind.shape and np.can_cast(result.dtype, kind.dtype, "same_kind"):
        return result.astype(kind.dtype)
    raise CotangentError(
        f"The vjp rule of {node.name} at {node.line} returned {result.dtype}{list(result.shape)} as the "
        f"cotangent of an operand of type {kind}. A cotangent has the shape and dtype of its operand: sum "
        "over broadcast axes and cast in the rule."
    )


def _collect(slot: Accumulator, slots: dict[int, Accumulator], heap: list[int]) -> None:
    """Put the cotangent of one output with those of the other outputs of its operation."""
    (parent,) = slot.node.parents
    gathered = slots.get(parent.number)
    if gathered is None:
        gathered = slots[parent.number] = Accumulator(parent, [None] * len(parent.type), False)
        heappush(heap, -parent.number)
    gathered.value[slot.node.params] = (slot.value, slot.owned)


def _pull_joint(tape: Tape, slot: Accumulator, slots: dict[int, Accumulator], heap: list[int], retain: bool) -> None:
    """Pull the cotangents of an operation with several outputs back to its parents."""
    node = slot.node
    parents, node.saved = _consume(tape, node, retain)
    _count_released(tape, node.saved, retain)
    cotangents, slot.value = slot.value, []
    watch = tape.pager
    for position, value, owned in node.signature.pull(cotangents, node, retain):
        parent = parents[position]
        # No name is left for what was replaced, or it would live while the rule makes the next one.
        _add(watch, slots, heap, parent, _checked(value, node, parent), owned)
