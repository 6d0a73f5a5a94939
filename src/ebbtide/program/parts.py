"""Parts of arrays as ranges, one along each axis: where two of them meet, and what one has outside of another."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from ebbtide.program.windows import parts_of

Part = tuple[range, ...]


def part_at(index: Sequence[Any], shape: tuple[int, ...]) -> Part:
    """Return the elements that an index without arrays names, in ascending order along each axis."""
    found: list[range] = []
    for part, n in parts_of(index, shape):
        if type(part) is slice:
            along = range(n)[part]
            found.append(along if along.step > 0 else along[::-1])
        elif part is not None:
            found.append(range(part % n, part % n + 1))
    return tuple(found)


def meeting(one: Part, other: Part) -> Part:
    """Return the elements of both of two parts of an array."""
    return tuple([_common(a, b) for a, b in zip(one, other, strict=True)])


def outside(part: Part, other: Part) -> list[Part]:
    """Return the elements of a part that are not in another one, as parts of which no two have an element in common."""
    if not all(part):
        return []
    both = meeting(part, other)
    if not all(both):
        return [part]
    return [
        (*both[:axis], piece, *part[axis + 1 :])
        for axis, (all_, common) in enumerate(zip(part, both, strict=True))
        for piece in _left(all_, common)
    ]


def _common(a: range, b: range) -> range:
    """Return the numbers of two ascending ranges."""
    divisor = gcd(a.step, b.step)
    if (b.start - a.start) % divisor:
        return range(0)
    step = a.step * b.step // divisor
    # The first k with a.start + k a.step in the progression of b, which then repeats.
    turn = b.step // divisor
    k = (b.start - a.start) // divisor * pow(a.step // divisor, -1, turn) % turn
    first, low = a.start + k * a.step, max(a.start, b.start)
    first += max(0, -(-(low - first) // step)) * step
    return range(first, min(a.stop, b.stop), step)


def _left(all_: range, common: range) -> list[range]:
    """Return the numbers of a range that are not in another one, whose numbers are all in it."""
    begin, end = all_.index(common[0]), all_.index(common[-1])
    every = common.step // all_.step if len(common) > 1 else 1
    pieces = [all_[:begin], *[all_[begin + k : end : every] for k in range(1, every)], all_[end + 1 :]]
    return [piece for piece in pieces if piece]
