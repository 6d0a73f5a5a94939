"""Nests of loops: the bits and the errors of the steps they are in the place of, run by Python or compiled by Numba."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from ebbtide.machine import Elementwise, Machine, compiled
from ebbtide.machine._compiled import Compiled
from ebbtide.machine.nests import MOST_STEPS, MOST_VIEWS, nest_of

from .nests import Function, Interpreted, random_part


def run(step, buffers):
    """Return the bytes of the last buffer after a step."""
    buffers[-1][...] = 7
    with np.errstate(all="ignore"):
        Machine(step)(*buffers)
    return buffers[-1].tobytes()


def test_random_steps():
    """Random operations on operands that lie anyhow have the bits of the machine's own loops."""
    for seed in range(150):
        random = np.random.default_rng(seed)
        shape = tuple(int(n) for n in random.integers(1, 6, random.integers(1, 4)))
        part, buffers = random_part(random, shape, int(random.integers(1, 7)))
        with np.errstate(all="ignore"):
            wanted = run(Elementwise(*part), buffers)
            made = Interpreted()
            assert run(made(part), buffers) == wanted, seed


def test_random_steps_compiled():
    """Compiled by Numba, too."""
    pytest.importorskip("numba", reason="Numba is not installed")
    for seed in range(12):
        random = np.random.default_rng([seed, 1])
        part, buffers = random_part(random, (3, 41, 67), 6)
        wanted = run(Elementwise(*part), buffers)
        assert run(compiled(part), buffers) == wanted, seed


D = (np.add, "dd->d")
SQUARE = (np.square, "d->d", 0, 1)


def strip(offset, buffer=0):
    """Eight numbers of a buffer."""
    return buffer, offset, "d", (8,)


@pytest.mark.parametrize(
    "parts",
    [
        # A result where an operand is, or that is read.
        [((8,), (strip(0), strip(0, 1), strip(0)), (*D, 0, 1, 2))],
        [((8,), (strip(0), strip(8), strip(64)), (*D, 0, 1, 2))],
        [((8,), (strip(0), strip(0, 1)), (*D, 1, 0, 1))],
        # A later step that overwrites what an earlier one reads, or reads other elements than an earlier one writes.
        [((8,), (strip(0), strip(0, 1)), SQUARE), ((8,), (strip(0, 1), strip(8)), SQUARE)],
        [((8,), (strip(0), strip(0, 1)), SQUARE), ((8,), (strip(8, 1), strip(0, 2)), SQUARE)],
        [((8,), (strip(0), strip(0, 1)), SQUARE), ((7,), (strip(0), strip(0, 2)), SQUARE)],
        # Operations that a compiler has other bits for, or whose errors it may lose.
        [((8,), (strip(0), strip(0, 1)), (np.exp, "d->d", 0, 1))],
        [((8,), (strip(0), strip(0, 1)), (np.sqrt, "d->d", 0, 2), (np.maximum, "dd->d", 0, 2, 1))],
        [((8,), ((0, 0, "D", (16,)), (1, 0, "D", (16,))), (np.square, "D->D", 0, 1))],
        [((8,), (strip(0), (1, 0, "l", (8,))), ("cast", "d->l", 0, 1))],
        [((0,), (strip(0), strip(0, 1)), SQUARE)],
    ],
)  # fmt: skip
def test_what_is_no_nest(parts):
    """Steps whose elements depend on the order, or whose operations are NumPy's alone, are left as they are."""
    assert nest_of(parts) is None
    with pytest.raises(ValueError, match="no nest"):
        compiled(*parts)


def test_steps_after_each_other():
    """Steps of a shape are one nest; a later one may read what an earlier one has written, element by element."""
    parts = (
        ((5, 8), ((0, 0, "d", (64, 8)), (1, 8, "d", (80, 8))), (np.square, "d->d", 0, 1)),
        ((5, 8), ((1, 8, "d", (80, 8)), (0, 0, "d", (64, 8)), (2, 0, "d", (64, 8))), (*D, 0, 1, 2)),
    )
    x = np.random.default_rng(0).standard_normal((5, 8))
    found, wanted = ([np.zeros((5, 10)), np.zeros((5, 8))] for _ in "ab")
    Machine(*[Elementwise(*part) for part in parts])(x, *wanted)
    Machine(Interpreted()(*parts))(x, *found)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    # In rows with gaps between them: two loops; what was just written is not read again.
    nest = nest_of(parts)
    assert nest.text.count("for ") == 2
    assert nest.text.count("a1[") == 1


