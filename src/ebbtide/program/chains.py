"""
Chains: consecutive elementwise equations that are done together, a piece of the arrays at a time.

A value that only its chain uses is never longer than a piece. What a chain writes must not be what it still reads at
another place: where that may be, the chain ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ebbtide.machine import MOST_LINKS, MOST_OPERANDS, MOST_VALUES
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.layout import Layout, ufunc_of
from ebbtide.program.memory import Memory
from ebbtide.program.program import Program


@final
@dataclass(frozen=True, slots=True)
class Link:
    """
    One operation of a chain.

    Args:
        ufunc: The operation.
        types: Of its loop, as in `ufunc.types`.
        registers: Numbers of its operands and of its result: those of the arrays first, then those of pieces.
        equation: The equation.
    """

    ufunc: np.ufunc
    types: str
    registers: tuple[int, ...]
    equation: Equation


@final
@dataclass(frozen=True, slots=True)
class ChainPlan:
    """
    Equations that are done together, where the last of them stands.

    Args:
        first: Number of the first of them.
        last: Number of the last of them; those between that are none of them come before.
        members: Their numbers.
        links: The operations.
        operands: What the chain is called with: variables and plain values, results last.
        results: How many results there are.
    """

    first: int
    last: int
    members: frozenset[int]
    links: tuple[Link, ...]
    operands: tuple[Any, ...]
    results: int


def find_chains(program: Program, layout: Layout, memory: Memory) -> tuple[ChainPlan, ...]:
    """
    Return the chains of a program, none of a single equation.

    Args:
        program: The program.
        layout: How its values lie.
        memory: Where they are.
    """
    uses: dict[Variable, list[int]] = {}
    for place, equation in enumerate(program.equations):
        for variable in equation.inputs:
            uses.setdefault(variable, []).append(place)
    kept = {output for output in program.outputs if type(output) is Variable} | set(layout.bases.values())
    found = []
    for run in _runs(program, layout, memory):
        if len(run) > 1:
            found += _planned(program, run, uses, kept)
    return tuple(found)


@final
@dataclass(slots=True)
class _Run:
    """Consecutive equations, as far as they can be done together."""

    places: list[int] = field(default_factory=list)
    made: set[Variable] = field(default_factory=set)
    read: list[Variable] = field(default_factory=list)


def _runs(program: Program, layout: Layout, memory: Memory) -> Iterator[list[int]]:
    """Yield the numbers of equations that can be done together."""
    run = _Run()
    for place, equation in enumerate(program.equations):
        if _can(equation, memory) and _fits(program, run, equation, layout, memory):
            run.places.append(place)
            run.made.add(equation.output)
            run.read += equation.inputs
        elif not _comes_before(equation, run, layout, memory):
            yield run.places
            run = _Run()
            if _can(equation, memory):
                run = _Run([place], {equation.output}, list(equation.inputs))
    yield run.places


def _can(equation: Equation, memory: Memory) -> bool:
    """Return whether a chain can compute an equation: in the block, by a loop of NumPy's own."""
    output = equation.output
    return memory.is_inside(output) and output in memory.kernels and loop_of(equation) is not None


def loop_of(equation: Equation) -> tuple[np.ufunc, str] | None:
    """Return the ufunc of an equation and the types of the loop that NumPy takes; None where it casts an array."""
    ufunc = ufunc_of(equation)
    if ufunc is None:
        return None
    kinds = tuple([_kind(argument) for argument in equation.arguments])
    try:
        resolved = ufunc.resolve_dtypes((*kinds, None))
    except (TypeError, ValueError):
        return None
    types = "".join([one.char for one in resolved[:-1]]) + "->" + resolved[-1].char
    # A number is made one of the type of the loop, without a loss.
    alike = all(type(kind) is type or kind == one for kind, one in zip(kinds, resolved[:-1], strict=True))
    known = types in ufunc.types and resolved[-1] == equation.output.type.dtype
    return (ufunc, types) if alike and known and all(one.isnative for one in resolved) else None


def _kind(argument: Any) -> Any:
    """Return by what NumPy decides which loop runs: a dtype, or the type of a Python number."""
    if type(argument) is Variable and argument.is_number:
        return type(argument.type.dtype.type(1).item())
    if type(argument) in (int, float, complex, bool):
        return type(argument) if type(argument) is not bool else np.dtype(bool)
    return argument.type.dtype if type(argument) is Variable else np.asarray(argument).dtype


