"""
The memory of a program, decided before it runs: one block for the values that stay inside, used again and again.

A value whose last use is an elementwise operation gives its place to the result. The others are put side by side,
such that no two that live at the same time overlap. Results belong to the caller, and have memory of their own. Where
large values die while results are born, they have memory of their own as well, which is then free for those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import final

from ebbtide.program.costs import weighed
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.kernels import Kernel, kernel_in
from ebbtide.program.layout import Layout
from ebbtide.program.lifetimes import last_uses
from ebbtide.program.program import Program

# Lines of the cache of a processor.
_ALIGNMENT = 64
# Smaller arrays are never worth an allocation.
_LARGE = 1 << 14
# One block costs nothing from the second run on, fresh memory 0.3 to 1 ms a MiB: to give it up must be worth something,
# and more so where there is plenty of memory.
_WORTH, _MUCH = 0.8, 0.97
_ROOMY = 1 << 24
# How near the block is to its bound to be left alone, and how many orders are tried else. Of the gradients of 600
# random functions 3 need more than 1.05 of their bound without that, 1.13 at most, and none more than 1.043 with it.
_NEAR = 1.02
_ATTEMPTS = 40
# How many equations are a time, where lives are looked up by time.
_TIMES = 64
# Which of the large values have arrays of their own.
_TOGETHER, _CROSSING, _APART = range(3)


@final
@dataclass(slots=True, eq=False)
class Buffer:
    """
    Some bytes of the block, or an array of its own.

    Args:
        nbytes: How many.
        first: Number of the first equation that uses them.
        last: Number of the last equation that does.
        apart: Whether they are an array of its own.
        offset: Where in the block they begin.
        donated: Whether they are an input's, which is given up to the program.
    """

    nbytes: int
    first: int
    last: int
    apart: bool = False
    offset: int = 0
    donated: bool = False


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """
    Where each value of a program is.

    Args:
        buffers: Those of the values that are computed into given memory, or whose memory may be used again.
        kernels: How these values are computed.
        given_up: For each value that is made in the memory of an operand, the operand.
        ends: For each value that is no view, the number of the last equation that uses it or a view of it.
        nbytes: Size of the block.
        bound: The most bytes that live in the block at the same time: no arrangement takes less.
        held: The bytes of arrays and of the block that are held while each equation is computed, with what NumPy takes
            for a moment.
        lasting: The most bytes of arrays and of the block alone.
        homes: For each value that has to be made in the memory of an input, that input.
        lowered: Values that the machine computes.
    """

    buffers: dict[Variable, Buffer]
    kernels: dict[Variable, Kernel]
    given_up: dict[Variable, Variable]
    ends: dict[Variable, int]
    nbytes: int
    bound: int
    held: list[int]
    lasting: int
    homes: Mapping[Variable, Variable] = field(default_factory=dict)
    lowered: frozenset[Variable] = frozenset()

    @property
    def peak(self) -> int:
        """The most bytes that are held at the same time, the inputs apart."""
        return max(self.held, default=self.nbytes)

    def is_inside(self, variable: Variable) -> bool:
        """Return whether a value, no view, is in the block."""
        buffer = self.buffers.get(variable)
        return buffer is not None and not buffer.apart


def plan_memory(
    program: Program,
    layout: Layout,
    limit: int | None = None,
    donated: Iterable[Variable] = (),
    lowered: frozenset[Variable] = frozenset(),
    homes: Mapping[Variable, Variable] | None = None,
) -> Memory:
    """
    Return where the values of a program are best put.

    Args:
        program: The program.
        layout: How its values lie.
        limit: The bytes that may be held, if there is a budget: one block if that fits.
        donated: Inputs whose memory the program may use.
        lowered: Values that the machine computes.
        homes: Values that have to be made in the memory of one of the donated inputs, which is read no later (see
            `placing`).
    """
    if homes is not None:
        return _plan(program, layout, _TOGETHER, tuple(donated), lowered, homes)
    ways = (_TOGETHER, _CROSSING, _APART)
    together, crossing, apart = plans = [_plan(program, layout, way, tuple(donated), lowered) for way in ways]
    if limit is not None:
        # A block stays after the run.
        return next((plan for plan in plans if plan.peak <= limit), min(plans[::-1], key=lambda plan: plan.peak))
    least = apart if apart.lasting < _MUCH * crossing.lasting else crossing
    worth = _WORTH if together.lasting < _ROOMY else _MUCH
    return least if least.lasting < worth * together.lasting else together


def peak_of_machine(program: Program, memory: Memory) -> int:
    """Return the most bytes that are held where the machine runs what it can: its steps take none for a moment."""
    pairs = zip(program.equations, memory.held, strict=True)
    return max([memory.lasting, *[held for equation, held in pairs if equation.output not in memory.lowered]])


def least_peak(program: Program, layout: Layout) -> tuple[int, int]:
    """Return the fewest bytes in which a program in this order can run, and the number of the equation at the peak."""
    plan = plan_apart(program, layout)
    return plan.peak, max(range(len(plan.held)), key=plan.held.__getitem__, default=0)


def plan_apart(program: Program, layout: Layout) -> Memory:
    """Return the plan in which large values are arrays of their own: it holds least."""
    return _plan(program, layout, _APART)


def _plan(
    program: Program,
    layout: Layout,
    way: int,
    donated: tuple[Variable, ...] = (),
    lowered: frozenset[Variable] = frozenset(),
    homes: Mapping[Variable, Variable] = MappingProxyType({}),
) -> Memory:
    """Return a plan in which no large values, those that live while results are born, or all are apart."""
    ends: dict[Variable, int] = {}
    for variable, last in last_uses(program).items():
        base = layout.base(variable)
        ends[base] = max(last, ends.get(base, -1))
    for place, equation in enumerate(program.equations):
        if equation.output in homes:
            ends[homes[equation.output]] = place
    # What the caller gets, or a view of it, must be in memory of its own.
    escaping = {layout.base(output) for output in program.outputs if type(output) is Variable}
    born = [place for place, equation in enumerate(program.equations) if equation.output in escaping]
    given = [variable for variable in donated if variable.type.shape]
    buffers = {v: Buffer(v.nbytes, 0, ends[v], apart=True, donated=True) for v in given}
    kernels: dict[Variable, Kernel] = {}
    given_up: dict[Variable, Variable] = {}
    for place, equation in enumerate(program.equations):
        output = equation.output
        machine = output in lowered
        kernel = kernel_in(layout, equation) if (output.type.shape or machine) and output not in layout.bases else None
        if machine and (kernel is None or not output.type.shape):
            # A number is read out of its memory for NumPy, so nothing is made in its place.
            over = kernel.over if kernel is not None and output.type.shape else ()
            kernel = Kernel(lambda out, *arguments: [], over, lowered=True)
        if kernel is None:
            continue
        crosses = way == _CROSSING and bisect_right(born, place) < bisect_right(born, ends[output])
        alone = output in escaping or (output.nbytes >= _LARGE and (way == _APART or crosses))
        kernels[output] = kernel
        operand = homes.get(output) or _find_given_up(equation, kernel, layout, ends, place, buffers)
        if operand is not None and (buffers[operand].apart or not alone or output in escaping):
            given_up[output] = operand
            buffers[output] = buffers[operand]
            buffers[output].last = ends[output]
            # What becomes a result is made in its memory from the first.
            buffers[output].apart = buffers[output].apart or alone
        else:
            nbytes = output.nbytes if alone and not output.type.shape else _rounded(output.nbytes)
            buffers[output] = Buffer(nbytes, place, ends[output], alone)
    inside = [buffer for buffer in dict.fromkeys(buffers.values()) if not buffer.apart]
    bound = max(live_in(inside, len(program.equations)))
    nbytes = _arrange(inside, bound)
    apart = live_in(buffers_apart(program, layout, buffers, ends), len(program.equations))[:-1]
    lasting = nbytes + max(apart, default=0)
    held = [nbytes + more + weighed(eq, layout)[1] for more, eq in zip(apart, program.equations, strict=True)]
    return Memory(buffers, kernels, given_up, ends, nbytes, bound, held, lasting, homes, lowered)


def buffers_apart(
    program: Program, layout: Layout, buffers: dict[Variable, Buffer], ends: dict[Variable, int]
) -> list[Buffer]:
    """Return the arrays of their own, inputs apart."""
    alone = [buffer for buffer in dict.fromkeys(buffers.values()) if buffer.apart and not buffer.donated]
    for place, equation in enumerate(program.equations):
        output = equation.output
        if output not in buffers and output not in layout.bases:
            alone.append(Buffer(output.nbytes, place, ends[output], apart=True))
    return alone


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _find_given_up(
    equation: Equation, kernel: Kernel, layout: Layout, ends: dict[Variable, int], place: int,
    buffers: dict[Variable, Buffer],
) -> Variable | None:  # fmt: skip
    """Return an operand in whose memory the result can be made."""
    output = equation.output
    # A single complex number NumPy multiplies in another way where it writes over it: 34 of 100 products end otherwise.
    if output.type.dtype.kind == "c" and output.nbytes == output.type.dtype.itemsize:
        return None
    for number in kernel.over:
        operand = equation.arguments[number]
        if type(operand) is not Variable or operand not in buffers or ends[operand] != place:
            continue
        if operand.type != output.type or layout.strides[operand] != layout.strides[output]:
            continue
        # Another argument in the same memory, such as a view of it, would be overwritten while it is read.
        others = [v for v in equation.inputs if v is not operand and buffers.get(layout.base(v)) is buffers[operand]]
        twice = sum(argument is operand for argument in equation.arguments) > 1 and len(kernel.over) == 1
        if not others and not twice:
            return operand
    return None


def live_in(buffers: Iterable[Buffer], count: int) -> list[int]:
    """Return the bytes that live while each of *count* equations is computed, and after the last."""
    change = [0] * (count + 2)
    for buffer in buffers:
        change[buffer.first] += buffer.nbytes
        change[min(buffer.last, count) + 1] -= buffer.nbytes
    return list(accumulate(change))[: count + 1]


def _arrange(buffers: Sequence[Buffer], bound: int) -> int:
    """Give each buffer its offset, and return the size of the block, which nothing makes smaller than the bound."""
    orders = (
        sorted(buffers, key=lambda buffer: (-buffer.nbytes, buffer.first)),
        sorted(buffers, key=lambda buffer: (buffer.first, -buffer.nbytes)),
        sorted(buffers, key=lambda buffer: (buffer.first - buffer.last, -buffer.nbytes)),
    )
    found: list[tuple[int, list[Buffer]]] = []
    for order in orders:
        found.append((_arrange_in(order), order))
        if found[-1][0] <= bound:
            return bound
    found.sort(key=lambda pair: pair[0])
    for _, order in found[:]:
        if found[0][0] <= _NEAR * bound:
            break
        found = sorted([*found, _improved(order, bound)], key=lambda pair: pair[0])
    return _arrange_in(found[0][1])


def _improved(order: list[Buffer], bound: int) -> tuple[int, list[Buffer]]:
    """Return the size in a better order, and that: whatever ends highest is put first, as long as that may help."""
    size, best = _arrange_in(order), order
    for _ in range(_ATTEMPTS):
        highest = max(order, key=lambda buffer: buffer.offset + buffer.nbytes)
        if size <= _NEAR * bound or highest is order[0]:
            break
        order = [highest, *(buffer for buffer in order if buffer is not highest)]
        found = _arrange_in(order)
        if found < size:
            size, best = found, order
    return size, best


def _arrange_in(order: Sequence[Buffer]) -> int:
    """Give buffers, one after the other, the lowest offsets that are free while they live."""
    # When and where those live that are placed, short lives by time: to look at all of them each time takes far longer.
    short: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    long: list[tuple[int, int, int, int]] = []
    size = 0
    for buffer in order:
        first, last, offset = buffer.first, buffer.last, 0
        times = [short[time] for time in range(first // _TIMES, last // _TIMES + 1)]
        near = {(start, end) for some in (*times, long) for born, dies, start, end in some
                if born <= last and first <= dies}  # fmt: skip
        for start, end in sorted(near):
            if start - offset >= buffer.nbytes:
                break
            offset = max(offset, end)
        buffer.offset, end = offset, offset + buffer.nbytes
        for some in times if len(times) <= 2 else [long]:
            some.append((first, last, offset, end))
        size = max(size, end)
    return size
