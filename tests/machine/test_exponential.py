"""exp of floats and doubles in the machine has NumPy's bits, and its failures."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ebbtide.machine import Chain

EXP = {letter: Chain(2, (np.exp, f"{letter}->{letter}", 0, 1)) for letter in "fd"}
EDGES = {
    "f": [0.0, 1e-37, 2.0**-25, 2.0**-13, 0.5, 1.0, 86.99, 87.0, 87.34, 88.72, 88.73, 103.98, 1e30, 1e-45, 1e-39],
    "d": [0.0, 5e-324, 1e-310, 2.0**-54, 2.0**-27, 0.5, 1.0, 511.99, 512.0, 700.0, 709.78, 709.79, 745.14, 1e300],
}
# How many of the edges fail nowhere; a number just too large for our loop; one that overflows, and one that underflows.
GOOD, BEYOND = {"f": 8, "d": 9}, {"f": 88.0, "d": 600.0}
OVER, UNDER = {"f": 89.0, "d": 710.0}, {"f": -110.0, "d": -746.0}
NUMBERS = {
    "around zero": lambda random, letter: 3.0 * random.standard_normal(200_001),
    "of all results": lambda random, letter: (0.14 if letter == "f" else 1.0) * random.uniform(-750.0, 715.0, 200_001),
    "of all sizes": lambda random, letter: random.integers(0, 256, 1_600_008, np.uint8).view(letter),
    "tiny": lambda random, letter: np.ldexp(random.uniform(-1.0, 1.0, 200_001), random.integers(-80, 0, 200_001)),
    "edges": lambda random, letter: np.array(
        [*EDGES[letter], *[-x for x in EDGES[letter]], np.inf, -np.inf, np.nan, -np.nan]
    ),
    "masked": lambda random, letter: np.where(random.random(200_001) < 0.2, -np.inf, random.standard_normal(200_001)),
}


@pytest.mark.parametrize("letter", "fd")
@pytest.mark.parametrize("kind", NUMBERS)
def test_bits(kind, letter):
    """Each bit is that of NumPy, those of NaN among them."""
    x = NUMBERS[kind](np.random.default_rng(0), letter).astype(letter)
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        EXP[letter](x, out)
        assert out.tobytes() == np.exp(x).tobytes()


@pytest.mark.parametrize("letter", "fd")
def test_however_numbers_lie(letter):
    """Any number of them, any stride, in place, with one that is too large at any place."""
    random = np.random.default_rng(1)
    for count in (*range(14), 17, 19):
        for place in range(-1, count):
            x = random.standard_normal((3, 2 * count)).astype(letter)
            if place >= 0:
                x[:, 2 * place] = BEYOND[letter]
            for part in (x[:, ::2], x[:, ::2][:, ::-1], np.ascontiguousarray(x[:, ::2]), x[:, ::2].T.copy().T):
                wanted = np.exp(part)
                outs = np.empty(part.shape), np.empty(part.shape[::-1]).T, np.empty((3, 3 * count))[:, ::3]
                for out in [np.zeros_like(out, letter) for out in outs]:
                    EXP[letter](part, out)
                    assert np.array_equal(out, wanted)
                within = part.copy()
                EXP[letter](within, within)
                assert np.array_equal(within, wanted)


@pytest.mark.parametrize("letter", "fd")
def test_failures(letter):
    """Small numbers are no underflow; what overflows and underflows in NumPy does so, wherever it stands."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for x in (*EDGES[letter][: GOOD[letter]], np.inf, np.nan):
            for sign in (1.0, -1.0):
                EXP[letter](np.full(9, sign * x, letter), np.empty(9, letter))
    for place in range(19):
        for number, text in ((OVER[letter], "overflow"), (UNDER[letter], "underflow")):
            x = np.ones(19, letter)
            x[place] = number
            with np.errstate(all="raise"), pytest.raises(FloatingPointError, match=text):
                EXP[letter](x, np.empty(19, letter))


def test_subnormal_floats_fail_as_in_numpy():
    """NumPy's loop for AVX2 says of exp of a subnormal float that it underflows, though the result is 1."""

    def failure(call, x):
        with np.errstate(all="raise"):
            try:
                call(x)
            except FloatingPointError as error:
                return str(error)
        return "none"

    for number in (1e-40, -1e-45, 1e-37):
        x = np.full(9, number, np.float32)
        assert failure(lambda x: EXP["f"](x, np.empty_like(x)), x) == failure(np.exp, x)
