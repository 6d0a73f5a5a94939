"""Which values are held, which let go and computed again, so that no more than some bytes are held at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from typing import final

from ebbtide.program.values import Values

_NEVER = 1 << 60
# Values that are computed again for values that are computed again: Python's stack has an end.
_DEEP = 200


@final
class Keeper:
    """
    Goes through a program in its order, and lets values go where more than *limit* bytes would be held.

    Of what is not needed at once that value goes first that is computed again at the least cost for its bytes, and for
    the time until then. What was let go is computed again where it is needed, just before.

    Args:
        values: Those of the program.
        limit: Bytes.
        anchors: Values that are held for as long as something that is computed from them without products is needed;
            where no products are computed again, no longer than it is there itself, in no more bytes.
        most: What all may cost; the order that costs more is given up.
        small: Values of fewer bytes are never let go.
        by_time: Whether the time until its next use counts for a value, beside its cost: where products are computed
            again, but not where the little that others cost would be set against them.
    """

    def __init__(
        self, values: Values, limit: int, anchors: Collection[int], most: int, small: int, *, by_time: bool
    ) -> None:
        self.by_time = by_time
        self.values = values
        self.limit = limit
        self.most = most
        # What costs more than that is not computed again for a single value; and what lies behind it is not looked at.
        self.dear = most // 12
        self.small = small
        self.uses, self.above = _uses(values, anchors)
        self.held: dict[int, None] = {}
        self.nbytes = 0
        self.cost = 0
        self.order: list[int] = []
        # What it costs to compute held values again, as long as what is held near them does not change.
        self._again: dict[int, int] = {}
        # Held values by what it costs to let them go, and the score with which each of them stands there.
        self._queue: list[tuple[float, int]] = []
        self._queued: dict[int, float] = {}
        # How many of the values that are about to be computed again read each value.
        self._waiting: Counter[int] = Counter()
        self._last = -1
        self._depth = 0

    def run(self) -> list[int] | None:
        """Return the numbers of the equations in the order in which they run, or None if they cost too much."""
        for step in self.values.steps:
            self._compute_missing(self.values.reads[step], step)
            self._compute(step, step, again=False)
            if self.cost > self.most:
                return None
        return self.order

    def _compute_missing(self, wanted: Iterable[int], step: int) -> None:
        """Compute the values of the wanted ones that are not there, and what they are computed from, for a step."""
        missing = self._missing(wanted)
        waiting = [one for value in missing for one in self.values.reads[value]]
        self._waiting.update(waiting)
        for value in missing:
            self._waiting.subtract(self.values.reads[value])
            self._compute(value, step, again=True)

    def _missing(self, wanted: Iterable[int]) -> list[int]:
        """Return the values that have to be computed so that the wanted ones are there, in their order."""
        found: set[int] = set()
        stack = [one for one in wanted if one not in self.held]
        while stack:
            one = stack.pop()
            if one not in found:
                found.add(one)
                stack.extend(other for other in self.values.reads[one] if other not in self.held)
        return sorted(found)

    def _next_use(self, value: int, after: int) -> int:
        uses = self.uses[value]
        number = bisect_right(uses, after)
        return uses[number] if number < len(uses) else _NEVER

    def _compute(self, value: int, step: int, *, again: bool) -> None:
        """Compute a value, for the equation *step* or as that."""
        values = self.values
        self._depth += 1
        if self.cost > self.most or self._depth > _DEEP:
            # There is so little room that what was let go for one operand is needed for the next.
            self.cost = self.most + 1
            return
        if again:
            # What a value is computed from was let go to make room for another one.
            self._compute_missing(values.reads[value], step)
        self._depth -= 1
        self.order.append(value)
        self.cost += values.cost[value]
        needed = {value, *values.reads[value]} | (set(values.reads[step]) if again else set())
        # Its memory may be that of an operand which is not needed any more.
        waiting = values.reads[step] if again else ()
        reads = [
            one for one in values.reads[value] if not (one in waiting or values.stays[one] or self._waiting[one])
        ]
        ending = [one for one in reads if self._next_use(one, step) == _NEVER]
        grows = 0 if any(one in values.over[value] for one in ending) else values.nbytes[value]
        self._make_room(grows, needed, step)
        self._hold(value)
        for one in ending:
            self._let_go(one)
        if not again and not values.stays[value] and self._next_use(value, step) == _NEVER:
            self._let_go(value)

    def _make_room(self, grows: int, needed: Collection[int], step: int) -> None:
        """Let values go until there is room for some more bytes, as far as that is possible."""
        aside: list[tuple[float, int]] = []
        if not self.by_time and self.nbytes + grows > self.limit:
            for anchor in [one for one in self.above if one in self.held and one not in needed]:
                if self._is_spare(anchor, step):
                    self._let_go(anchor)
        while self._queue and self.nbytes + grows > self.limit:
            score, value = heappop(self._queue)
            if self._queued.get(value) != score:
                continue
            # To let go what the next equation takes makes no room: it would have to be there again.
            at_once = not self.by_time and self._next_use(value, step) == step + 1
            if value in needed or self._waiting[value] or at_once:
                aside.append((score, value))
                continue
            # The score grows as the next use comes nearer: what stands in the queue is a lower bound.
            now = self._score(value, step)
            if now > score and self._queue and now > self._queue[0][0]:
                self._enqueue(now, value)
            elif now < _NEVER:
                self._let_go(value)
        for score, value in aside:
            self._enqueue(score, value)

    def _is_spare(self, anchor: int, step: int) -> bool:
        """Return whether an anchor is held for nothing but values that are there, and take no more bytes than it."""
        values = self.values
        if self._waiting[anchor] or values.readers[anchor][-1] > step:
            return False
        needed = [one for one in self.above[anchor] if values.readers[one][-1] >= step]
        nbytes = [values.nbytes[one] for one in needed if one in self.held]
        return len(nbytes) == len(needed) and sum(nbytes) <= values.nbytes[anchor]

    def _enqueue(self, score: float, value: int) -> None:
        if score < _NEVER:
            self._queued[value] = score
            heappush(self._queue, (score, value))

    def _score(self, value: int, step: int) -> float:
        """Return what it costs to let a value go, for its bytes and the time until its next use."""
        after = self._next_use(value, step)
        cost = self._cost_again(value, after)
        if cost >= _NEVER:
            return float(_NEVER)
        return cost / (self.values.nbytes[value] * (after - step if self.by_time else 1))

    def _cost_again(self, value: int, after: int) -> int:
        """Return what it costs to compute a held value again at its next use; a great deal if that is impossible."""
        known = self._again.get(value)
        if known is not None:
            return known
        values = self.values
        cost, found, stack = 0, {value}, [value]
        while stack:
            one = stack.pop()
            cost += values.cost[one]
            if not values.repeats[one] or cost > self.dear:
                cost = _NEVER
                break
            for other in values.reads[one]:
                lasts = values.stays[other] or (bool(self.uses[other]) and self.uses[other][-1] >= after)
                if other not in found and not (other in self.held and lasts):
                    found.add(other)
                    stack.append(other)
        self._again[value] = cost
        return cost

    def _hold(self, value: int) -> None:
        if value not in self.held:
            self.held[value] = None
            self.nbytes += self.values.nbytes[value]
            self._last = max(self._last, value)
            self._changed(value)
            self._renew(value)

    def _let_go(self, value: int) -> None:
        if value in self.held:
            del self.held[value]
            self._queued.pop(value, None)
            self.nbytes -= self.values.nbytes[value]
            self._changed(value)

    def _renew(self, value: int) -> None:
        """Queue a held value of which it is not known any more what it costs to compute it again."""
        self._again.pop(value, None)
        values = self.values
        if values.nbytes[value] >= self.small and values.repeats[value] and not values.stays[value]:
            self._enqueue(0.0, value)

    def _changed(self, value: int) -> None:
        """Note that a value is there now, or not any more: others would be computed from it again."""
        costs = self.values.cost
        seen, stack = {value}, [(value, 0)]
        while stack:
            one, cost = stack.pop()
            for reader in self.values.readers[one]:
                # What was not computed yet is not computed again.
                if reader <= self._last and reader not in seen:
                    seen.add(reader)
                    if reader in self.held:
                        self._renew(reader)
                    elif self.values.repeats[reader] and cost + costs[reader] <= self.dear:
                        stack.append((reader, cost + costs[reader]))


def _uses(values: Values, anchors: Collection[int]) -> tuple[list[list[int]], dict[int, list[int]]]:
    """
    Return when each value is needed, and what is made from anchors.

    A value is needed where it is read, and anchors where what is made from them without products is read.
    """
    uses: list[set[int]] = [set(readers) for readers in values.readers]
    above: dict[int, list[int]] = {}
    if anchors:
        for step in values.steps:
            if step in anchors or not values.readers[step]:
                continue
            found, stack = {step}, [step] if values.cheap[step] else []
            near: set[int] = set()
            while stack:
                for one in values.reads[stack.pop()]:
                    if one in anchors:
                        near.add(one)
                    elif one not in found and values.cheap[one]:
                        found.add(one)
                        stack.append(one)
            for one in near:
                uses[one].update(values.readers[step])
                above.setdefault(one, []).append(step)
    return [sorted(found) for found in uses], above
