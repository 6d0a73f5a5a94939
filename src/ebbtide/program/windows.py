"""
Windows: how the elements of a value are read that an equation would have computed, from those that it takes.

Through a window one sees as many elements of a value as a box has. A view, a roll, a pad or a part that was written is
read by moving the window; where its elements would come from two places, the box has to be cut there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np

from ebbtide.program.chains import key_of, ufunc_loop_of
from ebbtide.program.equation import Equation, Variable

# Where the elements of a value are for those of a box: for each axis of the value the axis of the box along which it
# goes (None: it stays), the place for the first element, and how far it is to the next one.
Window = tuple[tuple[int | None, int, int], ...]


@final
class Read(NamedTuple):
    """
    An operand of a box.

    Args:
        value: A variable, a plain array, or a number.
        window: Which of its elements.
        letter: Of a number the type that it has.
    """

    value: Any
    window: Window
    letter: str


@final
class Link(NamedTuple):
    """
    An operation in a box.

    Args:
        operation: A ufunc, or the name of a loop of the machine.
        types: Of its loop, as in `ufunc.types`.
        terms: Its operands, reads and links, by their numbers.
    """

    operation: Any
    types: str
    terms: tuple[int, ...]


@final
class Cut(Exception):  # noqa: N818 - no error: where a box ends and another one begins
    """Before an element of a box and from it on are different expressions."""

    def __init__(self, axis: int, place: int) -> None:
        self.axis, self.place = axis, place


@final
class Terms:
    """The expression of the elements of a box: each value once for each window."""

    def __init__(self, made: Mapping[Variable, Equation], shape: tuple[int, ...]) -> None:
        self.found: list[Read | Link] = []
        self._made, self._shape = made, shape
        self._numbers: dict[Any, int] = {}
        self._letters: list[str] = []

    def value(self, value: Any, window: Window, letter: str) -> int:
        """Return the number of the term that a value is; *letter* is the type of one that is a number."""
        key = key_of(value), window, "" if _has_type(value) else letter
        if key not in self._numbers:
            equation = self._made.get(value) if type(value) is Variable else None
            if equation is None:
                kind = _letter(value, letter)
                self._numbers[key] = self._add(Read(value, window, kind), kind)
            else:
                read = MOVES.get(equation.name) or VIEWS.get(equation.name) or _elementwise
                self._numbers[key] = read(self, equation, window)
        return self._numbers[key]

    def _add(self, term: Read | Link, letter: str) -> int:
        self.found.append(term)
        self._letters.append(letter)
        return len(self.found) - 1

    def cast(self, number: int, letter: str) -> int:
        """Return a term as one of a type."""
        own = self._letters[number]
        if np.dtype(own) == np.dtype(letter):
            return number
        key = number, letter
        if key not in self._numbers:
            self._numbers[key] = self._add(Link("cast", f"{own}->{letter}", (number,)), letter)
        return self._numbers[key]

    def link(self, operation: Any, types: str, terms: Sequence[int]) -> int:
        """Return an operation on terms of its types."""
        letters, _, result = types.partition("->")
        terms = [self.cast(term, letter) for term, letter in zip(terms, letters, strict=True)]
        return self._add(Link(operation, types, tuple(terms)), result)

    def within(self, window: Window, ranges: Sequence[tuple[int, int]]) -> bool:
        """
        Return whether the elements of a window are in ranges along its axes, all of them or none.

        Raises:
            Cut: Some are and some are not.
        """
        cut: Cut | None = None
        for (axis, start, step), (low, high) in zip(window, ranges, strict=True):
            count = 1 if axis is None else self._shape[axis]
            inside = low <= start < high
            # Elements until it is otherwise; one that goes away from a range never comes to it.
            if inside:
                there = count if not step else -(-(high - start) // step) if step > 0 else (start - low) // -step + 1
            else:
                there = count if step * (low - start) <= 0 else _first(start, step, low, high)
            if there < count and axis is not None:
                cut = Cut(axis, there)
            elif not inside:
                return False
        if cut is not None:
            raise cut
        return True


def _first(start: int, step: int, low: int, high: int) -> int:
    """Return the number of the first element that is in a range, or past it."""
    return -(-(low - start) // step) if step > 0 else -(-(start - high + 1) // -step)


def _has_type(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (type(value) is Variable and not value.is_number)


def _letter(value: Any, letter: str) -> str:
    """Return the type of an operand; of a number that has none the one that is asked for."""
    if type(value) is Variable and not value.is_number:
        return value.type.dtype.char
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.char
    return letter or np.asarray(value).dtype.char


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an argument."""
    return value.type.shape if type(value) is Variable else np.shape(value)


