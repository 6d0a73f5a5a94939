"""Time loops with a jitted step: one gradient for all schedules, and that of the plain step to rounding."""

from __future__ import annotations

import numpy as np
import pytest
from tests.program.test_tracing import bits

from ebbtide import Budget, checkpoint, grad, hvp, jit, jvp, timeloop, value_and_grad, vjp
from ebbtide.arrays.containers import flatten
from ebbtide.schedules import Hierarchical, Mixed, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk

RANDOM = np.random.default_rng(1)
U, W = RANDOM.standard_normal((8, 5)), RANDOM.standard_normal((5, 5)) * 0.4
FORCING = RANDOM.standard_normal((10, 8, 5))
STEPS = 10
SCHEDULES = (
    None,
    StoreAll(),
    StoreAll(tier="disk"),
    Revolve(1),
    Revolve(3),
    Mixed(4),
    Periodic(3, 1),
    Hierarchical(1, 3),
)


def closing_over(u, w, wrap, **options):
    """A loop whose step closes over an array that is traced, and one computed from it."""
    scale = np.cos(w[0])
    step = wrap(lambda u, x: np.tanh(u @ w) * scale + 0.1 * x)
    return np.sum(timeloop(step, u, STEPS, inputs=FORCING, **options) ** 2)


def passing_on(u, w, wrap, **options):
    """A loop whose step is given the arrays by a function around it."""
    inner = wrap(lambda u, w, x: np.tanh(u @ w) + 0.1 * x)
    return np.sum(timeloop(lambda u, x: inner(u, w, x), u, STEPS, inputs=FORCING, **options) ** 2)


def without(u, w, wrap, **options):
    """A loop whose step uses nothing from outside: the matrix is a part of the state."""
    step = wrap(lambda state, x: (np.tanh(state[0] @ state[1]) + 0.1 * x, state[1] * 0.99))
    u, w = timeloop(step, (u, w), STEPS, inputs=FORCING, **options)
    return np.sum(u * u) + np.sum(w)


def forced(u, w, wrap, **options):
    """A loop whose inputs are traced, with outputs."""
    step = wrap(lambda u, x: (np.tanh(u @ x[0]) * x[1], np.sum(u * u)))
    inputs = [(w * (1.0 + 0.1 * k), 1.0 + 0.1 * k) for k in range(STEPS)]
    u, energy = timeloop(step, u, STEPS, inputs=inputs, outputs=True, **options)
    return np.sum(u) + np.sum(np.sin(energy))


def in_the_row(u, w, wrap, **options):
    """A loop whose inputs are the rows of one traced array."""
    step = wrap(lambda u, x: np.sin(u) * x + np.cos(u[::-1]))
    return np.sum(timeloop(step, u, STEPS, inputs=FORCING * w[0], **options) ** 2)


KNOWN = jit(lambda u, w, x: np.tanh(u @ w) + 0.1 * x)


def known_step(f):
    """One jitted function for all calls, in place of a new one."""
    return KNOWN


LOOPS = (closing_over, passing_on, without, forced, in_the_row)


def plain(f):
    """The step as it is."""
    return f


def close(found, expected):
    """Whether all arrays in two containers agree to rounding."""
    pairs = zip(flatten(found)[0], flatten(expected)[0], strict=True)
    return all(np.allclose(x, y, rtol=1e-10, atol=1e-12) for x, y in pairs)


def gradient(loop, wrap, **options):
    """Value and gradient of a loop."""
    return value_and_grad(lambda u, w: loop(u, w, wrap, **options), (0, 1))(U, W)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_gradient_is_one_number_for_all_schedules(loop, schedule, tmp_path):
    """Under each schedule the gradient has the bits of that with all saved values in memory."""
    options = {} if schedule is None else {"storage": Disk(tmp_path)}
    found = gradient(loop, jit, schedule=schedule, **options)
    assert bits(found) == bits(gradient(loop, jit, schedule=StoreAll()))
    assert close(found, gradient(loop, plain, schedule=StoreAll()))


