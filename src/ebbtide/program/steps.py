"""
Which steps of the machine compute an equation.

An equation that has no steps here, or whose operands lie as no step can read them, is left to NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.program.actions import Action, Operand, Operands, moved
from ebbtide.program.boxes import boxes_of, linked
from ebbtide.program.chains import ufunc_loop_of
from ebbtide.program.equation import Equation, Variable, stand_in
from ebbtide.program.indexed import add_at, gather, getitem, put, scatter
from ebbtide.program.kernels import moves_of_roll
from ebbtide.program.layout import packed_strides
from ebbtide.program.orders import order_of
from ebbtide.program.windowed import CONVOLUTIONS, POOLINGS, Scratched, convolution, pooling
from ebbtide.program.windows import start_of_sums


def actions_of(equation: Equation, operands: Operands, given_up: Variable | None = None) -> list[Action] | None:
    """
    Return the steps of an equation; None where NumPy has to compute it.

    Args:
        equation: The equation.
        operands: Where the values are.
        given_up: The operand in whose place the result is made.
    """
    kinds = [equation.output.type, *[v.type for v in equation.inputs]]
    if equation.output.is_number or any(kind.dtype.hasobject or not kind.dtype.isnative for kind in kinds):
        return None
    if not equation.output.type.nbytes:
        return None
    # Functions without a derivative, and with a name that NumPy uses, may be the user's own.
    ours = equation.primitive is not None or equation.name in _OURS
    ours = ours or getattr(equation.function, "__module__", "") == _CONSTANT.get(equation.name)
    ours = ours or type(equation.function) is Scratched
    make = _LOWERED.get(equation.name) if ours else None
    make = _elementwise if make is None else make
    try:
        found = make(equation, operands, given_up)
        for action in found or ():
            # What no step can do, an operand that is not aligned or a loop that is not there, shows when it is made.
            action.made(lambda operand: (0, operand.offset))
    except (TypeError, ValueError):
        return None
    return found


def _elementwise(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    found = ufunc_loop_of(equation)
    if found is None or not operands.is_free_of_order(equation):
        return None
    ufunc, types, arguments = found
    out = operands.of(equation.output)
    shape, taken, links, number = out.shape, [], [], len(arguments) + 1
    registers = []
    for place, (argument, letter) in enumerate(zip(arguments, types, strict=False)):
        operand = operands.of(argument, letter)
        taken.append(operand.spread(shape))
        if operand.type == letter or np.dtype(operand.type) == np.dtype(letter):
            registers.append(place)
        else:
            links.append(("cast", f"{operand.type}->{letter}", place, number))
            registers.append(number)
            number += 1
    links.append((ufunc, types, *registers, len(arguments)))
    return [Action("Elementwise", (shape, (*taken, out), *links))]


def _chain(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    function: Any = equation.function  # the `Links` of a chain
    out = operands.of(equation.output)
    letters: dict[int, str] = {}
    for link in function.links:
        letters.update(zip(link.registers, link.types.replace("->", ""), strict=True))
    taken = [operands.of(x, letters[number]).spread(out.shape) for number, x in enumerate(equation.arguments)]
    links = [(link.ufunc, link.types, *link.registers) for link in function.links]
    return [Action("Elementwise", (out.shape, (*taken, out), *links))]


def _boxes(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    function: Any = equation.function  # the `Boxed`
    out, found = operands.of(equation.output), []
    given = dict(zip(function.operands, equation.arguments, strict=True))
    for box in boxes_of(function):
        reads, links = linked(box)
        taken = [
            operands.of(given.get(x) if type(x) is Variable else x, letter).through(window, box.shape)
            for x, window, letter in reads
        ]
        part = out.through(tuple([(axis, start, 1) for axis, start in enumerate(box.begin)]), box.shape)
        found.append(Action("Elementwise", (box.shape, (*taken, part), *links)))
    return found


def _reduction(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    params = equation.params
    if set(params) - {"axis", "dtype", "keepdims"} or any(x is not True for x in equation.arguments[1:]):
        return None
    x, out = operands.of(equation.arguments[0]), operands.of(equation.output)
    letter, axes = out.type, params["axis"]
    if letter == "e" or not x.shape or (equation.name == "mean" and letter not in "fdFD"):
        return None
    axes = range(len(x.shape)) if axes is None else [axis % len(x.shape) for axis in axes]
    # Sums of small integers are exact in any order, while they fit.
    most = _LARGEST.get(x.type, math.inf) * prod(x.shape[axis] for axis in axes)
    exact = equation.name == "sum" and letter in "fdl" and most < _EXACT[letter]
    if np.dtype(x.type) != np.dtype(letter) and not exact:
        return None
    kept = iter(out.strides)
    if params["keepdims"]:
        into = [0 if axis in axes else step for axis, step in enumerate(out.strides)]
    else:
        into = [0 if axis in axes else next(kept) for axis in range(len(x.shape))]
    ordered = order_of(x.shape, x.strides, tuple(into))
    if ordered is None:
        return None
    ufunc, start = _REDUCED[equation.name]
    shape, of, to = ordered
    if ufunc is np.add:
        start = start_of_sums(letter)
    read = replace(x, shape=shape, strides=of)
    sums = replace(out, shape=shape, strides=to)
    found = [Action("Reduction", (shape, (read, sums), ufunc, f"{letter}{letter}->{letter}", start))]
    if equation.name == "mean":
        found.append(_divided(out, prod(x.shape[axis] for axis in axes), operands))
    return found


def _divided(out: Operand, count: int, operands: Operands) -> Action:
    """Return the step that divides sums by a number of elements, in double precision as NumPy does."""
    wide = {"f": "d", "F": "D"}.get(out.type, out.type)
    number = operands.of(count, wide).spread(out.shape)
    divide = (np.true_divide, f"{wide}{wide}->{wide}")
    if wide == out.type:
        return Action("Elementwise", (out.shape, (number, out), (*divide, 1, 0, 1)))
    links = ("cast", f"{out.type}->{wide}", 1, 2), (*divide, 2, 0, 2), ("cast", f"{wide}->{out.type}", 2, 1)
    return Action("Elementwise", (out.shape, (number, out), *links))


def _matmul(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    if equation.params:
        return None
    x, y = [operands.of(argument) for argument in equation.arguments]
    out = operands.of(equation.output)
    letter = out.type
    if not x.type == y.type == letter or not x.shape or not y.shape or x.shape[-1] == 0:
        return None
    # A vector is a matrix of one row or column.
    rows, columns = x.shape[-2:-1] or (1,), y.shape[-1:] if len(y.shape) > 1 else (1,)
    stack = out.shape[: len(out.shape) - (len(x.shape) > 1) - (len(y.shape) > 1)]
    core = out.strides[len(stack) :]
    if len(x.shape) == 1:
        x, core = replace(x, shape=(1, *x.shape), strides=(0, *x.strides)), (0, *core)
    if len(y.shape) == 1:
        y, core = replace(y, shape=(*y.shape, 1), strides=(*y.strides, 0)), (*core, 0)
    sizes = (*rows, x.shape[-1], *columns)
    out = replace(out, shape=(*stack, *rows, *columns), strides=(*out.strides[: len(stack)], *core))
    x, y = x.spread((*stack, *x.shape[-2:])), y.spread((*stack, *y.shape[-2:]))
    return [Action("Product", (stack, sizes, (x, y, out), f"{letter}{letter}->{letter}"))]


def _dot(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    # As np.matmul does it where both are matrices that BLAS reads as they lie; else NumPy has ways of its own.
    taken = [operands.of(argument) for argument in equation.arguments]
    return _matmul(equation, operands, given_up) if all(map(_is_read_by_blas, taken)) else None


def _is_read_by_blas(x: Operand) -> bool:
    """Return whether an operand is a matrix, with rows or columns without gaps in them."""
    if len(x.shape) != 2 or min(x.shape) < 2 or x.type not in "fdFD":
        return False
    item = np.dtype(x.type).itemsize
    return any(
        x.strides[fast] == item and x.strides[slow] >= item * x.shape[fast] and x.strides[slow] % item == 0
        for fast, slow in ((0, 1), (1, 0))
    )


def _small_product(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    x, y = [operands.of(argument) for argument in equation.arguments]
    return [Action("SmallProduct", ((*x.shape, y.shape[1]), (x, y, operands.of(equation.output))))]


def _add_product(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    total, a, b = [operands.of(argument) for argument in equation.arguments]
    out = operands.of(equation.output)
    first = [] if given_up is equation.arguments[0] else [moved(total, out)]
    return [*first, Action("ProductSum", ((*a.shape, b.shape[1]), (a, b, out)))]


def _where(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    out = operands.of(equation.output)
    condition = operands.of(equation.arguments[0])
    if condition.type != "?":
        return None
    taken, links, registers = [condition.spread(out.shape)], [], [0]
    for number, argument in enumerate(equation.arguments[1:], 1):
        operand = operands.of(argument, out.type)
        taken.append(operand.spread(out.shape))
        registers.append(number)
        if np.dtype(operand.type) != np.dtype(out.type):
            links.append(("cast", f"{operand.type}->{out.type}", number, 3 + number))
            registers[-1] = 3 + number
    links.append(("where", f"?{out.type}{out.type}->{out.type}", *registers, 3))
    return [Action("Elementwise", (out.shape, (*taken, out), *links))]


def _cast(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    return [moved(operands.of(equation.arguments[0]), operands.of(equation.output))]


def _copy(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    if equation.params["order"] != "C":
        return None
    return [] if given_up is not None else _cast(equation, operands, None)


def _reshape(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    x, out = operands.of(equation.arguments[0]), operands.of(equation.output)
    if equation.params["order"] != "C" or out.strides != packed_strides(equation.output.type):
        return None
    kind = type_of(stand_in(equation.arguments[0]))  # of a variable or of an array that the program has
    return [moved(x, replace(out, shape=x.shape, strides=packed_strides(kind)))]


def _index(equation: Equation) -> tuple[Any, ...] | None:
    """Return an index without arrays in it."""
    index = equation.params["index"]
    return None if any(isinstance(part, np.ndarray) for part in index) else index


def _part(whole: Operand, index: tuple[Any, ...]) -> Operand:
    """Return what an index takes of an operand; a single element, too."""
    index = index if any(part is Ellipsis for part in index) else (*index, ...)
    return whole.seen(lambda array: array[index])


def _setitem(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    index, (base, value) = _index(equation), equation.arguments
    if index is None:
        return None
    out = operands.of(equation.output)
    part = _part(out, index)
    first = [] if given_up is base else [moved(operands.of(base, out.type), out)]
    return [*first, *_filled(operands.of(value, out.type), part)]


def _filled(source: Operand, part: Operand) -> list[Action]:
    """Return the steps that copy to a part, which may be empty."""
    return [moved(source, part)] if 0 not in part.shape else []


def _scatter(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    index = _index(equation)
    if index is None:
        return scatter(equation, operands, given_up)
    out = operands.of(equation.output)
    part = _part(out, index)
    return [moved(operands.of(0, out.type), out), *_filled(operands.of(equation.arguments[0], out.type), part)]


def _add_scatter(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    index, (total, g) = equation.params["index"], equation.arguments  # without arrays, see `accumulation`
    out = operands.of(equation.output)
    added = operands.of(g, out.type)
    if added.type != out.type:
        return None

    def plus(part: Operand, other: Operand, into: Operand) -> list[Action]:
        operands, places = (other.spread(part.shape), part), (1, 0, 1)
        if into is not part:
            operands, places = (*operands, into), (1, 0, 2)
        link = (np.add, f"{out.type}{out.type}->{out.type}", *places)
        return [Action("Elementwise", (part.shape, operands, link))] if 0 not in part.shape else []

    part, zero, before = _part(out, index), operands.of(0, out.type), operands.of(total)
    unsigned = equation.params["unsigned"]
    if given_up is total:
        zeros = [_part(out, one) for one in unsigned]
        return [*plus(part, added, part), *[action for one in zeros for action in plus(one, zero, one)]]
    if unsigned:  # no other element is -0.0, and 0 may be added to all
        return [*plus(before, zero, out), *plus(_part(before, index), added, part)]
    return [moved(before, out), *plus(part, added, part)]


def _roll(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    x, out = operands.of(equation.arguments[0]), operands.of(equation.output)
    return [
        moved(x.seen(lambda array, of=of: array[of]), out.seen(lambda array, to=to: array[to]))
        for to, of in moves_of_roll(equation)
    ]


def _pad(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    x, out = operands.of(equation.arguments[0]), operands.of(equation.output)
    inner = tuple([slice(a, a + n) for (a, _), n in zip(equation.params["widths"], x.shape, strict=True)])
    value = operands.of(equation.params["values"], out.type)
    return [moved(value, out), *_filled(x, out.seen(lambda array: array[inner]))]


def _concatenate(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    out, axis, start, found = operands.of(equation.output), equation.params["axis"], 0, []
    for argument in equation.arguments:
        x = operands.of(argument)
        stop = start + x.shape[axis]
        at = (*(slice(None),) * (axis % len(out.shape)), slice(start, stop))
        found += _filled(x, out.seen(lambda array, at=at: array[at]))
        start = stop
    return found


def _result(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    x, out = equation.arguments[0], operands.of(equation.output)
    return [] if given_up is x else [moved(operands.of(x, out.type), out)]


# The largest numbers of small types, and those up to which integers are exact.
_LARGEST: Mapping[str, int] = MappingProxyType({"?": 1, "b": 1 << 7, "B": 1 << 8, "h": 1 << 15, "H": 1 << 16})
_EXACT: Mapping[str, int] = MappingProxyType({"f": 1 << 24, "d": 1 << 53, "l": 1 << 62})
_REDUCED: Mapping[str, tuple[np.ufunc, Any]] = MappingProxyType({
    "sum": (np.add, 0),
    "mean": (np.add, 0),
    "max": (np.maximum, None),
    "min": (np.minimum, None),
    "prod": (np.multiply, 1),
})  # fmt: skip
# Equations that passes make, which have no primitives.
_OURS = frozenset(("chain", "boxes", "add_product", "add_scatter", "small_product"))
# Where those of our functions are that have no derivative.
_CONSTANT: Mapping[str, str] = MappingProxyType({
    "_cast": "ebbtide.rules.selection",
    "places_of_largest": "ebbtide.nn.pooling",
    "result": "ebbtide.program.rooms",
    "scratch": "ebbtide.program.rooms",
    "stop_gradient": "ebbtide.program.constant",
})  # fmt: skip
_LOWERED: Mapping[str, Callable[[Equation, Operands, Variable | None], list[Action] | None]] = MappingProxyType({
    "chain": _chain,
    "boxes": _boxes,
    **dict.fromkeys(_REDUCED, _reduction),
    "matmul": _matmul,
    "dot": _dot,
    "add_product": _add_product,
    "small_product": _small_product,
    "where": _where,
    "astype": _cast,
    "_cast": _cast,
    "stop_gradient": _cast,
    "copy": _copy,
    "reshape": _reshape,
    "setitem": _setitem,
    "scatter": _scatter,
    "add_scatter": _add_scatter,
    "roll": _roll,
    "pad": _pad,
    "concatenate": _concatenate,
    "getitem": getitem,
    "gather": gather,
    "add_at": add_at,
    "put": put,
    "result": _result,
    "scratch": lambda equation, operands, given_up: [],
    **dict.fromkeys(CONVOLUTIONS, convolution),
    **dict.fromkeys(POOLINGS, pooling),
})  # fmt: skip
