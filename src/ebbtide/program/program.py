"""
Programs: what a function computes, as equations over typed variables.

A program is plain data. Each variable is defined once, by an input or by an equation; equations stand in the order in
which they run. Passes take a program and return another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from ebbtide.program.equation import Equation, Variable
from ebbtide.program.text import write_program


@final
@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """
    A function as it was traced, for arguments of certain types.

    Args:
        name: Name of the function.
        inputs: Variables that are given, in the order of the leaves of the arguments; captured ones follow.
        outputs: Variables, or plain values that do not depend on the inputs, in the order of the leaves of the result.
        equations: What is computed, in order.
        history: The passes that made it, the first one first.
        plan: Plans it for inputs that lie in memory as the arguments of its trace do; None where that is not known.
    """

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Any, ...]
    equations: tuple[Equation, ...]
    history: tuple[str, ...] = ("traced",)
    plan: Callable[[Program], Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return write_program(self)

    def predict(self) -> Any:
        """Return what a run will hold, its peak and what is held then (`Prediction`); nothing is allocated."""
        return self._planned().predict()

    @property
    def source(self) -> str:
        """The NumPy source that runs it in planned memory, a file of its own."""
        return self._planned().source

    def _planned(self) -> Any:
        if self.plan is None:
            raise TypeError(
                f"How the inputs of {self.name} lie in memory is not known, so that it cannot be planned. Ask the "
                "program that ebbtide.trace returns, or jit(f).program(*args)."
            )
        return self.plan(self)


def with_instead(program: Program, instead: Mapping[int, Equation | None], note: str) -> Program:
    """Return a program with others in the place of some equations, by their numbers, and without those of None."""
    equations = [instead.get(place, equation) for place, equation in enumerate(program.equations)]
    left = tuple([equation for equation in equations if equation is not None])
    return replace(program, equations=left, history=(*program.history, note))
