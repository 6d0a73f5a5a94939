"""Steps of matrices under budgets: what rules make for a moment, and what cotangents keep while they wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, grad, timeloop
from ebbtide.schedules import Costs


def square(size: int) -> Any:
    """A matrix that can be solved with."""
    return 0.9 * np.eye(size) + 0.001


def filtered(u: Any) -> Any:
    """A transform and back, of which a derivative is the real part of a complex array."""
    return np.real(np.fft.ifft(np.fft.fft(u)))


def solved(u: Any) -> Any:
    """The solution with a matrix near to the unit."""
    return np.linalg.solve(2 * np.eye(len(u)) + 0.1 * u, u)


STEPS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "transform and solution": (256, lambda u: solved(filtered(u))),
    "Cholesky factor": (160, lambda u: np.linalg.cholesky(u @ u.T * 0.1 + np.eye(160))),
    "solution and factor": (160, lambda u: np.linalg.cholesky(solved(u))),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_rules_of_matrices_make_and_keep_is_in_the_budget(name: str) -> None:
    """Triangles that a rule makes for a moment, and cotangents that are a part of an array of twice their size."""
    size, step = STEPS[name]
    a, costs = square(size), Costs(forward=1.0, reverse=2.0, write=0.2, read=0.2)
    f = lambda a: np.sum(timeloop(lambda u, i: step(u) * 0.5, a * 1.0, 24, costs=costs) ** 2)
    expected = grad(f)(a)
    least = find_least(lambda memory: grad(f, budget=Budget(memory=memory))(a))
    alone = peak_bytes(lambda: f(a))
    for memory in [int(least * multiple) for multiple in (1.0, 1.2, 1.25, 1.5, 1.6)]:
        found: list[Any] = []
        call = grad(f, budget=Budget(memory=memory))
        call(a)
        assert peak_bytes(lambda: found.append(call(a))) - alone <= memory
        assert found[0].tobytes() == expected.tobytes()
