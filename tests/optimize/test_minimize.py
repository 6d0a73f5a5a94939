from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest
from tqdm import tqdm

from ebbtide import Budget, timeloop
from ebbtide.optimize import Control, ReducedFunctional, minimize
from ebbtide.schedules import Revolve

from .models import CELLS, PLACES, TRUTH, heat, misfit, rosenbrock

FIRST_ORDER = ("L-BFGS-B", "BFGS", "CG", "TNC", "SLSQP")
SECOND_ORDER = ("Newton-CG", "trust-ncg", "trust-krylov", "trust-constr")
PAIR = ReducedFunctional(lambda a, b: a * a + b * b, [Control(1.0), Control(2.0)])
BOUNDED = ("L-BFGS-B", "TNC", "SLSQP", "trust-constr")


@pytest.mark.parametrize("method", [*FIRST_ORDER, *SECOND_ORDER])
def test_rosenbrock(method):
    """Each method finds the minimum of Rosenbrock's valley, second-order ones by actions of the Hessian."""
    start = np.full(6, -0.5)
    found = minimize(rosenbrock, start, method, tol=1e-10, options={"maxfun" if method == "TNC" else "maxiter": 2000})
    np.testing.assert_allclose(found.m, 1.0, atol=1e-4)
    assert found.value == rosenbrock(found.m)
    assert found.values[0] == rosenbrock(start)
    assert found.values[-1] == pytest.approx(found.value, abs=1e-12)
    assert found.iterations > 5
    assert (found.products > 0) == (method in SECOND_ORDER)
    assert np.array_equal(start, np.full(6, -0.5))


def test_second_order_needs_fewer_iterations():
    """With the Hessian a quadratic is solved in a step of Newton's."""
    matrix = np.diag(np.logspace(0, 4, 8)) + 0.1
    found = minimize(lambda x: 0.5 * x @ matrix @ x - np.sum(x), np.zeros(8), "trust-krylov")
    assert found.converged
    assert found.iterations <= 6
    np.testing.assert_allclose(found.m, np.linalg.solve(matrix, np.ones(8)), atol=1e-8)


def test_containers_come_back():
    """Structure, shapes, dtypes and kinds of leaves of the controls are those of the result and of its derivative."""
    start = {"a": np.zeros((2, 3), np.float32), "b": [0.0, np.array(0.0)], "z": np.zeros(2, complex)}

    def f(m, k):
        return (
            np.sum((m["a"] - 2.0) ** 2) + (m["b"][0] + 1.0) ** 2 + m["b"][1] ** 2 * k**2
            + np.sum(np.abs(m["z"] - (1 + 2j)) ** 2) + (k - 3.0) ** 2
        )  # fmt: skip

    functional = ReducedFunctional(f, [Control(start), Control(1.0)])
    found = minimize(functional, tol=1e-14)
    m, k = found.m
    np.testing.assert_allclose(m["a"], 2.0, rtol=1e-5)
    np.testing.assert_allclose([m["b"][0], k], [-1.0, 3.0], rtol=1e-5)
    np.testing.assert_allclose(m["z"], 1 + 2j, rtol=1e-5)
    for part in (m, found.derivative[0]):
        assert (part["a"].dtype, part["a"].shape) == (np.float32, (2, 3))
        assert isinstance(part["b"][0], np.float64)
        assert isinstance(part["b"][1], np.ndarray)
        assert part["z"].dtype == np.complex128
    exact = functional.derivative(found.m)
    assert np.array_equal(found.derivative[0]["z"], exact[0]["z"])
    assert np.array_equal(found.derivative[0]["a"], exact[0]["a"])
    assert found.derivative[1] == exact[1]


@pytest.mark.parametrize("method", BOUNDED)
def test_bounds_hold(method):
    """No unknown leaves its bounds, and those whose minimum is outside end on one."""
    target = np.array([-2.0, 0.3, 5.0])
    seen = []

    def f(m):
        return np.sum((m["x"] - target) ** 2) + m["y"] ** 2

    found = minimize(
        f,
        {"x": np.array([0.5, 0.5, 0.5]), "y": 2.0},
        method,
        ({"x": 0.0, "y": 1.0}, {"x": np.array([1.0, np.inf, 1.0]), "y": np.inf}),
        callback=lambda m, _: seen.append(m),
    )
    np.testing.assert_allclose(found.m["x"], [0.0, 0.3, 1.0], atol=2e-3)
    np.testing.assert_allclose(found.m["y"], 1.0, atol=2e-3)
    assert seen
    assert all(m["x"].min() >= 0.0 and m["x"][[0, 2]].max() <= 1.0 and m["y"] >= 1.0 for m in seen)
    one_sided = minimize(lambda x: np.sum((x + 1.0) ** 2), np.ones(3), method, (0.0, None))
    np.testing.assert_allclose(one_sided.m, 0.0, atol=2e-3)


