"""Each program of examples/, at a small size: its minimum is that of finite differences or of a closed form."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.optimize import minimize
from tests.examples.minima import by_differences

from ebbtide import Budget

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example():
    """Return a function that imports an example by its name."""

    def imported(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return imported


def test_logistic_regression(example):
    """Newton's method ends where the gradient in closed form is zero."""
    program = example("logistic_regression")
    data = program.load()
    found = program.fit(data, 0.01)
    rows = np.column_stack([data.features, np.ones(len(data.signs))]) * data.signs[:, None]

    def value_and_gradient(w):
        margins = rows @ w
        share = -1.0 / (1.0 + np.exp(margins)) / len(rows)
        plain = np.append(w[:-1], 0.0)
        return np.mean(np.logaddexp(0.0, -margins)) + 0.005 * plain @ plain, rows.T @ share + 0.01 * plain

    closed = minimize(value_and_gradient, np.zeros(31), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(np.append(found.m["weights"], found.m["bias"]), closed.x, atol=1e-6)
    assert found.converged


@pytest.mark.parametrize(("states", "published"), [(2, 341.8787), (3, 328.5275)])
def test_hidden_markov_model(example, states, published):
    """The largest likelihood is the published one, and that of Baum and Welch."""
    program = example("hidden_markov_model")
    found = program.fit(states)
    assert found.value == pytest.approx(published, abs=1e-4)
    assert found.value == pytest.approx(program.baum_welch(states, 300), abs=1e-3)


def test_ode_fit(example):
    """Rates and initial numbers are those that finite differences find."""
    program = example("ode_fit")
    found = program.fit(8, 4)
    expected = by_differences(lambda p: program.misfit(p, 8, 4), program.START, method="BFGS")
    assert found.value == pytest.approx(expected.fun, rel=1e-6)
    np.testing.assert_allclose(found.m, expected.x, atol=1e-3)


def test_bayesian_neural_net(example):
    """The bound is as large as with finite differences, and doubt is greater where nothing was seen."""
    program = example("bayesian_neural_net")
    problem = program.make_problem(points=10, hidden=1, draws=2)
    found = program.fit(problem, 300)
    expected = by_differences(
        lambda p: program.bound(p, problem), program.start(problem), method="L-BFGS-B",
        options={"maxiter": 300, "maxfun": 10**5},
    )  # fmt: skip
    assert found.value == pytest.approx(expected.fun, rel=1e-3)
    seen, unseen = (program.predict(found.m, problem, x)[1].mean() for x in (problem.x, np.array([-3.0, 3.0])))
    assert seen < unseen


def test_convolutional_net(example):
    """A small network ends where finite differences end; the single-precision one tells most digits right."""
    program = example("convolutional_net")
    seen = program.load(np.float64)[0]
    few = program.Digits(seen.images[:12], seen.targets[:12])
    weights = program.start(1, np.float64)
    expected = by_differences(lambda w: program.loss(w, few), weights, options={"maxiter": 30}, method="L-BFGS-B")
    assert program.train(few, weights, 30).value == pytest.approx(expected.fun, rel=1e-2)
    learned, others = program.load()
    found = program.train(learned, program.start(4), 30)
    assert program.accuracy(found.m, others) > 0.85
    assert found.m["filters"].dtype == np.float32


def test_lstm(example):
    """A small network ends where finite differences end; a budget changes no bit."""
    program = example("lstm")
    text = program.load(8, 16)
    weights = program.start(len(text.letters), 2, np.float64)
    found = program.train(text, weights, 5)
    expected = by_differences(lambda w: program.loss(w, text), weights, options={"maxiter": 5}, method="L-BFGS-B")
    assert found.value == pytest.approx(expected.fun, rel=1e-3)
    within = program.train(text, weights, 5, Budget(memory="128KiB"))
    assert within.value == found.value
    assert program.recite(found.m, text, 10)[:8] == "".join(text.letters[k] for k in text.pieces[:8, 0])


def test_fluid_simulation(example):
    """The velocity is as good as the one that finite differences find."""
    program = example("fluid_simulation")
    found = program.stir(4, 2, 20, Budget(memory="1MiB"))
    smoke, target = program.disc_and_star(4)
    expected = by_differences(
        lambda u: program.misfit(u, smoke, target, 2), np.zeros((2, 4, 4)), method="L-BFGS-B",
        options={"maxiter": 20, "maxfun": 10**5},
    )  # fmt: skip
    assert found.value == pytest.approx(expected.fun, rel=1e-4)
    assert found.value < 0.5 * found.values[0]


def test_gaussian_process(example):
    """Lengths, size and noise are those that the gradient in closed form finds."""
    program = example("gaussian_process")
    patients = program.load(0, 40)
    found = program.fit(patients)
    names = ("lengths", "size", "noise")
    shapes = [np.shape(found.m[name]) for name in names]

    def value_and_gradient(vector):
        point = dict(zip(names, (vector[:10], vector[10], vector[11]), strict=True))
        smooth = program.covariance(point, patients.features, patients.features)
        inverse = np.linalg.inv(program.noisy(point, patients))
        alpha = inverse @ patients.progress
        change = 0.5 * (inverse - np.outer(alpha, alpha))
        square = (patients.features[:, None] - patients.features) ** 2 / np.exp(2.0 * point["lengths"])
        lengths = np.einsum("ij,ij,ijk->k", change, smooth, square)
        noise = 2.0 * np.exp(2.0 * point["noise"]) * np.trace(change)
        value = program.negative_log_likelihood(point, patients)
        return value, np.concatenate([lengths, [2.0 * np.sum(change * smooth), noise]])

    assert shapes == [(10,), (), ()]
    begin = program.start(10)
    closed = minimize(
        value_and_gradient, np.concatenate([np.ravel(begin[name]) for name in names]), jac=True, method="L-BFGS-B",
        bounds=[(-2, 4)] * 10 + [(-3, 3)] * 2, options={"maxiter": 100},
    )  # fmt: skip
    assert found.value == pytest.approx(closed.fun, rel=1e-5)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_is_a_program(name, example, monkeypatch, capsys):
    """Each example says what it does and which options it has."""
    program = example(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == 0
    assert "usage:" in capsys.readouterr().out
    assert f"python examples/{name}.py" in program.__doc__
