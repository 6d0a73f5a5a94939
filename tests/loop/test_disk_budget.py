"""What all loops and pages of a call have on disk at a time is in the budget, and is shared."""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes
from tests.scale import FULL, sample

from ebbtide import Budget, BudgetError, grad, timeloop, vjp
from ebbtide.quota import Quota
from ebbtide.schedules import Costs, Hierarchical, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Memory, StorageFullError, Tiered
from ebbtide.storage.system import POSIX

U = np.linspace(0.2, 1.1, 16384)
STATE = U.nbytes
CHEAP = Costs(forward=1.0, reverse=2.0, write=0.01, read=0.01)


@pytest.fixture
def most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return the most bytes of disk that files below a directory took when something was stored."""
    seen = [0]
    put = Disk.put

    def watched(self: Disk, *args: Any, **options: Any) -> int:
        written = put(self, *args, **options)
        files = [path.stat() for path in tmp_path.rglob("*") if path.is_file()]
        seen[0] = max(seen[0], 512 * sum(stat.st_blocks for stat in files))
        return written

    monkeypatch.setattr(Disk, "put", watched)
    yield lambda: seen[0]
    assert list(tmp_path.iterdir()) == []


def chain(u: Any, loops: int, **options: Any) -> Any:
    """Run loops one after the other."""
    for _ in range(loops):
        u = timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 40, **options)
    return np.sum(u * u)


def nested(u: Any, loops: int, **options: Any) -> Any:
    """Run a loop in each step of another one."""
    inner = lambda u: timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 4, **options)
    return np.sum(timeloop(lambda u, i: inner(u), u, 10 * loops, **options) ** 2)


def wider(u: Any, loops: int, **options: Any) -> Any:
    """Run a loop whose last steps save more than planned, and code after it."""

    def step(u: Any, i: int) -> Any:
        for _ in range(12 if i >= 40 else 1):
            u = u + 0.01 * np.sin(u)
        return u

    u = timeloop(step, u, 40 + 2 * loops, **options)
    return np.sum(np.exp(np.sin(np.cos(u))))


@pytest.mark.parametrize(
    ("f", "loops", "memory", "disk"),
    sample([
        (f, loops, memory, disk)
        for f in (chain, nested, wider) for loops in (1, 2, 4) for memory in (14, 20) for disk in (8, 50, 200)
    ], 2),
)  # fmt: skip
def test_what_is_on_disk_is_in_the_budget(
    f: Any, loops: int, memory: int, disk: int, tmp_path: Path, most: Callable[[], int]
) -> None:
    """However many loops there are, and whatever their steps page, files take no more than the budget says."""
    expected = grad(lambda u: f(u, loops, schedule=StoreAll()))(U)
    budget = Budget(memory=memory * STATE, disk=disk * STATE, directory=tmp_path)
    try:
        found = grad(lambda u: f(u, loops, costs=CHEAP), budget=budget)(U)
    except BudgetError:
        pytest.fail("there is room for another plan")
    assert found.tobytes() == expected.tobytes()
    assert most() <= disk * STATE


def test_loops_with_schedules_on_disk_share_the_disk(tmp_path: Path, most: Callable[[], int]) -> None:
    """A second loop for whose schedule there is too little disk left is refused, with what is left."""
    budget = Budget(memory=40 * STATE, disk=30 * STATE, directory=tmp_path)
    gradient = grad(lambda u: chain(u, 2, schedule=Hierarchical(1, 20)), budget=budget)
    with pytest.raises(BudgetError, match=r"stores \d+ bytes .* on disk, and the budget has \d+ bytes of it left"):
        gradient(U)
    enough = Budget(memory=40 * STATE, disk=42 * STATE, directory=tmp_path)
    found = grad(lambda u: chain(u, 2, schedule=Hierarchical(1, 20)), budget=enough)(U)
    assert found.tobytes() == grad(lambda u: chain(u, 2, schedule=StoreAll()))(U).tobytes()
    assert 40 * STATE < most() <= 42 * STATE


def test_pages_take_the_disk_of_snapshots(tmp_path: Path, most: Callable[[], int]) -> None:
    """Values that have to be paged after a loop have the disk of its snapshots, which runs more steps again."""

    def f(u: Any, **options: Any) -> Any:
        u = timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 40, **options)
        for _ in range(12):
            u = np.sin(u)
        return np.sum(u)

    budget = Budget(memory=8 * STATE, disk=16 * STATE, directory=tmp_path)
    found = grad(lambda u: f(u, costs=CHEAP), budget=budget)(U)
    assert found.tobytes() == grad(lambda u: f(u, schedule=StoreAll()))(U).tobytes()
    assert 10 * STATE < most() <= 16 * STATE


def test_a_loop_of_its_own_budget_has_its_own_disk(tmp_path: Path, most: Callable[[], int]) -> None:
    """A budget of a loop bounds its disk, within that of the call around."""
    own = Budget(memory=10 * STATE, disk=11 * STATE, directory=tmp_path)
    around = Budget(memory=60 * STATE, disk=12 * STATE, directory=tmp_path)
    found = grad(lambda u: chain(u, 2, budget=own, costs=CHEAP), budget=around)(U)
    assert found.tobytes() == grad(lambda u: chain(u, 2, schedule=StoreAll()))(U).tobytes()
    assert 10 * STATE < most() <= 12 * STATE


def test_storages_share_a_quota(tmp_path: Path) -> None:
    """Storages of one quota take its bytes together, and each has back what others give up."""
    whole = Quota(10 * STATE)
    part = Quota(None, whole)
    part.promised = 6 * STATE
    with Disk(tmp_path, limit=part) as snapshots, Disk(tmp_path, limit=whole) as pages:
        pages.put("a", [U[:-1024]])
        for key in range(3):
            pages.put(key, [U[:-1024]])
        with pytest.raises(StorageFullError, match="limit of this Disk storage is"):
            pages.put("too many", [U[:-1024]])
        for key in range(6):
            snapshots.put(key, [U[:-1024]])
        snapshots.delete(0)
        part.promised = 0
        pages.put("has room", [U[:-1024]])
    assert whole.held == 0


@pytest.mark.parametrize("schedule", [StoreAll("disk"), Hierarchical(2, 20), Periodic(2, 2), None], ids=str)
def test_a_disk_that_is_too_small_is_found_at_the_start(
    schedule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are allocated before the loop goes on: one warning says what is missing, and it does with less."""
    told: list[tuple[int, str]] = []
    ran, free = [0], 12 * STATE

    def small(descriptor: int, offset: int, nbytes: int) -> None:
        if offset + nbytes > free:
            raise OSError(errno.ENOSPC, "No space left on device")
        POSIX.allocate(descriptor, offset, nbytes)

    def step(u: Any, i: Any) -> Any:
        ran[0] += 1
        return u + 0.1 * np.sin(u)

    def f(u: Any, **options: Any) -> Any:
        return np.sum(timeloop(step, u, 40, **options) ** 2)

    expected = grad(lambda u: f(u, schedule=StoreAll()))(U)
    monkeypatch.setitem(Disk.__init__.__kwdefaults__, "system", replace(POSIX, allocate=small))
    budget = Budget(memory=(9 if schedule is None else 60) * STATE, disk=200 * STATE, directory=tmp_path)
    ran[0] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *args, **options: told.append((ran[0], str(message)))
        found = grad(lambda u: f(u, schedule=schedule, costs=CHEAP), budget=budget)(U)
    assert found.tobytes() == expected.tobytes()
    assert len(told) == 1
    assert "Cannot reserve room" in told[0][1]
    assert "bytes are missing" in told[0][1]
    assert told[0][0] <= 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("free", [0, 0.5, 1.5, 3])
