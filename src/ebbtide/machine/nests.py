"""
Nests of loops: elementwise operations as the source of a function of Python, which a compiler of such makes fast.

All operations of an element are done before those of the next one, so what is between them stays in a register of the
processor. The function has the bits of NumPy's loops, whoever runs it: each operation in it is rounded alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np

# What a step reads or writes: buffer, byte offset, type, strides; and the arguments of `Elementwise`.
Operand = tuple[int, int, str, tuple[int, ...]]
Part = tuple[Any, ...]

# Of a compiled step: steps, and buffers by type.
MOST_STEPS = MOST_VIEWS = 64
_FLOATS = "fd"
_CAST = "?bhilqBHILQfd"
# Of the types that views have.
NAMES = tuple(dict.fromkeys(np.dtype(letter).name for letter in _CAST))
# Those of one type of floating-point numbers, and their comparisons. Two nan may end as either of them.
_SAME: Mapping[np.ufunc, str] = MappingProxyType({
    np.add: "{} + {}",
    np.subtract: "{} - {}",
    np.multiply: "{} * {}",
    np.divide: "{} / {}",
    np.negative: "-{}",
    np.absolute: "abs({})",
    np.square: "{0} * {0}",
    np.sqrt: "sqrt({})",
    np.reciprocal: "{kind}(1) / {}",
    np.maximum: "choose(({0} > {1}) | ({0} != {0}), {0}, {1})",
    np.minimum: "choose(({0} < {1}) | ({0} != {0}), {0}, {1})",
})  # fmt: skip
_COMPARED: Mapping[np.ufunc, str] = MappingProxyType({
    np.equal: "{} == {}",
    np.not_equal: "{} != {}",
    np.less: "{} < {}",
    np.less_equal: "{} <= {}",
    np.greater: "{} > {}",
    np.greater_equal: "{} >= {}",
})  # fmt: skip
_LOGICAL: Mapping[np.ufunc, str] = MappingProxyType({np.logical_and: "{} & {}", np.logical_or: "{} | {}"})
# Compilers do what takes long only for the elements that a choice takes it for, and the errors of the others are lost.
_SLOW = frozenset([np.divide, np.sqrt, np.reciprocal])
_CHOOSING = frozenset([np.maximum, np.minimum, "where"])


@final
@dataclass(frozen=True, slots=True)
class View:
    """
    Elements of a buffer, one after the other, of which a nest takes the address.

    Args:
        buffer: Number of the buffer.
        offset: Of the first element, in bytes.
        letter: Their type.
        length: How many there are.
    """

    buffer: int
    offset: int
    letter: str
    length: int


@final
@dataclass(frozen=True, slots=True)
class Nest:
    """
    A nest of loops.

    Args:
        text: The source: a function `nest` of the addresses of its views. From around it it takes `carray`, which
            returns the array at an address, of a shape and type, `sqrt`, `choose`, and the names of types.
        views: What it reads and writes.
    """

    text: str
    views: tuple[View, ...]


def nest_of(parts: Sequence[Part]) -> Nest | None:
    """
    Return the nest that does some steps, all operations of them for each element; None if that has not the same bits.

    Args:
        parts: The arguments of the steps, all of one shape, as `Elementwise` takes them.
    """
    shape = parts[0][0]
    known = all(_expression(*link[:2]) is not None for part in parts for link in part[2:])
    operations = {link[0] for part in parts for link in part[2:]}
    if not known or (operations & _SLOW and operations & _CHOOSING) or any(part[0] != shape for part in parts):
        return None
    if 0 in shape or len(parts) > MOST_STEPS or not _is_apart(parts):
        return None
    nest = _Writer(parts).nest
    return nest if len(nest.views) <= MOST_VIEWS else None


def _expression(operation: Any, types: str) -> str | None:
    """Return the expression of an operation; None if only NumPy has its bits."""
    letters, _, result = types.partition("->")
    if operation == "cast":
        known = result in _FLOATS and letters in _CAST
        return f"{np.dtype(result).name}({{}})" if known else None
    if not set(types) <= set(f"{_FLOATS}?->"):
        return None
    if operation == "move":
        return "{}"
    if operation == "where":
        return "choose({}, {}, {})"
    alike = len(set(letters)) == 1
    if alike and letters[0] in _FLOATS:
        if result == letters[0] and operation in _SAME:
            return _SAME[operation].replace("{kind}", np.dtype(result).name)
        return _COMPARED.get(operation) if result == "?" else None
    return _LOGICAL.get(operation) if alike and result == "?" else None


def _is_apart(parts: Sequence[Part]) -> bool:
    """
    Return whether steps can be done element by element, and again: nothing is overwritten that they read.

    A later step may read what an earlier one has written, if that is the same element.
    """
    for number, (shape, operands, *links) in enumerate(parts):
        written, last = operands[-1], len(operands) - 1
        made = [link[-1] for link in links]
        if min(made) < last or any(last in link[2:-1] and last not in made[:k] for k, link in enumerate(links)):
            return False
        for later, (_, others, *_) in enumerate(parts):
            if later != number and _overlap(written, others[-1], shape):
                return False
            for read in others[:-1]:
                if _overlap(written, read, shape) and (later <= number or read != written):
                    return False
    return True


def _overlap(x: Operand, y: Operand, shape: tuple[int, ...]) -> bool:
    (low, high), (least, most) = _ends(x, shape), _ends(y, shape)
    return x[0] == y[0] and low < most and least < high


def _ends(operand: Operand, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the first byte of an operand, and that after its last."""
    _, offset, letter, strides = operand
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low = offset + sum([min(one, 0) for one in reach])
    return low, offset + sum([max(one, 0) for one in reach]) + np.dtype(letter).itemsize


