"""What ranks do together where they share a file: `ebbtide.storage.sharing`, with threads for ranks."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide.errors import RankError, StorageError
from ebbtide.storage import Disk, StorageFullError, resources, sharing
from ebbtide.storage.places import make_scratch

MIB = 1 << 20


class Comm:
    """A rank of a communicator, as far as storages ask it."""

    def __init__(self, rank: int, size: int, group: Group | None = None) -> None:
        self.rank, self.size, self.group = rank, size, group

    def allgather(self, value: Any) -> list[Any]:
        return [value] if self.group is None else self.group.gather(self.rank, value)

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


class Group:
    """Threads that stand for the ranks."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=60)
        self.given: list[Any] = [None] * size

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found


COMM_WORLD = Comm(7, 9)


def test_names_are_filled_in_and_what_is_made_goes(tmp_path):
    """`{hostname}` and `{rank}` are those of the process; directories that were there, or that hold more, stay."""
    found = sharing.fill_template(f"{tmp_path}/{{hostname}}/{{rank}}", Comm(0, 1))
    assert found == tmp_path / sharing.host_name() / "7"
    sharing.made_in(found, (found.parent / "theirs").touch)
    sharing.remove_parents(found)
    assert [path.name for path in found.parent.iterdir() if path.name != sharing.MADE] == ["theirs"]
    (found.parent / "theirs").unlink()
    sharing.remove_parents(found.parent)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    """Beneath a file there is no directory."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot make the directory"):
        sharing.made_in(tmp_path / "file" / "below", lambda: None)


def test_a_directory_that_another_process_removes_is_made_again(tmp_path):
    """Between making a directory and making something in it, its last user may go."""
    found, turns = tmp_path / "above" / "below", []

    def call() -> None:
        turns.append(found.exists())
        if len(turns) == 1:
            sharing.remove_parents(found)
        make_scratch(found / "mine")

    sharing.made_in(found, call)
    assert turns == [True, True]
    (found / "mine").rmdir()
    sharing.remove_parents(found)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_always_gone_is_an_error(tmp_path):
    """It is not made again for ever."""
    found = tmp_path / "below"

    def call() -> None:
        sharing.remove_parents(found)
        make_scratch(found / "mine")

    with pytest.raises(StorageError, match="Cannot make a directory for storage in"):
        sharing.made_in(found, call)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stays", [False, True])
def test_a_directory_that_is_used_again_while_it_is_removed_goes_later(stays, tmp_path, monkeypatch):
    """What another process makes in it after it was found empty keeps it; it goes with that one."""
    found, rmdir, mine = tmp_path / "below", Path.rmdir, tmp_path / "below" / "mine"
    sharing.made_in(found, lambda: None)

    def late(path: Path) -> None:
        monkeypatch.undo()
        mine.mkdir()
        try:
            rmdir(path)
        finally:
            if not stays:
                mine.rmdir()

    monkeypatch.setattr(Path, "rmdir", late)
    sharing.remove_parents(found)
    assert found.exists() is stays
    if stays:
        mine.rmdir()
        sharing.remove_parents(found)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_may_not_be_removed_stays(tmp_path, monkeypatch):
    """It is tried once, and can be found as one that was made."""
    found = tmp_path / "below"
    sharing.made_in(found, lambda: None)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rmdir", refuse)
    sharing.remove_parents(found)
    assert [path.name for path in found.iterdir()] == [sharing.MADE]


def test_directories_that_were_made_for_one_that_cannot_be_made_go(tmp_path, monkeypatch):
    """They are gone when the error is there, and the next storage makes them again."""

    def refuse(path: Path) -> None:
        raise StorageError(errno.EDQUOT, "Disk quota exceeded")

    storage = Disk(tmp_path / "above" / "below", comm=Comm(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(resources, "make_scratch", refuse)
        with pytest.raises(StorageError, match="quota"):
            storage.put(0, [np.arange(3)])
    assert list(tmp_path.iterdir()) == []
    assert storage.directory is None
    storage.put(0, [np.arange(3)])
    assert storage.directory.exists()
    storage.close()
    assert list(tmp_path.iterdir()) == []


def test_processes_that_know_nothing_of_each_other_share_a_directory(tmp_path):
    """Each makes it when it opens a storage and removes it when it closes it, whatever the others do meanwhile."""

    def call(comm: Comm) -> int:
        for turn in range(150):
            with Disk(tmp_path / "above" / "below", comm=Comm(0, 1)) as storage:
                storage.put(turn, [np.arange(3)])
        return comm.rank

    assert run_ranks(call, 3) == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def run_ranks(call: Any, size: int = 2) -> list[Any]:
    """What a call returns or raises on each rank."""
    group = Group(size)

    def one(rank: int) -> Any:
        try:
            return call(Comm(rank, size, group))
        except (StorageError, RankError) as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_parts_of_one_file(tmp_path):
    """Each rank finds what it has put itself, whatever the others put, delete and reserve; space goes back."""

    def call(comm: Comm) -> int:
        storage = Disk(tmp_path, "2 MiB", comm=comm, buffer="64 KiB" if comm.rank else 0)
        for turn in range(30):
            storage.put(turn, [np.full(1000 * (1 + turn % 3), comm.rank)])
            if turn > 3:
                assert (storage.take(turn - 3)[0] == comm.rank).all()
        comm.allgather(None)
        assert len(list(tmp_path.rglob("segment"))) == 1
        assert storage.directory is not None
        for key in storage.keys():
            assert (storage.get(key)[0] == comm.rank).all()
            storage.delete(key)
        storage.reserve(1, MIB)
        comm.allgather(None)
        reserved = (storage.directory / "segment").stat().st_blocks * 512
        comm.allgather(None)
        storage.reserve(0, 0)
        comm.allgather(None)
        assert (storage.directory / "segment").stat().st_blocks == 0
        comm.allgather(None)
        storage.close()
        return reserved

    # The file system has a block or two of its own.
    assert all(2 * MIB <= reserved < 2.1 * MIB for reserved in run_ranks(call))
    assert list(tmp_path.iterdir()) == []


def test_a_part_has_an_end(tmp_path):
    """What does not fit into a rank's part is refused, and never in that of the next."""

    def call(comm: Comm) -> None:
        with Disk(tmp_path, MIB, comm=comm) as storage:
            comm.allgather(storage.put(0, [np.zeros(MIB // 16)]))
            with pytest.raises(StorageFullError, match="the limit of this Disk storage is 1048576 bytes"):
                storage.put(1, [np.zeros(MIB // 8)])
            comm.allgather(None)

    assert run_ranks(call) == [None, None]


def test_what_is_refused_leaves_the_next_part_alone(tmp_path):
    """To give a refused place back clears nothing of the next rank's part."""

    def call(comm: Comm) -> None:
        with Disk(tmp_path, MIB, comm=comm) as storage:
            if comm.rank:
                storage.put("kept", [np.arange(1000)])
            comm.allgather(None)
            if not comm.rank:
                with pytest.raises(StorageFullError):
                    storage.put("large", [np.zeros(200_000)])
            comm.allgather(None)
            if comm.rank:
                assert storage.get("kept")[0].tolist() == list(range(1000))
            comm.allgather(None)

    assert run_ranks(call) == [None, None]


@pytest.mark.parametrize("spare", [1, 2, sharing.SPARE])
def test_what_lies_in_pieces_stays_in_its_part(spare, tmp_path, monkeypatch):
    """What fits into no free piece lies in the part's spare addresses, or is refused; the next part is as it was."""
    monkeypatch.setattr(sharing, "SPARE", spare)

    def call(comm: Comm) -> None:
        with Disk(tmp_path, 4 * MIB, comm=comm) as storage:
            if comm.rank:
                storage.put("kept", [np.arange(1000)])
            comm.allgather(None)
            if not comm.rank:
                storage.put("x", [np.zeros(3 << 19, "u1")])
                storage.put("y", [np.zeros(3)])
                storage.delete("x")
                if spare == 1:
                    with pytest.raises(StorageFullError, match=r"'z'.* behind this rank's part of .*Delete other keys"):
                        storage.put("z", [np.ones(3 << 20, "u1")])
                    with pytest.raises(StorageFullError, match="Cannot reserve room"):
                        storage._open().segment.reserve(5 * MIB)
                else:
                    storage.put("z", [np.ones(3 << 20, "u1")])
                    assert storage.take("z")[0].all()
                storage.put("small", [np.ones(3)])
                assert storage.keys() == ("y", "small")
            comm.allgather(None)
            if comm.rank:
                assert storage.get("kept")[0].tolist() == list(range(1000))
            comm.allgather(None)

    assert run_ranks(call) == [None, None]


@pytest.mark.parametrize(("most", "spare"), [(1 << 44, 16), (1 << 62, 64), (1 << 39, 1)])
def test_parts_are_as_long_as_files_may_be(most, spare, tmp_path, monkeypatch):
    """Parts take the addresses that a file can have, each at least its limit, and none of the disk."""
    (tmp_path / "segment").touch()

    def truncate(path: Path, nbytes: int) -> None:
        if nbytes > most:
            raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(sharing.os, "truncate", truncate)
    assert sharing._find_room(tmp_path / "segment", sharing.PART, 16) == spare * sharing.PART
    monkeypatch.undo()
    assert sharing._find_room(tmp_path / "segment", 1 << 70, 2) == 1 << 70
    assert sharing._find_room(tmp_path / "segment", MIB, 2) == sharing.SPARE * MIB
    assert ((tmp_path / "segment").stat().st_size, (tmp_path / "segment").stat().st_blocks) == (0, 0)


def test_what_one_rank_cannot_make_none_has(tmp_path):
    """An error where the file is made is raised by all, once for its reason."""
    (tmp_path / "file").touch()
    first, second = run_ranks(lambda comm: Disk(tmp_path / "file" / "below", comm=comm))
    assert isinstance(first, StorageError)
    assert isinstance(second, RankError)
    assert "Rank 0 failed: Cannot make the directory" in str(second)


def test_what_all_ranks_miss_is_said_once():
    """Where several fail the first raises its error, and the others that it failed; those that did not put back."""
    undone = []

    def call(comm: Comm) -> None:
        def fail() -> None:
            if comm.rank:
                raise StorageError(f"no room for {comm.rank}")

        sharing.together(comm, fail, lambda: undone.append(comm.rank))

    found = run_ranks(call, 3)
    assert [type(error) for error in found] == [RankError, StorageError, RankError]
    assert {str(error) for error in found} == {"Rank 1 failed: no room for 1", "no room for 1"}
    assert str(found[2].__cause__) == "no room for 2"
    assert undone == [0]


@pytest.mark.parametrize("comm", ["world", 0, ()])
def test_what_is_no_communicator_is_refused(comm, tmp_path):
    """Names and numbers are none, and neither is one that was freed, which counts as false."""
    with pytest.raises(TypeError, match="is no communicator"):
        Disk(tmp_path, comm=comm)


def test_ranks_do_not_share_what_lasts(tmp_path):
    """A durable file belongs to one process."""
    with pytest.raises(ValueError, match="one for each rank"):
        Disk(tmp_path, durable=True, comm=Comm(0, 2))
