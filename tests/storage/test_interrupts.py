"""Ctrl-C while files are opened, at any call or return in the library: nothing stays open, and no lock is left."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebbtide
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.storage import Disk
from ebbtide.storage.listing import list_storage
from ebbtide.storage.worker import Worker

from .helpers import count_descriptors, storage_threads

SOURCE = str(Path(ebbtide.__path__[0]))


def interrupted(call: Callable[[], Any], at: int) -> Any:
    """What a call returns; None if Ctrl-C came, which it does at the call or return of number *at* in the library."""
    count = 0

    def met(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        if frame.f_code.co_filename.startswith(SOURCE):
            count += 1
            if count == at:
                raise KeyboardInterrupt

    sys.setprofile(met)
    try:
        return call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.setprofile(None)


def filled(directory: Path) -> Disk:
    """A scratch storage with an entry."""
    storage = Disk(directory)
    storage.put(0, [np.arange(3)])
    return storage


def noted(directory: Path) -> ResumeDirectory:
    """The directory of a run, with a note of an entry."""
    run = ResumeDirectory(directory)
    run.storage.replace("ours", [np.arange(3)])
    run.note("place", 1, "ours")
    return run


OPENING: dict[str, Callable[[Path], Any]] = {
    "scratch": filled,
    "durable": lambda path: Disk(path / "run", durable=True),
    "resumed": lambda path: noted(path / "run"),
}


# What an interrupt keeps from being closed in its place is closed when it is let go, and Python may tell of that.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", OPENING)
def test_an_interrupt_while_a_storage_is_opened(name: str, tmp_path: Path) -> None:
    """Whenever it comes, nothing stays open, and the next storage of the process gets the directory."""
    before = count_descriptors()
    for at in itertools.count(1):
        opened = interrupted(lambda: OPENING[name](tmp_path), at)
        if opened is not None:
            break
        assert count_descriptors() == before, at
        Disk(tmp_path / "run", durable=True).close()
    assert at > 100
    opened.close()
    assert count_descriptors() == before


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_while_a_run_begins(tmp_path: Path) -> None:
    """Whenever it comes, the run that begins anew leaves nothing, and no lock alone, which would seem the user's."""
    for at in itertools.count(1):
        begun = interrupted(lambda: ResumeDirectory(tmp_path / "run").storage, at)
        if begun is not None:
            break
        noted(tmp_path / "run").finish()
        assert list(tmp_path.iterdir()) == [], at
    assert at > 100
    begun.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_while_a_storage_is_listed(tmp_path: Path) -> None:
    """Nothing stays open."""
    filled(tmp_path).close()
    noted(tmp_path / "run").close()
    before = count_descriptors()
    for at in itertools.count(1):
        found = interrupted(lambda: list_storage(tmp_path / "run"), at)
        assert count_descriptors() == before, at
        if found is not None:
            break
    assert at > 10


def test_an_interrupt_while_the_thread_is_ended(tmp_path: Path) -> None:
    """Ctrl-C at any line at which a storage ends its thread leaves none that waits for jobs."""
    for at in itertools.count(1):
        storage, count = Disk(tmp_path, buffer="1 MiB"), 0
        storage.put(0, [np.arange(3)])
        storage.prefetch([0])
        assert len(storage_threads()) == 1

        def met(frame: Any, event: str, argument: Any) -> Any:
            nonlocal count
            if frame.f_code is not Worker.stop.__code__:
                return None
            count += event == "line"
            if count == at:
                raise KeyboardInterrupt
            return met

        sys.settrace(met)
        try:
            storage.close()
        except KeyboardInterrupt:
            storage.close()
        finally:
            sys.settrace(None)
        for thread in storage_threads():
            thread.join(5.0)
        assert storage_threads() == []
        if count < at:
            break
    assert at > 3
