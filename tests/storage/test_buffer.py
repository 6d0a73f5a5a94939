"""The thread of a storage: what it holds, in which order it works, and that it makes no difference to the data."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.storage import Disk, entry_nbytes
from ebbtide.storage.system import POSIX

from .helpers import measure_peak, run_python, state, storage_threads

MIB = 1 << 20


def empty(storage):
    """Have all written, and nothing left in the buffer."""
    size = storage.buffer_nbytes
    storage.resize(0)
    storage.resize(size)


def wait_until(condition):
    """Wait for what another thread does; 20 s at most."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def test_put_does_not_wait_for_the_disk(tmp_path, gate):
    """While there is room in the buffer `put` returns though nothing can be written; then it waits."""
    with Disk(tmp_path, buffer=2 * 800_000, system=gate.system) as storage:
        storage.put(0, [state(0)])
        storage.put(1, [state(1)])
        assert gate.writes == []
        third = threading.Thread(target=storage.put, args=(2, [state(2)]))
        third.start()
        third.join(0.1)
        assert third.is_alive()
        gate.open.set()
        third.join(20)
        assert [storage.take(key)[0][-1] for key in (2, 0, 1)] == [2, 0, 1]


def test_few_entries_wait_however_large_the_buffer(tmp_path, gate):
    """Behind a disk that stands still `put` waits before there are 100 entries, though they all would fit."""
    put = []

    def put_all():
        for key in range(100):
            storage.put(key, [state(key, 10_000)])
            put.append(key)

    with Disk(tmp_path, buffer=256 * MIB, system=gate.system) as storage:
        caller = threading.Thread(target=put_all)
        caller.start()
        caller.join(0.1)
        assert caller.is_alive()
        assert len(put) < 100
        gate.open.set()
        caller.join(20)
        assert [storage.take(key)[0][-1] for key in range(100)] == list(range(100))


def test_what_waits_can_be_read_and_deleted(tmp_path, gate):
    """An entry that waits to be written is returned from memory, and once deleted it is never written."""
    with Disk(tmp_path, buffer=8 * 800_000, system=gate.system) as storage:
        for key in range(4):
            storage.put(key, [state(key)])
        # The thread is at key 0 and waits for the gate.
        assert [storage.get(key)[0][0] for key in range(4)] == [0, 1, 2, 3]
        storage.delete(2)
        assert storage.take(3)[0][0] == 3
        gate.open.set()
        storage.flush()
        assert storage.keys() == (0, 1)
        assert storage.bytes_written == 2 * entry_nbytes([state(0)])
        assert storage.bytes_read == 0


