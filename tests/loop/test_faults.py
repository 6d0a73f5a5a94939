"""Disks that fail in the middle of a loop: the gradient is the same, or the error says why there is none."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import StorageError, grad, timeloop
from ebbtide.schedules import Costs, Hierarchical, Periodic, StoreAll
from ebbtide.storage import Disk
from ebbtide.storage.system import POSIX

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
def test_writes_that_fail(schedule: Any, call: str, number: int, buffer: Any, tmp_path: Path) -> None:
    """Where writes fail for a while or for good, the loop goes on with fewer snapshots and says so once."""
    threads = threading.active_count()
    for first, last in ((1, 2), (2, 3), (3, 6), (5, 10**9), (1, 10**9)):
        faults = Faults(call, number, first, last)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Disk(tmp_path, buffer=buffer, system=faults.system) as storage:
                found: Any = None
                # Only what cannot be made again is an error: saved values without any state to run from.
                allowed = StorageError if schedule == StoreAll("disk") else ()
                with contextlib.suppress(allowed):
                    found = grad(lambda u, s=storage: objective(u, schedule=schedule, storage=s))(U)
        assert (found is None and allowed) or np.array_equal(found, EXPECTED), (first, last)
        assert len([one for one in caught if issubclass(one.category, RuntimeWarning)]) <= 1
    assert threading.active_count() == threads
    assert list(tmp_path.rglob("segment")) == []


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_bytes_that_change_on_disk(schedule: Any, tmp_path: Path) -> None:
    """Whatever byte of the file changes, the gradient is the same or an error says what is damaged."""
    rng = np.random.default_rng(0)
    same = 0
    for _ in range(12):
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
    # What StoreAll loses cannot be made again: it keeps no state to start from.
    assert same > 0 or schedule == StoreAll("disk")