def test_a_disk_without_room_for_what_measures_it(free: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not one state fits, or two, the loop goes on with what fits in memory, and one warning says so."""

    def small(descriptor: int, offset: int, nbytes: int) -> None:
        if offset + nbytes > free * STATE:
            raise OSError(errno.ENOSPC, "No space left on device")
        POSIX.allocate(descriptor, offset, nbytes)

    # Where both states that are measured fit, the disk is used if that was fast.
    costs = None if free < 2 else Costs(write=0.1, read=0.1)
    f = lambda u: np.sum(timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 40, costs=costs) ** 2)
    expected = grad(f)(U)
    monkeypatch.setitem(Disk.__init__.__kwdefaults__, "system", replace(POSIX, allocate=small))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = grad(f, budget=Budget(memory=9 * STATE, disk=200 * STATE, directory=tmp_path))(U)
    assert found.tobytes() == expected.tobytes()
    assert ["bytes are missing" in str(one.message) for one in told] == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "steps", "after"), [(1000, 40, 60), (8000, 200, 200), (4000, 400, 400)] if FULL else [(1000, 40, 60)]
)
@pytest.mark.parametrize("more", [1.0, 1.2])
def test_small_states_before_long_code(size: int, steps: int, after: int, more: float) -> None:
    """What a loop holds beside arrays counts while code after it runs, and its table goes with its snapshots."""
    u = np.linspace(0.1, 1.0, size)

    def f(u: Any) -> Any:
        u = timeloop(lambda u, i: u + 0.1 * np.sin(u), u, steps, costs=Costs(forward=1.0, reverse=2.0))
        for _ in range(after):
            u = np.sin(u)
        return np.sum(u)

    f(u)
    alone, least = peak_bytes(lambda: f(u)), 1
    while True:
        try:
            expected = grad(f, budget=Budget(memory=least))(u)
        except BudgetError as error:
            least = int(error.least or 0)
        else:
            break
    memory, found = int(more * least), list[Any]()
    bounded = grad(f, budget=Budget(memory=memory))
    assert peak_bytes(lambda: found.append(bounded(u))) - alone <= memory
    assert found[0].tobytes() == expected.tobytes() == grad(f)(u).tobytes()


def growing(u: Any, **options: Any) -> Any:
    """A scalar of a loop of 40 steps, of which each has one operation more than the one before."""

    def step(u: Any, i: int) -> Any:
        for _ in range(1 + i):
            u = u + 0.01 * np.sin(u)
        return u

    return np.sum(timeloop(step, u, 40, **options))


@pytest.mark.parametrize("write", [0.05, 1.0, 5.0])
@pytest.mark.parametrize("states", [7, 9, 12, 14, 16, 20, 25, 30] if FULL else [9, 14, 25])
def test_growing_steps_run_at_any_budget_with_disk(states: int, write: float, tmp_path: Path) -> None:
    """Steps that save ever more go to disk, with whatever schedule the loop began; more memory is not refused."""
    costs = Costs(forward=1.0, reverse=2.0, write=write, read=write)
    budget = Budget(memory=states * STATE, disk=2**30, directory=tmp_path)
    found = grad(lambda u: growing(u, costs=costs), budget=budget)(U)
    assert found.tobytes() == grad(lambda u: growing(u, schedule=StoreAll()))(U).tobytes()


@pytest.mark.parametrize("write", [0.05, 5.0])
@pytest.mark.parametrize("states", [9, 9.6, 10, 12, 14, 20, 30, 40] if FULL else [9, 12, 40])
@pytest.mark.parametrize("size", [4096, 16384] if FULL else [4096])
def test_growing_steps_keep_the_budget_with_disk(size: int, states: float, write: float, tmp_path: Path) -> None:
    """Not by what the interpreter takes either, for 120 nodes in each of the last steps, is a budget passed."""
    u = U[:size].copy()
    growing(u)
    alone, memory = peak_bytes(lambda: growing(u)), int(states * u.nbytes)
    costs = Costs(forward=1.0, reverse=2.0, write=write, read=write)
    bounded = grad(lambda u: growing(u, costs=costs), budget=Budget(memory=memory, disk=2**30, directory=tmp_path))
    assert peak_bytes(lambda: bounded(u)) - alone <= memory


@pytest.mark.parametrize("schedule", [StoreAll("disk"), Periodic(8, 2), Hierarchical(2, 30, Costs())], ids=str)
@pytest.mark.parametrize("loops", [1, 3])
def test_the_buffer_of_a_users_disk_is_in_the_budget(loops: int, schedule: Any, tmp_path: Path) -> None:
    """A storage that the user gives counts with its buffer, once for all loops; what does not fit is refused."""
    buffer = 20 * STATE

    def slow(descriptor: int, block: Any, offset: int) -> int:
        time.sleep(2e-3)
        return POSIX.pwrite(descriptor, block, offset)

    system = replace(POSIX, pwrite=slow)
    alone, expected = peak_bytes(lambda: chain(U, loops)), grad(lambda u: chain(u, loops))(U)

    def gradient(memory: int) -> Any:
        with Disk(tmp_path, buffer=buffer, system=system) as disk:
            run = grad(lambda u: chain(u, loops, schedule=schedule, storage=disk), budget=Budget(memory=memory))
            return run(U)

    memory, refusals = STATE, 0
    while refusals < 9:
        try:
            assert np.array_equal(gradient(memory), expected)
            break
        except BudgetError as error:
            memory, refusals = error.least, refusals + 1
    assert buffer < memory < buffer + 45 * STATE
    assert peak_bytes(lambda: gradient(memory)) - alone <= memory


def test_the_buffer_of_a_users_disk_goes_with_the_last_loop(tmp_path: Path) -> None:
    """Where no loop uses it any more, what comes after has the bytes: no more memory than for the larger of both."""

    def f(u: Any, loops: int, length: int) -> Any:
        with Disk(tmp_path, buffer=20 * STATE) as disk:
            for _ in range(loops):
                timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 5, schedule=Revolve(2), storage=disk)
        for _ in range(length):
            u = np.sin(u)
        return np.sum(u)

    def least(loops: int, length: int) -> int:
        return find_least(lambda memory: grad(lambda u: f(u, loops, length), budget=Budget(memory=memory))(U))

    assert least(2, 1) > 20 * STATE
    assert least(0, 30) > 20 * STATE
    assert least(2, 30) < max(least(2, 1), least(0, 30)) + 2 * STATE


@pytest.mark.parametrize("name", ["alone", "in a step", "in a step, after a chain"])
def test_a_schedule_that_lacks_disk_says_so(name: str) -> None:
    """A loop that is to store on disk is refused for want of disk, in a step of another one too; what it names does."""

    def run(u: Any) -> Any:
        return timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 3, schedule=StoreAll("disk"))

    def f(u: Any) -> Any:
        for _ in range(30 if "chain" in name else 0):
            u = np.sin(u)
        return np.sum((run(u) if name == "alone" else timeloop(lambda u, i: run(u), u, 4, schedule=Revolve(2))) ** 2)

    with pytest.raises(BudgetError, match="bytes of disk, or the loop another schedule") as refused:
        grad(f, budget=Budget("100 MiB", disk=STATE))(U)
    assert refused.value.least_disk >= 3 * STATE
    found = grad(f, budget=Budget("100 MiB", disk=refused.value.least_disk))(U)
    assert np.array_equal(found, grad(f)(U))


@pytest.mark.parametrize("states", sample([14, 20, 24, 36, 44, 60], 2))
def test_retained_pulls_page_again(states: int, tmp_path: Path) -> None:
    """What a retained sweep has read back makes room for the next one: as many as are asked for, within the budget."""

    def f(u: Any) -> Any:
        y = u
        for _ in range(40):
            y = np.sin(y)
        return np.sum(y) + np.sum(timeloop(lambda u, i: 1.1 * np.sin(u), u, 40) ** 2)

    expected, budget, found = grad(f)(U), Budget(states * STATE, "1 GiB", tmp_path), list[Any]()

    def call() -> None:
        found.clear()
        pull = vjp(f, U, retain=True, budget=budget)[1]
        for _ in range(4):
            found[:] = [*found[-1:], pull(1.0)[0]]

    alone = peak_bytes(lambda: f(U))
    call()
    assert all(np.array_equal(one, expected) for one in found)
    found.clear()
    # The gradient of the pull before is the caller's.
    assert peak_bytes(call) - alone <= budget.memory + 2 * STATE
    found.clear()


@pytest.mark.parametrize("disk", [0, "100 MiB"])
@pytest.mark.parametrize("states", [4, 10, 20])
def test_a_storage_in_memory_is_planned_with_no_disk(states: int, disk: Any, tmp_path: Path) -> None:
    """What a budget has of disk is of no use to a loop whose snapshots go to memory, and is not counted on."""
    budget = Budget(memory=14 * STATE, disk=disk)

    def f(u: Any, storage: Any) -> Any:
        return np.sum(timeloop(lambda v, i: v + 0.1 * np.sin(v), u, 40, storage=storage) ** 2)

    expected, alone = grad(f)(U, None), peak_bytes(lambda: f(U, None))
    for storage in (Memory(), Tiered(states * STATE, Disk(tmp_path))):
        with storage:
            run = lambda storage=storage: grad(f, budget=budget)(U, storage)
            assert run().tobytes() == expected.tobytes()
            assert peak_bytes(run) - alone <= budget.memory


@pytest.mark.parametrize("schedule", [None, StoreAll("disk"), Periodic(3, 2)])
@pytest.mark.parametrize("compression", [None, "lossless", "float32"])
def test_compression_keeps_the_budget(compression: Any, schedule: Any, tmp_path: Path) -> None:
    """What a step saves is encoded and decoded part by part, in memory that the budget has."""
    weights = np.linspace(0.1, 1.0, 20)[:, None]
    budget = Budget(memory=52 * STATE, disk="1 GiB")

    def f(u: Any, storage: Any = None) -> Any:
        step = lambda u, i: u + 0.01 * np.sqrt(1.0 + np.sum((u * weights) ** 2, axis=0))
        return np.sum(timeloop(step, u, 12, storage=storage, schedule=schedule) ** 2)

    alone = peak_bytes(lambda: f(U))
    with Disk(tmp_path, compression=compression) as storage:
        run = lambda: grad(lambda u: f(u, storage), budget=budget)(U)
        assert peak_bytes(run) - alone <= budget.memory
        assert storage.keys() == ()
