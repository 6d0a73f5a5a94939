"""Stretches: programs whose equations the machine runs together, with the bits, the bytes and the errors of NumPy's."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from tests.campaign.dags import make_dag
from tests.measure import peak_bytes
from tests.program.test_chains import both, chained
from tests.program.test_tracing import bits, functions_of, traced
from tests.rules.examples import label, typed_cases
from tests.scale import FULL, bar, sample

from ebbtide import jit, trace, value_and_grad
from ebbtide.machine import HAS_SMALL_PRODUCTS
from ebbtide.program.actions import Operands
from ebbtide.program.evaluate import evaluate
from ebbtide.program.layout import find_layout
from ebbtide.program.memory import plan_memory
from ebbtide.program.orders import order_of
from ebbtide.program.steps import actions_of
from ebbtide.program.stretches import find_stretches, lowered_outputs


@pytest.mark.parametrize("case", sample(typed_cases(np.float64, np.float32, np.complex64), 12), ids=label)
def test_every_rule(case):
    """Each function and its pullback have in long stretches the bits of the equations run one by one."""
    key, example, dtype = case
    operands = example.operands(dtype)
    for f in functions_of(key, example):
        program = traced(f, operands)
        if program is None or any(isinstance(output, np.dtype) for output in program.outputs):
            return
        planned = chained(program, operands)
        assert bits(planned.run(list(operands))) == bits(evaluate(planned.program, operands))


def test_random_functions():
    """Random functions with views, and their gradients, in long stretches: equal bits, run after run."""
    steps = 0
    with np.errstate(all="ignore"):
        for seed in bar(range(2000 if FULL else 40), "stretches"):
            f, arguments = make_dag(seed)
            program = trace(lambda *xs, f=f: value_and_grad(f, (0, 1, 2), has_aux=True)(*xs), *arguments)
            planned = chained(program, arguments)
            expected = bits(evaluate(planned.program, arguments))
            for _ in range(2):
                assert bits(planned.run(list(arguments))) == expected, seed
            steps += planned.source.count("),  # ")
    assert steps > 400


def test_single_complex_numbers():
    """Products of arrays of one complex number have NumPy's bits, which depend on where such a number lies."""
    draw = np.random.default_rng(7)

    def f(x, y):
        return np.sum(np.sin(x) * np.sin(y), axis=-1) * x[:, 0]

    for count in (*[1] * 20, 2, 3):
        x, y = ((draw.standard_normal((count, 2)) @ [1, 1j]).astype(np.complex64)[:, None] for _ in "xy")
        assert bits(chained(trace(f, x, y), [x, y]).run([x, y])) == bits([f(x, y)])


def net(p, x, labels):
    """The loss of a small net."""
    w1, b1, w2, b2 = p
    z = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    z = z - np.max(z, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - z[np.arange(len(labels)), labels])


def train(p, data, labels, i):
    """One step of training on some rows of the data."""
    loss, g = value_and_grad(lambda p: net(p, data[i], labels[i]))(p)
    return loss, [a - 0.1 * b for a, b in zip(p, g, strict=True)]


