from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np

from ebbtide.storage import Memory

MIB = 1 << 20


def test_take_does_not_copy():
    """`take` hands over the stored copy itself: no second array is ever there."""
    storage = Memory()
    storage.put(0, [np.zeros(4 * MIB, dtype=np.uint8)])
    tracemalloc.start()
    try:
        storage.take(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_put_holds_no_view():
    """A stored slice is as large as itself: the array that it was cut from is not kept."""
    base = np.zeros(1000)
    storage = Memory()
    assert storage.put(0, [base[:10]]) == 80
    assert storage.get(0)[0].base is None
    watch = weakref.ref(base)
    del base
    assert watch() is None


def test_all_of_it_is_memory():
    """`memory_nbytes` is `nbytes`."""
    storage = Memory()
    storage.put(0, [np.zeros(10)])
    assert storage.memory_nbytes == storage.nbytes == 80


def test_a_dropped_storage_is_gone_without_the_collector():
    """There is no cycle: the last reference frees the storage."""
    gc.disable()
    try:
        storage = Memory()
        storage.put(0, [np.zeros(10)])
        watch = weakref.ref(storage)
        del storage
        assert watch() is None
    finally:
        gc.enable()
