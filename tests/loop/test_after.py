"""Code after a time loop, and code before it: what they hold beside it, and how the loop makes room."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import sample

from ebbtide import Budget, BudgetError, grad, profile, timeloop, vjp
from ebbtide.schedules import Costs, Position, Recorded, Revolve, Schedule

U = np.linspace(0.2, 1.1, 4 * 16384)
STATE = U.nbytes
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "saves three": lambda u, i: u + 0.01 * np.sin(u) * np.cos(u),
    "saves one": lambda u, i: u - 0.02 * u * u,
    "saves its result": lambda u, i: np.exp(-u) * u + 0.1 * np.tanh(u),
}
AFTER: dict[str, Callable[[Any, Any], Any]] = {
    "squares": lambda end, u: np.sum(end**2),
    "misfit": lambda end, u: np.mean((end - u) ** 2),
    "sines": lambda end, u: np.sum(np.sin(np.sin(np.sin(end)))),
    "maxima": lambda end, u: np.sum(np.maximum(end, 0.5) * np.where(end > 0.3, end, u)),
    "another loop": lambda end, u: np.sum(timeloop(STEPS["saves one"], end * end, 9)),
}


def named_by(run: Callable[[int], Any]) -> list[int]:
    """The numbers of bytes that refusals name, until there is none."""
    named = [1]
    while len(named) <= 8:
        try:
            run(named[-1])
        except BudgetError as error:
            named.append(error.least)
        else:
            break
    return named[1:]


@pytest.mark.parametrize(
    ("step", "after", "count", "disk"), sample(list(product(STEPS, AFTER, [2, 7, 40], [0, 2**30])), 8)
)
def test_a_loop_makes_room_for_what_comes_after(step: str, after: str, count: int, disk: int, tmp_path: Path) -> None:
    """At the least and above it: within the budget, with the bits of none, and with the steps that were predicted."""

    def f(u: Any) -> Any:
        return AFTER[after](timeloop(STEPS[step], u, count), u)

    def run(memory: int) -> Any:
        return grad(f, budget=Budget(memory, disk=disk, directory=tmp_path))(U)

    expected, alone, named = grad(f)(U), peak_bytes(lambda: f(U)), named_by(run)
    assert len(named) <= 2
    for times in (1.0, 1.02, 1.1, 1.35, 2.0):
        memory, found = int(times * named[-1]), list[Any]()
        assert peak_bytes(lambda memory=memory, found=found: found.append(run(memory))) - alone <= memory
        assert found[0].tobytes() == expected.tobytes()
    with profile() as p:
        run(named[-1])
    assert p.steps_forward == p.predicted_steps_forward


def test_what_the_last_step_saved_goes_only_where_its_bytes_are_needed() -> None:
    """With room for what comes after a loop no step runs again for it; without, those from the last state on."""

    def steps_of(after: str, memory: int) -> int:
        with profile() as p:
            grad(lambda u: AFTER[after](loop(u), u), budget=Budget(memory))(U)
        return p.steps_forward

    def loop(u: Any) -> Any:
        return timeloop(STEPS["saves three"], u, 40, costs=Costs(forward=1.0, reverse=2.0))

    (least,) = named_by(lambda memory: grad(lambda u: np.sum(loop(u)), budget=Budget(memory))(U))
    with profile() as p:
        grad(lambda u: np.sum(loop(u)), budget=Budget(least))(U)
    assert p.steps_forward in (40 * 41 // 2, 40 * 41 // 2 + 1)  # from one restart state; and one more to be measured
    assert steps_of("sines", least) == p.steps_forward + 40
    assert steps_of("sines", least + 4 * STATE) < p.steps_forward


@pytest.mark.parametrize(("step", "after"), list(product(STEPS, ["squares", "misfit", "sines"])))
def test_retained_sweeps_have_room_beside_what_comes_after(step: str, after: str) -> None:
    """That stays for the next sweep, so that the loop plans anew: no sweep passes its budget or is refused above it."""

    def f(u: Any) -> Any:
        return AFTER[after](timeloop(STEPS[step], u, 12), u)

    def run(memory: int) -> None:
        _, pullback = vjp(f, U, retain=True, budget=Budget(memory))
        for _ in range(2):
            assert pullback(1.0)[0].tobytes() == expected
        pullback.free()

    expected = grad(f)(U).tobytes()
    f(U)
    alone, named = peak_bytes(lambda: f(U)), named_by(run)
    for states in np.arange(0, 8, 0.6):
        memory = named[-1] + int(states * STATE)
        assert peak_bytes(lambda memory=memory: run(memory)) - alone <= memory


@pytest.mark.parametrize("disk", [0, 2**30])
@pytest.mark.parametrize(("steps", "inner"), [(5, 3), (2, 8), (12, 4)])
def test_loops_in_steps_are_refused_once_beside_what_code_before_them_saved(
    steps: int, inner: int, disk: int, tmp_path: Path
) -> None:
    """What goes to disk while the first step runs is none of what that saves, nor of what the loop in it needs."""
    x = U[:40_000].copy()

    def f(u: Any) -> Any:
        k = np.sin(u) * np.cos(u)
        step = lambda v, _: v + 0.01 * np.sin(v) * np.cos(v) * k
        return np.sum(timeloop(lambda v, _: 0.99 * timeloop(step, v, inner), u, steps) ** 2)

    def run(memory: int) -> Any:
        return grad(f, budget=Budget(memory, disk=disk, directory=tmp_path))(x)

    named, expected = named_by(run), grad(f)(x)
    assert len(named) == 1
    f(x)
    alone = peak_bytes(lambda: f(x))
    for times in (1.0, 1.03, 1.1, 1.3, 2.0):
        memory, found = int(times * named[0]), list[Any]()
        assert peak_bytes(lambda memory=memory, found=found: found.append(run(memory))) - alone <= memory
        assert found[0].tobytes() == expected.tobytes()


def test_retained_sweeps_of_loops_in_steps_run_at_what_a_refusal_names() -> None:
    """A plan for the next sweep, too, that does not fit is no refusal, or one with a number that does."""

    def f(u: Any) -> Any:
        return np.sum(timeloop(lambda v, _: 1.01 * timeloop(STEPS["saves three"], v, 5), u, 12) ** 2)

    def run(memory: int) -> None:
        _, pullback = vjp(f, U, retain=True, budget=Budget(memory))
        for _ in range(2):
            assert pullback(1.0)[0].tobytes() == expected
        pullback.free()

    expected = grad(f)(U).tobytes()
    assert len(named_by(run)) <= 2


def recorded(schedule: Schedule, steps: int) -> Recorded:
    """The trace of a schedule."""
    position, actions = Position(steps=steps), list[Any]()
    while not position.finished:
        actions.append(schedule.next_action(position))
        position = position.after(actions[-1])
    return Recorded(steps, tuple(actions))


@pytest.mark.parametrize("disk", [0, 2**30])
@pytest.mark.parametrize("slots", [1, 3])
def test_a_recorded_schedule_is_left_where_the_last_step_runs_again(slots: int, disk: int, tmp_path: Path) -> None:
    """It goes on from nowhere but where it has been: the loop plans anew."""

    def f(u: Any, schedule: Any = None) -> Any:
        return AFTER["sines"](timeloop(STEPS["saves three"], u, 12, schedule=schedule), u)

    def run(memory: int) -> Any:
        schedule = recorded(Revolve(slots), 12)
        return grad(lambda u: f(u, schedule), budget=Budget(memory, disk=disk, directory=tmp_path))(U)

    (least,) = named_by(run)
    assert run(least).tobytes() == grad(f)(U).tobytes()


def test_a_call_of_several_sweeps_says_nothing_of_the_next() -> None:
    """In a profile, too, where both have one account."""

    def f(u: Any) -> Any:
        return AFTER["sines"](timeloop(STEPS["saves three"], u, 12), u)

    with profile():
        vjp(f, U, retain=True)[1](1.0)
        assert len(named_by(lambda memory: grad(f, budget=Budget(memory))(U))) == 1
