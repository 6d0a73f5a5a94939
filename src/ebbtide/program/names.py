"""The names of a source: what Python calls values, which of them have a name at all, and where names are let go."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence

from ebbtide import machine
from ebbtide.program.equation import Variable
from ebbtide.program.layout import Layout
from ebbtide.program.memory import Memory
from ebbtide.program.program import Program
from ebbtide.program.stretches import Stretch


def with_drops(statements: list[str], names: list[str]) -> list[str]:
    """Return statements with names let go, each after the last one in which it stands."""
    last: dict[int, list[str]] = {}
    words = [set(re.findall(r"\w+", statement)) for statement in statements] if names else []
    for name in names:
        used = [number for number, some in enumerate(words) if name in some]
        last.setdefault(used[-1] if used else len(statements) - 1, []).append(name)
    found: list[str] = [f"del {', '.join(last[-1])}"] if -1 in last else []
    for number, statement in enumerate(statements):
        found.append(statement)
        if number in last:
            found.append(f"del {', '.join(last[number])}")
    return found


def names_needed(
    program: Program, layout: Layout, memory: Memory, stretches: Sequence[Stretch]
) -> frozenset[Variable]:
    """Return the values that have a name in the source: of the others only the machine knows."""
    if not stretches:
        return frozenset([*program.inputs, *[equation.output for equation in program.equations]])
    inside = {place for stretch in stretches for place in stretch.places}
    found = set(program.inputs) | {output for output in program.outputs if type(output) is Variable}
    found.update([v for place, equation in enumerate(program.equations) if place not in inside for v in
                  (equation.output, *equation.inputs) if v not in layout.bases or equation.output not in layout.bases])
    # An array of its own is handed to the machine by name, and those whose memory it has were there before.
    found.update([equation.output for equation in program.equations
                  if equation.output not in layout.bases and not memory.is_inside(equation.output)])
    for equation in reversed(program.equations):
        if equation.output in layout.bases and equation.output in found:
            found.update(equation.inputs)
    return frozenset(found)


def find_drops(program: Program, layout: Layout, memory: Memory) -> list[list[Variable]]:
    """Return for each equation the names that it is the last to use: those of what is not in the block."""
    views: dict[Variable, list[Variable]] = {}
    for view, base in layout.bases.items():
        views.setdefault(base, []).append(view)
    found: list[list[Variable]] = []
    for place, equation in enumerate(program.equations):
        used = dict.fromkeys(layout.base(variable) for variable in (*equation.inputs, equation.output))
        if equation.output in memory.homes:
            used[memory.homes[equation.output]] = None
        # A view dies with its base: no later than that, and the base with its last view.
        ending = [base for base in used if memory.ends[base] == place and not memory.is_inside(base)]
        found.append([variable for base in ending for variable in (base, *views.get(base, ()))])
    return found


def find_freed(program: Program, memory: Memory) -> list[list[Variable]]:
    """Return for each equation the values in the block whose place is free after it."""
    found: list[list[Variable]] = [[] for _ in program.equations]
    kept = set(memory.given_up.values())
    for variable, end in memory.ends.items():
        if 0 <= end < len(found) and memory.is_inside(variable) and variable not in kept:
            found[end].append(variable)
    return found


def identifiers(names: dict[Variable, str], others: Iterable[str] = ()) -> dict[Variable, str]:
    """Return names that Python takes, each once."""
    taken = {"np", "scipy", "values", "arrays", "constants", "memory", "place", "lay_out", "run", "ebbtide",
             "add_product", "block", "each_member", "lying", "run_members", *machine.__all__, *others}  # fmt: skip
    found: dict[Variable, str] = {}
    for variable, name in names.items():
        text = re.sub(r"\W+", "_", name).strip("_") or "value"
        while text in taken or keyword.iskeyword(text) or text[0].isdigit():
            text = f"{text}_" if not text[0].isdigit() else f"value_{text}"
        taken.add(text)
        found[variable] = text
    return found
