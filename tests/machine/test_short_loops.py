"""Loops of ours over what is short, where a call of NumPy's for each piece takes longest: with NumPy's bits."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.machine import Indexed, Machine, Reduction


@pytest.mark.parametrize("letter", "fd")
def test_rows_are_added_one_after_the_other(letter):
    """Sums over the first axis are NumPy's for any number of columns, and with rows that have gaps between them."""
    random = np.random.default_rng(0)
    item = np.dtype(letter).itemsize
    for columns in (*range(2, 75), 100, 127, 128, 129, 200):
        for rows in (1, 2, 9, 33):
            whole = random.standard_normal((rows, columns + 3)).astype(letter)
            whole *= 10.0 ** random.integers(-4, 4, whole.shape)
            for x in (whole[:, :columns], whole[:, :columns].copy(), whole[:, 3:]):
                out = np.full(columns + 2, 7.0, letter)
                operands = (0, 0, letter, x.strides), (1, 0, letter, (0, item))
                Machine(Reduction(x.shape, operands, np.add, f"{letter}{letter}->{letter}", -0.0))(x, out[1:-1])
                assert out[1:-1].tobytes() == np.add.reduce(x, 0).tobytes(), (rows, columns)
                assert out[0] == out[-1] == 7.0


@pytest.mark.parametrize("letter", "fdlDh?")
def test_single_elements_by_one_index(letter):
    """One element for each place of a vector, of any size, however they and the indices lie."""
    random = np.random.default_rng(1)
    for count in (0, 1, 2, 7, 40):
        x = (10 * random.standard_normal(30)).astype(letter)
        for source in (x, x[::2], x[::-1], x[:1]):
            places = random.integers(-len(source), len(source), 2 * count)[::2]
            out = np.zeros(3 * count, letter)[::3]
            operands = [(k, 0, a.dtype.char, a.strides) for k, a in enumerate((source, out, places))]
            Machine(Indexed("gather", source.shape, (count,), *operands))(source, out, places)
            assert out.tobytes() == source[places].tobytes()


def test_an_index_out_of_bounds_stops():
    """What is not there is not read, and the index is named."""
    x, out = np.arange(5.0), np.zeros(3)
    operands = [(k, 0, letter, (8,)) for k, letter in enumerate("ddl")]
    for index in (5, -6, 2**40):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for an axis with size 5"):
            Machine(Indexed("gather", (5,), (3,), *operands))(x, out, np.array([4, index, 0]))
        assert out.tolist() == [4.0, 0.0, 0.0]
