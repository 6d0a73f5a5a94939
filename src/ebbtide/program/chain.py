"""
Which stages of a chain to run again, exactly: the least work for any number of bytes, by dynamic programming.

A chain is a forward part whose stages each need one value of the one before, and a reverse part that goes through the
stages backwards. The recursion is that of Rotor (Herrmann, Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova: Optimal
checkpointing for heterogeneous chains, 2019): either all that the reverse of the first stage needs is kept, or it is
only gone through, to a value from which the rest is done first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ebbtide.program.values import Values

# How finely bytes are counted, and the most stages of a chain: beyond that neighbors are one stage.
_UNITS, _MOST_STAGES = 48, 128


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """
    A stage of a chain.

    Args:
        cost: What it costs to run it.
        nbytes: Bytes of its result, which the next stage needs.
        saved: Bytes of what else its reverse needs, beside the results of this stage and of the one before.
        output: Whether its reverse needs its result.
    """

    cost: int
    nbytes: int
    saved: int
    output: bool = True


@final
class Reversal:
    """
    The cheapest ways to reverse a chain, for all numbers of bytes up to *units* times *unit*.

    Args:
        stages: The chain.
        unit: Bytes are counted in so many.
        units: How many of them there are at most.

    Memory:
        Four tables of stages squared times units.
    """

    def __init__(self, stages: Sequence[Stage], unit: int, units: int) -> None:
        self.stages = stages
        count = len(stages)
        self._results = [-(-stage.nbytes // unit) for stage in stages]
        self._saved = [-(-stage.saved // unit) for stage in stages]
        until = self._until = np.concatenate(([0], np.cumsum([float(stage.cost) for stage in stages])))
        shape = (2, count + 1, count + 1, units + 1)
        # `least[h, i, j, m]`: to reverse stages i to j - 1 in m units, with what stage i needs held beside them; h is
        # 1 where the last result is held, as what came after has started from it.
        least = self._least = np.full(shape, np.inf)
        # `rest[h, j, i]` is the same for the rest of a chain, whose first value is one of those held.
        rest = self._rest = np.full(shape, np.inf)
        for i in range(count - 1, -1, -1):
            stage, kept = stages[i], self._results[i] + self._saved[i]
            for held in range(2):
                least[held, i, i + 1, self._need(i) :] = stage.cost if self._runs_again(i, held) else 0.0
            # What it costs to go through to a stage, and to reverse those before it in the end.
            through = np.empty((count - i, units + 1))
            through[0] = stage.cost + least[1, i, i + 1]
            for j in range(i + 2, count + 1):
                best = least[:, i, j]
                np.min(through[: j - i - 1] + rest[:, j, i + 1 : j], axis=1, out=best)
                if kept <= units:
                    onward = least[:, i + 1, j, : units + 1 - kept]
                    np.minimum(best[:, kept:], stage.cost + onward, out=best[:, kept:])
                through[j - i - 1] = until[j] - until[i] + best[1]
            first = self._results[i - 1] if i else 0
            if first <= units:
                rest[:, i + 1 :, i, first:] = least[:, i, i + 1 :, : units + 1 - first]

    def _need(self, i: int) -> int:
        """Return the units that are held while stage i is reversed, beside its first value."""
        return self._saved[i] + self._results[i] * self.stages[i].output

    def _runs_again(self, i: int, held: int) -> bool:
        """Return whether stage i runs before it is reversed alone; its result is held already or not."""
        return bool(self._saved[i] or (self.stages[i].output and not held))

    def cost(self, units: int) -> float:
        """Return the least cost of all runs of stages in some units of bytes; infinite if they are too few."""
        return float(self._least[0, 0, len(self.stages), units])

    def runs(self, units: int) -> list[list[int]]:
        """Return for each stage, the last one first, the stages that run after the reverse of the one behind it."""
        found: list[list[int]] = []
        pending: list[int] = []
        stack = [(0, 0, len(self.stages), units)]
        while stack:
            held, i, j, m = stack.pop()
            if j == i:
                # What was run for a stage is there: its reverse.
                found.append(pending)
                pending = []
                continue
            if j == i + 1:
                pending = [*pending, i] if self._runs_again(i, held) else pending
                stack.append((0, i, i, m))
                continue
            choice = self._first_of_rest(held, i, j, m)
            if choice == i:
                pending = [*pending, i]
                stack += [(0, i, i, m), (held, i + 1, j, m - self._results[i] - self._saved[i])]
            else:
                pending = [*pending, *range(i, choice)]
                stack += [(1, i, choice, m), (held, choice, j, m - self._results[choice - 1])]
        return found

    def _first_of_rest(self, held: int, i: int, j: int, m: int) -> int:
        """Return the number of the first stage of the rest, where stages i to j - 1 are reversed; i if all is kept."""
        left = m - self._results[i] - self._saved[i]
        kept = self.stages[i].cost + self._least[held, i + 1, j, left] if left >= 0 else np.inf
        through = self._until[i + 1 : j] - self._until[i] + self._least[1, i, i + 1 : j, m]
        return i + int(np.argmin([kept, *(through + self._rest[held, j, i + 1 : j, m])]))


def chain_orders(
    values: Values, place: int, anchors: Collection[int], count: int, most: int
) -> Iterator[list[int]]:
    """
    Yield orders for a program whose first part is a chain: from the fewest bytes to the least work.

    Args:
        values: Those of the program.
        place: Number of the equation where the first part ends.
        anchors: Through which values that place is passed.
        count: How many orders there are at most.
        most: What the stages may cost that run again, the first time included.
    """
    bounds = _boundaries(values, place, anchors)
    if len(bounds) < 3:
        return
    spans = _spans(bounds)
    owner = {step: k for k, (start, end) in enumerate(spans) for step in values.steps if start < step <= end}
    if not all(values.repeats[step] for step in owner):
        return
    needs = _needs(values, place, anchors, owner, len(spans))
    stages = [
        Stage(
            cost=sum(values.cost[step] for step in values.steps if start < step <= end),
            nbytes=values.nbytes[end],
            saved=sum(values.nbytes[one] for one in needs[k] if one not in (start, end)),
            output=end in needs[k],
        )
        for k, (start, end) in enumerate(spans)
    ]
    unit = max(1, -(-sum(stage.nbytes + stage.saved for stage in stages) // _UNITS))
    reversal = Reversal(stages, unit, _UNITS + len(stages))
    before: float = np.inf
    found: list[int] = []
    for units in range(_UNITS + len(stages) + 1):
        cost = reversal.cost(units)
        if cost < before and cost <= most:
            before = cost
            found.append(units)
    for number in sorted({round(k * (len(found) - 1) / max(1, count - 1)) for k in range(count)}):
        yield _order(values, place, spans, owner, reversal.runs(found[number]))


def _spans(bounds: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([-1, *bounds], bounds, strict=False))


def _boundaries(values: Values, place: int, anchors: Collection[int]) -> list[int]:
    """Return the values through which alone the first part goes on from them."""
    before = [step for step in values.steps if step < place]
    most = max((values.nbytes[step] for step in before), default=0)
    ends = {step: max((r for r in values.readers[step] if r < place), default=step) for step in before}
    live: set[int] = set()
    found: list[int] = []
    for step in before:
        live = {one for one in live if ends[one] > step}
        if ends[step] > step and values.nbytes[step] * 1024 > most:
            live.add(step)
        if live == {step} and values.repeats[step]:
            found.append(step)
    kept = [step for step in found if step in anchors]
    found = kept if len(kept) > 2 else found
    stride = -(-len(found) // _MOST_STAGES)
    return found[::stride] if found else []


def _needs(
    values: Values, place: int, anchors: Collection[int], owner: dict[int, int], count: int
) -> list[set[int]]:
    """Return for each stage the anchors from which the reverse of its values is computed."""
    needs: list[set[int]] = [set() for _ in range(count)]
    for step, stage in owner.items():
        if not any(reader >= place for reader in values.readers[step]):
            continue
        seen, stack = {step}, [step]
        while stack:
            one = stack.pop()
            if one in anchors:
                needs[stage].add(one)
                continue
            for other in values.reads[one]:
                if other not in seen and values.cheap[one]:
                    seen.add(other)
                    stack.append(other)
    return needs


def _order(
    values: Values, place: int, spans: Sequence[tuple[int, int]], owner: dict[int, int], runs: list[list[int]]
) -> list[int]:
    """Return an order in which stages run again before the equations that reverse them."""
    count = len(spans)
    inside: list[list[int]] = [[] for _ in range(count)]
    for step, stage in owner.items():
        inside[stage].append(step)
    order = [step for step in values.steps if step < place]
    next_stage = count - 1
    for step in values.steps:
        if step < place:
            continue
        reached = min((owner[one] for one in values.reads[step] if one in owner), default=count)
        while next_stage >= reached:
            # The first runs, from the start to the end, are the program's own.
            if next_stage < count - 1:
                for stage in runs[count - 1 - next_stage]:
                    order += sorted(inside[stage])
            next_stage -= 1
        order.append(step)
    return order
