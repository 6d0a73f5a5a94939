"""What programs are made of: typed variables, and equations that define them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.location import line_of
from ebbtide.arrays.primitive import Primitive

# The type of a value that is no array: several arrays together, which count where they are taken out, or what an
# operation holds for its reverse sweep, of which nobody knows the bytes before the program runs.
OBJECT = ArrayType((), np.dtype(object))


@final
class Variable:
    """
    A value of a program: an input, or what an equation computes. Told by its identity.

    Args:
        kind: Its type.
        name: Of an input how it is reached from the arguments, else the name of the operation.
        is_number: Whether it is a Python number, which does not change the dtype of the arrays that it meets.
    """

    __slots__ = ("is_number", "name", "type")

    def __init__(self, kind: ArrayType, name: str, *, is_number: bool = False) -> None:
        self.type = kind
        self.name = name
        self.is_number = is_number

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.type.nbytes

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"


@final
class Place(NamedTuple):
    """
    Where an equation comes from.

    Args:
        code: Code object of the user's line; None where it is not known.
        instruction: The instruction in it.
        reverse: Whether the equation belongs to the reverse sweep: it pulls back what that line computes.
    """

    code: CodeType | None = None
    instruction: int = 0
    reverse: bool = False

    @property
    def line(self) -> str:
        """File and line of the user's program; marked where it is passed in reverse."""
        return line_of(self.code, self.instruction) + (" reverse" if self.reverse else "")

    @property
    def short_line(self) -> str:
        """The same without the folder."""
        where, colon, number = self.line.rpartition(":")
        return f"{Path(where).name}{colon}{number}"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """
    One line of a program.

    Args:
        primitive: The operation; None for a function without a derivative.
        function: Computes it: `function(*arguments, **params)`.
        name: Name of the operation.
        arguments: Variables, plain arrays and numbers, in lists and tuples as the function takes them.
        params: What else it takes, variables among it where the function is one without a derivative.
        output: What it defines.
        where: The user's line.
        errors: What the function had set with np.errstate where the operation stands, as (kind, treatment).
        again: What tells the runs of a checkpointed function apart: the same values in two runs are computed twice.
            None outside of such functions, and in the first run.
        within: What tells the checkpointed functions apart in which it stands, the outermost first, where no gradient
            is taken in the traced function: whoever takes one computes them again.
    """

    primitive: Primitive | None
    function: Callable[..., Any]
    name: str
    arguments: tuple[Any, ...]
    params: dict[str, Any]
    output: Variable
    where: Place
    errors: tuple[tuple[str, Any], ...] = ()
    again: object | None = None
    within: tuple[object, ...] = ()
    inputs: tuple[Variable, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Worked out once: passes ask again and again.
        object.__setattr__(self, "inputs", tuple(dict.fromkeys(variables_in((self.arguments, self.params)))))

    @property
    def line(self) -> str:
        """File and line of the user's program; marked where it is passed in reverse."""
        return self.where.line

    def of(self, arguments: tuple[Any, ...], params: dict[str, Any], output: Variable) -> Equation:
        """Return the same operation of other values: a tenth of the time of `dataclasses.replace`."""
        return Equation(
            self.primitive, self.function, self.name, arguments, params, output, self.where, self.errors, self.again,
            self.within,
        )  # fmt: skip


class Checking(ABC):
    """A function of an equation that may find, when it runs, that its results are of other types than were traced."""

    __slots__ = ()

    @abstractmethod
    def checked(self, params: dict[str, Any]) -> Any:
        """Return the call and operands of which it finds that, the same for all its derivatives; None if of none."""

    @abstractmethod
    def alone(self, params: dict[str, Any]) -> tuple[Any, str, dict[str, Any]]:
        """Return function, name and parameters of an equation that does it where nobody needs the results."""


class Inner:
    """
    A function of an equation that runs another program.

    Attributes:
        program: The program.
        threads: How many runs of it there are at the same time.
        work: What all its runs cost (see `costs`).
        moment_nbytes: Bytes that NumPy takes for a moment while they run.
    """

    __slots__ = ()

    program: Any
    threads: int
    work: int
    moment_nbytes: int


def variables_in(tree: Any) -> Iterator[Variable]:
    """Yield the variables in nested tuples, lists and dicts, each as often as it is there."""
    if type(tree) is Variable:
        yield tree
    elif type(tree) in (tuple, list):
        for part in tree:
            yield from variables_in(part)
    elif type(tree) is dict:
        yield from variables_in(tuple(tree.values()))


def substitute(tree: Any, replace: Callable[[Variable], Any]) -> Any:
    """Return nested tuples, lists and dicts with other values in place of their variables."""
    if type(tree) is Variable:
        return replace(tree)
    if type(tree) is tuple:
        return tuple([substitute(part, replace) for part in tree])
    if type(tree) is list:
        return [substitute(part, replace) for part in tree]
    if type(tree) is dict:
        return {key: substitute(part, replace) for key, part in tree.items()}
    return tree


def kind_of(argument: Any) -> ArrayType:
    """Return the type of an argument: a variable, a plain array, or a number."""
    return argument.type if type(argument) is Variable else type_of(argument)


def stand_in(argument: Any) -> Any:
    """Return what types are inferred from: a type, a Python number, or a plain array."""
    if type(argument) is not Variable:
        return argument
    return argument.type.dtype.type(1).item() if argument.is_number else argument.type
