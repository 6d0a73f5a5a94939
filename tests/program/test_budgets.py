"""Programs under budgets: measured peaks, equal bits, refusals, and what is computed again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import optree
import pytest
from scipy.special import erf
from tests.measure import find_least, peak_bytes
from tests.scale import FULL, sample

from ebbtide import Budget, BudgetError, grad, jit, trace, value_and_grad
from ebbtide.program.ladder import ladder, objects_of, plain_rung
from ebbtide.program.lifetimes import last_uses
from ebbtide.program.reference import Executable
from ebbtide.program.split import fused

# By how many bytes what is measured may be less for a larger budget.
_OBJECTS = 1 << 13


def gelu(x):
    """The exact one, of five operations."""
    return 0.5 * x * (1 + erf(x / 1.4142135623730951))


def network(layers, width, batch, activation=gelu):
    """The loss of a deep net, and its arguments in single precision."""
    def loss(weights, biases, x):
        for w, b in zip(weights, biases, strict=True):
            x = activation(x @ w + b)
        return np.mean(np.square(x))

    random = np.random.default_rng(0)
    weights = [(random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32) for _ in range(layers)]
    biases = [random.standard_normal(width).astype(np.float32) for _ in range(layers)]
    return loss, (weights, biases, random.standard_normal((batch, width)).astype(np.float32))


def bits(values):
    """The bytes of arrays in containers."""
    return [np.asarray(value).tobytes() for value in optree.tree_leaves(values)]


def strides_of(leaves):
    """The strides of inputs."""
    return [np.asarray(leaf).strides for leaf in leaves]


def least_of(program, leaves, rungs=()):
    """The least budget of a program, from its refusal."""
    with pytest.raises(BudgetError) as caught:
        Executable(program, strides_of(leaves), limit=0, rungs=rungs)
    assert f"Budget(memory={caught.value.least})" in str(caught.value)
    return caught.value.least


def sweep(program, leaves, count):
    """Run a program under budgets from the least to more than enough; all that a budget promises."""
    plain = Executable(program, strides_of(leaves))
    rungs = ladder(fused(program), strides_of(leaves))
    expected = bits(plain.run(list(leaves)))
    least = least_of(program, leaves, rungs)
    with pytest.raises(BudgetError):
        Executable(program, strides_of(leaves), limit=least - 1, rungs=rungs)
    most = max(2 * least, 2 * rungs[-1].peak)
    before, peak = None, 0
    for k in range(count):
        limit = round(least * (most / least) ** (k / (count - 1)))
        planned = Executable(program, strides_of(leaves), limit=limit, rungs=rungs)
        found = []
        measured = peak_bytes(lambda planned=planned, found=found: found.append(planned.run(list(leaves))))
        assert bits(found) == expected
        predicted = planned.predict()
        assert measured <= limit
        # What NumPy takes for a moment is known as an upper bound: buffers of two operands.
        assert predicted.peak_bytes <= measured + 2 * 8 * min(8192, max(np.size(leaf) for leaf in leaves))
        assert measured - predicted.peak_bytes <= objects_of(planned.program)
        if before is not None:
            assert predicted.peak_bytes >= before.peak_bytes
            assert predicted.extra_work <= before.extra_work
            # Python's own objects are not the same in all of them.
            assert measured >= peak - _OBJECTS
        before, peak = predicted, measured
    assert before.again == before.products == before.extra_work == 0
    return least, plain


@pytest.mark.parametrize("activation", [gelu, np.tanh, lambda x: np.maximum(x, 0)], ids=["gelu", "tanh", "relu"])
def test_twenty_budgets(activation):
    """Of a deep net under 20 budgets: no more than the budget, equal bits, less work for more bytes."""
    loss, args = network(5, 48, 1024, activation)
    program = trace(value_and_grad(loss, (0, 1)), *args)
    least, plain = sweep(program, optree.tree_leaves(args), 20)
    assert least < 0.6 * plain.predict().peak_bytes


def make_graph(seed):
    """A function of arrays with fan-out, products, views, and values that live long."""
    random = np.random.default_rng(seed)
    choices = random.integers(0, 2**31, (22, 4)).tolist()

    def f(x, y):
        pool = [x, y]
        for kind, a, b, c in choices:
            one, other = pool[-1 - a % min(len(pool), 4)], pool[b % len(pool)]
            made = (np.sin(one), one * other, one[::-1] + other, np.maximum(one, other), np.tanh(one @ y.T) @ other,
                    one * 0.5, gelu(one))[kind % 7]
            if c % 6:
                pool.append(made)
            if c % 9 == 0:
                pool[-1] = pool[-1] - np.mean(pool[-1], axis=0)
        return sum(np.sum(z * w) for z, w in zip(pool[-3:], pool[:3], strict=True))

    return f


def test_a_large_net():
    """Of a gelu net of 12 layers under 20 budgets the same; in a campaign in its whole width, on all its rows."""
    loss, args = network(12, *((512, 8192) if FULL else (32, 512)))
    least, plain = sweep(trace(value_and_grad(loss, (0, 1)), *args), optree.tree_leaves(args), 20)
    assert least < 0.5 * plain.predict().peak_bytes


@pytest.mark.parametrize("seed", sample(range(50), 7))
def test_random_programs(seed):
    """Gradients of random functions keep what budgets promise: 20 of each in a campaign."""
    f = make_graph(seed)
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal((64, 64)) / 8 for _ in range(2)]
    sweep(trace(grad(f, (0, 1)), *inputs), inputs, 20 if FULL else 5)


def test_the_prediction_is_exact():
    """For arrays that are large beside Python's objects the predicted peak is the measured one to 1 %."""
    loss, args = network(5, 64, 4096)
    leaves = optree.tree_leaves(args)
    program = trace(value_and_grad(loss, (0, 1)), *args)
    rungs = ladder(fused(program), strides_of(leaves))
    for rung in rungs[:: len(rungs) // 4]:
        planned = Executable(program, strides_of(leaves), limit=rung.peak + objects_of(rung.program), rungs=rungs)
        assert planned.rung is rung
        measured = peak_bytes(lambda planned=planned: planned.run(list(leaves)))
        assert abs(measured - planned.predict().peak_bytes) <= 0.01 * measured


def test_what_is_computed_again_costs_little():
    """A gelu net takes its layers' inputs and two more without products, and ten in all with half of them again."""
    layers = 12
    loss, args = network(layers, 512, 8192)
    unit = args[2].nbytes
    program = fused(trace(value_and_grad(loss, (0, 1)), *args))
    rungs = ladder(program, strides_of(optree.tree_leaves(args)))
    # With the gradients of two layers' weights.
    least = (layers + 2) * unit + 2 * args[0][0].nbytes + 2**13
    assert min(rung.peak for rung in rungs if not rung.products) <= least
    plain = plain_rung(program, strides_of(optree.tree_leaves(args)))
    assert plain.peak <= least
    assert plain.products == 0
    assert plain.extra_work < 1 / 10
    assert min(rung.peak for rung in rungs if rung.products <= layers // 2) <= 10.3 * unit
    assert all(one.peak < other.peak and one.work > other.work for one, other in itertools.pairwise(rungs))


def test_without_a_budget_no_product_is_computed_twice():
    """Without a budget values are computed again only where it costs little beside the products: no products."""
    loss, args = network(6, 256, 2048)
    planned = jit(value_and_grad(loss, (0, 1))).program(*args)
    predicted = planned.predict()
    assert predicted.products == 0 < predicted.again
    assert predicted.extra_work <= 1 / 8
    assert predicted.peak_bytes <= 9.1 * args[2].nbytes
    assert f"{predicted.again} equations are computed again, 0 of them products" in str(predicted)
    # Of elementwise operations alone, nothing is next to nothing.
    x = np.ones(300_000)
    assert jit(grad(lambda x: np.sum(np.sin(np.exp(np.tanh(x)))))).program(x).predict().again == 0


def test_an_unknown_function_is_computed_once():
    """What an operation does whose function is not NumPy's or ours is not known: it runs once, however few bytes."""
    calls = []

    def drawing(x):
        calls.append(1)
        return np.exp(x)

    def f(x):
        for _ in range(6):
            x = np.sin(np.exp(np.tanh(x)))
        return np.sum(x)

    x = np.linspace(0, 1, 30_000)
    program = trace(grad(f), x)
    expected = Executable(program, strides_of([x])).run([x])
    unknown = [replace(eq, primitive=None, function=drawing, name="drawing") if eq.name == "exp" else eq
               for eq in program.equations]  # fmt: skip
    program = replace(program, equations=tuple(unknown))
    planned = Executable(program, strides_of([x]), limit=least_of(program, [x]))
    assert bits(planned.run([x])) == bits(expected)
    assert len(calls) == 6
    assert planned.predict().again > 0


def test_a_forward_part_stays_one():
    """What is computed again for the equations after the forward part is computed after it."""
    loss, args = network(6, 32, 512)
    program = fused(trace(value_and_grad(loss, (0, 1)), *args))
    (value,) = (number for number, equation in enumerate(program.equations) if equation.name == "mean")
    forward = value + 1
    rungs = ladder(program, strides_of(optree.tree_leaves(args)), forward)
    assert len(rungs) > 5
    whole = sum(rung.forward for rung in rungs) / len(rungs)
    assert whole <= forward + 6
    for rung in rungs:
        last = last_uses(rung.program)
        first = rung.program.equations[: rung.forward]
        assert sum(equation.name in ("matmul", "small_product") for equation in first) >= 6
        assert last[first[-1].output] >= rung.forward
        # Nothing of the reverse part has slipped in.
        assert not any("keepdims" in eq.params and eq.params["keepdims"] for eq in first)


def test_jit_takes_a_budget():
    """`jit` runs in a budget or refuses with the least; a disk or a number is refused."""
    loss, args = network(4, 32, 512)
    f = value_and_grad(loss, (0, 1))
    with pytest.raises(BudgetError) as caught:
        jit(f, budget=Budget(memory="1 KiB"))(*args)
    least = caught.value.least
    jitted = jit(f, budget=Budget(memory=least))
    assert bits(jitted(*args)) == bits(jit(f)(*args))
    assert peak_bytes(lambda: jitted(*args)) <= least
    with pytest.raises(ValueError, match="no use for a disk"):
        jit(f, budget=Budget(memory="1 MiB", disk="1 MiB"))
    with pytest.raises(TypeError, match=r"takes an ebbtide\.Budget"):
        jit(f, budget=1 << 20)


def test_small_programs_are_as_they_were():
    """Programs of small arrays are run as they were traced, which costs no thought."""
    x = np.ones(10)
    program = trace(lambda x: np.sin(np.exp(x)), x)
    assert plain_rung(program, [x.strides]).program is program


@pytest.mark.parametrize("times", [1.0, 1.2])
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("points", [100, 500])
def test_small_programs_are_within_their_budgets(points, calls, times):
    """What the interpreter takes around them counts: three of three operations passed 43 KB by 9."""
    program = jit(lambda u: u - 0.01 * u * u)

    def f(u):
        for _ in range(calls):
            u = program(u)
        return np.sum(u**2)

    u = np.linspace(0.1, 1.0, points)
    expected = grad(f)(u)
    alone = peak_bytes(lambda: f(u))
    budget = Budget(int(times * find_least(lambda memory: grad(f, budget=Budget(memory))(u))))
    call = grad(f, budget=budget)
    np.testing.assert_array_equal(call(u), expected)
    assert peak_bytes(lambda: call(u)) - alone <= budget.memory
