"""Scratch directories that cannot be made or removed, and loops that meet one disk: the gradient is the same."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop import trouble
from tests.scale import FULL, bar
from tests.storage.helpers import descriptors_left

from ebbtide import Budget, BudgetError, StorageError, grad, timeloop, vjp
from ebbtide.schedules import Costs, Hierarchical, Periodic, StoreAll
from ebbtide.storage import Disk

ON_DISK = ("hierarchical", "periodic", "store on disk")
SCHEDULES = (Hierarchical(2, 3, Costs(write=1.0, read=1.0)), Periodic(6, 2), StoreAll("disk"))
U, STEPS = np.linspace(0.2, 1.1, 3000), 24


def objective(u: Any, **options: Any) -> Any:
    """A scalar of a nonlinear loop."""
    return np.sum(timeloop(lambda x, i: x + 0.1 * np.sin(x), u, STEPS, **options) ** 2)


EXPECTED = grad(lambda u: objective(u, schedule=StoreAll()))(U)


def told_by(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what a call returns, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return call(), [str(one.message) for one in caught]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", ON_DISK)
def test_a_scratch_directory_that_cannot_be_made(name: str, number: int, tmp_path: Path) -> None:
    """The loop goes on without it, with one warning."""
    expected = trouble.gradient(name, None)
    with trouble.Events(1, trouble.fail(number), ("mkdir",), lasting=True).installed():
        found, texts = told_by(lambda: trouble.gradient(name, None, tmp_path))
    assert found == expected
    assert ["Cannot make a directory" in text and "are lost" in text for text in texts] == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_directory_that_is_not_there(schedule: Any, tmp_path: Path) -> None:
    """A budget whose directory does not exist is told once, and costs steps."""
    budget = Budget(memory="64 MiB", disk="64 MiB", directory=tmp_path / "no")
    found, texts = told_by(lambda: grad(lambda u: objective(u, schedule=schedule), budget=budget)(U))
    assert np.array_equal(found, EXPECTED)
    assert [str(tmp_path / "no") in text for text in texts] == [True]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_full_disk_without_a_directory_that_is_named(schedule: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Where `tempfile` can write in no directory the loop goes on without the disk, with one warning."""

    def refuse() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    budget = Budget(memory="64 MiB", disk="64 MiB")
    with trouble.Events(1, trouble.fail(errno.ENOSPC), ("mkdir",), lasting=True).installed():
        found, texts = told_by(lambda: grad(lambda u: objective(u, schedule=schedule), budget=budget)(U))
    assert np.array_equal(found, EXPECTED)
    assert [f"Cannot make a directory for storage in {tmp_path}: No space" in text for text in texts] == [True]


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY])
@pytest.mark.parametrize("name", ON_DISK)
def test_a_scratch_directory_that_cannot_be_removed(name: str, number: int, tmp_path: Path) -> None:
    """Whichever file or directory cannot be removed: the gradient is there, and a warning names what is left."""
    expected = trouble.gradient(name, None)
    for at in itertools.count(1):
        events = trouble.Events(at, trouble.fail(number), ("unlink", "rmdir"))
        with events.installed():
            found, texts = told_by(lambda: trouble.gradient(name, None, tmp_path))
        if events.count < at:
            break
        assert found == expected
        for path in tmp_path.iterdir():
            assert [str(path) in text for text in texts] == [True]
            for part in path.iterdir():
                part.unlink()
            path.rmdir()
    assert at > 2


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("call", ["unlink", "rmdir"])
def test_the_directory_of_the_trial_of_the_disk_cannot_be_removed(call: str, lasting: bool, tmp_path: Path) -> None:
    """Where the loop chooses its schedule it tries the disk first: what stays of that is told and costs no gradient."""
    u = np.linspace(0.2, 1.1, 20_000)
    f = lambda u: np.sum(timeloop(lambda x, i: x + 0.1 * np.sin(x), u, 60))
    budget = Budget(memory="1 MiB", disk="20 MiB", directory=tmp_path)
    with trouble.Events(1, trouble.fail(errno.EBUSY), (call,), lasting=lasting).installed():
        found, texts = told_by(lambda: grad(f, budget=budget)(u))
    assert np.array_equal(found, grad(f)(u))
    left = list(tmp_path.iterdir())
    assert len(left) > 0
    assert [sum(str(path) in text for path in left) for text in texts] == [1] * len(left)


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", ["revolve", "hierarchical", "until"])
def test_a_disk_that_keeps_nothing_for_good(name: str, number: int, tmp_path: Path) -> None:
    """Where no write reaches the disk, as a network's may tell late: the same gradient, one warning, nothing left."""
    (tmp_path / "local").mkdir()
    for lasting in (False, True):
        events = trouble.Events(3, trouble.fail(number), ("synchronize",), lasting=lasting)
        with events.installed():
            found, texts = told_by(lambda: trouble.gradient(name, tmp_path / "run", tmp_path / "local"))
        assert found == trouble.gradient(name, None)
        assert ["journal" in text for text in texts] == [True]
        assert [path.name for path in tmp_path.iterdir()] == ["local"]
        assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.parametrize("left", range(4))
def test_a_process_without_descriptors(left: int, tmp_path: Path) -> None:
    """However few files it may open, the gradient is there or an error says why not, and no scratch directory stays."""
    f = lambda u: np.sum(timeloop(lambda x, i: x + 0.1 * np.sin(x), u, 50, resume_every=5) ** 2)
    u = np.linspace(0, 1, 10_000)
    budget = Budget(memory="700 KiB", disk="10 MiB", directory=tmp_path)
    expected = grad(f)(u)
    whole = grad(f, budget=budget, resume=tmp_path / "run")
    assert np.array_equal(whole(u), expected)
    with descriptors_left(left):
        texts = list[str]()
        try:
            found, texts = told_by(lambda: whole(u))
            assert np.array_equal(found, expected)
        except OSError as error:
            texts.append(str(error))
    assert all("Too many open files" in text for text in texts)
    assert [path.name for path in tmp_path.iterdir() if path.name != "run"] == []
    assert np.array_equal(whole(u), expected)
    assert list(tmp_path.iterdir()) == []


