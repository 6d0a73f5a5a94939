"""Directories that somebody removes and has again while a storage lives: its end leaves what is there now."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import grad, timeloop
from ebbtide.errors import StorageError
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.storage import Disk, StorageLockedError

from .test_turns import Other

MINE = ("data", "lock", "newest", "owner", "owner.7", "segment")


def contents(directory: Path) -> dict[str, bytes]:
    """What is in the files of a directory, and which they are."""
    return {f"{path.name} {path.stat().st_ino}": path.read_bytes() for path in directory.iterdir()}


def put_mine(directory: Path) -> Callable[[], None]:
    """The user has files there that are named as those of a storage."""
    directory.mkdir()
    for name in MINE:
        (directory / name).write_text("mine")
    return lambda: None


def put_empty(directory: Path) -> Callable[[], None]:
    """The user has empty files there."""
    directory.mkdir()
    for name in MINE:
        (directory / name).touch()
    return lambda: None


def open_here(directory: Path) -> Callable[[], None]:
    """Another run of this process has it."""
    run = ResumeDirectory(directory)
    run.storage.put("theirs", [np.arange(3)])
    run.note("place", 2, "theirs")

    def end() -> None:
        with pytest.raises(StorageLockedError):
            Disk(directory, durable=True)
        other = Other(directory)
        assert not other.is_in
        other.end()
        run.finish()

    return end


def open_elsewhere(directory: Path) -> Callable[[], None]:
    """Another process has it."""
    other = Other(directory)
    assert other.is_in

    def end() -> None:
        with pytest.raises(StorageLockedError):
            Disk(directory, durable=True)
        other.end()

    return end


NEW = {"mine": put_mine, "empty": put_empty, "here": open_here, "elsewhere": open_elsewhere}


def run_to_the_end(directory: Path, replace: Callable[[], None]) -> None:
    """A gradient, whose journal goes on after that."""

    def step(u: Any, i: Any) -> Any:
        if i == 20:
            replace()
        return 0.9 * np.sin(u)

    u = np.linspace(0, 1, 9)
    f = lambda u: np.sum(timeloop(step, u, 60, resume_every=5))
    assert grad(f, resume=directory)(u).tobytes() == grad(lambda u: np.sum(f(u)))(u).tobytes()


def interrupt(directory: Path, replace: Callable[[], None]) -> None:
    """A gradient that Ctrl-C ends."""

    def step(u: Any, i: Any) -> Any:
        if i == 20:
            replace()
            raise KeyboardInterrupt
        return 0.9 * np.sin(u)

    with pytest.raises(KeyboardInterrupt):
        grad(lambda u: np.sum(timeloop(step, u, 60, resume_every=5)), resume=directory)(np.linspace(0, 1, 9))


def close(directory: Path, replace: Callable[[], None]) -> None:
    """A durable storage."""
    with Disk(directory, durable=True) as storage:
        storage.put("ours", [np.arange(3)])
        replace()
        storage.put("more", [np.arange(3)])


def note_nothing(directory: Path, replace: Callable[[], None]) -> None:
    """A run that notes that there is nothing to be missed, and is given up."""
    run = ResumeDirectory(directory)
    run.storage.put("ours", [np.arange(3)])
    run.note("place", 1, "ours")
    replace()
    run.note("place", 1, None)
    run.close()


def fail(directory: Path, replace: Callable[[], None]) -> None:
    """A storage whose file cannot be made when it has the lock already."""
    function = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("segment") and not waiting:
            waiting.append(path)
            replace()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return function(path, *arguments, **options)

    waiting: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match="No space left on device"):
            Disk(directory, durable=True)
    assert waiting


ENDS = {"end": run_to_the_end, "interrupt": interrupt, "close": close, "note": note_nothing, "fail": fail}


@pytest.mark.parametrize("new", NEW)
@pytest.mark.parametrize("end", ENDS)
def test_what_another_has_there_now_stays(end: str, new: str, tmp_path: Path) -> None:
    """However the first user ends, the files of the second are what they were, and it has the directory."""
    directory, found = tmp_path / "run", list[Any]()

    def replace() -> None:
        if found:
            return  # the step runs again
        shutil.rmtree(directory)
        ending = NEW[new](directory)
        found.append((contents(directory), ending))

    ENDS[end](directory, replace)
    ((before, ending),) = found
    assert contents(directory) == before
    ending()


def test_a_scratch_file_of_others_stays(tmp_path: Path) -> None:
    """What is in the place of a private directory when its storage is closed is told, and not removed."""
    storage = Disk(tmp_path)
    storage.put("ours", [np.arange(3)])
    directory = storage.directory
    assert directory is not None
    shutil.rmtree(directory)
    put_mine(directory)
    with pytest.raises(StorageError, match="Cannot remove the directory"):
        storage.close()
    assert sorted(path.name for path in directory.iterdir()) == list(MINE)


def test_a_scratch_directory_without_its_file_is_removed(tmp_path: Path) -> None:
    """It is private, and empty."""
    storage = Disk(tmp_path)
    storage.put("ours", [np.arange(3)])
    assert storage.directory is not None
    (storage.directory / "segment").unlink()
    storage.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "owner", "segment", "newest"])
def test_a_file_that_was_removed_costs_no_other(name: str, tmp_path: Path) -> None:
    """A storage that lost one of its files can be closed, and the next one opened."""
    run = ResumeDirectory(tmp_path / "run")
    run.storage.put("ours", [np.arange(3)])
    run.note("place", 1, "ours")
    (tmp_path / "run" / name).unlink()
    run.close()
    assert not (tmp_path / "run" / "owner").exists()
    with Disk(tmp_path / "run", durable=True) as storage:
        assert storage.keys() == (() if name == "segment" else ("ours",))
