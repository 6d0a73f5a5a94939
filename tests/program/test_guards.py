"""What programs may not do to others: write their memory, outlive their use, pass their budget, leave cycles."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, BudgetError, grad, jit, jvp, timeloop, vjp
from ebbtide.arrays.kinds import elementwise
from ebbtide.schedules import Revolve

X = np.linspace(0.0, 1.0, 20_000)


def chain(x):
    """Return the sum of a chain of sines."""
    for _ in range(12):
        x = np.sin(x) * 1.1
    return np.sum(x)


def test_donated_memory_in_a_loop():
    """A step that is given its state twice, the second time as a view, cannot have its memory; in no run of it."""
    step = jit(lambda u, same, w: u * same * w, donate_argnums=0)

    def loss(w, other):
        return np.sum(timeloop(lambda u, _: step(u, other(u), w), np.ones(5), 6, schedule=Revolve(2)))

    w = np.full(5, 0.9)
    with pytest.raises(TypeError, match="argument u is donated, and shares memory"):
        grad(loss)(w, lambda u: u[::1])
    # The state is w to the power of 2^6 - 1.
    np.testing.assert_allclose(grad(loss)(w, lambda u: u + 0.0), 63 * w**62, rtol=1e-13)


def test_blocks_forget_programs_that_are_gone():
    """Each time that the function reaches something else it is traced anew, and the old program's arrays go."""
    held = {"a": 1.0}

    def f(x):
        return np.sin(x) * held["a"] + np.cos(x)

    def run():
        for k in range(30):
            held["a"] = float(k)
            assert np.array_equal(jitted(X), f(X))

    jitted = jit(f)
    with pytest.warns(UserWarning, match="was traced 8 times"):
        run()
    [block] = jitted._blocks._spare
    assert len(block.views) <= 2


def test_a_function_that_is_gone_leaves_no_block_behind():
    """What it put on a tape holds what it saved; its reverse program brings a block, and takes it along."""

    def widest(x):
        return np.max(x * np.linspace(0.5, 1.0, 8)[:, None], axis=0)

    def held_by(make):
        """Return the gradient, and the bytes before it, and after it where it may be asked for once more."""

        def chained(x):
            for _ in range(6):
                x = make()(x) * 0.9
            return np.sum(x)

        tracemalloc.start()
        try:
            _, pullback = vjp(chained, X, retain=True)
            before = tracemalloc.get_traced_memory()[0]
            [gradient] = pullback(1.0)
            return gradient, before, tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    kept = jit(widest)
    once = held_by(lambda: kept)
    # Tables of the interpreter grow in one of many runs: with the names of a process's files by 51 KiB at once.
    anew = min([held_by(lambda: jit(widest)) for _ in range(2)], key=lambda found: found[2] - found[1])
    assert np.array_equal(once[0], anew[0])
    # Six masks of eight rows and the programs; and a block that stays.
    block = kept.program(X).arena_nbytes
    assert 6 * X.nbytes < anew[1] < 9 * X.nbytes < 6 * X.nbytes + block < once[1]
    assert anew[2] - anew[1] < 2 * X.nbytes


def test_tangents_keep_to_a_budget():
    """
    The derivative of a gradient under a budget runs at the least that was named, and takes no more; of a jitted
    function, whose operations are then counted one by one, as of the function.
    """
    leasts = []
    alone = peak_bytes(lambda: jvp(chain, (X,), (X,)))
    for f in (chain, jit(chain)):

        def product(memory, f=f):
            return jvp(grad(f, budget=Budget(memory)), (X,), (X,))[1]

        with pytest.raises(BudgetError) as refused:
            product(1000)
        leasts.append(refused.value.least)
        assert np.array_equal(product(leasts[-1]), jvp(grad(chain), (X,), (X,))[1])
        assert peak_bytes(lambda: product(leasts[-1])) <= leasts[-1] + alone
    assert leasts[0] == leasts[1]


def _raise(g, x):
    """Raise in the sweep."""
    raise ZeroDivisionError(g.shape, x.shape)


fails = elementwise(np.square, d=_raise)


@pytest.mark.parametrize("order", ["jit of grad", "grad of jit"])
def test_a_rule_that_raises_in_a_sweep(order):
    """A rule that raises while a sweep is traced, or run, leaves nothing behind for the collector."""
    f = lambda x: np.sum(np.sin(fails(np.exp(x))))
    function = jit(grad(f)) if order == "jit of grad" else grad(jit(f))
    x = np.ones(100)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                function(x)
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert np.array_equal(grad(lambda x: np.sum(np.exp(x)))(x), np.exp(x))