def test_axes():
    """Rows without gaps are one loop; the fastest axis of the result is the innermost, and axes of one are none."""

    def loops(shape, *strides):
        operands = tuple((k, 0, "d", tuple(8 * n for n in one)) for k, one in enumerate(strides))
        return [line.strip() for line in nest_of([(shape, operands, (np.square, "d->d", 0, 1))]).text.split("\n")[3:-2]]

    assert loops((4, 3, 5), (15, 5, 1), (15, 5, 1))[0] == "for i0 in range(60):"
    assert loops((4, 3, 5), (0, 5, 1), (15, 5, 1))[:2] == ["for i0 in range(4):", "for i1 in range(15):"]
    assert loops((4, 3), (1, 4), (1, 4))[0] == "for i0 in range(12):"
    assert loops((3, 1, 5), (5, 99, 1), (10, 99, 1))[:2] == ["for i0 in range(3):", "for i1 in range(5):"]


def overflowing(out):
    """Two operations, of which the second one overflows."""
    return (2000,), ((0, 0, "d", (8,)), (1, 0, "d", (8,))), (np.negative, "d->d", 0, 2), (np.square, "d->d", 2, out)


@pytest.mark.parametrize("how", ["machine", "numba"])
def test_errors(how):
    """What failed is found out by doing it again; an underflow is one of the operations together."""
    if how == "numba":
        pytest.importorskip("numba", reason="Numba is not installed")
    part = overflowing(1)
    machine = Machine(compiled(part) if how == "numba" else Elementwise(*part))
    out, tiny = np.zeros(2000), 1e-160 * 1e-160
    with np.errstate(all="raise"):
        machine(np.full(2000, 1e100), out)
        with pytest.raises(FloatingPointError, match=r"^overflow encountered in square$"):
            machine(np.full(2000, 1e200), out)
        assert np.all(out == np.inf)
        machine(np.full(2000, np.nan), out)
        assert np.all(np.isnan(out))
        with pytest.raises(FloatingPointError, match=r"^underflow encountered in .*square$"):
            machine(np.full(2000, 1e-160), out)
        assert np.all(out == tiny)
        machine(np.full(2000, 2.0), out)
    with np.errstate(all="ignore"):
        machine(np.full(2000, 1e200), out)
    with pytest.warns(RuntimeWarning, match="overflow"):
        machine(np.full(2000, 1e200), out)


def test_flags():
    """Flags that a function leaves are looked at once: what is done again decides, but for an underflow."""
    left, products = [1.0, 1.0], []

    def multiply(addresses):
        products.append(left[0] * left[1])

    function = Function(multiply)
    address = ctypes.cast(function, ctypes.c_void_p).value
    machine = Machine(Compiled((Elementwise(*overflowing(1)),), ((0, 0), (1, 0)), address))
    x, out = np.full(2000, 3.0), np.zeros(2000)
    with np.errstate(all="raise"):
        machine(x, out)
        assert np.all(out == 0)  # the function does nothing
        left[:] = 1e200, 1e200  # an overflow, which no operation has
        machine(x, out)
        assert np.all(out == 9)
        with pytest.raises(FloatingPointError, match=r"^overflow encountered in square$"):
            machine(np.full(2000, 1e200), out)
        left[:] = 1e-200, 1e-200
        with pytest.raises(FloatingPointError, match=r"^underflow encountered in negative, square$"):
            machine(x, out)
        left[:] = 1.0, 1.0
        machine(x, out)


def test_limits():
    """More steps or places than there is room for are no nest, and an error."""
    step, place = Elementwise(*overflowing(1)), (0, 0)
    Compiled((step,) * MOST_STEPS, (place,) * MOST_VIEWS, 0)
    for steps, places in ((1, MOST_VIEWS + 1), (MOST_STEPS + 1, 1)):
        with pytest.raises(ValueError, match="at most"):
            Compiled((step,) * steps, (place,) * places, 0)
    for apart, most in ((0, MOST_STEPS), (1, MOST_VIEWS // 2)):  # in the same buffers, and in others
        parts = [((8,), (strip(0, k * apart), strip(64 * k, 99 + k * apart)), SQUARE) for k in range(most + 1)]
        assert nest_of(parts[:most]) is not None
        assert nest_of(parts[: most + 1]) is None


def test_compiled_once():
    """The same source is compiled once, wherever its buffers are."""
    pytest.importorskip("numba", reason="Numba is not installed")
    from ebbtide.machine.compiling import _function

    before = _function.cache_info().misses
    for first in (0, 3):
        part = (9,), ((first, 16, "d", (8,)), (first + 1, 0, "d", (8,))), (np.square, "d->d", 0, 1)
        compiled(part)
    assert _function.cache_info().misses == before + 1
