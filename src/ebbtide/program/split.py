"""
A program and its reverse sweep: one joint program, or two.

The forward program computes the results and what the other one needs; the reverse program takes that, and the
cotangents of the results. What both could compute and only the second one uses (views, derivatives of elementwise
operations) is left to it, as on a tape. Put together again they are one program, which can be ordered as one, and cut
in two elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from ebbtide.program.accumulation import add_products, add_scatters
from ebbtide.program.check import passed
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.layout import Layout, find_layout
from ebbtide.program.narrow import narrow_products
from ebbtide.program.program import Program
from ebbtide.program.simplify import merge_common, needed, remove_dead, skip_identities
from ebbtide.program.small import small_products

# Where a saved value is found: among the inputs, the results, or what the forward program adds to these.
INPUT, RESULT, EXTRA = "input", "result", "extra"
# Fresh memory costs more than one of these operations, from this size on: the gradient of the demo's step, of which two
# of four saved values go, is 1.4 times as fast (measured in turns with the other way, on a busy machine).
_SIMPLE, _LARGE = frozenset(("add", "subtract", "multiply", "negative")), 1 << 16
# The machine does not go through memory for each of them: 646 KB of fresh pages take 0.5 ms, five operations 0.1.
FEW, FEW_OF_MACHINE = 1, 6


@final
@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """
    A program and its reverse sweep.

    Args:
        forward: From the inputs to the results, with what is saved beside them after these.
        reverse: From the saved values and the cotangents of the results to the cotangents of the active inputs; None
            stands for that of an input on which nothing depends.
        saved: For each saved value (INPUT, RESULT or EXTRA, its number there). They are the first inputs of the reverse
            program, in this order.
        given: Numbers of the results whose cotangents the reverse program takes.
    """

    forward: Program
    reverse: Program
    saved: tuple[tuple[str, int], ...]
    given: tuple[int, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The saved values."""
        return self.reverse.inputs[: len(self.saved)]

    @property
    def extras(self) -> tuple[Variable, ...]:
        """Those that are neither inputs nor results."""
        pairs = zip(self.variables, self.saved, strict=True)
        return tuple([variable for variable, (kind, _) in pairs if kind == EXTRA])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """
    A program and its reverse sweep as one program.

    Args:
        program: From the inputs and the cotangents to the results and the cotangents of the inputs.
        forward: How many of its equations compute the results.
        results: How many results there are.
        given: Numbers of those that have cotangents.
    """

    program: Program
    forward: int
    results: int
    given: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Variable, ...]:
        """The inputs without the cotangents."""
        return self.program.inputs[: -len(self.given)]

    @property
    def cotangents(self) -> tuple[Variable, ...]:
        """The cotangents of the results."""
        return self.program.inputs[-len(self.given) :]


def fused(program: Program) -> Program:
    """Return a program whose sums have taken their terms: before it is ordered, so that the bits are the same."""
    return passed(program, narrow_products, add_products, add_scatters, small_products)


def joined(split: Split) -> Joint:
    """Return a program and its reverse sweep as one, fused as the two of them are."""
    ahead, back = fused(split.forward), fused(split.reverse)
    there = {equation.output for equation in ahead.equations}
    # Views are taken in both.
    swept = [equation for equation in back.equations if equation.output not in there]
    results = len(split.forward.outputs) - len(split.extras)
    program = replace(
        ahead,
        inputs=(*ahead.inputs, *back.inputs[len(split.saved) :]),
        outputs=(*ahead.outputs[:results], *back.outputs),
        equations=(*ahead.equations, *swept),
    )
    return Joint(passed(program), len(ahead.equations), results, split.given)


def cut(joint: Joint, program: Program, forward: int, layout: Layout) -> Split:
    """
    Return a joint program as two.

    Args:
        joint: What it was made from.
        program: It, with its equations in any order.
        forward: How many of them come first that the forward program runs.
        layout: Where its values lie.
    """
    ahead, swept = program.equations[:forward], program.equations[forward:]
    views = [equation for equation in ahead if equation.output in layout.bases]
    results, outputs = program.outputs[: joint.results], program.outputs[joint.results :]
    program = replace(program, inputs=joint.inputs, outputs=results, equations=ahead)
    return _two(program, joint.given, joint.cotangents, outputs, needed([*views, *swept], outputs))