def _fits(program: Program, run: _Run, equation: Equation, layout: Layout, memory: Memory) -> bool:
    """Return whether an equation can be done together with those of a run."""
    if not run.places:
        return True
    first = program.equations[run.places[0]]
    if equation.output.type.shape != first.output.type.shape or equation.errors != first.errors:
        return False
    if layout.base(equation.output) is not equation.output or any(
        variable not in run.made and layout.base(variable) in run.made for variable in equation.inputs
    ):
        return False
    # Pieces of all equations are done before the next pieces of any: where one writes, no other may still read, or
    # write, at other places.
    theirs = [program.equations[place].output for place in run.places]
    return all(
        _apart_or_alike(equation.output, variable, layout, memory) for variable in (*theirs, *run.read)
    ) and all(_apart_or_alike(output, variable, layout, memory) for output in theirs for variable in equation.inputs)


def _apart_or_alike(written: Variable, other: Variable, layout: Layout, memory: Memory) -> bool:
    """Return whether a value has no byte in common with one that is written, or each element in the same bytes."""
    base = layout.base(other)
    if not memory.is_inside(base):
        return True
    mine, theirs = memory.buffers[written], memory.buffers[base]
    if mine.offset + written.nbytes <= theirs.offset or theirs.offset + base.nbytes <= mine.offset:
        return True
    same = layout.strides[written] == layout.strides[other] and written.type == other.type
    return other is base and same and mine.offset == theirs.offset


def _comes_before(equation: Equation, run: _Run, layout: Layout, memory: Memory) -> bool:
    """Return whether an equation that stands after some of a run can be done before all of them."""
    if any(layout.base(variable) in run.made for variable in equation.inputs):
        return False
    if equation.output in layout.bases:
        return True
    # A number: it is made of others, and is in no memory that a chain writes.
    numbers = all(not variable.type.shape for variable in equation.inputs)
    return numbers and equation.output not in memory.buffers and not equation.output.type.shape


def _planned(
    program: Program, run: Sequence[int], uses: dict[Variable, list[int]], kept: set[Variable]
) -> Iterator[ChainPlan]:
    """Yield a run as chains, several where one would take too many registers."""
    rest = list(run)
    while len(rest) > 1:
        count = min(len(rest), MOST_LINKS)
        while (plan := _chain_of(program, rest[:count], uses, kept)) is None:
            count -= 1
        if count > 1:
            yield plan
        rest = rest[count:]


def _chain_of(
    program: Program, run: Sequence[int], uses: dict[Variable, list[int]], kept: set[Variable]
) -> ChainPlan | None:
    """Return equations as a chain; None if that takes too many registers."""
    members = frozenset(run)
    equations = [program.equations[place] for place in run]
    made = {equation.output for equation in equations}
    results = [v for v in made if v in kept or not members.issuperset(uses.get(v, ()))]
    given = {_key(x): x for equation in equations for x in equation.arguments if _key(x) not in made}
    operands = (*given.values(), *results)
    numbers: dict[Any, int] = {key: number for number, key in enumerate((*given, *results))}
    pieces = _Pieces(len(operands))
    links = []
    for place, equation in zip(run, equations, strict=True):
        ending = [v for v in equation.inputs if v in made and v not in results and uses[v][-1] == place]
        taken = [numbers[_key(argument)] for argument in equation.arguments]
        # An operand that ends here gives its piece to the result, if that is of the same type: loops may write where
        # they read, element by element.
        alike = [v for v in ending if v.type.dtype == equation.output.type.dtype]
        for variable in alike:
            pieces.give(numbers[variable], variable.type.dtype)
        if equation.output not in numbers:
            numbers[equation.output] = pieces.take(equation.output.type.dtype)
        for variable in ending:
            if variable not in alike:
                pieces.give(numbers[variable], variable.type.dtype)
        found = loop_of(equation)
        assert found is not None
        links.append(Link(*found, (*taken, numbers[equation.output]), equation))
    if len(operands) > MOST_OPERANDS or pieces.count > MOST_VALUES:
        return None
    return ChainPlan(run[0], run[-1], members, tuple(links), operands, len(results))


def _key(argument: Any) -> Any:
    """Return what tells an operand: a variable or array by itself, a number by its value and type."""
    if type(argument) in (int, float, complex, bool) or isinstance(argument, np.generic):
        return type(argument), repr(argument)
    return argument if type(argument) is Variable else id(argument)


@final
class _Pieces:
    """The registers of a chain that are pieces, each of one type."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._free: dict[np.dtype, list[int]] = {}
        self.count = 0

    def take(self, dtype: np.dtype) -> int:
        """Return a register that nobody uses."""
        free = self._free.get(dtype)
        if free:
            return free.pop()
        self.count += 1
        return self._first + self.count - 1

    def give(self, register: int, dtype: np.dtype) -> None:
        """Have a register back."""
        self._free.setdefault(dtype, []).append(register)
