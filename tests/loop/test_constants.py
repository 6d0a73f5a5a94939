"""Arrays that the caller holds and steps use, without a derivative: they are in no budget, and change no plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, BudgetError, grad, hvp, linearize, profile, timeloop
from ebbtide.schedules import Costs

ROWS, COLUMNS = 512, 64
STATE = ROWS * COLUMNS * 8
STEPS = 40
COSTS = Costs(forward=1.0, reverse=2.0)
U = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
MATRIX = np.random.default_rng(1).standard_normal((ROWS, ROWS)) / np.sqrt(ROWS)
FIELDS = np.random.default_rng(2).standard_normal((16, ROWS, COLUMNS))
HELD = SimpleNamespace(fields=FIELDS, inside=[MATRIX])

# A step for each way to find an array of 8 or 16 states, which it saves: 1 state is its own.
USES = {
    "matrix": lambda u, i: np.tanh(MATRIX @ u),
    "field": lambda u, i: u + 0.01 * np.sin(FIELDS[0] * u),
    "fields in turn": lambda u, i: u + 0.01 * np.sin(FIELDS[i % 16] * u),
    "attribute": lambda u, i: u + 0.01 * np.sin(HELD.fields[i % 16] * u),
    "container": lambda u, i: np.tanh(HELD.inside[0] @ u),
    "default": lambda u, i, matrix=MATRIX: np.tanh(matrix @ u),
    "dot": lambda u, i: np.tanh(np.dot(MATRIX, u)),
}


def loop(step: Any, u: Any) -> Any:
    """The sum of the final state."""
    return np.sum(timeloop(step, u, STEPS, costs=COSTS))


@pytest.mark.parametrize("disk", [0, 100])
@pytest.mark.parametrize("name", USES)
def test_what_the_caller_holds_is_in_no_budget(name: str, disk: int) -> None:
    """The least is that of the step's own saved values, the plan is followed, and no budget is passed."""
    f = lambda u: loop(USES[name], u)
    wanted = grad(f)(U).tobytes()
    alone = peak_bytes(lambda: f(U))
    with pytest.raises(BudgetError) as refused:
        grad(f, budget=Budget(memory=1, disk=disk * STATE))(U)
    assert refused.value.least < (1 + 4) * STATE + 200_000
    for memory in (refused.value.least, 8 * STATE, 20 * STATE):
        found: list[Any] = []
        plans: list[Any] = []
        g = grad(f, budget=Budget(memory=memory, disk=disk * STATE))
        assert peak_bytes(lambda: found.append(g(U))) - alone <= memory
        assert found[0].tobytes() == wanted
        with profile(on_plan=plans.append) as p:
            g(U)
        assert len(plans) == 1
        assert p.steps_forward == plans[0].predicted_steps_forward


@pytest.mark.parametrize("name", ["matrix", "field"])
def test_what_the_function_makes_itself_counts(name: str) -> None:
    """An array that is made in the function would die there, and lives until the sweep: the budget has room for it."""

    def f(u: Any) -> Any:
        for _ in range(3):  # one at a time, without derivatives
            made = np.array(MATRIX if name == "matrix" else FIELDS[:8])
            if name == "matrix":
                u = timeloop(lambda u, i, made=made: np.tanh(made @ u), u, 6)
            else:
                u = timeloop(lambda u, i, made=made: u + 0.01 * np.sin(made[i % 8] * u), u, 6)
            del made
        return np.sum(u)

    alone, memory, peak = peak_bytes(lambda: f(U)), 1, None
    while peak is None:
        before = memory
        try:
            peak = peak_bytes(lambda m=memory: grad(f, budget=Budget(memory=m))(U)) - alone
        except BudgetError as error:
            memory = max(error.least, before + 1)
    assert 2 * 8 * STATE < peak <= memory


@pytest.mark.parametrize("transform", [hvp, linearize], ids=["hvp", "linearize"])
def test_other_derivatives_do_not_count_it(transform: Any) -> None:
    """Nor do products with the Hessian, and linearizations."""
    f = lambda u: np.sum(np.tanh(MATRIX @ np.tanh(MATRIX @ u)))
    run = lambda memory: (
        hvp(f, budget=Budget(memory))(U, U) if transform is hvp else linearize(f, U, budget=Budget(memory))
    )
    with pytest.raises(BudgetError) as refused:
        run(1)
    assert refused.value.least < 16 * STATE
    run(refused.value.least)


def test_it_is_not_paged() -> None:
    """What the caller holds stays in memory when it goes to disk, which would free nothing."""
    scale = np.linspace(0.5, 1.5, U.size).reshape(U.shape)

    def f(u: Any) -> Any:
        for _ in range(20):
            u = np.sin(u) * scale
        return np.sum(u)

    with profile() as p:
        g = grad(f, budget=Budget(memory=12 * STATE, disk=100 * STATE))(U)
    assert g.tobytes() == grad(f)(U).tobytes()
    # The sines take the value that they save, and products the array that the caller holds.
    assert 0 < p.bytes_written < 20 * STATE
