from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import stat
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.quota import Quota
from ebbtide.storage import Disk, StorageFullError, entry_nbytes, places, resources
from ebbtide.storage.listing import list_storage
from ebbtide.storage.places import start_of
from ebbtide.storage.system import POSIX

from .helpers import blocks, count_descriptors, find_files, measure_peak, run_python, storage_threads, takes

MIB = 1 << 20


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
    """A storage that is never used leaves no trace, and has no thread."""
    storage = Disk(tmp_path, buffer=MIB)
    assert (storage.directory, list(tmp_path.iterdir()), storage_threads()) == (None, [], [])
    storage.close()


def test_structured_dtypes_come_back(tmp_path):
    """Fields, nested and with shapes, are kept, also for another storage that opens the directory."""
    dtype = np.dtype([("a", ">f8"), ("b", [("c", "i2", (3,)), ("d", "S5")])])
    array = np.frombuffer(np.random.default_rng(0).bytes(4 * dtype.itemsize), dtype)
    with Disk(tmp_path, durable=True) as storage:
        storage.put(0, [array])
    with Disk(tmp_path, durable=True) as storage:
        (found,) = storage.get(0)
    assert (found.dtype, found.tobytes()) == (dtype, array.tobytes())


def test_descriptors_are_constant(tmp_path):
    """However many entries there are, and whatever fails, one file is open."""
    with Disk(tmp_path, limit="2 MiB", buffer=100_000) as storage:
        before = count_descriptors()
        for key in range(100):
            storage.put(key, [np.zeros(100)])
            assert count_descriptors() == before + 1
            with pytest.raises(StorageFullError):
                storage.put("large", [np.zeros(MIB)])
            storage.get(key)
            if key % 2:
                storage.delete(key)
        assert count_descriptors() == before + 1
    assert count_descriptors() == before


def test_there_is_one_file(tmp_path):
    """All entries lie in one file, of the sum of their sizes."""
    with Disk(tmp_path) as storage:
        sizes = [storage.put(key, [np.zeros(100 * key)]) for key in range(20)]
        (path,) = find_files(tmp_path)
        assert storage.nbytes == sum(sizes)
        assert takes(path, sum(sizes))
        assert sizes == [entry_nbytes([np.zeros(100 * key)], key) for key in range(20)]


