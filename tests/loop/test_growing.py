"""Time loops that begin with a constant: later states are members of a batch, or have tangents."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

import ebbtide
from ebbtide import Budget, BudgetError, grad, hvp, jacobian, jvp, linearize, timeloop, vmap
from ebbtide.schedules import Costs, Revolve, StoreAll

STEPS, MEMBERS = 40, 12
K = np.linspace(0.5, 1.0, 20_000)
V = np.cos(K)
MANY = K * np.linspace(1.0, 2.0, MEMBERS)[:, None]
COSTS = Costs(forward=1.0, reverse=2.0)


def energy(k: Any, costs: Costs | None = COSTS) -> Any:
    """The coefficient is the control, and the state begins with ones; a constant of the state stays one."""
    start = {"u": np.ones(k.shape), "scale": np.full(k.shape, 0.1)}
    after = timeloop(lambda s, i: s | {"u": s["u"] + s["scale"] * np.sin(s["u"] * k)}, start, STEPS, costs=costs)
    return np.sum(after["u"] ** 2)


# What is differentiated, the same without a budget and alone, and the bytes that it returns beside the budget.
MODES: dict[str, Any] = {
    "vmap of grad": (lambda f=energy, **b: vmap(grad(f, **b))(MANY), lambda: vmap(energy)(MANY), MANY.nbytes),
    "hvp": (lambda f=energy, **b: hvp(f, **b)(K, V), lambda: jvp(energy, (K,), (V,)), 0),
}


@pytest.mark.parametrize("mode", MODES)
def test_one_refusal_names_what_does(mode: str) -> None:
    """The least budget is that of the states to come, not of the first one."""
    run, _, _ = MODES[mode]
    with pytest.raises(BudgetError) as refused:
        run(budget=Budget(memory=1000))
    assert run(budget=Budget(memory=refused.value.least)).tobytes() == run().tobytes()


@pytest.mark.parametrize("times", [1.0, 1.4, 2.0, 4.0])
@pytest.mark.parametrize("mode", MODES)
def test_plans_are_made_for_the_states_to_come(mode: str, times: float) -> None:
    """The first plan is followed to its end, within the budget, and the bits are those without one."""
    run, alone, returned = MODES[mode]
    with pytest.raises(BudgetError) as refused:
        run(budget=Budget(memory=1000))
    budget, plans = Budget(memory=int(times * refused.value.least)), list[Any]()
    assert peak_bytes(lambda: run(budget=budget)) - peak_bytes(alone) - returned <= budget.memory
    with ebbtide.profile(on_plan=plans.append) as p:
        found = run(budget=budget)
    assert plans[0].state_bytes > K.nbytes * (MEMBERS if mode != "hvp" else 2)
    assert p.steps_forward == p.predicted_steps_forward == plans[0].predicted_steps_forward
    assert found.tobytes() == run().tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_no_more_steps_are_run_to_be_timed(mode: str) -> None:
    """The first step runs once more with what later ones carry, and again without."""
    run, plans = MODES[mode][0], list[Any]()
    with pytest.raises(BudgetError) as refused:
        run(budget=Budget(memory=1000))
    with ebbtide.profile(on_plan=plans.append) as p:
        found = run(partial(energy, costs=None), budget=Budget(memory=2 * refused.value.least))
    assert plans[0].has_costs
    assert plans[0].measuring_steps == 2
    assert p.steps_forward == p.predicted_steps_forward
    assert found.tobytes() == run().tobytes()


@pytest.mark.parametrize(
    ("steps", "costs", "times", "disk"), [(12, COSTS, 1.0, 2**30), (12, COSTS, 4.0, 0), (32, None, 2.0, 0)]
)
@pytest.mark.parametrize("mode", [*MODES, "hessian", "hessians"])
def test_two_steps_tell_also_what_the_function_alone_takes(
    mode: str, steps: int, costs: Costs | None, times: float, disk: int
) -> None:
    """
    One on plain values tells what later states carry, too, where a taped one was a third step.

    When the second loop begins the first one has snapshots, which give up their room to it.
    """

    def branches(k: Any, start: Any = None, factor: Any = 1.0) -> Any:
        def step(u: Any, i: Any) -> Any:
            waves = [np.sin(m * factor * u * k) for m in (1.0, 2.0, 3.0)]
            return 0.5 * u + 0.1 * np.maximum(np.maximum(waves[0], waves[1]), waves[2])

        begun = np.ones(k.shape) if start is None else start
        once = timeloop(step, begun, steps, costs=costs)
        return np.sum(once**2 + timeloop(step, begun, steps, costs=costs) ** 2)

    k, many, directions = K[::5], MANY[::3, ::5], np.cos(np.arange(1.0, 5.0)[:, None] * K[::5])
    runs: dict[str, Any] = {
        "vmap of grad": lambda **b: vmap(grad(branches, **b))(many),
        "hvp": lambda **b: hvp(branches, **b)(k, directions[0]),
        "hessian": lambda **b: vmap(lambda v: hvp(branches, **b)(k, v))(directions),
        # The state has tangents of each member, and becomes one of each member with its first step.
        "hessians": lambda **b: vmap(lambda c, v: hvp(lambda k: branches(k, k, c), **b)(k, v))(many, directions),
    }
    run, budget = runs[mode], Budget(memory=1000, disk=disk)
    for _ in range(4):
        try:
            run(budget=budget)
        except BudgetError as refused:
            budget = replace(budget, memory=refused.least)
    with ebbtide.profile() as p:
        found = run(budget=replace(budget, memory=int(times * budget.memory)))
    assert [loop.plan.measuring_steps <= 2 for loop in p.loops] == [True, True]
    assert p.steps_forward == p.predicted_steps_forward
    assert found.tobytes() == run().tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_is_measured_writes_into_copies(mode: str) -> None:
    """The loop begins with the user's state, whatever the steps that are measured write."""

    def wave(k: Any) -> Any:
        def step(s: Any, i: Any) -> Any:
            s["scale"] *= 1.1
            s["u"] += s["scale"] * np.sin(s["u"] * k)
            return s

        start = {"u": np.ones(k.shape), "scale": np.full(k.shape, 0.1)}
        return np.sum(timeloop(step, start, STEPS, costs=COSTS)["u"] ** 2)

    run = partial(MODES[mode][0], wave)
    with pytest.raises(BudgetError) as refused:
        run(budget=Budget(memory=1000))
    assert run(budget=Budget(memory=2 * refused.value.least)).tobytes() == run().tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_state_that_carries_all_takes_no_step_more(mode: str) -> None:
    """One that begins with the control is measured by the step that the loop begins with."""

    def wave(k: Any) -> Any:
        return np.sum(timeloop(lambda u, i: np.sin(u * k), 0.5 * k, STEPS, costs=COSTS) ** 2)

    run = partial(MODES[mode][0], wave)
    with pytest.raises(BudgetError) as refused:
        run(budget=Budget(memory=1000))
    with ebbtide.profile() as p:
        found = run(budget=Budget(memory=2 * refused.value.least))
    assert p.loops[0].plan.measuring_steps == 0
    assert found.tobytes() == run().tobytes()


