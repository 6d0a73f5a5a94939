from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, Storage
from ebbtide.testing import StorageContract

MIB = 1 << 20


class TestDiskContract(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """In the directory of the test."""
        return Disk(tmp_path)


def find_files(directory):
    """All files below a directory."""
    return [path for path in Path(directory).rglob("*") if path.is_file()]


def count_descriptors():
    """The number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def measure_peak(use):
    """The bytes that a call allocates at its peak."""
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("layout", ["packed", "strided", "fortran"])
def test_put_and_get_take_no_buffer(tmp_path, layout):
    """Writing and reading 32 MiB allocates less than 2 MiB beyond the result, whatever the layout."""
    base = np.ones((2048, 4096))
    array = {"packed": base[:1024], "strided": base[:, ::4], "fortran": base[:1024].T}[layout]
    array = np.asfortranarray(base[:1024]) if layout == "fortran" else array
    with Disk(tmp_path) as storage:
        assert measure_peak(lambda: storage.put(0, [array])) < 2 * MIB
        assert measure_peak(lambda: storage.get(0)) < array.nbytes + 2 * MIB
        assert np.array_equal(storage.get(0)[0], array)


def test_nothing_is_made_before_the_first_put(tmp_path):
    """A storage that is never used leaves no trace."""
    storage = Disk(tmp_path)
    assert (storage.directory, list(tmp_path.iterdir())) == (None, [])
    storage.close()


def test_descriptors_are_constant(tmp_path):
    """100 cycles, failures among them, leave as many open file descriptors as before."""
    with Disk(tmp_path, limit=10_000) as storage:
        before = count_descriptors()
        for key in range(100):
            storage.put(key, [np.zeros(100)])
            with pytest.raises(StorageError):
                storage.put("large", [np.zeros(10_000)])
            storage.get(key)
            if key % 2:
                (storage.directory / f"{key}.arrays").write_bytes(b"short")
                with pytest.raises(StorageError):
                    storage.take(key)
            storage.delete(key)
        assert count_descriptors() == before


def test_delete_returns_the_space(tmp_path):
    """The file is gone when `delete` or `take` returns, and `nbytes` is the size of all files."""
    with Disk(tmp_path) as storage:
        storage.put(0, [np.zeros(100)])
        storage.put(1, [np.zeros(50), np.zeros(3)])
        assert storage.nbytes == sum(path.stat().st_size for path in find_files(tmp_path))
        storage.delete(0)
        assert len(find_files(tmp_path)) == 1
        storage.take(1)
        assert find_files(tmp_path) == []


def test_traffic_is_counted(tmp_path):
    """`bytes_written` and `bytes_read` count whole files, each time."""
    with Disk(tmp_path) as storage:
        size = storage.put(0, [np.zeros(100)])
        storage.get(0)
        storage.take(0)
        assert (storage.bytes_written, storage.bytes_read, storage.memory_nbytes) == (size, 2 * size, 0)


def test_any_flipped_byte_is_found(tmp_path):
    """Whichever byte of a file changes, `get` raises and names file, key and offset; put right, it reads again."""
    with Disk(tmp_path) as storage:
        storage.put("state", [np.arange(6.0), np.array(3, dtype=">i2")])
        (path,) = find_files(tmp_path)
        content = path.read_bytes()
        for place in range(len(content)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
            with pytest.raises(StorageError, match="offset") as caught:
                storage.get("state")
            assert str(path) in str(caught.value)
            assert "'state'" in str(caught.value)
        path.write_bytes(content)
        assert storage.get("state")[1] == 3


def test_any_truncation_is_found(tmp_path):
    """A file of any other length is an error that names both lengths."""
    with Disk(tmp_path) as storage:
        size = storage.put(0, [np.arange(6.0)])
        (path,) = find_files(tmp_path)
        content = path.read_bytes()
        for length in [*range(size), size + 1]:
            path.write_bytes((content + b"?")[:length])
            with pytest.raises(StorageError, match=f"{length} bytes, but {size} were written"):
                storage.take(0)
        assert storage.keys() == (0,)


def test_a_missing_file_is_named(tmp_path):
    """A file that something deleted is an error on `get`; `delete` then just forgets the key."""
    with Disk(tmp_path) as storage:
        storage.put("state", [np.zeros(3)])
        (path,) = find_files(tmp_path)
        path.unlink()
        with pytest.raises(StorageError, match=r"Cannot open .*0\.arrays.*'state' at offset 0: No such file") as caught:
            storage.get("state")
        assert caught.value.errno == errno.ENOENT
        storage.delete("state")
        assert (storage.keys(), storage.nbytes) == ((), 0)


def test_the_directory_must_exist(tmp_path):
    """A missing directory, and a file in its place, are errors that name it."""
    (tmp_path / "file").write_bytes(b"")
    for name, number in (("missing", errno.ENOENT), ("file", errno.ENOTDIR)):
        with Disk(tmp_path / name) as storage, pytest.raises(StorageError, match=name) as caught:
            storage.put(0, [np.zeros(3)])
        assert caught.value.errno == number
        assert isinstance(caught.value.__cause__, OSError)


def test_a_removed_directory_is_named(tmp_path):
    """If something removes the private directory, the next `put` says so, and `close` is quiet."""
    with Disk(tmp_path) as storage:
        storage.put(0, [np.zeros(3)])
        find_files(tmp_path)[0].unlink()
        storage.directory.rmdir()
        with pytest.raises(StorageError, match="removed it"):
            storage.put(1, [np.zeros(3)])


def test_the_limit_is_kept(tmp_path):
    """More than `limit` bytes are never stored; the error has all numbers and ENOSPC; `delete` makes room."""
    with Disk(tmp_path, limit="2 KiB") as storage:
        size = storage.put(0, [np.zeros(200)])
        with pytest.raises(StorageError, match=f"{size} bytes are taken, .*limit .* 2048 bytes") as caught:
            storage.put(1, [np.zeros(200)])
        assert caught.value.errno == errno.ENOSPC
        assert (len(find_files(tmp_path)), storage.keys()) == (1, (0,))
        storage.delete(0)
        assert storage.put(1, [np.zeros(200)]) == size


def test_a_full_disk_is_refused_before_writing(tmp_path, monkeypatch):
    """With less free space than the file needs nothing is written, and the error has both numbers."""
    with Disk(tmp_path) as storage:
        full = SimpleNamespace(f_bavail=1, f_frsize=512, f_blocks=100)
        monkeypatch.setattr(os, "statvfs", lambda path: full)
        with pytest.raises(StorageError, match=r"8\d\d bytes .* and 512 bytes .* free in") as caught:
            storage.put(0, [np.zeros(100)])
        assert caught.value.errno == errno.ENOSPC
        assert str(storage.directory) in str(caught.value)
        assert find_files(tmp_path) == []


def test_a_file_system_without_a_size_is_not_full(tmp_path, monkeypatch):
    """Where no blocks are counted at all, no free blocks mean nothing."""
    with Disk(tmp_path) as storage:
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=512, f_blocks=0))
        storage.put(0, [np.zeros(100)])


@pytest.mark.parametrize(
    "fault",
    [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "I/O error"), KeyboardInterrupt(), MemoryError()],
    ids=["ENOSPC", "EIO", "KeyboardInterrupt", "MemoryError"],
)
@pytest.mark.parametrize("fatal", [1, 2, 3, 4])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, fault, fatal):
    """Whatever stops whichever write, no file, key, byte or descriptor stays, and the next `put` works."""
    arrays = [np.zeros(MIB + 7, dtype=np.uint8), np.zeros(5)]
    with Disk(tmp_path) as storage:
        storage.put("old", [np.arange(3)])
        held, before, calls, pwrite = storage.nbytes, count_descriptors(), [], os.pwrite

        def fail(descriptor, block, offset):
            """Write half a block, until it is time to fail."""
            calls.append(offset)
            if len(calls) == fatal:
                raise fault
            return pwrite(descriptor, block, offset)

        monkeypatch.setattr(os, "pwrite", fail)
        kind = StorageError if isinstance(fault, OSError) else type(fault)
        with pytest.raises(kind) as caught:
            storage.put("new", arrays)
        monkeypatch.undo()
        if isinstance(fault, OSError):
            assert caught.value.errno == fault.errno
            assert caught.value.__cause__ is fault
        assert len(calls) == fatal
        assert (storage.keys(), storage.nbytes, count_descriptors()) == (("old",), held, before)
        assert len(find_files(tmp_path)) == 1
        storage.put("new", arrays)
        assert storage.get("new")[1].shape == (5,)


def test_short_writes_and_reads_go_on(tmp_path, monkeypatch):
    """An operating system that takes and gives a few bytes at a time makes no difference."""
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, block, offset: pwrite(file, block[:7], offset))
    monkeypatch.setattr(os, "preadv", lambda file, blocks, offset: preadv(file, [blocks[0][:5]], offset))
    with Disk(tmp_path) as storage:
        storage.put(0, [np.arange(20.0)])
        assert np.array_equal(storage.get(0)[0], np.arange(20.0))


def test_a_failing_read_is_an_error(tmp_path, monkeypatch):
    """An I/O error while reading becomes a `StorageError` with its cause and offset, and no descriptor leaks."""
    with Disk(tmp_path) as storage:
        storage.put(0, [np.arange(20.0)])
        before = count_descriptors()

        def fail(descriptor, blocks, offset):
            """Never read."""
            raise OSError(errno.EIO, "I/O error")

        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(StorageError, match=r"Cannot read .* at offset 0: I/O error") as caught:
            storage.take(0)
        assert caught.value.errno == errno.EIO
        assert count_descriptors() == before
        assert storage.keys() == (0,)


def test_two_storages_share_a_directory(tmp_path):
    """Each has a private directory of its own with the process id in its name, and closes only that."""
    first, second = Disk(tmp_path), Disk(tmp_path)
    first.put(0, [np.zeros(1)])
    second.put(0, [np.ones(1)])
    assert f"ebbtide-{os.getpid()}-" in first.directory.name
    first.close()
    assert second.take(0)[0] == 1.0
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_storage_cleans_up_without_the_collector(tmp_path):
    """The last reference removes the directory; there is no cycle."""
    gc.disable()
    try:
        storage = Disk(tmp_path)
        storage.put(0, [np.zeros(10)])
        watch = weakref.ref(storage)
        del storage
        assert watch() is None
        assert list(tmp_path.iterdir()) == []
    finally:
        gc.enable()


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "raise ValueError"])
def test_the_exit_of_a_process_cleans_up(tmp_path, ending):
    """A process that ends without `close`, by an error or not, leaves nothing behind."""
    program = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from ebbtide.storage import Disk\n"
        "storage = Disk(sys.argv[1])\n"
        "storage.put(0, [np.zeros(10)])\n"
        "assert len(list(Path(sys.argv[1]).iterdir())) == 1\n"
    )
    source = str(Path(sys.modules["ebbtide"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", program + ending, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = {"pass": 0, "raise SystemExit(3)": 3, "raise ValueError": 1}[ending]
    assert done.returncode == expected, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_the_files_alone(tmp_path):
    """A child may read; its writes, deletes and exit do not touch what its parent stored."""
    program = (
        "import os, sys, numpy as np\n"
        "from ebbtide.errors import StorageError\n"
        "from ebbtide.storage import Disk\n"
        "storage = Disk(sys.argv[1])\n"
        "storage.put(0, [np.arange(3)])\n"
        "if os.fork() == 0:\n"
        "    assert storage.get(0)[0].tolist() == [0, 1, 2]\n"
        "    for use in (storage.take, storage.delete, lambda key: storage.put(1, [])):\n"
        "        try:\n"
        "            use(0)\n"
        "        except StorageError as error:\n"
        "            assert 'forked' in str(error)\n"
        "        else:\n"
        "            raise AssertionError\n"
        "    storage.close()\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert storage.take(0)[0].tolist() == [0, 1, 2]\n"
    )
    source = str(Path(sys.modules["ebbtide"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
