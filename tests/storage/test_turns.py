"""Processes that take turns in one durable directory: one at a time is in it, and the next gets it or is refused."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop import trouble

from ebbtide.errors import StorageError
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.storage import Disk, StorageLockedError, durable, removal
from ebbtide.storage.listing import clean, find_storages, list_storage

WHOLE = ["lock", "owner", "segment"]
REFUSED = ("open", "resume", "clean")


class Other:
    """
    A forked process that opens a durable directory, if it may, and has it until it is told to end.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self._told, telling = os.pipe()
        waiting, self._end = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._end)
            try:
                self._use(directory, telling, waiting)
            finally:
                os._exit(0)
        os.close(telling)
        os.close(waiting)
        self.is_in = os.read(self._told, 1) == b"+"

    @staticmethod
    def _use(directory: Path, telling: int, waiting: int) -> None:
        try:
            disk = Disk(directory, durable=True)
        except StorageLockedError:
            return
        disk.put("theirs", [np.arange(3)])
        os.write(telling, b"+")
        os.read(waiting, 1)
        disk.close()

    def end(self) -> None:
        """Let it close what it has."""
        os.close(self._end)
        os.waitpid(self._child, 0)
        os.close(self._told)


def finish(directory: Path) -> Callable[[], None]:
    """A run that is complete, to be removed by its last call."""
    run = ResumeDirectory(directory)
    run.storage.put("ours", [np.arange(3)])
    run.note("place", 1, "ours")
    return run.finish


def cleaning(directory: Path) -> Callable[[], None]:
    """A run that was given up, to be removed by the command."""
    run = ResumeDirectory(directory)
    run.storage.put("ours", [np.arange(3)])
    run.close()
    return lambda: clean(directory) and None


@pytest.mark.parametrize("begin", [finish, cleaning])
def test_nobody_loses_files_to_the_end_of_a_run(begin: Callable[[Path], Callable[[], None]], tmp_path: Path) -> None:
    """Before whichever call that removes something another process comes: it is refused, or has its files for good."""
    seen = set[bool]()
    for at in itertools.count(1):
        directory, others = tmp_path / "run", list[Other]()
        end = begin(directory)

        def come(write: Any, directory: Path = directory, others: list[Other] = others) -> None:
            others.append(Other(directory))

        with trouble.Events(at, come, ("unlink", "rmdir")).installed() as events:
            end()
            passed = events.count
        if passed < at:
            break
        (other,) = others
        seen.add(other.is_in)
        if other.is_in:
            assert sorted(path.name for path in directory.iterdir()) == WHOLE
            assert [entry.key for entry in list_storage(directory).entries] == ["theirs"]
        other.end()
        if other.is_in:
            clean(directory)
        assert list(tmp_path.iterdir()) == []
    assert seen == {False, True}


@contextmanager
def before_call(owner: Any, name: str, act: Callable[[], None], path: str = "") -> Iterator[None]:
    """Do something before the first call of a function on a path of this name."""
    function, waiting = getattr(owner, name), [act]

    def call(*arguments: Any, **options: Any) -> Any:
        if waiting and path in str(arguments[0]):
            waiting.pop()()
        return function(*arguments, **options)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, function)
    assert not waiting


def lost(directory: Path, number: int = errno.EEXIST) -> Callable[..., None]:
    """What is seen of a directory that another process removes after it kept us from making it, or another error."""

    def act(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number), str(directory))

    return act


@pytest.mark.parametrize("call", ["mkdir", "open", "lock"])
def test_a_directory_that_its_last_user_removes_is_made_again(call: str, tmp_path: Path) -> None:
    """Before it is found, before its lock is opened and before that is taken: the storage is there all the same."""
    directory = tmp_path / "run"
    remove = lambda: shutil.rmtree(directory)
    when = {
        "mkdir": (os, "mkdir", lost(directory), "run"),
        "open": (os, "open", remove, "lock"),
        "lock": (durable, "take_lock", remove, ""),
    }[call]
    with before_call(*when):
        disk = Disk(directory, durable=True)
    disk.put("ours", [np.arange(3)])
    assert sorted(path.name for path in directory.iterdir()) == WHOLE
    other = Other(directory)
    assert not other.is_in
    other.end()
    disk.close()


