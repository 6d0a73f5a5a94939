"""Recurrent nets in the machine: which of their equations are its steps, and which are calls of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from bench.recurrent import STEPS, given, loss
from tests.measure import peak_bytes
from tests.program.test_tracing import bits

from ebbtide import grad, jit
from ebbtide.program.stretches import find_stretches


def slope_of(name, dtype, length):
    """Return the gradient of a net of the bench, jitted for the machine, and what it is called with."""
    return jit(grad(lambda params, text: loss(np, name, params, text)), executor="machine"), given(name, length, dtype)


def by_numpy(planned):
    """Return the names of the equations that are no views, and that no run of the machine computes."""
    program, layout = planned.program, planned.layout
    done = {place for one in find_stretches(program, layout, planned.memory) for place in one.places}
    left = [equation for place, equation in enumerate(program.equations) if place not in done]
    return [equation.name for equation in left if equation.output not in layout.bases]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", STEPS)
def test_a_gradient_is_one_run(name, dtype):
    """Of the gradient of a recurrent net NumPy computes nothing: it is one run of the machine."""
    slope, arguments = slope_of(name, dtype, 6)
    planned = slope.program(*arguments)
    assert by_numpy(planned) == []
    assert planned.source.count("= Machine(") == 1
    kinds = {line.partition("(")[0].strip() for line in planned.source.splitlines() if "),  # " in line}
    kinds = {kind.replace("SmallProduct", "Product") for kind in kinds}  # by size, and where the processor has them
    assert kinds == {"Elementwise", "Indexed", "Product", "ProductSum", "Reduction"}
    found, expected = slope(*arguments), grad(lambda params, text: loss(np, name, params, text))(*arguments)
    for key, one in expected.items():
        np.testing.assert_allclose(found[key], one, rtol=1e-3 if dtype == "float32" else 1e-9, atol=1e-6)


def test_what_numpy_computes_is_found():
    """What the machine does not know is told apart from its steps, and so is an operation that is alone between."""
    planned = jit(lambda x: np.cumsum(np.sin(x)) * np.cos(x), executor="machine").program(np.ones(2000))
    assert by_numpy(planned) == ["sin", "cumsum"]


def test_a_gradient_takes_its_results_and_one_block():
    """What NumPy would take for a moment is no reason to give the block up: a run allocates its results alone."""
    slope, arguments = slope_of("RNN", "float64", 30)
    results = sum(one.nbytes for one in slope(*arguments).values())
    slope(*arguments)
    assert slope.program(*arguments).arena_nbytes > 2_000_000
    assert peak_bytes(lambda: slope(*arguments)) <= results + 32_768


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int64])
def test_parts_at_arrays_of_an_index(dtype):
    """Elements and rows at arrays of places, negative and twice among them, and their pullbacks have NumPy's bits."""
    x = np.linspace(-2, 2, 35).reshape(7, 5).astype(dtype)
    once, twice, grid = np.array([3, -1, 0]), np.array([2, 2, -5, 6]), np.array([[1, 4], [-1, 0]])

    def f(x):
        return x[once] * 2, x[twice] + 1, x[grid] * x[grid, grid][..., None], x[once, once] * 3

    planned = jit(f, executor="machine").program(x)
    assert "getitem" not in by_numpy(planned)
    assert bits(planned.run([x])) == bits(f(x))
    if dtype is np.int64:
        return

    def loss_of(x):
        return sum(np.sum(np.real(one * one)) for one in f(x)) - np.sum(np.real(-x[once]))

    slope = jit(grad(loss_of), executor="machine")
    assert bits([slope(x)]) == bits([jit(grad(loss_of))(x)])
    assert "scatter" not in by_numpy(slope.program(x))


def test_zeros_with_a_sign_are_put_as_they_are():
    """The pullback of places that are there once puts what it is given, and adds nothing to it."""
    places, g = np.array([2, 0]), np.array([-0.0, 1.0])
    slope = jit(lambda x, g: grad(lambda x: np.sum(x[places] * g))(x), executor="machine")
    found = slope(np.ones(3), g)
    assert bits([found]) == bits([np.array([1.0, 0.0, -0.0])])
