"""Programs whose long chains are nests of loops, run by Python or compiled by Numba: the bits of the machine."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.campaign.dags import make_dag
from tests.machine.nests import Interpreted
from tests.program.test_boxes import FUNCTIONS
from tests.program.test_chains import chained
from tests.program.test_tracing import bits
from tests.scale import FULL, bar

from ebbtide import grad, jit, machine, timeloop, trace, value_and_grad
from ebbtide.demo.burgers import Problem, guess, step
from ebbtide.program import boxing, nests
from ebbtide.program.blocks import Block, Blocks
from ebbtide.program.evaluate import evaluate
from ebbtide.program.reference import Executable
from ebbtide.schedules import Revolve, StoreAll


@pytest.fixture
def interpreted(monkeypatch):
    """Have all nests, however small, run by Python."""
    made = Interpreted()
    monkeypatch.setattr(machine, "compiled", made)
    monkeypatch.setattr(nests, "_FEWEST", 1)
    monkeypatch.setattr(nests, "_LEAST", 1)
    return made


def nested(program, inputs):
    """A program that is run with nests, in a block full of nan."""
    blocks = Blocks(chained=True, compiled=True)
    planned = Executable(program, [np.asarray(x).strides for x in inputs], blocks)
    block = Block()
    block.memory = np.full(planned.arena_nbytes, 0xFF, np.uint8)
    blocks.give(block)
    return planned


def test_random_functions(interpreted):
    """Random functions with views, and their gradients: equal bits, run after run."""
    with np.errstate(all="ignore"):
        for seed in bar(range(600 if FULL else 40), "nests"):
            f, arguments = make_dag(seed)
            program = trace(lambda *xs, f=f: value_and_grad(f, (0, 1, 2), has_aux=True)(*xs), *arguments)
            planned = nested(program, arguments)
            expected = bits(evaluate(planned.program, arguments))
            for _ in range(2):
                assert bits(planned.run(list(arguments))) == expected, seed
    assert interpreted.made > 100


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_parts_of_arrays(dtype, interpreted, monkeypatch):
    """What is computed box by box has the same bits in nests."""
    monkeypatch.setattr(boxing, "_LARGE", 1 << 8)
    x = np.random.default_rng(1).standard_normal((14, 22)).astype(dtype)
    for f in FUNCTIONS.values():
        program = trace(lambda x, f=f: value_and_grad(lambda x: np.sum(f(x)))(x), x)
        assert bits(nested(program, [x]).run([x])) == bits(chained(program, [x]).run([x]))
    assert interpreted.made > 20


def loss_of(problem, schedule, executor):
    """Half the sum of squares after some steps of the demo."""

    def plain(state, viscosity):
        return step(state, viscosity, problem.spacing, problem.time_step)

    advance = jit(plain, donate_argnums=0, executor=executor)

    def loss(state, viscosity):
        last = timeloop(lambda u, _: advance(u, viscosity), state, problem.steps, schedule=schedule, progress=False)
        return 0.5 * np.sum(last * last)

    return loss


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(2)], ids=["all", "snapshots"])
def test_the_demo(schedule):
    """The gradient of the demo's steps, compiled, has the bits of the machine."""
    pytest.importorskip("numba", reason="Numba is not installed")
    problem = Problem(101, 5)
    state = guess(problem) + 0.01 * np.random.default_rng(0).standard_normal(problem.shape)
    by_machine, by_numba = (
        grad(loss_of(problem, schedule, executor), (0, 1))(state, problem.viscosity)
        for executor in ("machine", "numba")
    )
    assert bits(by_machine) == bits(by_numba)


def simple(x, y):
    """Operations of which the last one overflows for large numbers."""
    return (0.5 * x + y) * (x - y)


def test_source():
    """A compiled step is in the source of the program, which is a file of its own; what is small is left as it is."""
    pytest.importorskip("numba", reason="Numba is not installed")
    f = jit(simple, executor="numba")
    large, small = np.full((200, 200), 2.0), np.ones((3, 3))
    assert "compiled(" in f.program(large, large).source
    assert "from ebbtide.machine import Machine, compiled" in f.program(large, large).source
    assert "compiled(" not in f.program(small, small).source
    assert np.array_equal(f(large, large / 2), simple(large, large / 2))


def test_errors_are_those_of_the_machine():
    """What overflows is said as the machine says it, and as `np.errstate` wants it."""
    pytest.importorskip("numba", reason="Numba is not installed")
    x, said = np.full((200, 200), 1e300), []
    for executor in ("machine", "numba"):
        f = jit(simple, executor=executor)
        with np.errstate(over="raise"), pytest.raises(FloatingPointError, match=r"^overflow") as error:
            f(x, x / 2)
        with pytest.warns(RuntimeWarning, match=r"^overflow") as warned:
            found = f(x, x / 2)
        said.append([str(error.value), *[str(one.message) for one in warned]])
        with np.errstate(all="ignore"):
            assert np.array_equal(f(x, x / 2), found)
    assert said[0] == said[1]


def test_without_numba(monkeypatch):
    """Without Numba the error names what to install."""
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match=r"pip install ebbtide\[numba\]"):
        jit(simple, executor="numba")
    with pytest.raises(ValueError, match=r"'reference', 'machine', 'numba'"):
        jit(simple, executor="jax")
