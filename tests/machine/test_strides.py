"""Loops of the machine are right however numbers lie: those of NumPy 2.4.6 fail for some strides of results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ebbtide import grad, jit
from ebbtide.machine import Elementwise, Machine

# 19 numbers of 32 bytes, 16 of them apart.
SPAN = 19 * 16 * 32


ONE = [ufunc for ufunc in vars(np).values() if isinstance(ufunc, np.ufunc) and ufunc.nin == ufunc.nout == 1]


@pytest.mark.parametrize("ufunc", sorted(set(ONE), key=lambda ufunc: ufunc.__name__), ids=lambda ufunc: ufunc.__name__)
def test_any_stride(ufunc):
    """Columns of arrays with any number of columns, into columns of others: what NumPy has for packed numbers."""
    random = np.random.default_rng(0)
    for types in [types for types in ufunc.types if not set(types) & set("OMm")]:
        given, made = np.dtype(types[0]), np.dtype(types[-1])
        for count, columns, into in itertools.product((1, 3, 16, 19), (1, 2, 3, 4, 8, 16), (1, 2, 3, 4, 8, 16)):
            memory = np.zeros(2 * SPAN, np.uint8)
            x = memory.view(given)[: columns * count : columns]
            out = memory[SPAN:].view(made)[: into * count : into]
            x[...] = random.integers(0, 2, count)  # in the domain of all functions
            if made.char == "?" and given.kind in "fc":
                x[::3], x[1::3] = np.nan, -np.inf
            operands = (0, 0, given.char, x.strides), (0, SPAN, made.char, out.strides)
            with np.errstate(all="ignore"):
                Machine(Elementwise((count,), operands, (ufunc, types, 0, 1)), workspace=0)(memory)
                expected = ufunc(x.copy(), dtype=made if given == made else None)
            np.testing.assert_allclose(out, expected, rtol=1e-2 if made.char == "e" else 1e-6)
            assert np.count_nonzero(memory[SPAN:].view(made)) == np.count_nonzero(out)


@pytest.mark.parametrize("executor", ["machine", "reference"])
@pytest.mark.parametrize(("dtype", "columns"), [(np.float64, 8), (np.float32, 4)])
def test_columns(dtype, columns, executor):
    """The negative of a column that becomes a column of another array, and its gradient."""
    x = np.random.default_rng(0).standard_normal((100_000, columns)).astype(dtype)

    def f(x):
        return np.concatenate([-x[:, -1:], x[:, :-1]], axis=1)

    assert np.array_equal(jit(f, executor=executor)(x), f(x))
    slope = grad(lambda x: np.sum(f(x) * f(x)[::-1]))
    assert np.array_equal(jit(slope, executor=executor)(x), slope(x))


def test_bits():
    """A negative changes the sign of zeros and of NaN, and nothing else; nothing fails."""
    memory = np.zeros(64 * 8, np.uint8)
    x = memory.view(np.float64)[:32:8]
    x[...] = [0.0, -0.0, np.nan, -np.inf]
    expected = np.negative(x.copy()).tobytes()
    operands = (0, 0, "d", (64,)), (0, 8, "d", (64,))
    with np.errstate(all="raise"):
        Machine(Elementwise((4,), operands, (np.negative, "d->d", 0, 1)), workspace=0)(memory)
    assert memory.view(np.float64)[1:32:8].tobytes() == expected
