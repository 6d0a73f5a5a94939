"""Indices that differ from member to member, or that a program computes: NumPy's elements, views and derivatives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.transforms.test_batching import close

from ebbtide import TraceError, grad, hvp, jit, jvp, vmap

RANDOM = np.random.default_rng(9)
SIZE = 3
T = RANDOM.normal(size=(SIZE, 4, 3, 5))
FIXED = np.array([1, 0, 1])

# (index of an array of shape (4, 3, 5) with i and j in it, shapes of i and j)
INDICES = {
    "number": (lambda i, j: i, ()),
    "numbers": (lambda i, j: (i, j), ()),
    "column": (lambda i, j: (slice(None), i), ()),
    "last": (lambda i, j: (..., i), ()),
    "number and slice": (lambda i, j: (i, slice(None, None, -2)), ()),
    "with a plain number": (lambda i, j: (2, i), ()),
    "apart": (lambda i, j: (i, slice(None), j), ()),
    "array": (lambda i, j: i, (2,)),
    "repeated": (lambda i, j: (slice(1, None), i), (6,)),
    "matrix": (lambda i, j: (slice(None), i), (2, 2)),
    "arrays": (lambda i, j: (i, j), (4,)),
    "broadcast": (lambda i, j: (i[:, None], j), (2,)),
    "arrays apart": (lambda i, j: (i, slice(None), j), (4,)),
    "new axis": (lambda i, j: (None, slice(None), i, None), (2,)),
    "new axis between": (lambda i, j: (i, None, j), (2,)),
    "plain array": (lambda i, j: (slice(None), i, FIXED), (3,)),
    "plain mask": (lambda i, j: (i, np.array([True, False, True])), (2,)),
    "plain number apart": (lambda i, j: (1, slice(None), i), (3,)),
    "negative": (lambda i, j: (i - 3, ..., -j - 1), (3,)),
    "empty": (lambda i, j: i[:0], (3,)),
}


def batches(shape):
    """Return the indices of all members, within the shortest axis."""
    return RANDOM.integers(0, 3, size=(SIZE, *shape)), RANDOM.integers(0, 3, size=(SIZE, *shape))


@pytest.mark.parametrize("name", INDICES)
def test_reading(name):
    """What an index reads is NumPy's, to the bit, whichever operands are the same for all; derivatives scatter back."""
    make, shape = INDICES[name]
    i, j = batches(shape)

    def f(x, i, j):
        return x[make(i, j)]

    def cost(x, i, j):
        found = f(x, i, j)
        return np.sum(np.sin(found) * np.cos(np.arange(found.size)).reshape(found.shape)) + np.sum(found**2)

    for way in itertools.product((True, False), repeat=3):
        if not any(way):
            continue
        axes = tuple([0 if m else None for m in way])
        given = [x if m else x[0] for x, m in zip((T, i, j), way, strict=True)]
        members = [[x[k] if m else x for x, m in zip(given, way, strict=True)] for k in range(SIZE)]
        found = vmap(f, axes)(*given)
        assert found.tobytes() == np.stack([f(*xs) for xs in members]).tobytes()
        expected = [grad(cost)(*xs) for xs in members]
        close(vmap(grad(cost), axes)(*given), expected)
        through = grad(lambda *xs, axes=axes: np.sum(vmap(cost, axes)(*xs)))(*given)
        close(through, expected if way[0] else np.sum(expected, axis=0))
        close(vmap(lambda x, i, j: jvp(lambda x: f(x, i, j), (x,), (np.cos(x),))[1], axes)(*given),
              [jvp(lambda x, i=i, j=j: f(x, i, j), (x,), (np.cos(x),))[1] for x, i, j in members])  # fmt: skip
    close(vmap(lambda x, i, j: hvp(lambda x: cost(x, i, j))(x, x))(T, i, j),
          [hvp(lambda x, i=i, j=j: cost(x, i, j))(x, x) for x, i, j in zip(T, i, j, strict=True)])  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_writing(name):
    """What is written by an index is NumPy's: of two values for one place the last stays, and has the cotangent."""
    make, shape = INDICES[name]
    i, j = batches(shape)
    value = RANDOM.normal(size=(SIZE, *T[0][make(i[0], j[0])].shape))

    def f(x, v, i, j):
        u = x + 0.0 * np.sum(v)
        u[make(i, j)] = v
        u[make(i, j)] += 1.0
        return u

    def cost(x, v, i, j):
        return np.sum(np.sin(f(x, v, i, j)) * x**2)

    for v in (value, value[:, :1] if value.ndim > 1 else value, np.full(SIZE, 2.0)):
        found = vmap(f)(T, v, i, j)
        members = list(zip(T, v, i, j, strict=True))
        close(found, [f(*xs) for xs in members])
        for n in range(2):
            expected = [grad(cost, n)(*xs) for xs in members]
            close(vmap(grad(cost, n))(T, v, i, j), expected)
            close(grad(lambda *xs: np.sum(vmap(cost)(*xs)), n)(T, v, i, j), expected)
        close(jvp(lambda x, v: vmap(f)(x, v, i, j), (T, v), (np.cos(T), np.sin(v)))[1],
              [jvp(lambda x, v, i=i, j=j: f(x, v, i, j), (x, v), (np.cos(x), np.sin(v)))[1]
               for x, v, i, j in members])  # fmt: skip


