"""The Burgers model of the demo: its scheme in plain NumPy, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ebbtide
from ebbtide.demo import burgers
from ebbtide.optimize.taylor import taylor_remainders


def run_plain(initial: NDArray[Any], viscosity: Any, problem: burgers.Problem) -> NDArray[Any]:
    """Return the final state of a plain loop; complex in, complex out."""
    state = initial.copy()
    for _ in range(problem.steps):
        burgers.step(state, viscosity, problem.spacing, problem.time_step)
    return state


def plain_misfit(initial: Any, viscosity: Any, observed: Any, problem: burgers.Problem) -> Any:
    """Return the demo's misfit of a plain loop."""
    difference = run_plain(initial, viscosity, problem) - observed
    return 0.5 * problem.spacing**2 * np.sum(difference * difference)


def along(problem: burgers.Problem) -> tuple[Callable[[Any], Any], Any, Any]:
    """Return the misfit along the demo's direction, and the direction."""
    initial, observed = burgers.guess(problem), burgers.observations(problem)
    moved, moved_nu = burgers.direction(initial, problem)

    def value(distance: Any) -> Any:
        start, viscosity = initial + distance * moved, problem.viscosity + distance * moved_nu
        return plain_misfit(start, viscosity, observed, problem)

    return value, moved, moved_nu


def exact(nodes: int, time: float, viscosity: float) -> NDArray[np.float64]:
    """Return an exact solution, found by the Cole-Hopf transformation (Fletcher 1983)."""
    line = np.linspace(0.0, 1.0, nodes)
    x, y = line[:, None], line[None, :]
    wave = 1.0 / (4.0 * (1.0 + np.exp((-4.0 * x + 4.0 * y - time) / (32.0 * viscosity))))
    return np.stack([0.75 - wave, 0.75 + wave])


def error_against_exact(nodes: int, viscosity: float, end: float) -> float:
    """Return the largest error at the end of a run with exact boundary values."""
    spacing = 1.0 / (nodes - 1)
    steps = round(end / (burgers.DIFFUSION_NUMBER * spacing**2 / viscosity))
    state = exact(nodes, 0.0, viscosity)
    for number in range(1, steps + 1):
        burgers.step(state, viscosity, spacing, end / steps)
        now = exact(nodes, number * end / steps, viscosity)
        now[:, 1:-1, 1:-1] = state[:, 1:-1, 1:-1]
        state = now
    return float(np.abs(state - exact(nodes, end, viscosity)).max())


def test_error_falls_with_the_square_of_the_spacing() -> None:
    """Second order in space, and first in time with dt in proportion to h^2, is second order in h."""
    errors = [error_against_exact(nodes, viscosity=0.05, end=0.1) for nodes in (17, 33, 65)]
    rates = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(np.abs(rates - 2.0) < 0.1), (errors, rates)


def test_a_thousand_steps_never_raise_the_largest_speed() -> None:
    """Inside the bounds on diffusion and Peclet numbers no maximum grows, and the flow stays alive."""
    problem = burgers.Problem(nodes=51, steps=1000)
    state = burgers.guess(problem)
    largest = np.abs(state).max()
    for _ in range(problem.steps):
        burgers.step(state, problem.viscosity, problem.spacing, problem.time_step)
        now = np.abs(state).max()
        assert now <= largest
        largest = now
    assert largest > 1e-3


def test_the_fastest_field_that_is_accepted_is_stable() -> None:
    """The check of a field is enough: noise of the largest speed stays below it for a thousand steps."""
    problem = burgers.Problem(nodes=31, steps=1000)
    noise = np.random.default_rng(0).uniform(-1.0, 1.0, problem.shape)
    burgers.clear_boundary(noise)
    state = burgers.check_initial(noise * (problem.most_speed / np.abs(noise).max()), problem)
    assert np.abs(run_plain(state, problem.viscosity, problem)).max() <= problem.most_speed


def test_the_default_is_the_main_job() -> None:
    """201 x 201 nodes, 1000 steps, both numbers inside their bounds."""
    problem = burgers.Problem()
    assert (problem.nodes**2, problem.steps) == (40401, 1000)
    assert problem.viscosity * problem.time_step / problem.spacing**2 <= burgers.MOST_DIFFUSION_NUMBER
    assert np.abs(burgers.guess(problem)).max() <= problem.most_speed / 2.0


@pytest.mark.parametrize("make", [burgers.guess, burgers.observations])
def test_the_boundary_stays_zero(make: Callable[[burgers.Problem], Any]) -> None:
    """Initial fields, final states and directions vanish on the boundary exactly."""
    problem = burgers.Problem(nodes=21, steps=30)
    fields = [make(problem), run_plain(make(problem), problem.viscosity, problem)]
    fields.append(burgers.direction(fields[0], problem)[0])
    for field in fields:
        inner = np.zeros(problem.shape)
        inner[:, 1:-1, 1:-1] = field[:, 1:-1, 1:-1]
        assert np.array_equal(field, inner)
        assert np.abs(inner).max() > 0.0


