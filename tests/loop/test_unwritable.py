"""Directories in which nothing can be made: the gradient with one warning, or an error that names the directory."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, StorageError, grad, timeloop
from ebbtide.schedules import Costs, Hierarchical, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk

SCHEDULES = (Hierarchical(2, 3, Costs(write=1.0, read=1.0)), Periodic(6, 2), StoreAll("disk"))
U, STEPS = np.linspace(0.2, 1.1, 3000), 24
PLACES = ("a file", "in a file", "a dead link", "a circle of links", "a long name", "a closed one", "the kernel's")


def objective(u: Any, **options: Any) -> Any:
    """A scalar of a nonlinear loop."""
    return np.sum(timeloop(lambda x, i: x + 0.1 * np.sin(x), u, STEPS, **options) ** 2)


def wave(x: Any) -> Any:
    """A scalar of a row of operations."""
    for _ in range(10):
        x = np.sin(x)
    return np.sum(x)


EXPECTED = grad(lambda u: objective(u, schedule=StoreAll()))(U)


def close(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is in a directory out of reach, as for a user without the right to search it; root has all rights."""
    for name in ("stat", "lstat", "mkdir", "open", "scandir", "listdir", "unlink", "rmdir"):

        def call(real: Any, path: Any = ".", *rest: Any, **options: Any) -> Any:
            if isinstance(path, (str, os.PathLike)) and directory in Path(path).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *rest, **options)

        monkeypatch.setattr(os, name, partial(call, getattr(os, name)))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path at which, and in which, no directory can be made."""
    if request.param == "a closed one":
        close(tmp_path / "closed", monkeypatch)
    paths = [tmp_path / name for name in ("file", "file/in", "link", "circle", "x" * 300, "closed/in")]
    return dict(zip(PLACES, [*paths, Path("/proc/in")], strict=True))[request.param]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Any:
    """Check that nothing is left of a call, and that the one file of the user's is as it was."""
    (tmp_path / "file").write_text("theirs")
    (tmp_path / "closed").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    yield
    left = {path.name for path in tmp_path.iterdir()} - {"good"}
    assert left == {"file", "closed", "link", "circle"}
    assert (tmp_path / "file").read_text() == "theirs"
    assert list((tmp_path / "closed").iterdir()) == []
    assert not (tmp_path / "good").exists() or list((tmp_path / "good").iterdir()) == []


def check_goes_on(call: Callable[[Path], Any], place: Path, tmp_path: Path) -> None:
    """Check that a call gives the gradient and one warning that names the place, and the next one, elsewhere, none."""
    (tmp_path / "good").mkdir()
    for directory, told in ((place, [True]), (tmp_path / "good", [])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = call(directory)
        assert np.array_equal(found, EXPECTED)
        assert [str(place) in str(one.message) for one in caught] == told


def check_refused(call: Callable[[Path], Any], expected: Any, place: Path, good: Path) -> None:
    """Check that a call is refused by an error that names the place and says why, and the next one, elsewhere, not."""
    with pytest.raises(StorageError) as caught:
        call(place)
    assert str(place) in str(caught.value)
    assert caught.value.errno
    assert os.strerror(caught.value.errno) in str(caught.value)
    assert np.array_equal(call(good), expected)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_snapshots_of_a_budget(schedule: Any, place: Path, tmp_path: Path) -> None:
    """A loop whose snapshots cannot be stored there goes on without them, and says so once."""

    def call(directory: Path) -> Any:
        budget = Budget(memory="64 MiB", disk="64 MiB", directory=directory)
        return grad(lambda u: objective(u, schedule=schedule), budget=budget)(U)

    check_goes_on(call, place, tmp_path)


@pytest.mark.parametrize("buffer", [0, "1 MiB"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_snapshots_in_a_storage(schedule: Any, buffer: Any, place: Path, tmp_path: Path) -> None:
    """Nor does it end where the storage is the user's, whose `close` raises nothing either."""

    def call(directory: Path) -> Any:
        with Disk(directory, buffer=buffer) as storage:
            return grad(lambda u: objective(u, schedule=schedule, storage=storage))(U)

    check_goes_on(call, place, tmp_path)


def test_plans_with_the_disk_are_refused(place: Path, tmp_path: Path) -> None:
    """A loop that is to choose how to use the disk finds that it cannot before the work, and pages say it, too."""
    (tmp_path / "good").mkdir()
    memory = 9 * U.nbytes + 20_000

    def planned(directory: Path) -> Any:
        return grad(objective, budget=Budget(memory=memory, disk="64 MiB", directory=directory))(U)

    def paged(directory: Path) -> Any:
        x = np.linspace(0.0, 1.0, 100_000)
        return grad(wave, budget=Budget(memory=6 * x.nbytes, disk="64 MiB", directory=directory))(x)

    check_refused(planned, EXPECTED, place, tmp_path / "good")
    check_refused(paged, grad(wave)(np.linspace(0.0, 1.0, 100_000)), place, tmp_path / "good")


@pytest.mark.parametrize("of_loop", [False, True], ids=["gradient", "loop"])
def test_journals_are_refused(of_loop: bool, place: Path, tmp_path: Path) -> None:
    """A run that could not be resumed is refused before the second step: the first one is run to be measured."""
    ran = list[int]()

    def call(directory: Path) -> Any:
        ran.clear()
        of_the_loop, of_the_call = ({"resume": directory}, {})[:: 1 if of_loop else -1]

        def step(u: Any, i: int) -> Any:
            ran.append(i)
            return u + 0.1 * np.sin(u)

        f = lambda u: np.sum(timeloop(step, u, STEPS, schedule=Revolve(3), **of_the_loop) ** 2)
        return grad(f, **of_the_call)(U)

    with pytest.raises(StorageError):
        call(place)
    assert len(ran) <= 1
    (tmp_path / "good").mkdir()
    check_refused(call, EXPECTED, place, tmp_path / "good" / "run")


def test_durable_storages_are_refused(place: Path, tmp_path: Path) -> None:
    """A storage that is to last says at once that it cannot."""
    (tmp_path / "good").mkdir()

    def call(directory: Path) -> Any:
        with Disk(directory, durable=True) as storage:
            storage.put("mine", [U])
            return storage.take("mine")[0]

    check_refused(call, U, place, tmp_path / "good" / "kept")
    for path in (tmp_path / "good" / "kept").iterdir():
        path.unlink()
    (tmp_path / "good" / "kept").rmdir()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_directory_that_goes_out_of_reach(schedule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open stays open; that it could not be removed is a warning, which names it, and costs no gradient."""
    budget = Budget(memory="64 MiB", disk="64 MiB", directory=tmp_path / "closed")

    def f(u: Any) -> Any:
        last = objective(u, schedule=schedule)
        close(tmp_path / "closed", monkeypatch)
        return last

    with pytest.warns(RuntimeWarning, match="Cannot remove the directory") as caught:
        found = grad(f, budget=budget)(U)
    monkeypatch.undo()
    assert np.array_equal(found, EXPECTED)
    (left,) = (tmp_path / "closed").iterdir()
    assert [str(left) in str(one.message) for one in caught] == [True]
    for path in left.iterdir():
        path.unlink()
    left.rmdir()