def test_rows_are_views():
    """The row that a number names is a view, which writes go through; those of an array of numbers are a copy."""

    def f(x, i):
        u = x * 1.0
        row = u[i]
        row[1] = 7.0
        row *= 2.0
        u[i, 2] = -row[1]
        copy = u[np.reshape(i, 1)]
        copy[0] = 0.0
        return u, row

    x, i = T[:, :, :, 0], np.array([2, 0, 3])
    found = vmap(f)(x, i)
    for k in range(SIZE):
        u, row = f(x[k], i[k])
        close(found[0][k], u)
        close(found[1][k], row)
    of_sum = grad(lambda x, i: np.sum(f(x, i)[0] ** 2))
    close(vmap(of_sum)(x, i), [of_sum(a, k) for a, k in zip(x, i, strict=True)])


def test_masks():
    """A mask that is computed chooses where a value is written; how many elements it reads is not known."""

    def f(x):
        u = x * 1.0
        u[x > 0.5] = 0.25
        u[np.sum(x, axis=(1, 2)) < 0] = x[0]
        return u

    close(vmap(f)(T), [f(x) for x in T])
    of_sum = grad(lambda x: np.sum(f(x) ** 2))
    close(vmap(of_sum)(T), [of_sum(x) for x in T])
    for wrong in (lambda x: x[x > 0], lambda x: f(x)[x > 0], lambda x: x[x[:, 0, 0] > 0, 1]):
        with pytest.raises(TraceError, match=r"test_gathers\.py.*np\.where\(mask"):
            vmap(wrong)(T)


def test_functions_that_index():
    """take, take_along_axis, and their like with indices of the members, in a table that is the same for all too."""
    x, table = T[:, 0], RANDOM.normal(size=(4, 5))
    i = RANDOM.integers(-7, 9, size=(SIZE, 2))
    functions = (
        lambda x, i, t: np.take(x, i % 3, 0),
        lambda x, i, t: np.take(x, i, 1, mode="wrap"),
        lambda x, i, t: np.take(x, i, mode="clip"),
        lambda x, i, t: np.take(t, i % 4, 0),
        lambda x, i, t: np.take_along_axis(x, np.argsort(x, axis=0), 0),
        lambda x, i, t: np.take_along_axis(x, np.argsort(x, axis=None), None),
        lambda x, i, t: np.take_along_axis(t, np.argsort(x[:1], axis=1), 1),
        lambda x, i, t: t[i[0] % 4, np.argmax(x[0])],
    )
    for f in functions:
        close(vmap(f, (0, 0, None))(x, i, table), [f(a, b, table) for a, b in zip(x, i, strict=True)])
        for n in (0, 2):
            of_sum = grad(lambda *xs, f=f: np.sum(f(*xs) ** 2), n)
            close(vmap(of_sum, (0, 0, None))(x, i, table), [of_sum(a, b, table) for a, b in zip(x, i, strict=True)])


def test_programs():
    """A program takes elements by indices that it computes, and so do its derivatives."""
    x = T[0, 0]

    def f(x):
        u = x * 2.0
        u[np.argmax(x[:, 0])] = x[np.argmin(x[:, 1])] ** 2
        u[u > 1.5] = 0.5
        return np.sum(u[np.argsort(x[:, 2]), np.argsort(x[0])[:3]] * x[:, 0])

    close(jit(f)(x), f(x))
    close(jit(grad(f))(x), grad(f)(x))
    close(jit(grad(f))(-x), grad(f)(-x))
    close(jit(vmap(grad(f)))(T[:, 1]), [grad(f)(x) for x in T[:, 1]])
