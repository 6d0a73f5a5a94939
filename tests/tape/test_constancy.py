"""What steps meet from outside: the same array may not change from step to step, and is not kept."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from ebbtide import MutationError
from ebbtide.tape.constancy import Constancy


def test_a_change_between_steps_is_told():
    """Within a step an array may change; in a later one it is what it was, or an error with its shape and type."""
    constancy, array = Constancy(), np.ones((2, 3), np.float32)
    constancy.begin()
    constancy.meet(array)
    array[0, 0] = 2.0
    constancy.meet(array)
    array[0, 0] = 1.0
    constancy.begin()
    constancy.meet(array)
    array[1, 2] = 3.0
    constancy.begin()
    with pytest.raises(MutationError, match=r"array array of shape \(2, 3\) and dtype float32"):
        constancy.meet(array)


def test_arrays_are_not_kept():
    """An array dies with its last user, and another one in its place is another one."""
    constancy = Constancy()
    for number in range(600):
        array = np.full(4, float(number))
        constancy.begin()
        constancy.meet(array)
        known = weakref.ref(array)
        del array
        assert known() is None
    gc.collect()
    assert len(constancy._met) < 256
