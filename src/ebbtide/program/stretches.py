"""
Stretches of a program: equations that follow each other, done by one run of the machine.

What is allocated in a stretch is there from its beginning, and what ends in it is there until its end; so a stretch is
no longer than the peak of the plan allows, and the plan stays true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

from ebbtide.program.actions import Action, Operand, Operands
from ebbtide.program.ends import with_ends
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.fills import without_fills
from ebbtide.program.layout import Layout
from ebbtide.program.memory import Buffer, Memory, buffers_apart, live_in
from ebbtide.program.program import Program
from ebbtide.program.steps import actions_of

# The buffer that is the block of memory.
BLOCK = "block"


def lowered_outputs(program: Program, layout: Layout) -> frozenset[Variable]:
    """Return the results of the equations that the machine can compute, wherever the plan puts them."""
    operands = Operands(layout, program.equations)
    return frozenset([
        equation.output
        for equation in program.equations
        if equation.output not in layout.bases and actions_of(equation, operands) is not None
    ])  # fmt: skip


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """
    A run of the machine.

    Args:
        places: Numbers of the equations, views among them.
        actions: The steps, with the equation of each.
        buffers: What the machine is called with: `BLOCK`, values, plain arrays, or numbers as (variable, type).
        held: The most bytes that are held meanwhile.
    """

    places: range
    actions: tuple[tuple[Action, Equation], ...]
    buffers: tuple[Any, ...]
    held: int
    _numbers: Mapping[Any, int]
    _memory: Memory

    def number(self, operand: Operand) -> tuple[int, int]:
        """Return in which buffer an operand is, and where."""
        key, offset = _place_of(operand, self._memory)
        return self._numbers[key], offset

    @property
    def workspace(self) -> int:
        """Number of the buffer that is the block; -1 if none is."""
        return self._numbers.get(BLOCK, -1)


def _buffer_of(owner: Any, memory: Memory) -> tuple[Any, int]:
    """Return what tells the buffer that a value is in, and the offset of the value in it."""
    if type(owner) is Variable:
        if memory.is_inside(owner):
            return BLOCK, memory.buffers[owner].offset
        return memory.buffers.get(owner, owner), 0
    return (owner if type(owner) is tuple else id(owner)), 0


def _place_of(operand: Operand, memory: Memory) -> tuple[Any, int]:
    """Return what tells the buffer that an operand is in, and its offset there."""
    key, offset = _buffer_of(operand.owner, memory)
    return key, offset + operand.offset


def find_stretches(
    program: Program, layout: Layout, memory: Memory, *, shortest: int = 2, longest: int = 10**9
) -> list[Stretch]:
    """
    Return the stretches of a program, in order.

    Args:
        program: The program.
        layout: How its values lie.
        memory: Where they are.
        shortest: How many operations one has at least, unless the plan has memory for what NumPy would allocate.
        longest: Of how many equations one is at most.
    """
    operands = Operands(layout, program.equations)
    room = _Room(program, layout, memory)
    found: list[Stretch] = []
    run: list[tuple[int, list[Action]]] = []

    def close() -> None:
        steps = [(action, program.equations[place]) for place, actions in run for action in actions]
        needed = any(memory.kernels[program.equations[place].output].lowered for place, _ in run)
        # Large products are made in stretches, where BLAS has one thread: with more it may round otherwise, and members
        # have the bits of one that runs alone.
        needed = needed or any(action.kind in ("Product", "ProductSum") for action, _ in steps)
        # Of a chain each operation would be a call of NumPy.
        calls = sum([len(action.arguments) - 2 if action.kind == "Elementwise" else 1 for action, _ in steps])
        if calls >= shortest or (run and needed):
            places = range(run[0][0], run[-1][0] + 1)
            found.append(_stretch(places, steps, memory, room.held(places)))
        run.clear()

    for place, equation in enumerate(program.equations):
        output = equation.output
        if output in layout.bases:
            continue
        known = output in memory.kernels and (output in memory.lowered)
        given_up = memory.given_up.get(output)
        # A home is no operand that the result is there of already.
        given_up = given_up if given_up in equation.inputs else None
        actions = actions_of(equation, operands, given_up) if known else None
        if actions is None:
            close()
            continue
        if run and (
            len(run) >= longest
            or equation.errors != program.equations[run[0][0]].errors
            or not room.fits(range(run[0][0], place + 1))
        ):
            close()
        run.append((place, actions))
    close()
    return found


def _stretch(places: range, steps: Sequence[tuple[Action, Equation]], memory: Memory, held: int) -> Stretch:
    """Return a stretch with its buffers numbered, the block first."""

    def place(operand: Operand) -> tuple[Any, int]:
        return _place_of(operand, memory)

    steps = with_ends(without_fills(steps, place), place)
    owners: dict[Any, Any] = {}

    def note(operand: Operand) -> tuple[int, int]:
        key, _ = _buffer_of(operand.owner, memory)
        owners.setdefault(key, BLOCK if key is BLOCK else operand.owner)
        return 0, 0

    for action, _ in steps:
        action.placed(note)
    order = sorted(owners, key=lambda key: key is not BLOCK)
    numbers = {key: number for number, key in enumerate(order)}
    return Stretch(places, tuple(steps), tuple([owners[key] for key in order]), held, numbers, memory)


@final
class _Room:
    """What a program holds from one equation to another, with and without its inputs."""

    def __init__(self, program: Program, layout: Layout, memory: Memory) -> None:
        count = len(program.equations)
        apart, born = buffers_apart(program, layout, memory.buffers, memory.ends), [0] * count
        for buffer in apart:
            born[buffer.first] += buffer.nbytes
        # Of arrays of their own: those that are there at each equation, and those that were made until then.
        self._alive, self._born = [memory.nbytes + nbytes for nbytes in live_in(apart, count)], list(accumulate(born))
        self._given = live_in([Buffer(x.nbytes, 0, memory.ends[x]) for x in program.inputs], count)
        self._peak = memory.peak
        self._with_inputs = max([held + more for held, more in zip(memory.held, self._given, strict=False)], default=0)

    def held(self, places: range) -> int:
        """Return the bytes that are held from the first to the last of some equations, if all is until then."""
        return self._alive[places[0]] + self._born[places[-1]] - self._born[places[0]]

    def fits(self, places: range) -> bool:
        """Return whether a stretch holds no more than the program does at its peak."""
        held = self.held(places)
        return held <= self._peak and held + self._given[places[0]] <= self._with_inputs