def split_sweep(
    program: Program,
    strides: Sequence[tuple[int, ...]],
    given: tuple[int, ...],
    cotangents: list[Variable],
    outputs: list[Any],
    reverse: list[Equation],
    few: int = FEW,
    held: Collection[Variable] = (),
) -> Split:
    """
    Return a program and the equations of its sweep as two programs.

    Args:
        program: The program.
        strides: Of its inputs.
        given: Numbers of the results that have cotangents.
        cotangents: These.
        outputs: What the sweep gives.
        reverse: Its equations.
        few: Of how many simple operations large values are that are computed again, and not saved.
        held: The values that are saved, where that is decided; without them, those that leave least to compute again.
    """
    first = {equation.output for equation in program.equations}
    joint = replace(
        program,
        inputs=(*program.inputs, *cotangents),
        outputs=(*program.outputs, *outputs),
        equations=(*program.equations, *reverse),
    )
    joint = passed(joint, remove_dead, skip_identities)
    results, outputs = joint.outputs[: len(program.outputs)], list(joint.outputs[len(program.outputs) :])
    forward = [equation for equation in joint.equations if equation.output in first]
    after = [equation for equation in joint.equations if equation.output not in first]
    ahead = replace(joint, inputs=program.inputs, outputs=results, equations=tuple(forward))
    layout = find_layout(ahead, strides)
    views = [equation for equation in forward if equation.output in layout.bases]
    saved = _taken(needed([*views, *after], outputs), outputs, cotangents)
    again = first.difference(held) if held else _cheap(forward, saved, results, layout, few).union(layout.bases)
    swept = needed([*[equation for equation in forward if equation.output in again], *after], outputs)
    saved = _taken(swept, outputs, cotangents)
    # What is saved need not be computed again.
    there = set(held or saved).difference(layout.bases)
    known = [equation for equation in forward if equation.output in there]
    start = dict.fromkeys(variable for equation in known for variable in equation.inputs)
    merged = merge_common(
        Program(program.name, (*start, *saved, *cotangents), tuple(outputs), (*known, *swept))
    )
    made = {equation.output for equation in known}
    swept = needed([equation for equation in merged.equations if equation.output not in made], merged.outputs)
    return _two(ahead, given, cotangents, merged.outputs, swept)


def _cheap(
    forward: Sequence[Equation], saved: Sequence[Variable], results: Sequence[Any], layout: Layout, few: int
) -> set[Variable]:
    """Return what few simple operations make of values that are saved anyway, in the place of large saved values."""
    kept, found = set(saved), set()
    given = {layout.base(output) for output in results if type(output) is Variable}
    made = {equation.output: equation for equation in forward}
    for output in made:
        if output in kept and output not in given and output.nbytes >= _LARGE:
            again = _again(output, made, kept - {output}, layout, few)
            if again is not None:
                kept.remove(output)
                found |= again
    return found


def _again(
    output: Variable, made: Mapping[Variable, Equation], kept: set[Variable], layout: Layout, few: int
) -> set[Variable] | None:
    """Return what has to be computed again for a value where others are kept; None if that is too much."""
    left, found = [output], set()
    while left and len(found) <= few:
        variable = left.pop()
        equation = made.get(variable)
        if equation is None or equation.name not in _SIMPLE:
            return None
        found.add(variable)
        left += {layout.base(x) for x in equation.inputs} - kept - found
    return found if len(found) <= few else None


def _two(
    ahead: Program,
    given: tuple[int, ...],
    cotangents: Iterable[Variable],
    outputs: Sequence[Any],
    swept: Sequence[Equation],
) -> Split:
    """Return the program up to the results, and the equations after it with what they give, as two programs."""
    saved = _taken(swept, outputs, cotangents)
    extras: list[Variable] = []
    places: list[tuple[str, int]] = []
    known = {output: (RESULT, n) for n, output in enumerate(ahead.outputs) if type(output) is Variable}
    known |= {variable: (INPUT, n) for n, variable in enumerate(ahead.inputs)}
    for variable in saved:
        if variable in known:
            places.append(known[variable])
        else:
            places.append((EXTRA, len(extras)))
            extras.append(variable)
    history = (*ahead.history, "split")
    back = Program(f"{ahead.name}_reverse", (*saved, *cotangents), tuple(outputs), tuple(swept), history)
    ahead = replace(ahead, outputs=(*ahead.outputs, *extras))
    return Split(passed(ahead, remove_dead), passed(back), tuple(places), given)


def _taken(equations: Sequence[Equation], outputs: Sequence[Any], cotangents: Iterable[Variable]) -> list[Variable]:
    """Return the variables that equations and outputs take from elsewhere, cotangents apart, in order."""
    own = {equation.output for equation in equations}.union(cotangents)
    used = [variable for equation in equations for variable in equation.inputs]
    used += [output for output in outputs if type(output) is Variable]
    return list(dict.fromkeys(variable for variable in used if variable not in own))
