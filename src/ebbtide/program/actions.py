"""
Steps of the machine that are not made yet, as plain data, and the operands that they take.

Where an operand is, is known up to the address of the value whose memory it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np

from ebbtide import machine
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.layout import Layout, dummy
from ebbtide.program.windows import Window


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """
    Elements of a value in memory.

    Args:
        owner: The value whose memory it is in, no view; or a plain array.
        offset: Of the first element from that of the owner, in bytes.
        type: The letter of its dtype.
        shape: Its shape.
        strides: How far apart its elements are, in bytes.
    """

    owner: Any
    offset: int
    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def seen(self, view: Callable[[Any], Any]) -> Operand:
        """Return a view of it: what a function of NumPy takes of an array that lies alike."""
        whole = np.lib.stride_tricks.as_strided(np.empty(1, self.type), self.shape, self.strides)
        part = view(whole)
        offset = self.offset + part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        return replace(self, offset=offset, shape=part.shape, strides=part.strides)

    def spread(self, shape: tuple[int, ...]) -> Operand:
        """Return it broadcast."""
        return self if self.shape == shape else self.seen(lambda array: np.broadcast_to(array, shape))

    def through(self, window: Window, shape: tuple[int, ...]) -> Operand:
        """Return what a window shows of it, along the axes of a box of a shape."""
        offset, strides = self.offset, [0] * len(shape)
        for (axis, start, step), stride in zip(window, self.strides, strict=True):
            offset += start * stride
            if axis is not None:
                strides[axis] += step * stride
        return replace(self, offset=offset, shape=shape, strides=tuple(strides))


@final
class Action(NamedTuple):
    """
    A step that is not made yet.

    Args:
        kind: Name of its class in `ebbtide.machine`.
        arguments: What that takes, operands among it.
    """

    kind: str
    arguments: tuple[Any, ...]

    def placed(self, number: Callable[[Operand], tuple[int, int]]) -> tuple[Any, ...]:
        """Return the arguments with operands as steps take them; *number* says in which buffer they are, and where."""
        return _placed(self.arguments, number)

    def made(self, number: Callable[[Operand], tuple[int, int]]) -> Any:
        """Return the step."""
        return getattr(machine, self.kind)(*self.placed(number))


def _placed(tree: Any, number: Callable[[Operand], tuple[int, int]]) -> Any:
    if type(tree) is Operand:
        return (*number(tree), tree.type, tree.strides)
    return tuple([_placed(part, number) for part in tree]) if type(tree) is tuple else tree


@final
class Operands:
    """
    Where the values of a program are for the machine.

    Args:
        layout: How they lie.
        equations: Those of the program.
    """

    def __init__(self, layout: Layout, equations: Sequence[Equation]) -> None:
        self._layout = layout
        self._made = {equation.output: equation for equation in equations if equation.output in layout.bases}
        self._offsets: dict[Variable, int] = {}
        self._constants: dict[Any, np.ndarray] = {}

    def of(self, argument: Any, letter: str = "") -> Operand:
        """Return a value as an operand; a number, and an array of one, as one of a type."""
        if type(argument) is Variable and not argument.is_number:
            kind, strides = argument.type, self._layout.strides[argument]
            return Operand(
                self._layout.base(argument), self._offset(argument), kind.dtype.char, kind.shape, tuple(strides)
            )  # fmt: skip
        if type(argument) is Variable:
            return Operand((argument, letter), 0, letter, (), ())
        if isinstance(argument, np.ndarray) and (argument.shape or not letter):
            if not argument.dtype.isnative:  # a letter does not tell
                raise TypeError("A step reads no array of the other byte order.")
            return Operand(argument, 0, argument.dtype.char, argument.shape, argument.strides)
        letter = letter or np.asarray(argument).dtype.char
        key = letter, type(argument), repr(argument)
        owner = self._constants.setdefault(key, np.array(argument, letter or None))
        return Operand(owner, 0, owner.dtype.char, (), ())

    def is_free_of_order(self, equation: Equation) -> bool:
        """Return whether the machine may compute an elementwise equation in its own order."""
        return self._layout.is_free_of_order(equation)

    def _offset(self, variable: Variable) -> int:
        """Return how far the first element of a view is from that of its base."""
        if variable not in self._made:
            return 0
        if variable not in self._offsets:
            equation = self._made[variable]
            (source,) = equation.inputs
            whole = dummy(source.type, self._layout.strides[source])
            arguments = [whole if argument is source else argument for argument in equation.arguments]
            part = equation.function(*arguments, **equation.params)
            step = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
            self._offsets[variable] = self._offset(source) + step
        return self._offsets[variable]


def moved(source: Operand, target: Operand) -> Action:
    """Return the step that copies an operand, broadcast, to another one of any type."""
    same = np.dtype(source.type) == np.dtype(target.type)
    link = ("move" if same else "cast", f"{target.type if same else source.type}->{target.type}", 0, 1)
    return Action("Elementwise", (target.shape, (source.spread(target.shape), target), link))
