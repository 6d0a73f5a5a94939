"""What steps and checkpointed functions of a linearization use from outside is the same in each push, or an error."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, MutationError, checkpoint, jvp, linearize, timeloop
from ebbtide.schedules import Mixed, Revolve

U, V = np.zeros(3), np.ones(3)  # a state of zeros, of which no result shows what it was multiplied by
SCHEDULES = [Revolve(1), Mixed(8, restart=1, saved=3)]


def by_name(k, **options):
    """A static array that the step uses."""
    return lambda u: timeloop(lambda s, i: s * k, u, 5, **options)


def by_part(k, **options):
    """Another view of a static array in each step."""
    return lambda u: timeloop(lambda s, i: s * k[1:][:3], u, 5, **options)


def as_index(k, **options):
    """An index array, of places that the step reads."""
    places = k[:3].view(np.int64)
    places[:] = 0, 1, 2
    return lambda u: timeloop(lambda s, i: 2.0 * s[places], u, 5, **options)


def as_rows(k, **options):
    """Inputs in an array."""
    return lambda u: timeloop(lambda s, x: s * x, u, 5, inputs=k.reshape(5, 3), **options)


def as_list(k, **options):
    """Inputs in a list of containers."""
    rows = [{"a": row} for row in k.reshape(5, 3)]
    return lambda u: timeloop(lambda s, x: s * x["a"], u, 5, inputs=rows, **options)


def by_function(k, **options):
    """Inputs from a function of the step number."""
    return lambda u: timeloop(lambda s, x: s * x, u, 5, inputs=lambda i: k[3 * i : 3 * i + 3] + 0.0, **options)


def in_checkpoint(k, **options):
    """A closure of a checkpointed function."""
    return checkpoint(lambda s: s * k[:3])


LOOPS = [by_name, by_part, as_index, as_rows, as_list, by_function]


def made(function, tmp_path, mapped=False, **options):
    """Return an array, and a function that uses it."""
    shape = (3,) if function is by_name else (15,)
    array: Any = np.memmap(tmp_path / "k", float, "w+", shape=shape) if mapped else np.empty(shape)
    array[:] = 2.0
    return array, function(array, **options)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("pushes", [0, 1])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("function", [*LOOPS, in_checkpoint])
def test_a_change_is_told(function, mapped, pushes, schedule, tmp_path):
    """An array that changes before the first push, or between two, in memory or in a file, is a MutationError."""
    array, f = made(function, tmp_path, mapped, schedule=schedule)
    _, pushforward = linearize(f, U)
    for _ in range(pushes):
        np.testing.assert_array_equal(pushforward(V), jvp(f, (U,), (V,))[1])
    array[-1] = array[2] = 0.0
    for _ in range(2):
        with pytest.raises(MutationError):
            pushforward(V)


@pytest.mark.parametrize("states", range(1, 120, 6))
def test_a_change_is_told_whichever_steps_are_kept(states):
    """So it is of an array of the caller and of one that is closed over, whatever steps a budget has room for."""
    u, v = np.zeros(10_000), np.ones(10_000)
    for change in range(2):
        arrays = [np.full(10_000, 2.0), np.full(10_000, 2.0)]

        def f(u, k, c=arrays[1]):
            return timeloop(lambda s, i: np.sin(s * (k if i == 4 else 2.0) * (c if i == 4 else 1.0)), u, 5)

        _, pushforward = linearize(f, u, arrays[0], budget=Budget(states * u.nbytes + (1 << 16)))
        np.testing.assert_array_equal(pushforward(v, u)[0], 64.0)
        arrays[change][0] = 3.0
        with pytest.raises(MutationError):
            pushforward(v, u)


@pytest.mark.parametrize("steps", [40, 1200])
def test_each_input_counts(steps):
    """Of few steps and of many the input that changed is named, alone or among its neighbors."""
    rows = np.ones((steps, 3))
    _, pushforward = linearize(lambda u: timeloop(lambda s, x: s * x, u, steps, inputs=rows, schedule=Revolve(3)), U)
    pushforward(V)
    for step in (0, 23, steps - 1):
        rows[step] = 2.0
        with pytest.raises(MutationError) as caught:
            pushforward(V)
        numbers = [int(word) for word in str(caught.value).partition(" of the time loop")[0].split() if word.isdigit()]
        assert min(numbers) <= step <= max(numbers) < min(numbers) + 8
        rows[step] = 1.0
        np.testing.assert_array_equal(pushforward(V), V)


@pytest.mark.parametrize("kind", ["argument", "traced", "constant"])
def test_a_traced_array_that_is_written(kind):
    """An array that the steps use, written in place later in the function, is an error and no other derivative."""

    def f(u, k):
        used = k if kind == "argument" else k * 1.0 if kind == "traced" else np.full_like(u, 2.0)
        after = timeloop(lambda s, i: s * used, u, 5, schedule=Revolve(1))
        if kind != "argument":
            used *= 3.0
        return after

    given = np.full(3, 2.0)
    _, pushforward = linearize(f, U, given)
    given[:] = 3.0
    with pytest.raises(MutationError):
        pushforward(V, U)


def test_a_change_that_nobody_compares():
    """With verify=False inputs are not compared, as in a gradient."""
    rows = np.full((4, 3), 2.0)
    f = lambda u: timeloop(lambda s, x: s * x, u, 4, inputs=rows, schedule=Revolve(1), verify=False)
    _, pushforward = linearize(f, U)
    rows[:] = 3.0
    np.testing.assert_array_equal(pushforward(V), jvp(f, (U,), (V,))[1])


def test_what_a_step_makes_may_change():
    """An array that a step makes is written and used again in it, and arrays that it does not use change freely."""
    unused = np.ones(3)

    def step(s, i):
        scratch = np.full(3, 0.5)
        t = s * scratch
        scratch += i
        unused[...] += len(unused)
        return t + s * scratch

    _, pushforward = linearize(lambda u: timeloop(step, u, 5, schedule=Revolve(1)), U)
    for _ in range(3):
        np.testing.assert_array_equal(pushforward(V), 120.0)


@pytest.mark.parametrize("function", [*LOOPS, in_checkpoint])
def test_nothing_is_held(function, tmp_path):
    """What was noted to be compared keeps no array alive, and is no garbage when the pushforward goes."""
    gc.collect()
    gc.disable()
    try:
        array, f = made(function, tmp_path, schedule=Revolve(1))
        _, pushforward = linearize(f, U)
        pushforward(V)
        known = weakref.ref(array)
        del array, f, pushforward
        assert known() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("memory", [1 << 18, 1 << 19, 1 << 20, 3 << 19])
def test_a_change_is_told_where_a_loop_made_room(memory):
    """So it is where what comes after a loop took the room of steps that it had kept."""
    steps, rows = 1200, np.ones((1200, 100))
    count: list[int] = []

    def f(u):
        def step(s, x):
            count.append(1)
            return s * x

        s = timeloop(step, u, steps, inputs=rows)
        s = s + np.zeros((30, 100))
        for _ in range(6):
            s = np.sin(s)
        return s

    u = np.zeros(100)
    _, pushforward = linearize(f, u, budget=Budget(memory))
    count.clear()
    np.testing.assert_array_equal(pushforward(u + 1.0), np.ones((30, 100)))
    again = len(count)
    assert again > 100
    for step in (0, 1, 2, 3, 100, steps - again - 1, steps - again, steps - again + 1, steps - 1):
        rows[step] = 2.0
        if step < steps - again:  # of a step that is kept there is a copy
            np.testing.assert_array_equal(pushforward(u + 1.0), np.ones((30, 100)))
        else:
            with pytest.raises(MutationError):
                pushforward(u + 1.0)
        rows[step] = 1.0
    np.testing.assert_array_equal(pushforward(u + 1.0), np.ones((30, 100)))