@pytest.mark.parametrize("owner", [durable, removal])
def test_a_lock_of_a_file_that_was_removed_is_none(owner: Any, tmp_path: Path) -> None:
    """Where another process has removed the directory and has it again, who opened the old lock is refused."""
    directory, others = tmp_path / "run", list[Other]()
    Disk(directory, durable=True).close()

    def come() -> None:
        shutil.rmtree(directory)
        others.append(Other(directory))

    use = clean if owner is removal else lambda path: Disk(path, durable=True)
    with before_call(owner, "take_lock", come), pytest.raises(StorageLockedError):
        use(directory)
    assert others[0].is_in
    assert sorted(path.name for path in directory.iterdir()) == WHOLE
    others[0].end()


USES: dict[str, Callable[[Path], Any]] = {
    "list": list_storage,
    "check": lambda path: list_storage(path, check=True),
    "find": lambda path: list(find_storages(path)),
    "open": lambda path: Disk(path, durable=True),
    "resume": lambda path: ResumeDirectory(path).storage,
    "clean": clean,
}


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("owner", ["removed", "never written"])
def test_without_an_owner_nothing_in_the_process_gives_the_lock_up(
    owner: str, empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is this process that has the directory, whoever asks, and another one is refused after it as before."""
    directory = tmp_path / "run"
    if owner == "never written":
        monkeypatch.setattr(durable, "write_atomically", lost(directory, errno.ENOSPC))
    with Disk(directory, durable=True) as storage:
        if owner == "removed":
            (directory / "owner").unlink()
        if not empty:
            storage.put("ours", [np.arange(3)])
        for name, use in USES.items():
            with pytest.raises(StorageLockedError, match=str(os.getpid())) if name in REFUSED else nullcontext():
                use(directory)
            other = Other(directory)
            assert not other.is_in, name
            other.end()
        assert list_storage(directory).used
        assert f"in use by process {os.getpid()}" in str(list_storage(directory))
    assert "not in use" in str(list_storage(directory))
    assert clean(directory) == [directory]


def test_a_forked_child_has_no_lock_of_its_parent(tmp_path: Path) -> None:
    """It is refused as any process, leaves the lock, and gets the directory when its parent has given it up."""
    directory = tmp_path / "run"
    storage = Disk(directory, durable=True)
    (directory / "owner").unlink()
    waiting, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(end)
            with pytest.raises(StorageLockedError, match="unknown host"):
                Disk(directory, durable=True)
            with pytest.raises(StorageLockedError, match="unknown host"):
                clean(directory)
            storage.close()
            os.read(waiting, 1)
            Disk(directory, durable=True).close()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(waiting)
    other = Other(directory)
    assert not other.is_in
    other.end()
    storage.close()
    os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_directory_that_is_being_taken_is_taken_once(tmp_path: Path) -> None:
    """A second storage of the process that comes meanwhile, on another thread, is refused, and costs no lock."""
    directory = tmp_path / "run"

    def come() -> None:
        with pytest.raises(StorageLockedError, match=str(os.getpid())):
            Disk(directory, durable=True)

    for call in ("open_file", "take_lock", "is_in_place", "write_atomically"):
        with before_call(durable, call, come):
            disk = Disk(directory, durable=True)
        other = Other(directory)
        assert not other.is_in
        other.end()
        disk.close()


def test_who_has_just_taken_a_directory_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has the lock, and has not yet written whose it is, is named by the error all the same."""
    late, read = [None, None], durable.read_owner
    other = Other(tmp_path / "run")
    monkeypatch.setattr(durable, "read_owner", lambda directory: late.pop() if late else read(directory))
    with pytest.raises(StorageLockedError, match=r"process \d+ on ") as caught:
        Disk(tmp_path / "run", durable=True)
    assert caught.value.pid == read(tmp_path / "run").pid
    other.end()


def test_a_directory_is_told_by_what_it_is(tmp_path: Path) -> None:
    """By another name it is the same one, and another one of its name is not."""
    directory, link, moved = tmp_path / "run", tmp_path / "link", tmp_path / "moved"
    link.symlink_to(directory)
    with Disk(directory, durable=True):
        (directory / "owner").unlink()
        with pytest.raises(StorageLockedError):
            Disk(link, durable=True)
        directory.rename(moved)
        with pytest.raises(StorageLockedError):
            Disk(moved, durable=True)
        with Disk(directory, durable=True):
            pass
    Disk(moved, durable=True).close()


def test_a_directory_that_is_always_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not made again for ever, and what was made last is gone."""
    take_lock = durable.take_lock

    def take(*arguments: Any) -> bool:
        shutil.rmtree(tmp_path / "run")
        return take_lock(*arguments)

    monkeypatch.setattr(durable, "take_lock", take)
    with pytest.raises(StorageError, match=r"Cannot use the directory .*run for storage: No such file"):
        Disk(tmp_path / "run", durable=True)
    assert list(tmp_path.iterdir()) == []