def _spread(window: Window, shape: tuple[int, ...]) -> Window:
    """Return the window of a value that is broadcast to one that has this window."""
    last = window[len(window) - len(shape) :] if shape else ()
    return tuple([(None, 0, 0) if n == 1 else one for one, n in zip(last, shape, strict=True)])


# How a value is read through a window, by the equation that would have computed it.


def _elementwise(terms: Terms, equation: Equation, window: Window) -> int:
    found = ufunc_loop_of(equation)
    if found is None:
        raise ValueError(f"{equation.name} has no loop.")
    ufunc, types, arguments = found
    taken = [
        terms.value(x, _spread(window, shape_of(x)), letter)
        for x, letter in zip(arguments, types.partition("->")[0], strict=True)
    ]
    return terms.link(ufunc, types, taken)


def _where(terms: Terms, equation: Equation, window: Window) -> int:
    letter = equation.output.type.dtype.char
    operands = zip(equation.arguments, f"?{letter}{letter}", strict=True)
    taken = [terms.value(x, _spread(window, shape_of(x)), one) for x, one in operands]
    return terms.link("where", f"?{letter}{letter}->{letter}", taken)


def _cast(terms: Terms, equation: Equation, window: Window) -> int:
    letter = equation.output.type.dtype.char
    return terms.cast(terms.value(equation.arguments[0], window, letter), letter)


def _getitem(terms: Terms, equation: Equation, window: Window) -> int:
    x, left, found = equation.arguments[0], list(window), []
    for part, n in parts_of(equation.params["index"], shape_of(x)):
        if part is None:
            left.pop(0)
        elif type(part) is slice:
            (start, _, step), (axis, first, each) = part.indices(n), left.pop(0)
            found.append((axis, start + step * first, step * each))
        else:
            found.append((None, int(part) % n, 0))
    return terms.value(x, tuple(found), "")


def _transpose(terms: Terms, equation: Equation, window: Window) -> int:
    axes = equation.params["axes"]
    order = range(len(window))[::-1] if axes is None else [axis % len(window) for axis in axes]
    at = dict(zip(order, window, strict=True))
    return terms.value(equation.arguments[0], tuple([at[axis] for axis in range(len(window))]), "")


def _broadcast(terms: Terms, equation: Equation, window: Window) -> int:
    x = equation.arguments[0]
    return terms.value(x, _spread(window, shape_of(x)), equation.output.type.dtype.char)


def _reshape(terms: Terms, equation: Equation, window: Window) -> int:
    """Drop and add axes of one element: no other reshape is one of windows."""
    x = equation.arguments[0]
    kept = iter([one for one, n in zip(window, equation.output.type.shape, strict=True) if n != 1])
    return terms.value(x, tuple([(None, 0, 0) if n == 1 else next(kept) for n in shape_of(x)]), "")


def _written(terms: Terms, equation: Equation, window: Window) -> Window | None:
    """Return the window of what is written to a part, for that of the whole; None where nothing is."""
    parts = parts_of(equation.params["index"], equation.output.type.shape)
    bounds = [part.indices(n)[:2] if type(part) is slice else (part % n, part % n + 1) for part, n in parts]
    if not terms.within(window, bounds):
        return None
    shifted = [(axis, start - low, step) for (axis, start, step), (low, _) in zip(window, bounds, strict=True)]
    return tuple([one for one, (part, _) in zip(shifted, parts, strict=True) if type(part) is slice])


def _setitem(terms: Terms, equation: Equation, window: Window) -> int:
    (base, value), letter = equation.arguments, equation.output.type.dtype.char
    at = _written(terms, equation, window)
    if at is None:
        return terms.value(base, window, letter)
    return terms.cast(terms.value(value, _spread(at, shape_of(value)), letter), letter)


def _scatter(terms: Terms, equation: Equation, window: Window) -> int:
    at = _written(terms, equation, window)
    letter = equation.output.type.dtype.char
    return terms.value(0, (), letter) if at is None else terms.value(equation.arguments[0], at, letter)


