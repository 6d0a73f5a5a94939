"""
The memory of a program, decided before it runs: one block for all values that stay inside, used again and again.

A value whose last use is an elementwise operation gives its place to the result. The others are put side by side,
such that no two that live at the same time overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from ebbtide.program.equation import Equation, Program, Variable
from ebbtide.program.kernels import Kernel, kernel_of
from ebbtide.program.layout import Layout
from ebbtide.program.lifetimes import last_uses

# Lines of the cache of a processor.
_ALIGNMENT = 64


@final
@dataclass(slots=True, eq=False)
class Buffer:
    """
    Some bytes of the block.

    Args:
        nbytes: How many.
        first: Number of the first equation that uses them.
        last: Number of the last equation that does.
        offset: Where in the block they begin.
    """

    nbytes: int
    first: int
    last: int
    offset: int = 0


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """
    Where each value of a program is.

    Args:
        buffers: Those of the values in the block.
        kernels: How the values in the block are computed.
        ends: For each value that is no view, the number of the last equation that uses it or a view of it.
        nbytes: Size of the block.
        bound: The most bytes that live in the block at the same time: no arrangement takes less.
    """

    buffers: dict[Variable, Buffer]
    kernels: dict[Variable, Kernel]
    ends: dict[Variable, int]
    nbytes: int
    bound: int


def plan_memory(program: Program, layout: Layout) -> Memory:
    """Return where the values of a program with this layout are best put."""
    ends: dict[Variable, int] = {}
    for variable, last in last_uses(program).items():
        base = layout.base(variable)
        ends[base] = max(last, ends.get(base, -1))
    # What the caller gets, or a view of it, must be in memory of its own.
    escaping = {layout.base(output) for output in program.outputs if type(output) is Variable}
    buffers: dict[Variable, Buffer] = {}
    kernels: dict[Variable, Kernel] = {}
    for place, equation in enumerate(program.equations):
        output = equation.output
        kernel = kernel_of(equation) if output.type.shape and output not in layout.bases else None
        if kernel is None or output in escaping:
            continue
        kernels[output] = kernel
        given_up = _find_given_up(equation, kernel, layout, ends, place, buffers)
        if given_up is None:
            buffers[output] = Buffer(_rounded(output.nbytes), place, ends[output])
        else:
            buffers[output] = buffers[given_up]
            buffers[output].last = ends[output]
    distinct = list(dict.fromkeys(buffers.values()))
    return Memory(buffers, kernels, ends, _arrange(distinct), _bound(distinct, len(program.equations)))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _find_given_up(
    equation: Equation, kernel: Kernel, layout: Layout, ends: dict[Variable, int], place: int,
    buffers: dict[Variable, Buffer],
) -> Variable | None:  # fmt: skip
    """Return an operand in whose memory the result can be made."""
    output = equation.output
    for number in kernel.over:
        operand = equation.arguments[number]
        if type(operand) is not Variable or operand not in buffers or ends[operand] != place:
            continue
        alike = operand.type == output.type and layout.strides[operand] == layout.strides[output]
        # Another argument in the same memory, such as a view of it, would be overwritten while it is read.
        others = [v for v in equation.inputs if v is not operand and buffers.get(layout.base(v)) is buffers[operand]]
        twice = sum(argument is operand for argument in equation.arguments) > 1 and len(kernel.over) == 1
        if alike and not others and not twice:
            return operand
    return None


def _bound(buffers: Iterable[Buffer], count: int) -> int:
    """Return the most bytes that live at the same time."""
    change = [0] * (count + 2)
    for buffer in buffers:
        change[buffer.first] += buffer.nbytes
        change[min(buffer.last, count) + 1] -= buffer.nbytes
    held = most = 0
    for difference in change:
        held += difference
        most = max(most, held)
    return most


def _arrange(buffers: Sequence[Buffer]) -> int:
    """Give each buffer its offset, and return the size of the block."""
    orders = (
        sorted(buffers, key=lambda buffer: (-buffer.nbytes, buffer.first)),
        sorted(buffers, key=lambda buffer: (buffer.first, -buffer.nbytes)),
        sorted(buffers, key=lambda buffer: (buffer.first - buffer.last, -buffer.nbytes)),
    )
    sizes = [_arrange_in(order) for order in orders]
    best = min(range(len(orders)), key=sizes.__getitem__)
    return _arrange_in(orders[best])


def _arrange_in(order: Sequence[Buffer]) -> int:
    """Give buffers, one after the other, the lowest offsets that are free while they live."""
    placed: list[Buffer] = []
    size = 0
    for buffer in order:
        neighbors = [b for b in placed if b.first <= buffer.last and buffer.first <= b.last]
        buffer.offset = 0
        for other in sorted(neighbors, key=lambda b: b.offset):
            if other.offset - buffer.offset >= buffer.nbytes:
                break
            buffer.offset = max(buffer.offset, other.offset + other.nbytes)
        placed.append(buffer)
        size = max(size, buffer.offset + buffer.nbytes)
    return size
