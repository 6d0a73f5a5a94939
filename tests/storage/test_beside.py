"""Checksums that a thread takes beside a writer or a reader: they are right, and the thread ends."""

from __future__ import annotations

import os
import signal
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, checksum, transfer
from ebbtide.storage.system import POSIX

from .helpers import state

LARGE = 1 << 19


@pytest.mark.parametrize("cores", [1, 2])
def test_checksums_of_large_entries_find_every_change(tmp_path, monkeypatch, cores):
    """An entry whose checksums a second thread takes while it is written and read, or none, is as well protected."""
    begun = []
    note = lambda arrays: begun.append(len(arrays)) or checksum.begin_checksums(arrays)
    monkeypatch.setattr(transfer, "begin_checksums", note)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    arrays = [state(1, LARGE), np.arange(7), state(2, LARGE + 1)]
    with Disk(tmp_path) as storage:
        storage.put(0, arrays)
        assert begun == [3] * (cores - 1)
        assert [np.array_equal(found, array) for found, array in zip(storage.get(0), arrays, strict=True)] == [True] * 3
        assert begun == [3] * (cores - 1) * 2
        content = bytearray((storage.directory / "segment").read_bytes())
        entry = storage._entries[0].record
        pairs = zip(entry.starts(), entry.arrays, strict=True)
        for place in [entry.offset + start + at for start, known in pairs for at in (0, known.stored - 1)]:
            content[place] ^= 1
            (storage.directory / "segment").write_bytes(content)
            with pytest.raises(StorageError, match="CRC-32C"):
                storage.get(0)
            content[place] ^= 1


def test_without_another_thread_checksums_are_taken_in_turn(tmp_path, monkeypatch):
    """Where the system has no thread to give, or nothing is compiled, the caller takes the checksums itself."""

    def refuse(_):
        raise RuntimeError("no thread")

    arrays = [state(1, LARGE), np.arange(7)]
    with Disk(tmp_path) as storage:
        for key, compiled in enumerate((SimpleNamespace(ChecksumsBeside=refuse), None)):
            monkeypatch.setattr(checksum, "compiled", compiled)
            assert checksum.begin_checksums(arrays) is None
            storage.put(key, arrays)
            assert all(np.array_equal(x, y) for x, y in zip(storage.get(key), arrays, strict=True))


@pytest.mark.skipif(checksum.compiled is None, reason="nothing is compiled for this processor")
def test_checksums_beside_a_writer():
    """Checksums of arrays of any size, also none, in pieces of any size and however slowly; asked for twice."""
    random = np.random.default_rng(0)
    for pause, sizes in enumerate(([0], [1], [3 << 20], [5, 0, 1 << 20, 0], [(1 << 20) + 7, 100_001, 1], [])):
        arrays = [np.frombuffer(random.bytes(size), np.uint8) for size in sizes]
        left = sum(sizes)
        with checksum.compiled.ChecksumsBeside(arrays) as beside:
            while left:
                count = min(left, int(random.integers(1, 1 << 20)))
                beside.begin(count)
                left -= count
                time.sleep(0.001 * pause)
            assert beside.wait() == beside.wait() == [checksum.compute_crc32c(array) for array in arrays]


@pytest.mark.skipif(checksum.compiled is None, reason="nothing is compiled for this processor")
def test_the_thread_of_checksums_ends_with_who_fails(tmp_path):
    """Who stops in between leaves no thread that waits; a writer, nothing that holds its arrays."""
    threads = lambda: len(list(Path("/proc/self/task").iterdir()))

    def fail(*arguments):
        if memoryview(arguments[1]).nbytes > 4096:
            raise OSError(5, "broken")
        return os.pwrite(*arguments)

    array = state(1, LARGE)
    left, before = weakref.ref(array), threads()
    with Disk(tmp_path, system=replace(POSIX, pwrite=fail)) as storage, pytest.raises(StorageError, match="broken"):
        storage.put(0, [array])
    del array
    assert left() is None
    assert threads() == before

    def fail_to_read(descriptor, buffers, offset):
        if sum(memoryview(buffer).nbytes for buffer in buffers) > 4096:
            raise OSError(5, "broken")
        return os.preadv(descriptor, buffers, offset)

    with Disk(tmp_path, system=replace(POSIX, preadv=fail_to_read)) as storage:
        storage.put(1, [state(1, LARGE)])
        before = threads()
        with pytest.raises(StorageError, match="broken"):
            storage.get(1)
        assert threads() == before
    before = threads()
    with pytest.raises(ValueError, match="contiguous"):
        checksum.compiled.ChecksumsBeside([np.ones((4, 4)).T])
    for pause in (0, 0.01):
        beside = checksum.compiled.ChecksumsBeside([state(2, LARGE)])
        beside.begin(1000)
        time.sleep(pause)
        del beside  # which is not read to its end
        assert threads() == before


@pytest.mark.skipif(checksum.compiled is None, reason="nothing is compiled for this processor")
def test_a_forked_process_does_not_wait_for_the_thread():
    """A process that is forked while a thread takes checksums does not have it, and can end."""
    beside = checksum.compiled.ChecksumsBeside([np.zeros(1000, np.uint8)])
    child = os.fork()
    if child == 0:
        del beside
        os._exit(7)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended[0] == child
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    beside.begin(1000)
    assert beside.wait() == [checksum.extend_crc32c(0, bytes(1000))]
