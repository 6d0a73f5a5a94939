"""
Programs: what a function computes, as equations over typed variables.

A program is plain data. Each variable is defined once, by an input or by an equation; equations stand in the order in
which they run. Passes take a program and return another one.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Any, ...]
    equations: tuple[Equation, ...]
    history: tuple[str, ...] = ("traced",)

    def __str__(self) -> str:
        return write_program(self)