@pytest.mark.parametrize("method", BOUNDED)
def test_bounds_of_a_matrix_hold(method):
    """Each element of a matrix has the bounds at its own place, also where the bounds of a row are broadcast."""
    most = np.arange(6.0).reshape(2, 3)
    least = np.array([[-1.0, -2.0, -3.0]])
    for sign, expected in ((1.0, most), (-1.0, np.repeat(least, 2, axis=0))):
        found = minimize(lambda x, to=9.0 * sign: np.sum((x - to) ** 2), np.zeros((2, 3)), method, (least, most))
        np.testing.assert_allclose(found.m, expected, atol=2e-3)


def test_heat_inversion_recovers_the_initial_state():
    """From observations of the heat equation the initial state comes back, by derivatives within a budget."""
    observed = heat(TRUTH, 0.5)
    functional = ReducedFunctional(
        partial(misfit, k=0.5, observed=observed), Control(np.zeros(CELLS)), budget=Budget("64 KiB")
    )
    found = minimize(functional, options={"maxiter": 100, "ftol": 1e-15, "gtol": 1e-9})
    np.testing.assert_allclose(found.m, TRUTH, atol=1e-3)
    assert found.value < 1e-8 * found.values[0]
    assert "gradients" in str(found)


def test_heat_inversion_recovers_the_diffusivity():
    """From observations the diffusivity of each face comes back, a static value of the loop, under bounds."""
    truth = 0.4 + 0.2 * np.cos(np.arange(CELLS - 1) / 4.0)
    # A state that falls everywhere, so that there is a flux through each face.
    initial = np.exp(-PLACES)
    observed = heat(initial, truth)
    functional = ReducedFunctional(
        lambda k: 1e3 * misfit(initial, k, observed, schedule=Revolve(4)), Control(np.full(CELLS - 1, 0.5))
    )
    found = minimize(functional, bounds=(0.05, 1.0), options={"maxiter": 100, "ftol": 1e-15, "gtol": 1e-9})
    np.testing.assert_allclose(found.m, truth, atol=5e-3)
    both = ReducedFunctional(partial(misfit, observed=heat(TRUTH, 0.45)), [Control(np.zeros(CELLS)), Control(0.3)])
    found = minimize(both, [0.9 * TRUTH, 0.3], bounds=([None, 0.05], [None, 1.0]), options={"ftol": 1e-15})
    np.testing.assert_allclose(found.m[1], 0.45, atol=1e-3)


def test_float32_is_minimized_in_float32():
    """A float32 functional is called with float32, and ends as near as its rounding allows."""
    kinds = set()

    def f(x):
        kinds.add(x.dtype)
        return np.sum((x - np.float32(0.3)) ** 2)

    found = minimize(f, np.zeros(4, np.float32))
    assert kinds == {np.dtype(np.float32)}
    assert found.m.dtype == np.float32
    np.testing.assert_allclose(found.m, 0.3, atol=1e-3)


@pytest.mark.parametrize("method", ["L-BFGS-B", "Newton-CG"])
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, np.complex64, np.float16])
def test_other_precisions_are_minimized_in_float64(dtype, method):
    """Controls of more digits than float64 go to the method by their leading ones, and are evaluated in their dtype."""
    seen = set()

    def f(m):
        seen.add(np.dtype(m.dtype))
        return np.sum(np.abs(m - target) ** 2)

    target = np.array([0.5 - 1j, -2.0]).astype(dtype) if np.dtype(dtype).kind == "c" else np.array([0.5, -2.0], dtype)
    found = minimize(f, np.array([1, 3], dtype), method)
    assert found.converged
    assert (found.m.dtype, found.derivative.dtype, seen) == (dtype, dtype, {np.dtype(dtype)})
    assert np.allclose(found.m, target, rtol=max(1e-6, 4 * np.finfo(dtype).eps))


