"""Which elementwise steps of a stretch are one nest of loops, compiled."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ebbtide.machine.nests import nest_of
from ebbtide.program.actions import Action
from ebbtide.program.equation import Equation
from ebbtide.program.stretches import Stretch

# Operations for each element, and altogether, from which on a nest is worth the half second that its compilation takes.
# On 80,000 numbers chains of two and three operations take 1.05 and 1.2 times as long by the machine, as memory
# decides, of six 1.7 and of ten 2.8; on 4,000 numbers ten take twice as long, and no nest saves more than 5 us.
_FEWEST, _LEAST = 4, 1 << 16


def with_nests(stretch: Stretch) -> Stretch:
    """Return a stretch with compiled steps in the place of elementwise ones, one for those of a shape in a row."""
    found: list[tuple[Action, Equation]] = []
    run: list[tuple[Action, Equation]] = []

    def close() -> None:
        if run:
            parts = tuple([action.arguments for action, _ in run])
            found.append((Action("compiled", parts), run[0][1]))
        run.clear()

    for action, equation in stretch.actions:
        if not _is_worth_it(action):
            close()
            found.append((action, equation))
            continue
        if run and not _is_nest([*[one for one, _ in run], action], stretch):
            close()
        if _is_nest([action], stretch):
            run.append((action, equation))
        else:
            found.append((action, equation))
    close()
    return replace(stretch, actions=tuple(found))


def _is_worth_it(action: Action) -> bool:
    """Return whether a step has so many operations that they take long."""
    if action.kind != "Elementwise":
        return False
    shape, _, *links = action.arguments
    return len(links) >= _FEWEST and prod(shape) * len(links) >= _LEAST


def _is_nest(actions: list[Action], stretch: Stretch) -> bool:
    parts: list[Any] = [action.placed(stretch.number) for action in actions]
    return nest_of(parts) is not None
