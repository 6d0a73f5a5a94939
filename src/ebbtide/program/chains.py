"""
Chains: elementwise equations that follow each other, as one equation that the compiled `Chain` does piece by piece.

A chain has one result. Values that only the chain uses are never longer than a piece, so they take no memory; what
somebody else uses, too, is the result of a chain of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.machine import MOST_LINKS, MOST_OPERANDS, MOST_VALUES
from ebbtide.program.equation import Equation, Variable, stand_in
from ebbtide.program.layout import Layout, is_power_of_number, ufunc_of
from ebbtide.program.lifetimes import users_of
from ebbtide.program.program import Program, with_instead

# Of one operation of a chain.
_MOST_OPERANDS = 3


@final
@dataclass(frozen=True, slots=True)
class Link:
    """
    One operation of a chain.

    Args:
        ufunc: The operation.
        types: Of its loop, as in `ufunc.types`.
        registers: Numbers of its operands and of its result: those of the operands of the chain first, then that of the
            result of the chain, then those of pieces.
        where: The user's line, and what the result was called.
    """

    ufunc: np.ufunc
    types: str
    registers: tuple[int, ...]
    where: str


@final
@dataclass(frozen=True, slots=True)
class Links:
    """
    What a chain computes: the function of its equation.

    Args:
        links: The operations, in order.
    """

    links: tuple[Link, ...]

    __name__ = "chain"

    def __call__(self, *operands: Any) -> Any:
        """Return the result as NumPy computes it, one operation after the other."""
        registers: dict[int, Any] = dict(enumerate(operands))
        for link in self.links:
            *taken, result = link.registers
            registers[result] = link.ufunc(*[registers[number] for number in taken])
        return registers[len(operands)]


def chain_equations(program: Program, layout: Layout) -> Program:
    """
    Return a program with chains in the place of elementwise equations that follow each other.

    Args:
        program: The program.
        layout: How its values lie; the values that are left lie as they did.
    """
    users = users_of(program)
    outputs = {output for output in program.outputs if type(output) is Variable}
    made: dict[int, Equation | None] = {}
    for run in _runs(program, layout):
        for members in _clusters(program, run, users, outputs):
            made.update(dict.fromkeys(members, None))
            made[members[-1]] = _chain_of(program, members, users)
    return with_instead(program, made, "chain_equations") if made else program


def _runs(program: Program, layout: Layout) -> Iterator[list[int]]:
    """Yield the numbers of equations that chains can have, and between which no array is computed that they cannot."""
    run: list[int] = []
    for place, equation in enumerate(program.equations):
        if loop_of(equation) is not None and equation.output.type.shape and layout.is_free_of_order(equation):
            first = program.equations[run[0]] if run else equation
            alike = equation.output.type.shape == first.output.type.shape and equation.errors == first.errors
            if not alike:
                yield run
                run = []
            run.append(place)
        elif equation.output not in layout.bases and ufunc_of(equation) is None:
            # Views take no memory, and numbers little: what a chain still needs may live on while they are made.
            yield run
            run = []
    yield run


def loop_of(equation: Equation, *, casts: bool = False) -> tuple[np.ufunc, str] | None:
    """Return the ufunc of an equation and the types of the loop that NumPy takes; None if it casts, unless it may."""
    ufunc = ufunc_of(equation)
    if ufunc is None or is_power_of_number(equation):
        return None
    if ufunc.nin > _MOST_OPERANDS or _is_power_of_scalars(equation):
        return None
    kinds = [_kind(argument) for argument in equation.arguments]
    try:
        resolved = ufunc.resolve_dtypes((*kinds, None))
    except (TypeError, ValueError):
        return None
    types = "".join([one.char for one in resolved[:-1]]) + "->" + resolved[-1].char
    # A number is made one of the type of the loop, without a loss.
    alike = casts or all(type(kind) is type or kind == one for kind, one in zip(kinds, resolved[:-1], strict=True))
    known = types in ufunc.types and resolved[-1] == equation.output.type.dtype
    return (ufunc, types) if alike and known and all(one.isnative for one in resolved) else None


def ufunc_loop_of(equation: Equation) -> tuple[np.ufunc, str, tuple[Any, ...]] | None:
    """Return the ufunc of an equation, the types of its loop, and its operands; None if NumPy has ways of its own."""
    arguments = equation.arguments
    if is_power_of_number(equation):
        letter, ufunc = equation.output.type.dtype.char, _ufunc_instead(equation)
        alike = type(arguments[0]) is Variable and arguments[0].type.dtype.char == letter in "fdFD"
        return (ufunc, f"{letter}->{letter}", arguments[:1]) if alike and ufunc is not None else None
    found = loop_of(equation, casts=True)
    if equation.name == "power" and type(arguments[1]) is Variable and not arguments[1].is_number:
        # NumPy computes squares where it reads one exponent 2 for many numbers: not from what is cast before.
        found = found if found is not None and found[1][1] == arguments[1].type.dtype.char else None
    return None if found is None else (*found, arguments)


def _is_power_of_scalars(equation: Equation) -> bool:
    """Return whether an equation is the operator of NumPy scalars: with AVX-512 its bits are not those of the loop."""
    return equation.function is operator.pow and not equation.output.type.shape


def _ufunc_instead(equation: Equation) -> np.ufunc | None:
    """Return what NumPy computes instead of a power."""
    exponent, kind = equation.arguments[1], equation.output.type
    # Of complex numbers only the operator, and by the type of the number.
    by_operator = equation.function is operator.pow and (type(exponent) is int) != (exponent == 0.5)
    if _is_power_of_scalars(equation) or (kind.dtype.kind == "c" and not by_operator):
        return None
    return {2: np.square, 0.5: np.sqrt, -1: np.reciprocal}.get(exponent)


def _kind(argument: Any) -> Any:
    """Return by what NumPy decides which loop runs: a dtype, or the type of a Python number."""
    known = stand_in(argument)
    if type(known) in (int, float, complex):
        return type(known)
    return known.dtype if hasattr(known, "dtype") else np.asarray(known).dtype


def _clusters(
    program: Program, run: Sequence[int], users: dict[Variable, list[int]], outputs: set[Variable]
) -> Iterator[list[int]]:
    """Yield equations of a run that have one result together, which the last of them computes."""
    clusters: dict[int, list[int]] = {}
    root_of: dict[int, int] = {}
    for place in reversed(run):
        output = program.equations[place].output
        roots = {root_of.get(user) for user in users[output]}
        root = roots.pop() if len(roots) == 1 and output not in outputs else None
        if root is None or not _has_room(program, [place, *clusters[root]], users):
            root = place
        root_of[place] = root
        clusters.setdefault(root, []).insert(0, place)
    for members in reversed(clusters.values()):
        if len(members) > 1:
            yield members


def _has_room(program: Program, members: Sequence[int], users: dict[Variable, list[int]]) -> bool:
    """Return whether equations are no more than a chain can have, with no more operands and pieces."""
    if len(members) > MOST_LINKS:
        return False
    operands, links = _linked(program, members, users)
    return len(operands) < MOST_OPERANDS and max(max(link.registers) for link in links) <= len(operands) + MOST_VALUES


def _chain_of(program: Program, members: Sequence[int], users: dict[Variable, list[int]]) -> Equation:
    """Return equations as one."""
    operands, links = _linked(program, members, users)
    last = program.equations[members[-1]]
    return Equation(None, Links(links), "chain", operands, {}, last.output, last.where, last.errors, last.again)


def _linked(
    program: Program, members: Sequence[int], users: dict[Variable, list[int]]
) -> tuple[tuple[Any, ...], tuple[Link, ...]]:
    """Return the operands of a chain, each once, and its operations."""
    equations = [program.equations[place] for place in members]
    made = {equation.output for equation in equations}
    given = {key_of(x): x for equation in equations for x in equation.arguments if key_of(x) not in made}
    numbers: dict[Any, int] = {key: number for number, key in enumerate(given)}
    numbers[equations[-1].output] = len(given)
    pieces = Pieces(len(given) + 1)
    links = []
    for place, equation in zip(members, equations, strict=True):
        ending = [v for v in equation.inputs if v in made and users[v][-1] == place]
        taken = [numbers[key_of(argument)] for argument in equation.arguments]
        # An operand that ends here gives its piece to the result if that is of the same type: NumPy's loops may write
        # where they read, element by element.
        for variable in ending:
            if variable.type.dtype == equation.output.type.dtype:
                pieces.give(numbers[variable], variable.type.dtype)
        if equation.output not in numbers:
            numbers[equation.output] = pieces.take(equation.output.type.dtype)
        for variable in ending:
            if variable.type.dtype != equation.output.type.dtype:
                pieces.give(numbers[variable], variable.type.dtype)
        found = loop_of(equation)
        assert found is not None
        links.append(Link(*found, (*taken, numbers[equation.output]), f"{equation.name}  {equation.where.short_line}"))
    return tuple(given.values()), tuple(links)


def key_of(argument: Any) -> Any:
    """Return what tells an operand: a variable or array by itself, a number by its type and value."""
    if type(argument) in (int, float, complex, bool) or isinstance(argument, np.generic):
        return type(argument), repr(argument)
    return argument if type(argument) is Variable else id(argument)


@final
class Pieces:
    """The registers of a chain that are pieces, each of one type."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._free: dict[np.dtype, list[int]] = {}

    def take(self, dtype: np.dtype) -> int:
        """Return a register that nobody uses."""
        free = self._free.get(dtype)
        if free:
            return free.pop()
        self._next += 1
        return self._next - 1

    def give(self, register: int, dtype: np.dtype) -> None:
        """Have a register back."""
        self._free.setdefault(dtype, []).append(register)
