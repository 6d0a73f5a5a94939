"""What the ranks of a group state of runs that end too early and are resumed; each check is run by on_ranks.py."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from failing import STEPS, gradient
from group import Group, refused
from tests.scale import FULL

import ebbtide as eb
from ebbtide.errors import RankError, ResumeError, StorageError
from ebbtide.storage import Disk
from ebbtide.storage.listing import clean

RESUME = {"resume_every": 2}


def outcome(group: Group, directory: Path, kind: str, place: int) -> Any:
    """Return the gradient of a run with a fault, or its error, which each rank has within 10 seconds."""
    start = time.perf_counter()
    # Of a run that failed there may be messages under way: nobody uses its communicator again, nor the number of it.
    own = Group(group.comm.Dup())
    try:
        return gradient(own, directory / "scratch", kind, place, resume=directory / "run", **RESUME)
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


def check_no_directory(group: Group) -> None:
    """Where the directory to resume from cannot be made all ranks raise, and one that did not try says whose it is."""
    with group.directory() as directory, refused((StorageError, RankError), "Cannot use the directory"):
        own = Group(group.comm.Dup())
        gradient(own, directory / "scratch", resume=directory / "none" / "run", **RESUME)


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
                    # Where one of the two last places in the reverse sweep is damaged it is said.
                    warnings.filterwarnings("ignore", "The entry 'reverse'", RuntimeWarning)
                    goes_on(group, directory, expected)


def check_killed_between(group: Group) -> None:
    """Ranks that were ended with another last place each agree on one that all of them have."""
    with group.directory() as directory:
        expected = gradient(group, directory / "scratch")
        path, whole = directory / "run" / f"rank-{group.rank}", {}
        for place in (6, 8):
            assert not isinstance(outcome(group, directory, "raise", place), bytes)
            whole[place] = (path / "segment").read_bytes()
        group.meet()
        if group.rank % 2:
            (path / "segment").write_bytes(whole[6])
        group.meet()
        goes_on(group, directory, expected)


def check_times(group: Group) -> None:
    """Without a number of steps ranks save at the same steps, whatever their clocks say."""
    with group.directory() as directory:
        for interval in (None, 0.01):
            found = gradient(group, directory / "scratch", resume=directory / "run", resume_every=interval)
            assert found == gradient(group, directory / "scratch")
