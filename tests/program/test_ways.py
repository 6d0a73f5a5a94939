"""Derivatives of jitted functions under budgets: what is saved, what is computed again, and what is measured."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes
from tests.program.test_budgets import bits, gelu, network
from tests.scale import FULL

from ebbtide import Budget, BudgetError, MutationError, grad, jit, timeloop, value_and_grad, vjp
from ebbtide.program.rule import ProgramRule

# Of a net of 4 layers, in units of one activation.
LAYERS, WIDTH, BATCH = 3, 64, 2048
COUNT = 20 if FULL else 8


@pytest.fixture
def works(monkeypatch):
    """What the ways back cost that runs took, in the order of the sweep."""
    found, way_back = [], ProgramRule._way_back

    def noted(rule, *given):
        way = way_back(rule, *given)
        found.append(way.work)
        return way

    monkeypatch.setattr(ProgramRule, "_way_back", noted)
    return found


def refused_at(f, args, nbytes=1 << 12):
    """The least budget of a gradient, from its refusal."""
    with pytest.raises(BudgetError) as caught:
        value_and_grad(f, (0, 1), budget=Budget(memory=nbytes))(*args)
    return caught.value.least


def budgets_of(f, args, most, works, forget=lambda: None):
    """Gradients under budgets from the least to more than enough: what was measured, and what it cost."""
    expected = bits(value_and_grad(f, (0, 1))(*args))
    alone = peak_bytes(lambda: f(*args))
    least = refused_at(f, args)
    peaks, costs = [], []
    for k in range(COUNT):
        budget = Budget(memory=round(least * (most / least) ** (k / (COUNT - 1))))
        call = value_and_grad(f, (0, 1), budget=budget)
        assert bits(call(*args)) == expected  # and its programs are planned now
        works.clear()
        forget()  # the block of the run before, which is a part of what a run takes
        peaks.append(peak_bytes(lambda call=call: call(*args)))
        costs.append(sum(works))
        assert peaks[-1] <= budget.memory + alone
    return least, peaks, costs


def test_twenty_budgets_of_a_derivative(works):
    """More bytes for the gradient of a jitted net: more is measured, less computed again, and the bits are the same."""
    loss, args = network(LAYERS, WIDTH, BATCH)
    f = jit(loss)
    least, peaks, costs = budgets_of(f, args, 8 * LAYERS * args[2].nbytes, works, f._blocks.drop)
    # Python's own objects are not the same in all of them.
    assert all(one <= other + 2**13 for one, other in itertools.pairwise(peaks))
    assert all(one >= other for one, other in itertools.pairwise(costs))
    assert len(set(costs)) >= 4
    # All saved values take 4 a layer; half of the layers' inputs and three more would do.
    assert least <= 6.1 * args[2].nbytes < 12 * args[2].nbytes <= peaks[-1]


def test_twenty_budgets_of_jitted_layers(works):
    """Layers that are jitted one by one give up what they saved, the oldest first, and are computed again."""
    _, args = network(LAYERS, WIDTH, BATCH)
    layer = jit(lambda x, w, b: gelu(x @ w + b))

    def loss(weights, biases, x):
        for w, b in zip(weights, biases, strict=True):
            x = layer(x, w, b)
        return np.mean(np.square(x))

    least, peaks, costs = budgets_of(loss, args, 8 * LAYERS * args[2].nbytes, works)
    assert all(one <= other + 2**13 for one, other in itertools.pairwise(peaks))
    # What one run gives up for the others is decided when they come: only the ends are sure.
    assert costs[0] == max(costs) > costs[-1] == min(costs)
    assert len(set(costs)) >= 3
    # A layer's input, and what one layer takes beside it.
    assert least <= (LAYERS + 4.1) * args[2].nbytes
    assert peaks[-1] >= 3 * LAYERS * args[2].nbytes


def test_jit_says_how_much():
    """A budget of `jit` bounds the two programs of a derivative too, and `reversed` shows what they compute again."""
    loss, args = network(LAYERS, WIDTH, BATCH)
    expected = bits(value_and_grad(jit(loss), (0, 1))(*args))
    unit = args[2].nbytes
    with pytest.raises(BudgetError, match="and its reverse sweep cannot run") as caught:
        grad(jit(loss, budget=Budget(memory=3 * unit)), (0, 1))(*args)
    least = caught.value.least
    assert least <= 6.1 * unit
    for nbytes in (least, 8 * unit, 30 * unit):
        f = jit(loss, budget=Budget(memory=nbytes))
        call = value_and_grad(f, (0, 1))
        assert bits(call(*args)) == expected
        assert peak_bytes(lambda call=call: call(*args)) <= nbytes
        forward, reverse = f.reversed(*args, argnums=(0, 1))
        assert forward.predict().peak_bytes <= nbytes
        assert (reverse.predict().again > 0) == (nbytes < 30 * unit)


def test_steps_of_loops_keep_their_budget():
    """A jitted step with a budget of its own computes again what it does not save, in a loop of any schedule."""
    def run(step):
        return grad(lambda u: np.sum(timeloop(step, u, 5) ** 2))(np.linspace(0, 1, 30_000))

    def step(u, i):
        for _ in range(4):
            u = np.sin(u) * np.exp(-u)
        return u

    expected = run(jit(step))
    assert bits(run(jit(step, budget=Budget(memory=7 * 240_000)))) == bits(expected)


def test_some_of_the_results():
    """Where only some of the results have cotangents, what these need is computed again, with the same bits."""
    f = jit(lambda x, w: (np.tanh(np.sin(x @ w) * x), np.exp(np.cos(x)), np.sin(np.exp(x @ w))))
    x, w = np.linspace(0, 1, 64_000).reshape(1000, 64), np.eye(64) / 2

    def some(numbers):
        return lambda x, w: sum(np.sum(f(x, w)[number]) for number in numbers)

    for numbers in ((0,), (2,), (0, 2), (1, 2)):
        expected = bits(value_and_grad(some(numbers), (0, 1))(x, w))
        least = refused_at(some(numbers), (x, w))
        for factor in (1.0, 1.3, 5.0):
            budget = Budget(memory=round(factor * least))
            assert bits(value_and_grad(some(numbers), (0, 1), budget=budget)(x, w)) == expected


def test_a_pullback_that_stays():
    """A pullback that retains its saved values gives the same twice under a budget."""
    loss, args = network(LAYERS, WIDTH, BATCH)
    f = jit(loss)
    least = refused_at(f, args)
    one = np.float32(1.0)
    expected = bits(vjp(f, *args)[1](one))
    _, pullback = vjp(f, *args, retain=True, budget=Budget(memory=2 * least))
    assert bits(pullback(one)) == bits(pullback(one)) == expected


def test_a_disk_is_used_first():
    """With a disk, saved values go there, and are computed again only where one run alone has no room."""
    loss, args = network(LAYERS, WIDTH, BATCH)
    f = jit(loss)
    unit = args[2].nbytes
    expected = bits(value_and_grad(f, (0, 1))(*args))
    for memory in (8 * unit, 20 * unit):
        call = value_and_grad(f, (0, 1), budget=Budget(memory=memory, disk="1 GiB"))
        assert bits(call(*args)) == expected
        assert peak_bytes(lambda call=call: call(*args)) <= memory + peak_bytes(lambda: f(*args))


def test_changed_arrays_are_seen():
    """An array from around the function that is changed before it is computed again is noticed."""
    shift = np.full((BATCH, WIDTH), 0.5)
    x = np.linspace(0, 1, BATCH * WIDTH).reshape(BATCH, WIDTH)
    f = jit(lambda x: np.sum(np.tanh(np.sin(x + shift) * np.exp(x))))
    with pytest.raises(BudgetError) as caught:
        grad(f, budget=Budget(memory=1 << 12))(x)
    _, pullback = vjp(f, x, budget=Budget(memory=caught.value.least))
    shift[0, 0] = 0.25
    with pytest.raises(MutationError):
        pullback(1.0)


def test_a_plain_array_that_changes_while_a_function_is_traced() -> None:
    """A program has plain arrays by reference: one that changes after its use would give another value."""

    def f(x, wait):
        k = np.full(4, 0.1)
        k *= 3.0  # nobody has used it yet
        y = x * k
        other = k.copy()
        if wait:
            y = x * (k + 0.0)
            k = k * 2.0
        else:
            k *= 2.0
        return np.sum(y * other)

    x = np.linspace(0.2, 1.1, 4)
    assert jit(f, static_argnums=1)(x, True) == f(x, True)
    for g in (f, grad(f)):
        with pytest.raises(MutationError, match=r"changed after .*test_ways.py.*give the operation a copy"):
            jit(g, static_argnums=1)(x, False)


def test_a_plain_array_that_steps_use_changes_while_a_function_is_traced() -> None:
    """What the steps of a loop reach may be changed by them, and by nobody else while the function is traced."""

    def closed_over(x):
        k = np.full(4, 0.1)
        y = timeloop(lambda u, i: u + k * np.sin(u), x, 3)
        k *= 2.0
        return np.sum(timeloop(lambda u, i: u + k * np.sin(u), y, 3))

    def by_default(x):
        k = np.full(4, 0.1)

        def step(u, i, k=k):
            return u + k * np.sin(u)

        y = timeloop(step, x, 3)
        k *= 2.0
        return np.sum(y)

    def by_inputs(x):
        k = np.full((3, 4), 0.1)
        y = timeloop(lambda u, k: u + k * np.sin(u), x, 3, inputs=k)
        k *= 2.0
        return np.sum(timeloop(lambda u, k: u + k * np.sin(u), y, 3, inputs=k))

    def of_steps(x):
        work = np.zeros(4)

        def step(shift, u, i):
            work[:] = shift + i
            return u + work * np.sin(u)

        return np.sum(timeloop(partial(step, 2.0), timeloop(partial(step, 1.0), x, 3), 3))

    x = np.linspace(0.2, 1.1, 4)
    for f in (closed_over, by_default, by_inputs):
        with pytest.raises(MutationError, match=r"changed after .*test_ways.py.*give the operation a copy"):
            jit(f)(x)
    assert jit(of_steps)(x) == of_steps(x)


@pytest.mark.parametrize("retain", [False, True])
def test_with_disk_runs_in_turn_need_no_more_memory(tmp_path, retain):
    """A run goes back the way that fits beside what it reads; jitted functions were refused up to 1.5 times that."""
    x = np.linspace(0.2, 1.2, 60_000)
    g = jit(lambda x: np.sin(x) * np.exp(-x) + np.tanh(x * x))
    f = lambda x: np.sum(g(g(x)) * g(x))

    def pulled(budget):
        pullback = vjp(f, x, retain=retain, budget=budget)[1]
        found = pullback(1.0)
        return pullback(1.0) if retain else found

    in_memory = find_least(lambda memory: pulled(Budget(memory)))
    least = find_least(lambda memory: pulled(Budget(memory, "1 GiB", tmp_path)))
    assert least <= in_memory + (1 << 15)
    alone, found, expected = peak_bytes(lambda: f(x)), [], pulled(None)
    assert peak_bytes(lambda: found.append(pulled(Budget(least, "1 GiB", tmp_path)))) - alone <= least
    assert found[0][0].tobytes() == expected[0].tobytes()