@final
class _Writer:
    """Writes the source of some steps."""

    def __init__(self, parts: Sequence[Part]) -> None:
        operands = list(dict.fromkeys(operand for part in parts for operand in part[1]))
        shape, written = parts[0][0], parts[-1][1][-1]
        self._axes = list(_axes(shape, operands, operands.index(written)))
        self._places = {operand: number for number, operand in enumerate(operands)}
        self._find_views(operands, shape)
        before, inside = [], []
        names: dict[Operand, str] = {}
        count = 0
        for _, taken, *links in parts:
            registers: dict[int, str] = {}
            for register, operand in enumerate(taken[:-1]):
                if operand not in names:
                    names[operand] = f"x{len(names)}"
                    constant = not any(operand[3])
                    (before if constant else inside).append(f"{names[operand]} = {self._element(operand)}")
                registers[register] = names[operand]
            for operation, types, *of, to in links:
                expression = _expression(operation, types)
                assert expression is not None
                inside.append(f"y{count} = {expression.format(*[registers[register] for register in of])}")
                registers[to] = f"y{count}"
                count += 1
            result = registers[len(taken) - 1]
            inside.append(f"{self._element(taken[-1])} = {result}")
            names[taken[-1]] = result
        self.nest = Nest(self._text(before, inside), tuple(self._views))

    def _find_views(self, operands: Sequence[Operand], shape: tuple[int, ...]) -> None:
        """Note the elements of each buffer that are read or written, by type."""
        ends: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for operand in operands:
            ends.setdefault((operand[0], operand[2]), []).append(_ends(operand, shape))
        self._views = []
        self._numbers = {}
        for (buffer, letter), found in ends.items():
            low, high = min([low for low, _ in found]), max([high for _, high in found])
            self._numbers[buffer, letter] = len(self._views)
            self._views.append(View(buffer, low, letter, (high - low) // np.dtype(letter).itemsize))

    def _element(self, operand: Operand) -> str:
        """Return the element of an operand in its view."""
        buffer, offset, letter, _ = operand
        number, size = self._numbers[buffer, letter], np.dtype(letter).itemsize
        terms = []
        for axis, (_, strides) in enumerate(self._axes):
            step = strides[self._places[operand]] // size
            if step:
                terms.append(f"i{axis}" if step == 1 else f"{step} * i{axis}")
        first = (offset - self._views[number].offset) // size
        return f"a{number}[{' + '.join([*terms, *([str(first)] if first or not terms else [])])}]"

    def _text(self, before: Sequence[str], inside: Sequence[str]) -> str:
        lines = ["def nest(addresses):"]
        for number, view in enumerate(self._views):
            kind = np.dtype(view.letter).name
            lines.append(f"    a{number} = carray(addresses[{number}], ({view.length},), {kind})")
        lines += [f"    {line}" for line in before]
        for axis, (size, _) in enumerate(self._axes):
            lines.append(f"{'    ' * (axis + 1)}for i{axis} in range({size}):")
        lines += [f"{'    ' * (len(self._axes) + 1)}{line}" for line in inside]
        return "\n".join([*lines, ""])


def _axes(shape: tuple[int, ...], operands: Sequence[Operand], last: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the axes of a nest, those first along which results are far apart, with the strides of the operands."""
    each = zip(shape, zip(*[operand[3] for operand in operands], strict=True), strict=True)
    axes = sorted([one for one in each if one[0] != 1], key=lambda axis: -abs(axis[1][last]))
    while axes:
        size, strides = axes.pop(0)
        # Rows that follow each other in all operands are one.
        while axes and all(one == axes[0][0] * inner for one, inner in zip(strides, axes[0][1], strict=True)):
            more, strides = axes.pop(0)
            size *= more
        yield size, strides