@pytest.mark.parametrize("loop", LOOPS)
def test_the_gradient_agrees_with_differences(loop):
    """The gradient along a direction is the difference quotient of the value, to the square of the step."""
    direction, size = (np.cos(U), np.sin(W)), 1e-6
    _, (by_u, by_w) = gradient(loop, jit)
    ahead, back = (loop(U + s * direction[0], W + s * direction[1], plain) for s in (size, -size))
    along = np.sum(by_u * direction[0]) + np.sum(by_w * direction[1])
    assert abs((ahead - back) / (2 * size) - along) < 1e-7 * (1 + abs(along))


@pytest.mark.parametrize("loop", LOOPS)
def test_forward_and_reverse_agree(loop):
    """The derivative along a direction is the same forward and in reverse."""
    direction = np.cos(U), np.sin(W)
    _, along = jvp(lambda u, w: loop(u, w, jit), (U, W), direction)
    _, pullback = vjp(lambda u, w: loop(u, w, jit), U, W)
    by_u, by_w = pullback(1.0)
    assert np.isclose(along, np.sum(by_u * direction[0]) + np.sum(by_w * direction[1]), rtol=1e-11)


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2), Mixed(4)], ids=repr)
@pytest.mark.parametrize("loop", LOOPS)
def test_hessian_products(loop, schedule):
    """A product with the Hessian is that of the loop with the plain step, to rounding."""
    direction = np.cos(U), np.sin(W)

    def product(wrap, schedule):
        return hvp(lambda u, w: loop(u, w, wrap, schedule=schedule), (0, 1))(U, W, direction)

    assert close(product(jit, schedule), product(plain, StoreAll()))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_budget(loop):
    """With a budget the loop plans by itself, and the gradient has the same bits."""
    budget = Budget(memory="200 KiB", disk="10 MiB")
    found = value_and_grad(lambda u, w: loop(u, w, jit), (0, 1), budget=budget)(U, W)
    assert bits(found) == bits(gradient(loop, jit))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_jitted_step_in_a_jitted_gradient(loop):
    """Jitted as a whole the loop has the same gradient, with the plain step and with a jitted one."""
    for wrap in (plain, jit):
        for schedule in (StoreAll(), Revolve(2)):
            both = jit(value_and_grad(lambda u, w, r=wrap, s=schedule: loop(u, w, r, schedule=s), (0, 1)))
            assert close(both(U, W), gradient(loop, plain))
            assert bits(both(U, W)) == bits(both(U, W))


def test_a_jitted_step_in_two_loops():
    """One jitted step in two loops, and outside of them, is one function with one gradient."""
    step = jit(lambda u, i: np.sin(u) * 1.5 + 0.1 * u[::-1])

    def f(u, wrap):
        u = timeloop(wrap, u, 4, schedule=Revolve(1))
        return np.sum(timeloop(wrap, wrap(u, 0.0), 3, schedule=Revolve(2)) ** 2)

    found = grad(lambda u: f(u, lambda u, i: step(u, 0.0)))(U)
    assert close(found, grad(lambda u: f(u, lambda u, i: np.sin(u) * 1.5 + 0.1 * u[::-1]))(U))


def test_a_jitted_step_in_a_checkpointed_loop():
    """A loop with a jitted step in a checkpointed function runs twice, with the same bits."""
    def f(u, w, wrap):
        return closing_over(u, w, jit) if wrap is None else wrap(lambda u, w: closing_over(u, w, jit))(u, w)

    found = grad(lambda u, w: f(u, w, checkpoint), (0, 1))(U, W)
    assert bits(found) == bits(grad(lambda u, w: f(u, w, None), (0, 1))(U, W))


def test_a_static_array_that_changes_between_calls():
    """A jitted step of the module that is given other static values has their gradient, in each call."""
    for scale in (1.0, 2.0, -0.5):
        found = grad(lambda w, s=scale: passing_on(U, s * w, known_step))(W)
        assert close(found, grad(lambda w, s=scale: passing_on(U, s * w, plain))(W))
