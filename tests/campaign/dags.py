"""Random functions of matrices and vectors for the planner of programs, made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNARY = (np.sin, np.tanh, np.cos, np.negative, np.square, lambda x: x / (1 + x * x), lambda x: 0.5 * x)
BINARY = (np.add, np.subtract, np.multiply, np.maximum, lambda x, y: np.where(x > y, x, 0.3 * y))
ROWS, COLUMNS = 12, 8


def make_dag(seed: int, length: int = 22) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """
    Return a function, and its arguments: a matrix, a vector of one row, and a square matrix, in float32 or float64.

    Args:
        seed: What it is made from.
        length: Number of statements.

    Returns:
        (f, arguments). f returns a scalar, and values and views of values on the way.
    """
    random = np.random.default_rng([seed, 7])
    dtype = (np.float64, np.float32)[seed % 2]
    shapes = ((ROWS, COLUMNS), (COLUMNS,), (COLUMNS, COLUMNS))
    arguments = [random.uniform(-1, 1, shape).astype(dtype) for shape in shapes]
    if seed % 3 == 0:
        arguments[0] = np.asfortranarray(arguments[0])
    choices = random.integers(0, 2**31, (length, 6)).tolist()

    def f(x: Any, row: Any, square: Any) -> Any:
        # All in the pool are matrices of one shape; the transposed one of another lies the other way round.
        pool = [np.copy(x), np.copy(x) * row]
        views: list[Any] = []
        for choice in choices:
            _statement(pool, views, row, square, choice)
        total = 0.0
        for k, value in enumerate(pool[-5:]):
            total = total + np.sum(value * (0.2 + 0.1 * k))
        return total, [pool[-1], *views[-3:]]

    return f, arguments


def _statement(pool: list[Any], views: list[Any], row: Any, square: Any, choice: list[int]) -> None:
    """Do one statement: compute a matrix from those of the pool, keep a view, or write into one of them."""
    kind, a, b, c, d, e = choice
    x, y = pool[-1 - a % min(len(pool), 4)], pool[b % len(pool)]
    kind %= 14
    if kind < 2:
        pool.append(UNARY[c % len(UNARY)](x))
    elif kind < 4:
        pool.append(BINARY[c % len(BINARY)](x, y))
    elif kind == 4:
        pool.append(x + x @ square if d % 2 else np.matmul(x, square.T))
    elif kind == 5:
        pool.append((x.T @ y)[:1] * x if d % 2 else x * row)
    elif kind == 6:
        axis = c % 2
        pool.append(x - (np.sum, np.mean, np.max)[d % 3](x, axis=axis, keepdims=True))
    elif kind == 7:
        pool.append((x[::-1], x[:, ::-1], x.T.reshape(ROWS, COLUMNS), np.roll(x, 1, axis=0))[c % 4] * 0.5 + y)
    elif kind == 8:
        views.append((x[1:], x.T, x[:, 2], x.reshape(-1), x[3])[c % 5])
    elif kind == 9:
        x[c % ROWS] = y[d % ROWS] * 0.5
    elif kind == 10:
        x[:, : 1 + c % COLUMNS] += 0.25 * y[:, : 1 + c % COLUMNS]
    elif kind == 11:
        x[1:, 0] = 0.5 if d % 2 else row[0]
    elif kind == 12:
        np.arctan(x) * y  # nothing uses it
    else:
        pool.append(np.concatenate([x[e % ROWS :], y[: e % ROWS]]))
