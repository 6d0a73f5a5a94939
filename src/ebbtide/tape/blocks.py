"""
Large work in blocks: its temporaries stay in the cache, and take no memory to speak of.

Operands of elementwise work may be broadcast: each gives to a block what lies under it, and what is pulled back to it
is summed block by block, so that a full product is never there. What has to do with whole rows, as a product of them
or their running values, goes in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.traced import TracedArray

# Bytes of a block.
BLOCK = 1 << 17


def blocks(shape: tuple[int, ...], nbytes: int) -> Iterator[tuple[slice, ...]]:
    """
    Yield the slices of leading axes that cut an array into blocks, in C order.

    Args:
        shape: Shape of the array, which has elements.
        nbytes: Its bytes.
    """
    axis, row = 0, nbytes
    while axis < len(shape):
        row //= shape[axis]  # bytes of what lies under one index of this axis
        if row <= BLOCK:
            break
        axis += 1
    if axis == len(shape):
        yield ()
        return
    rows = max(1, BLOCK // max(1, row))
    for place in np.ndindex(shape[:axis]):
        outer = tuple([slice(k, k + 1) for k in place])
        for start in range(0, shape[axis], rows):
            yield (*outer, slice(start, start + rows))


def row_blocks(kind: ArrayType, along: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """
    Yield the slices of all axes that cut an array into blocks of whole rows, the largest first.

    There are two rows in each at least: along the axis of a single one NumPy would sum in another order.

    Args:
        kind: Type of the array.
        along: The axes of a row; there are two rows at least.
    """
    free, row = [k for k in range(kind.ndim) if k not in along and kind.shape[k] > 1], kind.nbytes
    while len(free) > 1 and row // kind.shape[free[0]] > BLOCK // 2:
        row //= kind.shape[free.pop(0)]  # bytes of what lies under one index of this axis
    axis = free[0]
    outer = [n if k < axis and k not in along else 1 for k, n in enumerate(kind.shape)]
    length, rows = kind.shape[axis], max(2, BLOCK // max(1, row // kind.shape[axis]))
    first = rows + (length % rows == 1)
    for place in np.ndindex(*outer):
        parts = [slice(k, k + 1) if n > 1 else slice(None) for k, n in zip(place, outer, strict=True)]
        for start in [0, *range(first, length, rows)]:
            parts[axis] = slice(start, start + rows if start else first)
            yield (*parts,)


def under(shape: tuple[int, ...], ndim: int, block: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the slices of an operand of this shape, broadcast to *ndim* axes, that lie under a block."""
    inner = block[ndim - len(shape) :]
    return tuple([slice(None) if n == 1 else part for n, part in zip(shape, inner, strict=False)])


def cut(value: Any, ndim: int, block: tuple[slice, ...]) -> Any:
    """Return what of a value lies under a block; numbers are the same everywhere."""
    return value[under(value.shape, ndim, block)] if type(value) is np.ndarray and value.ndim else value


def first_block(kind: ArrayType, whole: ArrayType) -> ArrayType:
    """Return the type of what of an operand lies under the first, largest block of its result of the type *whole*."""
    block = next(blocks(whole.shape, whole.nbytes))
    parts = under(kind.shape, len(whole.shape), block)
    lengths = [len(range(n)[part]) for n, part in zip(kind.shape, parts, strict=False)]
    return ArrayType((*lengths, *kind.shape[len(lengths) :]), kind.dtype)


def first_rows(kind: ArrayType, whole: ArrayType, along: tuple[int, ...]) -> ArrayType:
    """Return the type of what of an operand lies under the first block of rows of an array of the type *whole*."""
    parts = under(kind.shape, whole.ndim, next(row_blocks(whole, along)))
    return ArrayType((*[len(range(n)[part]) for n, part in zip(kind.shape, parts, strict=True)],), kind.dtype)


def goes_in_rows(kind: ArrayType, along: tuple[int, ...]) -> bool:
    """Return whether what has to do with rows along some axes is done in blocks: it is large, and there are many."""
    return kind.nbytes > BLOCK and prod([n for k, n in enumerate(kind.shape) if k not in along]) > 1


def goes_in_blocks(kind: ArrayType, out: ArrayType, saved: list[Any]) -> bool:
    """
    Return whether an elementwise pull is done in blocks: it is large, and what it takes fits together.

    Args:
        kind: Type of the operand.
        out: Type of the cotangent.
        saved: The saved values, or their types; what has no shape is a number.
    """
    if out.nbytes <= BLOCK or kind.dtype != out.dtype:
        return False
    shapes = [v.shape for v in saved if type(v) is np.ndarray or type(v) is ArrayType]
    return all(_fits(shape, out.shape) for shape in (kind.shape, *shapes))


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether *shape* can be broadcast to *whole*."""
    if shape == whole:
        return True
    lead = len(whole) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, whole[lead:], strict=True))


def kept_value(make: Any, values: list[Any], out: Any, along: Any, params: Any) -> Any:
    """
    Return a kept value (a mask) of an operation.

    Args:
        make: Computes it from *values*.
        values: Operands and output.
        out: The output.
        along: Whether elements have to do with each other; see `Signature`.
        params: Parameters of the operation.

    Memory:
        The mask; large masks are made in blocks, of rows where it takes these, so that their temporaries are small.
    """
    arrays = [v for v in values if type(v) is np.ndarray]
    if type(out) is not np.ndarray or any(type(v) is TracedArray for v in values) or not arrays:
        return make(*values)
    shape = np.broadcast_shapes(*[v.shape for v in arrays])
    nbytes = prod(shape) * out.itemsize
    kind = ArrayType(shape, out.dtype)
    axes = () if along is None else along(kind, params)
    if nbytes <= BLOCK or (along is not None and not goes_in_rows(kind, axes)):
        return make(*values)
    kept: Any = None
    for block in blocks(shape, nbytes) if along is None else row_blocks(kind, axes):
        part = make(*[cut(v, len(shape), block) for v in values])
        if kept is None:  # of a row it may be one element
            kept = np.empty([part.shape[k] if k in axes else n for k, n in enumerate(shape)], part.dtype)
        kept[block] = part
        del part  # before the next is made
    return kept