def test_the_callback_sees_each_iterate():
    """It gets the controls and the value of each iteration, which it may write without harm."""
    seen = []

    def look(m, value):
        seen.append((m.copy(), value))
        m[:] = np.nan

    found = minimize(rosenbrock, np.zeros(3), callback=look)
    assert len(seen) == found.iterations
    assert [value for _, value in seen] == list(found.values[1:])
    assert all(rosenbrock(m) == value for m, value in seen)
    assert found.converged


@pytest.mark.parametrize("method", [*FIRST_ORDER, *SECOND_ORDER])
def test_the_callback_ends_the_search(method):
    """StopIteration of a callback ends each method with its iterate as the result; that of a functional is an error."""
    seen = []

    def stop(m, value):
        seen.append((m, value))
        if len(seen) == 2:
            raise StopIteration

    found = minimize(rosenbrock, np.full(4, -0.5), method, callback=stop)
    assert (found.iterations, found.converged, len(seen)) == (2, False, 2)
    assert found.message == "`callback` raised `StopIteration`."
    assert np.array_equal(found.m, seen[-1][0])
    assert found.value == seen[-1][1] == rosenbrock(found.m)
    calls = iter(range(3))
    with pytest.raises(StopIteration):
        minimize(lambda x: rosenbrock(x) + 0.0 * next(calls), np.full(4, -0.5), method)


