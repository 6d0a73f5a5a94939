"""A process that may open no more files: it makes no directories that would stay, and gives back those it has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk
from ebbtide.storage.places import host_name, start_of, sweep

from .helpers import descriptors_left


@pytest.mark.parametrize(("durable", "left"), [(False, 0), (True, 0), (True, 1)])
def test_a_storage_that_cannot_be_opened(durable: bool, left: int, tmp_path: Path) -> None:
    """It is refused with what the system says, and leaves nothing behind; later it can be opened."""

    def use() -> None:
        with Disk(tmp_path / "kept" if durable else tmp_path, durable=durable) as storage:
            storage.put(0, [np.arange(3)])
            assert storage.take(0)[0].tolist() == [0, 1, 2]

    with descriptors_left(left), pytest.raises(StorageError, match="Too many open files") as caught:
        use()
    assert caught.value.errno == errno.EMFILE
    assert list(tmp_path.iterdir()) == []
    use()


def test_a_scratch_directory_is_removed(tmp_path: Path) -> None:
    """A storage that is open is closed, and its directory is gone."""
    storage = Disk(tmp_path)
    storage.put(0, [np.arange(3)])
    with descriptors_left(0):
        storage.close()
    assert list(tmp_path.iterdir()) == []


def test_a_durable_directory_is_given_up(tmp_path: Path) -> None:
    """A storage that is open is closed, and the process may open the directory again."""
    storage = Disk(tmp_path, durable=True)
    storage.put(0, [np.arange(3)])
    with descriptors_left(0):
        storage.close()
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == (0,)


def test_directories_whose_makers_had_no_start(tmp_path: Path) -> None:
    """A name without the start of its process is swept when that is gone, and not while a process has its number."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead, alive = [tmp_path / f"ebbtide-{pid}-{host_name()}-0-abc" for pid in (child, os.getppid())]
    for path in (dead, alive):
        path.mkdir()
        (path / "segment").touch()
    assert sweep(tmp_path) == [dead]
    assert list(tmp_path.iterdir()) == [alive]
    with descriptors_left(0):
        assert start_of(os.getpid()) == 0
