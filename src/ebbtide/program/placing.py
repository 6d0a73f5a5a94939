"""
Members in memory: for each `vmap` that runs member by member, where its results and the values of one member are.

The results of all members have one array each, which is made before the members run; where an operand is donated and of
the same type, a result is made in its place. The values of one member are in a workspace, a value of the program around
it, with one row for each thread, whatever the number of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.chains import chain_equations
from ebbtide.program.check import check_plan, passed
from ebbtide.program.equation import OBJECT, Equation, Place, Variable
from ebbtide.program.kernels import kernel_of
from ebbtide.program.ladder import plain_rung
from ebbtide.program.layout import Layout, find_layout, packed_strides
from ebbtide.program.lifetimes import last_uses, users_of
from ebbtide.program.members import Members
from ebbtide.program.memory import Memory, plan_memory
from ebbtide.program.placed import PlacedMembers
from ebbtide.program.program import Program
from ebbtide.program.rooms import filled, result, room
from ebbtide.program.simplify import remove_dead
from ebbtide.program.source import find_drops
from ebbtide.program.split import fused
from ebbtide.tape.joint import part

def place_members(
    program: Program, strides: Sequence[tuple[int, ...]], donated: Iterable[Variable], threads: int | None, *, chained: bool
) -> Program:
    """
    Return a program in which functions of members have places for their results and a workspace.

    Args:
        program: The program.
        strides: Of its inputs.
        donated: Inputs whose memory it may use.
        threads: How many threads run members; None for as many as there are cores, where that pays.
        chained: Whether elementwise equations that follow each other are done together.
    """
    if not any(isinstance(equation.function, Members) for equation in program.equations):
        return program
    layout = find_layout(program, strides)
    users = users_of(program)
    # What nobody else takes can be written over.
    free = {x for x in donated if len(users[x]) == 1 and x not in program.outputs}
    equations: list[Equation] = []
    for place, equation in enumerate(program.equations):
        if isinstance(equation.function, Members):
            parts = [program.equations[user] for user in users[equation.output]]
            equations += _placed(program.equations[place], parts, layout, free, threads, chained)
        elif not (equation.function is part and _is_of_members(program, equation)):
            equations.append(equation)
    return replace(program, equations=tuple(equations), history=(*program.history, "members placed"))


def _is_of_members(program: Program, equation: Equation) -> bool:
    whole = equation.arguments[0]
    return any(one.output is whole and isinstance(one.function, Members) for one in program.equations)


def _placed(
    equation: Equation, parts: Sequence[Equation], layout: Layout, free: set[Variable], threads: int | None,
    chained: bool,
) -> list[Equation]:  # fmt: skip
    """Return the equations of a function of members: rooms for its results, the function, and what is in the rooms."""
    members = equation.function
    numbers = [taken.arguments[1] for taken in parts]
    program = remove_dead(replace(members.program, outputs=tuple([members.program.outputs[n] for n in numbers])))
    each, shared = equation.params["each"], equation.params["shared"]
    # Donated operands that lie as new arrays would, and are there once.
    own = {
        inside: x for inside, x in zip(program.inputs, each, strict=False)
        if type(x) is Variable and x in free and [*each, *shared].count(x) == 1
        and inside.type.shape and layout.strides[x] == packed_strides(x.type)
    }  # fmt: skip
    homes = pair_homes(program, own)
    rooms = {x: Variable(ArrayType(x.type.shape or (1,), x.type.dtype), "into") for x in program.outputs if x not in homes}
    lies = [_strides_within(x, layout)[1:] for x in each] + [_strides_within(x, layout) for x in shared]
    inputs = (*program.inputs[: len(each)], *rooms.values(), *program.inputs[len(each) :])
    given = [*lies[: len(each)], *[packed_strides(x.type) for x in rooms.values()], *lies[len(each) :]]
    placed = plan_member(members, replace(program, inputs=inputs), given, {**homes, **rooms}, threads, chained)
    outside: dict[Variable, Variable] = {}
    found: list[Equation] = []

    def add(function: Any, name: str, arguments: tuple[Any, ...], kind: ArrayType, params: Any = None) -> Variable:
        output = Variable(kind, name)
        found.append(replace(
            equation, function=function, name=name, arguments=arguments, params=params or {}, output=output
        ))  # fmt: skip
        return output

    for x in rooms:
        kind = ArrayType((members.size, *x.type.shape), x.type.dtype)
        outside[x] = add(room, "room", (), kind, {"kind": kind})
    space = add(room, "room", (), placed.space, {"kind": placed.space})
    operands = {"each": each, "into": list(outside.values()), "shared": shared, "space": space}
    whole = add(placed, "members", (), OBJECT, operands)
    outside |= {x: own[home] for x, home in homes.items()}
    for number, (taken, x) in enumerate(zip(parts, program.outputs, strict=True)):
        found.append(replace(taken, function=filled, name="filled", arguments=(whole, number, outside[x])))
    return found


def plan_member(
    members: Members, program: Program, strides: Sequence[tuple[int, ...]], homes: dict[Variable, Variable],
    threads: int | None, chained: bool,
) -> PlacedMembers:  # fmt: skip
    """
    Plan the memory of one member.

    Args:
        members: The function.
        program: That of one member, with the memory of its results among its inputs.
        strides: Of these inputs.
        homes: For each result the input in whose memory it has to be.
        threads: As in `place_members`.
        chained: Whether elementwise equations that follow each other are done together.
    """
    rung = plain_rung(fused(program), strides)
    inputs = [homes[x] for x in program.outputs]

    def planned(program: Program, layout: Layout) -> tuple[Program, Memory]:
        program, found = settle_homes(program, layout, inputs)
        return program, plan_memory(program, layout, None, inputs, found)

    program, memory = planned(rung.program, rung.layout)
    if chained:
        other, less = planned(chain_equations(rung.program, rung.layout), rung.layout)
        if less.peak <= memory.peak:
            program, memory = other, less
    passed(program)
    check_plan(program, rung.layout, memory, find_drops(program, rung.layout, memory))
    work = rung.work * members.size
    most = _threads(program, work) if threads is None else threads
    return PlacedMembers(members, program, rung.layout, memory, min(most, members.size), work)


def _threads(program: Program, work: int) -> int:
    """Return how many threads pay for members."""
    return 1


def _strides_within(x: Any, layout: Layout) -> tuple[int, ...]:
    """Return the strides of an operand."""
    return layout.strides.get(x, ()) if type(x) is Variable else np.asarray(x).strides


def pair_homes(program: Program, own: Iterable[Variable]) -> dict[Variable, Variable]:
    """
    Return for results the inputs in whose memory they are best made: of the same type, and few operations away.

    Args:
        program: The program.
        own: Inputs whose memory it may use.
    """
    made = {equation.output: equation for equation in program.equations}
    outputs = [x for x in program.outputs if type(x) is Variable]
    # An input that is returned is read last of all: nothing else can be in its memory.
    left = dict.fromkeys(x for x in own if x not in outputs)
    pairs = []
    for place, output in enumerate(outputs):
        near, distance = [output], 0
        seen: set[Variable] = set()
        while near:
            found = [x for x in near if x in left and x.type == output.type]
            pairs += [(distance, place, output, x) for x in found]
            seen.update(near)
            near = [v for x in near if x in made for v in made[x].inputs if v not in seen]
            near, distance = list(dict.fromkeys(near)), distance + 1
    homes = {x: x for x in own if x in outputs}
    for _, _, output, x in sorted(pairs, key=lambda pair: pair[:2]):
        if output not in homes and x in left:
            homes[output] = x
            del left[x]
    return homes


def settle_homes(
    program: Program, layout: Layout, homes: Sequence[Variable]
) -> tuple[Program, dict[Variable, Variable]]:
    """
    Return a program each of whose results can be made in the memory of an input, and that input for each of them.

    A result that cannot be made there, as the input is still read or the result is a view, is copied there at the end.

    Args:
        program: The program.
        layout: How its values lie; what is added is added to it.
        homes: For each result the input.
    """
    ends: dict[Variable, int] = {}
    for variable, last in last_uses(replace(program, outputs=())).items():
        base = layout.base(variable)
        ends[base] = max(last, ends.get(base, -1))
    places = {equation.output: place for place, equation in enumerate(program.equations)}
    found: dict[Variable, Variable] = {}
    outputs: list[Variable] = []
    copies: list[Equation] = []
    for x, home in zip(program.outputs, homes, strict=True):
        place = places.get(x)
        equation = None if place is None else program.equations[place]
        if equation is None or not _fits(equation, home, layout, ends[home] - (place or 0)):
            where = Place() if equation is None else equation.where
            copied = Variable(home.type, "result")
            equation = Equation(None, result, "result", (x,), {}, copied, where)
            layout.add(equation)
            copies.append(equation)
            x = copied
        found[x] = home
        outputs.append(x)
    equations = (*program.equations, *copies)
    return replace(program, equations=equations, outputs=tuple(outputs)), found


def _fits(equation: Equation, home: Variable, layout: Layout, later: int) -> bool:
    """Return whether an equation can be computed into the memory of an input, which is read last so much later."""
    output = equation.output
    kernel = kernel_of(equation) if output not in layout.bases else None
    if kernel is None or later > 0 or output.type != home.type or layout.strides[output] != layout.strides[home]:
        return False
    if later < 0:
        return True
    numbers = [number for number, argument in enumerate(equation.arguments) if argument is home]
    views = [x for x in equation.inputs if x is not home and layout.base(x) is home]
    return set(numbers) <= set(kernel.over) and not views and (len(numbers) == 1 or len(kernel.over) > 1)
