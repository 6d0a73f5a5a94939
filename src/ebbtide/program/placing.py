"""
Members in memory: for each `vmap` that runs member by member, where its results and the values of one member are.

The results of all members have one array each, which is made before the members run; where an operand is donated and of
the same type, a result is made in its place. The values of one member are in a workspace, a value of the program around
it, with one row for each thread, whatever the number of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.chains import chain_equations
from ebbtide.program.check import check_plan, passed
from ebbtide.program.equation import OBJECT, Equation, Place, Variable
from ebbtide.program.kernels import kernel_of
from ebbtide.program.ladder import Rung, ladder, plain_rung
from ebbtide.program.layout import Layout, find_layout, packed_strides
from ebbtide.program.lifetimes import last_uses, users_of
from ebbtide.program.members import Members
from ebbtide.program.memory import plan_memory
from ebbtide.program.names import find_drops
from ebbtide.program.placed import PlacedMembers
from ebbtide.program.program import Program
from ebbtide.program.rooms import filled, result, room
from ebbtide.program.scratch import add_scratch
from ebbtide.program.simplify import remove_dead
from ebbtide.program.split import fused
from ebbtide.program.stretches import find_stretches, lowered_outputs
from ebbtide.storage.system import count_processors

# Threads pay for so much work (see `costs`): of the machine altogether, whose threads wait for the next run but have to
# be woken; of NumPy in each of its calls, between which Python runs one thread at a time.
_WORTH = 1 << 23


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """
    A function of members that is to have places.

    Args:
        equation: The equation.
        parts: Those that take its results.
        program: That of one member, with the memory of its results among its inputs.
        strides: Of these inputs.
        rooms: For each result that has no operand to be in, the memory that it has to be in.
        homes: For each other result the input that it has to be in, and the operand of all members.
    """

    equation: Equation
    parts: Sequence[Equation]
    program: Program
    strides: Sequence[tuple[int, ...]]
    rooms: dict[Variable, Variable]
    homes: dict[Variable, tuple[Variable, Variable]]


def placements(
    program: Program,
    strides: Sequence[tuple[int, ...]],
    donated: Iterable[Variable],
    threads: int | None,
    *,
    chained: bool,
    fewer: bool = False,
) -> Iterator[Program]:
    """
    Yield programs in which functions of members have places for their results and a workspace.

    Args:
        program: The program.
        strides: Of its inputs.
        donated: Inputs whose memory it may use.
        threads: How many threads run members; None for as many as there are cores, where that pays.
        chained: Whether elementwise equations that follow each other are done together.
        fewer: Whether there are others after the first one, which take fewer and fewer bytes: with one thread, and
            with values of a member computed again.
    """
    if not any(isinstance(equation.function, Members) for equation in program.equations):
        yield program
        return
    layout, users = find_layout(program, strides), users_of(program)
    # What nobody else takes can be written over.
    free = {x for x in donated if len(users[x]) == 1 and x not in program.outputs}
    batches = [
        _batch(equation, [program.equations[user] for user in users[equation.output]], layout, free)
        for equation in program.equations if isinstance(equation.function, Members)
    ]  # fmt: skip
    plain = [fused(batch.program) for batch in batches]
    rungs = [plain_rung(one, batch.strides) for one, batch in zip(plain, batches, strict=True)]
    yield _with_places(program, batches, rungs, threads, chained)
    if fewer:
        ladders = [ladder(one, batch.strides)[::-1] for one, batch in zip(plain, batches, strict=True)]
        for number in range(max(map(len, ladders))):
            rungs = [found[min(number, len(found) - 1)] for found in ladders]
            yield _with_places(program, batches, rungs, 1, chained)


def _batch(equation: Equation, parts: Sequence[Equation], layout: Layout, free: set[Variable]) -> _Batch:
    """Return a function of members, with the memory in which its results are to be."""
    members: Any = equation.function
    outputs = tuple([members.program.outputs[taken.arguments[1]] for taken in parts])
    program = remove_dead(replace(members.program, outputs=outputs))
    each, shared = equation.params["each"], equation.params["shared"]
    lies = [_strides_within(x, layout)[1:] for x in each] + [_strides_within(x, layout) for x in shared]
    inside = find_layout(program, lies)
    # What results are views of is read last of all.
    kept = {inside.base(x) for x in outputs if x in inside.bases}
    # Donated operands that lie as new arrays would, and are there once.
    own = {
        operand: x for operand, x in zip(program.inputs, each, strict=False)
        if type(x) is Variable and x in free and [*each, *shared].count(x) == 1 and operand not in kept
        and operand.type.shape and layout.strides[x] == packed_strides(x.type)
    }  # fmt: skip
    homes = pair_homes(program, own)
    kinds = {x: ArrayType(x.type.shape or (1,), x.type.dtype) for x in outputs if x not in homes}
    rooms = {x: Variable(kind, "into") for x, kind in kinds.items()}
    inputs = (*program.inputs[: len(each)], *rooms.values(), *program.inputs[len(each) :])
    strides = [*lies[: len(each)], *[packed_strides(kind) for kind in kinds.values()], *lies[len(each) :]]
    pairs = {x: (home, own[home]) for x, home in homes.items()}
    return _Batch(equation, parts, replace(program, inputs=inputs), strides, rooms, pairs)


def _strides_within(x: Any, layout: Layout) -> tuple[int, ...]:
    """Return the strides of an operand."""
    return layout.strides.get(x, ()) if type(x) is Variable else np.asarray(x).strides


def _with_places(
    program: Program, batches: Sequence[_Batch], rungs: Sequence[Rung], threads: int | None, chained: bool
) -> Program:
    """Return a program whose functions of members have places, and run in these ways."""
    instead: dict[Variable, list[Equation]] = {}
    for batch, rung in zip(batches, rungs, strict=True):
        instead.update({taken.output: [] for taken in batch.parts})
        instead[batch.equation.output] = _placed(batch, plan_member(batch, rung, threads, chained))
    equations = [one for equation in program.equations for one in instead.get(equation.output, [equation])]
    return replace(program, equations=tuple(equations), history=(*program.history, "members placed"))


def _placed(batch: _Batch, placed: PlacedMembers) -> list[Equation]:
    """Return the equations of a function of members: rooms for its results, the function, and what is in the rooms."""
    equation, found = batch.equation, []

    def add(function: Any, name: str, kind: ArrayType, params: dict[str, Any]) -> Variable:
        found.append(replace(equation, function=function, name=name, params=params, output=Variable(kind, name)))
        return found[-1].output

    outside = {x: home for x, (_, home) in batch.homes.items()}
    for x, inside in batch.rooms.items():
        # Of numbers, one element each.
        kind = ArrayType((placed.members.size, *(inside.type.shape if x.type.shape else ())), x.type.dtype)
        outside[x] = add(room, "room", kind, {"kind": kind})
    params = equation.params | {
        "into": [outside[x] for x in batch.rooms], "space": add(room, "room", placed.space, {"kind": placed.space})
    }  # fmt: skip
    whole = add(placed, "members", OBJECT, params)
    if placed.stretch is not None:
        # The machine runs as one of its equations would: all of them are alike in that.
        first = placed.program.equations[placed.stretch.places[-1]]
        found[-1] = replace(found[-1], errors=tuple({**dict(equation.errors), **dict(first.errors)}.items()))
    for number, (taken, x) in enumerate(zip(batch.parts, batch.program.outputs, strict=True)):
        found.append(replace(taken, function=filled, name="filled", arguments=(whole, number, outside[x])))
    return found


def plan_member(batch: _Batch, rung: Rung, threads: int | None, chained: bool) -> PlacedMembers:
    """
    Plan the memory of one member.

    Args:
        batch: The function.
        rung: How its program runs.
        threads: How many threads run members; None for as many as pay.
        chained: Whether elementwise equations that follow each other are done together.
    """
    members: Any = batch.equation.function
    homes = [batch.rooms[x] if x in batch.rooms else batch.homes[x][0] for x in batch.program.outputs]

    layout = rung.layout
    program = add_scratch(chain_equations(rung.program, layout), layout) if chained else rung.program
    program, found = settle_homes(program, layout, homes)
    memory = plan_memory(program, layout, None, homes, lowered_outputs(program, layout), found)
    stretches = find_stretches(program, layout, memory, shortest=1)
    passed(program)
    check_plan(program, layout, memory, find_drops(program, layout, memory))
    placed = PlacedMembers(members, program, layout, memory, tuple(stretches), 1, rung.work * members.size, 0)
    most = min(_threads(placed) if threads is None else threads, members.size)
    # The machine takes nothing beside the workspace.
    moment = most * (memory.peak - memory.nbytes) if placed.stretch is None else 0
    return replace(placed, threads=most, moment_nbytes=moment)


def _threads(placed: PlacedMembers) -> int:
    """Return how many threads pay for members."""
    pieces = 1 if placed.stretch is not None else placed.members.size * max(1, len(placed.program.equations))
    return count_processors() if placed.work >= _WORTH * pieces else 1


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
        made = x
        if equation is None or not _fits(equation, home, layout, ends[home] - (place or 0)):
            made = Variable(home.type, "result")
            where = Place() if equation is None else equation.where
            copies.append(Equation(None, result, "result", (x,), {}, made, where))
            layout.add(copies[-1])
        found[made] = home
        outputs.append(made)
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
