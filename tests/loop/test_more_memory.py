"""More memory takes few steps more, for given costs, also where code after a loop asks for what a plan counted on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.scale import sample

from ebbtide import Budget, BudgetError, grad, profile, timeloop
from ebbtide.schedules import Costs, StoreAll

U = np.full(40_000, 0.5)
TARGET = np.linspace(1.0, 2.0, U.size)
COSTS = Costs(forward=1.0, reverse=2.0, write=0.3, read=0.3)


def stencil(u: Any, i: int) -> Any:
    """A step in place."""
    u[1:-1] += 0.1 * u[1:-1] * (u[2:] - u[:-2])
    return u


STEPS = {"logistic": lambda u, i: u + 0.1 * u * (1 - u), "sine": lambda u, i: u + 0.01 * np.sin(u), "stencil": stencil}
LOSSES = {
    "square": lambda u: np.sum(u**2),
    "misfit": lambda u: 0.5 * np.sum((u - TARGET) ** 2) + 1e-3 * np.sum(np.abs(u)),
    "three": lambda u: np.sum(np.sin(np.cos(u * u))),
}


@pytest.mark.parametrize("disk", [0.0, 8.2])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("step", STEPS)
def test_more_memory_takes_few_steps_more(step: str, loss: str, disk: float) -> None:
    """
    Measured are 1.2 times those of a smaller budget, and 1.45 with disk; as predicted, and with the same bits.

    What code after the loop takes is not known when the loop is planned, and it may have to give up a snapshot. Before
    it was planned anew for the reverse sweep, it took up to 4.6 times as many.
    """

    def f(u: Any, **options: Any) -> Any:
        return LOSSES[loss](timeloop(STEPS[step], u, 40, **options))

    expected, fewest, ran = grad(lambda u: f(u, schedule=StoreAll()))(U), 10_000, 0
    for states in sample(np.arange(5.0, 24.0, 0.4).tolist(), 3):
        budget = Budget(memory=int(states * U.nbytes), disk=int(disk * U.nbytes))
        try:
            with profile() as p:
                found = grad(lambda u: f(u, costs=COSTS), budget=budget)(U)
        except BudgetError:
            assert not ran
            continue
        ran += 1
        assert np.array_equal(found, expected)
        assert p.steps_forward == p.predicted_steps_forward
        assert p.steps_forward <= (1.5 if disk else 1.25) * fewest
        fewest = min(fewest, p.steps_forward)
    assert ran > 4
