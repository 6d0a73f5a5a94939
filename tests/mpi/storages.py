"""What the ranks of a group state of storages; each check is run by on_ranks.py."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
from group import Group, refused
from mpi4py import MPI

from ebbtide.errors import RankError
from ebbtide.storage import Disk, StorageFullError
from ebbtide.testing import StorageContract

MIB = 1 << 20


class Shared(StorageContract):
    """The contract of a storage, for one whose file the ranks of a group share."""

    def __init__(self, comm: Any, buffer: str) -> None:
        self.comm, self.buffer = comm, buffer

    def make(self, tmp_path: Path) -> Disk:
        return Disk(tmp_path, comm=self.comm, buffer=self.buffer)


def check_contract(group: Group) -> None:
    """A file that ranks share keeps the contract of a storage on each of them, with and without a buffer."""
    with group.directory() as directory:
        for buffer in ("0 B", "1 MiB"):
            suite = Shared(group.comm, buffer)
            for name in dir(suite):
                if name.startswith("test_"):
                    getattr(suite, name)(directory)
        group.meet()
        assert list(directory.iterdir()) == []


def check_files(group: Group) -> None:
    """There is one file for each rank or for all ranks of a communicator, each with a part that begins at a MiB."""
    pairs = group.comm.Split(group.rank // 2)
    with group.directory() as directory:
        for comm, expected in ((MPI.COMM_SELF, group.size), (pairs, -(-group.size // 2)), (group.comm, 1)):
            with Disk(directory, "3 MiB", comm=comm) as storage:
                storage.put("mine", [np.full(MIB // 8, group.rank, float)])
                storage.flush()
                group.meet()
                found = list(directory.rglob("segment"))
                assert len(found) == expected
                part = storage._resources._part
                offset = 0 if part is None else part.offset
                assert offset % MIB == 0
                assert comm.allgather(offset) == [k * (0 if part is None else part.nbytes) for k in range(comm.size)]
                with open(storage.directory / "segment", "rb") as file:  # noqa: PTH123 - bytes at a place
                    file.seek(offset)
                    assert np.full(MIB // 8, group.rank, float).tobytes() in file.read(3 * MIB)
                storage.delete("mine")
                group.meet()
                assert all(path.stat().st_blocks * 512 < 2 * MIB * comm.size for path in found)
                group.meet()
            group.meet()
            assert list(directory.iterdir()) == []
            group.meet()
    pairs.Free()


def check_templates(group: Group) -> None:
    """Names in a directory stand for the machine and the rank in the world; what is made goes with the storage."""
    with group.directory() as directory:
        (directory / "theirs").mkdir(exist_ok=True)
        for comm in (MPI.COMM_SELF, group.comm):
            storage = Disk(f"{directory}/theirs/{{hostname}}/{{rank}}", comm=comm)
            storage.put(0, [np.arange(3)])
            assert storage.directory is not None
            world = MPI.COMM_WORLD.rank if comm is MPI.COMM_SELF else group.world
            assert storage.directory.parent.name == str(world)
            group.meet()
            storage.close()
            group.meet()
            assert [path.name for path in directory.rglob("*")] == ["theirs"]
            group.meet()


def check_reservations(group: Group) -> None:
    """Where one rank has no room for what it reserves all raise, and those that had room have it no more."""
    with group.directory() as directory, Disk(directory, "64 MiB", comm=group.comm) as storage:
        storage.reserve(1, MIB)
        last = group.rank == group.size - 1
        with refused(StorageFullError, "the limit of this Disk storage is 67108864") if last else refused(
            RankError, f"Rank {group.size - 1} failed: Cannot reserve"
        ):
            storage.reserve(1, 65 * MIB if last else 2 * MIB)
        group.meet()
        assert storage.directory is not None
        assert (storage.directory / "segment").stat().st_blocks * 512 <= group.size * MIB * 1.1


def check_endings(group: Group) -> None:
    """A storage that one rank drops, closes or collects earlier waits for nobody, and the last rank removes it."""
    with group.directory() as directory:
        for end in ("dropped", "collected", "closed"):
            storage: Any = Disk(directory, comm=group.comm)
            storage.put(0, [np.full(1000, group.rank)])
            group.meet()
            if group.rank == 0:
                if end == "closed":
                    storage.close()
                elif end == "collected":
                    storage = [storage]
                    storage.append(storage)
                storage = None
                gc.collect()
            group.meet()
            assert len(list(directory.rglob("segment"))) == (group.size > 1)
            group.meet()
            if group.rank:
                assert (storage.get(0)[0] == group.rank).all()
                storage.close()
            group.meet()
            assert list(directory.iterdir()) == []
            group.meet()


def check_parts_of_ranks_load(group: Group) -> None:
    """Some ranks load from a file that all share, and from one of their own communicator, while the others do not."""
    some = group.comm.Split(group.rank % 2)
    with group.directory() as directory, Disk(directory, comm=group.comm) as whole, Disk(directory, comm=some) as part:
        for storage in (whole, part):
            storage.put("state", [np.arange(10.0) + group.rank])
        if group.rank % 2 == 0:
            for storage in (whole, part):
                np.testing.assert_array_equal(storage.get("state")[0], np.arange(10.0) + group.rank)
        group.meet()
    some.Free()


def check_unshared_directories(group: Group) -> None:
    """Where ranks do not see one file, all raise, and one says what to do."""
    with group.directory() as directory:
        if group.size == 1:
            return
        exists, Path.exists = Path.exists, lambda path, **known: False if hidden(path) else exists(path, **known)

        def hidden(path: Path) -> bool:
            return group.rank == group.size - 1 and path.name == "segment"

        try:
            with refused(OSError if group.rank == group.size - 1 else RankError, "share no file system"):
                Disk(directory, comm=group.comm)
        finally:
            Path.exists = exists
        group.meet()
        assert os.listdir(directory) == []  # noqa: PTH208 - Path is not itself here
        group.meet()
        with refused(TypeError, "is no communicator"):
            Disk(directory, comm=MPI.COMM_NULL)
