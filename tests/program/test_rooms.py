"""Memory that is there before what is put into it."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.rooms import filled, lying, result, room


def test_a_room_is_what_it_is_for():
    """A room has the type that it was asked for, in C order, and what fills it is taken out by its number."""
    made = room(ArrayType((3, 2), np.dtype(np.float32)))
    assert (made.shape, made.dtype, made.flags.c_contiguous) == ((3, 2), np.float32, True)
    whole = [object(), made]
    assert filled(whole, 1, made) is made


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_an_array_is_made_to_lie_as_it_was_planned(order):
    """What lies so already is no copy; what lies otherwise is one, with the same elements and the planned strides."""
    x = np.arange(24.0).reshape(2, 3, 4)
    planned = np.empty([x.shape[axis] for axis in order]).transpose(np.argsort(order)).strides
    found = lying(x, planned)
    assert found.strides == planned
    assert np.array_equal(found, x)
    assert (found is x) == (planned == x.strides)


def test_a_result_has_an_axis():
    """A number is a result of one element, and a result shares no memory."""
    assert result(2.5).shape == (1,)
    x = np.ones((2, 3)).T
    assert not np.shares_memory(result(x), x)
    assert result(x).flags.c_contiguous
