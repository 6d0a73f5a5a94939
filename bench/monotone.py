"""
More memory, more work? Random calls in growing budgets, each of which is planned for given costs.

Work is the steps that ran and those that were reversed, by what their operations take, and what went to disk and back.
Of each call and budget it is compared with that of all smaller budgets. Bar: never more. It is met where one loop has
all the room; where several parts of a call share it, each is planned when it runs, for what is there then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import ebbtide as eb
from bench.measure import Table, run
from ebbtide.schedules import Costs

SIZE, CALLS, BUDGETS, STEP = 4000, 12, 14, 1.12
STATE = 8 * SIZE
# What code has around the loop whose steps have so many operations, or in it.
KINDS: dict[str, Callable[[Parts, Any], Any]] = {
    "code before one loop": lambda parts, x: parts.loop(parts.code(x)),
    "code after it": lambda parts, x: parts.code(parts.loop(x)),
    "two loops in turn": lambda parts, x: parts.other(parts.loop(x)),
    "code between them": lambda parts, x: parts.other(parts.code(parts.loop(x))),
    "three loops in turn": lambda parts, x: parts.loop(parts.other(parts.loop(x))),
    "a loop in each step": lambda parts, x: parts.code(parts.nest(x)),
    "the same before a loop": lambda parts, x: parts.loop(parts.nest(x)),
    "the same after it": lambda parts, x: parts.nest(parts.loop(x)),
}


class Parts:
    """
    The parts of one random call, whose steps count what they run.

    Args:
        seed: That of the call.
    """

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed).choice
        self.transfer = choose([0.1, 0.5, 3.0])  # of one operation on a state
        self.disk = choose([0, 0, 6, 30])
        self._loop = choose([1, 3, 10]), choose([10, 30, 60])
        self._inner = choose([1, 3, 8]), choose([3, 5, 10])
        self._outer, self._code = choose([3, 5, 8]), choose([0, 2, 8, 20])
        self.least = 6 + max(self._loop[0], self._inner[0])
        self.ran = 0

    def _costs(self, forward: int) -> Costs:
        return Costs(forward=forward, reverse=2 * forward, write=self.transfer, read=self.transfer)

    def _timeloop(self, u: Any, operations: int, steps: int) -> Any:
        def step(u: Any, _: int) -> Any:
            self.ran += operations
            for _ in range(operations):
                u = np.sin(u) * 0.5 + 0.5 * u
            return u

        return eb.timeloop(step, u, steps, costs=self._costs(operations))

    def loop(self, u: Any) -> Any:
        """Run the first loop."""
        return self._timeloop(u, *self._loop)

    def other(self, u: Any) -> Any:
        """Run another one."""
        return self._timeloop(u, self._inner[0], 3 * self._inner[1])

    def nest(self, u: Any) -> Any:
        """Run one with a loop in each step."""
        costs = self._costs(self._inner[0] * self._inner[1])
        return eb.timeloop(lambda u, _: 0.5 * u + 0.5 * self._timeloop(u, *self._inner), u, self._outer, costs=costs)

    def code(self, u: Any) -> Any:
        """Run operations of which each saves two arrays."""
        for _ in range(self._code):
            u = np.sin(u) * u
        return u


def works(kind: Callable[[Parts, Any], Any], seed: int, budgets: int) -> list[tuple[float, int] | None]:
    """Return work and steps, in operations, of a call in each budget; None where it was refused."""
    parts, found = Parts(seed), list[tuple[float, int] | None]()

    def call(x: Any) -> Any:
        return np.sum(kind(parts, x) ** 2)

    x = np.linspace(-1.0, 1.0, SIZE)
    expected = eb.grad(call)(x)
    reversals = 2 * parts.ran
    for k in range(budgets):
        budget = eb.Budget(memory=int(parts.least * STEP**k * STATE) + 60_000, disk=parts.disk * STATE)
        parts.ran = 0
        try:
            with eb.profile() as p:
                np.testing.assert_array_equal(eb.grad(call, budget=budget)(x), expected)
        except (eb.BudgetError, eb.StorageError):  # there may be no disk for what code saves
            found.append(None)
        else:
            moved = (p.bytes_written + p.bytes_read) / STATE
            found.append((parts.ran + reversals + parts.transfer * moved, parts.ran))
    return found


def most(values: list[float]) -> float:
    """Return how many times the least of those before it a value is at most."""
    return max([b / min(values[:k]) for k, b in enumerate(values) if k], default=1.0)


def refused_above(budgets: list[Any]) -> int:
    """Return how many budgets are refused above the first one that ran."""
    first = next((k for k, one in enumerate(budgets) if one is not None), len(budgets))
    return budgets[first:].count(None)


def main(quick: bool = False) -> None:
    """Print the table."""
    heads = "calls above 1.02, of all", "in steps alone", "refused above a budget that ran"
    table = Table("Work by that of a smaller budget, at most", heads, "limit")
    for name, kind in KINDS.items():
        for with_disk in (False, True):
            seeds = [seed for seed in range(1 if quick else 1000) if bool(Parts(seed).disk) == with_disk]
            many = [works(kind, seed, 2 if quick else BUDGETS) for seed in seeds[:CALLS]]
            ran = [[one for one in budgets if one] for budgets in many]
            work = [most([one for one, _ in budgets]) for budgets in ran]
            steps = [most([float(one) for _, one in budgets]) for budgets in ran]
            worst, above = max(work, default=1.0), sum(one > 1.02 for one in work)
            table.add(
                f"{name}, {'disk' if with_disk else 'memory'}", f"{worst:.2f}",
                [f"{above} of {len(work)}", f"{max(steps, default=1.0):.2f}", str(sum(map(refused_above, many)))],
                "1.00", "1", None if quick else worst <= 1.02,
            )  # fmt: skip
    table.show()


if __name__ == "__main__":
    run(main)
