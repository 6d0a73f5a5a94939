"""Which entries the thread of a storage writes: those whose writes wait for the disk."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.storage import Disk, entry_nbytes, pipeline, worker
from ebbtide.storage.system import POSIX

from .helpers import measure_peak, run_python, state

LARGE = 1 << 19


def strided(key):
    """A large state whose parts cannot be written as they lie."""
    return np.full(2 * LARGE, float(key))[::2]



def test_large_entries_are_written_at_once_where_the_disk_does_not_wait(tmp_path, gate, monkeypatch):
    """Who finds the buffer full writes itself, and learns: after a mere copy the next are not handed to the thread."""
    handed = []
    waited = [False]
    monkeypatch.setattr(pipeline, "has_waited", lambda *clocks: waited[0])
    submit = worker.Worker.submit
    monkeypatch.setattr(worker.Worker, "submit", lambda me, job: handed.append(job.record.key) or submit(me, job))
    with Disk(tmp_path, buffer=8 * LARGE + 900_000, system=gate.system) as storage:
        storage.put(0, [strided(0)])
        storage.put(1, [strided(1)])
        storage.put("small", [state(3, 100_000)])
        assert handed == [0, "small"]
        gate.open.set()
        storage.flush()
        storage.put(2, [strided(2)])
        waited[0] = True
        storage.put(3, [strided(3)])
        storage.put(4, [strided(4)])
        assert handed == [0, "small", 4]
        assert [storage.take(key)[0][-1] for key in range(5)] == [0, 1, 2, 3, 4]


def test_a_write_behind_tells_whether_it_waited(tmp_path, monkeypatch):
    """After a large write of the thread that was a mere copy the next is not handed to it, though there is room."""
    handed = []
    waited = [False]
    monkeypatch.setattr(pipeline, "has_waited", lambda *clocks: waited[0])
    submit = worker.Worker.submit
    monkeypatch.setattr(worker.Worker, "submit", lambda me, job: handed.append(job.record.key) or submit(me, job))
    with Disk(tmp_path, buffer=4 * 8 * LARGE) as storage:
        for key, waits in enumerate((False, True, True, False, False)):
            waited[0] = waits
            storage.put(key, [strided(key)])
            storage.flush()
        assert handed == [0, 2, 3]
        assert [storage.take(key)[0][-1] for key in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("waits", [False, True])
def test_a_part_of_the_first_large_entry_tells_whether_the_disk_waits(tmp_path, gate, monkeypatch, waits):
    """Where the disk does not wait nothing is copied; where it does, one part is written twice."""
    gate.open.set()
    handed = []
    monkeypatch.setattr(pipeline, "has_waited", lambda *clocks: waits)
    submit = worker.Worker.submit
    monkeypatch.setattr(worker.Worker, "submit", lambda me, job: handed.append(job.record.key) or submit(me, job))
    states = [[np.array(-1.0), state(key, LARGE)] for key in range(3)]
    with Disk(tmp_path, buffer=4 * 8 * LARGE, system=gate.system) as storage:
        peak = measure_peak(lambda: [storage.put(key, arrays) for key, arrays in enumerate(states)])
        assert handed == (list(range(3)) if waits else [])
        assert waits or peak < 100_000
        storage.flush()
        parts = [offset for offset in gate.writes if offset < entry_nbytes(states[0])]
        assert parts[0] == parts[1]
        for key in range(3):
            first, second = storage.take(key)
            assert first == -1
            np.testing.assert_array_equal(second, states[key][1])


def test_a_try_that_fails_is_no_failure_of_the_entry(tmp_path):
    """A disk that refuses the part of an entry by which it is tried has another chance with the whole."""
    refused = []

    def pwrite(descriptor, block, offset):
        if not refused:
            refused.append(offset)
            raise OSError(errno.EIO, "no")
        return os.pwrite(descriptor, block, offset)

    with Disk(tmp_path, buffer=4 * 8 * LARGE, system=replace(POSIX, pwrite=pwrite)) as storage:
        storage.put(0, [state(1, LARGE)])
        storage.flush()
        assert refused
        assert storage.take(0)[0][-1] == 1


def test_durable_entries_are_written_in_the_order_in_which_they_were_put(tmp_path, gate, monkeypatch):
    """However fast the disk, a large entry that is to last does not pass one that waits to be written."""
    monkeypatch.setattr(pipeline, "has_waited", lambda *clocks: False)
    system = replace(gate.system, synchronize=lambda descriptor: None)
    with Disk(tmp_path, durable=True, buffer=4 * 8 * LARGE, system=system) as storage:
        gate.open.set()
        storage.put(0, [strided(0)])
        storage.flush()
        gate.open.clear()
        gate.writes.clear()
        storage.put("small", [state(1, 1000)])
        storage.put(2, [strided(2)])
        assert gate.writes == []
        gate.open.set()
        assert [storage.get(key)[0][-1] for key in (0, "small", 2)] == [0, 1, 2]


def test_encoding_is_left_to_the_thread(tmp_path, monkeypatch):
    """Large entries that are encoded are handed to the thread, whether the disk waits or not."""
    handed = []
    monkeypatch.setattr(pipeline, "has_waited", lambda *clocks: False)
    submit = worker.Worker.submit
    monkeypatch.setattr(worker.Worker, "submit", lambda me, job: handed.append(job.record.key) or submit(me, job))
    with Disk(tmp_path, compression={"rounded": "float32"}, buffer=4 * 8 * LARGE) as storage:
        for key, kind in enumerate(("rounded", "", "rounded", "")):
            storage.put(key, [strided(key)], kind=kind)
            storage.flush()
        assert handed == [0, 1, 2]


def test_a_sleep_is_a_wait_and_work_is_none():
    """What a processor did for a thread is told apart from what the thread waited for."""
    begin = worker.read_clocks()
    time.sleep(0.02)
    assert worker.has_waited(begin, worker.read_clocks())
    assert worker.has_waited((1.0, 2.0), (2.0, 2.4))
    assert not worker.has_waited((1.0, 2.0), (2.0, 2.6))


def test_without_memory_for_a_thread_none_is_waited_for(tmp_path):
    """A process that has reached its limit of memory writes and reads by itself, and does not wait for ever."""
    program = (
        "import resource, signal, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from ebbtide.storage import Disk\n"
        "def use():\n"
        "    with Disk(sys.argv[1], buffer='1 MiB') as storage:\n"
        "        for key in range(4):\n            storage.put(key, [np.full(9000, float(key))])\n"
        "        storage.flush()\n        storage.prefetch(range(4))\n"
        "        return sum(storage.take(key)[0][0] for key in range(4))\n"
        "use()\n"
        "taken = Path('/proc/self/status').read_text().partition('VmSize:')[2].split()[0]\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1024 * int(taken), resource.RLIM_INFINITY))\n"
        "signal.alarm(40)\nprint(use())\n"
    )
    status, out, problems = run_python(program, tmp_path)
    assert (status, out) == (0, "6.0\n"), problems
    assert list(tmp_path.iterdir()) == []