def test_the_step_in_place_is_the_equation() -> None:
    """The step equals a loop over nodes that writes a new array, and changes and returns its argument."""
    problem = burgers.Problem(nodes=9, steps=1)
    state, spacing, dt = burgers.guess(problem), problem.spacing, problem.time_step
    new = state.copy()
    for part in range(2):
        for i in range(1, problem.nodes - 1):
            for j in range(1, problem.nodes - 1):
                w = state[part]
                u, v = state[0, i, j], state[1, i, j]
                slope_x, slope_y = (w[i + 1, j] - w[i - 1, j]) / 2, (w[i, j + 1] - w[i, j - 1]) / 2
                bend = w[i + 1, j] + w[i - 1, j] + w[i, j + 1] + w[i, j - 1] - 4 * w[i, j]
                change = problem.viscosity * bend / spacing**2 - (u * slope_x + v * slope_y) / spacing
                new[part, i, j] += dt * change
    returned = burgers.step(state, problem.viscosity, spacing, dt)
    assert returned is state
    np.testing.assert_allclose(state, new, rtol=1e-13, atol=1e-16)


def test_the_plain_misfit_is_smooth_to_second_order() -> None:
    """Taylor rates are 1, 2, 3 over the full range of distances, with derivatives by the complex step."""
    value, _, _ = along(burgers.Problem(nodes=51, steps=200))
    slope = value(1e-30j).imag / 1e-30
    h = 1e-4
    bend = (value(h + 1e-30j).imag - value(-h + 1e-30j).imag) / (2.0 * h * 1e-30)
    distances = [2.0**-k for k in range(8, 13)]
    test = taylor_remainders(lambda e: float(value(e)), float(value(0.0)), [slope, bend], distances)
    assert [test.is_right(order) for order in range(3)] == [True, True, True], test.table()


def test_a_wrong_derivative_fails_the_taylor_test() -> None:
    """A relative error of 1e-3 in the first or second derivative is seen in the rate of its order."""
    distances = [2.0**-k for k in range(8, 13)]
    for derivatives, wrong in (([1.001, 1.0], 1), ([1.0, 1.01], 2)):
        test = taylor_remainders(lambda e: float(np.exp(e)), 1.0, derivatives, distances)
        assert test.is_right(0)
        assert not test.is_right(wrong)


def test_simulate_is_the_plain_loop_bit_for_bit() -> None:
    """The loop of the library, not traced, gives the bits of a plain loop and leaves its argument alone."""
    problem = burgers.Problem(nodes=21, steps=40)
    initial = burgers.guess(problem)
    kept = initial.copy()
    final = burgers.simulate(initial, problem.viscosity, problem)
    assert np.array_equal(final, run_plain(initial, problem.viscosity, problem))
    assert np.array_equal(initial, kept)


@pytest.mark.parametrize(("nodes", "steps"), [(5, 1), (13, 7), (21, 60)])
def test_gradient_is_the_complex_step(nodes: int, steps: int) -> None:
    """Both gradients agree with complex steps, in a direction and for the viscosity alone."""
    problem = burgers.Problem(nodes, steps)
    initial, observed = burgers.guess(problem), burgers.observations(problem)
    _, moved, moved_nu = along(problem)
    slope, slope_nu = ebbtide.grad(
        lambda w, nu: burgers.misfit(w, nu, observed, problem), argnums=(0, 1), budget=ebbtide.Budget("1 MiB")
    )(initial, problem.viscosity)
    by_viscosity = plain_misfit(initial.astype(complex), problem.viscosity + 1e-30j, observed, problem).imag / 1e-30
    by_both = along(problem)[0](1e-30j).imag / 1e-30
    assert slope.shape == problem.shape
    assert slope.dtype == np.float64
    np.testing.assert_allclose(float(slope_nu), by_viscosity, rtol=1e-11)
    np.testing.assert_allclose(np.sum(slope * moved) + slope_nu * moved_nu, by_both, rtol=1e-11)


def test_second_derivative_is_the_difference_of_complex_steps() -> None:
    """The tangent of the gradient along the demo's direction gives its second derivative."""
    problem = burgers.Problem(nodes=13, steps=20)
    initial, observed = burgers.guess(problem), burgers.observations(problem)
    value, moved, moved_nu = along(problem)
    gradient = ebbtide.grad(lambda w, nu: burgers.misfit(w, nu, observed, problem), argnums=(0, 1))
    _, (bent, bent_nu) = ebbtide.jvp(gradient, (initial, problem.viscosity), (moved, moved_nu))
    h = 1e-5
    expected = (value(h + 1e-30j).imag - value(-h + 1e-30j).imag) / (2.0 * h * 1e-30)
    np.testing.assert_allclose(np.sum(bent * moved) + bent_nu * moved_nu, expected, rtol=1e-6)
