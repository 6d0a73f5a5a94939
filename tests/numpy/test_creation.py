"""`ebbtide.numpy`: arrays of traced and plain numbers in nested lists, their dtypes, axes and memory."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide.numpy as enp
from ebbtide import grad, jit, vjp, vmap
from ebbtide.testing import check_grads

X = np.array([0.5, 1.5, 2.5])
M = np.arange(6.0).reshape(2, 3)


def on_traced(f, *args):
    """The value of a function whose arguments are traced."""
    return vjp(f, *args)[0]


def alike(found, expected):
    """Whether two arrays are the same in all that NumPy says of them."""
    return (found.shape, found.dtype, found.tobytes(), found.flags.c_contiguous, found.flags.f_contiguous) == (
        expected.shape, expected.dtype, expected.tobytes(), expected.flags.c_contiguous, expected.flags.f_contiguous,
    )  # fmt: skip


NESTED = {
    "numbers": lambda x: [x[0], 1.0, 2],
    "rows": lambda x: [x, [1.0, 2.0, x[1]], np.zeros(3)],
    "tuples": lambda x: ((x[0], 1), (np.float32(2), True)),
    "deep": lambda x: [[[x[0]], [1.0]], [[2.0], [x[2]]]],
    "single precision": lambda x: [np.astype(x, np.float32), np.ones(3, np.float32)],
    "complex": lambda x: [x[0], 1j],
    "one": lambda x: [x[0]],
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("options", [{}, {"dtype": np.float32}, {"dtype": complex}, {"ndmin": 4}, {"order": "F"}])
def test_nested_lists(name, options):
    """An array of nested lists is NumPy's of the same plain lists, in shape, dtype, bits and memory."""
    if options.get("dtype") is np.float32 and name == "complex":
        options = {}
    expected = np.array(NESTED[name](X), **options)
    assert alike(on_traced(lambda x: enp.array(NESTED[name](x), **options), X), expected)


@pytest.mark.parametrize("name", [name for name in NESTED if name != "single precision"])
def test_derivatives_of_elements(name):
    """Each element of a list has its own derivative."""
    check_grads(lambda x: enp.array(NESTED[name](x)), X, order=1)
    assert grad(lambda x: np.sum(enp.array([x, x, 2 * x])))(X).tolist() == [4.0] * 3


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
@pytest.mark.parametrize("given", [M, M.T, M[:, ::2]], ids=["C", "F", "strided"])
def test_orders_of_memory(given, order):
    """An array of an array lies in the order that is asked for, as NumPy's does, copied or not."""
    for copy in (True, None):
        expected = np.array(given * 1.0, order=order, copy=copy)
        assert alike(on_traced(lambda x, copy=copy: enp.array(x * 1.0, order=order, copy=copy), given), expected)
    assert alike(on_traced(lambda x: enp.asarray(x * 1.0, order=order), given), np.asarray(given * 1.0, order=order))
    like = np.full_like(given, 2.0, order=order)
    assert alike(on_traced(lambda x: enp.full_like(given, x, order=order), np.float64(2.0)), like)
    filled = np.full((2, 3), 2.0, order="F")
    assert alike(on_traced(lambda x: enp.full((2, 3), x, order="F"), np.float64(2.0)), filled)


def test_dtypes():
    """`dtype=` rounds the value, and its derivative comes back in the precision of the argument."""
    value, pullback = vjp(lambda x: enp.asarray([x[0], 1.0], dtype=np.float32), X)
    assert value.dtype == np.float32
    (found,) = pullback(np.ones(2, np.float32))
    assert (found.dtype, found.tolist()) == (np.float64, [1.0, 0.0, 0.0])
    assert on_traced(lambda x: enp.full_like(np.zeros(2, np.float32), x), np.float64(0.1)).dtype == np.float32
    assert on_traced(lambda x: enp.full(2, x, np.float32), np.float64(0.1)).dtype == np.float32


def test_ranges():
    """`arange` between traced ends is NumPy's, and moves with start and step."""
    for args in ((3.2,), (0.5, 3.2), (0.5, 3.2, 0.7), (3.0, 0.5, -0.5), (1.0, 1.0)):
        assert alike(on_traced(enp.arange, *map(np.float64, args)), np.arange(*args))
    check_grads(lambda start, step: enp.arange(start, 3.2, step), np.float64(0.5), np.float64(0.7))


def test_refusals():
    """Lists of different shapes, infinite elements where they are not wanted, and short iterators are refused."""
    with pytest.raises(ValueError, match=r"different shapes, \[\(2,\), \(3,\)\]"):
        on_traced(lambda x: enp.array([x, x[:2]]), X)
    with pytest.raises(ValueError, match="infs or NaNs"):
        on_traced(lambda x: enp.asarray_chkfinite([x[0], np.nan]), X)
    for fromiter in (np.fromiter, enp.fromiter):
        with pytest.raises(ValueError, match=r"iterator too short: Expected 5 but iterator had only 2 items"):
            fromiter([X[0], 1.0], float, 5)
    with pytest.raises(ValueError, match=r"iterator too short: Expected 5 but iterator had only 3 items"):
        on_traced(lambda x: enp.fromiter(iter(x), float, 5), X)
    with pytest.raises(ValueError, match=r"item 1 has the shape \(3,\), and each has to be a number"):
        on_traced(lambda x: enp.fromiter([x[0], x], float), X)


ITERATORS = {
    "a list": lambda x: enp.fromiter([x[0], 2.0, 3.0], float, 2),
    "an array": lambda x: enp.fromiter(x, np.float32),
    "a generator": lambda x: enp.fromiter((v * v for v in x), float),
    "many": lambda x: enp.fromiter((x[k % 3] for k in iter(int, 1)), float, 4),
    "plain at first": lambda x: enp.fromiter(iter([1.0, x[1]]), x.dtype),
    "nothing": lambda x: enp.fromiter(iter([]), x.dtype),
}


@pytest.mark.parametrize("made", ITERATORS.values(), ids=ITERATORS)
def test_iterators(made):
    """An array of what an iterator gives is NumPy's, whether it is traced or not, with its derivative."""
    expected = made(X)
    for found in (on_traced(made, X), jit(made)(X), vmap(made)(X[None])[0]):
        assert alike(found, expected)
    if expected.dtype == X.dtype:
        check_grads(made, X)
