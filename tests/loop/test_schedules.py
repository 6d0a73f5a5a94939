"""Loops that follow schedules to the letter: never reversed, with fewer snapshots midway, of unknown length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.storages import Delegating

from ebbtide import Budget, DeterminismError, ScheduleError, grad, timeloop, vjp
from ebbtide.schedules import Action, Delete, Forward, Mixed, NoReverse, Online, Position, Revolve, Schedule, StoreAll

U = np.linspace(0.2, 1.1, 6)


def step(u: Any, i: Any) -> Any:
    """A nonlinear step."""
    return u + 0.01 * np.sin(u) * np.roll(u, 1)


# No reverse sweep.


def test_a_loop_that_is_never_reversed():
    """With NoReverse the value is right, each step runs once, and to pull back is an error that says what to give."""
    ran: list[int] = []

    def noted(u: Any, i: Any) -> Any:
        ran.append(i)
        return step(u, i)

    value, pullback = vjp(lambda u: timeloop(noted, u, 5, schedule=NoReverse()), U)
    expected = U
    for i in range(5):
        expected = step(expected, i)
    np.testing.assert_array_equal(value, expected)
    assert ran == [0, 1, 2, 3, 4]
    with pytest.raises(ScheduleError, match=r"loop of 5 steps.*nothing was kept.*Revolve"):
        pullback(U)
    _, pullback = vjp(lambda u: timeloop(step, u, 5, schedule=NoReverse()), U, retain=True, budget=Budget("1 MiB"))
    with pytest.raises(ScheduleError, match=r"loop of 5 steps.*nothing was kept.*Revolve"):
        pullback(U)


# Fewer snapshots midway.


@dataclass(frozen=True)
class Lowered(Schedule):
    """Revolve with 20 snapshots up to step 500 of a sweep, and with 10 from there on."""

    sweep: str

    def next_action(self, position: Position) -> Action | None:
        if self.sweep == "reverse":
            early = position.reversed < 500
        else:
            early = not position.forward_ended and position.state < 500
        action = Revolve(20 if early else 10).next_action(position)
        if early and self.sweep == "forward" and isinstance(action, Forward):
            return replace(action, stop=min(action.stop, 500))
        if not early and len(position.snapshots) > 10:
            return Delete(step=Revolve(10).find_surplus(position)[0])
        return action


@pytest.mark.parametrize(("sweep", "before"), [("forward", 8), ("reverse", 20)])
def test_fewer_snapshots_midway(sweep, before):
    """A loop that may hold 20 snapshots, and 10 from step 500 of 1000 on, holds no more, with the gradient's bits."""
    storage, ran = Delegating(), []

    def watched(u: Any, i: Any) -> Any:
        ran.append((i, len(storage.keys())))
        return step(u, i)

    gradient = grad(lambda u: np.sum(timeloop(watched, u, 1000, schedule=Lowered(sweep), storage=storage) ** 2))(U)
    at = 500 if sweep == "forward" else 1 + max(run for run, (i, _) in enumerate(ran) if i >= 500)
    assert max(held for _, held in ran[:at]) == before
    assert max(held for _, held in ran[at:]) == 10
    assert len(ran) == Lowered(sweep).forward_steps(1000)
    assert gradient.tobytes() == grad(lambda u: np.sum(timeloop(step, u, 1000, schedule=StoreAll()) ** 2))(U).tobytes()


# Unknown length.


@pytest.mark.parametrize(("steps", "snapshots", "expected"), [(100, 5, 423), (1000, 10, 4732)])
def test_a_loop_with_a_condition_runs_the_steps_that_online_predicts(steps, snapshots, expected):
    """Steps of a loop that ends by a condition run as often as `forward_steps_open` says."""
    ran = count()

    def counted(x: Any, i: Any) -> Any:
        next(ran)
        return step(x[0], i), x[1] + 1

    def f(u: Any) -> Any:
        over = lambda x: x[1] >= steps
        return np.sum(timeloop(counted, (u, 0), until=over, max_steps=10**6, schedule=Online(snapshots))[0])

    grad(f)(U)
    assert next(ran) == Online(snapshots).forward_steps_open(steps) == expected


# What runs again.


@pytest.mark.parametrize("verify", [True, False])
def test_a_step_that_leads_elsewhere_is_let_through_on_request(verify):
    """A step that gives something else when it runs again is an error, and none with verify=False."""
    ran = count()

    def restless(u: Any, i: Any) -> Any:
        return u * (1 + 1e-3 * next(ran))

    gradient = grad(lambda u: np.sum(timeloop(restless, u, 8, schedule=Revolve(2), verify=verify)))
    if verify:
        with pytest.raises(DeterminismError, match="gave another result"):
            gradient(U)
    else:
        assert np.all(np.isfinite(gradient(U)))


STATE = {
    "f4": np.linspace(0, 1, 6, dtype=np.float32), "f8": U, "c16": U + 1j, "int": np.arange(6), "bool": np.arange(6) > 2,
    "flag": True,
}  # fmt: skip


def mixed(s: Any, i: Any) -> Any:
    """A step of a state of five types."""
    return {
        "f4": s["f4"] * np.float32(0.9) + np.float32(0.1) * np.sin(s["f4"]) * (s["int"] % 3).astype(np.float32),
        "f8": s["f8"] + 0.1 * np.abs(s["c16"]) ** 2 * s["bool"],
        "c16": s["c16"] * np.exp(0.1j * s["f8"]),
        "int": s["int"] + 1,
        "bool": ~s["bool"],
        "flag": not s["flag"],
    }


@pytest.mark.parametrize("schedule", [Revolve(2), StoreAll("disk"), Mixed(4), Online(2)], ids=str)
def test_a_state_of_many_types(schedule):
    """Single, double, complex, integer and boolean arrays in one state give the gradients of a `for` loop."""

    def f(x: Any, schedule: Schedule | None) -> Any:
        s = STATE | x
        if schedule is None:
            for i in range(9):
                s = mixed(s, i)
        else:
            s = timeloop(mixed, s, 9, schedule=schedule)
        assert (s["flag"], s["int"][0], s["bool"][0]) == (False, 9, True)
        return np.sum(s["f4"].astype(float)) + np.sum(s["f8"] ** 2) + np.sum(np.abs(s["c16"]) ** 4)

    x = {name: STATE[name] for name in ("f4", "f8", "c16")}
    found, same, plain = (grad(f)(x, one) for one in (schedule, StoreAll(), None))
    for name, given in x.items():
        assert found[name].dtype == given.dtype
        assert found[name].tobytes() == same[name].tobytes()
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-5 if name == "f4" else 1e-12)
