"""Steps whose products NumPy computes in another order where it reuses the memory of a temporary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, BudgetError, checkpoint, grad, hvp, profile, timeloop, value_and_grad
from ebbtide.schedules import Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll

# 256 KiB, from which on NumPy does so.
SIZE = 128
X = np.linspace(-3, 3, SIZE)
WAVES = np.fft.fftfreq(SIZE) ** 2
PHASE = np.exp(-20j * np.add.outer(WAVES, WAVES))
WAVE = np.exp(-(X[:, None] ** 2) - X**2) + 0.1j
POTENTIAL = 0.5 * (X[:, None] ** 2 + X**2)
SCHEDULES = (Revolve(1), Revolve(3), Mixed(5, 1, 2), Periodic(4, 2), Hierarchical(2, 2), StoreAll("disk"))


def split(wave: Any, i: Any) -> Any:
    """A split step of the nonlinear Schroedinger equation."""
    wave = np.fft.ifft2(PHASE * np.fft.fft2(wave))
    return wave * np.exp(-0.05j * np.abs(wave) ** 2)


def in_place(wave: Any, i: Any) -> Any:
    """The same kind of product, and a write into the state."""
    wave *= 0.5
    return PHASE * (wave + 0.1 * np.conj(wave))


def nested(wave: Any, i: Any) -> Any:
    """The product is in a loop in the step."""
    return timeloop(lambda w, j: PHASE * (w * 0.9), wave, 3)


STEPS = {"split": split, "in place": in_place, "nested": nested}


def energy(step: Any, scale: Any, steps: int = 17, **options: Any) -> Any:
    """A real number of the final state."""
    return np.sum(POTENTIAL * np.abs(timeloop(step, scale * WAVE, steps, **options)) ** 2)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_the_bits_are_those_of_store_all(name: str, schedule: Any) -> None:
    """A step that is run again gives the bits of the first time, taped or not."""
    run = lambda schedule: value_and_grad(lambda s: energy(STEPS[name], s, schedule=schedule))(1.0)
    assert run(schedule) == run(StoreAll())


def test_loops_of_unknown_length() -> None:
    """So it is where a condition ends the loop."""

    def f(scale: Any, schedule: Any) -> Any:
        wave, _ = timeloop(
            lambda s, i: (split(s[0], i), s[1] + 1), (scale * WAVE, 0), until=lambda s: s[1] >= 17, max_steps=50,
            schedule=schedule,
        )  # fmt: skip
        return np.sum(POTENTIAL * np.abs(wave) ** 2)

    assert grad(lambda s: f(s, Online(3)))(1.0) == grad(lambda s: f(s, StoreAll()))(1.0)


@pytest.mark.parametrize("disk", [0, 100])
@pytest.mark.parametrize("name", STEPS)
def test_budgets_are_kept(name: str, disk: int) -> None:
    """Steps of which nothing is kept run on tapes, too: no budget is passed, and each step counts."""
    f = lambda s: energy(STEPS[name], s)
    wanted, alone, memory, found = grad(f)(1.0), peak_bytes(lambda: f(1.0)), 1, list[Any]()
    while not found:
        before = memory
        try:
            peak = peak_bytes(lambda m=memory: found.append(grad(f, budget=Budget(m, disk * WAVE.nbytes))(1.0))) - alone
        except BudgetError as error:
            memory = max(error.least, before + 1)
    assert found == [wanted]
    assert peak <= memory
    with profile() as p:
        assert grad(f, budget=Budget(2 * memory, disk * WAVE.nbytes))(1.0) == wanted
    assert p.loops[0].plan.predicted_steps_forward == p.loops[0].steps_forward


def test_other_transforms() -> None:
    """Products with the Hessian follow the same schedule, and so does a loop in a checkpointed function."""
    f = lambda s, schedule=None: energy(split, s, 9, schedule=schedule)
    assert hvp(lambda s: f(s, Revolve(2)))(1.0, 1.0) == hvp(lambda s: f(s, StoreAll()))(1.0, 1.0)
    whole = grad(checkpoint(lambda s: f(s, Revolve(2))))(1.0)
    np.testing.assert_allclose(whole, grad(f)(1.0), rtol=1e-12)
    slope = (f(1 + 1e-6) - f(1 - 1e-6)) / 2e-6
    np.testing.assert_allclose(grad(f)(1.0), slope, rtol=1e-7)


@pytest.mark.parametrize("size", [abs, np.abs])
def test_sizes_of_complex_numbers_later_than_in_the_first_step(size: Any) -> None:
    """The size of a number has the bits of the operator, or of the function, also where a step runs on a tape."""
    line = np.ravel(WAVE)[:200]
    states = [line * scale for scale in np.linspace(0.5, 2.0, 8)]
    assert any(abs(state[k]) != np.abs(state[k]) for state in states for k in range(20))

    def spent(k: Any, state: Any, schedule: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            u = u * np.exp(-0.1j * k) + 0.02 * np.roll(u, 1)
            return u / size(u[0]) if i % 5 == 4 else u

        return np.sum(np.real(timeloop(step, state, 30, schedule=schedule)[::2]) * k[::2])

    k = np.linspace(0.5, 1.0, line.size)
    for state in states:
        found = [grad(spent)(k, state, schedule) for schedule in (StoreAll(), Revolve(3))]
        np.testing.assert_array_equal(*found)


def test_a_checkpointed_function_may_be_of_complex_numbers() -> None:
    """What runs again on a tape has other last bits there, and is no other function; extended floats have padding."""
    f = lambda s: np.sum(np.abs(split(s * WAVE, 0)) ** 2)
    np.testing.assert_allclose(grad(checkpoint(f))(1.0), grad(f)(1.0), rtol=1e-12)
    g = lambda x: np.sum(np.sin(np.sin(x) * x))
    for _ in range(10):
        x = np.linspace(0.1, 1, 50, dtype="g")
        np.testing.assert_allclose(grad(checkpoint(lambda x: g(np.stack([x, x]))))(x), 2 * grad(g)(x), rtol=1e-15)


def test_what_the_function_takes_is_measured_off_the_tape():
    """A step that runs on a tape for its bits takes more there; beside the first one it took 2.5 states too many."""

    def step(state, _):
        u, v = state
        u = np.real(np.fft.ifft(np.fft.fft(u) * 0.9))
        v = np.cumsum(v) / len(v)
        v = np.median(np.stack([u, v, u + v, v * 0.5]), axis=0)
        return u / (1 + 0.1 * u * u), v / (1 + 0.1 * v * v)

    def f(u, v):
        u, v = timeloop(step, (u, v), 12)
        return np.sum(u**2) + np.sum(u * v)

    x = np.linspace(0.1, 0.9, 32_768), np.linspace(1.3, 0.2, 32_768)
    gradient = lambda budget: grad(f, argnums=(0, 1), budget=budget)
    with pytest.raises(BudgetError) as refused:
        gradient(Budget(memory=1))(*x)
    least = Budget(memory=refused.value.least)
    f(*x)
    gradient(least)(*x)
    alone = peak_bytes(lambda: f(*x))
    assert peak_bytes(lambda: gradient(least)(*x)) - alone <= least.memory
    with profile() as p:
        gradient(least)(*x)
    assert p.steps_forward == p.predicted_steps_forward
