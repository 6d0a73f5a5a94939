"""
Boxes: equations that read and write parts of arrays, computed as one without the arrays between them.

A roll, a pad, a slice that is read, written or added to is nothing but another place to read from, the same for all
elements of a box. So the result is cut into boxes, most of it into one and its edges into thin ones, in each of which
every element is the same elementwise expression of operands that are read in place, each from an offset of its own.
What two elements both need is computed twice, which costs less than an array that is written and read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np

from ebbtide.program.chains import Pieces
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.evaluate import compute
from ebbtide.program.windows import Cut, Link, Read, Terms


@final
@dataclass(frozen=True, slots=True)
class Boxed:
    """
    What equations compute whose values only the last of them needs: the function of an equation.

    Args:
        operands: What they take from elsewhere.
        equations: The equations, in order.
    """

    operands: tuple[Variable, ...]
    equations: tuple[Equation, ...]

    __name__ = "boxes"

    def __call__(self, *operands: Any) -> Any:
        """Return the result as NumPy computes it, one equation after the other."""
        known = dict(zip(self.operands, operands, strict=True))
        for equation in self.equations:
            known[equation.output] = compute(equation, known)
        return known[self.equations[-1].output]


@final
@dataclass(frozen=True, slots=True)
class Box:
    """
    A box of a result.

    Args:
        begin: Its first element.
        shape: How many elements it has along each axis.
        terms: Reads and links, operands before what takes them; the last one is the result.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    terms: tuple[Read | Link, ...]


def boxes_of(function: Boxed) -> Iterator[Box]:
    """
    Yield the boxes of a result.

    Raises:
        ValueError: An equation has no loop of the machine.
    """
    made = {equation.output: equation for equation in function.equations}
    output = function.equations[-1].output
    left = [((0,) * len(output.type.shape), output.type.shape)]
    while left:
        begin, shape = left.pop()
        terms = Terms(made, shape)
        try:
            terms.value(output, tuple([(axis, start, 1) for axis, start in enumerate(begin)]), "")
        except Cut as cut:
            low = tuple([cut.place if axis == cut.axis else n for axis, n in enumerate(shape)])
            high = tuple([n - cut.place if axis == cut.axis else n for axis, n in enumerate(shape)])
            after = tuple([start + (cut.place if axis == cut.axis else 0) for axis, start in enumerate(begin)])
            left += [(after, high), (begin, low)]
        else:
            yield Box(begin, shape, tuple(terms.found))


def linked(box: Box) -> tuple[list[Read], list[tuple[Any, ...]]]:
    """Return the operands of a box, and its operations as steps of the machine take them, with their registers."""
    reads = [term for term in box.terms if type(term) is Read]
    last: dict[int, int] = {term: number for number, link in enumerate(box.terms) for term in link_terms(link)}
    result, pieces = len(box.terms) - 1, Pieces(len(reads) + 1)
    registers: dict[int, int] = {}
    kinds: dict[int, np.dtype] = {}
    links: list[tuple[Any, ...]] = []
    for number, term in enumerate(box.terms):
        if type(term) is Read:
            registers[number] = len(registers) - len(links)
            continue
        assert type(term) is Link
        kind = np.dtype(term.types.partition("->")[2])
        ending = [one for one in dict.fromkeys(term.terms) if one in kinds and last[one] == number]
        # As in a chain an operand that ends here gives its piece to the result.
        for one in [one for one in ending if kinds[one] == kind]:
            pieces.give(registers[one], kind)
        registers[number] = len(reads) if number == result else pieces.take(kind)
        for one in [one for one in ending if kinds[one] != kind]:
            pieces.give(registers[one], kinds[one])
        kinds[number] = kind
        links.append((term.operation, term.types, *[registers[one] for one in term.terms], registers[number]))
    if not links:
        (read,) = reads
        links.append(("move", f"{read.letter}->{read.letter}", 0, 1))
    return reads, links


def link_terms(term: Read | Link) -> tuple[int, ...]:
    """Return the terms that a term takes."""
    return term.terms if type(term) is Link else ()


def size_of(box: Box) -> int:
    """Return how many elements a box has."""
    return prod(box.shape)
