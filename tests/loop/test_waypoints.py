"""States before evenly spaced steps are compared when they are met again: a change is told near where it was made."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import DeterminismError, grad, linearize, timeloop, vjp
from ebbtide.loop.stepping.verify import Waypoints
from ebbtide.schedules import Mixed, Online, Revolve, StoreAll

STEPS = 400
U = np.linspace(0.2, 1.1, 5)


class Counted:
    """Counts the runs of a step; it is no part of the step's code."""

    def __init__(self) -> None:
        self.runs = self.all = 0


@pytest.mark.parametrize("until", [False, True])
@pytest.mark.parametrize("changed", [0, 9, 10, 137, 250, 371])
def test_a_change_is_told_within_ten_steps(changed: int, until: bool) -> None:
    """The error of a step that leads elsewhere when it is run again names the leaf, and at most ten steps."""
    counted = Counted()

    def step(state: Any, i: Any) -> Any:
        u, v, done = state["u"], state["v"], state["done"]
        counted.all += 1
        if done == changed:
            counted.runs += 1
            v = v + 1e-12 * (counted.runs > 1)
        return {"u": u + 0.01 * np.sin(u), "v": 1.0 * v, "done": done + 1}

    def objective(u: Any) -> Any:
        state = {"u": u, "v": np.cos(u), "done": 0}
        if until:
            options: dict[str, Any] = {"until": lambda x: x["done"] >= STEPS, "max_steps": 10**6}
            last = timeloop(step, state, schedule=Online(3), **options)
        else:
            last = timeloop(step, state, STEPS, schedule=Revolve(3))
        return np.sum(last["u"] ** 2) + np.sum(last["v"])

    with pytest.raises(DeterminismError) as caught:
        grad(objective)(U)
    leaf, first, last = re.findall(r"another result in (\S+) .*steps (\d+) to (\d+)", str(caught.value))[0]
    assert leaf == "['v']"
    assert int(first) <= changed <= int(last) < int(first) + 10
    assert counted.runs == 2


@pytest.mark.parametrize("width", [1, 3, 2000])
def test_they_take_little_room(width: int) -> None:
    """Of a million steps there are as many states as have 8 KiB of checksums, evenly spaced from the first on."""
    waypoints, most = Waypoints(width), 0
    for step in range(1, 10**6 + 1):
        if step % waypoints.spacing == 0:
            assert waypoints.find_change(step, [step] * width) is None
            most = max(most, len(waypoints._checks))
    assert most <= 1024
    spacing = waypoints.spacing
    known = list(range(spacing, 10**6 + 1, spacing))
    assert len(waypoints._checks) == (width * len(known) if width < 1024 else 0)
    assert width > 1024 or len(known) * width >= 512 - width
    for step in known if width < 1024 else ():
        checks = [step] * width
        assert waypoints.find_change(step, checks) is None
        checks[-1] += 2
        assert waypoints.find_change(step, checks) == width - 1


@pytest.mark.parametrize("width", [1, 3, 20, 2000])
def test_they_are_thinned_where_they_are(width: int) -> None:
    """To give up each second one takes nothing: in 10,240 steps the first time, where the others hold 8 KiB."""
    waypoints, checks = Waypoints(width), [7] * width

    def run() -> None:
        for step in range(10, 30_001, 10):
            if step % waypoints.spacing == 0:
                waypoints.find_change(step, checks)

    assert peak_bytes(run) < (12 if width < 2000 else 64) * 1024
    assert waypoints.spacing > 10


def test_a_long_loop_has_the_peak_of_a_short_one() -> None:
    """What compares the steps that run again takes no more of 12,000 steps than of 2,000, outputs included."""

    def run(steps: int) -> None:
        def last(u: Any) -> Any:
            return timeloop(lambda v, i: (0.9999 * v, v[0]), u, steps, schedule=Revolve(15), outputs=True)[0]

        _, pull = vjp(lambda u: np.sum(last(u)), U)
        pull(1.0)

    run(10)
    few, many = (peak_bytes(lambda n=n: run(n)) for n in (2_000, 12_000))
    assert many - few < 8 * 10_000 + 12 * 1024  # the outputs, and one table


@pytest.mark.parametrize("schedule", [Revolve(5), StoreAll(), Mixed(20)], ids=str)
@pytest.mark.parametrize("steps", [300, 1_500])
def test_another_output_is_told(schedule: Any, steps: int) -> None:
    """An output that is another one when its step runs again is an error, also if there is no sum for each step."""
    runs = [0] * steps

    def step(u: Any, i: Any) -> Any:
        runs[i] += 1
        return 0.999 * u, np.sum(u) * (2.0 if i == 77 and runs[i] > 1 else 1.0)

    def objective(u: Any) -> Any:
        return np.sum(timeloop(step, u, steps, schedule=schedule, outputs=True)[1])

    if schedule == StoreAll():
        grad(objective)(U)
        assert runs[77] == 1
        return
    with pytest.raises(DeterminismError, match="another output") as caught:
        grad(objective)(U)
    first, last = map(int, re.findall(r"steps (\d+) to (\d+)", str(caught.value))[0])
    assert first <= 77 <= last


def test_equal_outputs_that_become_others_alike_are_told() -> None:
    """In one sum with each other, two equal outputs are not none."""
    runs = [0] * 1_500

    def step(u: Any, i: Any) -> Any:
        runs[i] += 1
        return 0.999 * u, 0.0 * u + (2.0 if i in {76, 77} and runs[i] > 1 else 1.0)

    with pytest.raises(DeterminismError, match="another output"):
        grad(lambda u: np.sum(timeloop(step, u, len(runs), schedule=Revolve(5), outputs=True)[1]))(U)


def test_another_output_of_a_pushforward_is_told() -> None:
    """Steps that a pushforward runs again compare their outputs, in a sum where they are many."""
    runs = [0] * 1_500

    def step(u: Any, i: Any) -> Any:
        runs[i] += 1
        return 0.999 * u, np.sum(u) * (2.0 if i == 77 and runs[i] > 2 else 1.0)

    def outputs(u: Any) -> Any:
        return timeloop(step, u, len(runs), schedule=Revolve(5), outputs=True)[1]

    _, push = linearize(outputs, U)
    first = push(U)
    assert runs[77] == 2
    assert np.all(np.isfinite(first))
    with pytest.raises(DeterminismError, match="another output"):
        push(U)


def test_a_run_that_goes_on_has_none_before_its_beginning() -> None:
    """Steps that were never met are not compared, wherever the first one that is lies."""
    waypoints = Waypoints(2)
    assert waypoints.find_change(70, [1, 2]) is None
    assert waypoints.find_change(30, [5, 6]) is None
    assert waypoints.find_change(30, [5, 8]) == 1
    assert waypoints.find_change(70, [3, 2]) == 0
    assert Waypoints(0).find_change(10, []) is None
