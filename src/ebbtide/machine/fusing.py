"""Operations of a chain that follow each other, as one of the loops that do two or three at once."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

_FIRST = frozenset([np.add, np.subtract, np.multiply])
# The last operation: its name where the result of the others is its first operand, and where it is its second one.
_LAST = MappingProxyType({
    np.add: ("add", "add"),
    np.subtract: ("subtract", "subtract from"),
    np.multiply: ("multiply", "multiply"),
})  # fmt: skip


def fused(instructions: Sequence[tuple[Any, ...]], arrays: int) -> tuple[tuple[Any, ...], ...]:
    """
    Return the instructions of a chain, some of them with the one before, in an order that gives the same.

    Args:
        instructions: Tuples of an operation, the types of its loop, the registers of its operands and of its result.
        arrays: How many registers are arrays, whose values somebody else may read.
    """
    left: list[Any] = list(instructions)
    for place in range(len(left)):
        found = _with_earlier(left, place, arrays)
        if found is not None:
            earlier, left[place] = found
            for number in earlier:
                left[number] = None
    return tuple([instruction for instruction in left if instruction is not None])


def _with_earlier(left: Sequence[Any], place: int, arrays: int) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
    """Return which instructions before one can be done with it, and the instruction that does all of them."""
    operation, types, *registers = left[place]
    letter = types[0]
    if types not in ("ff->f", "dd->d"):
        return None
    *taken, out = registers
    if operation is np.divide:
        return _root(left, place, arrays)
    if operation is np.maximum:
        names: tuple[str, ...] = ("maximum",)
        firsts = frozenset([np.add])
    elif operation in _LAST:
        names, firsts = _LAST[operation], _FIRST
    else:
        return None
    if taken[0] == taken[1]:
        return None
    if operation is np.add and (found := _product_and_square(left, place, arrays)) is not None:
        return found
    for side, name in enumerate(names):
        number = _maker(left, place, taken[side], arrays)
        if number is None:
            continue
        first, *operands = _plain(left[number], letter)
        other, three = taken[1 - side], f"{letter}{letter}{letter}->{letter}"
        if operation is np.multiply and left[number][:2] == (np.sign, f"{letter}->{letter}"):
            return (number,), ("sign, multiply", three, left[number][2], other, other, out)
        if first in firsts:
            return (number,), (f"{first.__name__}, {name}", three, *operands, other, out)
    return None


def _product_and_square(
    left: Sequence[Any], place: int, arrays: int
) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
    """Return a sum of a product and a square."""
    _, types, *taken, out = left[place]
    letter = types[0]
    one, other = [_maker(left, place, register, arrays) for register in taken]
    for product, square in (one, other), (other, one):
        if product is None or square is None:
            return None
        first, *operands = _plain(left[product], letter)
        if first is np.multiply and left[square][:2] == (np.square, f"{letter}->{letter}"):
            types = f"{letter}{letter}{letter}->{letter}"
            return (product, square), ("multiply, add square", types, *operands, left[square][2], out)
    return None


def _root(left: Sequence[Any], place: int, arrays: int) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
    """Return a quotient by a root and a number more, which keeps it from being zero."""
    _, types, x, divisor, out = left[place]
    letter = types[0]
    added = _maker(left, place, divisor, arrays)
    if added is None or x == divisor or left[added][:2] != (np.add, types):
        return None
    _, _, root, more, _ = left[added]
    rooted = _maker(left, added, root, arrays, place)
    if rooted is None or root == more or left[rooted][:2] != (np.sqrt, f"{letter}->{letter}"):
        return None
    return (rooted, added), ("sqrt, add, divide", f"{letter}{letter}{letter}->{letter}", left[rooted][2], more, x, out)


def _plain(instruction: tuple[Any, ...], letter: str) -> tuple[Any, ...]:
    """Return an operation of two operands and those, a square as a product; None instead of any other operation."""
    operation, types, *registers = instruction
    if operation is np.square and types == f"{letter}->{letter}":
        return np.multiply, registers[0], registers[0]
    return (operation, *registers[:2]) if types == f"{letter}{letter}->{letter}" else (None,)


def _maker(left: Sequence[Any], place: int, register: int, arrays: int, then: int | None = None) -> int | None:
    """
    Return the number of the instruction that makes an operand, if it can as well be done later.

    Args:
        left: The instructions, with None for those that are done with others.
        place: Number of the one that takes the operand.
        register: Where that is.
        arrays: How many registers are arrays.
        then: Number of the one with which both are done; `place` by default.
    """
    then = place if then is None else then
    number = next((n for n in range(place - 1, -1, -1) if left[n] is not None and left[n][-1] == register), None)
    if register < arrays or number is None:
        return None
    others = [one for n, one in enumerate(left[:then]) if n > number and n != place and one is not None]
    if any(register in one[2:-1] or one[-1] in left[number][2:-1] for one in others):
        return None
    # Nobody reads it after `place`, before something else is there.
    return None if left[place][-1] != register and _is_read(left[then:], register) else number


def _is_read(instructions: Sequence[Any], register: int) -> bool:
    """Return whether what is in a register is read by instructions after the first, which may write it."""
    if instructions[0][-1] == register:
        return False
    for one in instructions[1:]:
        if one is not None and register in one[2:-1]:
            return True
        if one is not None and one[-1] == register:
            return False
    return False