def arrays(dtype):
    """What `train` is called with."""
    random = np.random.default_rng(1)
    p = [random.standard_normal(shape).astype(dtype) for shape in ((20, 16), (16,), (16, 10), (10,))]
    return p, random.standard_normal((50, 20)).astype(dtype), random.integers(0, 10, 50), random.integers(-50, 50, 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_of_training_is_one_run(dtype):
    """Gathers, products, sums, choices and the update of a net: one run of the machine, with the reference's bits."""
    p, data, labels, i = arrays(dtype)
    machine, reference = jit(train, executor="machine"), jit(train)
    for _ in range(3):
        (loss, p), expected = machine(p, data, labels, i), reference(p, data, labels, i)
        assert bits([loss, *p]) == bits([expected[0], *expected[1]])
        assert type(loss) is dtype
    source = machine.program(p, data, labels, i).source
    assert source.count("= Machine(") == 1
    assert "np.matmul(" not in source
    i[3] = 50
    with pytest.raises(IndexError, match="index 50 is out of bounds for an axis with size 50"):
        machine(p, data, labels, i)


def test_a_source_with_a_machine_runs_as_a_file(tmp_path):
    """The source says each step with the user's line, and runs by itself."""
    p, data, labels, i = arrays(np.float32)
    planned = jit(train, executor="machine").program(p, data, labels, i)
    assert f"# {'small_product' if HAS_SMALL_PRODUCTS else 'matmul'}  test_stretches.py:" in planned.source
    planned.save(tmp_path / "step.py")
    made = runpy.run_path(str(tmp_path / "step.py"))
    expected = jit(train)(p, data, labels, i)
    assert bits(made["call"](*p, data, labels, i)) == bits([expected[0], *expected[1]])


def test_what_a_stretch_holds_is_within_the_plan():
    """A stretch allocates at its beginning and frees at its end, and stays below the peak that the plan predicts."""

    def f(x):
        parts = []
        for k in range(4):
            y = np.cumsum(x * (k + 1.0))
            parts.append(np.sum(np.sin(y) + np.cos(y[::-1])))
            x = np.roll(x, k + 1) * 0.5
        return parts, x

    x = np.linspace(0, 1, 50_000)
    planned, plain = both(f, x)
    assert bits(planned.run([x])) == bits(plain.run([x]))
    again, _ = both(f, x)
    predicted = again.predict().peak_bytes
    assert peak_bytes(lambda: again.run([x])) <= predicted + 20_000
    layout = find_layout(again.program, [x.strides])
    memory = plan_memory(again.program, layout, lowered=lowered_outputs(again.program, layout))
    stretches = find_stretches(again.program, layout, memory)
    assert stretches
    assert all(stretch.held <= memory.peak for stretch in stretches)


def test_numbers_and_operands_that_are_not_aligned():
    """Numbers of Python among the arguments, scalars of NumPy, and arrays at odd addresses."""

    def f(x, a, b):
        y = np.sum(x * a) * b
        return y + 1.0, x * y

    odd = np.frombuffer(bytearray(81), np.uint8)[1:].view(float)
    odd[...] = np.linspace(0, 1, 10)
    machine, reference = jit(f, executor="machine"), jit(f)
    for a, b in ((2.0, np.float64(3.0)), (0.5, np.float64(-1.0))):
        found, expected = machine(odd, a, b), reference(odd, a, b)
        assert bits(found) == bits(expected)
        assert [type(x) for x in found] == [type(x) for x in expected]


def test_a_state_is_advanced_in_its_place():
    """A step in a donated state, also at an odd address, writes there."""

    def step(u):
        u[1:-1] += 0.1 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        return u

    advance = jit(step, donate_argnums=0, executor="machine")
    for state in (np.linspace(0, 1, 100) ** 2, np.frombuffer(bytearray(801), np.uint8)[1:].view(float)):
        state[:50] = 1.5
        expected = step(state.copy())
        after = advance(state)
        assert after.ctypes.data == state.ctypes.data
        assert after.tobytes() == expected.tobytes()


def test_what_the_machine_does_not_know_is_numpys():
    """Equations without steps have none; those with operands that are not aligned neither."""
    x = np.ones(4)
    program = trace(lambda x: (np.cumsum(x), x * 2.0, np.sum(x.astype(np.float16))), x)
    layout = find_layout(program, [x.strides])
    known = [actions_of(equation, Operands(layout, program.equations)) is not None for equation in program.equations]
    assert known == [equation.name == "multiply" for equation in program.equations]
    odd = find_layout(program, [(12,)])
    assert lowered_outputs(program, odd) == frozenset()
    assert order_of((4, 6), (200, 8), (0, 0)) is None  # NumPy collects these before it adds them


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_dot_of_matrices(dtype, turned):
    """Matrices that BLAS reads as they lie are multiplied by the machine with the bits of np.dot, others by np.dot."""
    random = np.random.default_rng(1)
    # Too large for products of our own.
    x, y = random.standard_normal((130, 92)).astype(dtype), random.standard_normal((92, 50)).astype(dtype)
    f = (lambda x, y: np.dot(y.T * 2, x.T) + 1) if turned else (lambda x, y: np.dot(x + 1, y) * 2)
    planned, plain = both(f, x, y)
    assert "np.dot" not in planned.source
    assert bits(planned.run([x, y])) == bits(plain.run([x, y])) == bits([f(x, y)])
    for given in ((x[::-1], y), (x[:, :1], y[:1]), (x[:1], y)):
        planned, plain = both(lambda x, y: np.dot(x, y) * 2, *given)
        is_ours = HAS_SMALL_PRODUCTS and dtype is not np.complex128 and given[0].shape == (130, 1)
        assert ("small_product" if is_ours else "np.dot") in planned.source
        assert bits(planned.run(list(given))) == bits(plain.run(list(given)))
