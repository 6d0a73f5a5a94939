"""Random programs on large arrays, made of numbers: what they save and allocate is of all kinds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ebbtide import Budget, checkpoint
from ebbtide.arrays.context import entered
from ebbtide.tape.account import account
from ebbtide.tape.recording import Recording
from ebbtide.tape.sweep import sweep

ROWS = 64

UNARY = (
    np.sin, np.tanh, np.negative, np.square, np.abs, np.copy,
    lambda x: np.maximum(x, 0.1), lambda x: np.where(x > 0.3, x, 0.5 * x), lambda x: np.clip(x, -0.5, 0.5),
    lambda x: x[::-1] * 1.0, lambda x: x.T.reshape(x.shape), lambda x: np.roll(x, 1, axis=0),
    lambda x: np.cumsum(x, axis=0) * 0.1, lambda x: x[np.arange(ROWS)[::-1]],
)  # fmt: skip
BINARY = (
    np.add, np.subtract, np.multiply, np.maximum, np.minimum,
    lambda x, y: x / (2 + y * y), lambda x, y: np.arctan2(x, 2 + y), lambda x, y: np.where(x > y, x, y),
    lambda x, y: np.concatenate([x[: ROWS // 2], y[ROWS // 2 :]]),
    lambda x, y: np.stack([x, y])[1], lambda x, y: x + y[:1], lambda x, y: x * y[:, :1],
    lambda x, y: x * np.sum(y, axis=0), lambda x, y: x - np.mean(y, axis=1, keepdims=True),
    lambda x, y: x + np.max(y, axis=0), lambda x, y: np.dot(x @ y.T, y) * 1e-6,
    # Results several times as large as their operands, of which the pulls are sums.
    lambda x, y: np.sum(x[np.newaxis] * np.ones((5, 1, 1)) * y, axis=0) * 0.2,
    lambda x, y: np.mean(np.maximum(x[:, np.newaxis], y[np.newaxis, :4]), axis=1),
    lambda x, y: np.mean(np.where(x[:, np.newaxis] > 0.3, y[np.newaxis, :4], x[:, np.newaxis]), axis=1),
    lambda x, y: np.mean(np.logaddexp(x[:, np.newaxis], y[np.newaxis, :4]), axis=1),
    lambda x, y: np.mean(np.broadcast_to(x, (4, *x.shape)) / (2 + y * y), axis=0),
    lambda x, y: np.clip(x, -np.abs(y[:1]), np.abs(y[:, :1])) + np.std(y, axis=0),
    lambda x, y: x * y[0, 0] - y[1, 1],
)  # fmt: skip


def make_program(choices: Sequence[tuple[int, int, int, int]]) -> Callable[[Any], Any]:
    """
    Return a function of an array of `ROWS` rows with a scalar result.

    Args:
        choices: For each statement its kind, two places in the pool of the last three values, and what it does there.
    """

    def program(x: Any) -> Any:
        pool = [x]
        for choice in choices:
            pool.append(statement(pool, *choice))
            del pool[:-3]
        total = 0.0
        for value in pool:
            total = total + np.sum(value * value)
        return total

    return program


def statement(pool: list[Any], kind: int, a: int, b: int, which: int) -> Any:
    """Return the result of one statement."""
    x, y = pool[a % len(pool)], pool[b % len(pool)]
    if kind % 8 == 7:
        return checkpoint(lambda u, v: inner(u, v, which))(x, y)
    if kind % 8 == 6:
        written = np.copy(x)
        written[: ROWS // 4] = np.sin(y[: ROWS // 4])
        return written
    if kind % 2:
        return UNARY[which % len(UNARY)](x)
    return BINARY[which % len(BINARY)](x, y)


def inner(u: Any, v: Any, which: int) -> Any:
    """Do some statements: the body of a checkpointed function, with one more inside for some."""
    pool = [u, v]
    for k in range(1 + which % 5):
        pool.append(statement(pool, k, which, k, which + 3 * k))
    if which % 3 == 0:
        return checkpoint(lambda w: np.tanh(np.sin(w) * w))(pool[-1]) + pool[-2]
    return pool[-1]


def measured_sweep(f: Callable[[Any], Any], x: Any) -> tuple[int, int, int]:
    """Return what the sweep of a gradient is said to take beside the saved values, what it takes, and these."""
    tracemalloc.start()
    try:
        with account(Budget("1 TiB")) as acct:
            recording = Recording(f, (x,), {}, (0,), acct)
            seeds = [(node, np.ones(()), True) for node, _ in recording.roots()]
            live = acct.ledger.live
            forecast = acct.pager.forecast(seeds).peak - live
            gc.collect()
            with entered(ledger=acct.ledger, budget=acct.budget):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                sweep(recording.tape, seeds, recording.leaves)
                return forecast, tracemalloc.get_traced_memory()[1] - before, live
    finally:
        tracemalloc.stop()
