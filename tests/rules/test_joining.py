"""Joining and splitting: each part has the cotangent of its place, and nothing is saved."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide
from ebbtide import grad, vjp
from ebbtide.testing import check_grads

G = np.arange(12.0).reshape(3, 4)


def test_parts_have_their_cotangents():
    """The cotangent of a joined array goes to its parts piece by piece, in memory of their own."""
    parts = [np.ones((3, 1)), np.ones((3, 2)), np.ones((3, 1))]
    value, pullback = vjp(lambda *parts: np.concatenate(parts, 1), *parts)
    found = pullback(G)
    assert value.shape == (3, 4)
    assert [np.array_equal(x, y) for x, y in zip(found, (G[:, :1], G[:, 1:3], G[:, 3:]), strict=True)] == [True] * 3
    assert not any(np.shares_memory(x, G) for x in found)


def test_one_array_at_several_places():
    """An array that is joined with itself has the sum of the cotangents of its places."""
    x = np.ones(4)
    assert np.array_equal(vjp(lambda x: np.stack([x, x, x]), x)[1](G)[0], G.sum(0))


def test_nothing_is_saved():
    """To join and to split saves no bytes."""
    with ebbtide.profile() as p:
        grad(lambda x: np.sum(np.hstack([np.split(x, 2, 1)[0], x, np.ones((30, 1))])))(np.ones((30, 40)))
    assert [entry for entry in p.saved if entry.bytes] == []


def test_splitting_gives_views():
    """The parts of a split are views: what is written into one is in the whole, in both modes."""

    def f(x):
        y = x * 1
        left, right = np.split(y, 2)
        left *= right
        right[0] = 5.0
        return y * y

    check_grads(f, np.array([0.5, 1.5, 2.5, 3.5]))
    assert np.array_equal(vjp(f, np.ones(4))[0], [1.0, 1.0, 25.0, 1.0])


def test_dtypes_are_joined_as_in_numpy():
    """Parts of several dtypes have the common one, and cotangents of their own."""
    x, y = np.ones(2, np.float32), np.ones(2)
    value, pullback = vjp(lambda x, y: np.concatenate([x, y, [1]]), x, y)
    assert value.dtype == np.float64
    assert [g.dtype for g in pullback(np.ones(5))] == [np.float32, np.float64]
    assert vjp(lambda x, y: np.concatenate([x, y], dtype=np.float32), x, y)[0].dtype == np.float32


@pytest.mark.parametrize("join", [np.concatenate, np.stack])
def test_shapes_that_do_not_join(join):
    """Parts that do not fit together are ValueErrors, as in NumPy."""
    for parts in (lambda x: [x, x[0]], lambda x: [x, np.ones((2, 2, 2))]):
        with pytest.raises(ValueError):
            grad(lambda x, parts=parts: np.sum(join(parts(x))))(G)
