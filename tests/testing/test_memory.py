"""`assert_peak_below` against what is known to be allocated."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ebbtide import grad, profile
from ebbtide.testing import assert_peak_below

UNIT = 1 << 20


def test_bound():
    """A block below the bound passes and has its peak; at the bound, or above, it is an error with both numbers."""
    with assert_peak_below("3 MiB") as peak:
        np.empty(2 * UNIT, np.uint8)
    assert 2 * UNIT <= peak.nbytes < 2 * UNIT + 10_000
    message = r"took 20\d{5} bytes \(2\.0 MiB\).*below 2097152 bytes"
    with pytest.raises(AssertionError, match=message), assert_peak_below(2 * UNIT):
        np.empty(2 * UNIT, np.uint8)
    assert not tracemalloc.is_tracing()


def take_seven():
    """Allocate seven units, then two around one, in blocks of their own."""
    np.empty(7 * UNIT, np.uint8)
    kept = np.empty(2 * UNIT, np.uint8)
    with assert_peak_below(2 * UNIT), profile() as p:
        np.empty(UNIT, np.uint8)
    del kept
    assert UNIT <= p.peak_bytes < 2 * UNIT


def test_blocks_in_each_other():
    """Each block has its own bound, and what was allocated before the inner one counts for the outer one only."""
    with pytest.raises(AssertionError, match="below 6291456"), assert_peak_below(6 * UNIT):
        take_seven()
    with (
        assert_peak_below(6 * UNIT),
        pytest.raises(AssertionError, match="below 2097152"),
        assert_peak_below(2 * UNIT),
    ):
        np.empty(3 * UNIT, np.uint8)


def test_an_error_comes_out_as_it_is():
    """A block that raises raises that, whatever it took, and leaves tracemalloc as it was."""
    tracemalloc.start()
    try:
        with pytest.raises(KeyError), assert_peak_below(10):
            raise KeyError(np.empty(UNIT, np.uint8).shape)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="bytes"), assert_peak_below("many bytes"):
        raise AssertionError("the block ran")


def test_of_a_gradient():
    """The gradient of a chain of sines holds one array a sine, and a bound on it says so."""
    x = np.linspace(0, 1, UNIT // 8)

    def chain(x):
        for _ in range(10):
            x = np.sin(x)
        return np.sum(x)

    grad(chain)(x)
    with assert_peak_below(12 * UNIT):
        grad(chain)(x)
    with pytest.raises(AssertionError, match="at its peak"), assert_peak_below(9 * UNIT):
        grad(chain)(x)
