"""Arrays from outside that change before the reverse sweep, where the state, which is at rest, does not show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, MutationError, checkpoint, timeloop, vjp
from ebbtide.schedules import Mixed, Online, Periodic, Revolve, StoreAll

STEPS = 12
REST = np.zeros(4)
SCHEDULES: Any = (StoreAll(), StoreAll("disk"), Revolve(1), Revolve(3), Mixed(2), Periodic(5, 2), Online(3), None)
FACTOR = np.array([2.0, 3.0, 4.0, 5.0])
PLACES = np.array([1, 2, 3, 0])
MASK = np.array([True, False, True, False])
ARRAYS = FACTOR, PLACES, MASK
BEFORE = tuple([array.copy() for array in ARRAYS])


def put_into(s: Any, i: int) -> Any:
    """A step that writes by a mask."""
    s[MASK] *= 2
    return s


def add_at(s: Any, i: int) -> Any:
    """A step that adds at places."""
    np.add.at(s, PLACES, 0.5 * s[::-1])
    return s


def inner(s: Any, x: Any = None, **options: Any) -> Any:
    """A loop of two steps with FACTOR as the input of each, or used in the last."""
    if x is None:
        return timeloop(lambda s, j: np.sin(s) * (FACTOR if j else 2.0), s, 2, **options)
    return timeloop(lambda s, x: np.sin(s) * x, s, 2, inputs=x, **options)


STEP: dict[str, Callable[[Any, int], Any]] = {
    "factor": lambda s, i: np.sin(s) * FACTOR,
    "view": lambda s, i: np.sin(s) * FACTOR[::-1],
    "from step 7 on": lambda s, i: np.sin(s) * (FACTOR if i >= 7 else 2.0),
    "in step 7": lambda s, i: np.sin(s) * (FACTOR if i == 7 else 2.0),
    "every third step": lambda s, i: np.sin(s) * (FACTOR if i % 3 == 1 else 2.0),
    "view from step 7 on": lambda s, i: np.sin(s) * (FACTOR[::-1] if i >= 7 else 2.0),
    "places": lambda s, i: s[PLACES],
    "places in step 7": lambda s, i: s[PLACES] if i == 7 else np.sin(s),
    "choice": lambda s, i: np.where(MASK, s, 2 * s),
    "written by a mask": put_into,
    "added at places": add_at,
    "loop in a step": lambda s, i: inner(s),
    "loop in step 7": lambda s, i: inner(s, schedule=Revolve(1)) if i == 7 else np.sin(s),
    "inputs of a loop in a step": lambda s, i: inner(s, [FACTOR, FACTOR]),
    "inputs of a loop in step 7": lambda s, i: inner(s, [FACTOR, FACTOR]) if i == 7 else np.sin(s),
    "state of a loop in a step": lambda s, i: np.sin(s) * timeloop(lambda t, j: 1.0 * t, FACTOR, 2),
    "checkpoint in a step": lambda s, i: checkpoint(lambda s: np.sin(s) * FACTOR)(s),
    "checkpoint in step 7": lambda s, i: checkpoint(lambda s: np.sin(s) * (FACTOR if i == 7 else 2.0))(s),
}


def change() -> None:
    """Change all arrays that steps use."""
    FACTOR[:] = FACTOR[:] * 10
    PLACES[:] = PLACES[::-1].copy()
    MASK[:] = ~MASK


def restore() -> None:
    """Give the arrays their values back."""
    for array, before in zip(ARRAYS, BEFORE, strict=True):
        array[:] = before


def started(step: Any, schedule: Any) -> Any:
    """The pullback of a loop at rest."""
    weights = np.arange(1.0, 5.0)

    def loss(u: Any) -> Any:
        return np.sum(timeloop(step, u, STEPS, schedule=schedule) * weights)

    return vjp(loss, REST, budget=Budget(memory="256 KiB") if schedule is None else None)[1]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", STEP)
def test_arrays_that_change_before_the_reverse_sweep(name, schedule):
    """The gradient has the bits that it has where nothing changes, or it is an error; after it all may change."""
    right = started(STEP[name], StoreAll())(1.0)[0]
    assert np.any(right != 0)
    try:
        assert started(STEP[name], schedule)(1.0)[0].tobytes() == right.tobytes()
        change()
        started(STEP[name], schedule)(1.0)
        restore()
        pull = started(STEP[name], schedule)
        change()
        if schedule == Revolve(1):
            with pytest.raises(MutationError):
                pull(1.0)
        else:
            with suppress(MutationError):
                assert pull(1.0)[0].tobytes() == right.tobytes()
    finally:
        restore()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("late", [False, True])
def test_arguments_that_change_before_the_reverse_sweep(late, schedule):
    """So is it with arrays from outside that have a derivative, in memory of the caller."""
    k = np.array([2.0, 3.0, 4.0, 5.0])

    def loss(u: Any, k: Any) -> Any:
        first = 7 if late else 0
        return np.sum(timeloop(lambda s, i: np.sin(s) * (k if i >= first else 2.0), u, STEPS, schedule=schedule))

    _, pull = vjp(loss, REST, k, budget=Budget(memory="64 KiB") if schedule is None else None)
    k *= 10
    with pytest.raises(MutationError, match=r"of shape \(4,\) and dtype float64"):
        pull(1.0)


def test_the_message_says_which_array_and_where():
    """An array that only steps without a tape had used is named with the line that uses it."""
    pull = started(STEP["in step 7"], Revolve(1))
    FACTOR[:] = FACTOR * 10
    try:
        with pytest.raises(MutationError, match=r"array FACTOR of shape .* the step uses at .*test_rest\.py:\d+ has"):
            pull(1.0)
    finally:
        restore()


@pytest.mark.parametrize("name", ["a call", "a loop"])
def test_a_checkpointed_function(name):
    """What a checkpointed function uses from outside may not change before it runs again, also by a loop in it."""
    k = np.array([2.0, 3.0, 4.0, 5.0])
    use = {
        "a call": lambda u: np.sin(u) * k,
        "a loop": lambda u: timeloop(lambda s, x: np.sin(s) * x, u, 2, inputs=[k, k]),
    }[name]
    for arguments in ((REST,), (REST, k)):
        _, pull = vjp(lambda u, *_: np.sum(checkpoint(use)(u)), *arguments)
        pull(1.0)
        _, pull = vjp(lambda u, *_: np.sum(checkpoint(use)(u)), *arguments)
        k *= 10
        with pytest.raises(MutationError, match=r"array k of shape .* that checkpoint"):
            pull(1.0)


def test_arrays_that_are_reached_and_not_used():
    """What steps could use by name, and do not, may change: a record that they keep beside, or one of the caller."""
    kept, count = np.zeros(STEPS), np.zeros(1)

    def step(s: Any, i: int) -> Any:
        kept[i] = i
        count[0] += 1
        return np.sin(s) * 2.0

    for schedule in SCHEDULES:
        pull = started(step, schedule)
        kept[:] = -1
        np.testing.assert_array_equal(pull(1.0)[0], 2.0**STEPS * np.arange(1.0, 5.0))
    assert count[0] > len(SCHEDULES) * STEPS
