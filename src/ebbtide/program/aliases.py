"""Programs whose results are views: of what they were given, or of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import linked
from ebbtide.program.equation import Variable
from ebbtide.program.evaluate import compute
from ebbtide.program.layout import find_layout
from ebbtide.program.planned import PlannedProgram
from ebbtide.program.program import Program
from ebbtide.program.simplify import needed, remove_dead


@final
class AliasedProgram:
    """
    A program as traced arrays meet it, on which writes into a view are seen in what it is a view of.

    Args:
        planned: The program.
        strides: Of its inputs.

    Attributes:
        core: What computes all that results are views of, each in memory of its own; from that and from the inputs the
            views are taken as they are without a program.

    Memory:
        The programs, no data.
    """

    __slots__ = ("_views", "core")

    def __init__(self, planned: PlannedProgram, strides: Sequence[tuple[int, ...]]) -> None:
        program = planned.program
        layout = find_layout(program, strides)
        bases = [layout.base(x) if type(x) is Variable else None for x in program.outputs]
        roots = tuple(dict.fromkeys(x for x in bases if x is not None and x not in program.inputs))
        self.core = planned
        self._views: Program | None = None
        # By identity: there may be plain arrays among the results.
        if list(map(id, roots)) != list(map(id, program.outputs)):
            taken = needed([e for e in program.equations if e.output in layout.bases], program.outputs)
            self.core = planned.of(remove_dead(replace(program, outputs=roots)))
            self._views = replace(program, inputs=(*program.inputs, *roots), equations=tuple(taken))

    def apply(self, values: list[Any]) -> list[Any]:
        """Return the results, as `PlannedProgram.apply` does; the list is emptied."""
        views = self._views
        if views is None:
            return self.core.apply(values)
        given = list(values)
        known = dict(zip(views.inputs, given + self.core.apply(values), strict=True))
        del given
        for equation in views.equations:
            made, (base,) = compute(equation, known), equation.inputs
            if type(made) is TracedArray and type(known[base]) is TracedArray and equation.primitive is not None:
                made = linked(made, known[base], equation.primitive, equation.params)
            known[equation.output] = made
        return [known[x] if type(x) is Variable else x for x in views.outputs]
