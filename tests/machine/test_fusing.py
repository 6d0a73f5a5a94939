"""Operations done at once: with the bits, and the failures, of the operations one after the other."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

from ebbtide.machine import Chain
from ebbtide.machine.fusing import fused

ARITHMETIC = (np.add, np.subtract, np.multiply)
ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42)


def pairs(letter):
    """All chains of registers 0 to 3 that are one loop, as (instructions, operations of NumPy)."""
    two, one = f"{letter}{letter}->{letter}", f"{letter}->{letter}"
    for first, last in itertools.product(ARITHMETIC, ARITHMETIC):
        yield ((first, two, 0, 1, 4), (last, two, 4, 2, 3)), lambda x, y, z, f=first, g=last: g(f(x, y), z)
        yield ((first, two, 0, 1, 4), (last, two, 2, 4, 3)), lambda x, y, z, f=first, g=last: g(z, f(x, y))
    yield ((np.add, two, 0, 1, 4), (np.maximum, two, 4, 2, 3)), lambda x, y, z: np.maximum(x + y, z)
    yield ((np.square, one, 0, 4), (np.add, two, 1, 4, 3)), lambda x, y, z: y + np.square(x)
    for register in ((4, 1), (1, 4)):
        yield ((np.sign, one, 0, 4), (np.multiply, two, *register, 3)), lambda x, y, z: y * np.sign(x)
    for register in ((4, 5), (5, 4)):
        steps = (np.multiply, two, 0, 1, 4), (np.square, one, 2, 5), (np.add, two, *register, 3)
        yield steps, lambda x, y, z: x * y + np.square(z)
    steps = (np.square, one, 0, 4), (np.square, one, 1, 5), (np.add, two, 4, 5, 3)
    yield steps, lambda x, y, z: np.square(x) + np.square(y)
    steps = (np.sqrt, one, 0, 4), (np.add, two, 4, 1, 4), (np.divide, two, 2, 4, 3)
    yield steps, lambda x, y, z: z / (np.sqrt(x) + y)


@pytest.mark.parametrize("letter", "fd")
def test_loops_have_numpys_bits(letter):
    """Operands without gaps, with gaps or of one number, of any length, in the place of the result too."""
    random = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        for instructions, expected in pairs(letter):
            arrays = len({register for one in instructions for register in one[2:-1] if register < 3})
            assert len(fused(instructions, 4)) == 1, instructions
            chain = Chain(4, *instructions)
            for size, kind in itertools.product((1, 64, 70), itertools.product((0, 1, 2), repeat=arrays)):
                operands = []
                for gap in (*kind, 1)[:3]:
                    wide = random.standard_normal(size * max(gap, 1)).astype(letter)
                    wide[random.random(len(wide)) < 0.2] = random.choice(ODD)
                    operands.append(wide[:1] if gap == 0 else wide[::gap])
                wanted = np.broadcast_to(expected(*operands), size)
                out = np.empty(size, letter)
                chain(*operands, out)
                same = out.view(f"u{out.itemsize}") == np.ascontiguousarray(wanted).view(f"u{out.itemsize}")
                assert np.all(same | np.isnan(wanted) & np.isnan(out)), (instructions, kind)
                if operands[0].size == size:
                    inside = np.array(operands[0])
                    chain(inside, *operands[1:], inside)
                    assert np.array_equal(inside, wanted, equal_nan=True), (instructions, kind)


def test_chains_give_what_they_gave():
    """Random chains, with registers used again in any way, give NumPy's bits; many of them with fewer instructions."""
    random, fewer = np.random.default_rng(2), 0
    arrays = [random.standard_normal(70) for _ in range(3)]
    with np.errstate(all="ignore"):
        for _ in range(500):
            instructions, values, known = [], dict(enumerate(arrays)), [0, 1, 2]
            for number in range(count := int(random.integers(2, 9))):
                ufunc = (*ARITHMETIC, np.divide, np.maximum, np.sqrt, np.square, np.sign)[random.integers(8)]
                taken = [int(random.choice([*known, *known[3:], *known[-1:]])) for _ in range(ufunc.nin)]
                target = 3 if number == count - 1 else int(random.integers(4, 8))
                values[target] = ufunc(*[values[one] for one in taken])
                instructions.append((ufunc, "d" * ufunc.nin + "->d", *taken, target))
                known += [target] if target not in known else []
            out = np.empty(70)
            Chain(4, *instructions)(*arrays, out)
            assert np.array_equal(out, values[3], equal_nan=True), instructions
            fewer += len(fused(instructions, 4)) < count
    assert fewer > 100


