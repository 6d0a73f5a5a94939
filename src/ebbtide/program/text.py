"""Programs as people read them: each line with its type, what is held after it, and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.program.equation import Equation, Inner, Variable
from ebbtide.program.lifetimes import last_uses, live_bytes

if TYPE_CHECKING:
    from ebbtide.program.program import Program

_MOST_ARRAY = 6


def name_variables(program: Program) -> dict[Variable, str]:
    """Return a name for each variable: inputs as they are, the others by operation and number."""
    names: dict[Variable, str] = {}
    taken: set[str] = set()
    wanted = [(variable, variable.name) for variable in program.inputs]
    for number, equation in enumerate(program.equations, 1):
        wanted.append((equation.output, f"{equation.name if equation.name.isidentifier() else 'value'}_{number}"))
    for variable, name in wanted:
        found = name
        while found in taken:
            found += "_"
        taken.add(found)
        names[variable] = found
    return names


def write_program(program: Program) -> str:
    """
    Return the text of a program.

    Args:
        program: The program.

    Returns:
        A line for the inputs, one for each equation with its type, the bytes that are held after it, the inputs apart,
        what it frees, and the user's line; and one for the outputs.
    """
    names = name_variables(program)
    last = last_uses(program)
    rows = [_row(program, place, names, last, held) for place, held in enumerate(live_bytes(program))]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    given = ", ".join(f"{names[variable]}: {_type(variable)}" for variable in program.inputs)
    lines = [f"program {program.name}({given})"]
    lines.append("  # the type; bytes that are held after the line; what it frees; where it comes from")
    for equation, (text, kind, held, freed, line) in zip(program.equations, rows, strict=True):
        whole = f"  {text:<{widths[0]}}  # {kind:<{widths[1]}}  {held:>{widths[2]}}  {freed:<{widths[3]}}  {line}"
        lines.append(whole.rstrip())
        if isinstance(equation.function, Inner):
            lines += [f"    {inside}" for inside in f"{equation.function.program}".splitlines()]
    outputs = ", ".join(write_value(output, names) for output in program.outputs)
    lines.append(f"  return {outputs}")
    return "\n".join(lines)


def _row(
    program: Program, place: int, names: dict[Variable, str], last: dict[Variable, int], held: int
) -> tuple[str, ...]:
    equation = program.equations[place]
    freed = [names[v] for v in (*equation.inputs, equation.output) if last[v] == place and v not in program.inputs]
    text = f"{names[equation.output]} = {write_call(equation, names)}"
    freed_text = f"-{', -'.join(freed)}" if freed else ""
    return text, _type(equation.output), f"{held:,}", freed_text, equation.where.short_line


def _type(variable: Variable) -> str:
    return "number" if variable.is_number else f"{variable.type}"


def write_call(equation: Equation, names: dict[Variable, str]) -> str:
    """Return an equation as a call: the operation with its arguments and parameters."""
    parts = [write_value(argument, names) for argument in equation.arguments]
    parts += [f"{name}={write_value(value, names)}" for name, value in equation.params.items()]
    return f"{equation.name}({', '.join(parts)})"


def write_value(value: Any, names: dict[Variable, str]) -> str:
    """Return an argument as it is read: large arrays by their type."""
    if type(value) is Variable:
        return names[value]
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}" if value.size > _MOST_ARRAY else f"array({value.tolist()})"
    if type(value) in (tuple, list):
        inside = ", ".join(write_value(part, names) for part in value)
        return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
    if type(value) is slice:
        ends = ["" if end is None else str(end) for end in (value.start, value.stop)]
        return ":".join(ends if value.step is None else [*ends, str(value.step)])
    if type(value) is np.dtype or isinstance(value, np.generic):
        return str(value)
    return "..." if value is Ellipsis else repr(value)