def heard(call: Any) -> tuple[Any, list[str]]:
    """Return what a call returns, and the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = call()
    return result, [str(one.message) for one in found]


def test_no_tangent_is_made_where_a_derivative_is_infinite() -> None:
    """The loop begins with what the user gave: zeros as a tangent would make the Hessian of a square root NaN."""

    def rooted(k: Any) -> Any:
        return np.sum(timeloop(lambda u, i: np.sqrt(u) + 0.1 * k * k, np.zeros(k.shape), STEPS, costs=COSTS) ** 2)

    expected, told = heard(lambda: hvp(rooted)(K, V))
    with pytest.raises(BudgetError) as refused:
        hvp(rooted, budget=Budget(memory=1000))(K, V)
    found, told_in_budget = heard(lambda: hvp(rooted, budget=Budget(memory=2 * refused.value.least))(K, V))
    assert np.isfinite(expected).all()
    assert found.tobytes() == expected.tobytes()
    assert told_in_budget == told  # nothing of the zeros that are measured with


@pytest.mark.parametrize("first", [0, 2])
def test_a_state_that_a_step_sets_to_a_constant_is_written_in_the_next(first):
    """In forward mode, too, and in products with the Hessian, a step may write what is traced into such an array."""

    def step(state, k, i):
        u, v = state
        if i == first:
            return u, np.ones(3)
        v += 0.1 * k * u
        return u * 1.01 + 0.1 * v, v

    def f(k, **options):
        return np.sum(timeloop(lambda s, i: step(s, k, i), (0.5 * np.ones(3), np.ones(3)), 8, **options)[0] ** 2)

    slope, curvature = grad(f)(0.7), grad(grad(f))(0.7)
    assert jvp(f, (0.7,), (1.0,))[1] == pytest.approx(slope, rel=1e-12)
    assert linearize(f, 0.7)[1](1.0) == pytest.approx(slope, rel=1e-12)
    assert grad(lambda k: jvp(f, (k,), (1.0,))[1])(0.7) == pytest.approx(curvature, rel=1e-12)
    for schedule in (StoreAll(), Revolve(1), Revolve(3)):
        g = lambda k: f(k, schedule=schedule)
        assert hvp(g)(0.7, 1.0) == pytest.approx(curvature, rel=1e-12)
        assert grad(grad(g))(0.7) == pytest.approx(curvature, rel=1e-12)
        assert vmap(jacobian(grad(g)))(np.full(2, 0.7)) == pytest.approx(curvature)
