"""
Storage on a slow disk, hidden behind the work of a time loop.

Steps of 20 ms that each store 8 MiB on a disk of 400 MiB/s, which takes them 20 ms, take 1.05 of the steps alone with a
buffer, as with two buffers and a thread by hand; without a buffer about twice as long.
"""

from __future__ import annotations

import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench.measure import Table, alternate, generator, median_of, ratio, run
from bench.storage import MIB, PAGE, directories
from ebbtide.storage import Disk, entry_nbytes
from ebbtide.storage.checksum import extend_crc32c
from ebbtide.storage.system import POSIX, System

STATE, STEPS, STEP_SECONDS, SPEED, RUNS = 8 * MIB, 40, 0.020, 400 * MIB, 15
# A real disk goes on with what waits for it while the thread is late.
CREDIT = 0.003


def throttled(speed: float) -> System:
    """Return a system with a disk of so many bytes a second on average over a few steps; it sleeps meanwhile."""

    ready = [0.0]

    def wait(nbytes: int, start: float) -> None:
        ready[0] = max(ready[0], start - CREDIT) + nbytes / speed
        # Who changes a page of a file does not wait for the disk, which has it to write all the same.
        left = ready[0] - time.perf_counter()
        if left > 0 and nbytes > PAGE:
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


def ours(state: Any, steps: int, step: Callable[[], Any], speed: float, buffer: int) -> float:
    """Return the seconds of a forward and a reverse sweep that store and take a state each step."""
    # What is behind the throttle must be faster than it.
    with Disk(directories()[-1], buffer=buffer, system=throttled(speed)) as storage:
        storage.reserve(steps, entry_nbytes([state]))
        start = time.perf_counter()
        for k in range(steps):
            step()
            storage.put(k, [state])
        keys = range(steps - 1, -1, -1)
        storage.prefetch(keys)
        for k in keys:
            storage.take(k)
            step()
        return time.perf_counter() - start


def by_hand(state: Any, steps: int, step: Callable[[], Any], speed: float) -> float:
    """Return the same of two buffers and a thread that does nothing else, with checksums that nobody looks at."""
    system, content, count = throttled(speed), state.view(np.uint8), 2
    waiting: queue.Queue[Any] = queue.Queue()
    free: queue.Queue[Any] = queue.Queue()
    read: queue.Queue[Any] = queue.Queue()
    for _ in range(count):
        free.put(np.empty_like(content))

    with tempfile.NamedTemporaryFile(dir=directories()[-1]) as file:
        os.posix_fallocate(file.fileno(), 0, steps * content.nbytes)

        def work() -> None:
            while (item := waiting.get()) is not None:
                extend_crc32c(0, item[1])
                system.pwrite(file.fileno(), item[1], item[0] * content.nbytes)
                free.put(item[1])
            for k in range(steps - count - 1, -1, -1):
                free.get()
                buffer = np.empty_like(content)
                system.preadv(file.fileno(), [buffer], k * content.nbytes)
                extend_crc32c(0, buffer)
                read.put(buffer)

        thread = threading.Thread(target=work)
        thread.start()
        start = time.perf_counter()
        for k in range(steps):
            step()
            buffer = free.get()
            np.copyto(buffer, content)
            waiting.put((k, buffer))
        waiting.put(None)
        for k in range(steps):
            # The last states are still in their buffers.
            _ = content.copy() if k < count else read.get()
            if k >= count:
                free.put(None)
            step()
        seconds = time.perf_counter() - start
        thread.join()
        return seconds


def hidden_of(nbytes: int, steps: int, seconds: float, speed: float, runs: int) -> None:
    """Print the table."""
    state = generator().standard_normal(nbytes // 8)
    numbers = generator(1).standard_normal(50_000)

    # A fixed amount of work: one that watched the clock would hide what the thread takes from it.
    def step() -> None:
        for _ in range(pieces):
            np.sin(numbers)

    def alone() -> float:
        start = time.perf_counter()
        for _ in range(2 * steps):
            step()
        return time.perf_counter() - start

    calls = {
        "alone": alone,
        "buffer": lambda: ours(state, steps, step, speed, 2 * nbytes + MIB),
        "at once": lambda: ours(state, steps, step, speed, 0),
        "by hand": lambda: by_hand(state, steps, step, speed),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs):
        # By the quickest of many, and anew each time: a step that is shorter than its transfer could not hide it, and
        # the speed of a processor changes by a tenth.
        pieces = 40
        pieces = max(1, round(pieces * seconds / min(alternate({"": step}, 40)[""])))
        for k in range(len(calls)):
            name = list(calls)[(turn + k) % len(calls)]
            times[name].append(calls[name]())
    title = (
        f"{steps} steps of {seconds * 1e3:g} ms forward and back, each with {nbytes / MIB:g} MiB on a disk of "
        f"{speed / MIB:g} MiB/s: s"
    )
    table = Table(title, ("ratio to the steps alone", "two buffers by hand"), "steps alone")
    for name, bar in (("buffer", 1.05), ("at once", None)):
        found = ratio(times, name, "alone")
        limit = f"{statistics.median(times['alone']):.3f}"
        met = None if bar is None else found.median <= bar
        cells = [str(found), str(ratio(times, "by hand", "alone")) if bar else ""]
        table.add(name, f"{statistics.median(times[name]):.3f}", cells, limit, "" if bar is None else f"{bar}", met)
    copy = np.empty_like(state)
    copying = alternate({"copy": lambda: np.copyto(copy, state)}, runs)
    milliseconds = median_of(copying, "copy", 1e3)
    table.note(f"What a step cannot hide is the copy of its state into the buffer: {milliseconds} ms.")
    table.show()


def main(quick: bool = False) -> None:
    """Print the table."""
    hidden_of(*((MIB // 8, 4, 0.001, SPEED, 1) if quick else (STATE, STEPS, STEP_SECONDS, SPEED, RUNS)))


if __name__ == "__main__":
    run(main)
