"""Memory beside operands, for the operations whose steps of the machine take it."""

from __future__ import annotations

from dataclasses import replace

from ebbtide.program.actions import Operands
from ebbtide.program.layout import Layout
from ebbtide.program.program import Program
from ebbtide.program.steps import actions_of
from ebbtide.program.windowed import with_scratch


def add_scratch(program: Program, layout: Layout) -> Program:
    """
    Return a program in which operations have the memory that the machine takes beside their operands.

    Args:
        program: The program.
        layout: How its values lie; what is added is added to it.
    """
    found = []
    for equation in program.equations:
        pair = with_scratch(equation)
        if pair is not None:
            for one in pair:
                layout.add(one)
            # What the machine cannot do is done by NumPy, which takes memory of its own.
            pair = pair if actions_of(pair[1], Operands(layout, pair)) is not None else None
        if pair is not None:
            layout.known.pop(equation.output, None)  # what NumPy takes for a moment is a value now
        found += [equation] if pair is None else pair
    if len(found) == len(program.equations):
        return program
    return replace(program, equations=tuple(found), history=(*program.history, "add_scratch"))
