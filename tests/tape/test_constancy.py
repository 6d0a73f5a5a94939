"""What steps meet from outside: the same array may not change from step to step, and is not kept."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from ebbtide import MutationError, checkpoint, timeloop, vjp
from ebbtide.schedules import Revolve
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


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("function", ["loop", "checkpoint"])
def test_memory_mapped_arrays(function, whole, tmp_path):
    """An array in a file that changes before the reverse sweep is told like one in memory, whole or in parts."""
    mapped = np.memmap(tmp_path / "k", float, "w+", shape=(4, 4))
    mapped[:] = 2.0
    start = np.zeros((4, 4) if whole else 4)

    def step(s, i):
        return mapped * s if whole else s * mapped[i]

    def f(u):
        if function == "checkpoint":
            return checkpoint(lambda u: step(u, 1))(u)
        return timeloop(step, u, 4, schedule=Revolve(1))

    _, pullback = vjp(f, start)
    mapped[0] = mapped[1] = 3.0
    with pytest.raises(MutationError, match=r"shape .* and dtype float64"):
        pullback(start)
