"""What a record is said to take beside its saved values, against what tracemalloc sees."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from ebbtide import Budget, grad, vjp
from ebbtide.ledger import BUFFERS, SAVED, Ledger
from ebbtide.tape import pager as pager_module
from ebbtide.tape.overhead import PAGE, Overhead, node_bytes
from ebbtide.tape.pager import Pager

STEPS = 1000
ROWS = np.array([2, 0, 1])


@pytest.mark.parametrize(
    "step",
    [lambda x: -x, lambda x: x + 1.0, lambda x: x.T, lambda x: x[::-1] * 1.0, lambda x: x.reshape(3, 3) + 0.0,
     lambda x: np.where(True, x, 0.0), lambda x: np.roll(x, 1, axis=0), lambda x: x[[2, 0, 1], :] + 0.0,
     lambda x: np.concatenate([x[:1]] * 24)[:3]],
    ids=["negative", "sum", "transposed", "reversed", "reshaped", "chosen", "rolled", "indexed", "joined"],
)  # fmt: skip
def test_a_record_is_counted_node_by_node(step, monkeypatch):
    """The bytes of nodes are no fewer than a record without saved values takes, and not twice as many."""

    def chain(x):
        for _ in range(STEPS):
            x = step(x)
        return np.sum(x)

    x, counted = np.ones((3, 3)), []
    monkeypatch.setattr(pager_module, "node_bytes", lambda node: counted.append(node_bytes(node)) or counted[-1])
    grad(chain, budget=Budget(memory="1 GiB"))(x)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _, pullback = vjp(chain, x)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    pullback.free()
    assert held <= sum(counted) <= 2 * held


def test_the_record_is_counted_in_pages():
    """Less than a page is not in the ledger yet; cleared, nothing is."""
    ledger = Ledger(watched=True)
    overhead = Overhead(ledger)
    for count in range(1, 200):
        overhead.count(100)
        assert overhead.total == 100 * count
        assert overhead.uncounted < PAGE
        assert ledger.held[SAVED] == overhead.counted == overhead.total - overhead.uncounted
    assert overhead.lent == 0
    overhead.clear()
    assert (ledger.live, overhead.total, overhead.uncounted) == (0, 0, 0)


def test_the_record_of_a_measured_function_is_lent_outermost():
    """What a measured function records is there although its values are not: it counts where there is a bound."""
    ledger = Ledger(watched=True)
    outer = Pager(ledger, None)
    middle = Pager.measuring(outer)
    inner = Pager.measuring(middle)
    inner.overhead.count(3 * PAGE)
    assert (inner.ledger.held[SAVED], inner.overhead.lent) == (3 * PAGE, 3 * PAGE)
    assert (middle.ledger.live, ledger.held[BUFFERS]) == (0, 3 * PAGE)
    inner.overhead.clear()
    assert (inner.ledger.live, ledger.live) == (0, 0)
