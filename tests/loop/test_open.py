"""Loops of unknown length, and inputs that are read step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes, peak_of, traced

from ebbtide import (
    Budget,
    BudgetError,
    MutationError,
    checkpoint,
    grad,
    hvp,
    jit,
    jvp,
    linearize,
    profile,
    timeloop,
    value_and_grad,
    vjp,
    vmap,
)
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll

U = np.linspace(0.2, 1.1, 30)
SCHEDULES = (StoreAll(), StoreAll("disk"), Online(3), Online(50))


def step(x: Any, i: Any) -> Any:
    """An explicit step in place, and a counter."""
    u, count = x
    u[1:-1] += 0.1 * u[1:-1] * (u[2:] - u[:-2])
    return u, count + 1


def known(u: Any, steps: int, **options: Any) -> Any:
    """A scalar of a loop of known length."""
    return np.sum(timeloop(step, (u, 0), steps, **options)[0] ** 2)


def found_out(u: Any, steps: int, most: int = 500, **options: Any) -> Any:
    """The same of a loop that ends by a condition."""
    last, _ = timeloop(step, (u, 0), until=lambda x: x[1] >= steps, max_steps=most, **options)
    return np.sum(last**2)


@pytest.mark.parametrize("schedule", [None, *SCHEDULES], ids=repr)
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 40])
def test_a_condition_gives_the_gradient_of_the_same_number_of_steps(schedule: Any, steps: int) -> None:
    """The gradient is bit for bit that of a loop of as many steps; the value is the same without derivatives."""
    expected = grad(lambda u: known(u, steps, schedule=StoreAll()))(U)
    assert np.array_equal(grad(lambda u: found_out(u, steps, schedule=schedule))(U), expected)
    assert found_out(U, steps) == known(U, steps)


@pytest.mark.parametrize("schedule", [None, *SCHEDULES], ids=repr)
def test_it_ends_at_the_most_steps(schedule: Any) -> None:
    """A condition that never holds ends the loop after max_steps."""
    expected = grad(lambda u: known(u, 12, schedule=StoreAll()))(U)
    assert np.array_equal(grad(lambda u: found_out(u, 1000, most=12, schedule=schedule))(U), expected)


def test_forward_mode_and_second_derivatives() -> None:
    """Forward mode, alone and around a gradient, follows the condition as well."""
    t = np.cos(U)
    _, expected = jvp(lambda u: known(u, 17), (U,), (t,))
    _, tangent = jvp(lambda u: found_out(u, 17), (U,), (t,))
    assert tangent == expected
    _, bent = jvp(grad(lambda u: found_out(u, 17, schedule=Online(3))), (U,), (t,))
    _, straight = jvp(grad(lambda u: known(u, 17, schedule=Revolve(3))), (U,), (t,))
    assert np.array_equal(bent, straight)


def test_a_budget_bounds_a_loop_of_unknown_length() -> None:
    """With a budget the snapshots are few enough, whatever the length."""
    budget = Budget(memory="64 KiB")
    gradient = grad(lambda u: found_out(u, 300, most=10**6), budget=budget)
    with profile() as p:
        found = gradient(U)
    assert np.array_equal(found, grad(lambda u: known(u, 300))(U))
    assert isinstance(p.loops[0].schedule, Online)
    assert p.held_bytes <= budget.memory


def test_a_loop_that_takes_no_step_has_one_copy_of_its_state() -> None:
    """Where the condition holds at the start, a gradient takes what the function takes, whatever the state."""
    wide = np.zeros(200_000)

    def value(u: Any) -> Any:
        first, _ = timeloop(lambda s, i: (np.sin(s[0]), s[1]), (u, wide), until=lambda s: True, max_steps=9)
        return np.sum(first**2)

    u, budget = np.linspace(0.1, 0.2, 1000), Budget(memory=100_000)
    gradient = grad(value, budget=budget)
    np.testing.assert_array_equal(gradient(u), 2 * u)
    with traced():
        assert peak_of(lambda: gradient(u)) - peak_of(lambda: value(u)) <= budget.memory


@pytest.mark.parametrize(("steps", "runs"), [(1, 1), (2, 3), (3, 6)])
def test_few_steps_run_as_often_as_if_that_were_known(steps: int, runs: int) -> None:
    """A loop that ends after one or two steps saves the last one as it runs, with the same bits."""
    ran: list[int] = []

    def watched(x: Any, i: Any) -> Any:
        ran.append(i)
        u, count = x
        return np.sin(u) * u, count + 1

    def total(u: Any, schedule: Any) -> Any:
        last, _ = timeloop(watched, (u, 0), until=lambda x: x[1] >= steps, max_steps=50, schedule=schedule)
        return np.sum(last)

    found = grad(lambda u: total(u, Online(3)))(U)
    assert len(ran) == runs
    assert np.array_equal(found, grad(lambda u: total(u, StoreAll()))(U))


def test_outputs_of_a_loop_of_unknown_length() -> None:
    """Outputs are those of the steps that ran."""

    def total(u: Any, **options: Any) -> Any:
        _, sums = timeloop(lambda x, i: (step(x, i), np.sum(x[0])), (u, 0), outputs=True, **options)
        assert sums.shape == (9,)
        return np.sum(sums * np.arange(9))

    expected = grad(lambda u: total(u, steps=9))(U)
    found = grad(lambda u: total(u, until=lambda x: x[1] == 9, max_steps=100, schedule=Online(2)))(U)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"until": lambda x: True}, "max_steps="),
        ({"until": lambda x: True, "max_steps": 5, "steps": 5}, "no steps="),
        ({"steps": 5, "max_steps": 5}, "until="),
        ({}, "steps="),
        ({"until": lambda x: True, "max_steps": True}, "max_steps="),
        ({"until": lambda x: True, "max_steps": 9, "inputs": np.zeros(8)}, "8 inputs for at most 9"),
        ({"steps": 5, "collect_every": 1.5}, "collect_every="),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    """Arguments that contradict each other are an error that says what to give."""
    with pytest.raises(ValueError, match=words):
        timeloop(step, (U, 0), **options)


class Reader:
    """An array in a file, read row by row, that counts how many rows are alive and refuses to be read as a whole."""

    def __init__(self, path: Path, rows: np.ndarray) -> None:
        np.save(path, rows)
        self.rows = np.load(path, mmap_mode="r")
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, int), "one row at a time"
        self.read.append(index)
        return np.array(self.rows[index])


FORCING = np.sin(np.arange(20.0)[:, None] + U)


def forced(u: Any, inputs: Any, **options: Any) -> Any:
    """A scalar of a loop with forcing."""
    return np.sum(timeloop(lambda x, f: np.sin(x) + f, u, 20, inputs=inputs, **options) ** 2)


@pytest.mark.parametrize(
    "schedule",
    [*SCHEDULES[:2], Revolve(3), Mixed(5), Hierarchical(2, 2, Costs(write=1.0, read=1.0)), Periodic(5, 2)],
    ids=repr,
)
def test_inputs_from_a_file_and_from_a_function(schedule: Any, tmp_path: Path) -> None:
    """Rows of a file and values of a function give the bits of an array, and one row is read for each run of a step."""
    expected = grad(lambda u: forced(u, FORCING, schedule=StoreAll()))(U)
    reader = Reader(tmp_path / "rows.npy", FORCING)
    assert np.array_equal(grad(lambda u: forced(u, reader, schedule=schedule))(U), expected)
    assert len(reader.read) == schedule.forward_steps(20)
    calls = []

    def make(i: int) -> Any:
        calls.append(i)
        return FORCING[i]

    assert np.array_equal(grad(lambda u: forced(u, make, schedule=schedule))(U), expected)
    assert len(calls) == schedule.forward_steps(20)


def test_what_an_input_function_uses_is_differentiated() -> None:
    """An array that a function of inputs uses is static like those of the step, in both modes."""
    weights = np.linspace(0.0, 1.0, 30)

    def objective(w: Any) -> Any:
        return forced(U, lambda i: w * FORCING[i], schedule=Revolve(2))

    def rows(w: Any) -> Any:
        return forced(U, w * FORCING, schedule=Revolve(2))

    np.testing.assert_allclose(grad(objective)(weights), grad(rows)(weights), rtol=1e-12, atol=1e-14)
    t = np.cos(weights)
    np.testing.assert_allclose(jvp(objective, (weights,), (t,))[1], jvp(rows, (weights,), (t,))[1], rtol=1e-12)
    bent, straight = (jvp(grad(f), (weights,), (t,))[1] for f in (objective, rows))
    np.testing.assert_allclose(bent, straight, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [*SCHEDULES, Revolve(4), Mixed(6), Mixed(200), Hierarchical(2, 3, Costs(write=1.0, read=1.0)), Periodic(10, 3)],
    ids=repr,
)
def test_pulled_back_several_times(schedule: Any) -> None:
    """With retain=True a loop is pulled back again and again, in any order, with the same bits."""
    _, pullback = vjp(lambda u: timeloop(step, (u, 0), 25, schedule=schedule)[0], U, retain=True)
    _, plain = vjp(lambda u: timeloop(step, (u, 0), 25, schedule=StoreAll())[0], U, retain=True)
    for k in (3, 0, 7, 3):
        g = np.roll(np.eye(1, 30)[0], k)
        assert np.array_equal(pullback(g)[0], plain(g)[0])


@pytest.mark.parametrize("steps", [1, 9, 45, 200])
@pytest.mark.parametrize("states", [20, None])
def test_what_is_predicted_is_of_the_length_that_is_found(steps: int, states: int | None) -> None:
    """When the loop has ended, its plan says how many steps run in all, and not what the most would take."""
    u = np.linspace(0.2, 1.1, 20_000)
    budget = None if states is None else Budget(memory=states * u.nbytes)
    with profile() as p:
        grad(lambda u: found_out(u, steps, 200, costs=Costs(forward=1.0, reverse=2.0)), budget=budget)(u)
    plan = p.loops[0].plan
    assert plan.steps == steps
    assert p.steps_forward == plan.predicted_steps_forward == p.predicted_steps_forward
    assert plan.predicted_time == plan.predicted_steps_forward + 2 * steps


OPEN = [(1, 5), (2, 9), (17, 17), (30, 60), (60, 200)]
STATE = 20_000 * 8


@pytest.mark.parametrize("costs", [None, Costs(write=0.1, read=0.1), Costs(write=30, read=30)], ids=str)
@pytest.mark.parametrize("disk", [3, 30, 1000])
@pytest.mark.parametrize(("steps", "most"), OPEN)
def test_a_budget_with_disk(steps: int, most: int, disk: int, costs: Any) -> None:
    """The disk takes states of a loop of unknown length, too: within the budget, the same bits, steps as predicted."""
    u = np.linspace(0.2, 1, STATE // 8)
    f = lambda u: np.sum(
        timeloop(
            lambda x, i: (x[0] + 0.05 * np.sin(x[0]), x[1] + 1), (u, 0), until=lambda x: x[1] >= steps,
            max_steps=most, costs=costs,
        )[0] ** 2
    )  # fmt: skip
    bounded = lambda memory: grad(f, budget=Budget(memory=memory, disk=disk * STATE))
    with pytest.raises(BudgetError) as refused:
        bounded(1000)(u)
    least, expected, alone = refused.value.least, grad(f)(u).tobytes(), peak_bytes(lambda: f(u))
    with pytest.raises(BudgetError) as again:
        bounded(least - 1)(u)
    assert again.value.least == least
    for memory in (least, 2 * least):
        with profile() as p:
            assert bounded(memory)(u).tobytes() == expected
        assert p.steps_forward == p.predicted_steps_forward
        assert peak_bytes(lambda memory=memory: bounded(memory)(u)) - alone <= memory


def test_the_disk_saves_steps() -> None:
    """With disk for all states fewer steps run than with the memory alone, whether the length is known or not."""
    u, ran = np.linspace(0.2, 1, STATE // 8), []
    for disk in (0, 1000 * STATE):
        with profile() as p:
            grad(lambda u: found_out(u, 60, most=200, costs=Costs(write=1, read=1)), budget=Budget(12 * STATE, disk))(u)
        ran.append(p.steps_forward)
    assert ran[1] < ran[0] * 3 / 4


def test_what_all_steps_save_is_predicted_of_the_length_that_is_found() -> None:
    """The peak of a loop that stores what all steps save is that of the steps that there are, not of all allowed."""
    u = np.linspace(0.2, 1, STATE // 8)
    with profile() as p:
        grad(lambda u: found_out(u, 40, most=200))(u)
    assert 0.9 * p.predicted_whole_bytes <= p.peak_bytes <= p.predicted_whole_bytes


def counted(step: Any, u: Any, **options: Any) -> Any:
    """The sums of the squares of what a step returns as its state and as its output, weighted by the step."""

    def both(state: Any, i: Any) -> Any:
        u = step(state[0])
        return (u, state[1] + 1), u

    (u, _), out = timeloop(both, (u, 0), until=lambda s: s[1] >= 17, max_steps=60, outputs=True, **options)
    return np.sum(out**2 * np.arange(1, len(out) + 1)[:, None]) + np.sum(u)


def in_place(u: Any) -> Any:
    """A step that writes into its state and returns it."""
    u += 0.1 * np.sin(u)
    return u


def halved(u: Any) -> Any:
    """A step that writes into its state and returns another array."""
    u *= 0.5
    return np.exp(-u)


@pytest.mark.parametrize("schedule", [Online(1), Online(3), Revolve(1), Mixed(9, 1, 3), Periodic(4, 2)], ids=repr)
@pytest.mark.parametrize("step", [in_place, halved])
def test_an_output_that_is_the_state_stays_as_it_was(step: Any, schedule: Any) -> None:
    """The next step writes into the state; the output of the one before, the same array, keeps its value."""
    f = lambda u, schedule=None: counted(step, u, schedule=schedule)
    assert value_and_grad(lambda u: f(u, schedule))(U)[0] == f(U)
    found, expected = grad(lambda u: f(u, schedule))(U), grad(lambda u: f(u, StoreAll()))(U)
    assert found.tobytes() == expected.tobytes()
    direction = np.cos(np.arange(U.size))
    slope = (f(U + 1e-6 * direction) - f(U - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(found @ direction, slope, rtol=1e-5)


def writes(state: Any) -> Any:
    """A condition that changes an array of the state."""
    state[0][...] *= 0.5
    return np.sum(state[0]) < 0.01


def draws(state: Any) -> bool:
    """A condition that draws from a generator of the state."""
    return bool(state[1].random() < 0.1)


ALL = {
    "plain": lambda f: f(U),
    "grad": lambda f: grad(f)(U),
    "checkpoint": lambda f: grad(checkpoint(f))(U),
    "jvp": lambda f: jvp(f, (U,), (U,)),
    "linearize": lambda f: linearize(f, U),
    "hvp": lambda f: hvp(f)(U, U),
    "jit": lambda f: jit(f)(U),
    "vmap": lambda f: vmap(f)(np.stack([U, 2 * U])),
    "one for all": lambda f: vmap(lambda c: c * f(U))(np.ones(2)),
    "grad of grad": lambda f: grad(lambda u: np.sum(grad(f)(u)))(U),
}


# A loop whose members end by themselves, or that is in a program, has no generator in its state.
CONDITIONS = [(writes, name) for name in ALL] + [(draws, name) for name in ALL if name not in ("vmap", "jit")]


@pytest.mark.parametrize(("condition", "transform"), CONDITIONS)
def test_a_condition_that_changes_the_state_is_refused(condition: Any, transform: str) -> None:
    """The gradient would be of other steps than those that were run: an error, whoever runs the loop."""
    def f(u: Any) -> Any:
        state = (u * 1.0, np.random.default_rng(0)) if condition is draws else (u * 1.0, 0)
        return np.sum(timeloop(lambda s, i: (0.9 * s[0], s[1]), state, until=condition, max_steps=30)[0] ** 2)

    with pytest.raises(MutationError, match="may only look at"):
        ALL[transform](f)


def test_an_error_of_a_condition_stays_its_own() -> None:
    """What a condition raises is not taken for a write."""
    def condition(u: Any) -> bool:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        grad(lambda u: np.sum(timeloop(lambda u, i: u, u, until=condition, max_steps=3)))(U)


@pytest.mark.parametrize(
    "way", [lambda f: f(U), lambda f: vjp(f, U), lambda f: jvp(f, (U,), (U,)), lambda f: linearize(f, U)],
    ids=["alone", "vjp", "jvp", "linearize"],
)  # fmt: skip
def test_no_outputs_of_a_loop_that_runs_no_step(way: Any) -> None:
    """A loop whose condition holds at the start has outputs of no shape, and says so, whatever looks at it."""

    def f(u: Any) -> Any:
        return timeloop(lambda x, i: (2 * x, x[0]), u, until=lambda x: True, max_steps=50, outputs=True)[0]

    with pytest.raises(ValueError, match=r"holds at the start has no outputs.*Leave outputs= out"):
        way(f)
