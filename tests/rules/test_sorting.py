"""Sorting: a permutation is all that is saved, and equal elements keep their order."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide
from ebbtide import TraceError, grad, jvp, vjp
from ebbtide.arrays.abstract import abstract_array
from ebbtide.testing import check_grads

WEIGHTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


@pytest.mark.parametrize(("size", "integer"), [(5, np.uint8), (300, np.uint16), (70_000, np.uint32)])
def test_saves_the_permutation_only(size, integer):
    """The record of a sort saves one array of the smallest integers that count the elements, and no value."""
    x = np.random.default_rng(0).permutation(size) / size
    with ebbtide.profile() as p:
        gradient = grad(lambda x: np.sum(np.sort(x)[:3]))(x)
    saved = [entry for entry in p.saved if entry.operation == "sort"]
    assert [(entry.dtype, entry.shape, entry.bytes) for entry in saved] == [
        (np.dtype(integer).name, (size,), size * np.dtype(integer).itemsize)
    ]
    assert np.array_equal(gradient, x < np.sort(x)[3])


@pytest.mark.parametrize("kind", [None, "quicksort", "stable"])
def test_ties_are_stable(kind):
    """Of equal elements the first comes first, so that each has the cotangent of its own place, in both modes."""
    x = np.array([2.0, 1.0, 2.0, 1.0, 2.0])
    expected = np.array([4.0, 1.0, 8.0, 2.0, 16.0])
    f = lambda x: np.sum(np.sort(x, kind=kind) * WEIGHTS)
    assert np.array_equal(grad(f)(x), expected)
    assert [jvp(f, (x,), (e,))[1] for e in np.eye(5)] == list(expected)


def test_second_order():
    """A sorted array can be differentiated again, through values and cotangents, in all orders of the modes."""
    check_grads(lambda x: np.sum(np.sort(x**2) ** 3 * WEIGHTS), np.array([0.3, -1.2, 0.7, 2.0, -0.1]))
    matrix = np.random.default_rng(1).permutation(24).reshape(2, 3, 4) / 7
    for axis in (0, 1, -1, None):
        check_grads(lambda x, axis=axis: np.sin(np.sort(x, axis)), matrix)


def test_of_abstract_arrays():
    """The type of a sorted array and of an order are known without data."""
    x = abstract_array((3, 4), np.float32)
    assert (np.sort(x, 0).shape, np.sort(x).dtype) == ((3, 4), np.float32)
    assert np.sort(x, None).shape == (12,)
    assert (np.argsort(x, 0).shape, np.argsort(x).dtype) == ((3, 4), np.intp)


def test_argsort_is_plain():
    """An order has no derivative: it is a plain array of integers that may index."""
    orders = []

    def f(x):
        orders.append(np.argsort(x))
        return np.sum(x[orders[0]] * WEIGHTS)

    x = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    gradient = grad(f)(x)
    assert type(orders[0]) is np.ndarray
    assert orders[0].dtype == np.intp
    assert np.array_equal(gradient[orders[0]], WEIGHTS)


def test_nan_comes_last():
    """Not-a-number is sorted to the end, as in NumPy, and has the cotangent of its place."""
    x = np.array([np.nan, 1.0, np.nan, 0.0])
    value, pullback = vjp(np.sort, x)
    assert np.array_equal(value, np.sort(x), equal_nan=True)
    assert np.array_equal(pullback(np.array([1.0, 2.0, 3.0, 4.0]))[0], [3.0, 2.0, 4.0, 1.0])


def test_in_place():
    """The method sorts in place, through views too, and leaves the caller's array as it is."""

    def f(x):
        y = x * 2
        y[1:].sort()
        x.sort(axis=0)
        return np.sum(y * WEIGHTS) + np.sum(x * WEIGHTS)

    x = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    before = x.copy()
    gradient = grad(f)(x)
    assert np.array_equal(gradient, [4 + 2, 1 + 4, 2 + 8, 16 + 32, 8 + 16])
    assert np.array_equal(x, before)


def test_refusals():
    """An axis that is not there, and fields to sort by, are errors."""
    with pytest.raises(np.exceptions.AxisError):
        grad(lambda x: np.sum(np.sort(x, 1)))(WEIGHTS)
    with pytest.raises(np.exceptions.AxisError):
        grad(np.sort)(1.0)
    with pytest.raises(TraceError, match=r"np\.sort.*'order'"):
        grad(lambda x: np.sum(np.sort(x, order="a")))(WEIGHTS)
