"""Moving and repeating elements: cotangents go back to where their values came from, and nothing is saved."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide
from ebbtide import grad, vjp

X = np.arange(12.0).reshape(3, 4)

# (function, number of times that each element of X is in the result)
COUNTS = {
    "roll": (lambda x: np.roll(x, (1, -2), (0, 1)), 1),
    "flip": (lambda x: np.flip(x, 1), 1),
    "rot90": (lambda x: np.rot90(x, 3), 1),
    "repeat": (lambda x: np.repeat(x, [0, 2, 3], 0), np.array([[0], [2], [3]])),
    "tile": (lambda x: np.tile(x, (2, 1, 3)), 6),
    "pad": (lambda x: np.pad(x, 2, constant_values=7.0), 1),
    "edge": (lambda x: np.pad(x, ((0, 0), (1, 2)), "edge"), np.array([2, 1, 1, 3])),
    "wrap": (lambda x: np.pad(x, ((0, 0), (1, 2)), "wrap"), np.array([2, 2, 1, 2])),
    "reflect": (lambda x: np.pad(x, ((0, 0), (1, 2)), "reflect"), np.array([1, 3, 2, 1])),
    "tril": (lambda x: np.tril(x, -1), np.tri(3, 4, -1)),
    "triu": (np.triu, 1 - np.tri(3, 4, -1)),
}


@pytest.mark.parametrize(("function", "count"), COUNTS.values(), ids=COUNTS)
def test_elements_are_counted(function, count):
    """The gradient of a sum counts how often each element is in the result; that of a square, with its value."""
    assert np.array_equal(grad(lambda x: np.sum(function(x)))(X), count * np.ones((3, 4)))
    assert np.array_equal(grad(lambda x: np.sum(function(x) ** 2))(X), 2 * X * count)


@pytest.mark.parametrize("function", [f for name, (f, _) in COUNTS.items() if name in {"roll", "flip", "pad", "tile"}])
def test_nothing_is_saved(function):
    """To move elements by a rule saves no bytes."""
    with ebbtide.profile() as p:
        grad(lambda x: np.sum(function(x)))(X)
    assert [entry for entry in p.saved if entry.bytes] == []


def test_roll_of_all_elements():
    """Without an axis the elements are rolled in C order, whatever the memory layout."""
    value, pullback = vjp(lambda x: np.roll(x, 5), X.T)
    assert np.array_equal(value, np.roll(X.T, 5))
    assert np.array_equal(pullback(value)[0], X.T)


def test_flip_is_a_view():
    """What is written into a flipped array is in the array."""

    def f(x):
        y = x * 1
        np.flipud(y)[0] = 0.0
        return np.sum(y * y)

    assert np.array_equal(grad(f)(X), np.vstack([2 * X[:2], np.zeros((1, 4))]))
