"""Steps of the machine that read and write an array at places: where values of a program say, or arrays of an index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebbtide.program.actions import Action, Operand, Operands, moved
from ebbtide.program.equation import Equation, Variable


def gather(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    """Return the step that reads where values say."""
    x, *indices = [operands.of(argument, "l") for argument in equation.arguments]
    return [_indexed("gather", x, operands.of(equation.output), indices)]


def add_at(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    """Return the steps that add to zeros where values say."""
    out = operands.of(equation.output)
    g, *indices = equation.arguments
    places = [operands.of(index, "l") for index in indices]
    return [moved(operands.of(0, out.type), out), _indexed("add", out, operands.of(g, out.type), places)]


def put(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action]:
    """Return the steps that write where values say."""
    out = operands.of(equation.output)
    base, value, *indices = equation.arguments
    first = [] if given_up is base else [moved(operands.of(base, out.type), out)]
    places = [operands.of(index, "l") for index in indices]
    return [*first, _indexed("put", out, operands.of(value, out.type), places)]


def getitem(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    """Return the step that reads where an index of arrays says."""
    places = _arrays_of(equation)
    if places is None:
        return None
    x = operands.of(equation.arguments[0])
    return [_indexed("gather", x, operands.of(equation.output), [operands.of(place) for place in places])]


def scatter(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    """Return the steps that put into zeros where an index of arrays says, or add where it says a place twice."""
    places = _arrays_of(equation)
    if places is None:
        return None
    out = operands.of(equation.output)
    kind = "add" if _has_twice(places, out.shape) else "put"
    given = operands.of(equation.arguments[0], out.type)
    return [moved(operands.of(0, out.type), out), _indexed(kind, out, given, [operands.of(place) for place in places])]


def _arrays_of(equation: Equation) -> list[np.ndarray] | None:
    """Return an index that is nothing but arrays of integers; None of any other one."""
    index = equation.params["index"]
    known = index and all(isinstance(part, np.ndarray) and part.dtype == np.int64 for part in index)
    return list(index) if known else None


def _has_twice(places: Sequence[np.ndarray], shape: tuple[int, ...]) -> bool:
    """Return whether arrays of an index say a place more than once."""
    each = np.broadcast_arrays(*places)
    numbers = np.ravel_multi_index(each, shape[: len(places)], mode="wrap")
    return len(np.unique(numbers)) < numbers.size


def _indexed(kind: str, whole: Operand, parts: Operand, indices: Sequence[Operand]) -> Action:
    """Return the step that reads or writes parts of an array at places."""
    shape = np.broadcast_shapes(*[index.shape for index in indices])
    parts = parts.spread((*shape, *whole.shape[len(indices) :]))
    return Action("Indexed", (kind, whole.shape, shape, whole, parts, *[index.spread(shape) for index in indices]))
