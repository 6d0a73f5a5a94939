"""What the nodes hold that a sweep passes: saved values, what joint rules keep, and arrays in parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of, type_of
from ebbtide.arrays.primitive import Signature
from ebbtide.ledger import SAVED, Ledger
from ebbtide.storage.extents import UNIT, round_up
from ebbtide.tape.blocks import BLOCK
from ebbtide.tape.node import Node
from ebbtide.tape.saved import LEAST_PAGE, SavedValue, bytes_of, key_of

# What comes out of them may be small beside an operand, as of a matrix and a vector, and they take no more than that.
_PRODUCTS = frozenset({"matmul", "dot"})


def is_pageable(cell: SavedValue) -> bool:
    """Return whether a saved value may be put on disk."""
    # On disk a broadcast array would be larger than it is.
    return type(cell.type) is ArrayType and LEAST_PAGE <= cell.type.nbytes <= bytes_of(cell)


def arrays_in(params: Any, counted: Callable[[Any], bool] | None) -> list[Any]:
    """
    Return the arrays in the parameters of an operation that are part of what is held.

    An object there says by `held_arrays` what it holds, as the pattern of a sparse matrix does.
    """
    if counted is None or type(params) is not dict:
        return []
    found, waiting = [], list(params.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, (tuple, list)):
            waiting += value
        elif not isinstance(value, np.ndarray):
            waiting += getattr(value, "held_arrays", ())
        elif counted(value):
            found.append(value)
    return found


def stays_held(owner: Any, node: Node, ledger: Ledger, has_sizes: bool) -> bool:
    """
    Return whether memory is held when saved values let go of it: by what runs again, or by parameters of operations.

    Args:
        owner: The array that owns the memory.
        node: The operation that saves it.
        ledger: Where it is counted.
        has_sizes: Whether of saved values there are sizes only, so that what is counted there others hold.
    """
    if id(owner) in ledger.kept or not has_sizes:
        return id(owner) in ledger.kept
    inside = any(owner_of(array) is owner for array in arrays_in(node.params, lambda array: True))
    return inside or ledger.shares(SAVED, id(owner))


def descending(roots: list[Node]) -> Iterator[Node]:
    """Yield the nodes that a sweep passes, in its order; only those that it would have in its heap are held."""
    waiting = {node.number: node for node in roots}
    heap = [-number for number in waiting]
    heapify(heap)
    while heap:
        node = waiting.pop(-heappop(heap))
        yield node
        for parent in node.parents or ():
            if parent.number not in waiting:
                waiting[parent.number] = parent
                heappush(heap, -parent.number)


def holders_of(roots: list[Node], counted: Callable[[Any], bool] | None) -> dict[int, int]:
    """Return for each buffer how often the nodes that a sweep passes hold it."""
    holders: dict[int, int] = {}
    for node in descending(roots):
        for value in held_by(node, counted):
            key = key_of(value)
            holders[key] = holders.get(key, 0) + 1
    return holders


def pageable_bytes(roots: list[Node], counted: Callable[[Any], bool], left: int | None = None) -> tuple[int, int]:
    """
    Return the bytes of what nodes hold that could be on disk, the oldest first, and those of disk that lack for it.

    Args:
        roots: The last of the nodes.
        counted: Tells whether a saved value is part of what is held.
        left: The bytes of disk that there are; None for any number.
    """
    found: dict[int, int] = {}
    for node in descending(roots):
        for value in held_by(node, counted):
            if type(value) is SavedValue and is_pageable(value):
                found[key_of(value)] = bytes_of(value)
    for node in descending(roots) if found else ():
        for value in held_by(node, counted):
            if type(value) is not SavedValue or not is_pageable(value):
                found.pop(key_of(value), None)  # others hold the same memory
    there = stored = 0
    for nbytes in reversed(found.values()):
        stored += stored_nbytes(nbytes)
        there += nbytes if left is None or stored <= left else 0
    return there, 0 if left is None else max(0, stored - max(0, left))


def stored_nbytes(nbytes: int) -> int:
    """Return the bytes of disk that a saved value of so many bytes takes at most, with the header of its file."""
    return round_up(nbytes + UNIT)


def held_by(node: Node, counted: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return what the ledger counts for a node: saved values, what a joint rule keeps, arrays in parameters."""
    kept = getattr(node.signature, "kept", ()) if type(node.signature) is not Signature else ()
    cells = [c for c in (*(node.saved or ()), *kept) if type(c) is SavedValue and (counted is None or counted(c))]
    return cells + arrays_in(node.params, counted)


def masks_nbytes(signature: Signature, values: list[Any]) -> int:
    """Return the bytes of the masks that an operation is going to keep, and of what it makes of them for a moment."""
    masks = len(signature.keeps) * max([a.size for a in values if type(a) is np.ndarray], default=0)
    return masks + min(3 * masks, BLOCK)


def result_nbytes(signature: Signature, values: list[Any], params: Any) -> int:
    """Return the bytes of the result of an operation: of a product or an index array's, or those of an operand."""
    most = max([a.nbytes for a in values if type(a) is np.ndarray], default=0)
    is_larger = signature.name in _PRODUCTS and most > BLOCK
    if signature.infer is None or not (is_larger or arrays_in(params, lambda array: array.nbytes > BLOCK)):
        return most
    with suppress(TypeError, ValueError, IndexError):  # operands that do not fit: the operation will say so
        return int(signature.infer(*map(type_of, values), **(params or {})).nbytes)
    return most
