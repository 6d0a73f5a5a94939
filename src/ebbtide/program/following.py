"""Programs that are followed on symbols: each equation is done again, and each checkpointed function stays one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ebbtide.arrays.traced import TracedArray
from ebbtide.program.equation import Equation, Variable, variables_in
from ebbtide.program.evaluate import compute
from ebbtide.program.program import Program
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.tape.checkpoint import checkpoint
from ebbtide.tape.record import Tape


def follow(program: Program, inputs: Sequence[Any], trace: SymbolicTrace) -> list[Any]:
    """Return the outputs of a program for symbols of a trace, or arrays of a derivative whose values are symbols."""
    known: dict[Variable, Any] = dict(zip(program.inputs, inputs, strict=True))
    _follow(program.equations, set(variables_in(program.outputs)), known, trace, 0)
    return [known[output] if type(output) is Variable else output for output in program.outputs]


def _follow(
    equations: Sequence[Equation], wanted: set[Variable], known: dict[Variable, Any], trace: SymbolicTrace, depth: int
) -> None:
    """Add to what is known the results of equations, of which those that are *wanted* are used later."""
    later = len(equations)
    last = {variable: place for place, equation in enumerate(equations) for variable in equation.inputs}
    last.update(dict.fromkeys(wanted, later))
    place = 0
    for within, group in groupby(equations, lambda equation: equation.within[depth : depth + 1]):
        block = list(group)
        place += len(block)
        if within:
            _follow_again(block, {e.output for e in block if last.get(e.output, -1) >= place}, known, trace, depth + 1)
        else:
            for equation in block:
                known[equation.output] = _done(equation, known, trace)


def _follow_again(
    block: Sequence[Equation], wanted: set[Variable], known: dict[Variable, Any], trace: SymbolicTrace, depth: int
) -> None:
    """Add the results of the equations of one checkpointed function."""
    own = {equation.output for equation in block}
    taken = list(dict.fromkeys(v for equation in block for v in equation.inputs if v not in own))
    outputs = [equation.output for equation in block if equation.output in wanted]

    def run(values: list[Any]) -> list[Any]:
        inside = dict(zip(taken, values, strict=True))
        _follow(block, wanted, inside, trace, depth)
        return [inside[output] for output in outputs]

    found = checkpoint(run)([known[variable] for variable in taken])
    known.update(zip(outputs, found, strict=True))


def _done(equation: Equation, known: dict[Variable, Any], trace: SymbolicTrace) -> Any:
    """Return what an equation gives; what is recorded for it stands where it stood."""
    before = len(trace.equations)
    result = compute(equation, known)
    # Who calls is of no interest: the user's line is that of the equation.
    made = trace.equations[before:]
    trace.equations[before:] = [_like(one, equation) for one in made]
    if type(result) is TracedArray and type(result._trace) is Tape and result._node is not None:
        result._node.code, result._node.instruction = equation.where.code, equation.where.instruction
    return result


def _like(made: Equation, equation: Equation) -> Equation:
    """Return an equation that stands where another one stood; the run of a checkpointed function is its own."""
    again = equation.again if made.again is None else made.again
    return replace(made, where=equation.where, errors=made.errors or equation.errors, again=again)
