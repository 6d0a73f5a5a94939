"""How long values live: after which equation each of them is needed no more, and the bytes that are held meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ebbtide.program.equation import Variable

if TYPE_CHECKING:
    from ebbtide.program.program import Program


def last_uses(program: Program) -> dict[Variable, int]:
    """
    Return for each variable the number of the equation that is the last to use it.

    Variables that nothing uses die with the equation that defines them, -1 for inputs. Outputs live on: their number
    is that after the last equation.
    """
    last: dict[Variable, int] = dict.fromkeys(program.inputs, -1)
    for place, equation in enumerate(program.equations):
        last[equation.output] = place
        for variable in equation.inputs:
            last[variable] = place
    end = len(program.equations)
    last.update({output: end for output in program.outputs if type(output) is Variable})
    return last


def releases(program: Program) -> list[list[Variable]]:
    """Return for each equation the variables that die with it; inputs that nothing uses are in none of the lists."""
    dying: list[list[Variable]] = [[] for _ in program.equations]
    for variable, place in last_uses(program).items():
        if 0 <= place < len(dying):
            dying[place].append(variable)
    return dying


def live_bytes(program: Program) -> list[int]:
    """Return the bytes that are held after each equation, the inputs apart, each value in memory of its own."""
    held, after = 0, []
    for equation, dying in zip(program.equations, releases(program), strict=True):
        held += equation.output.nbytes - sum(variable.nbytes for variable in dying if variable not in program.inputs)
        after.append(held)
    return after


def users_of(program: Program) -> dict[Variable, list[int]]:
    """Return for each variable the numbers of the equations that use it, in order."""
    users: dict[Variable, list[int]] = {variable: [] for variable in program.inputs}
    for place, equation in enumerate(program.equations):
        users[equation.output] = []
        for variable in equation.inputs:
            users[variable].append(place)
    return users


def used_once(program: Program) -> set[Variable]:
    """Return what one equation takes, and nobody else."""
    users = users_of(program)
    return {variable for variable, places in users.items() if len(places) == 1}.difference(outputs_of(program))


def outputs_of(program: Program) -> list[Any]:
    """Return the outputs that are variables, each once, in order."""
    return list(dict.fromkeys(output for output in program.outputs if type(output) is Variable))
