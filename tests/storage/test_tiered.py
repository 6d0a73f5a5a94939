from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, EntryLostError, Tiered
from ebbtide.storage.extents import round_up
from ebbtide.storage.system import POSIX


def state(key):
    """8000 bytes that are told by their key."""
    return [np.full(1000, float(key))]


def in_memory(storage):
    """The keys that lie in memory."""
    return [key for key, here in storage._here.items() if here]


def test_memory_first_and_never_too_much(tmp_path):
    """Nothing goes to disk before memory is full, and memory never holds more than it may."""
    with Tiered(24_000, Disk(tmp_path)) as storage:
        for key in range(3):
            storage.put(key, state(key))
        assert list(tmp_path.iterdir()) == []
        for key in range(3, 10):
            storage.put(key, state(key))
            assert storage.memory_nbytes == 24_000
        assert [storage.take(key)[0][0] for key in range(10)] == list(range(10))
        assert (storage.memory_nbytes, storage.nbytes) == (0, 0)


def test_what_was_put_first_goes_to_disk_first(tmp_path):
    """A reverse sweep needs the first state last, so without hints the oldest goes down."""
    with Tiered(24_000, Disk(tmp_path)) as storage:
        for key in range(7):
            storage.put(key, state(key))
        assert in_memory(storage) == [4, 5, 6]


def test_what_is_wanted_last_goes_to_disk_first(tmp_path):
    """With the order of `prefetch` known, the last one in it goes down, also the new entry itself."""
    with Tiered(24_000, Disk(tmp_path)) as storage:
        storage.prefetch([3, 0, "later", 2, 1])
        for key in (0, 1, 2, 3):
            storage.put(key, state(key))
        assert in_memory(storage) == [0, 2, 3]
        storage.put("later", state(9))
        assert in_memory(storage) == [0, 3, "later"]
        storage.put("unknown", state(8))
        assert in_memory(storage) == [0, 3, "later"]
        assert [storage.take(key)[0][0] for key in (3, 0, "later", 2, 1, "unknown")] == [3, 0, 9, 2, 1, 8]


def test_an_entry_that_is_larger_than_memory_goes_to_disk(tmp_path):
    """It moves nothing else."""
    with Tiered(10_000, Disk(tmp_path)) as storage:
        storage.put("small", state(1))
        storage.put("large", [np.zeros(5000)])
        assert in_memory(storage) == ["small"]


def test_a_reservation_is_for_what_memory_cannot_hold(tmp_path):
    """Of ten entries, three of which fit into memory, seven are reserved on disk."""
    disk = Disk(tmp_path)
    with Tiered(24_000, disk) as storage:
        storage.reserve(3, 8192)
        storage.reserve(10, 8000)
        assert disk.directory is not None
        assert (disk.directory / "segment").stat().st_size == round_up(7 * 8000)


def test_the_disk_must_be_empty(tmp_path):
    """Entries that were there before would have no place in the order."""
    with Disk(tmp_path) as disk:
        disk.put(3, state(3))
        with pytest.raises(StorageError, match="has to be empty, and has entries, 3 among them"):
            Tiered(100, disk)


@pytest.mark.parametrize("disk", [None, "scratch", Disk])
def test_what_is_no_storage_is_refused(disk):
    """The second argument is a storage, and not where one would be."""
    with pytest.raises(TypeError, match=r"one such as Disk\(\), not"):
        Tiered(100, disk)


def test_close_closes_the_disk(tmp_path):
    """Both tiers end together."""
    disk = Disk(tmp_path)
    storage = Tiered(0, disk)
    storage.put(0, state(0))
    storage.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="closed"):
        disk.put(1, state(1))


def count_calls(use):
    """How many functions, of Python and of C, a call calls."""
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        use()
    finally:
        sys.setprofile(None)
    return sum(event.endswith("call") for event in calls)


@pytest.mark.parametrize("hinted", [False, True])
def test_a_full_memory_is_not_looked_through(tmp_path, hinted):
    """What `put`, `take` and `prefetch` do does not depend on how many entries there are, in memory and on disk."""
    counts = []
    for number in (20, 400):
        with Tiered(number * 8000, Disk(tmp_path)) as storage:
            for key in range(2 * number):
                storage.put(key, state(key))
            if hinted:
                storage.prefetch([number, "new", 3])
            counts.append([
                count_calls(lambda storage=storage: storage.put("new", state(0))),
                count_calls(lambda storage=storage: storage.prefetch(["new", 2])),
                count_calls(lambda storage=storage: storage.take("new")),
            ])  # fmt: skip
            assert len(in_memory(storage)) == number - 1
    # To ask whether the writer has come to it takes a few calls.
    assert all(abs(few - many) < 20 for few, many in zip(*counts, strict=True))


def test_what_is_wanted_twice_has_the_place_of_its_first_use(tmp_path):
    """What is not named goes to disk before what is named last, however often others are named before that."""
    with Tiered(16_000, Disk(tmp_path)) as storage:
        storage.prefetch([0, 0, 0, 1])
        for key in (1, "unknown", 0):
            storage.put(key, state(1))
        assert in_memory(storage) == [1, 0]


def test_the_order_is_right_after_any_calls(tmp_path):
    """Whatever is put, taken and announced in any order: what goes to disk is what will be needed last."""
    random = np.random.default_rng(0)
    with Tiered(5 * 8000, Disk(tmp_path)) as storage:
        ranks, numbers = {}, {}
        for number in range(600):
            key = int(random.integers(30))
            if number % 7 == 0:
                order = random.integers(30, size=6).tolist()
                storage.prefetch(order)
                ranks = {key: place for place, key in reversed(list(enumerate(order)))}
            elif key in storage.keys():
                assert storage.take(key)[0][0] == key
            else:
                held = {key, *in_memory(storage)}
                numbers[key] = number
                storage.put(key, state(key))
                if len(held) > 5:
                    held.discard(max(held, key=lambda key: (ranks.get(key, 30), -numbers[key])))
                assert set(in_memory(storage)) == held


def test_what_the_disk_lost_is_not_there(tmp_path):
    """The storage goes on without it, as a `Disk` does: it is no key, and can be put again."""
    fails = True

    def pwrite(descriptor, block, offset):
        if fails:
            raise OSError(errno.EIO, "I/O error")
        return os.pwrite(descriptor, block, offset)

    with Tiered(100, Disk(tmp_path, buffer="4 MiB", system=replace(POSIX, pwrite=pwrite))) as storage:
        storage.put("a", [np.zeros(40_000)])
        with pytest.raises(EntryLostError, match="'a'"):
            storage.flush()
        fails = False
        assert storage.keys() == ()
        storage.put("a", [np.ones(40_000)])
        assert storage.keys() == ("a",)
        assert storage.take("a")[0][0] == 1
        assert storage.keys() == ()
