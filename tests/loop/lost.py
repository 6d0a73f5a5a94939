"""What kills cost a gradient over 1000 steps: by SIGKILL in a step of a process of its own; another one goes on."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from tests.forks import run_forked
from tests.scale import bar

from ebbtide import grad, timeloop
from ebbtide.schedules import Revolve
from ebbtide.storage import system

# A static value that is first met late has to be met again when the run goes on, whatever is reversed already.
STEPS, SNAPSHOTS, LATE = 1000, 10, 600
U = np.linspace(0.1, 1.0, 4)


class StopError(Exception):
    """The job ends here."""


class Job:
    """A job that may run so many steps, and is killed then, or ends by an error; it is no part of the step's code."""

    def __init__(self, most: int = 10**9, *, kills: bool = False) -> None:
        self.most, self.kills = most, kills
        self._ran = np.frombuffer(mmap.mmap(-1, 8), np.int64)  # of a forked process, too

    ran = property(lambda self: int(self._ran[0]))

    def step(self) -> None:
        """Count a step."""
        self._ran += 1
        if self.ran > self.most:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise StopError


def run(job: Job, directory: Path | None, every: int) -> Any:
    """The gradient, as far as the job may go."""
    system.met_job_step = job.step

    def objective(u: Any, late: Any) -> Any:
        hidden = repeat(late)  # where nobody looks for it: it is met where a step uses it

        def step(x: Any, i: Any) -> Any:
            system.met_job_step()
            return x + 0.01 * np.sin(x) + (1e-4 * next(hidden) if i >= LATE else 0.0)

        options = {"schedule": Revolve(SNAPSHOTS), "resume": directory, "resume_every": every}
        return np.sum(timeloop(step, u, STEPS, **options) ** 2)

    return np.stack(grad(objective, argnums=(0, 1))(U, U))


def run_apart(most: int, directory: Path, every: int) -> tuple[int, Any]:
    """How many steps a forked process ran, and the gradient; None if it was killed, as it may run so many."""
    job = Job(most, kills=True)
    status, found = run_forked(lambda: run(job, directory, every).tobytes())
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
    return job.ran, np.frombuffer(found).reshape(2, -1) if status == 0 else None


@contextmanager
def unsynchronized() -> Iterator[None]:
    """Do without the disk's word that it has written, which takes most of the time and is no matter of a count."""
    synchronize = system.POSIX.synchronize
    object.__setattr__(system.POSIX, "synchronize", lambda descriptor: None)
    try:
        yield
    finally:
        object.__setattr__(system.POSIX, "synchronize", synchronize)


def whole(every: int) -> tuple[int, Any]:
    """How many steps an undisturbed run takes, and its gradient."""
    job = Job()
    found = run(job, None, every)
    return job.ran, found


@unsynchronized()
def losses(directory: Path, *, every: int, kills: int, seed: int) -> list[float]:
    """The steps that were run beyond those of an undisturbed run, as parts of it; one random kill in each stratum."""
    count, expected = whole(every)
    random, found = np.random.default_rng(seed), list[float]()
    for part in bar(range(kills), "random kills"):
        ran, gradient = run_apart(int((part + random.random()) / kills * (count - 1)) + 1, directory, every)
        assert gradient is None
        again, gradient = run_apart(10**9, directory, every)
        assert np.array_equal(gradient, expected)
        found.append((ran - 1 + again - count) / count)
    assert len(found) == kills
    return found


@unsynchronized()
def count_legs(directory: Path, *, every: int, share: float = 0.1) -> int:
    """How many jobs a gradient takes that may each run a part of the steps of an undisturbed run."""
    count, expected = whole(every)
    for leg in range(1, 100):
        _, found = run_apart(int(count * share), directory, every)
        if found is None:
            continue
        assert np.array_equal(found, expected)
        return leg
    raise AssertionError("100 jobs were not enough.")
