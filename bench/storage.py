"""
Storage on disk beside raw system calls, and hidden behind the work of a time loop.

States of 32 MiB are written and read by 0.9 of the speed of plain pwrite and pread on a preallocated file, with all
checksums; a state of 8 KiB is put and taken back in 0.2 ms. Steps of 20 ms that each store 8 MiB on a disk of 400 MiB/s
take 1.05 of the steps alone with a buffer; without one they take about twice as long.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Table, alternate, generator, median_of, ratio, run
from ebbtide.storage import Disk, entry_nbytes
from ebbtide.storage.system import POSIX

MIB = 2**20
LARGE, COUNT, RUNS = 32 * MIB, 8, 5
SMALL, CYCLES = 8 * 2**10, 200
STATE, STEPS, STEP_SECONDS, SPEED = 8 * MIB, 40, 0.020, 400 * MIB
# A real disk goes on with what waits for it while the thread is late.
CREDIT = 0.003
SHARED = Path("/dev/shm")


def directories() -> list[Path]:
    """Return where to measure: the directory for temporary files, and memory that looks like a disk."""
    found = [Path(tempfile.gettempdir())]
    if SHARED.is_dir() and os.access(SHARED, os.W_OK):
        found.append(SHARED)
    return found


# Large states.


def raw(directory: Path, states: list[Any], synchronize: bool = False) -> tuple[float, float]:
    """Return the seconds of writing and reading states by plain system calls on a preallocated file."""
    nbytes = states[0].nbytes
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, nbytes * len(states))
        start = time.perf_counter()
        for k, state in enumerate(states):
            os.pwrite(descriptor, state, k * nbytes)
            if synchronize:
                os.fdatasync(descriptor)
        middle = time.perf_counter()
        for k in reversed(range(len(states))):
            found = np.empty_like(states[k])
            os.preadv(descriptor, [found], k * nbytes)
        return middle - start, time.perf_counter() - middle


def ours(directory: Path, states: list[Any], buffer: int, durable: bool = False) -> tuple[float, float]:
    """Return the seconds of putting states and getting them in reverse order; room is reserved before, as in `raw`."""
    with tempfile.TemporaryDirectory(dir=directory) as own, Disk(own, buffer=buffer, durable=durable) as storage:
        storage.reserve(len(states), entry_nbytes(states[:1]))
        start = time.perf_counter()
        for k, state in enumerate(states):
            storage.put(k, [state])
        storage.flush()
        middle = time.perf_counter()
        keys = range(len(states) - 1, -1, -1)
        storage.prefetch(keys)
        for k in keys:
            found = storage.get(k)
            del found
        return middle - start, time.perf_counter() - middle


def large_of(nbytes: int, count: int, runs: int) -> None:
    """Print the table of bandwidth."""
    states = [generator(k).standard_normal(nbytes // 8) for k in range(count)]
    for directory in directories():
        calls: dict[str, Callable[[], tuple[float, float]]] = {
            "raw": lambda directory=directory: raw(directory, states),
            "at once": lambda directory=directory: ours(directory, states, 0),
            "buffer": lambda directory=directory: ours(directory, states, 2 * nbytes),
            "raw, durable": lambda directory=directory: raw(directory, states, synchronize=True),
            "durable": lambda directory=directory: ours(directory, states, 0, durable=True),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for turn in range(runs + 1):
            for k in range(len(calls)):
                name = list(calls)[(turn + k) % len(calls)]
                taken = calls[name]()
                if turn:
                    times[name].append(taken)
        title = f"{count} states of {nbytes / MIB:g} MiB in {directory}: MiB/s, and ratio to plain system calls"
        table = Table(title, ("ratio of paired runs",), "pwrite, pread")
        for side, what in enumerate(("write", "read")):
            seconds = {name: [pair[side] for pair in pairs] for name, pairs in times.items()}
            speed = {name: count * nbytes / MIB / statistics.median(s) for name, s in seconds.items()}
            for name, by_hand in (("at once", "raw"), ("buffer", "raw"), ("durable", "raw, durable")):
                # Speed, so the inverse ratio of times.
                found = ratio(seconds, by_hand, name)
                cells = [str(found)]
                limit = f"{speed[by_hand]:.0f}"
                # Memory that looks like a disk is as fast as a checksum: it shows what we cost, and has no bar.
                bar, met = ("", None) if directory == SHARED else ("0.90", found.median >= 0.9)
                table.add(f"{what}, {name}", f"{speed[name]:.0f}", cells, limit, bar, met)
        table.note("At once: no thread and no buffer. Buffer: two states, written behind and read ahead.")
        table.note("Durable: each state is on the disk before the next one; the others end in the page cache.")
        table.show()


# Small states.


def small_of(nbytes: int, cycles: int, runs: int) -> None:
    """Print the table of the time of a small state."""
    state = generator().standard_normal(nbytes // 8)
    for directory in directories():
        table = Table(f"A state of {nbytes / 2**10:g} KiB in {directory}: ms", ("durable",), "pwrite + pread")
        found: dict[str, float] = {}
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            others: dict[str, Any] = {
                "at once": Disk(directory),
                "buffer": Disk(directory, buffer=MIB),
                "durable": Disk(Path(directory) / f"ebbtide-bench-{os.getpid()}", durable=True),
            }

            def by_hand() -> None:
                os.pwrite(file.fileno(), state, 0)
                os.preadv(file.fileno(), [np.empty_like(state)], 0)

            def cycle(storage: Disk) -> None:
                storage.put(0, [state])
                storage.take(0)

            calls: dict[str, Callable[[], None]] = {
                name: lambda storage=storage: cycle(storage) for name, storage in others.items()
            }
            calls["by hand"] = by_hand
            for name, call in calls.items():
                repeated = cycles if name != "durable" else max(1, cycles // 20)
                times = alternate({name: lambda call=call, n=repeated: [call() for _ in range(n)]}, runs)
                found[name] = statistics.median(times[name]) / repeated * 1e3
            place = others["durable"].directory
            for storage in others.values():
                storage.close()
            for path in place.iterdir():
                path.unlink()
            place.rmdir()
        for name in ("at once", "buffer"):
            cells, limit = [f"{found['durable']:.3f}"], f"{found['by hand']:.3f}"
            table.add(f"put + take, {name}", f"{found[name]:.3f}", cells, limit, "0.200", found[name] <= 0.2)
        table.show()


# Hidden behind the work.


def throttled(speed: float) -> Any:
    """Return a system with a disk of so many bytes a second on average over a few steps; it sleeps meanwhile."""

    ready = [0.0]

    def wait(nbytes: int, start: float) -> None:
        ready[0] = max(ready[0], start - CREDIT) + nbytes / speed
        left = ready[0] - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def pwrite(descriptor: int, block: Any, offset: int) -> int:
        start = time.perf_counter()
        count = os.pwrite(descriptor, block, offset)
        wait(count, start)
        return count

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        start = time.perf_counter()
        count = os.preadv(descriptor, buffers, offset)
        wait(count, start)
        return count

    return replace(POSIX, pwrite=pwrite, preadv=preadv)


def hidden_of(nbytes: int, steps: int, seconds: float, speed: float, runs: int) -> None:
    """Print the table of a forward and a reverse sweep that store and take a state each step."""
    state = generator().standard_normal(nbytes // 8)
    work = generator(1).standard_normal(50_000)

    def step() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            np.sin(work)

    def alone() -> float:
        start = time.perf_counter()
        for _ in range(2 * steps):
            step()
        return time.perf_counter() - start

    # What is behind the throttle must be faster than it.
    directory = directories()[-1]

    def sweeps(buffer: int) -> float:
        with Disk(directory, buffer=buffer, system=throttled(speed)) as storage:
            storage.reserve(steps, entry_nbytes([state]))
            start = time.perf_counter()
            for k in range(steps):
                step()
                storage.put(k, [state])
            keys = range(steps - 1, -1, -1)
            storage.prefetch(keys)
            for k in keys:
                storage.get(k)
                step()
            return time.perf_counter() - start

    calls = {"alone": alone, "buffer": lambda: sweeps(2 * nbytes + MIB), "at once": lambda: sweeps(0)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            times[name].append(call())
    title = (
        f"{steps} steps of {seconds * 1e3:g} ms forward and back, each with {nbytes / MIB:g} MiB on a disk of "
        f"{speed / MIB:g} MiB/s: s"
    )
    table = Table(title, ("ratio",), "steps alone")
    for name, bar in (("buffer", 1.05), ("at once", None)):
        found = ratio(times, name, "alone")
        limit = f"{statistics.median(times['alone']):.3f}"
        met = None if bar is None else found.median <= bar
        cells = [str(found)]
        table.add(name, f"{statistics.median(times[name]):.3f}", cells, limit, "" if bar is None else f"{bar}", met)
    copy = np.empty_like(state)
    copying = alternate({"copy": lambda: np.copyto(copy, state)}, runs)
    milliseconds = median_of(copying, "copy", 1e3)
    table.note(f"What a step cannot hide is the copy of its state into the buffer: {milliseconds} ms.")
    table.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    large_of(*((MIB // 4, 2, 1) if quick else (LARGE, COUNT, RUNS)))
    small_of(SMALL, *((3, 1) if quick else (CYCLES, RUNS)))
    hidden_of(*((MIB // 8, 2, 0.001, SPEED, 1) if quick else (STATE, STEPS, STEP_SECONDS, SPEED, 3)))


if __name__ == "__main__":
    run(main)
