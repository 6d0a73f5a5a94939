"""What the ranks of a group state of runs that end too early and are resumed; each check is run by on_ranks.py."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from failing import STEPS, gradient
from group import Group, refused
from mpi4py import MPI
from tests.scale import FULL

import ebbtide as eb
from ebbtide import mpi
from ebbtide.errors import BudgetError, DeterminismError, RankError, ResumeError, StorageError
from ebbtide.schedules import Revolve, StoreAll
from ebbtide.storage import Disk, StorageFullError
from ebbtide.storage.listing import clean

RESUME = {"resume_every": 2}


def outcome(group: Group, directory: Path, kind: str, place: int) -> Any:
    """Return the gradient of a run with a fault, or its error, which each rank has within 10 seconds."""
    start = time.perf_counter()
    try:
        return gradient(group, directory / "scratch", kind, place, resume=directory / "run", **RESUME)
    except (ValueError, StorageError, RankError) as error:
        return error
    finally:
        assert time.perf_counter() - start < 10.0


def goes_on(group: Group, directory: Path, expected: bytes) -> None:
    """Check that the same call ends with the same bits."""
    found = outcome(group, directory, "", -1)
    assert found == expected, found


def check_faults(group: Group) -> None:
    """Where a rank raises or has no room all ranks raise; the same call goes on, and ends with the same bits."""
    if group.size == 1:
        return
    with group.directory() as directory:
        expected = gradient(group, directory / "scratch")
        whole = int(os.environ["COUNT"])
        last = group.rank == group.size - 1
        for kind in ("raise", "full", "collect"):
            for place in range(1, whole, 1 if FULL else whole // 2):
                found = outcome(group, directory, kind, place)
                if kind == "raise":
                    assert isinstance(found, ValueError if last else RankError), (place, found)
                elif kind == "full":
                    assert isinstance(found, (StorageError if last else RankError, bytes)), (place, found)
                if isinstance(found, bytes):
                    assert found == expected
                    continue
                assert last or "Rank" in str(found)
                goes_on(group, directory, expected)
                if kind == "raise" and 4 < place < whole - 4:
                    assert int(os.environ["COUNT"]) < whole, place
        group.meet()
        assert list(directory.iterdir()) == []


def check_other_counts(group: Group) -> None:
    """A run that was left by some ranks is refused to fewer of them, and to one process alone; then it goes on."""
    if group.size == 1:
        return
    fewer = group.comm.Split(group.rank == 0)
    with group.directory() as directory:
        expected = gradient(group, directory / "scratch")
        assert not isinstance(outcome(group, directory, "raise", STEPS + 3), bytes)
        group.meet()
        if group.rank:
            with refused((ResumeError, RankError), f"of {group.size}"):
                gradient(Group(fewer), directory / "scratch", resume=directory / "run", **RESUME)
        else:
            with refused(ResumeError, "many ranks"):
                alone(directory / "run")
        group.meet()
        goes_on(group, directory, expected)
        group.meet()
        if group.rank == 0:
            with refused(ArithmeticError, ""):
                alone(directory / "run", fails=True)
        group.meet()
        with refused(ResumeError, "one process alone"):
            gradient(group, directory / "scratch", resume=directory / "run", **RESUME)
        group.meet()
        if group.rank == 0:
            assert clean(directory / "run") == [directory / "run"]
        group.meet()
        assert not isinstance(outcome(group, directory, "raise", 8), bytes)
        group.meet()
        if group.rank == 0:
            assert clean(directory / "run") == [directory / "run" / f"rank-{rank}" for rank in range(group.size)]
        group.meet()
        assert list(directory.iterdir()) == []


def check_thinned(group: Group) -> None:
    """A loop that goes on with states of the run before it may give them up for later ones of its own."""
    u = group.random((1000,), np.float64, 12)
    with group.directory() as directory:
        for left, schedule in ((49, None), (49, Revolve(5)), (75, Revolve(10))):

            def step(u: Any, i: int) -> Any:
                if os.environ["LEFT"] == str(i):
                    raise ArithmeticError
                return u + 0.01 * np.sin(u) - 1e-6 * mpi.allreduce(np.sum(u), group.comm)

            def functional(u: Any, schedule: Any = schedule) -> Any:
                return mpi.total(np.sum(eb.timeloop(step, u, 100, resume_every=3, schedule=schedule) ** 2), group.comm)

            os.environ["LEFT"] = str(left)
            with refused((ArithmeticError, RankError), ""), mpi.distributed(group.comm):
                eb.grad(functional, resume=directory / "run")(u)
            group.meet()
            os.environ["LEFT"] = ""
            with mpi.distributed(group.comm):
                found = eb.grad(functional, resume=directory / "run")(u)
                np.testing.assert_array_equal(found, eb.grad(functional)(u))
            group.meet()


def check_disagreeing(group: Group) -> None:
    """Where the steps of one rank disagree with those before a fault, the right call begins anew on all ranks."""
    last = group.rank == group.size - 1

    def step(u: Any, i: int) -> Any:
        os.environ["COUNT"] = str(int(os.environ["COUNT"]) + 1)
        if last and os.environ["COUNT"] == os.environ["PLACE"]:
            raise ArithmeticError
        scale = float(os.environ["SCALE"]) if i else 1.0
        return u + 0.1 * scale * np.sin(u)

    def run(directory: Path | None, *, scale: str = "1.0", place: int = -1) -> bytes:
        os.environ.update(COUNT="0", PLACE=str(place), SCALE=scale)

        def functional(u: Any) -> Any:
            return mpi.total(np.sum(eb.timeloop(step, u, STEPS, schedule=Revolve(3), **RESUME) ** 2), group.comm)

        with mpi.distributed(group.comm):
            return eb.grad(functional, resume=directory)(group.random((6,), np.float64, 3)).tobytes()

    with group.directory() as directory:
        expected = run(None)
        for place in (6, STEPS + 6):
            with refused((ArithmeticError, RankError), ""):
                run(directory / "run", place=place)
            group.meet()
            with refused((DeterminismError, RankError), "run again"):
                run(directory / "run", scale="2.0" if last else "1.0")
            group.meet()
            assert run(directory / "run") == expected
            group.meet()
            assert list(directory.iterdir()) == []


def check_late_statics(group: Group) -> None:
    """Ranks that use something from outside later than others run the same steps again where a killed run goes on."""
    last = group.rank == group.size - 1

    def until(u: Any) -> bool:
        return bool(mpi.allreduce(np.sum(np.abs(u)), group.comm) > 1e6)

    def functional(u: Any, k: Any, condition: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            os.environ["COUNT"] = str(int(os.environ["COUNT"]) + 1)
            if last and os.environ["COUNT"] == os.environ["PLACE"]:
                raise ArithmeticError
            if condition is None and i >= 2:
                u = u + 0.1 * mpi.allreduce(np.sum(u), group.comm)
            return np.sin(u * k) if last and i >= 5 else np.sin(u)

        length = {"steps": STEPS} if condition is None else {"until": condition, "max_steps": STEPS}
        return np.sum(eb.timeloop(step, u, **length, **RESUME))

    def run(directory: Path | None, condition: Any, place: int = -1) -> list[bytes]:
        os.environ.update(COUNT="0", PLACE=str(place))
        with mpi.distributed(group.comm):
            found = eb.grad(functional, (0, 1), resume=directory)(np.ones(4), np.float64(1.1), condition)
        return [array.tobytes() for array in found]

    with group.directory() as directory:
        for condition in (None, until):
            expected = run(None, condition)
            for place in (4, 8, STEPS):
                with refused((ArithmeticError, RankError), ""):
                    run(directory / "run", condition, place)
                group.meet()
                assert run(directory / "run", condition) == expected
                group.meet()


def check_refusals_alike(group: Group) -> None:
    """What all ranks agree to refuse is the same error on each of them, however late one of them hears of it."""
    for _ in range(20):

        def functional(u: Any) -> Any:
            final = eb.timeloop(lambda u, i: u + 0.1 * np.sin(mpi.allreduce(u, group.comm)), u, STEPS)
            return mpi.total(np.sum(final**2), group.comm)

        with refused(BudgetError, "does not fit into 9216 bytes"), mpi.distributed(group.comm):
            eb.grad(functional, budget=eb.Budget(memory="9 KiB"))(np.ones(1000))
        group.meet()


def check_no_directory(group: Group) -> None:
    """Where the directory to resume from cannot be made all ranks raise, and one that did not try says whose it is."""
    with group.directory() as directory, refused((StorageError, RankError), "Cannot use the directory"):
        gradient(group, directory / "scratch", resume=directory / "none" / "run", **RESUME)


def alone(path: Path, *, fails: bool = False) -> None:
    """Take a gradient in this process alone, with a journal; perhaps one that ends too early."""
    def step(u: Any, i: int) -> Any:
        if fails and i == 5:
            raise ArithmeticError
        return u * 1.5

    eb.grad(lambda u: eb.timeloop(step, u, STEPS, resume=path, **RESUME))(2.0)


def check_behind(group: Group) -> None:
    """A rank that was ended before it kept what the others did begins with what all have; so does one with damage."""
    with group.directory() as directory:
        expected = gradient(group, directory / "scratch")
        for place in (5, 30):
            for kind in ("forward", "anchor", "final", "reverse"):
                assert not isinstance(outcome(group, directory, "raise", place), bytes)
                path = directory / "run" / f"rank-{group.rank}"
                group.meet()
                if group.rank == group.size - 1:
                    with Disk(path, durable=True) as storage:
                        keys = [key for key in storage.keys() if f"/{kind}/" in str(key)]
                        for key in keys[-1:]:
                            storage.delete(key)
                group.meet()
                with warnings.catch_warnings():
                    # Where the last place in a sweep is missing it is said.
                    warnings.filterwarnings("ignore", "The entry '(forward|final|reverse)'", RuntimeWarning)
                    goes_on(group, directory, expected)


def check_killed_between(group: Group) -> None:
    """Ranks that were ended with another last place each agree on one that all of them have."""
    with group.directory() as directory:
        expected = gradient(group, directory / "scratch")
        path, whole = directory / "run" / f"rank-{group.rank}", {}
        for place in (6, 8):
            assert not isinstance(outcome(group, directory, "raise", place), bytes)
            whole[place] = {name: (path / name).read_bytes() for name in ("segment", "newest")}
        group.meet()
        if group.rank % 2:
            for name, content in whole[6].items():
                (path / name).write_bytes(content)
        group.meet()
        goes_on(group, directory, expected)


def check_no_room(group: Group) -> None:
    """Where the journal of one rank has no room, once or from then on, all go on alike; so does the same call."""
    if group.size == 1:
        return
    many = {"steps": 40, "resume_every": 1}  # more restart states than are kept
    with group.directory() as directory:
        scratch, run = directory / "scratch", directory / "run"
        expected = gradient(group, scratch, steps=40)
        for name, refusals in (("anchor", 1), ("forward", 1), ("anchor", 10**6), ("", 10**6)):
            for fails in (False, True):
                with full_journal(f"/{name}/" if name else "", refusals if group.rank == group.size - 1 else 0):
                    try:
                        found = gradient(group, scratch, "raise" if fails else "", 50, resume=run, **many)
                    except (ValueError, RankError) as error:
                        found = error
                assert fails is not isinstance(found, bytes), (name, found)
                if fails:
                    found = gradient(group, scratch, resume=run, **many)
                assert found == expected, (name, refusals, fails)
        group.meet()
        assert list(directory.iterdir()) == []


@contextmanager
def full_journal(text: str, refusals: int) -> Iterator[None]:
    """Refuse as a full disk does to keep entries with a text in their keys, after the first five, so many times."""
    count, replace = 0, Disk.replace

    def refusing(self: Disk, key: Any, *args: Any, **options: Any) -> int:
        nonlocal count
        count += text in str(key)
        if text in str(key) and 5 < count <= 5 + refusals:
            raise StorageFullError("There is no room on purpose.", 1)
        return replace(self, key, *args, **options)

    Disk.replace = refusing
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The journal of loop 0 could not be written", RuntimeWarning)
            yield
    finally:
        Disk.replace = replace


def check_times(group: Group) -> None:
    """Without a number of steps ranks save at the same steps, whatever their clocks say."""
    with group.directory() as directory:
        for interval in (None, 0.01):
            found = gradient(group, directory / "scratch", resume=directory / "run", resume_every=interval)
            assert found == gradient(group, directory / "scratch")


def check_static(group: Group) -> None:
    """
    What steps use and does not change is in no snapshot and in no journal: as much is written without it.

    Only the running sum of its derivative is, in places in the reverse sweep.
    """
    for schedule in (StoreAll("disk"), Revolve(3)):
        for of_static in (True, False):
            few, many = [bytes_written(group, size, schedule, of_static) for size in (10, 100_000)]
            assert few == many > 0, (schedule, of_static, few, many)


def bytes_written(group: Group, size: int, schedule: Any, of_static: bool) -> int:
    """Return what a gradient with a journal writes, also by a static array of a size, that of its sums left out."""
    static = group.random((size,), np.float64, 4)

    def functional(u: Any, k: Any, storage: Disk, **resume: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            below = mpi.sendrecv(u, group.comm, group.up, group.down)
            return u + 0.1 * np.sin(below) * np.sum(k * u[0]) / size

        final = eb.timeloop(step, u, STEPS, schedule=schedule, storage=storage, **resume)
        return mpi.total(np.sum(final**2), group.comm)

    u = group.random((6,), np.float64, 3)
    with (
        group.directory() as directory,
        mpi.distributed(group.comm),
        counted_bytes(but="/reverse/" if of_static else None) as total,
        Disk(directory / "scratch", comm=MPI.COMM_SELF) as storage,
    ):
        argnums = (0, 1) if of_static else 0
        eb.grad(functional, argnums)(u, static, storage, resume=directory / "run", **RESUME)
    return total[0]


@contextmanager
def counted_bytes(but: str | None) -> Iterator[list[int]]:
    """Add up what is stored in files in the block, but for keys with a text in them."""
    total, put, replace = [0], Disk.put, Disk.replace

    def count(store: Any) -> Any:
        def counted(self: Disk, key: Any, *args: Any, **options: Any) -> int:
            written = store(self, key, *args, **options)
            total[0] += written if but is None or but not in str(key) else 0
            return written

        return counted

    Disk.put, Disk.replace = count(put), count(replace)
    try:
        yield total
    finally:
        Disk.put, Disk.replace = put, replace
