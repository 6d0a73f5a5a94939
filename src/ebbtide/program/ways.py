"""
Ways to run a program and, in another call, its reverse sweep: what is saved in between, and what is computed again.

Where few bytes are left between the two, the joint program of both is taken: each way on its ladder is cut in two where
the results are there. What the reverse part takes of the forward part is saved, and what it computes again stands in
it already. The last ways save nothing but inputs: the reverse program begins with the forward one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from ebbtide.program.costs import may_repeat
from ebbtide.program.equation import Variable
from ebbtide.program.ladder import Rung, counts_of, ladder, objects_of, settled
from ebbtide.program.layout import Layout, find_layout, packed_strides
from ebbtide.program.memory import Memory
from ebbtide.program.program import Program
from ebbtide.program.simplify import remove_dead
from ebbtide.program.split import INPUT, RESULT, Joint, Split, cut, joined


@final
@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """
    One way to run a program and its reverse sweep.

    Args:
        split: The two programs.
        saved_nbytes: Bytes of what is saved beside inputs and results.
        ahead_nbytes: Bytes that the forward program takes beside its inputs and results, saved values included.
        back_nbytes: Bytes that the reverse program takes beside its inputs, its results included.
        sweep_nbytes: Bytes that the reverse program takes beside inputs and results of the forward one: its results,
            and the saved values, each until its last use.
        work: What both of them cost.
        ahead: How the forward program is run; None if that is planned for itself.
        back: How the reverse program is run.
    """

    split: Split
    saved_nbytes: int
    ahead_nbytes: int
    back_nbytes: int
    sweep_nbytes: int
    work: int = 0
    ahead: Rung | None = None
    back: Rung | None = None

    @property
    def nbytes(self) -> int:
        """The most bytes that it takes at a time, with the results that it keeps."""
        results = {x for x, (kind, _) in zip(self.split.variables, self.split.saved, strict=True) if kind == RESULT}
        return max(self.ahead_nbytes, self.sweep_nbytes) + sum(variable.nbytes for variable in results)


def saved_nbytes(split: Split) -> int:
    """Return the bytes of what is saved beside inputs and results."""
    return sum(variable.nbytes for variable in split.extras)


def results_nbytes(split: Split) -> int:
    """Return the bytes of the results."""
    results = split.forward.outputs[: len(split.forward.outputs) - len(split.extras)]
    return sum(variable.nbytes for variable in dict.fromkeys(x for x in results if type(x) is Variable))


def swept_nbytes(split: Split, memory: Memory) -> int:
    """Return the bytes that a reverse program holds where it has this plan, with its saved values until they die."""
    count = len(memory.held)
    saved = [0] * (count + 1)
    for variable in split.extras:
        for place in range(min(memory.ends[variable], count) + 1):
            saved[place] += variable.nbytes
    return max([one + other for one, other in zip([*memory.held, memory.held[-1] if count else 0], saved, strict=True)])


def ways_of(plain: Split, strides: Sequence[tuple[int, ...]]) -> tuple[Way, ...]:
    """
    Return ways to run a program and its reverse sweep, from the least work to the fewest bytes.

    Args:
        plain: The two programs as they are without a budget.
        strides: Of the inputs of the program, in bytes.

    Returns:
        Ways that take fewer and fewer bytes for more and more work, but for the last one, which is always there: it
        saves inputs only. None if something in the program must not be computed twice.
    """
    joint = joined(plain)
    if not all(may_repeat(equation) for equation in joint.program.equations[: joint.forward]):
        return ()
    lies = (*strides, *[packed_strides(variable.type) for variable in joint.cotangents])
    first, _ = settled(joint.program, find_layout(joint.program, lies))
    splits = [
        (cut(joint, rung.program, rung.forward, rung.layout), rung.layout)
        for rung in ladder(joint.program, lies, joint.forward)
    ]
    whole = remove_dead(replace(joint.program, outputs=joint.program.outputs[joint.results :]))
    saved = len(splits)
    splits += [(_from_inputs(joint, rung, plain), rung.layout) for rung in ladder(whole, lies)]
    ahead, _ = settled(_results_alone(joint), first.layout)
    ways = [_way(split, layout, first) for split, layout in splits[:saved]]
    ways += [_way(split, layout, first, ahead) for split, layout in splits[saved:]]
    last = min(ways[saved:], key=lambda way: way.nbytes)
    best: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.work, way.nbytes)):
        if way is not last and way.nbytes > last.nbytes and (not best or way.nbytes < best[-1].nbytes):
            best.append(way)
    return (*best, last)


def _from_inputs(joint: Joint, rung: Rung, plain: Split) -> Split:
    """Return the two programs of which the second one computes everything again."""
    program = rung.program
    used = {variable for equation in program.equations for variable in equation.inputs}.union(program.outputs)
    saved = [variable for variable in joint.inputs if variable in used]
    back = replace(
        program, name=plain.reverse.name, inputs=(*saved, *joint.cotangents), history=(*program.history, "split")
    )
    places = tuple([(INPUT, joint.inputs.index(variable)) for variable in saved])
    return Split(_results_alone(joint), back, places, plain.given)


def _results_alone(joint: Joint) -> Program:
    """Return the forward program that saves nothing."""
    outputs, equations = joint.program.outputs[: joint.results], joint.program.equations[: joint.forward]
    return remove_dead(replace(joint.program, inputs=joint.inputs, outputs=outputs, equations=equations))


def _way(split: Split, layout: Layout, first: Rung, ahead: Rung | None = None) -> Way:
    """
    Return two programs with what they take.

    Args:
        split: The programs.
        layout: How the values of both lie.
        first: The joint program without anything computed again.
        ahead: How the forward program is run, if that is known.
    """
    ahead = ahead or settled(split.forward, layout)[0]
    back, memory = settled(split.reverse, layout)
    again, products = [
        one + other - least for one, other, least in zip(*map(counts_of, (ahead, back, first)), strict=True)
    ]
    work = ahead.work + back.work
    back = replace(back, again=again, products=products, extra_work=work / max(1, first.work) - 1)
    return Way(
        split,
        saved_nbytes(split),
        ahead.peak + objects_of(split.forward) - results_nbytes(split),
        back.peak + objects_of(split.reverse),
        swept_nbytes(split, memory) + objects_of(split.reverse),
        work,
        ahead,
        back,
    )
