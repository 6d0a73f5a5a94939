"""The reference executor: generated NumPy source over one block of memory."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, final

import numpy as np

from ebbtide.arrays.context import entered
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.program.blocks import Blocks
from ebbtide.program.boxing import box_equations
from ebbtide.program.chains import chain_equations
from ebbtide.program.check import check_plan, passed
from ebbtide.program.costs import loops_of
from ebbtide.program.equation import Variable
from ebbtide.program.files import save_source
from ebbtide.program.ladder import Rung, ladder, objects_of, plain_rung, within
from ebbtide.program.memory import peak_of_machine, plan_memory
from ebbtide.program.nests import with_nests
from ebbtide.program.placing import placements
from ebbtide.program.prediction import Prediction, predict
from ebbtide.program.program import Program
from ebbtide.program.scratch import add_scratch
from ebbtide.program.source import Source
from ebbtide.program.split import fused
from ebbtide.program.stretches import find_stretches, lowered_outputs
from ebbtide.tape.account import account

# Numbers that NumPy has as objects are in the block where the machine computes them, in 64 bytes each.
_ROOM = 1 << 12
# NumPy would take several times as long: for that many times fewer bytes the machine is not given up.
_SLACK = 64


@final
class Executable:
    """
    A program that can be run.

    Args:
        program: The program.
        strides: Of each of its inputs, in bytes.
        blocks: Where and how it runs; by default in blocks of its own.
        donated: Numbers of the inputs whose memory it may use: they are overwritten.
        limit: The bytes that a run may take above its inputs, results included; None for no budget.
        rungs: The ladder of the program, if it is known.
        rung: The way to run it, if that is decided: it is run so in as few bytes as it can.
        poisoned: Whether memory that is given back is overwritten at once: for tests of plans.

    Raises:
        BudgetError: No way to run the program takes so few bytes.

    Memory:
        From the first run on one block of `arena_nbytes` bytes or more, and one for each run at the same time beside
        it; they are shared with the other programs that are given the same `blocks`. None between its runs once the
        function of `jit` whose program it is has gone.
    """

    def __init__(
        self,
        program: Program,
        strides: Sequence[tuple[int, ...]],
        blocks: Blocks | None = None,
        donated: Sequence[int] = (),
        *,
        limit: int | None = None,
        rungs: Sequence[Rung] = (),
        rung: Rung | None = None,
        poisoned: bool = False,
    ) -> None:
        self._blocks = Blocks() if blocks is None else blocks
        given = [program.inputs[number] for number in donated]
        has_loops = limit is not None and bool(loops_of(program))
        if rung is not None:
            self.rung, room = rung, 0
        else:
            self.rung = self._chosen(program, strides, given, limit, rungs)
            room = None if limit is None else limit - objects_of(self.rung.program)
        # A time loop knows better than the others what to do with bytes.
        left, room = room, 0 if has_loops else room
        self.layout = self.rung.layout
        self.memory = plan_memory(self.rung.program, self.layout, room, given)
        if self._blocks.chained:
            peak = self.memory.peak
            most = peak + max(_ROOM, peak // _SLACK) if room is None else max(peak, room)
            boxed = box_equations(self.rung.program, self.layout, given)
            for one in dict.fromkeys((boxed, self.rung.program)):
                layout = self.layout.left_of(one)
                chained = add_scratch(chain_equations(one, layout), layout)
                lowered = lowered_outputs(chained, layout)
                memory = plan_memory(chained, layout, room, given, lowered)
                # One block is not given up for what NumPy would take for a moment.
                if room is None and peak_of_machine(chained, memory) > most:
                    memory = plan_memory(chained, layout, most, given, lowered)
                if (memory.peak if room is not None else peak_of_machine(chained, memory)) <= most:
                    self.rung, self.memory = replace(self.rung, program=chained, layout=layout), memory
                    self.layout = layout
                    break
        self._limit = limit
        # What is left of a budget to the time loops, whose plans are made when they run; None without either.
        self._left = left - self.memory.peak if has_loops and left is not None else None
        self.program = program = passed(self.rung.program)
        bases = [self.layout.base(x) if type(x) is Variable else None for x in program.outputs]
        # Whether each result is in memory that neither an input nor another result is in.
        self.fresh = tuple([x is not None and x not in program.inputs and bases.count(x) == 1 for x in bases])
        stretches = find_stretches(program, self.layout, self.memory, longest=1 if poisoned else 10**9)
        if self._blocks.compiled:
            stretches = [with_nests(stretch) for stretch in stretches]
        source = Source(program, self.layout, self.memory, stretches, poisoned=poisoned)
        check_plan(program, self.layout, self.memory, source.drops)
        self.source = source.text
        self._constants = source.constants
        self._run, self._lay_out = _compiled(self.source, program.name, self)
        self._key = object()
        weakref.finalize(self, self._blocks.forget, self._key)

    def _chosen(
        self, program: Program, strides: Sequence[tuple[int, ...]], given: list[Variable], limit: int | None,
        rungs: Sequence[Rung],
    ) -> Rung:  # fmt: skip
        """Return the way to run a program with the least work in so many bytes."""
        # Once, before values are computed again: so sums take the same products, with the same bits, always.
        program, blocks = fused(program), self._blocks
        ways = placements(program, strides, given, blocks.threads, chained=blocks.chained, fewer=limit is not None)
        refused: BudgetError | None = None
        for one in ways:
            if limit is None:
                return plain_rung(one, strides)
            try:
                found = rungs or ladder(one, strides)
                return within(found[:1] if loops_of(one) else found, limit)
            except BudgetError as error:
                refused = error if refused is None or error.least < refused.least else refused
        assert refused is not None
        try:
            raise refused
        finally:
            del refused  # whose traceback has this frame

    @property
    def arena_nbytes(self) -> int:
        """Bytes of the block."""
        return self.memory.nbytes

    def predict(self) -> Prediction:
        """Return what a run will hold, and the values that are held at the peak; nothing is allocated."""
        return predict(self.rung, self.memory)

    def save(self, path: str | Path) -> None:
        """
        Write the source as a file of its own, which imports what it needs and has a function `call` of the inputs.

        Args:
            path: Where to write, a name that ends with `.py`; arrays from around the function go beside it (`.npz`).

        Raises:
            ValueError: The path does not end with `.py`.
            TypeError: The program calls a function that a file cannot import.
        """
        save_source(self.source, self._constants, path)

    def run(self, values: list[Any]) -> list[Any]:
        """
        Return the results for inputs of the types and strides that the program was planned for.

        Args:
            values: The inputs; the list is emptied, so that each of them can die at its last use.

        Memory:
            The block, and the results.
        """
        block = self._blocks.take()
        arrays = block.views.get(self._key)
        if arrays is None:
            if block.memory.nbytes < self.memory.nbytes:
                block.grow(self.memory.nbytes)
            arrays = block.views[self._key] = self._lay_out(block.memory)
        try:
            if self._left is None:
                return self._run(values, arrays, self._constants)
            return self._run_within(self._left, values, arrays)
        except BaseException as error:
            _empty(error, self._run.__code__)
            raise
        finally:
            values.clear()
            self._blocks.give(block)

    def _run_within(self, left: int, values: list[Any], arrays: tuple[Any, ...]) -> list[Any]:
        """Return the results; the time loops in the program take no more than so many bytes together."""
        with entered(follower=None), account(Budget(memory=left)) as acct:
            try:
                with entered(ledger=acct.ledger, budget=acct.budget):
                    return self._run(values, arrays, self._constants)
            except BudgetError as error:
                least, least_disk = error.least, error.least_disk
        if least_disk:
            raise BudgetError(
                f"{self.program.name} has a budget of memory alone, and a time loop in it stores {least_disk:,} bytes "
                "on disk. Give the loop another schedule, or give it the budget in place of the program: "
                f"timeloop(..., budget=Budget(memory={least}, disk={least_disk})) or more.",
                least,
                least_disk,
            )
        own = (self._limit or 0) - left
        raise BudgetError(
            f"{self.program.name} cannot run in {format_bytes(own + left)} above its arguments: a time loop in it "
            f"takes {least:,} bytes at least, and all else {own:,}. Give it Budget(memory={own + least}) or more.",
            own + least,
        )


def _empty(error: BaseException, code: CodeType) -> None:
    """Take their values from the frame of a run that failed and those below, which the traceback keeps."""
    entry, below = error.__traceback__, False
    while entry is not None:
        below = below or entry.tb_frame.f_code is code
        if below:
            entry.tb_frame.clear()
        entry = entry.tb_next


def _compiled(source: str, name: str, owner: Executable) -> tuple[FunctionType, FunctionType]:
    """Return the functions `run` and `lay_out` of a source, which tracebacks and debuggers can show."""
    file = f"<ebbtide program {name} {id(owner):x}>"
    namespace: dict[str, Any] = {}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - our own text
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(owner, linecache.cache.pop, file, None)
    # A function that is in its own globals would be a cycle: those of members are called by name, and have others.
    namespace["place"] = _place
    own = {key: value for key, value in namespace.items() if getattr(value, "__globals__", None) is namespace}
    shared = {key: value for key, value in namespace.items() if key not in own}
    for key in own.keys() - {"run", "lay_out"}:
        namespace[key] = FunctionType(own[key].__code__, shared, key)
    own.clear()
    return namespace.pop("run"), namespace.pop("lay_out")


def _place(memory: Any, offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return an array in the block of memory, as the function of the same name in the source."""
    return np.ndarray(shape, dtype, memory, offset, strides)
