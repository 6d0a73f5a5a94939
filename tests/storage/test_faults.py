"""Full and broken disks: injected at each write, and real ones of a few KiB."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, EntryLostError, StorageFullError, StorageLockedError, Tiered
from ebbtide.storage.system import POSIX

from .helpers import blocks, count_descriptors, find_files, run_python, storage_threads, takes

MIB = 1 << 20
FULL = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]


class Faulty:
    """A disk of which the n-th write fails, by n and a fault; half of a block may be written before."""

    def __init__(self, fault):
        self.fault, self.fatal, self.calls = fault, 0, 0
        self.main = threading.get_ident()
        self.system = replace(POSIX, pwrite=self.pwrite)

    def pwrite(self, descriptor, block, offset):
        """Fail if it is time."""
        view = memoryview(block).cast("B")
        if self.fatal:
            self.calls += 1
            if self.calls == self.fatal:
                os.pwrite(descriptor, view[: len(view) // 2], offset)
                raise self.fault
        return os.pwrite(descriptor, view, offset)


FAULTS = [
    OSError(errno.ENOSPC, "No space left"),
    OSError(errno.EDQUOT, "Quota exceeded"),
    OSError(errno.EIO, "I/O error"),
    KeyboardInterrupt(),
    MemoryError(),
]


@pytest.mark.parametrize("fault", FAULTS, ids=["ENOSPC", "EDQUOT", "EIO", "KeyboardInterrupt", "MemoryError"])
@pytest.mark.parametrize("fatal", [1, 2, 3, 4])
def test_a_failed_write_leaves_nothing(tmp_path, fault, fatal):
    """Whatever stops whichever write, no key, byte of disk or descriptor stays, and the next `put` works."""
    arrays = [np.zeros(MIB + 7, dtype=np.uint8), np.zeros(5)]
    disk = Faulty(fault)
    with Disk(tmp_path, system=disk.system) as storage:
        storage.put("old", [np.arange(3)])
        (path,) = find_files(tmp_path)
        held, before, used = storage.nbytes, count_descriptors(), blocks(path)
        disk.fatal = fatal
        kind = StorageError if isinstance(fault, OSError) else type(fault)
        with pytest.raises(kind) as caught:
            storage.put("new", arrays)
        if isinstance(fault, OSError):
            assert caught.value.errno == fault.errno
            assert caught.value.__cause__ is fault
            assert isinstance(caught.value, StorageFullError) == (fault.errno in FULL)
        assert disk.calls >= fatal
        assert (storage.keys(), storage.nbytes, count_descriptors()) == (("old",), held, before)
        assert blocks(path) <= used + 4 * 4096
        storage.put("new", arrays)
        assert storage.get("new")[1].shape == (5,)
        assert storage.get("old")[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("fault", [*FAULTS[:3], FAULTS[4]], ids=["ENOSPC", "EDQUOT", "EIO", "MemoryError"])
@pytest.mark.parametrize("fatal", [1, 2, 5, 6])
def test_a_late_failure_is_told_once_and_the_storage_goes_on(tmp_path, fault, fatal):
    """An entry that the thread cannot write is lost: the next call names it, all others are right, its key is free."""
    disk = Faulty(fault)
    with Disk(tmp_path, buffer=4 * MIB, system=disk.system) as storage:
        disk.fatal = fatal
        for key in range(4):
            storage.put(key, [np.full(40_000, float(key))])
            with_error = None
            try:
                storage.flush()
            except EntryLostError as error:
                with_error = error
                break
        lost = (fatal - 1) // 3  # an entry is written by its pages, the last one, and the first one
        assert with_error is not None
        assert (with_error.key, with_error.errno) == (lost, getattr(fault, "errno", None))
        assert with_error.missing >= 320_000
        assert f"Key {lost} " in str(with_error)
        assert storage.keys() == tuple(range(lost))
        with pytest.raises(EntryLostError, match=f"Key {lost} "):
            storage.get(lost)
        storage.flush()
        storage.put(lost, [np.full(40_000, -1.0)])
        storage.flush()
        assert storage.take(lost)[0][0] == -1
        for key in range(lost):
            assert storage.take(key)[0][0] == key
        (path,) = find_files(tmp_path)
        assert blocks(path) <= MIB
    assert storage_threads() == []


def test_a_loss_that_was_told_keeps_no_file(tmp_path):
    """The storage has the error, and that had the frames of who was told: the file waited for the garbage collector."""
    disk = Faulty(OSError(errno.EIO, "I/O error"))

    def lose():
        storage = Disk(tmp_path, buffer=4 * MIB, system=disk.system)
        disk.fatal = 1
        storage.put(0, [np.zeros(40_000)])
        with suppress(EntryLostError):
            storage.flush()
        assert find_files(tmp_path)

    gc.disable()
    try:
        lose()
        assert find_files(tmp_path) == []
    finally:
        gc.enable()


def test_a_call_that_tells_of_a_loss_does_nothing_else(tmp_path):
    """`put` raises for the entry before: its own is not stored, and can be put again; `delete` and `keys` are quiet."""
    disk = Faulty(OSError(errno.EIO, "I/O error"))
    with Disk(tmp_path, buffer=4 * MIB, system=disk.system) as storage:
        disk.fatal = 1
        storage.put("old", [np.zeros(40_000)])
        # Its end is waited for without a call that would tell of it.
        storage._resources.pipeline.drain()
        assert storage.keys() == ("old",)
        with pytest.raises(EntryLostError, match="'old'"):
            storage.put("new", [np.zeros(40_000)])
        assert storage.keys() == ()
        storage.delete("old")
        storage.put("new", [np.ones(40_000)])
        assert storage.take("new")[0][0] == 1


def test_what_is_lost_can_be_deleted(tmp_path):
    """Where `delete` is the first call after the failure, that is no error, and no later call tells of it."""
    disk = Faulty(OSError(errno.EIO, "I/O error"))
    with Disk(tmp_path, buffer=4 * MIB, system=disk.system) as storage:
        disk.fatal = 1
        storage.put("old", [np.zeros(40_000)])
        storage._resources.pipeline.drain()
        storage.delete("old")
        assert storage.keys() == ()
        with pytest.raises(StorageError, match="nothing stored under the key 'old'"):
            storage.delete("old")
        storage.put("old", [np.ones(40_000)])
        assert storage.take("old")[0][0] == 1


def test_a_full_disk_is_told_by_the_call_that_needs_it(tmp_path):
    """`put`, buffered or not, and `reserve` tell of a disk of 100 KiB the missing bytes, and leave nothing on it."""
    most = 100 << 10

    def allocate(descriptor, offset, nbytes):
        if offset + nbytes > most:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(descriptor, offset, nbytes)

    def pwrite(descriptor, content, offset):
        if offset >= most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, memoryview(content)[: most - offset], offset)

    for buffer in (0, 4 * MIB):
        with Disk(tmp_path, buffer=buffer, system=replace(POSIX, allocate=allocate, pwrite=pwrite)) as storage:
            storage.put("fits", [np.zeros(1000)])
            for use in (lambda: storage.put("large", [np.zeros(20_000)]), lambda: storage.reserve(10, 20_000)):
                with pytest.raises(StorageFullError, match="bytes are missing") as caught:
                    use()
                assert caught.value.errno == errno.ENOSPC
                assert caught.value.missing > 0
                assert blocks(find_files(tmp_path)[0]) <= 12 << 10
            assert storage.keys() == ("fits",)
            assert storage.take("fits")[0].size == 1000


def test_a_reservation_that_finds_half_of_its_blocks_gives_them_back(tmp_path):
    """A disk that is full in the middle of `reserve` has no more blocks taken afterwards than before."""

    def allocate(descriptor, offset, nbytes):
        os.posix_fallocate(descriptor, offset, nbytes // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    with Disk(tmp_path, system=replace(POSIX, allocate=allocate)) as storage:
        size = storage.put("small", [np.zeros(10)])
        with pytest.raises(StorageFullError):
            storage.reserve(1, 8 * MIB)
        assert takes(find_files(tmp_path)[0], size)
        assert storage.get("small")[0].size == 10


@pytest.mark.parametrize(
    ("size", "buffer", "durable", "ahead"),
    [(100, 0, False, 0), (40_000, 0, False, 0), (40_000, MIB, False, 1), (40_000, 0, True, 1), (MIB, 0, False, 1)],
)
def test_blocks_are_looked_for_ahead(tmp_path, size, buffer, durable, ahead):
    """What is written later, durable or large has its blocks before it is written; nothing else waits for them."""
    calls = []

    def allocate(descriptor, offset, nbytes):
        calls.append(nbytes)
        os.posix_fallocate(descriptor, offset, nbytes)

    with Disk(tmp_path, buffer=buffer, durable=durable, system=replace(POSIX, allocate=allocate)) as storage:
        storage.put("state", [np.ones(size)])
        assert len(calls) == ahead
        storage.delete("state")


def test_a_failing_read_is_an_error(tmp_path):
    """An I/O error while reading becomes a `StorageError` with its cause, read ahead or not, and nothing is deleted."""

    def fail(descriptor, buffers, offset):
        """Never read."""
        raise OSError(errno.EIO, "I/O error")

    for buffer in (0, MIB):
        with Disk(tmp_path, buffer=buffer, system=replace(POSIX, preadv=fail)) as storage:
            storage.put("state", [np.arange(20.0)])
            storage.flush()
            before = count_descriptors()
            storage.prefetch(["state"])
            with pytest.raises(StorageError, match=r"Cannot read key 'state' .* at offset 0 .*: I/O error") as caught:
                storage.take("state")
            assert caught.value.errno == errno.EIO
            assert (count_descriptors(), storage.keys()) == (before, ("state",))


def test_a_file_system_without_preallocation_and_holes_is_enough(tmp_path):
    """Where blocks can neither be allocated ahead nor given back, everything else is the same."""
    plain = replace(POSIX, allocate=lambda *arguments: None, punch=lambda *arguments: False)
    with Disk(tmp_path, buffer=MIB, system=plain) as storage:
        for key in range(10):
            storage.put(key, [np.full(40_000, key)])
        for key in range(0, 10, 2):
            storage.delete(key)
        storage.put("new", [np.full(40_000, -1)])
        assert [storage.get(key)[0][0] for key in (1, 3, 5, 7, 9, "new")] == [1, 3, 5, 7, 9, -1]
        for key in storage.keys():
            storage.delete(key)
        storage.flush()  # the place of what is still written is given back after that
        assert blocks(find_files(tmp_path)[0]) < MIB


def test_a_tier_that_is_full_keeps_what_it_has(tmp_path):
    """If nothing can go to disk, the new entry is refused and the old ones stay in memory."""
    with Tiered(20_000, Disk(tmp_path, limit=4096)) as storage:
        storage.put(0, [np.full(1000, 0.0)])
        storage.put(1, [np.full(1000, 1.0)])
        with pytest.raises(StorageFullError):
            storage.put(2, [np.full(1000, 2.0)])
        assert storage.keys() == (0, 1)
        assert [storage.take(key)[0][0] for key in (0, 1)] == [0, 1]
        assert storage.nbytes == 0


@pytest.mark.parametrize("buffer", [0, MIB])
def test_a_limit_of_the_system_on_files(tmp_path, buffer):
    """A real refusal of the kernel, by the limit on the size of files, is named, with the missing bytes."""
    program = (
        "import resource, signal, sys, numpy as np\n"
        "from ebbtide.storage import Disk, StorageFullError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))\n"
        f"with Disk(sys.argv[1], buffer={buffer}) as storage:\n"
        "    stored = 0\n"
        "    try:\n"
        "        for key in range(100):\n"
        "            storage.put(key, [np.full(4000, key)])\n"
        "            stored += 1\n"
        "    except StorageFullError as error:\n"
        "        print(stored, error.key, error.missing > 0, '`ulimit -f`' in str(error), 'free' in str(error))\n"
        "    assert [storage.take(key)[0][0] for key in range(stored)] == list(range(stored))\n"
    )
    status, out, problems = run_python(program, tmp_path)
    assert status == 0, problems
    assert out.split() == ["8", "8", "True", "True", "False"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small file system that this test fills")
@pytest.mark.parametrize("buffer", [0, 8 * MIB])
def test_a_small_file_system(tmp_path, buffer):
    """On a tmpfs of 1 MiB the storage holds what fits, says what is missing, and goes on after a deletion."""
    program = (
        "import ctypes, os, sys, numpy as np\n"
        "from ebbtide.storage import Disk, StorageFullError\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "CLONE_NEWNS, MS_PRIVATE = 0x20000, 0x44000\n"
        "if libc.unshare(CLONE_NEWNS) or libc.mount(b'none', b'/', None, MS_PRIVATE, None):\n"
        "    print('no mount'); sys.exit(0)\n"
        "if libc.mount(b'tmpfs', os.fsencode(sys.argv[1]), b'tmpfs', 0, b'size=1m'):\n"
        "    print('no mount'); sys.exit(0)\n"
        f"with Disk(sys.argv[1], buffer={buffer}) as storage:\n"
        "    stored = 0\n"
        "    try:\n"
        "        while True:\n"
        "            storage.put(stored, [np.full(12000, stored)])\n"
        "            stored += 1\n"
        "    except StorageFullError as error:\n"
        "        print(stored, error.missing)\n"
        "    try:\n"
        "        storage.reserve(20, 100000)\n"
        "    except StorageFullError as error:\n"
        "        print(error.missing)\n"
        "    storage.delete(0)\n"
        "    storage.put('new', [np.full(12000, -1)])\n"
        "    storage.flush()\n"
        "    assert [storage.take(key)[0][0] for key in range(1, stored)] == list(range(1, stored))\n"
        "    assert storage.take('new')[0][0] == -1\n"
    )
    status, out, problems = run_python(program, tmp_path)
    assert status == 0, problems
    if out.strip() == "no mount":
        pytest.skip("this machine does not let a test mount a file system")
    stored, missing, reserved = map(int, out.split())
    # Ten entries of 100 KiB and 4 KiB of header; the rest of 1 MiB is less than one.
    assert stored == 10
    assert 0 < missing < 102_400
    assert reserved > 900_000


def test_errors_can_be_pickled():
    """Errors keep their fields on the way to another process."""
    for error in (
        StorageFullError("full", 7, "key", errno.EDQUOT),
        EntryLostError("lost", 3, 9, errno.EIO),
        StorageLockedError("locked", "host", 12),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy), copy.errno) == (type(error), str(error), vars(error), error.errno)
