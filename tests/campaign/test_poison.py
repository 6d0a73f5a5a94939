"""Poisoned memory is what it says, and only where it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from .poison import poisoned


def test_new_memory_is_nan():
    """In the block what nobody has written is nan, also where memory is used again; zeros are zeros."""
    with poisoned():
        for _ in range(3):
            one = np.empty((5, 40))
            assert np.isnan(one).all()
            one[:] = 1.0
            del one
        assert np.isnan(np.empty(3, np.complex64)).all()
        assert np.empty_like(np.arange(3)).tolist() == [-1] * 3
        assert np.zeros(3).tolist() == [0.0] * 3
        grown = np.arange(3.0)
        grown.resize(6, refcheck=False)
        assert grown.tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, 0.0]


def test_only_in_the_block():
    """After the block, and after an error in it, memory is NumPy's own; arrays of the block live on."""
    names = [np._core.multiarray.get_handler_name(np.empty(3))]
    with poisoned():
        made = np.ones(3) + np.arange(3)
    with pytest.raises(ZeroDivisionError), poisoned():
        raise ZeroDivisionError
    names.append(np._core.multiarray.get_handler_name(np.empty(3)))
    assert names[0] == names[1] != np._core.multiarray.get_handler_name(made)
    assert made.tolist() == [1.0, 2.0, 3.0]