def test_what_is_being_written_can_be_taken(tmp_path, gate):
    """An entry is taken while it is written, without waiting for that; its place is free when the write has ended."""
    with Disk(tmp_path, buffer=8 * 800_000, system=gate.system) as storage:
        storage.put(0, [state(0)])
        assert gate.reached.wait(20)
        assert storage.take(0)[0][0] == 0
        assert gate.writes == []
        storage.put(0, [state(1)])
        assert storage.get(0)[0][0] == 1
        gate.open.set()
        storage.flush()
        places = set(gate.writes)
        assert {offset // entry_nbytes([state(0)]) for offset in places} == {0, 1}
        assert storage.nbytes == entry_nbytes([state(1)])
        storage.put(2, [state(2)])
        storage.flush()
        assert set(gate.writes) == places
        empty(storage)
        assert [storage.take(key)[0][-1] for key in (0, 2)] == [1, 2]
        assert storage.nbytes == 0


def test_the_place_of_what_is_being_written_is_waited_for(tmp_path, gate):
    """On a full disk an entry goes where a deleted one is still written to, when that has ended."""
    room = entry_nbytes([state(0)])
    with Disk(tmp_path, limit=room, buffer=8 * 800_000, system=gate.system) as storage:
        storage.put(0, [state(0)])
        assert gate.reached.wait(20)
        storage.delete(0)
        second = threading.Thread(target=storage.put, args=(1, [state(1)]))
        second.start()
        second.join(0.1)
        assert second.is_alive()
        gate.open.set()
        second.join(20)
        storage.flush()
        empty(storage)
        assert storage.get(1)[0][-1] == 1
        assert len(set(gate.writes)) == 3  # the place of one entry: its pages, the last one, the first one


def test_reads_are_ahead_in_the_order_that_was_told(tmp_path, gate):
    """After `prefetch` the thread reads what will be wanted, as much as fits, and goes on as entries are taken."""
    gate.open.set()
    with Disk(tmp_path, buffer=2 * 800_000, system=gate.system) as storage:
        for key in range(6):
            storage.put(key, [state(key)])
        empty(storage)
        size = entry_nbytes([state(0)])
        starts = [key * size for key in range(6)]
        storage.prefetch([5, 4, 3, 2, 1, 0])
        wait_until(lambda: {offset // size for offset in gate.reads} == {5, 4})
        assert storage.take(5)[0][0] == 5
        wait_until(lambda: {offset // size for offset in gate.reads} == {5, 4, 3})
        for key in (4, 3, 2, 1, 0):
            assert storage.take(key)[0][0] == key
        # One after the other, none twice.
        firsts = [offset for offset in gate.reads if offset in starts]
        assert firsts == starts[::-1]


def test_reads_pass_what_is_being_written(tmp_path, gate):
    """Behind entries that are wanted first and still to be written, the next ones are read ahead, once, all right."""
    with Disk(tmp_path, buffer=4 * 800_000, system=gate.system) as storage:
        gate.open.set()
        for key in range(3):
            storage.put(key, [state(key)])
        empty(storage)
        gate.open.clear()
        for key in (3, 4):
            storage.put(key, [state(key)])
        storage.prefetch([4, 3, 2, 1, 0])
        # The order is told again, as a schedule does after each step.
        storage.prefetch([4, 3, 2, 1, 0])
        gate.open.set()
        size = entry_nbytes([state(0)])
        wait_until(lambda: {2 * size, 1 * size} <= set(gate.reads))
        assert [storage.take(key)[0][0] for key in (4, 3, 2, 1, 0)] == [4, 3, 2, 1, 0]
        starts = [offset for offset in gate.reads if not offset % size]
        assert sorted(starts) == sorted(set(starts))


def test_a_buffer_can_change_its_size(tmp_path, gate):
    """Without a buffer any more all is written and nothing is held; with another one the thread goes on."""
    storage = Disk(tmp_path, buffer=4 * 800_000, system=gate.system)
    gate.open.set()
    with storage:
        for key in range(3):
            storage.put(key, [state(key)])
        storage.prefetch([0, 1])
        tracemalloc.start()
        try:
            storage.put(3, [state(3)])
            storage.resize(0)
            assert tracemalloc.get_traced_memory()[0] < 100_000
        finally:
            tracemalloc.stop()
        assert storage.buffer_nbytes == 0
        assert len(gate.writes) == 3 * 4  # of each entry its pages, the last one and the first one
        storage.put(4, [state(4)])
        gate.open.clear()
        storage.resize("2 MiB")
        storage.put(5, [state(5)])
        assert len(gate.writes) == 3 * 5
        gate.open.set()
        assert [storage.take(key)[0][-1] for key in range(6)] == [0, 1, 2, 3, 4, 5]


def test_what_was_written_last_is_not_read(tmp_path, gate):
    """Where a sweep turns, the newest entries come from the buffer, and the room of the oldest serves for reads."""
    gate.open.set()
    size = entry_nbytes([state(0)])
    with Disk(tmp_path, buffer=3 * 800_000, system=gate.system) as storage:
        for key in range(6):
            storage.put(key, [state(key)])
        storage.flush()
        storage.prefetch([5, 4, 2, 1, 0])
        # The room of key 3, which is not wanted.
        wait_until(lambda: 2 * size in gate.reads)
        assert [storage.take(key)[0][0] for key in (5, 4)] == [5, 4]
        assert storage.bytes_read == 0
        assert [storage.take(key)[0][0] for key in (2, 1, 0, 3)] == [2, 1, 0, 3]
        assert storage.bytes_read == 4 * entry_nbytes([state(0)])
        storage.put(5, [state(50)])
        assert storage.take(5)[0][0] == 50
        assert len([offset for offset in gate.reads if not offset % size]) == 4


def test_another_entry_under_the_same_key_is_not_taken_for_the_old_one(tmp_path):
    """What is in the buffer for a key is that of the last `put` or `replace`, also where that was written at once."""
    with Disk(tmp_path, buffer=4 * 800_000) as storage:
        storage.put(0, [state(1)])
        storage.flush()
        storage.replace(0, [state(2)])
        assert storage.get(0)[0][0] == 2
        storage.delete(0)
        storage.put(0, [np.array(3.0)])
        assert storage.take(0)[0] == 3
    with Disk(tmp_path, buffer=4 * 800_000) as storage:
        storage.put(0, [np.array(1.0)])  # small: written at once, so that it has to be read
        storage.prefetch([0])
        storage._resources.pipeline._reads[0].wait()
        storage.replace(0, [np.array(2.0)])
        assert storage.get(0)[0] == 2
        storage.prefetch([0])
        storage._resources.pipeline._reads[0].wait()
        storage.delete(0)
        storage.put(0, [np.array(3.0)])
        assert storage.get(0)[0] == 3


def test_digits_that_are_lost_do_not_depend_on_the_thread(tmp_path, gate):
    """An entry that is stored with fewer digits is returned with these, though its own are still in the buffer."""
    with Disk(tmp_path, buffer=8 * 800_000, compression="float32", system=gate.system) as storage:
        storage.put(0, [state(1 / 3)])
        threading.Timer(0.05, gate.open.set).start()
        assert storage.get(0)[0][0] == np.float32(1 / 3)
        assert storage.get(0)[0][0] == np.float32(1 / 3)


def test_what_was_written_stays_while_there_is_room(tmp_path, gate):
    """A write that has ended does not give up its buffer to the next one where there is room for both."""
    gate.open.set()
    with Disk(tmp_path, buffer=2 * 800_000, system=gate.system) as storage:
        for key in range(4):
            storage.put(key, [state(key)])
            storage.flush()
        assert [storage.take(key)[0][0] for key in (3, 2)] == [3, 2]
        assert storage.bytes_read == 0
        assert [storage.take(key)[0][0] for key in (1, 0)] == [1, 0]
        assert storage.bytes_read == 2 * entry_nbytes([state(0)])


def test_the_oldest_entry_leaves_the_buffer_first(tmp_path, gate):
    """One whose room is too small for those after it makes way for the newest, of which there are as many as fit."""
    gate.open.set()
    with Disk(tmp_path, buffer=2 * 800_000, system=gate.system) as storage:
        storage.put("small", [state(0)[:50_000]])
        storage.flush()
        for key in range(4):
            storage.put(key, [state(key)])
            storage.flush()
        assert [storage.take(key)[0][0] for key in (3, 2)] == [3, 2]
        assert storage.bytes_read == 0


def test_reading_ahead_makes_way_for_writing(tmp_path):
    """A buffer full of entries that were read ahead does not keep `put` from going on; they are read again later."""
    with Disk(tmp_path, buffer=2 * 800_000) as storage:
        for key in range(4):
            storage.put(key, [state(key)])
        storage.flush()
        storage.prefetch([0, 1, 2, 3])
        for key in range(10, 16):
            storage.put(key, [state(key)])
        assert [storage.get(key)[0][0] for key in (0, 1, 2, 3, 15, 10)] == [0, 1, 2, 3, 15, 10]


@pytest.mark.parametrize("size", [100, 20_000, 200_000])
def test_the_buffer_is_a_bound(tmp_path, size):
    """In a forward and a reverse sweep with pauses the storage takes no more memory than its buffer."""
    capacity = 2 * 8 * 20_000
    slow = replace(POSIX, pwrite=lambda *arguments: time.sleep(0.0005) or os.pwrite(*arguments))

    def sweep():
        """Store and take 20 states."""
        for key in range(20):
            storage.put(key, [array])
        storage.prefetch(range(19, -1, -1))
        for key in range(19, -1, -1):
            storage.take(key)

    array = state(1, size)
    with Disk(tmp_path, buffer=capacity, system=slow) as storage:
        # What is not the buffer: the state that `take` returned before, and the one that it returns; small objects.
        assert measure_peak(sweep) < capacity + 2 * array.nbytes + 100_000
        assert storage.buffer_nbytes == capacity


def test_random_use_is_like_a_dict(tmp_path):
    """1,500 random calls with hints that may be wrong return what a dict would."""
    random = np.random.default_rng(5)
    held: dict[int, np.ndarray] = {}
    with Disk(tmp_path, buffer=400_000) as storage:
        for turn in range(1500):
            key = int(random.integers(30))
            if key not in held:
                held[key] = random.standard_normal(int(random.integers(0, 12_000)))
                storage.put(key, [held[key]])
            elif turn % 3 == 0:
                assert np.array_equal(storage.get(key)[0], held[key])
            elif turn % 3 == 1:
                assert np.array_equal(storage.take(key)[0], held.pop(key))
            else:
                storage.delete(key)
                del held[key]
            if turn % 7 == 0:
                storage.prefetch(int(k) for k in random.integers(30, size=int(random.integers(8))))
        assert set(storage.keys()) == set(held)
        assert storage.nbytes == sum(entry_nbytes([array], key) for key, array in held.items())


def test_threads_end(tmp_path):
    """Each storage has at most one thread, from its first use to `close`; 30 storages leave none."""
    for _ in range(30):
        with Disk(tmp_path, buffer=MIB) as storage:
            storage.put(0, [state(0)])
            storage.prefetch([0])
            assert len(storage_threads()) == 1
        assert storage_threads() == []


def test_close_does_not_write_scratch_data(tmp_path, gate):
    """What waits to be written when a scratch storage is closed is not written any more."""
    storage = Disk(tmp_path, buffer=8 * 800_000, system=gate.system)
    for key in range(6):
        storage.put(key, [state(key)])
    threading.Timer(0.05, gate.open.set).start()
    storage.close()
    assert {offset // entry_nbytes([state(0)]) for offset in gate.writes} <= {0}


def test_no_collector_is_needed(tmp_path):
    """With the collector switched off, sweeps leave nothing for it."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with Disk(tmp_path, buffer=2 * MIB) as storage:
                for key in range(5):
                    storage.put(key, [state(key)])
                storage.prefetch([4, 3, 2, 1, 0])
                for key in range(4, 0, -1):
                    storage.take(key)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_leaves_a_storage_that_closes(tmp_path, seed):
    """KeyboardInterrupt at any time of a sweep, 30 times: afterwards what is held is right, and `close` works."""
    random = np.random.default_rng(seed)
    storage = Disk(tmp_path, buffer=2 * 80_000)

    def interrupt(number, frame):
        """As the terminal does."""
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(30):
            signal.setitimer(signal.ITIMER_REAL, float(random.uniform(0.0005, 0.01)))
            try:
                while True:
                    for key in range(8):
                        if key not in storage.keys():
                            storage.put(key, [state(key, 10_000)])
                    storage.prefetch([7, 3, 5])
                    for key in (7, 3, 5, 1):
                        assert storage.take(key)[0][-1] == key, turn
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for key in storage.keys():
                assert storage.get(key)[0][-1] == key
    finally:
        signal.signal(signal.SIGALRM, before)
        storage.close()
    assert list(tmp_path.iterdir()) == []
    assert storage_threads() == []


def test_a_process_with_a_stuck_disk_exits(tmp_path):
    """A thread that waits for its file system does not keep the interpreter from exiting."""
    program = (
        "import sys, time, os, numpy as np\n"
        "from dataclasses import replace\n"
        "from ebbtide.storage import Disk, worker\n"
        "from ebbtide.storage.system import POSIX\n"
        "worker._PATIENCE = 0.2\n"
        "stuck = replace(POSIX, pwrite=lambda *a: time.sleep(3600))\n"
        "storage = Disk(sys.argv[1], buffer=1 << 20, system=stuck)\n"
        "storage.put(0, [np.zeros(10000)])\n"
    )
    status, _, problems = run_python(program, tmp_path)
    assert status == 0, problems