def test_values_that_were_paged_and_cannot_be_removed(tmp_path: Path) -> None:
    """Outside of loops, too, a directory that stays costs a warning and not the gradient."""
    wave = lambda x: np.sum(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(x)))))))))))
    x = np.linspace(0, 1, 100_000)
    budget = Budget(memory=6 * x.nbytes, disk="64 MiB", directory=tmp_path)
    with trouble.Events(1, trouble.fail(errno.EBUSY), ("rmdir",), lasting=True).installed():
        found, texts = told_by(lambda: grad(wave, budget=budget)(x))
    assert np.array_equal(found, grad(wave)(x))
    (left,) = tmp_path.iterdir()
    assert [str(left) in text for text in texts] == [True]


@pytest.mark.parametrize("resumed", [False, True])
def test_many_loops_tell_of_a_full_disk_once(resumed: bool, tmp_path: Path) -> None:
    """Three loops, whose snapshots find no room, and whose journals find none: one warning of each."""

    def three(u: Any) -> Any:
        return sum(objective(u * scale, schedule=SCHEDULES[0]) for scale in (1.0, 0.9, 0.8))

    expected = grad(three)(U)
    budget = Budget(memory="64 MiB", disk="64 MiB", directory=tmp_path)
    failing = grad(three, budget=budget, resume=tmp_path / "run" if resumed else None)
    with trouble.Events(1, trouble.fail(errno.ENOSPC), ("pwrite", "allocate"), lasting=True).installed():
        found, texts = told_by(lambda: failing(U))
    assert np.array_equal(found, expected)
    assert ["journal" in text for text in texts] == ([True, False] if resumed else [False])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_files_of_snapshots_that_end_early(
    schedule: Any, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Truncated to any length after the forward sweep: the same gradient, or an error with file, offset and key."""
    counts = {"same": 0, "refused": 0}
    for part in bar(range(200 if FULL else 12), "lengths of a file of snapshots"):
        with Disk(tmp_path) as storage:

            def cut(u: Any, share: float = part / (200 if FULL else 12), s: Any = storage) -> Any:
                last = objective(u, schedule=schedule, storage=s)
                (path,) = tmp_path.rglob("segment")
                with path.open("r+b") as file:
                    file.truncate(int(share * path.stat().st_size))
                return last

            with suppress(StorageError), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                try:
                    assert np.array_equal(grad(cut)(U), EXPECTED)
                    counts["same"] += 1
                except StorageError as error:
                    counts["refused"] += 1
                    told = str(error)
                    assert "segment is damaged at offset" in told, told
                    assert "Key '" in told
                    raise
    record_property("files truncated", sum(counts.values()))
    record_property("gradients made all the same", counts["same"])
    assert counts["same"] > 0


@pytest.mark.parametrize(
    ("call", "number"), [("pwrite", errno.EIO), ("mkdir", errno.ENOSPC), ("open", errno.EDQUOT)]
)
def test_values_stay_in_memory_where_the_disk_takes_none(call: str, number: int, tmp_path: Path) -> None:
    """Outside of loops, too, such a disk costs memory, and one warning; it was a StorageError."""
    wave = lambda x: np.sum(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(np.sin(x)))))))))))
    x, least = np.linspace(0, 1, 100_000), 6 * 800_000

    def gradient() -> Any:
        with trouble.Events(1, trouble.fail(number), (call,), lasting=True).installed():
            return grad(wave, budget=Budget(memory=least, disk="64 MiB", directory=tmp_path))(x)

    with pytest.raises(BudgetError) as refused, pytest.warns(RuntimeWarning, match=os.strerror(number)):
        gradient()
    least = refused.value.least
    assert np.array_equal(told_by(gradient)[0], grad(wave)(x))
    assert list(tmp_path.iterdir()) == []


def around(u: Any) -> Any:
    """A loop with code before and after it, whose saved values are pages."""
    for _ in range(5):
        u = np.exp(-np.sin(u) * u)
    end = timeloop(lambda x, i: x + 0.01 * np.sin(x) * np.cos(x), u, 12, costs=Costs(forward=1.0, write=0.1, read=0.1))
    for _ in range(4):
        end = np.sin(end)
    return np.sum(end * u)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("at", [1, 4, 7, 12, 20])
def test_a_disk_that_fills_up_under_pages_and_snapshots(at: int, number: int, tmp_path: Path) -> None:
    """
    What finds no room stays in memory, with one warning, and all files are gone without the garbage collector.

    It was a `StorageFullError` for what was saved around the loop, and a `KeyError` where the loop lost a snapshot of
    which it did not know yet.
    """
    x = np.linspace(0.2, 1.1, 40_000)
    expected = grad(around)(x)

    def call() -> None:
        _, pull = vjp(around, x, retain=True, budget=Budget(24 * x.nbytes, 200 * x.nbytes, tmp_path))
        for _ in range(2):
            assert np.array_equal(pull(1.0)[0], expected)
        pull.free()

    gc.disable()
    try:
        with trouble.Events(at, trouble.fail(number), ("allocate", "pwrite"), lasting=True).installed():
            _, texts = told_by(call)
        assert list(tmp_path.iterdir()) == []
    finally:
        gc.enable()
    assert [os.strerror(number) in text for text in texts] == [True], texts
