"""Time loops of all kinds within transforms within transforms have the derivatives of the same loops in Python."""

from __future__ import annotations

import numpy as np
import pytest
from tests.nestings import WAYS, check_nestings, check_ways

import ebbtide as eb
from ebbtide import timeloop
from ebbtide.errors import BudgetError
from ebbtide.schedules import Revolve


def loop_in_python(step, u, steps, *, inputs=None, outputs=False, until=None, max_steps=None, schedule=None):
    """The same as `timeloop`."""
    emitted = []
    for i in range(max_steps if steps is None else steps):
        if until is not None and until(u):
            break
        x = i if inputs is None else inputs(i) if callable(inputs) else inputs[i]
        u, out = step(u, x) if outputs else (step(u, x), None)
        emitted.append(out)
    return (u, np.stack(emitted)) if outputs else u


# What a step closes over meets itself before it meets the state.
def with_read_inputs(loop, x, c):
    """Inputs that a function makes of what it closes over."""
    return loop(lambda u, f: np.sin(u) * (c * c) + f * (c * u), x, 4, inputs=lambda i: (c * c) * i * 0.1)


def with_rows(loop, x, c):
    """Inputs that are one array."""
    return loop(lambda u, f: np.sin(u) * (c * c) + f * (c * u), x, 3, inputs=np.stack([c * c, c * x, 0.3 * c]))


def with_outputs(loop, x, c):
    """Outputs of each step."""
    u, out = loop(lambda u, i: (np.sin(u) * (c * c), np.cos(c) * (c * c) * u), x, 3, outputs=True)
    return u + np.sum(out * out)


def within_a_loop(loop, x, c):
    """A loop in each step."""
    return loop(lambda u, i: loop(lambda v, j: np.cos(v) * (c * c) * 0.5 + u * (c * c), u, 2), x, 2)


def with_a_schedule(loop, x, c):
    """A state of two numbers, and steps that run again."""

    def step(s, i):
        return {"a": s["a"] * (c * c) * 0.5, "b": s["b"] + np.sin(s["a"]) * (c * c)}

    final = loop(step, {"a": x, "b": x * c}, 3, schedule=Revolve(1))
    return final["a"] * final["b"]


def by_the_step(loop, x, c):
    """What is used in one step alone."""
    return loop(lambda u, i: np.where(i == 1, np.sin(u) * (c * c), u * (c * c) * np.exp(-c)), x, 4)


def with_counts(loop, x, c):
    """An integer, a truth value and a number of the interpreter in the state, the first two by what they meet."""

    def step(s, i):
        u, count, over, total = s
        u = np.sin(u) * (c * c) + 0.1 * count
        return u, count + np.where(u > 0.9, 2, 1), u > 0.9, total + np.where(over, u * c, u)

    u, count, over, total = loop(step, (x, np.argmax(np.stack([x, c])), x > 1, 0.0), 3)
    return np.where(over, u, u * u) * count + total


def that_end(loop, x, c):
    """Loops that end by what they have reached, each member of a batch when it has."""
    return loop(lambda u, i: u * 1.2 + np.sin(u) * (c * c), x, None, until=lambda u: u > 3, max_steps=7) * c


RUNS = (
    with_counts, that_end, with_read_inputs, with_rows, with_outputs, within_a_loop, with_a_schedule, by_the_step,
)  # fmt: skip


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_any_nesting(run):
    """Whatever is around and between, the derivative by what a step closes over is that of the loop written out."""

    def looped(x, c):
        return run(timeloop, x, c)

    check_nestings(looped, lambda x, c: run(loop_in_python, x, c), 41, rtol=1e-9, atol=1e-11)


# Derivatives of loops in steps, where the loop around is of what another trace is made of.
START = np.array([0.3, -0.4])


def squares(x):
    """A loss."""
    return np.sum(x**2)


def of_an_inner_loss(loop, a):
    """The step takes a derivative of another loop at a plain point."""
    inner = lambda y: squares(loop(lambda b, j: np.sin(b) * a, y, 2))
    return squares(loop(lambda v, i: 0.5 * v + eb.grad(inner)(START), START, 2))


def of_an_inner_loss_at_the_state(loop, a):
    """The step takes a derivative of another loop at its state."""
    inner = lambda y: squares(loop(lambda b, j: np.sin(b) * a, y, 2))
    return squares(loop(lambda v, i: 0.5 * v + eb.grad(inner)(v), START, 2))


def of_an_inner_value(loop, a):
    """The step takes only the value."""
    inner = lambda y: loop(lambda b, j: np.sin(b) * a, y, 2)
    return squares(loop(lambda v, i: v + eb.vjp(inner, START)[0], START, 2))


def of_a_loop_that_a_parameter_starts(loop, a):
    """The inner loop begins with what is closed over."""
    inner = lambda y: squares(loop(lambda b, j: np.sin(b) * y, a, 2))
    return squares(loop(lambda v, i: v + eb.grad(inner)(START), START, 2))


def of_inputs(loop, a):
    """The inner loop has inputs."""
    inner = lambda y: squares(loop(lambda b, x: np.sin(b) * x, y, 2, inputs=[a, a * a]))
    return squares(loop(lambda v, i: v + eb.grad(inner)(START), START, 2))


def of_what_meets_outside(loop, a):
    """What is closed over meets itself in the inner loop, and is written into."""

    def step(b, j):
        factor = a * a
        factor[0] = factor[0] + b[1]
        return np.sin(b) * factor

    return squares(loop(lambda v, i: v + eb.grad(lambda y: squares(loop(step, y, 2)))(START), START, 2))


def within_a_checkpoint(loop, a):
    """A checkpointed function is around in the place of a loop."""
    inner = lambda y: squares(loop(lambda b, j: np.sin(b) * a, y, 2))
    return squares(eb.checkpoint(lambda v: v + eb.grad(inner)(START))(START * 1))


OF_STEPS = (
    of_an_inner_loss, of_an_inner_loss_at_the_state, of_an_inner_value, of_a_loop_that_a_parameter_starts, of_inputs,
    of_what_meets_outside, within_a_checkpoint,
)  # fmt: skip


@pytest.mark.parametrize("function", OF_STEPS, ids=lambda function: function.__name__)
def test_derivatives_in_steps(function):
    """A step may take derivatives of another loop, whatever derivatives are taken around, by what it closes over."""
    check_ways(function, WAYS, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wraps", [lambda f: f, eb.checkpoint], ids=["plain", "checkpointed"])
def test_derivatives_in_steps_that_do_not_fit(wraps):
    """A loop that is refused in a derivative in the first step is not run on, as it would be swept: a BudgetError."""
    force = wraps(eb.grad(lambda b: np.sum(timeloop(lambda b, j: b + 0.5 * np.sin(b), b, 2))))

    def loss(v):
        return np.sum(timeloop(lambda v, i: 0.7 * force(v), v, 4))

    for kibibytes in range(32, 80, 3):  # the step fits from 40 or 55 on, its loop from 85 or 105 on
        with pytest.raises(BudgetError):
            eb.grad(loss, budget=eb.Budget(memory=f"{kibibytes} KiB"))(START)
    budget = eb.Budget(memory="1 MiB")
    np.testing.assert_array_equal(eb.grad(loss, budget=budget)(START), eb.grad(loss)(START))
