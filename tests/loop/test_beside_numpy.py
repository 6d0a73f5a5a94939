"""Steps under budgets that sort, clip or write into parts, for which they take more on a tape than NumPy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, grad, timeloop
from ebbtide.schedules import Costs

U = np.linspace(0.2, 1.1, 65_536)
STEPS: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda u: np.sort(u) * 0.5,
    "partitioned": lambda u: np.partition(u, 100) * 0.9 + 0.1 * np.sin(u),
    "clipped": lambda u: np.clip(u * 1.01, 0.1, 0.9),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_makes_beside_numpys_is_in_the_budget(name: str) -> None:
    """The order in which elements are, and the array between both bounds; the meter of the first step missed orders."""
    step, costs = STEPS[name], Costs(forward=1.0, reverse=2.0)
    f = lambda u: np.sum(timeloop(lambda u, i: step(u), u, 20, costs=costs) ** 2)
    expected, alone = grad(f)(U), peak_bytes(lambda: f(U))
    least = find_least(lambda memory: grad(f, budget=Budget(memory=memory))(U))
    for memory in [int(least * multiple) for multiple in (1.0, 1.12, 1.3, 1.5)]:
        found: list[Any] = []
        call = grad(f, budget=Budget(memory=memory))
        call(U)
        assert peak_bytes(lambda: found.append(call(U))) - alone <= memory
        assert found[0].tobytes() == expected.tobytes()


def halves(s: Any, _: Any) -> Any:
    """A step that writes into both halves of its state, and makes half a state."""
    a, b = s[: len(s) // 2], s[len(s) // 2 :]
    a += 0.1 * b[::-1]
    b *= 0.99
    return s


def rows(s: Any, i: Any) -> Any:
    """One that writes through a view that lies otherwise, too."""
    halves(s, i)
    v = s.reshape(2, -1).T
    v[0] -= 0.05 * v[1] ** 2
    np.multiply(v[2], 1.01, out=v[2])
    return s


@pytest.mark.parametrize("disk", [0, 1 << 30])
@pytest.mark.parametrize("step", [halves, rows])
def test_what_is_made_anew_where_numpy_writes_is_in_the_budget(step: Any, disk: int) -> None:
    """Of a write into a part of the state all of it is made on a tape, which was taken for what the function makes."""

    def f(x: Any) -> Any:
        s = timeloop(step, x, 12, costs=Costs(forward=1.0, reverse=2.0))
        return np.sum(s[: len(U) // 2] * s[len(U) // 2 :])

    expected, alone = grad(f)(U), peak_bytes(lambda: f(U))
    least = find_least(lambda memory: grad(f, budget=Budget(memory, disk))(U))
    for memory in [int(least * multiple) for multiple in (1.0, 1.1, 1.3)]:
        found: list[Any] = []
        call = grad(f, budget=Budget(memory, disk))
        call(U)
        assert peak_bytes(lambda: found.append(call(U))) - alone <= memory
        assert found[0].tobytes() == expected.tobytes()
