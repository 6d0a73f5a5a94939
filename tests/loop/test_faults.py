"""Disks that fail in the middle of a loop: the gradient is the same, or the error says why there is none."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loop import trouble
from tests.scale import FULL, SEED, bar
from tests.storages import LosesBehind, OutOfOrder

import ebbtide
from ebbtide import Budget, BudgetError, ReleasedValueError, StorageError, cli, grad, profile, timeloop, vjp
from ebbtide.schedules import Costs, Hierarchical, Mixed, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, system
from ebbtide.storage.listing import clean, list_storage
from ebbtide.storage.system import POSIX

# Bytes that change in the file of each schedule.
COUNT = 500 if FULL else 12
ROOT, SOURCE = Path(__file__).parents[2], Path(ebbtide.__path__[0]).parent
U = np.linspace(0.2, 1.1, 3000)
STEPS = 24
SCHEDULES = (
    Hierarchical(0, 6, Costs()),
    Hierarchical(2, 3, Costs(write=1.0, read=1.0)),
    Periodic(6, 2),
    StoreAll("disk"),
)


def objective(u: Any, **options: Any) -> Any:
    """A scalar of a nonlinear loop."""

    def step(x: Any, i: Any) -> Any:
        x[1:-1] += 0.1 * x[1:-1] * (x[2:] - x[:-2])
        return x

    return np.sum(timeloop(step, u, STEPS, **options) ** 2)


EXPECTED = grad(lambda u: objective(u, schedule=StoreAll()))(U)


class Faults:
    """System calls of which some fail."""

    def __init__(self, call: str, number: int, first: int, last: int) -> None:
        self.count, self.number, self.range = 0, number, range(first, last)
        real = getattr(POSIX, call)

        def failing(*args: Any) -> Any:
            self.count += 1
            if self.count in self.range:
                raise OSError(self.number, os.strerror(self.number))
            return real(*args)

        self.system = replace(POSIX, **{call: failing})


@pytest.mark.parametrize("buffer", [0, "1 MiB"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["pwrite", "allocate"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_writes_that_fail(
    schedule: Any, call: str, number: int, buffer: Any, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Where writes fail for a while or for good, the loop goes on with fewer snapshots and says so once."""
    threads = threading.active_count()
    ranges = [(1, 2), (2, 3), (3, 6), (5, 10**9), (1, 10**9)]
    if FULL:
        ranges = [(first, last) for first in range(1, 60) for last in (first + 1, 10**9)]
    for first, last in ranges:
        faults = Faults(call, number, first, last)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Disk(tmp_path, buffer=buffer, system=faults.system) as storage:
                found = grad(lambda u, s=storage: objective(u, schedule=schedule, storage=s))(U)
        assert np.array_equal(found, EXPECTED), (first, last)
        assert len([one for one in caught if issubclass(one.category, RuntimeWarning)]) <= 1
    record_property("runs with failing calls", len(ranges))
    assert threading.active_count() == threads
    assert list(tmp_path.rglob("segment")) == []


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_the_disk_of_a_budget_that_fails_while_it_is_timed(number: int, lasting: bool, tmp_path: Path) -> None:
    """A disk that cannot be written when its transfers are timed is one that fails: the loop goes on without it."""
    budget = Budget(memory=15 * U.nbytes, disk="1 MiB", directory=tmp_path)

    def steps(u: Any, costs: Any = None) -> Any:
        return np.sum(timeloop(lambda u, _: u + 0.1 * np.sin(u), u, 40, costs=costs) ** 2)

    expected = grad(lambda u: steps(u, Costs(write=9.0, read=9.0)))(U)
    for at in range(1, 5):  # the place and the bytes of both states that are timed
        events = trouble.Events(at, trouble.fail(number), ("pwrite", "allocate"), lasting=lasting)
        with warnings.catch_warnings(record=True) as caught, events.installed():
            warnings.simplefilter("always")
            assert np.array_equal(grad(steps, budget=budget)(U), expected)
        assert events.count >= at
        assert len(caught) <= 1
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_the_only_way_back_is_not_lost_behind_the_steps(number: int, tmp_path: Path) -> None:
    """An initial state on disk that a thread cannot write stays in memory: from there all steps can run again."""
    u, most = np.tile(U, 10), 12
    budget = Budget(memory=8 * u.nbytes, disk="32 MiB", directory=tmp_path)
    costs = Costs(forward=1.0, reverse=3.0, write=1e-3, read=1e-3)

    def steps(u: Any) -> Any:
        return np.sum(timeloop(lambda u, _: u + 0.1 * np.sin(u), u, 24, costs=costs) ** 2)

    with profile() as p:
        expected = grad(steps, budget=budget)(u)
    assert p.loops[0].schedule == StoreAll("disk")
    for at in range(1, most):
        events = trouble.Events(at, trouble.fail(number), ("pwrite", "allocate"), lasting=True)
        with warnings.catch_warnings(record=True) as caught, events.installed():
            warnings.simplefilter("always")
            assert np.array_equal(grad(steps, budget=budget)(u), expected), at
        assert len(caught) == 1
        assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_exist_is_told_at_once(tmp_path: Path) -> None:
    """What is no trouble of a disk is a mistake, which is told before the loop runs."""
    ran = list[int]()

    def step(u: Any, i: Any) -> Any:
        ran.append(i)
        return u + 0.1 * np.sin(u)

    budget = Budget(memory=15 * U.nbytes, disk="1 MiB", directory=tmp_path / "missing")
    with pytest.raises(StorageError, match="Cannot make a directory"):
        grad(lambda u: np.sum(timeloop(step, u, 40)), budget=budget)(U)
    assert set(ran) == {0}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_bytes_that_change_on_disk(schedule: Any, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """Whatever byte of the file changes, the gradient is the same or an error says what is damaged."""
    rng = np.random.default_rng(SEED)
    same = 0
    for _ in bar(range(COUNT), "bytes of snapshots"):
        with Disk(tmp_path) as storage:

            def spoiled(u: Any, s: Any = storage) -> Any:
                last = objective(u, schedule=schedule, storage=s)
                (path,) = tmp_path.rglob("segment")
                with path.open("r+b") as file:
                    place = int(rng.integers(path.stat().st_size))
                    file.seek(place)
                    byte = file.read(1)
                    file.seek(place)
                    file.write(bytes([byte[0] ^ (1 << int(rng.integers(8)))]))
                return last

            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    found = grad(spoiled)(U)
            except StorageError:
                continue
            assert np.array_equal(found, EXPECTED)
            same += 1
    record_property("bytes changed", COUNT)
    record_property("gradients made all the same", same)
    assert same > 0


@cache
def undisturbed(name: str) -> bytes:
    """The bytes of value and gradients that meet no trouble."""
    return trouble.gradient(name, None)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize(
    ("name", "stride"), [("revolve", 97), ("hierarchical", 97), ("periodic", 97), ("store on disk", 131)]
)
def test_writes_that_fail_under_a_journal(
    name: str, stride: int, number: int, lasting: bool, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Whichever write of journal or snapshots fails: the same gradient, a warning of each at most, all given back."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - Path holds a descriptor open
    expected = undisturbed(name)
    local = tmp_path / "local"
    local.mkdir()
    at, told = 0, 0
    for at in bar(itertools.count(1, 1 if FULL else stride), f"writes of {name} that fail"):
        events = trouble.Events(at, trouble.fail(number), ("pwrite", "allocate"), lasting=lasting)
        with warnings.catch_warnings(record=True) as caught, events.installed():
            warnings.simplefilter("always")
            assert trouble.gradient(name, tmp_path / "run", local) == expected, at
        texts = [str(one.message) for one in caught]
        assert sum("journal" in text for text in texts) <= 1, texts
        assert sum("are lost" in text for text in texts) <= 1, texts
        assert len(texts) <= 2, texts
        told += len(texts)
        assert [path.name for path in tmp_path.iterdir()] == ["local"], at
        assert list(local.iterdir()) == [], at
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before, at  # noqa: PTH208 - as above
        if events.count < at:
            break
    record_property("runs with failing calls", at - 1 if FULL else at // stride)
    assert at > 100
    assert told > 0


@pytest.mark.parametrize("name", [name for name in trouble.SCHEDULES if name != "until"])
def test_the_end_of_the_forward_sweep_that_is_damaged(name: str, tmp_path: Path) -> None:
    """Where all that a journal keeps of the forward sweep is damaged, its reverse sweep goes on: the same gradient."""
    path, expected, went_on = tmp_path / "run", undisturbed(name), 0
    for at in itertools.count(100, 1 if FULL else 29):
        with suppress(KeyboardInterrupt), trouble.Events(at, trouble.interrupt).installed():
            trouble.gradient(name, path)
        if not (path / "segment").exists():
            break  # it came to its end
        entries = list_storage(path).entries
        with (path / "segment").open("r+b") as file:
            for entry in entries:
                if str(entry.key).split("/")[1] in ("final", "forward"):
                    place = entry.offset + entry.length // 2
                    file.seek(place)
                    byte = file.read(1)[0]
                    file.seek(place)
                    file.write(bytes([byte ^ 1]))
        went_on += any("reverse" in str(entry.key) for entry in entries)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            assert trouble.gradient(name, path) == expected, at
    assert went_on > 2


SMALL = """
import ctypes, os, sys, threading, warnings
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_PRIVATE = 0x20000, 0x44000
root, size = Path(sys.argv[1]), sys.argv[2].encode()
if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_PRIVATE, None):
    sys.exit(77)
for name in ("run", "local"):
    if libc.mount(b"tmpfs", os.fsencode(root / name), b"tmpfs", 0, b"size=" + size):
        sys.exit(77)
from tests.loop.trouble import gradient
for name in ("revolve", "hierarchical", "periodic", "store on disk"):
    expected = gradient(name, None)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert gradient(name, root / "run" / "journal", root / "local") == expected
    assert len({str(one.message)[:30] for one in caught}) == len(caught) <= 2, [str(one.message) for one in caught]
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert not list((root / "run").iterdir()) and not list((root / "local").iterdir())
    print(len(caught))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the small file systems that this test fills")
@pytest.mark.parametrize("size", ["4k", "12k", "40k", "100k"])
def test_small_file_systems(size: str, tmp_path: Path) -> None:
    """With journal and snapshots each on a real file system of a few pages: the same gradient, one warning of each."""
    for name in ("run", "local"):
        (tmp_path / name).mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)])}
    command = [sys.executable, "-c", SMALL, str(tmp_path), size]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 77:
        pytest.skip("this machine does not let a test mount a file system")
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 4
    assert size == "100k" or sum(counts) > 0


@pytest.mark.filterwarnings("ignore:The restart values:RuntimeWarning")
@pytest.mark.parametrize("killed", [12, 30, 40])
def test_a_run_that_goes_on_keeps_its_initial_state(killed: int, tmp_path: Path) -> None:
    """Resumed with a storage that stores nothing, a loop has its initial state in memory, as has one that begins."""

    def gradient(storage: Any, directory: Path | None) -> Any:
        def step(u: Any, i: int) -> Any:
            system.met_step(i)
            return u + 0.1 * np.sin(u)

        options = {"schedule": Revolve(3), "resume": directory, "resume_every": 4, "storage": storage}
        return grad(lambda u: np.sum(timeloop(step, u, 20, **options) ** 2))(U)

    expected = gradient(None, None)
    events = trouble.Events(killed, trouble.interrupt, ("step",))
    with events.installed(), pytest.raises(KeyboardInterrupt):
        gradient(None, tmp_path / "run")
    assert np.array_equal(gradient(OutOfOrder(broken=True), tmp_path / "run"), expected)


@pytest.mark.parametrize(("room", "most"), [(6, 900), (50, 450)])
def test_a_disk_with_room_for_some_of_the_steps(room: int, most: int, tmp_path: Path) -> None:
    """Where a disk takes what some of 100 steps save, it goes on with restart states there, and not step by step."""

    def step(x: Any, i: Any) -> Any:
        return x + 0.01 * np.sin(x)

    def run(**options: Any) -> Any:
        return grad(lambda u: np.sum(timeloop(step, u, 100, **options) ** 2))(U)

    told = pytest.warns(RuntimeWarning, match="runs more steps again")
    with Disk(tmp_path, limit=room * 6 * 4096) as storage, ebbtide.profile() as p, told:
        found = run(schedule=StoreAll("disk"), storage=storage)
    assert np.array_equal(found, run(schedule=StoreAll()))
    assert p.steps_forward <= most  # 5,050 if each step ran from the initial state


def test_a_retained_sweep_that_lost_its_start_is_over() -> None:
    """Where the state that another sweep begins with cannot be read, that is the error, and then that it is gone."""
    storage = OutOfOrder()
    _, pullback = vjp(lambda u: objective(u, schedule=Revolve(3), storage=storage), U, retain=True)
    assert np.array_equal(pullback(1.0)[0], EXPECTED)
    storage.broken = True
    with pytest.warns(RuntimeWarning, match="are lost"), pytest.raises(StorageError, match="out of order"):
        pullback(1.0)
    with pytest.raises(ReleasedValueError, match="an earlier call of the pullback failed"):
        pullback(1.0)


def nested(u: Any, schedule: Any, inner: Any, storage: Any = None) -> Any:
    """Two loops in turn with a loop in each step, on one storage."""
    wave = lambda x, _: x + 0.1 * np.sin(x)
    outer = lambda x, _: timeloop(wave, x, 4, schedule=inner, storage=storage) * 0.99
    middle = timeloop(outer, u, 6, schedule=schedule, storage=storage)
    return np.sum(timeloop(outer, middle, 3, schedule=schedule, storage=storage) ** 2)


@pytest.mark.parametrize(
    ("schedule", "inner"),
    [(Revolve(3), Revolve(2)), (StoreAll("disk"), StoreAll("disk")), (Hierarchical(1, 3, Costs()), Periodic(2, 1))],
    ids=repr,
)
def test_loops_that_share_a_storage_lose_nothing_of_each_other(schedule: Any, inner: Any) -> None:
    """
    What is lost behind one loop and told to another is lost for the one alone, and never the only way back.

    It was a `KeyError` for a snapshot of the other one's step of the same number, and the end where the first state of
    a loop was lost on a storage of the user.
    """
    expected = grad(lambda u: nested(u, schedule, inner))(U)
    at = count = 1
    while at <= count:
        storage = LosesBehind(at)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert np.array_equal(grad(lambda u, s=storage: nested(u, schedule, inner, s))(U), expected), at
        assert len(caught) <= 1
        assert storage.keys() == ()
        at, count = at + 1 + at // 8, storage.count


def test_a_loss_of_what_the_user_stored_is_no_concern_of_a_loop() -> None:
    """A loop that is told of it goes on without a warning; the user hears of it by its key."""
    storage = LosesBehind(1)
    storage.put("mine", [U])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = grad(lambda u: objective(u, schedule=Revolve(3), storage=storage))(U)
    assert np.array_equal(found, EXPECTED)
    with pytest.raises(StorageError, match="mine"):
        storage.get("mine")


@pytest.mark.parametrize("schedule", [Mixed(6), Mixed(30, restart=1, saved=3), Hierarchical(1, 3, Costs())], ids=repr)
def test_a_first_state_that_is_lost_later_is_told(schedule: Any) -> None:
    """Wherever the loop is when nothing leads back any more, the error is that of the storage, and says what to do."""
    at = count = 2
    while at <= count:
        storage = LosesBehind(at, first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(StorageError, match="0-restart is lost") as caught:
                grad(lambda u, s=storage: objective(u, schedule=schedule, storage=s))(U)
            assert "No state is left" in caught.value.__notes__[0]
        at, count = at + 1, storage.count


def test_files_of_a_pullback_that_fails_do_not_wait_for_the_collector(tmp_path: Path) -> None:
    """What the code before the loop had on disk goes with the pullback: the error kept the frames that raised it."""
    storage, x = OutOfOrder(), np.tile(U, 10)

    def f(u: Any) -> Any:
        for _ in range(8):
            u = np.sin(u) * 1.1
        return objective(u, schedule=Revolve(3), storage=storage)

    gc.disable()
    try:
        _, pullback = vjp(f, x, retain=True, budget=Budget(12 * x.nbytes, "1 GiB", tmp_path))
        assert list(tmp_path.iterdir())
        storage.broken = True
        with pytest.warns(RuntimeWarning, match="are lost"), suppress(StorageError):
            pullback(1.0)
        del pullback
        assert list(tmp_path.iterdir()) == []
    finally:
        gc.enable()


@pytest.mark.parametrize("states", [8, 14, 20, 40])
def test_what_a_step_saves_is_not_lost_in_memory(states: int, tmp_path: Path) -> None:
    """Whatever a disk lost of a step before, what it saves later in memory is there; it was the end of the sweep."""

    def steps(u: Any) -> Any:
        return np.sum(timeloop(lambda x, _: x + 0.1 * np.sin(x) * np.cos(x), u, 20, schedule=StoreAll("disk")) ** 2)

    u = np.tile(U, 5)
    expected, budget = grad(steps)(u), Budget(memory=states * u.nbytes + 200_000, disk="1 GiB", directory=tmp_path)
    full = trouble.Events(1, trouble.fail(errno.ENOSPC), ("pwrite", "allocate"), lasting=True)
    with pytest.warns(RuntimeWarning, match="No space left"), full.installed():
        assert np.array_equal(grad(steps, budget=budget)(u), expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", [None, 60, 40])
def test_a_users_disk_loses_what_steps_saved_within_a_budget(memory: int | None, tmp_path: Path) -> None:
    """Where the initial state has room in memory, in that of a budget too, the loop goes on from it."""
    budget = None if memory is None else Budget(memory=memory * U.nbytes)
    told = pytest.warns(RuntimeWarning, match="limit of this Disk storage is 216000 bytes.*stores less than planned")
    with Disk(tmp_path, limit=9 * U.nbytes) as storage, told:
        found = grad(lambda u: objective(u, schedule=StoreAll("disk"), storage=storage), budget=budget)(U)
    assert np.array_equal(found, EXPECTED)


def test_a_users_disk_and_no_room_for_the_initial_state(tmp_path: Path) -> None:
    """In the least budget there is no room for one more state: the error of the disk says what to do."""

    def gradient(memory: int) -> Any:
        with Disk(tmp_path, limit=9 * U.nbytes) as storage:
            budget = Budget(memory=memory)
            return grad(lambda u: objective(u, schedule=StoreAll("disk"), storage=storage), budget=budget)(U)

    with pytest.raises(BudgetError) as refused:
        gradient(1)
    with pytest.warns(RuntimeWarning, match="stores less than planned"), pytest.raises(StorageError) as caught:
        gradient(refused.value.least)
    assert "memory for one more state" in caught.value.__notes__[0]


def test_a_run_goes_on_where_the_disk_is_full(tmp_path: Path) -> None:
    """What was saved is taken up where nothing can be written any more, not even who uses it."""
    path, expected = tmp_path / "run", trouble.gradient("revolve", None)
    with trouble.Events(30, trouble.interrupt, ("step",)).installed(), pytest.raises(KeyboardInterrupt):
        trouble.gradient("revolve", path)
    full = trouble.Events(1, trouble.fail(errno.ENOSPC), ("pwrite", "allocate", "replace"), lasting=True)
    with full.installed(), pytest.warns(RuntimeWarning, match="could not be written.*from the last save that worked"):
        assert trouble.gradient("revolve", path) == expected
    whole = trouble.Events(only=("step",))
    with whole.installed():
        trouble.gradient("revolve", None)
    assert full.steps < whole.steps - 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_what_cannot_be_removed_is_told(number: int, tmp_path: Path) -> None:
    """If a file cannot be removed at the end, the gradient is there, and one warning names what is left."""
    path, expected = tmp_path / "run", trouble.gradient("revolve", None)
    counted = trouble.Events(only=("unlink", "rmdir"))
    with counted.installed():
        trouble.gradient("revolve", path)
    assert counted.count >= 5
    for at in range(1, counted.count + 1):
        events = trouble.Events(at, trouble.fail(number), ("unlink", "rmdir"))
        with events.installed(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert trouble.gradient("revolve", path) == expected
        left = ", ".join(sorted(one.name for one in path.iterdir())) or "the directory"
        assert [f"there is still {left}: " in str(one.message) for one in caught] == [True]
        if left == "the directory":
            path.rmdir()
        else:
            assert cli.main(["clean", str(path)]) == 0
        assert not path.exists()
    # Where its owner keeps its name the lock goes as well: alone it would be taken for the user's.
    with trouble.Events(1, trouble.fail(number), ("rename",)).installed() as events:
        assert trouble.gradient("revolve", path) == expected
    assert events.count == 1
    assert not path.exists()


def test_an_interrupt_of_the_end_gives_the_directory_free(tmp_path: Path) -> None:
    """Ctrl-C while what a complete run kept is removed: the same call may be made at once, the error still held."""
    path, expected = tmp_path / "run", trouble.gradient("revolve", None)
    counted = trouble.Events(only=("unlink", "rmdir"))
    with counted.installed():
        trouble.gradient("revolve", path)
    held = []
    for at in range(1, counted.count + 1):
        with trouble.Events(at, trouble.interrupt, ("unlink", "rmdir")).installed():
            with pytest.raises(KeyboardInterrupt) as caught:
                trouble.gradient("revolve", path)
            held.append(caught)
        assert trouble.gradient("revolve", path) == expected
        if path.exists():  # with an empty lock, which might be the user's
            assert clean(path) == [path]
        assert not path.exists()


class Small:
    """A disk of a given size, whose blocks are allocated as a file system does it."""

    def __init__(self, nbytes: int) -> None:
        self.calls: list[tuple[int, int]] = []

        def allocate(descriptor: int, start: int, length: int) -> None:
            self.calls.append((start, length))
            if start + length > nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            POSIX.allocate(descriptor, start, length)

        self.system = replace(POSIX, allocate=allocate)


@pytest.mark.parametrize(
    "schedule", [Revolve(5), Hierarchical(2, 3, Costs(write=1.0, read=1.0)), StoreAll("disk")], ids=repr
)
def test_a_full_disk_of_the_user_is_found_at_the_start(schedule: Any, tmp_path: Path) -> None:
    """Before the first step is stored one warning says how many bytes are missing, and the gradient is the same."""
    system = Small(3 * U.nbytes).system
    warned: list[int] = []
    steps: list[int] = []

    def step(x: Any, i: int) -> Any:
        steps.append(i)
        warned.extend([len(steps)] * (len(caught) - len(warned)))
        x[1:-1] += 0.1 * x[1:-1] * (x[2:] - x[:-2])
        return x

    with warnings.catch_warnings(record=True) as caught, Disk(tmp_path, system=system) as storage:
        warnings.simplefilter("always")
        f = lambda u: np.sum(timeloop(step, u, STEPS, schedule=schedule, storage=storage) ** 2)
        found = grad(f)(U)
        assert storage.reserved_nbytes == 0
    assert np.array_equal(found, EXPECTED)
    assert warned == [2]  # the first step is run to be measured
    (one,) = caught
    assert "more bytes" in str(one.message) or "missing" in str(one.message)


def test_what_a_user_reserved_stays_reserved(tmp_path: Path) -> None:
    """Loops reserve beside it, give back what they took, also after an error, and others' entries have their room."""
    with Disk(tmp_path) as storage:
        storage.put("mine", [U])
        storage.reserve(1, 40 * U.nbytes)
        before, again = storage.reserved_nbytes, storage.nbytes
        seen: list[int] = []

        def step(x: Any, i: int) -> Any:
            seen.append(storage.reserved_nbytes)
            return x + 0.1 * np.sin(x)

        def two(u: Any) -> Any:
            u = timeloop(step, u, STEPS, schedule=Revolve(60), storage=storage)
            return np.sum(timeloop(step, u, STEPS, schedule=Revolve(80), storage=storage) ** 2)

        def failing(u: Any) -> Any:
            two(u)
            raise RuntimeError("after the loops")

        grad(two)(U)
        assert max(seen) >= before + STEPS * U.nbytes
        assert storage.nbytes == again
        assert storage.reserved_nbytes == before
        with suppress(RuntimeError):  # a traceback would keep the loops
            grad(failing)(U)
        assert storage.reserved_nbytes == before
        assert np.array_equal(storage.take("mine")[0], U)