@pytest.mark.parametrize("order", ["first", "last", "every other"])
def test_delete_returns_the_space(tmp_path, order):
    """Blocks go back to the file system when entries are deleted, whatever the order, but for 1 MiB at most."""
    keys = range(16)
    chosen = {"first": keys, "last": keys[::-1], "every other": [*keys[::2], *keys[1::2]]}[order]
    with Disk(tmp_path) as storage:
        size = max([storage.put(key, [np.ones(MIB // 16)]) for key in keys])
        (path,) = find_files(tmp_path)
        assert takes(path, 16 * size)
        for left, key in enumerate(chosen, -15):
            storage.delete(key)
            assert blocks(path) <= -left * size + MIB + 4 * 4096
        assert takes(path, 0)


def test_a_hole_is_not_written_to(tmp_path):
    """What the file system takes back is not overwritten first; what stays in the file is, and not found again."""
    small = []

    def pwrite(descriptor, block, offset):
        if memoryview(block).nbytes < 4096:
            small.append(offset)
        return os.pwrite(descriptor, block, offset)

    size = entry_nbytes([np.ones(1 << 18)])
    with Disk(tmp_path, system=replace(POSIX, pwrite=pwrite)) as storage:
        for key in range(4):
            storage.put(key, [np.ones(1 << 18)])
        storage.put("small", [np.ones(1000)])
        small.clear()
        storage.delete(1)
        storage.delete(2)
        assert small == []
        storage.delete("small")
        assert [record.key for record in list_storage(storage.directory).entries] == [0, 3]
        storage.reserve(4, size)
        small.clear()
        storage.delete(3)
        assert small == [3 * size]
        assert [record.key for record in list_storage(storage.directory).entries] == [0]


def test_places_are_used_again(tmp_path):
    """Putting and taking entries of one size for a long time never makes the file longer."""
    with Disk(tmp_path) as storage:
        size = max([storage.put(key, [np.ones(5000)]) for key in range(4)])
        (path,) = find_files(tmp_path)
        for turn in range(50):
            assert storage.take(turn)[0][0] == 1
            storage.put(turn + 4, [np.ones(5000)])
            assert path.stat().st_size <= 4 * size


def test_a_reservation_has_its_blocks(tmp_path):
    """`reserve` allocates at once; entries use it, deletion keeps it, and less of it gives blocks back."""
    array = np.ones(MIB // 8)
    size = entry_nbytes([array])
    with Disk(tmp_path) as storage:
        storage.reserve(5, size)
        (path,) = find_files(tmp_path)
        assert takes(path, 5 * size)
        for key in range(5):
            storage.put(key, [array])
        assert takes(path, 5 * size)
        storage.put("one more", [array])
        assert takes(path, 6 * size)
        for key in (*range(5), "one more"):
            storage.delete(key)
        assert takes(path, 5 * size)
        storage.reserve(2, size)
        assert takes(path, 2 * size)
        storage.reserve(0, 0)
        assert takes(path, 0)


def test_a_reservation_takes_what_holes_gave_back(tmp_path):
    """A reservation over holes and entries allocates the holes and leaves the entries."""
    array = np.ones(MIB // 4)
    size = entry_nbytes([array])
    with Disk(tmp_path, limit=4 * size) as storage:
        for key in range(4):
            storage.put(key, [array * key])
        (path,) = find_files(tmp_path)
        storage.delete(0)
        storage.delete(2)
        assert takes(path, 2 * size)
        storage.reserve(4, size)
        assert takes(path, 4 * size)
        assert storage.get(3)[0][0] == 3
        with pytest.raises(StorageFullError) as caught:
            storage.reserve(5, size)
        assert caught.value.missing == size
        assert takes(path, 4 * size)
        assert storage.get(1)[0][0] == 1


def test_a_reservation_may_end_within_a_hole(tmp_path):
    """Of the hole as much counts as is reserved, for the reservation and for what is put after it."""
    with Disk(tmp_path, limit=3 * MIB) as storage:
        storage.put(0, [np.ones(MIB // 4)])
        storage.put(1, [np.ones(10)])
        storage.delete(0)
        storage.put(2, [np.ones(5 * MIB // 16)])  # too large for the place of the first
        storage.reserve(1, MIB // 4)
        storage.put(3, [np.ones(10)])
        assert takes(find_files(tmp_path)[0], 11 * MIB // 4 + entry_nbytes([np.ones(10)]))
        assert storage.get(2)[0][-1] == 1


def test_traffic_is_counted(tmp_path):
    """`bytes_written` and `bytes_read` count whole entries, each time, read ahead or not."""
    for buffer in (0, MIB):
        with Disk(tmp_path, buffer=buffer) as storage:
            storage.put(0, [np.zeros(1000)])
            storage.flush()
            written = storage.bytes_written
            assert 8000 < written < 8000 + 512
            storage.prefetch([0, 0])
            storage.get(0)
            storage.take(0)
            assert (storage.bytes_written, storage.bytes_read, storage.memory_nbytes) == (written, 2 * written, 0)


@pytest.mark.parametrize("elements", [6, 1200])
def test_any_flipped_byte_is_found(tmp_path, elements):
    """Whichever byte of an entry changes, `get` raises and names file, key and offset; put right, it reads again."""
    arrays = [np.arange(float(elements)), np.array(3, dtype=">i2")]
    with Disk(tmp_path) as storage:
        storage.put("state", arrays)
        (path,) = find_files(tmp_path)
        content = path.read_bytes()
        for place in range(0, len(content), max(1, elements // 60)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
            with pytest.raises(StorageError, match="offset") as caught:
                storage.get("state")
            assert str(path) in str(caught.value)
            assert "'state'" in str(caught.value)
        path.write_bytes(content)
        assert storage.get("state")[1] == 3


@pytest.mark.parametrize("elements", [6, 20_000])
def test_any_truncation_is_found(tmp_path, elements):
    """A file that ends before the entry does is an error that says where."""
    with Disk(tmp_path) as storage:
        storage.put(0, [np.arange(float(elements))])
        (path,) = find_files(tmp_path)
        content = path.read_bytes()
        for length in range(0, len(content), 1 + len(content) // 500):
            path.write_bytes(content[:length])
            with pytest.raises(StorageError, match=f"offset {length}: the file ends there"):
                storage.take(0)
        assert storage.keys() == (0,)
        path.write_bytes(content)
        assert storage.take(0)[0].size == elements


def test_the_array_that_is_damaged_is_named(tmp_path):
    """Of several arrays in an entry the error says which one changed, and where that one begins in the file."""
    second = np.ones(100_000)
    with Disk(tmp_path) as storage:
        storage.put("state", [np.zeros(100_000), second])
        (path,) = find_files(tmp_path)
        content = bytearray(path.read_bytes())
        start = content.index(second.tobytes())
        content[start + 80_000] ^= 1
        path.write_bytes(content)
        with pytest.raises(StorageError, match=f"at offset {start}: the 800000 bytes of array 1"):
            storage.get("state")


def test_exchanged_entries_are_found(tmp_path):
    """Two whole entries of one size in each other's place are not taken for each other."""
    with Disk(tmp_path) as storage:
        size = storage.put("a", [np.arange(4096.0)])
        storage.put("b", [np.arange(4096.0) + 1])
        (path,) = find_files(tmp_path)
        content = path.read_bytes().ljust(2 * size, b"\0")
        path.write_bytes(content[size:] + content[:size])
        for key in "ab":
            with pytest.raises(StorageError, match="header"):
                storage.get(key)


def test_the_file_may_lose_its_name(tmp_path):
    """Something that removes the file does not take the data away, nor does it disturb `close`."""
    with Disk(tmp_path) as storage:
        storage.put("state", [np.arange(3)])
        find_files(tmp_path)[0].unlink()
        storage.directory.rmdir()
        storage.put("other", [np.arange(4)])
        assert storage.take("state")[0].size == 3


def test_the_directory_must_exist(tmp_path):
    """A missing directory, and a file in its place, are errors that name it."""
    (tmp_path / "file").write_bytes(b"")
    for name, number in (("missing", errno.ENOENT), ("file", errno.ENOTDIR)):
        with Disk(tmp_path / name) as storage, pytest.raises(StorageError, match=name) as caught:
            storage.put(0, [np.zeros(3)])
        assert caught.value.errno == number
        assert isinstance(caught.value.__cause__, OSError)


def test_the_working_directory_is_no_scratch_directory(tmp_path, monkeypatch):
    """Where `tempfile` falls back to the working directory, the user is asked; a named one is used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    with Disk() as storage, pytest.raises(StorageError, match="TMPDIR"):
        storage.put(0, [np.zeros(3)])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Disk() as storage:
        storage.put(0, [np.zeros(3)])
        assert storage.directory.parent == tmp_path


def test_the_working_directory_is_named_in_any_way(tmp_path, monkeypatch):
    """TMPDIR with a slash at its end, relative, or as a link names the working directory, too."""
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    monkeypatch.chdir(tmp_path / "work")
    for name in (f"{tmp_path}/work/", f"{tmp_path}/link/../work", f"{tmp_path}/link", "."):
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", None)
        with Disk() as storage:
            storage.put(0, [np.zeros(3)])
            assert storage.directory.parent.samefile(tmp_path / "work")


@pytest.mark.parametrize("before", [False, True])
def test_a_working_directory_that_is_gone(tmp_path, before, monkeypatch):
    """It is no reason not to use the directory for temporary files, whether `tempfile` looked for it before or not."""
    (tmp_path / "work").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/other/")
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert not before or tempfile.gettempdir() == f"{tmp_path}/other"
    (tmp_path / "work").rmdir()
    with Disk() as storage:
        storage.put(0, [np.zeros(3)])
        assert storage.directory.parent == tmp_path / "other"


def refuse_temporary():
    """What `tempfile` raises where it can write in no directory."""
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")


def test_the_first_directory_that_is_there_says_what_is_wrong(tmp_path, monkeypatch):
    """Where `tempfile` finds none to write in, as on a full disk, one that is there is used, not the working one."""
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", refuse_temporary)
    for variable, name in (("TMPDIR", "missing"), ("TEMP", "file"), ("TMP", "there")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    with Disk() as storage:
        storage.put(0, [np.zeros(3)])
        assert storage.directory.parent == tmp_path / "there"


def test_no_directory_for_temporary_files_at_all(monkeypatch):
    """It is an error that says what `tempfile` said, and what to do."""
    monkeypatch.setattr(tempfile, "gettempdir", refuse_temporary)
    monkeypatch.setattr(places, "_USUAL", ())
    for variable in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(variable, raising=False)
    with Disk() as storage, pytest.raises(StorageError, match=r"No usable .*\. Set TMPDIR .* or give") as caught:
        storage.put(0, [np.zeros(3)])
    assert caught.value.errno == errno.ENOENT


def test_the_limit_is_kept(tmp_path):
    """More than `limit` bytes are never taken; the error has all numbers and ENOSPC; `delete` makes room."""
    with Disk(tmp_path, limit="6 KiB") as storage:
        size = storage.put(0, [np.zeros(200)])
        with pytest.raises(StorageFullError, match=f"{size} bytes are taken, .*limit .* 6144 bytes") as caught:
            storage.put(1, [np.zeros(200)])
        assert (caught.value.errno, caught.value.key, caught.value.missing) == (errno.ENOSPC, 1, 2 * size - 6144)
        assert storage.keys() == (0,)
        storage.delete(0)
        assert storage.put(1, [np.zeros(200)]) == size


@pytest.mark.parametrize("buffer", [0, 8 * MIB])
def test_the_limit_counts_holes_that_are_not_given_back(tmp_path, buffer):
    """Entries of changing sizes never make the file take more than `limit`, and find room as long as there is any."""
    random = np.random.default_rng(0)
    limit = 3 * MIB
    with Disk(tmp_path, limit=limit, buffer=buffer) as storage:
        held: dict[int, int] = {}
        for key in range(300):
            array = np.zeros(int(random.integers(1, 60_000)))
            size = entry_nbytes([array], key)
            while sum(held.values()) + size > limit:
                gone = list(held)[int(random.integers(len(held)))]
                storage.delete(gone)
                del held[gone]
            held[key] = storage.put(key, [array])
            # The file system counts its own list of the pieces of a file with it.
            assert blocks(storage.directory / "segment") <= limit + 4 * 4096


@pytest.mark.parametrize("order", [("delete", "reserve"), ("reserve", "delete")], ids=" then ".join)
def test_the_limit_counts_what_is_reserved_of_a_hole(tmp_path, order):
    """The place of a deleted entry takes its blocks of `limit` as far as it is reserved, before or afterwards."""
    arguments = {"delete": ("whole",), "reserve": (1, MIB)}
    small, large = [np.zeros(10)], [np.zeros(MIB // 2)]
    limit = MIB + entry_nbytes(small, "small") + entry_nbytes(large, "large") - 1
    with Disk(tmp_path, limit=limit) as storage:
        storage.put("whole", [np.zeros(MIB // 4)])
        storage.put("small", small)
        for call in order:
            getattr(storage, call)(*arguments[call])
        with pytest.raises(StorageFullError):
            storage.put("large", large)
        assert blocks(storage.directory / "segment") <= limit
        storage.reserve(0, 0)
        storage.put("large", large)
        assert storage.keys() == ("small", "large")


def test_a_closed_storage_takes_nothing_of_a_shared_quota(tmp_path):
    """What a storage had of the bytes that several share is there for the others as soon as it is closed."""
    array = np.zeros(MIB // 8 - 1000)
    quota = Quota(MIB)
    first, second = Disk(tmp_path, limit=quota), Disk(tmp_path, limit=quota)
    with second:
        first.put(0, [array])
        with pytest.raises(StorageFullError):
            second.put(0, [array])
        first.close()
        second.put(0, [array])
        assert second.keys() == (0,)


def test_short_writes_and_reads_go_on(tmp_path):
    """An operating system that takes and gives a few bytes at a time makes no difference."""
    slow = replace(
        POSIX,
        pwrite=lambda file, block, offset: os.pwrite(file, block[:7], offset),
        preadv=lambda file, buffers, offset: os.preadv(file, [buffers[0][:5]], offset),
    )
    with Disk(tmp_path, system=slow) as storage:
        arrays = [np.arange(20.0), np.zeros(0), np.arange(9000)]
        storage.put(0, arrays)
        storage.put(1, arrays[:2])
        assert all(np.array_equal(a, b) for a, b in zip(arrays, storage.get(0), strict=True))
        assert np.array_equal(storage.get(1)[0], arrays[0])


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


def test_threads_that_meet_at_the_first_put_make_one_directory(tmp_path, monkeypatch):
    """One of them makes it, and the storage removes it: another one of which nobody knows would stay."""
    meeting, make = threading.Barrier(2), resources.make_scratch

    def make_together(directory):
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
        make(directory)

    monkeypatch.setattr(resources, "make_scratch", make_together)
    with Disk(tmp_path) as storage:
        threads = [threading.Thread(target=storage.reserve, args=(1, 1000)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(tmp_path.iterdir()) == [storage.directory]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("buffer", [0, MIB])
def test_a_dropped_storage_cleans_up_without_the_collector(tmp_path, buffer):
    """The last reference removes directory and thread; there is no cycle."""
    gc.collect()
    gc.disable()
    try:
        storage = Disk(tmp_path, buffer=buffer)
        storage.put(0, [np.zeros(10_000)])
        storage.prefetch([0])
        watch = weakref.ref(storage)
        del storage
        assert watch() is None
        assert (list(tmp_path.iterdir()), storage_threads()) == ([], [])
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("buffer", [0, MIB])
@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "raise ValueError"])
def test_the_exit_of_a_process_cleans_up(tmp_path, ending, buffer):
    """A process that ends without `close`, by an error or not, with a thread or not, leaves nothing behind."""
    program = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from ebbtide.storage import Disk\n"
        f"storage = Disk(sys.argv[1], buffer={buffer})\n"
        "for key in range(20): storage.put(key, [np.zeros(10000)])\n"
        "assert len(list(Path(sys.argv[1]).iterdir())) == 1\n"
    )
    status, _, problems = run_python(program + ending, tmp_path)
    assert status == {"pass": 0, "raise SystemExit(3)": 3, "raise ValueError": 1}[ending], problems
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("buffer", [0, MIB])
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_leaves_the_files_alone(tmp_path, buffer):
    """A child may read; its writes, deletes and exit do not touch what its parent stored."""
    program = (
        "import os, sys, numpy as np\n"
        "from ebbtide.errors import StorageError\n"
        "from ebbtide.storage import Disk\n"
        f"storage = Disk(sys.argv[1], buffer={buffer})\n"
        "storage.put(0, [np.arange(3)])\n"
        "storage.put(1, [np.arange(30000)])\n"
        "if os.fork() == 0:\n"
        "    assert storage.get(0)[0].tolist() == [0, 1, 2]\n"
        "    assert storage.get(1)[0][-1] == 29999\n"
        "    for use in (storage.take, storage.delete, lambda key: storage.put(2, []), lambda key: storage.flush()):\n"
        "        try:\n"
        "            use(0)\n"
        "        except StorageError as error:\n"
        "            assert 'forked' in str(error)\n"
        "        else:\n"
        "            raise AssertionError\n"
        "    if len(sys.argv) == 2: storage.close()\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
        "assert storage.take(0)[0].tolist() == [0, 1, 2]\n"
        "assert storage.take(1)[0][-1] == 29999\n"
    )
    for options in ((), ("without close",)):
        status, _, problems = run_python(program, tmp_path, *options)
        assert status == 0, problems
        assert list(tmp_path.iterdir()) == []


def test_nobody_else_may_look_into_a_scratch_directory(tmp_path):
    """The private directory of a storage can be read, listed and written by its user only."""
    with Disk(tmp_path) as storage:
        storage.put(0, [np.zeros(3)])
        assert stat.S_IMODE(storage.directory.stat().st_mode) == 0o700


def test_names_of_other_directories_are_left_alone(tmp_path):
    """What is not a scratch directory of ours is never swept."""
    for name in ("ebbtide", "ebbtide-notes", "ebbtide-1-2", "other"):
        (tmp_path / name).mkdir()
    with Disk(tmp_path) as storage:
        storage.put(0, [np.zeros(3)])
    assert {path.name for path in Path(tmp_path).iterdir()} == {"ebbtide", "ebbtide-1-2", "ebbtide-notes", "other"}


def test_a_storage_is_made_in_a_few_kilobytes(tmp_path):
    """Nor does the first one of a process take more: budgets of loops on a few numbers are 50 KB."""

    def make():
        Disk(tmp_path).close()

    make()
    # Forgets which classes are no mappings, of which there may be hundreds: to ask for one is an entry in each.
    Mapping.register(type("Other", (), {}))
    assert measure_peak(make) < 4096
    assert measure_peak(lambda: start_of(os.getpid())) < 4096


def test_it_is_not_copied(tmp_path):
    """The directory of a copy would be removed by nobody, or twice."""
    with Disk(tmp_path) as storage:
        storage.put(0, [np.zeros(3)])
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                copied(storage)
