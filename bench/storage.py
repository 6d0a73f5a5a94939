"""
Storage on disk beside raw system calls, and hidden behind the work of a time loop.

States of 32 MiB are written and read by 0.9 of the speed of plain pwrite and pread on a preallocated file, with all
checksums; copied into the page cache again, by what plain calls reach there with checksums, which have to read what is
written and stand beside. A state of 8 KiB is put and taken back in 0.2 ms. Steps of 20 ms that each store 8 MiB on a
disk of 400 MiB/s take 1.05 of the steps alone with a buffer; without one they take about twice as long.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from bench.measure import MISSING, Table, alternate, generator, median_of, ratio, run
from ebbtide.storage import Disk, entry_nbytes
from ebbtide.storage.checksum import begin_checksums, compiled, extend_crc32c
from ebbtide.storage.system import POSIX
from ebbtide.storage.transfer import BESIDE_BLOCK

MIB = 2**20
LARGE, COUNT, RUNS = 32 * MIB, 12, 9
BLOCK = MIB
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

Speeds = dict[str, float]
PASSES = ("new", "again")
# Plain calls with checksums, in two ways; without them, but each block is looked at before it is written; and without
# them while the other core has something else to do.
CONTROLS = ("in turn", "beside", "looked at", "elsewhere")


def timed(states: list[Any], write: Callable[[int], Any], read: Callable[[int], Any], storage: Any = None) -> Speeds:
    """Return the seconds of writing and reading states, in reverse order, twice: the second time to the same places."""
    found: Speeds = {}
    count, nbytes = len(states), states[0].nbytes
    for name in PASSES:
        have_pages((count + 4) * nbytes if name == PASSES[0] else 4 * nbytes)
        start = time.perf_counter()
        for k in range(count):
            write(k)
        if storage is not None:
            storage.flush()
        middle = time.perf_counter()
        have_pages(4 * nbytes)
        begun = time.perf_counter()
        if storage is not None:
            storage.prefetch(range(count - 1, -1, -1))
        for k in range(count - 1, -1, -1):
            read(k)
        found[f"write, {name}"], found[f"read, {name}"] = middle - start, time.perf_counter() - begun
    return found


def have_pages(nbytes: int) -> None:
    """
    Have the system find pages, and give them back.

    A virtual machine gets them from its host when they are first touched, which takes 70 ms for 32 MiB that are read in
    8: whoever came first would pay for all.
    """
    np.ones(nbytes, np.uint8)


def by_hand(directory: Path, states: list[Any], checksums: str = "", *, synchronize: bool = False) -> Speeds:
    """
    Return the seconds of plain system calls on a preallocated file.

    Args:
        directory: Where.
        states: What is written.
        checksums: "" for none; "in turn": of a block before it is written; "beside": by a second thread, each block
            when it is written; "looked at": none, but the largest byte of a block before it is written, which is what
            any checksum in turn has to read; "elsewhere": for all the time of a block in the cache of the other core,
            which is what a busy core costs, whatever it does.
        synchronize: Whether to have each state on the disk before the next one.
    """
    nbytes = states[0].nbytes
    block = {"in turn": BLOCK, "looked at": BLOCK, "beside": BESIDE_BLOCK}.get(checksums, nbytes)
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, nbytes * len(states))

        def write(k: int) -> None:
            content, checksum = states[k].view(np.uint8), 0
            with (checksums == "beside" and begin_checksums([content])) or nullcontext() as beside:
                for start in range(0, nbytes, block):
                    part = content[start : start + block]
                    checksum = extend_crc32c(checksum, part) if checksums == "in turn" else 0
                    _ = part.max() if checksums == "looked at" else 0
                    if beside is not None:
                        beside.begin(part.size)
                    os.pwrite(descriptor, part, k * nbytes + start)
                _ = None if beside is None else beside.wait()
            if synchronize:
                os.fdatasync(descriptor)

        def read(k: int) -> None:
            content, checksum = np.empty(nbytes, np.uint8), 0
            for start in range(0, nbytes, block):
                part = content[start : start + block]
                os.preadv(descriptor, [part], k * nbytes + start)
                checksum = extend_crc32c(checksum, part) if checksums == "in turn" else 0
                _ = part.max() if checksums == "looked at" else 0
            _ = extend_crc32c(0, content) if checksums == "beside" else 0

        with busy_core() if checksums == "elsewhere" else nullcontext():
            return timed(states, write, read)


@contextmanager
def busy_core() -> Iterator[None]:
    """Have a thread take checksums of a block that stays in its cache as long as the block runs."""
    over, content = threading.Event(), np.ones(BLOCK // 4, np.uint8)

    def work() -> None:
        while not over.is_set():
            extend_crc32c(0, content)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ours(directory: Path, states: list[Any], buffer: int, durable: bool = False) -> Speeds:
    """Return the seconds of putting states and taking them in reverse order; room is reserved, as in `by_hand`."""
    with tempfile.TemporaryDirectory(dir=directory) as own, Disk(own, buffer=buffer, durable=durable) as storage:
        storage.reserve(len(states), entry_nbytes(states[:1]))
        return timed(states, lambda k: storage.put(k, [states[k]]), storage.take, storage)


def large_of(nbytes: int, count: int, runs: int) -> None:
    """Print the tables of bandwidth."""
    states = [generator(k).standard_normal(nbytes // 8) for k in range(count)]
    for directory in directories():
        calls: dict[str, Callable[[], Speeds]] = {
            "raw": lambda d=directory: by_hand(d, states),
            "in turn": lambda d=directory: by_hand(d, states, "in turn"),
            "beside": lambda d=directory: by_hand(d, states, "beside"),
            "looked at": lambda d=directory: by_hand(d, states, "looked at"),
            "elsewhere": lambda d=directory: by_hand(d, states, "elsewhere"),
            "at once": lambda d=directory: ours(d, states, 0),
            "buffer": lambda d=directory: ours(d, states, 2 * nbytes),
            "raw, durable": lambda d=directory: by_hand(d, states, synchronize=True),
            "durable": lambda d=directory: ours(d, states, 0, durable=True),
        }
        found: dict[str, list[Speeds]] = {name: [] for name in calls}
        for turn in range(runs + 1):
            for k in range(len(calls)):
                name = list(calls)[(turn + k) % len(calls)]
                taken = calls[name]()
                if turn:
                    found[name].append(taken)
        title = f"{count} states of {nbytes / MIB:g} MiB in {directory}: MiB/s"
        heads = ("ratio to plain calls", *(f"plain calls, {name}" for name in CONTROLS))
        table = Table(title, heads, "pwrite, pread")
        for what in [f"{side}, {name}" for name in PASSES for side in ("write", "read")]:
            seconds = {name: [times[what] for times in runs_of] for name, runs_of in found.items()}
            speed = {name: count * nbytes / MIB / statistics.median(s) for name, s in seconds.items()}
            for name, limit in (("at once", "raw"), ("buffer", "raw"), ("durable", "raw, durable")):
                # Speed, so the inverse ratio of times.
                reached = ratio(seconds, limit, name)
                controls = [str(ratio(seconds, limit, one)) if name != "durable" else "" for one in CONTROLS]
                cells = [str(reached), *controls]
                # Memory that looks like a disk is as fast as a checksum: it shows what we cost, and has no bar.
                bar, met = ("", None) if directory == SHARED else ("0.90", reached.median >= 0.9)
                table.add(f"{what}, {name}", f"{speed[name]:.0f}", cells, f"{speed[limit]:.0f}", bar, met)
        table.note("New: pages of a preallocated file that are written for the first time. Again: of the cache.")
        table.note("At once: no thread and no buffer. Buffer: two states, written behind and read ahead.")
        table.note("In turn: checksums of each block before it is written. Beside: by a second thread meanwhile.")
        table.note("The better of these two is the limit of what has checksums, whoever writes it.")
        table.note("Looked at: none, but each block is read once before it is written, and once after it was read.")
        table.note("Elsewhere: none, but the other core is busy in its own cache: what two busy cores cost each other.")
        table.note("Durable: each state is on the disk before the next one; the others end in the page cache.")
        table.show()


def checksums_of(sizes: tuple[int, ...], nbytes: int, runs: int) -> None:
    """Print the table of checksums alone, of blocks that are read again and again, *nbytes* in all."""
    table = Table("Checksums, of what was just read: GB/s", ("256 bits", "google-crc32c"), "reading: the largest byte")
    for size in sizes:
        content = np.frombuffer(generator().bytes(size), np.uint8)
        ways: dict[str, Callable[[], Any]] = {
            "": lambda content=content: extend_crc32c(0, content),
            "google": lambda content=content: google_crc32c.extend(0, content),
            "limit": content.max,
        }
        if compiled is not None:
            ways["narrow"] = lambda content=content, extend=compiled.extend: extend(0, content, is_wide=False)
        repeats = max(1, nbytes // size)
        calls = {name: lambda way=way, n=repeats: [way() for _ in range(n)] for name, way in ways.items()}
        times = {name: statistics.median(found) for name, found in alternate(calls, runs).items()}
        speed = {name: f"{repeats * size / 1e9 / seconds:.1f}" for name, seconds in times.items()}
        cells = [speed.get("narrow", MISSING), speed["google"]]
        table.add(f"{size / 2**10:g} KiB", speed[""], cells, speed["limit"], "", None)
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

            def plain() -> None:
                os.pwrite(file.fileno(), state, 0)
                os.preadv(file.fileno(), [np.empty_like(state)], 0)

            def cycle(storage: Disk) -> None:
                storage.put(0, [state])
                storage.take(0)

            calls: dict[str, Callable[[], None]] = {
                name: lambda storage=storage: cycle(storage) for name, storage in others.items()
            }
            calls["by hand"] = plain
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

    # A fixed amount of work: one that watched the clock would hide what the thread takes from it.
    # By the quickest piece, as a step that is shorter than its transfer could not hide it.
    piece = min(alternate({"": lambda: np.sin(work)}, 200)[""])
    pieces = max(1, round(seconds / piece))

    def step() -> None:
        for _ in range(pieces):
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
                storage.take(k)
                step()
            return time.perf_counter() - start

    calls = {"alone": alone, "buffer": lambda: sweeps(2 * nbytes + MIB), "at once": lambda: sweeps(0)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs):
        for k in range(len(calls)):
            name = list(calls)[(turn + k) % len(calls)]
            times[name].append(calls[name]())
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
    checksums_of((4 * 2**10, 2**18, LARGE), *((MIB, 1) if quick else (2 * LARGE, RUNS)))
    small_of(SMALL, *((3, 1) if quick else (CYCLES, RUNS)))
    hidden_of(*((MIB // 8, 2, 0.001, SPEED, 1) if quick else (STATE, STEPS, STEP_SECONDS, SPEED, RUNS)))


if __name__ == "__main__":
    run(main)
