"""exp of doubles in the machine has NumPy's bits, and its failures."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ebbtide.machine import Chain

EXP = Chain(2, (np.exp, "d->d", 0, 1))
EDGES = [0.0, 5e-324, 1e-310, 2.0**-54, 2.0**-27, 0.5, 1.0, 511.99, 512.0, 700.0, 709.78, 709.79, 745.13, 745.14, 1e300]
NUMBERS = {
    "around zero": lambda random: 3.0 * random.standard_normal(200_001),
    "of all results": lambda random: random.uniform(-750.0, 715.0, 200_001),
    "of all sizes": lambda random: random.integers(0, 2**64, 200_001, np.uint64).view(np.float64),
    "tiny": lambda random: np.ldexp(random.uniform(-1.0, 1.0, 200_001), random.integers(-80, 0, 200_001)),
    "edges": lambda random: np.array([*EDGES, *[-x for x in EDGES], np.inf, -np.inf, np.nan, -np.nan]),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_bits(kind):
    """Each bit is that of NumPy, those of NaN among them."""
    x = NUMBERS[kind](np.random.default_rng(0))
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        EXP(x, out)
        assert out.tobytes() == np.exp(x).tobytes()


def test_however_numbers_lie():
    """Any number of them, any stride, in place, with one that is not below 512 at any place."""
    random = np.random.default_rng(1)
    for count in range(14):
        for place in range(-1, count):
            x = random.standard_normal((3, 2 * count))
            if place >= 0:
                x[:, 2 * place] = 600.0
            for part in (x[:, ::2], x[:, ::2][:, ::-1], np.ascontiguousarray(x[:, ::2]), x[:, ::2].T.copy().T):
                wanted = np.exp(part)
                for out in (np.empty(part.shape), np.empty(part.shape[::-1]).T, np.empty((3, 3 * count))[:, ::3]):
                    EXP(part, out)
                    assert np.array_equal(out, wanted)
                within = part.copy()
                EXP(within, within)
                assert np.array_equal(within, wanted)


def test_failures():
    """Small numbers are no underflow; what overflows and underflows in NumPy does so, wherever it stands."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for x in (*EDGES[:9], np.inf, np.nan):
            for sign in (1.0, -1.0):
                EXP(np.full(5, sign * x), np.empty(5))
    for place in range(9):
        for number, text in ((710.0, "overflow"), (-746.0, "underflow")):
            x = np.ones(9)
            x[place] = number
            with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=text):
                EXP(x, np.empty(9))
