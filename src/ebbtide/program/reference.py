"""The reference executor: generated NumPy source over one block of memory."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any, final

import numpy as np

from ebbtide.program.ladder import Rung, ladder, objects_of, plain_rung, within
from ebbtide.program.memory import plan_memory
from ebbtide.program.prediction import Prediction, predict
from ebbtide.program.products import add_products
from ebbtide.program.program import Program
from ebbtide.program.source import Source


@final
class Executable:
    """
    A program that can be run.

    Args:
        program: The program.
        strides: Of each of its inputs, in bytes.
        limit: The bytes that a run may take above its inputs, results included; None for no budget.
        rungs: The ladder of the program, if it is known.

    Raises:
        BudgetError: No way to run the program takes so few bytes.

    Memory:
        From the first run on one block of `arena_nbytes` bytes, and one for each run at the same time beside it.
    """

    def __init__(
        self, program: Program, strides: Sequence[tuple[int, ...]], limit: int | None = None, rungs: Sequence[Rung] = ()
    ) -> None:
        # Once, before values are computed again: so sums take the same products, with the same bits, for all budgets.
        program = add_products(program)
        self.rung = plain_rung(program, strides) if limit is None else within(rungs or ladder(program, strides), limit)
        self.program = program = self.rung.program
        self.layout = self.rung.layout
        self.memory = plan_memory(program, self.layout, None if limit is None else limit - objects_of(program))
        source = Source(program, self.layout, self.memory)
        self.source = source.text
        self._constants = source.constants
        self._run, self._lay_out = _compiled(self.source, program.name, self)
        self._spare: list[tuple[Any, ...]] = []

    @property
    def arena_nbytes(self) -> int:
        """Bytes of the block."""
        return self.memory.nbytes

    def predict(self) -> Prediction:
        """Return what a run will hold, and the values that are held at the peak; nothing is allocated."""
        return predict(self.rung, self.memory)

    def run(self, values: list[Any]) -> list[Any]:
        """
        Return the results for inputs of the types and strides that the program was planned for.

        Args:
            values: The inputs; the list is emptied, so that each of them can die at its last use.

        Memory:
            The block, and the results.
        """
        spare = self._spare
        try:
            arrays = spare.pop()
        except IndexError:
            arrays = self._lay_out(np.empty(self.memory.nbytes, np.uint8))
        try:
            return self._run(values, arrays, self._constants)
        finally:
            values.clear()
            spare.append(arrays)


def _compiled(source: str, name: str, owner: Executable) -> tuple[FunctionType, FunctionType]:
    """Return the functions `run` and `lay_out` of a source, which tracebacks and debuggers can show."""
    file = f"<ebbtide program {name} {id(owner):x}>"
    namespace: dict[str, Any] = {}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - our own text
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(owner, linecache.cache.pop, file, None)
    # A function that is in its own globals would be a cycle.
    namespace["place"] = _place
    return namespace.pop("run"), namespace.pop("lay_out")


def _place(memory: Any, offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return an array in the block of memory, as the function of the same name in the source."""
    return np.ndarray(shape, dtype, memory, offset, strides)
