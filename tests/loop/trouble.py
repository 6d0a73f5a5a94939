"""A gradient with a journal that meets trouble at one of its steps or system calls, also in a forked process."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tests.forks import run_forked

from ebbtide import Budget, value_and_grad
from ebbtide.loop.resuming.resume import Resumption
from ebbtide.loop.timeloop import timeloop
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import system

SCHEDULES = {
    "store": StoreAll(),
    "revolve": Revolve(4),
    "mixed": Mixed(8),
    "hierarchical": Hierarchical(2, 3, Costs(write=1.0, read=1.0)),
    "periodic": Periodic(10, 3),
    "online": Online(4),
    "store on disk": StoreAll("disk"),
    "until": Online(4),
}
STEPS, EVERY = 48, 5
U = np.linspace(0.5, 1.0, 12)
LATE = np.linspace(0.0, 1.0, 12)
FORCING = np.sin(np.arange(STEPS))
# Calls of a storage, and those of Python's that make and remove files. Their order is that of the run.
CALLS = ("pwrite", "allocate", "punch", "synchronize")
OTHERS = ("open", "unlink", "rmdir", "rename", "replace", "mkdir", "ftruncate")


def objective(u: Any, k: Any, late: Any, forcing: Any, name: str) -> Any:
    """A loop with an in-place step, forcing, outputs, and a static value that is used from step 7 on."""

    def step(x: Any, f: Any) -> Any:
        state, done = x
        system.met_step(int(done))
        state[1:-1] += 0.1 * state[1:-1] * (state[2:] - state[:-2]) * k + 0.001 * f
        if done >= 7:
            state = state + 1e-3 * late
        return (state, done + 1), np.sum(state)

    length: dict[str, Any] = {"steps": STEPS, "inputs": forcing}
    if name == "until":
        length = {"until": lambda x: x[1] >= STEPS, "max_steps": 2 * STEPS, "inputs": lambda i: np.sin(float(i))}
    (last, _), sums = timeloop(step, (2.0 * u, 0), outputs=True, schedule=SCHEDULES[name], resume_every=EVERY, **length)
    return np.sum(last**2) + np.sum(sums * np.arange(STEPS))


def gradient(name: str, directory: Path | None, local: Path | None = None) -> bytes:
    """The bytes of value and gradients; snapshots on disk go to *local*."""
    budget = None if local is None else Budget(memory="64 MiB", disk="64 MiB", directory=local)
    found = value_and_grad(objective, argnums=(0, 1, 2, 3), resume=directory, budget=budget)
    value, gradients = found(U, 1.5, LATE, FORCING, name)
    return b"".join(np.asarray(one).tobytes() for one in (value, *gradients))


class Events:
    """
    Counts the steps and system calls of a run, and strikes at one of them; of a forked one, too.

    Args:
        at: The number of the event to strike at, 0 for none.
        strike: What to do there, with the descriptor, bytes and offset of a write.
        only: The system calls that are events; all of them, and the steps, if none is named.
        lasting: Whether to strike at all later ones, too.
    """

    def __init__(
        self,
        at: int = 0,
        strike: Callable[[Any], None] | None = None,
        only: Sequence[str] = (),
        *,
        lasting: bool = False,
    ) -> None:
        self.at, self.strike, self.only, self.lasting = at, strike, only, lasting
        self._shared = np.frombuffer(mmap.mmap(-1, 32), np.int64)
        self.begin()

    count = property(lambda self: int(self._shared[0]))
    steps = property(lambda self: int(self._shared[1]))
    forward = property(lambda self: int(self._shared[2]))
    left = property(lambda self: int(self._shared[3]))

    def begin(self) -> None:
        """Forget a run: steps that were run, those that the forward sweep did, those left to the reverse sweep."""
        self._shared[:] = (0, 0, 0, STEPS)

    def met(self, name: str = "step", arguments: Any = ()) -> None:
        """Count an event."""
        if self.only and name not in self.only:
            return
        self._shared[0] += 1
        struck = self.count == self.at or (self.lasting and self.count > self.at)
        if struck and self.strike is not None:
            self.strike(arguments if name == "pwrite" else None)

    def met_step(self, index: int) -> None:
        """Count a step."""
        self._shared[1] += 1
        self._shared[2] = max(self.forward, index + 1)
        self.met()

    @contextmanager
    def installed(self) -> Iterator[Events]:
        """Count the events of this process meanwhile; those of its main thread, unless calls are named."""
        calls = {name: getattr(system.POSIX, name) for name in CALLS}
        others = {name: getattr(os, name) for name in OTHERS}
        main = threading.get_ident()

        def counted(name: str, function: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if self.only or threading.get_ident() == main:
                    self.met(name, arguments)
                # What a killed process wrote is there; only a machine that stops needs the disk's word.
                return None if name == "synchronize" else function(*arguments, **options)

            return call

        reverse = Resumption.reverse

        def reversed_step(resumption: Any, end: int, *rest: Any) -> None:
            self._shared[3] = min(self.left, end)
            reverse(resumption, end, *rest)

        system.met_step = self.met_step
        Resumption.reverse = reversed_step
        try:
            for name, function in calls.items():
                object.__setattr__(system.POSIX, name, counted(name, function))
            for name, function in others.items():
                setattr(os, name, counted(name, function))
            yield self
        finally:
            for name, function in calls.items():
                object.__setattr__(system.POSIX, name, function)
            for name, function in others.items():
                setattr(os, name, function)
            Resumption.reverse = reverse
            system.met_step = lambda index: None


system.met_step = lambda index: None


def kill(number: int = signal.SIGKILL, *, torn: bool = False) -> Callable[[Any], None]:
    """A strike that ends the process by a signal; if *torn*, in the middle of a write."""

    def strike(write: Any) -> None:
        if torn and write is not None:
            descriptor, block, offset = write
            whole = memoryview(block).cast("B")
            os.pwrite(descriptor, whole[: len(whole) // 2], offset)
        os.kill(os.getpid(), number)

    return strike


def interrupt(write: Any) -> None:
    """A strike of Ctrl-C."""
    raise KeyboardInterrupt


def fail(number: int) -> Callable[[Any], None]:
    """A strike that is an error of the operating system."""

    def strike(write: Any) -> None:
        raise OSError(number, os.strerror(number))

    return strike


def in_child(name: str, directory: Path | None, events: Events, local: Path | None = None) -> bytes | int:
    """Run in a forked process: what it found, or the signal that ended it."""
    events.begin()

    def run() -> bytes:
        with events.installed():
            return gradient(name, directory, local)

    status, found = run_forked(run, f"{name} {events.at}:")
    return found if status == 0 else os.WTERMSIG(status)