def test_what_others_read_stays():
    """A value that is read twice, is a result, or whose operands are written over before, is computed where it was."""
    two = "dd->d"
    read_twice = (np.add, two, 0, 1, 4), (np.multiply, two, 4, 2, 5), (np.add, two, 4, 5, 3)
    assert len(fused(read_twice, 4)) == 2
    a_result = (np.add, two, 0, 1, 2), (np.multiply, two, 2, 1, 3)
    assert fused(a_result, 4) == a_result
    written_over = (np.sin, "d->d", 0, 4), (np.add, two, 4, 1, 5), (np.cos, "d->d", 0, 4), (np.multiply, two, 5, 4, 3)
    assert fused(written_over, 4) == written_over
    other_types = (np.add, "ll->l", 0, 1, 4), (np.multiply, "ll->l", 4, 2, 3)
    assert fused(other_types, 4) == other_types


@pytest.mark.parametrize(
    ("kind", "instructions", "value", "name"),
    [
        ("over", ((np.multiply, "dd->d", 0, 0, 2), (np.add, "dd->d", 2, 0, 1)), 1e200, "multiply, add"),
        ("under", ((np.square, "d->d", 0, 2), (np.multiply, "dd->d", 2, 0, 1)), 1e-200, "multiply, multiply"),
        ("invalid", ((np.sqrt, "d->d", 0, 2), (np.add, "dd->d", 2, 0, 2), (np.divide, "dd->d", 0, 2, 1)), -1.0, "sqrt"),
        ("divide", ((np.sqrt, "d->d", 0, 2), (np.add, "dd->d", 2, 0, 2), (np.divide, "dd->d", 3, 2, 1)), 0.0, "divide"),
        ("over", ((np.square, "d->d", 0, 2), (np.square, "d->d", 0, 3), (np.add, "dd->d", 2, 3, 1)), 1e200, "square"),
        ("invalid", ((np.subtract, "dd->d", 0, 0, 2), (np.add, "dd->d", 2, 0, 1)), np.inf, "subtract, add"),
    ],
)  # fmt: skip
def test_failures_are_those_of_the_operations(kind, instructions, value, name):
    """What `np.errstate` says is done, and the message names the operations that were done at once."""
    x, out = np.full(100, value), np.empty(100)
    arrays = (x, out)
    if instructions[-1][2] == 3:  # one operand more
        instructions = tuple([(*one[:2], *[{1: 2, 2: 4, 3: 1}.get(r, r) for r in one[2:]]) for one in instructions])
        arrays = (x, np.ones(100), out)
    chain = Chain(len(arrays), *instructions)
    for mode in ("ignore", "warn", "raise"):
        settings: Any = {"all": "raise", kind: mode}
        with np.errstate(**settings), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            if mode == "raise":
                with pytest.raises(FloatingPointError, match=name):
                    chain(*arrays)
            else:
                chain(*arrays)
        assert [name in str(one.message) for one in found] == [True] * (mode == "warn")


def test_comparisons_with_nan_are_no_failure():
    """NaN goes through the larger of two, and through signs, without a word, as in NumPy."""
    x, out = np.array([np.nan, 1.0] * 50), np.empty(100)
    with np.errstate(all="raise"):
        Chain(3, (np.add, "dd->d", 0, 0, 3), (np.maximum, "dd->d", 3, 1, 2))(x, np.array(0.0), out)
        Chain(2, (np.sign, "d->d", 0, 1))(x, out)
        Chain(3, (np.sign, "d->d", 0, 3), (np.multiply, "dd->d", 3, 1, 2))(x, np.array(2.0), out)
        Chain(3, (np.minimum, "dd->d", 0, 1, 2))(x, np.array(0.0), out)
    assert np.array_equal(out, np.minimum(x, 0), equal_nan=True)
