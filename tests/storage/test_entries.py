"""How entries lie in the file: large arrays as in memory, in whole pages, as many bytes wherever they lie."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from ebbtide import cli
from ebbtide.errors import StorageError
from ebbtide.storage import Disk, entries, entry_nbytes, segment
from ebbtide.storage.system import POSIX

LARGE = 1 << 19  # of float64: 4 MiB, from which on a thread takes checksums
RESIDUES = [0, 8, 16, 24, 48, 56]


def array_at(residue, size=LARGE, seed=0):
    """An array that begins so many bytes after a multiple of 64."""
    room = np.empty(8 * size + 64, np.uint8)
    start = (residue - room.__array_interface__["data"][0]) % 64
    array = room[start : start + 8 * size].view(np.float64)
    array[:] = np.random.default_rng(seed).standard_normal(size)
    return array


def address(array):
    """Where an array begins."""
    return array.__array_interface__["data"][0]


class Calls:
    """The operating system, which notes where it writes, and how much."""

    def __init__(self):
        self.writes = []
        self.system = replace(POSIX, pwrite=self.pwrite)

    def pwrite(self, descriptor, content, offset):
        """Write."""
        self.writes.append((offset, memoryview(content).nbytes))
        return os.pwrite(descriptor, content, offset)


class Replaced:
    """The module os with another function."""

    def __init__(self, **functions):
        vars(self).update(functions)

    def __getattr__(self, name):
        return getattr(os, name)


@pytest.mark.parametrize("size", [LARGE, LARGE // 8, LARGE + 3])
def test_large_arrays_lie_in_the_file_as_in_memory(tmp_path, size):
    """Each begins as many bytes after a multiple of 64, also behind small ones; the bytes taken are always the same."""
    taken = set()
    for residue in RESIDUES:
        arrays = [np.arange(5.0), array_at(residue, size, 1), np.float64(3.0) * np.ones(()), array_at(0, size, 2)]
        with Disk(tmp_path) as storage:
            storage.put("before", [array_at(8, 1000)])
            taken.add((storage.put("state", arrays), storage.bytes_written))
            entry = storage._entries["state"].record
            for place in (1, 3):
                start = entry.offset + entry.starts()[place]
                assert (start - address(arrays[place])) % 64 == 0
                with open(storage.directory / "segment", "rb") as file:  # noqa: PTH123 - bytes at a place
                    file.seek(start)
                    assert file.read(arrays[place].nbytes) == arrays[place].tobytes()
            starts = entry.starts()
            ends = [entry.data, *(start + known.stored for start, known in zip(starts, entry.arrays, strict=True))]
            assert all(end <= start for end, start in zip(ends[:-1], starts, strict=True))
            assert ends[-1] <= entry.length <= entry.nbytes
            found = storage.take("state")
            assert all(np.array_equal(x, y) for x, y in zip(found, arrays, strict=True))
    assert len(taken) == 1
    assert taken.pop()[0] == entry_nbytes(arrays, "state")


def test_another_process_finds_arrays_wherever_they_begin(tmp_path):
    """What a durable storage left is found by the next one, whose arrays lie elsewhere."""
    with Disk(tmp_path, durable=True) as storage:
        for residue in RESIDUES:
            storage.put(residue, [array_at(residue, LARGE, residue), np.arange(3)])
    with Disk(tmp_path, durable=True) as storage:
        assert sorted(storage.keys()) == RESIDUES
        for residue in RESIDUES:
            array, count = storage.take(residue)
            assert np.array_equal(array, array_at(0, LARGE, residue))
            assert count.tolist() == [0, 1, 2]


def states(residue):
    """States whose arrays begin at any place, of any sizes, in any order of their axes."""
    array = array_at(residue).reshape(512, -1)
    few = [np.arange(k % 7) for k in range(30)]
    odd = [array_at(residue, size) for size in (10_001, 333, 123_457)]
    return [[array], [array.T], [np.array(0.1), array], [*odd, *odd], [*few, array, *few, array.T, odd[1]], [*odd * 40]]


@pytest.mark.parametrize("buffer", [0, 64 << 20])
@pytest.mark.parametrize("residue", RESIDUES)
@pytest.mark.parametrize("number", range(len(states(0))))
def test_large_states_are_written_by_whole_pages(tmp_path, residue, number, buffer):
    """Wherever they begin in memory, at once and by the buffer: no page is read before it is written, none twice."""
    calls = Calls()
    arrays = states(residue)[number]
    with Disk(tmp_path, buffer=buffer, system=calls.system) as storage:
        storage._open().pipeline._waits = True
        storage.put(0, arrays)
        storage.flush()
        assert calls.writes[-1][0] == 0
        pages = [page for offset, nbytes in calls.writes for page in range(offset // 4096, (offset + nbytes) // 4096)]
        assert all(offset % 4096 == nbytes % 4096 == 0 for offset, nbytes in calls.writes)
        assert sorted(pages) == list(range(storage.nbytes // 4096))
        assert all(np.array_equal(x, y) for x, y in zip(storage.take(0), arrays, strict=True))
    assert entry_nbytes([states(residue)[0][0]]) == LARGE * 8 + 4096


def test_the_header_is_written_last(tmp_path):
    """A process that is killed before its last write leaves no entry, though a page is shared by header and data."""
    left = []

    def stop(descriptor, content, offset):
        if not left:
            raise OSError(5, "broken")
        left.pop()
        return os.pwrite(descriptor, content, offset)

    for count in range(20):
        left[:] = range(count)
        with Disk(tmp_path / str(count), durable=True, system=replace(POSIX, pwrite=stop)) as storage:
            try:
                storage.put(0, [array_at(16), array_at(16, 3)])
            except OSError:
                is_there = False
            else:
                is_there = True
        with Disk(tmp_path / str(count), durable=True) as storage:
            assert storage.keys() == ((0,) if is_there else ())
            if is_there:
                assert np.array_equal(storage.get(0)[0], array_at(0))
                return
    raise AssertionError("It was never written.")


def test_entries_of_another_version_are_not_taken_for_free_space(tmp_path, capsys):
    """A directory that another version left is refused by name, and nothing in it is changed."""
    with Disk(tmp_path, durable=True) as storage:
        storage.put(0, [array_at(16)])
        storage.put(1, [np.arange(3)])
        starts = [storage._entries[key].record.offset for key in (0, 1)]
    file = tmp_path / "segment"
    content = bytearray(file.read_bytes())
    for start in starts:
        assert content[start : start + 8] == b"EBBTIDE5"
        content[start + 7] = ord("3")
    file.write_bytes(content)
    with pytest.raises(StorageError, match=f"{file} are of the version 3 .* reads 5"):
        Disk(tmp_path, durable=True)
    assert cli.main(["inspect", str(tmp_path)]) != 0
    assert "version 3" in capsys.readouterr().err
    assert file.read_bytes() == content
    # Where there are others, it is a damaged header.
    content[starts[0] + 7] = ord("5")
    file.write_bytes(content)
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == (0,)


@pytest.mark.parametrize("name", ["pread", "lseek"])
def test_what_is_stored_survives_a_failure_while_it_is_found(tmp_path, monkeypatch, name):
    """An error or an interrupt at any call while a directory is opened again leaves all that is in it."""
    with Disk(tmp_path, durable=True) as storage:
        for key in range(4):
            storage.put(key, [array_at(16, 20_000, key)])
        storage.delete(1)
    file = tmp_path / "segment"
    content, plain = file.read_bytes(), getattr(os, name)
    for stop, error in [(stop, error) for stop in range(40) for error in (KeyboardInterrupt, OSError)]:
        left = [None] * stop

        def fail(*arguments, left=left, error=error, **named):
            if not left:
                raise error(5, "broken")
            left.pop()
            return plain(*arguments, **named)

        monkeypatch.setattr(segment, "os", Replaced(**{name: fail}))
        try:
            Disk(tmp_path, durable=True).close()
        except (KeyboardInterrupt, OSError):
            pass
        else:
            if left:
                break
        finally:
            monkeypatch.setattr(segment, "os", os)
        assert file.read_bytes() == content
    assert left
    assert stop > 1
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == (0, 2, 3)


def test_a_disk_that_cannot_be_read_is_told(tmp_path, monkeypatch, capsys):
    """An error while a durable directory is opened or listed names the file, the place and what to do."""
    with Disk(tmp_path, durable=True) as storage:
        storage.put(0, [np.arange(3)])

    def refuse(descriptor, nbytes, offset):
        raise OSError(5, "I/O error")

    monkeypatch.setattr(segment, "os", Replaced(pread=refuse))
    told = f"at offset 0 of {tmp_path / 'segment'}: I/O error"
    with pytest.raises(StorageError, match=f"{told}.*Check the disk") as caught:
        Disk(tmp_path, durable=True)
    assert caught.value.errno == 5
    assert cli.main(["inspect", str(tmp_path)]) == cli.EXIT_ERROR
    assert told in capsys.readouterr().err


def test_the_length_of_a_header_is_not_believed(tmp_path, monkeypatch):
    """Whatever length a damaged header says it has, no more is read than the file has, and no more than is sensible."""
    with Disk(tmp_path, durable=True) as storage:
        storage.put(0, [np.arange(3)])
        storage.put(1, [np.arange(3)])
    file = tmp_path / "segment"
    content = bytearray(file.read_bytes())
    content[16:24] = (1 << 29).to_bytes(8, "little")
    file.write_bytes(content)
    for size in (len(content), 1 << 30):
        os.truncate(file, size)
        asked = []

        def read(descriptor, nbytes, offset, asked=asked):
            asked.append(nbytes)
            return os.pread(descriptor, nbytes, offset)

        monkeypatch.setattr(segment, "os", Replaced(pread=read))
        with Disk(tmp_path, durable=True) as storage:
            assert storage.keys() == (1,)
        assert max(asked) <= 1 << 16
        monkeypatch.undo()


def test_a_header_that_would_not_be_found_is_refused(tmp_path, monkeypatch):
    """An entry whose description is too long is refused, before there is anything of it."""
    monkeypatch.setattr(entries, "MOST_HEADER", 4096)
    with Disk(tmp_path) as storage:
        with pytest.raises(StorageError, match=r"Cannot store 200 arrays.*Use several keys"):
            storage.put(0, [np.zeros(1)] * 200)
        assert storage.keys() == ()
