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
        Six tables of stages squared times units.
    """

    def __init__(self, stages: Sequence[Stage], unit: int, units: int) -> None:
        self.stages = stages
        count = len(stages)
        self._results = [-(-stage.nbytes // unit) for stage in stages]
        self._saved = [-(-stage.saved // unit) for stage in stages]
        until = np.concatenate(([0], np.cumsum([float(stage.cost) for stage in stages])))
        shape = (2, count + 1, count + 1, units + 1)
        # `least[h, i, j, m]`: to reverse stages i to j - 1 in m units, with what stage i needs held beside them; h is
        # 1 where the last result is held, as what came after has started from it.
        least = np.full(shape, np.inf)
        # The same for the rest of a chain, whose first value is one of those held.
        rest = np.full(shape, np.inf)
        self._choice = np.full(shape, -1, np.int32)
        for i in range(count - 1, -1, -1):
            stage, result, saved = stages[i], self._results[i], self._saved[i]
            need = saved + result * stage.output
            for held in range(2):
                least[held, i, i + 1, need:] = stage.cost if saved or (need and not held) else 0.0
                self._choice[held, i, i + 1, need:] = i
            for j in range(i + 2, count + 1):
                onward = (until[i + 1 : j] - until[i])[:, None] + least[1, i, i + 1 : j]
                for held in range(2):
                    kept = stage.cost + _shifted(least[held, i + 1, j], result + saved)
                    costs = np.concatenate([kept[None], onward + rest[held, i + 1 : j, j]])
                    best = np.argmin(costs, axis=0)
                    found = least[held, i, j] = np.take_along_axis(costs, best[None], axis=0)[0]
                    # The number of the first stage of the rest; i where all is kept.
                    self._choice[held, i, j] = np.where(np.isfinite(found), i + best, -1)
            for j in range(i + 1, count + 1):
                for held in range(2):
                    rest[held, i, j] = _shifted(least[held, i, j], self._results[i - 1] if i else 0)
        self._least = least

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
            choice, stage = int(self._choice[held, i, j, m]), self.stages[i]
            if j == i + 1:
                again = self._saved[i] or (stage.output and not held)
                pending = [*pending, i] if again else pending
                stack.append((0, i, i, m))
            elif choice == i:
                pending = [*pending, i]
                stack += [(0, i, i, m), (held, i + 1, j, m - self._results[i] - self._saved[i])]
            else:
                pending = [*pending, *range(i, choice)]
                stack += [(1, i, choice, m), (held, choice, j, m - self._results[choice - 1])]
        return found


def _shifted(costs: np.ndarray, units: int) -> np.ndarray:
    """Return the costs for bytes of which some units are taken."""
    found = np.full_like(costs, np.inf)
    if units < len(costs):
        found[units:] = costs[: len(costs) - units]
    return found


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
    found: list[list[list[int]]] = []
    for units in range(_UNITS + len(stages) + 1):
        cost = reversal.cost(units)
        if cost < before and cost <= most:
            before = cost
            found.append(reversal.runs(units))
    for number in sorted({round(k * (len(found) - 1) / max(1, count - 1)) for k in range(count)}):
        yield _order(values, place, spans, owner, found[number])


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
