"""Short rows: operands that are broadcast along them are written out, and the bits stay."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide.machine import Elementwise, Machine


def step(shape, arrays, out, *instructions):
    """A step on arrays that are broadcast to a shape."""
    spread = [np.broadcast_to(array, shape) for array in (*arrays, out)]
    operands = tuple([(k, 0, one.dtype.char, one.strides) for k, one in enumerate(spread)])
    return Machine(Elementwise(shape, operands, *instructions))


@pytest.mark.parametrize("letter", "fd")
def test_rows_of_any_length(letter):
    """Whatever an operand is broadcast along, and however it lies, each row has NumPy's bits."""
    random = np.random.default_rng(1)
    for _ in range(100):
        shape = tuple(random.choice([1, 2, 3, 10, 48, 70], random.integers(1, 4)).tolist())
        arrays = []
        for _ in range(2):
            own = [n if random.random() < 0.6 else 1 for n in shape]
            array = random.standard_normal(own).astype(letter)
            if random.random() < 0.3:
                array = np.asfortranarray(array)
            if random.random() < 0.3:
                array = np.repeat(array, 2, -1)[..., ::2]
            arrays.append(array)
        out = np.empty(shape, letter)
        two = f"{letter}{letter}->{letter}"
        links = (np.subtract, two, 0, 1, 3), (np.exp, f"{letter}->{letter}", 3, 4), (np.multiply, two, 4, 1, 2)
        step(shape, arrays, out, *links)(*arrays, out)
        wanted = np.broadcast_to(np.exp(arrays[0] - arrays[1]) * arrays[1], shape)
        assert out.tobytes() == wanted.tobytes(), shape


def test_a_result_in_the_place_of_an_operand():
    """A bias is added in place, of rows with gaps between them too."""
    bias = np.arange(5.0)
    for wide in (np.ones((40, 5)), np.ones((40, 9))[:, :5]):
        wanted = wide + bias
        operands = tuple([(k, 0, "d", (wide.strides[0] * (k == 0), 8)) for k in (0, 1)])
        Machine(Elementwise(wide.shape, operands, (np.add, "dd->d", 0, 1, 0)))(wide, bias)
        assert np.array_equal(wide, wanted)


def test_types_of_all_sizes():
    """What is written out is of 1, 2, 4, 8 or 16 bytes; an operand of any other size is read row by row."""
    for letter in "?hfdDg":
        x, out = np.arange(300).reshape(60, 5).astype(letter), np.empty((60, 5), letter)
        bias = np.arange(5).astype(letter)
        ufunc = np.logical_and if letter == "?" else np.add
        step((60, 5), (x, bias), out, (ufunc, f"{letter}{letter}->{letter}", 0, 1, 2))(x, bias, out)
        assert np.array_equal(out, ufunc(x, bias)), letter


def test_many_operands_are_read_row_by_row():
    """No more than four operands are written out, and nothing is allocated either way."""
    bias = [np.arange(5.0) + k for k in range(6)]
    x, out = np.ones((60, 5)), np.empty((60, 5))
    links = [(np.add, "dd->d", 0 if k == 1 else 7, k, 7) for k in range(1, 7)]
    machine = step((60, 5), (x, *bias), out, *links)
    machine(x, *bias, out)
    assert np.array_equal(out, x + np.sum(bias, 0))
    assert peak_bytes(lambda: machine(x, *bias, out)) < 4000
