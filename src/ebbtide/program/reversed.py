"""
Programs as tapes record them: what is saved, and which reverse program runs.

Without a budget that is one pair of programs. Under one, a run saves what leaves least to compute again (see `ways`)
of what fits into the bytes that are left. Where later operations need these bytes, it gives saved values up, the
oldest run first; and when the sweep comes to it, it takes the way with the least work that fits then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import format_bytes
from ebbtide.errors import BudgetError
from ebbtide.program.costs import may_repeat
from ebbtide.program.derivatives import Reversal
from ebbtide.program.equation import Variable
from ebbtide.program.ladder import ladder, objects_of
from ebbtide.program.layout import packed_strides
from ebbtide.program.operands import arrays_in
from ebbtide.program.program import Program
from ebbtide.program.reference import Executable
from ebbtide.program.rule import ProgramRule, Saving, bytes_left
from ebbtide.program.simplify import needed
from ebbtide.program.split import INPUT, RESULT, Split, fused
from ebbtide.program.ways import Way, results_nbytes, saved_nbytes, swept_nbytes, ways_of
from ebbtide.tape.joint import record_joint
from ebbtide.tape.record import Tape
from ebbtide.tape.saved import guarded, saved_operand

# What no rule would save is kept for a way that computes it from there where it is so small a part of what is saved.
_SMALL = 1 / 64


@final
class Reversed:
    """
    A program as tapes record it.

    Args:
        reversal: The program on a tape of symbols.
        limit: The bytes that its run and its reverse sweep may take above the arguments; None for no budget of its own.
        plan: Makes of a program, and the rung to run it on if that is decided, one that runs on values of any trace.

    Raises:
        BudgetError: No way to run the two programs takes so few bytes.

    Memory:
        Its programs; no data.
    """

    __slots__ = (
        "_arrays", "_backs", "_count", "_forwards", "_limit", "_plain", "_plan", "_reversal", "_savings", "_ways",
        "first", "inputs", "name", "repeats",
    )  # fmt: skip

    def __init__(self, reversal: Reversal, limit: int | None, plan: Callable[..., Any]) -> None:
        self._reversal = reversal
        self._limit = limit
        self._plan = plan
        self._count = len(reversal.program.outputs)
        self.name = f"jit({reversal.program.name})"
        self._arrays = arrays_in(reversal.program)
        self._forwards: dict[Split, Any] = {}
        self._savings: dict[tuple[Way, bool], Saving] = {}
        self._backs: dict[tuple[Way, tuple[int, ...]], tuple[Any, tuple[Variable, ...]]] = {}
        self._plain = split = reversal.split(reversal.results)
        self._ways: tuple[Way, ...] | None = None
        self.repeats = all(may_repeat(equation) for equation in split.forward.equations)
        used = {variable for equation in split.forward.equations for variable in equation.inputs}
        # What a run from the start takes.
        self.inputs = tuple([number for number, x in enumerate(split.forward.inputs) if x in used])
        # The way that is taken where no bytes are counted.
        self.first = self._plain_way() if limit is None else self._within(limit)

    def ways(self) -> tuple[Way, ...]:
        """Return all ways to run it, from the least work to the fewest bytes; the last one saves inputs alone."""
        if self._ways is None:
            plain = self._plain_way() if self._limit is None else self.first
            found = ways_of(self._plain, self._reversal.strides) if self.repeats else ()
            fewer = [way for way in found if way.nbytes < plain.nbytes and way.work >= plain.work]
            # The last one is there even where it takes more, as others may have no room for what this one saves.
            self._ways = (plain, *fewer, *[way for way in found[-1:] if way not in fewer])
        return self._ways

    def _within(self, limit: int) -> Way:
        plain = self._plain_way()
        found = (plain, *(ways_of(self._plain, self._reversal.strides) if self.repeats else ()))
        results = results_nbytes(self._plain)
        needs = [max(way.ahead_nbytes + results, way.sweep_nbytes) for way in found]
        if min(needs) > limit:
            least = min(needs)
            raise BudgetError(
                f"{self.name} and its reverse sweep cannot run in {format_bytes(limit)} above the arguments: of the "
                f"ways to compute values again that were found, the one that holds least takes {least:,} bytes "
                f"({format_bytes(least)}), results included. Give it Budget(memory={least}) or more.",
                least,
            )
        return next(way for way, need in zip(found, needs, strict=True) if need <= limit)

    def _plain_way(self) -> Way:
        """Return the way without a budget, with what its programs take as they are planned then."""
        split = self._plain
        way = Way(split, saved_nbytes(split), 0, 0, 0)
        ahead, back = self.executables_of(way)
        # The block stays as it was for the forward program, if that is larger.
        more = max(0, ahead.arena_nbytes - back.arena_nbytes)
        more += objects_of(back.program)
        taken = ahead.memory.peak + objects_of(ahead.program) - results_nbytes(split)
        swept = swept_nbytes(split, back.memory)
        work = ahead.rung.work + back.rung.work
        return Way(split, way.saved_nbytes, taken, back.memory.peak + more, swept + more, work)

    def executables_of(self, way: Way) -> tuple[Executable, Executable]:
        """Return the forward and the reverse program of a way, for cotangents that are C-contiguous."""
        ahead = self.forward(way).planned(self._reversal.strides)
        lies = ahead.layout.strides
        back, _ = self.back(way, tuple(range(len(self._plain.given))))
        strides = [lies[x] if x in lies else packed_strides(x.type) for x in back.program.inputs]
        return ahead, back.planned(tuple(strides))

    def forward(self, way: Way) -> Any:
        """Return the forward program of a way."""
        found = self._forwards.get(way.split)
        if found is None:
            found = self._forwards[way.split] = self._plan(way.split.forward, rung=way.ahead)
        return found

    def back(self, way: Way, given: tuple[int, ...]) -> tuple[Any, tuple[Variable, ...]]:
        """
        Return the reverse program of a way for the cotangents of some of the results that can have one.

        Args:
            way: The way.
            given: Their numbers among these.

        Returns:
            (the program, the saved values that it takes).
        """
        split = way.split
        key = (way, given)
        found = self._backs.get(key)
        if found is None:
            if len(given) == len(split.given):
                found = self._plan(split.reverse, rung=way.back), split.variables
            else:
                part = self._reversal.split(tuple([split.given[number] for number in given]), split.variables)
                found = self._part(way, part)
            self._backs[key] = found
        return found

    def _part(self, way: Way, part: Split) -> tuple[Any, tuple[Variable, ...]]:
        """Return the reverse program for fewer cotangents, from what a way saves."""
        if way.back is None:
            return self._plan(part.reverse), part.variables
        back, kept = fused(part.reverse), set(way.split.variables)
        ahead = [equation for equation in fused(self._plain.forward).equations if equation.output not in kept]
        own = {equation.output for equation in back.equations}
        ahead = needed(ahead, [variable for variable in part.variables if variable not in kept])
        equations = (*[equation for equation in ahead if equation.output not in own], *back.equations)
        used = {variable for equation in equations for variable in equation.inputs}.union(back.outputs)
        saved = tuple([variable for variable in way.split.variables if variable in used])
        program = Program(
            back.name, (*saved, *back.inputs[len(part.saved) :]), back.outputs, equations, back.history
        )
        lies = self.forward(way).planned(self._reversal.strides).layout.strides
        rungs = ladder(program, [lies[x] if x in lies else packed_strides(x.type) for x in program.inputs])
        within = [rung for rung in rungs if rung.peak + objects_of(rung.program) <= way.back_nbytes]
        rung = within[-1] if within else rungs[0]
        return self._plan(rung.program, rung=rung), saved

    def record(self, tape: Tape, operands: list[Any], values: list[Any]) -> list[Any]:
        """
        Run the forward program and record it.

        Args:
            tape: Where to record it.
            operands: The operands, as they are on the tape.
            values: Their values.

        Returns:
            The results.
        """
        pager = tape.pager
        chooses = pager is not None and tape.outer is None and self._may_choose(pager, values)
        way = self._choice(pager) if chooses else self.first
        saving = self._savings.get((way, chooses)) or self._saving(way, chooses)
        if pager is not None:
            pager.reserve(way.saved_nbytes)
        rule = ProgramRule(self, pager, saving)
        found = self._run(way, values)
        saved = []
        for kind, number in saving.places:
            if kind == INPUT:
                saved.append(_saved(operands[number], values[number]))
            else:
                saved.append(found[number if kind == RESULT else self._count + number])
        saved += map(guarded, saving.constants)
        if tape.constancy is not None:
            for array in self._arrays:
                tape.constancy.meet(array)
        results = found[: self._count]
        parents = tuple([operands[number]._node for number in self._reversal.inputs])
        given = self._plain.given
        traced = record_joint(tape, rule, parents, [results[number] for number in given], saved)
        del saved, found
        rule.watch(traced[0]._node.parents[0])
        for number, array in zip(given, traced, strict=True):
            results[number] = array
        for number in self._reversal.constants:
            results[number] = TracedArray(tape, None, results[number])
        return results

    def _run(self, way: Way, values: list[Any]) -> list[Any]:
        """Return the results of the forward program."""
        ahead = self.forward(way)
        if innermost(tuple(values)) is not None:
            return ahead.apply(list(values))
        # They lie as those for which the way was found.
        return ahead.planned(self._reversal.strides).run(list(values))

    def _saving(self, way: Way, chooses: bool) -> Saving:
        """Return what the nodes of runs one way save."""
        places = dict(zip(way.split.variables, way.split.saved, strict=True))
        # The user can reach them: they are looked at again in the sweep.
        known = arrays_in(way.split.reverse)
        if chooses:
            places |= {self._plain.forward.inputs[number]: (INPUT, number) for number in self.inputs}
            known += arrays_in(self._plain.forward)
        numbers = {variable: number for number, variable in enumerate(places)}
        constants = tuple({id(array): array for array in known}.values())
        saving = self._savings[way, chooses] = Saving(way, chooses, tuple(places.values()), numbers, constants)
        return saving

    def _may_choose(self, pager: Any, values: Sequence[Any]) -> bool:
        """Return whether a run can be done again from its inputs, which others hold, or the node does anyway."""
        if not self.repeats or pager.budget is None or pager.ledger.limit is None:
            return False
        held = {number for kind, number in self._plain.saved if kind == INPUT}
        small = _SMALL * saved_nbytes(self._plain)
        return all(
            number in held or type(values[number]) is not np.ndarray or values[number].nbytes <= small
            or pager.is_callers(values[number])
            for number in self.inputs
        )  # fmt: skip

    def _choice(self, pager: Any) -> Way:
        """Return the way with the least work that fits into what is left, or the last one."""
        left = bytes_left(pager)
        if self.first.nbytes <= left:
            return self.first
        ways, ledger = self.ways(), pager.ledger
        if ways[-1].nbytes > left:
            ledger.relieve(ways[-1].nbytes - left)
            left = bytes_left(pager)
        return next((way for way in ways if way.nbytes <= left), ways[-1])


def _saved(operand: Any, value: Any) -> Any:
    """Return a value of an operand as a node keeps it: with a guard if the user can reach it."""
    if type(operand) is TracedArray and operand is not value:
        return saved_operand(operand, value)
    return guarded(value) if type(value) is np.ndarray else value
