"""Passes that leave out what need not be computed: what nothing uses, and what is computed already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import OBJECT, Checking, Equation, Variable, substitute
from ebbtide.program.lifetimes import outputs_of
from ebbtide.program.program import Program


def remove_dead(program: Program) -> Program:
    """Return a program without the equations that no output depends on."""
    kept = needed(program.equations, outputs_of(program))
    return replace(program, equations=tuple(kept), history=(*program.history, "dead equations removed"))


def needed(equations: Iterable[Equation], outputs: Iterable[Any], *, idle: bool = True) -> list[Equation]:
    """
    Return those of some equations that outputs depend on.

    Of what finds by itself that its results are of other types than were traced, one run is left: no value may depend
    on a result just because it had that type.

    Args:
        equations: The equations.
        outputs: The outputs.
        idle: Whether that one run is left also where no output depends on it.
    """
    equations = list(equations)
    used = {output for output in outputs if type(output) is Variable}
    checking = [(equation, _checked(equation)) for equation in equations if equation.output.type is OBJECT]
    alone: set[Variable] = set()
    while True:
        read = used.copy()
        kept: list[Equation] = []
        for equation in reversed(equations):
            if equation.output in read or equation.output in alone:
                read.update(equation.inputs)
                kept.append(equation)
        done = {key for equation, key in checking if equation.output in read or equation.output in alone}
        # The last one first: those before may be there for it.
        left = [key for _, key in checking if key is not None and key not in done][-1:]
        if not left or not idle:
            return [_alone(e) if e.output in alone and e.output not in read else e for e in reversed(kept)]
        alone.add(next(equation.output for equation, key in checking if key == left[0]))


def _checked(equation: Equation) -> Any:
    """Return what tells a call with its operands of which an equation checks the types; None where it checks none."""
    found = equation.function.checked(equation.params) if isinstance(equation.function, Checking) else None
    return None if found is None else (found[0], _key(list(found[1])))


def _alone(equation: Equation) -> Equation:
    """Return what checks the types of results that nobody needs."""
    checking: Any = equation.function
    function, name, params = checking.alone(equation.params)
    return equation if function is equation.function else replace(equation, function=function, name=name, params=params)


def skip_identities(program: Program) -> Program:
    """Return a program without the equations that give their operand as it is."""

    def operand(equation: Equation) -> Variable | None:
        return equation.arguments[0] if _is_identity(equation) else None

    return _without(program, operand, "identities skipped")


def _is_identity(equation: Equation) -> bool:
    operand, name, params = equation.arguments[0] if equation.arguments else None, equation.name, equation.params
    if type(operand) is not Variable or operand.type != equation.output.type or operand.is_number:
        return False
    if name == "transpose":
        return tuple(params["axes"]) == tuple(range(len(operand.type.shape)))
    return name == "broadcast_to" or (name == "reshape" and (params["order"] == "C" or len(operand.type.shape) < 2))


def merge_common(program: Program) -> Program:
    """Return a program in which the same function of the same values is computed once, in each run of a checkpoint."""
    found: dict[Any, Variable] = {}

    def earlier(equation: Equation) -> Variable | None:
        told = equation.errors, equation.again, equation.within
        key = (equation.function, equation.name, _key(equation.arguments), _key(equation.params), *told)
        known = found.setdefault(key, equation.output)
        return None if known is equation.output else known

    return _without(program, earlier, "common equations merged")


def _without(program: Program, stand_in: Callable[[Equation], Variable | None], note: str) -> Program:
    """Return a program without the equations for whose results other values stand in, as *stand_in* finds them."""
    same: dict[Variable, Variable] = {}
    kept: list[Equation] = []

    def renamed(variable: Variable) -> Variable:
        return same.get(variable, variable)

    for old in program.equations:
        equation = old
        if not same.keys().isdisjoint(old.inputs):
            arguments, params = substitute((old.arguments, old.params), renamed)
            equation = old.of(arguments, params, old.output)
        known = stand_in(equation)
        if known is None:
            kept.append(equation)
        else:
            same[equation.output] = known
    outputs = substitute(program.outputs, renamed)
    return replace(program, equations=tuple(kept), outputs=outputs, history=(*program.history, note))


def _key(value: Any) -> Any:
    """Return what is equal for equal arguments: arrays are told by identity, numbers with their type and sign."""
    if type(value) in (tuple, list):
        return type(value), tuple([_key(part) for part in value])
    if type(value) is dict:
        return tuple([(name, _key(part)) for name, part in sorted(value.items())])
    if type(value) is slice:
        return slice, _key((value.start, value.stop, value.step))
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)
    if isinstance(value, (bool, int, str, type(None), type(Ellipsis), np.dtype, ArrayType)):
        return type(value), value
    return id(value)