def _add_scatter(terms: Terms, equation: Equation, window: Window) -> int:
    (total, g), letter = equation.arguments, equation.output.type.dtype.char
    at = _written(terms, equation, window)
    sums = terms.value(total, window, letter)
    if at is None and not equation.params["unsigned"]:
        return sums
    # What is added to all others is 0.0, see `accumulation`.
    part = terms.value(0, (), letter) if at is None else terms.value(g, at, letter)
    return terms.link(np.add, f"{letter}{letter}->{letter}", (sums, part))


def _roll(terms: Terms, equation: Equation, window: Window) -> int:
    shape, moved = equation.output.type.shape, list(window)
    for shift, axis in zip(equation.params["shift"], equation.params["axis"], strict=True):
        kept, start, step = moved[axis]
        start = (start - shift) % shape[axis]
        one: Window = ((kept, start, step),)
        # What goes past the end comes in at the other one.
        if not terms.within(one, ((0, shape[axis]),)):
            raise ValueError("A window goes around more than once.")
        moved[axis] = one[0]
    return terms.value(equation.arguments[0], tuple(moved), "")


def _pad(terms: Terms, equation: Equation, window: Window) -> int:
    x, letter = equation.arguments[0], equation.output.type.dtype.char
    bounds = [(a, a + n) for (a, _), n in zip(equation.params["widths"], shape_of(x), strict=True)]
    if not terms.within(window, bounds):
        return terms.value(equation.params["values"], (), letter)
    shifted = [(axis, start - low, step) for (axis, start, step), (low, _) in zip(window, bounds, strict=True)]
    return terms.value(x, tuple(shifted), letter)


def _concatenate(terms: Terms, equation: Equation, window: Window) -> int:
    along, begin = equation.params["axis"] % len(window), 0
    axis, start, step = window[along]
    for x in equation.arguments:
        end = begin + shape_of(x)[along]
        if terms.within((window[along],), ((begin, end),)):
            at = (*window[:along], (axis, start - begin, step), *window[along + 1 :])
            letter = equation.output.type.dtype.char
            return terms.cast(terms.value(x, at, letter), letter)
        begin = end
    raise ValueError("A window is outside of what is joined.")


def _sum(terms: Terms, equation: Equation, window: Window) -> int:
    """Add up along an axis, one after the other, as NumPy does along any but the fastest axis."""
    x, letter = equation.arguments[0], equation.output.type.dtype.char
    (along,) = summed_axes(equation)
    rest = list(window)
    if equation.params["keepdims"]:
        del rest[along]
    at = [(*rest[:along], (None, k, 0), *rest[along:]) for k in range(shape_of(x)[along])]
    total = terms.value(start_of_sums(letter), (), letter)
    for one in at:
        total = terms.link(np.add, f"{letter}{letter}->{letter}", (total, terms.value(x, tuple(one), letter)))
    return total


def start_of_sums(letter: str) -> float:
    """Return the zero to which NumPy adds what it sums: that of either sign, by its version."""
    return -0.0 if letter in "fdFD" and np.signbit(np.add.reduce(np.array([-0.0], letter)).real) else 0


def summed_axes(equation: Equation) -> tuple[int, ...]:
    """Return the axes along which an equation sums."""
    axes, ndim = equation.params["axis"], len(shape_of(equation.arguments[0]))
    return tuple(range(ndim)) if axes is None else tuple([axis % ndim for axis in axes])


def parts_of(index: Sequence[Any], shape: tuple[int, ...]) -> list[tuple[Any, int]]:
    """Return the parts of an index without arrays, one for each axis, with its size, and None for new axes."""
    taken = sum(part is not None and part is not Ellipsis for part in index)
    rest = [slice(None)] * (len(shape) - taken)
    parts: list[Any] = []
    for part in index if any(part is Ellipsis for part in index) else (*index, Ellipsis):
        parts += rest if part is Ellipsis else [part]
    sizes = iter(shape)
    return [(part, 0 if part is None else next(sizes)) for part in parts]


# What moves elements; and what only shows them, which takes no time.
MOVES: Mapping[str, Callable[[Terms, Equation, Window], int]] = MappingProxyType({
    "setitem": _setitem,
    "scatter": _scatter,
    "add_scatter": _add_scatter,
    "roll": _roll,
    "pad": _pad,
    "concatenate": _concatenate,
    "sum": _sum,
    "where": _where,
    "astype": _cast,
})  # fmt: skip
VIEWS: Mapping[str, Callable[[Terms, Equation, Window], int]] = MappingProxyType({
    "getitem": _getitem,
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "reshape": _reshape,
})  # fmt: skip
