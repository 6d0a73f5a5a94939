"""
One file for several processes: each has a part of its own, and reads and writes there without asking the others.

The communicator is one of mpi4py; nothing here imports that. The ranks talk to each other where a storage is made and
where it reserves room, and never after: the last one that lets go of the file removes it, as its locks tell.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ebbtide.errors import RankError, StorageError
from ebbtide.storage.extents import round_up
from ebbtide.storage.failures import make_error
from ebbtide.storage.places import host_name, make_scratch, name_scratch, remove_scratch
from ebbtide.storage.segment import NAME

ALIGNMENT = 1 << 20
"""Parts begin at a multiple of this many bytes: that of a stripe of a parallel file system, or a multiple of it."""
PART = 1 << 36
"""The least bytes of a part without a limit: what is not written takes no disk, and 255 fit into a file of ext4."""
SPARE = 64
"""A part is at most so many times as long as its limit: entries of other sizes do not fit where deleted ones lay."""
MADE = ".ebbtide-made"
"""A file in a directory that was made for storages: it goes with the last of them."""
# So often a directory is made again that another process removes: each time, a storage of that process has ended.
_TURNS = 100


@final
@dataclass(frozen=True, slots=True)
class Part:
    """
    A process's part of a file.

    Args:
        directory: The scratch directory with the file.
        offset: The first byte of the part.
        nbytes: How many there are.
    """

    directory: Path
    offset: int
    nbytes: int


def is_shared(comm: Any) -> bool:
    """
    Return whether there are several ranks.

    Args:
        comm: A communicator of mpi4py; None for a process alone.

    Raises:
        TypeError: It is another thing, or no communicator any more.
    """
    if comm is None:
        return False
    if not (hasattr(comm, "allgather") and comm):
        raise TypeError(f"comm={comm!r} is no communicator. Give one of mpi4py that is in use, such as MPI.COMM_SELF.")
    return bool(comm.size > 1)


def fill_template(directory: str | Path, comm: Any) -> Path:
    """
    Return a directory with the names that this process has: `{hostname}`, and `{rank}`, that in `COMM_WORLD`.

    Args:
        directory: A directory, perhaps with such names.
        comm: Any communicator of mpi4py.
    """
    world: Any = sys.modules[type(comm).__module__].COMM_WORLD
    return Path(str(directory).replace("{hostname}", host_name()).replace("{rank}", str(world.rank)))


def made_in(directory: Path, call: Callable[[], object]) -> None:
    """
    Make a directory and those above it that do not exist, and what a call makes in it.

    Another process that is done with the same directory may remove it between the two; then both are done again.

    Raises:
        StorageError: It cannot be made.
    """
    for turn in range(_TURNS):
        try:
            _make_parents(directory)
            call()
        except StorageError as error:
            if error.errno != errno.ENOENT or turn == _TURNS - 1:
                raise
        else:
            return


def _make_parents(directory: Path) -> None:
    try:
        for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
            with suppress(FileExistsError):  # another rank may be as far
                path.mkdir(mode=0o700)
                (path / MADE).touch()
    except OSError as cause:
        raise make_error(
            f"Cannot make the directory {directory} for storage: {cause.strerror}. Give one that may be made or "
            "written as directory=.",
            cause.errno,
        ) from cause


def remove_parents(directory: Path) -> None:
    """Remove a directory and those above it that `made_in` has made, as far as nothing else is in them."""
    with suppress(OSError):
        for path in (directory, *directory.parents):
            while path.exists():
                if [place.name for place in path.iterdir()] != [MADE]:
                    return
                (path / MADE).unlink()
                try:
                    path.rmdir()
                except OSError as error:
                    (path / MADE).touch()
                    if error.errno != errno.ENOTEMPTY:
                        return
                    # Another process has made something in it meanwhile. If that is gone again, nobody else removes it.


def make_part(comm: Any, parent: Path, limit: int | None) -> Part:
    """
    Make one file for all ranks of a communicator, in a scratch directory of its first rank; all of them come here.

    Args:
        comm: The communicator.
        parent: Where the first rank makes the directory.
        limit: The most bytes of this rank; None for no limit.

    Raises:
        StorageError: It cannot be made, or not every rank sees it.
    """
    made: list[Path] = []
    least = max(comm.allgather(PART if limit is None else round_up(max(1, limit), ALIGNMENT)))
    nbytes = least

    def make() -> None:
        nonlocal nbytes
        if comm.rank == 0:
            path = name_scratch(parent)
            made.append(path)
            made_in(parent, lambda: make_scratch(path))
            (path / NAME).touch(mode=0o600, exist_ok=False)
            nbytes = _find_room(path / NAME, least, comm.size)

    def see() -> None:
        if not (directory / NAME).exists():
            raise StorageError(
                f"The file {directory / NAME} that the first rank has made is not there on {host_name()}: the ranks "
                "share no file system. Give a directory= that they share, the communicator of the ranks of a node, or "
                "COMM_SELF."
            )

    try:
        together(comm, make)
        where, nbytes = comm.bcast((str(made[0]), nbytes) if made else None)
        directory = Path(where)
        together(comm, see)
    except BaseException:
        for path in made:
            remove_scratch(path)
        raise
    return Part(directory, comm.rank * nbytes, nbytes)


def _find_room(path: Path, least: int, size: int) -> int:
    """Return how long the *size* parts of an empty file may be: the system says which lengths a file cannot have."""
    room = SPARE * least
    while room > least:
        # OverflowError: more than there are numbers for.
        with suppress(OSError, OverflowError):
            os.truncate(path, size * room)
            os.truncate(path, 0)
            return room
        room //= 2
    return least


def together(comm: Any, call: Callable[[], object], undo: Callable[[], object] | None = None) -> None:
    """
    Make a call on all ranks of a communicator, which succeeds on all or on none.

    Args:
        comm: The communicator; None for a process alone.
        call: What each rank does.
        undo: What those do on which it succeeded, if it failed on another one.

    Raises:
        StorageError: That of the call, on the first rank where it failed: what all ranks miss is said once.
        RankError: It failed on another rank.
    """
    if not is_shared(comm):
        call()
        return
    failed: StorageError | None = None
    try:
        call()
    except StorageError as error:
        failed = error
    told: list[str | None] = comm.allgather(None if failed is None else str(failed))
    first = next((rank for rank, reason in enumerate(told) if reason is not None), None)
    if first is None:
        return
    if failed is not None and first == comm.rank:
        raise failed
    if failed is None and undo is not None:
        undo()
    raise RankError(f"Rank {first} failed: {told[first]}") from failed
