"""Random programs of NumPy operations, made from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

UNARY = (
    np.sin, np.tanh, np.cos, np.arctan, np.negative, np.square, lambda x: np.exp(0.1 * x), lambda x: x / (1 + x * x),
)  # fmt: skip
BINARY = (
    np.add, np.subtract, np.multiply, np.maximum, lambda x, y: np.arctan2(x, 1 + y * y), lambda x, y: x / (2 + y * y),
)  # fmt: skip
SHAPES = ((), (3,), (2, 3), (1, 3), (2, 1))


def make_program(
    seed: int, length: int = 18, *, masks: bool = True
) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """
    Return a program with a scalar result and its arguments.

    Args:
        seed: What it is made from.
        length: Number of statements.
        masks: Whether it may read and write the elements that a mask chooses, which no traced program can.
    """
    random = np.random.default_rng(seed)
    arguments = [random.uniform(-1.5, 1.5, SHAPES[random.integers(len(SHAPES))]) for _ in range(random.integers(1, 4))]
    constants = [random.uniform(-1, 1, SHAPES[random.integers(len(SHAPES))]) for _ in range(2)]
    choices = random.integers(0, 2**31, (length, 6)).tolist()

    def program(*values: Any) -> Any:
        pool = [np.copy(value) if np.ndim(value) else value for value in values]
        for choice in choices:
            statement(pool, constants, choice, masks)
        total = 0.0
        for k, value in enumerate(pool[-6:]):
            total = total + np.sum(value) * (0.3 + 0.1 * k)
        return total

    return program, arguments


def statement(pool: list[Any], constants: list[np.ndarray], choice: list[int], masks: bool) -> None:
    """Do one statement of a program: compute a new array from the pool, or write into one of it."""
    kind, a, b, c, d, e = choice
    x, y = pool[a % len(pool)], (pool + constants)[b % (len(pool) + 2)]
    kind %= 17
    try:
        np.broadcast_shapes(np.shape(x), np.shape(y))
    except ValueError:
        y = np.sum(y)
    if kind < 3:
        pool.append(UNARY[c % len(UNARY)](x))
    elif kind < 6:
        pool.append(BINARY[c % len(BINARY)](x, y) if b % 2 else BINARY[c % len(BINARY)](y, x))
    elif kind == 6 and np.ndim(x):
        axis = c % np.ndim(x)
        pool.append((np.sum, np.mean, np.max, np.prod)[d % 4](x, axis=axis, keepdims=bool(e % 2)))
    elif kind == 7 and np.ndim(x) == 2:
        pool.append(np.dot(x, np.transpose(x)) if c % 2 else np.matmul(np.transpose(x), x)[:1])
    elif kind == 8 and np.ndim(x) and np.shape(x)[-1] > 1:
        view = (x[..., ::-1], x[..., 1:], x[..., :1], x.T, x.reshape(-1))[c % 5]
        pool.append(view if d % 2 else view * 1.5)
    elif kind == 9 and np.ndim(x) and np.size(x):
        target = x[..., :1] if c % 2 else x
        target += 0.25 * np.sum(y) if d % 2 else np.tanh(target)
    elif kind == 10 and np.ndim(x) and np.shape(x)[-1] > 1:
        x[..., 0] = x[..., 1] * 0.5
    elif kind == 11:
        pool.append(np.where(x > 0.1, x, 0.2 * x))
    elif kind > (11 if masks else 12) and np.ndim(x):
        write(kind - 12, x, y, d)


def write(kind: int, x: Any, y: Any, d: int) -> None:
    """Write into an array, of which there may be views: at a mask, by `out=`, into a part of a part, row by row."""
    if kind == 0:
        mask = x > 0.2
        if d % 2:
            x[mask] *= 0.5
        else:
            x[mask] += np.tanh(x)[mask]
    elif kind == 1:
        (np.sin if d % 2 else np.tanh)(x, out=x)
    elif kind == 2:
        np.copyto(x, 0.5 * x + 0.1 * np.sum(y), where=x < 0.3)
    elif kind == 3:
        x[..., ::-1][..., :2] += 0.3 * x[..., :1]
    else:
        for k in range(np.shape(x)[0]):
            x[k] = np.sin(x[k]) + 0.1 * x[0]
