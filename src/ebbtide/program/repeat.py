"""Programs with their equations in another order, some of them more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ebbtide.program.equation import Equation, Variable, substitute
from ebbtide.program.kernels import kernel_in
from ebbtide.program.layout import Layout
from ebbtide.program.program import Program
from ebbtide.program.simplify import remove_dead


def repeat(program: Program, layout: Layout, order: Sequence[int], forward: int = 0) -> tuple[Program, Layout, int]:
    """
    Return a program that computes its equations in an order, some of them again.

    An equation takes of each value the copy that was computed last. A copy that nothing takes is not computed, so an
    order can also put off what is not needed soon. Views are taken anew, and are not part of the order.

    Args:
        program: The program.
        layout: Where its values lie: copies lie as they do.
        order: Numbers of equations, each of them at least once but those of views, which are found.
        forward: How many equations come first that are a part of their own; 0 if there is no such part.

    Returns:
        (the program, its layout, how many of its equations are that part).
    """
    copies = _Copies(program, layout)
    seen: set[int] = set()
    ends = 0
    for number in order:
        copies.compute(number)
        if number < forward and number not in seen:
            ends = len(copies.made)
        seen.add(number)
    made = copies.made
    # The first part gives what it computes itself: its own copy, which is the first, and not one of the part after it.
    own = {equation.output for equation in program.equations[:forward]}
    outputs = tuple([x if type(x) is not Variable or x in own else copies.current(x) for x in program.outputs])
    front = {equation.output for equation in made[:ends]}
    history = (*program.history, "values computed again")
    found = remove_dead(replace(program, equations=tuple(made), outputs=outputs))
    kept = sum(equation.output in front for equation in found.equations)
    return replace(found, history=history), copies.lies.left_of(found), kept


@final
class _Copies:
    """
    The equations of a program as they are computed, some of them again, and how their values lie.

    Args:
        program: The program.
        layout: Where its values lie.
    """

    def __init__(self, program: Program, layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.made: list[Equation] = []
        strides = {variable: layout.strides[variable] for variable in program.inputs}
        self.lies = Layout(strides, {}, dict(layout.known), dict(layout.kernels))
        self._place = {equation.output: number for number, equation in enumerate(program.equations)}
        self._latest: dict[Variable, Variable] = {}

    def current(self, variable: Variable) -> Variable:
        """Return the copy of a value to take now: of a view, one of the last copy of its base."""
        base, latest = self.layout.base(variable), self._latest
        if base is variable:
            return latest.get(variable, variable)
        found = latest.get(variable)
        if found is None or self.lies.bases[found] is not latest.get(base, base):
            found = self.compute(self._place[variable])
        return found

    def compute(self, number: int) -> Variable:
        """Compute an equation once more, and return its value."""
        old, layout, lies, latest = self.program.equations[number], self.layout, self.lies, self._latest
        again = old.output in latest
        # What is taken first may itself be a view that is taken anew.
        taken = {variable: self.current(variable) for variable in old.inputs}
        output, made = old.output, old
        if again:
            output = Variable(output.type, output.name, is_number=output.is_number)
        if again or any(one is not other for one, other in taken.items()):
            arguments, params = substitute((old.arguments, old.params), taken.__getitem__)
            made = old.of(arguments, params, output)
            lies.kernels[made] = kernel_in(layout, old)
        self.made.append(made)
        latest[old.output] = output
        lies.strides[output] = layout.strides[old.output]
        if again and old.output in lies.known:
            lies.known[output] = lies.known[old.output]
        if old.output in layout.bases:
            base = layout.base(old.output)
            lies.bases[output] = latest.get(base, base)
        return output
