"""Equations that move parts of arrays, computed box by box: the bits, the errors and the memory of NumPy's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.campaign.dags import make_dag
from tests.measure import peak_bytes
from tests.program.test_chains import both, chained
from tests.program.test_tracing import bits
from tests.scale import FULL, bar

from ebbtide import grad, jit, timeloop, trace, value_and_grad
from ebbtide.demo.burgers import Problem, guess, step
from ebbtide.program import boxing, windows
from ebbtide.program.boxes import boxes_of
from ebbtide.program.evaluate import evaluate
from ebbtide.schedules import Revolve, StoreAll

SHAPE = (130, 150)
NAMES = [name for name in windows.MOVES if name not in ("scatter", "add_scatter")]


def names_of(program):
    """Return the names of the equations."""
    return [equation.name for equation in program.equations]


def written(x):
    """Return what is left where a part of an array is written."""
    y = x * 2.0
    y[1:-1, 2:] = x[2:, :-2] * x[:-2, 2:]
    return y + x


FUNCTIONS = {
    "roll": lambda x: np.roll(x, (1, -2), (0, 1)) * x - np.roll(x, 3, 1),
    "roll around": lambda x: np.roll(x, 1000, 0) + x,
    "turned": lambda x: np.roll(x, 1, 0)[::-1, ::-1] * x,
    "steps": lambda x: np.roll(x, 1, 0)[::2] * x[1::2] + x[::-2],
    "pad": lambda x: np.pad(x[1:-1, 1:-1] * 2.0, 1) + x,
    "setitem": written,
    "concatenate": lambda x: np.concatenate([x[:, 7:], x[:, :7] * 2.0], axis=1) - x,
    "where": lambda x: np.where(x[::-1] > 0, np.roll(x, 1, 0), 0.5) * x,
    "astype": lambda x: np.roll(x, 1, 1).astype(np.float32) * np.float32(3) + x,
    "sum": lambda x: np.sum(np.stack([x, np.roll(x, 1, 0)]) * 3.0, axis=0) + x,
    "transposed": lambda x: np.roll(x.T, 1, 0).T * x,
    "row": lambda x: np.roll(x, 1, 0) + np.roll(x, 1, 1) * x[:1],
    "thin": lambda x: np.sum(np.roll(x, 1, 0)[None] * x, axis=0, keepdims=True)[0] - x,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_moved_parts_are_read_in_place(name, dtype, monkeypatch):
    """What moves elements is one equation with what is around it, in no memory but its result's, with NumPy's bits."""
    monkeypatch.setattr(boxing, "_LARGE", 1 << 12)
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)
    planned, plain = both(FUNCTIONS[name], x)
    assert names_of(planned.program) == ["boxes"]
    assert planned.arena_nbytes < 512
    expected = bits([FUNCTIONS[name](x)])
    assert bits(planned.run([x])) == bits(plain.run([x])) == expected == bits(evaluate(planned.program, [x]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name, monkeypatch):
    """The gradient of what is read in place has the bits of the other executor."""
    monkeypatch.setattr(boxing, "_LARGE", 1 << 12)
    x = np.random.default_rng(1).standard_normal(SHAPE)
    slope = grad(lambda x: np.sum(np.sin(FUNCTIONS[name](x))))
    assert bits([jit(slope, executor="machine")(x)]) == bits([jit(slope, executor="reference")(x)])


def test_random_functions(monkeypatch):
    """Random functions with views and writes, of arrays of any size, and their gradients: equal bits, run after run."""
    monkeypatch.setattr(boxing, "_LARGE", 0)
    count, wrong = 0, []
    with np.errstate(all="ignore"):
        for seed in bar(range(2000 if FULL else 12), "boxes"):
            f, arguments = make_dag(seed)
            program = trace(lambda *xs, f=f: value_and_grad(f, (0, 1, 2), has_aux=True)(*xs), *arguments)
            planned = chained(program, arguments, poisoned=True)
            expected = bits(evaluate(program, arguments))
            if any(bits(planned.run(list(arguments))) != expected for _ in range(2)):
                wrong.append(seed)
            count += names_of(planned.program).count("boxes")
    assert wrong == []
    assert count > 12


def test_boxes_cover_the_result_once():
    """The boxes of a result have each of its elements, and no two of them the same one."""
    x = np.zeros((300, 200))
    planned, _ = both(lambda x: np.pad(np.roll(x, (2, 3), (0, 1))[1:, 4:] * x[1:, 4:], ((1, 0), (0, 4))) + x, x)
    (equation,) = planned.program.equations
    hits = np.zeros(equation.output.type.shape, int)
    for box in boxes_of(equation.function):
        hits[tuple([slice(a, a + n) for a, n in zip(box.begin, box.shape, strict=True)])] += 1
    assert np.all(hits == 1)


def test_functions_are_not_computed_twice():
    """What takes a function of an element is computed once, however many places read it."""
    x = np.random.default_rng(1).standard_normal((200, 200))
    planned, plain = both(lambda x: np.roll(np.tanh(x), 1, 0) + np.roll(np.tanh(x), 1, 1) * np.roll(x, 2, 0), x)
    assert sum(step.count("np.tanh") for step in planned.source.splitlines()) == 1
    assert bits(planned.run([x])) == bits(plain.run([x]))


def test_small_arrays_are_left():
    """Arrays that stay in the cache of a processor are moved, and no boxes are made of them."""
    planned, _ = both(FUNCTIONS["roll"], np.ones((10, 10)))
    assert "boxes" not in names_of(planned.program)


def test_small_parts_are_written_into_constants():
    """An array that depends on no argument takes parts of some, whatever its size."""
    x = np.arange(5.0)
    found = jit(lambda x: np.pad(x, (1, 2), constant_values=3.0), executor="machine")(x)
    assert bits([found]) == bits([np.pad(x, (1, 2), constant_values=3.0)])


def test_a_donated_state_is_advanced_in_its_place():
    """A step that is written into its donated state allocates nothing there, however large it is."""
    problem = Problem(201, 1)
    state, advance = guess(problem), jit(lambda u: step(u, 0.01, 0.005, 0.0005), donate_argnums=0, executor="machine")
    advance(state)
    assert peak_bytes(lambda: advance(state)) < 20_000


def test_the_gradient_of_the_demo():
    """The gradient of the demo's steps is one number: by boxes or by NumPy, with all states kept or few."""
    problem = Problem(131, 12)
    start = guess(problem)

    def gradient(executor, schedule):
        advance = jit(lambda u, nu: step(u, nu, 0.005, 0.0005), donate_argnums=0, executor=executor)

        def loss(u, nu):
            last = timeloop(lambda u, _: advance(u, nu), u, problem.steps, schedule=schedule, progress=False)
            return np.sum(last * last)

        return grad(loss, (0, 1))(start, 0.01)

    expected = bits(gradient("reference", StoreAll()))
    for schedule in (StoreAll(), Revolve(3)):
        assert bits(gradient("machine", schedule)) == expected


def test_errors_are_those_of_elements_that_are_needed():
    """A failure is reported with its operation; what lies between the rows of a part fails without a word."""

    def inside(x):
        return np.roll(x, 1, 0)[1:-1, 1:-1] * 2.0 + x[1:-1, 1:-1]

    x = np.ones((200, 200))
    x[:, 0], x[:, -1] = np.finfo(float).max, np.finfo(float).max
    planned, plain = both(inside, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names_of(planned.program) == ["boxes"]
        assert bits(planned.run([x])) == bits(plain.run([x]))
    x[50, 50] = np.finfo(float).max
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow encountered in multiply"):
        jit(inside, executor="machine")(x)