def test_progress_is_shown_only_if_asked_for(capsys, monkeypatch):
    """progress=True shows the iterations and J on stderr; by default there is nothing, and no thread of a bar."""
    monkeypatch.setattr(tqdm, "monitor", None)
    minimize(rosenbrock, np.zeros(3))
    assert capsys.readouterr() == ("", "")
    assert tqdm.monitor is None
    found = minimize(rosenbrock, np.zeros(3), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "L-BFGS-B" in shown.err
    assert f"{found.iterations}iteration" in shown.err
    assert "J = " in shown.err


def test_the_maximum_of_iterations_is_no_convergence():
    """A run that is cut short says so and returns the iterate that it has."""
    found = minimize(rosenbrock, np.zeros(10), options={"maxiter": 3})
    assert not found.converged
    assert found.iterations == 3
    assert found.value == rosenbrock(found.m) < found.values[0]
    assert "not converged" in str(found)


@pytest.mark.parametrize("method", [*FIRST_ORDER, *SECOND_ORDER])
def test_value_and_derivative_are_those_of_the_result(method):
    """A run that is cut short returns value and derivative at its last iterate, not at a point that was tried later."""
    functional = ReducedFunctional(rosenbrock, Control(np.array([-1.2, 1.0, 0.5])))
    limit = "maxfun" if method == "TNC" else "maxiter"
    for count in range(1, 12):
        found = minimize(functional, method=method, options={limit: count})
        assert found.value == functional.value(found.m)
        assert np.array_equal(found.derivative, functional.derivative(found.m))


@pytest.mark.parametrize("method", ["BFGS", "SLSQP", *SECOND_ORDER])
def test_a_search_that_leaves_the_domain_comes_back(method):
    """Where the functional is infinite at a point that is tried, a nearer one is: only the start has to be finite."""
    outside = []

    def f(x):
        outside.append(bool(x <= 0.0))
        return np.inf + 0.0 * x if outside[-1] else x - np.log(x)

    found = minimize(f, 20.0, method)
    assert any(outside)
    assert found.converged
    np.testing.assert_allclose(found.m, 1.0, atol=1e-3)


def test_runs_are_independent():
    """Two runs give the same bits, and a functional after a run is what it was: pyadjoint's #264 and #265."""
    functional = ReducedFunctional(rosenbrock, Control(np.zeros(5)))
    before = functional.derivative(np.full(5, 0.3)).tobytes()
    first, second = minimize(functional), minimize(functional)
    assert first.m.tobytes() == second.m.tobytes()
    assert first.values == second.values
    assert functional.derivative(np.full(5, 0.3)).tobytes() == before
    assert np.array_equal(functional.start(), np.zeros(5))


@pytest.mark.parametrize("method", [*FIRST_ORDER, *SECOND_ORDER])
def test_nothing_is_held_after_a_run(method):
    """The functional and what it closes over die without the collector, whatever cycles SciPy makes: firedrake#3069."""

    class Data:
        value = 2.0

    data = Data()
    alive = weakref.ref(data)
    gc.collect()
    gc.disable()
    try:
        minimize(lambda x, d=data: np.sum((x - d.value) ** 2), np.zeros(3), method)
        del data
        assert alive() is None
    finally:
        gc.enable()


def test_errors_of_the_functional_come_through():
    """An exception in the model reaches the caller as it is, and the next run is right."""
    count = 0

    def f(x):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyError("a model's own")
        return np.sum(timeloop(lambda v, _: v * 0.9, x - 1.0, 3) ** 2) + np.sum(x**4)

    with pytest.raises(KeyError, match="a model's own"):
        minimize(f, np.zeros(3))
    assert minimize(f, np.zeros(3)).converged


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"method": "Nelder-Mead"}, ValueError, "Nelder-Mead.*L-BFGS-B"),
        ({"method": "BFGS", "bounds": (0.0, 1.0)}, ValueError, "BFGS takes no bounds; L-BFGS-B"),
        ({"bounds": 1.0}, ValueError, r"\(least, most\)"),
        ({"bounds": (np.zeros(4), None)}, ValueError, r"least bounds have the shape \(4,\).*\(3,\)"),
        ({"bounds": ([0.0], None)}, ValueError, "least bounds have the structure"),
        ({"functional": PAIR, "m0": [1.0, 2.0], "bounds": (None, [1.0])}, ValueError, "most bounds are 1.*2 controls"),
        ({"bounds": (np.array([0.0, 2.0, 0.0]), 1.0)}, ValueError, "unknown 1.*at least 2.0, at most 1.0"),
        ({"bounds": (np.nan, 1.0)}, ValueError, "unknown 0 leave no number.*at least nan, at most 1.0"),
        ({"bounds": (None, np.array([1.0, 1.0, np.nan]))}, ValueError, "unknown 2 .*at least -inf, at most nan"),
        ({"bounds": (np.inf, None)}, ValueError, "unknown 0 .*at least inf"),
        ({"bounds": (None, -np.inf)}, ValueError, "unknown 0 .*at most -inf"),
        ({"bounds": ("a", None)}, ValueError, "least bounds are 'a', of dtype .*real numbers"),
        ({"bounds": (None, 1j)}, ValueError, "most bounds are 1j, of dtype complex128"),
        ({"bounds": (None, np.array(["a"] * 3))}, ValueError, "most bounds are array.*real numbers"),
        ({"method": ["BFGS"]}, ValueError, r"method=\['BFGS'\]: give one"),
        ({"tol": "a"}, ValueError, "tol='a': give a number"),
        ({"tol": np.nan}, ValueError, "tol=nan: give a number"),
        ({"tol": np.inf}, ValueError, "tol=inf: give a number"),
        ({"tol": True}, ValueError, "tol=True: give a number"),
        ({"tol": -1}, ValueError, "tol=-1: give a number"),
        ({"options": 3}, TypeError, "options=3: give a dict"),
        ({"callback": 3}, TypeError, r"callback= takes a function callback\(m, value\), and was given .* int, 3,"),
        ({"callback": lambda m: None}, TypeError, r"callback= at .*called as callback\(m, value\) \(too many"),
        ({"m0": np.zeros(3, int)}, TypeError, "int64"),
        ({"m0": None}, ValueError, "where to start"),
        ({"m0": np.zeros(0)}, ValueError, "m0 has no unknowns, so that there is nothing to minimize"),
        ({"m0": {"a": np.zeros((0, 3))}, "method": "trust-constr"}, ValueError, "m0 has no unknowns"),
        ({"functional": 3.0}, TypeError, "float"),
        ({"functional": lambda x: np.sum(x) * np.nan}, ValueError, "nan at m0"),
        ({"m0": np.zeros(3, complex), "functional": lambda z: np.sum(np.abs(z) ** 2), "bounds": (0.0, 1.0)},
         ValueError, "Complex controls take no bounds"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments, error, text):
    """What cannot be minimized is told before the work, with what would do."""
    with pytest.raises(error, match=text):
        minimize(**{"functional": rosenbrock, "m0": np.zeros(3), **arguments})
