"""States before evenly spaced steps are compared when they are met again: a change is told near where it was made."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ebbtide import DeterminismError, grad, timeloop
from ebbtide.loop.verify import Waypoints
from ebbtide.schedules import Online, Revolve

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


def test_a_run_that_goes_on_has_none_before_its_beginning() -> None:
    """Steps that were never met are not compared, wherever the first one that is lies."""
    waypoints = Waypoints(2)
    assert waypoints.find_change(70, [1, 2]) is None
    assert waypoints.find_change(30, [5, 6]) is None
    assert waypoints.find_change(30, [5, 8]) == 1
    assert waypoints.find_change(70, [3, 2]) == 0
    assert Waypoints(0).find_change(10, []) is None
