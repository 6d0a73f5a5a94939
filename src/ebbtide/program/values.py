"""What there is to know of a program where it is decided which values to keep: plain numbers, by number of equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.program.costs import is_product, may_repeat, weighed
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.holding import lent_to
from ebbtide.program.kernels import kernel_in
from ebbtide.program.layout import Layout
from ebbtide.program.program import Program


@final
@dataclass(frozen=True, slots=True)
class Values:
    """
    The values of a program that have memory of their own; views are part of what they are views of.

    Args:
        steps: The numbers of their equations, in order.
        nbytes: For each equation the bytes of its value.
        cost: What it costs to compute it.
        reads: The equations of the values that it reads, inputs apart.
        readers: The equations that read its value, in order.
        over: Of the values that it reads those in whose memory it can be computed.
        stays: Whether its value is a result, or seen through one.
        repeats: Whether it may be computed again.
        cheap: Whether it may be computed again and is no product of matrices.
    """

    steps: tuple[int, ...]
    nbytes: tuple[int, ...]
    cost: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    over: tuple[tuple[int, ...], ...]
    stays: tuple[bool, ...]
    repeats: tuple[bool, ...]
    cheap: tuple[bool, ...]


def values_of(program: Program, layout: Layout) -> Values:
    """Return what there is to know of the values of a program."""
    place = {equation.output: number for number, equation in enumerate(program.equations)}
    outputs = {output for output in program.outputs if type(output) is Variable}
    escaping = {layout.base(output) for output in outputs}
    steps: list[int] = []
    reads: list[tuple[int, ...]] = []
    over: list[tuple[int, ...]] = []
    readers: list[list[int]] = [[] for _ in program.equations]
    for number, equation in enumerate(program.equations):
        output = equation.output
        # The view that is a result is taken where it stands, others where they are needed.
        own = output not in layout.bases or output in outputs
        found = [place[base] for base in dict.fromkeys(map(layout.base, equation.inputs)) if base in place]
        reads.append(tuple(found) if own else ())
        over.append(_over(equation, layout, place) if output not in layout.bases else ())
        if own:
            steps.append(number)
            for one in found:
                readers[one].append(number)
    lent = {layout.base(variable) for equation in program.equations for variable in lent_to(equation)}
    repeated = [may_repeat(equation) and equation.output not in lent for equation in program.equations]
    return Values(
        steps=tuple(steps),
        nbytes=tuple([0 if e.output in layout.bases else e.output.nbytes for e in program.equations]),
        cost=tuple([weighed(e, layout)[0] for e in program.equations]),
        reads=tuple(reads),
        readers=tuple([tuple(each) for each in readers]),
        over=tuple(over),
        stays=tuple([e.output in escaping or e.output in outputs for e in program.equations]),
        repeats=tuple([may and e.output not in outputs for may, e in zip(repeated, program.equations, strict=True)]),
        cheap=tuple([may and not is_product(e) for may, e in zip(repeated, program.equations, strict=True)]),
    )


def _over(equation: Equation, layout: Layout, place: dict[Variable, int]) -> tuple[int, ...]:
    """Return the values in whose memory an equation can be computed, if they die there."""
    kernel = kernel_in(layout, equation) if equation.output.type.shape else None
    found: list[int] = []
    for number in () if kernel is None else kernel.over:
        operand = equation.arguments[number]
        if (
            type(operand) is Variable and operand in place and operand not in layout.bases
            and operand.type == equation.output.type
            and layout.strides[operand] == layout.strides[equation.output]
        ):  # fmt: skip
            found.append(place[operand])
    return tuple(dict.fromkeys(found))
