"""
Constants that nobody reads: an array is filled, and then each of its elements is written or added to.

The cotangent of a vector of parameters is such a sum: zeros, and the cotangents of its parts. Each part is written
where it belongs, as what its first addition gives, and the zeros are not: a step of 200 small networks takes 0.92 to
1.0 of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ebbtide.program.actions import Action, Operand
from ebbtide.program.equation import Equation

# A step with the equation that it is of; and where bytes are: the buffer, the first of them, that after the last.
Entry = tuple[Action, Equation]
Span = tuple[Any, int, int]


def without_fills(steps: Sequence[Entry], place: Callable[[Operand], tuple[Any, int]]) -> list[Entry]:
    """
    Return steps that do the same, without those that fill what is written over before it is read.

    Args:
        steps: The steps, in order.
        place: Returns what tells the buffer that an operand is in, and its offset there in bytes. What is told apart
            shares no memory.
    """
    fills = [number for number, (action, _) in enumerate(steps) if _is_fill(action)]
    if not fills:
        return list(steps)
    found: list[Entry | None] = list(steps)
    spans = [_spans(action, place) for action, _ in steps]
    for number in fills:
        after = _written_over(steps, spans, number, place)
        if after is not None:
            found[number] = None
            for later, action in after.items():
                found[later] = action, steps[later][1]
    return [entry for entry in found if entry is not None]


def _is_fill(action: Action) -> bool:
    """Return whether a step copies one number, which stays what it is, to each element of an operand."""
    if action.kind != "Elementwise" or len(action.arguments) != 3 or action.arguments[2][0] != "move":
        return False
    source, target = action.arguments[1]
    return isinstance(source.owner, np.ndarray) and not any(source.strides) and _is_dense(target)


def _is_dense(operand: Operand) -> bool:
    """Return whether there is nothing between the elements of an operand, and each of them is there once."""
    nbytes, packed = np.dtype(operand.type).itemsize, sorted(zip(operand.strides, operand.shape, strict=True))
    for step, count in packed:
        if count != 1 and step != nbytes:
            return False
        nbytes *= count
    return nbytes > 0


def _written_over(
    steps: Sequence[Entry], spans: Sequence[list[Span]], number: int, place: Callable[[Operand], tuple[Any, int]]
) -> dict[int, Action] | None:
    """Return the steps that change where a fill is left out; None if something reads what it wrote, or it stays."""
    source, target = steps[number][0].arguments[1]
    left, found = [_span(target, place)], dict[int, Action]()
    for later in range(number + 1, len(steps)):
        touched = [one for one in spans[later] if any(_overlap(one, other) for other in left)]
        if not touched:
            continue
        first = _first_write(steps[later][0], source)
        if first is None:
            return None
        part = _span(first.arguments[1][-1], place)
        whole = next((one for one in left if one[0] == part[0] and one[1] <= part[1] and part[2] <= one[2]), None)
        if whole is None or any(one != part for one in touched):
            return None
        left.remove(whole)
        ends = (whole[0], whole[1], part[1]), (whole[0], part[2], whole[2])
        left += [one for one in ends if one[1] < one[2]]
        found[later] = first
        if not left:
            return found
    return None


def _first_write(action: Action, fill: Operand) -> Action | None:
    """Return a step that does what another one does to what was filled, and only writes; None if there is none."""
    if action.kind != "Elementwise" or len(action.arguments) != 3:
        return None
    shape, operands, link = action.arguments
    part = operands[-1]
    if len(operands) != 2 or not _is_dense(part):
        return None
    if link[0] == "move":
        return action
    if link[0] is not np.add or link[2:] != (1, 0, 1) or fill.type != part.type:
        return None
    filled = replace(fill, shape=shape, strides=(0,) * len(shape))
    return Action("Elementwise", (shape, (operands[0], filled, part), (*link[:2], 1, 0, 2)))


def _span(operand: Operand, place: Callable[[Operand], tuple[Any, int]]) -> Span:
    """Return where a dense operand is."""
    buffer, start = place(operand)
    return buffer, start, start + prod(operand.shape) * np.dtype(operand.type).itemsize


def _spans(action: Action, place: Callable[[Operand], tuple[Any, int]]) -> list[Span]:
    """Return where a step reads and writes."""
    buffers: list[Any] = []

    def number(operand: Operand) -> tuple[int, int]:
        buffer, offset = place(operand)
        if buffer not in buffers:
            buffers.append(buffer)
        return buffers.index(buffer), offset

    step = action.made(number)
    return [(buffers[one], low, high) for one, low, high, _ in (*step.reads, *step.writes) if low < high]


def _overlap(one: Span, other: Span) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
