"""
Storage on disk beside raw system calls.

States of 32 MiB are written and read by 0.9 of the speed of plain pwrite and pread on a preallocated file, with all
checksums. A state of 8 KiB is put and taken back in 0.2 ms.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import google_crc32c
import numpy as np

from bench.measure import MISSING, Table, alternate, generator, ratio, run
from ebbtide.storage import Disk, entry_nbytes
from ebbtide.storage.checksum import begin_checksums, compiled, extend_crc32c
from ebbtide.storage.transfer import BESIDE_BLOCK

MIB = 2**20
LARGE, COUNT, RUNS = 32 * MIB, 6, 9
BLOCK = MIB
SMALL, CYCLES = 8 * 2**10, 200
PAGE = 4096
MARK = 64
SHARED = Path("/dev/shm")


def directories() -> list[Path]:
    """Return where to measure: the directory for temporary files, and memory that looks like a disk."""
    found = [Path(tempfile.gettempdir())]
    if SHARED.is_dir() and os.access(SHARED, os.W_OK):
        found.append(SHARED)
    return found


# Large states.

PASSES = ("new", "again")
# Plain calls that lie as in memory, and with checksums in two ways.
CONTROLS = ("shifted", "in turn", "beside")
Times = dict[str, list[float]]


@final
@dataclass(frozen=True)
class Way:
    """How the state of a number is written and read."""

    write: Callable[[int], Any]
    read: Callable[[int], Any]


def by_hand(stack: ExitStack, directory: Path, states: list[Any], how: str = "", *, durable: bool = False) -> Way:
    """
    Return plain system calls on a preallocated file.

    Args:
        stack: Closes the file.
        directory: Where.
        states: What is written.
        how: "" for states that begin with a page, without checksums; "shifted": states that begin as many bytes after
            a multiple of 64 as in memory, without checksums; "in turn": with the checksum of each block before it is
            written; "beside": by a second thread, each block when it is written.
        durable: Whether to have each state on the disk before the next one, and to mark one that was read as gone
            there, so that it is not found again.
    """
    nbytes = states[0].nbytes
    block = {"in turn": BLOCK, "beside": BESIDE_BLOCK}.get(how, nbytes)
    file = tempfile.NamedTemporaryFile(dir=directory)  # noqa: SIM115 - the stack closes it
    descriptor = stack.enter_context(file).fileno()
    os.posix_fallocate(descriptor, 0, (nbytes + PAGE) * len(states))

    def offset_of(k: int) -> int:
        return k * (nbytes + PAGE) + (states[k].ctypes.data % 64 if how == "shifted" else 0)

    def write(k: int) -> None:
        content, checksum = states[k].view(np.uint8), 0
        with (how == "beside" and begin_checksums([content])) or nullcontext() as beside:
            for start in range(0, nbytes, block):
                part = content[start : start + block]
                checksum = extend_crc32c(checksum, part) if how == "in turn" else 0
                if beside is not None:
                    beside.begin(part.size)
                os.pwrite(descriptor, part, offset_of(k) + start)
            _ = None if beside is None else beside.wait()
        if durable:
            os.fdatasync(descriptor)

    def read(k: int) -> None:
        content, checksum = np.empty(nbytes, np.uint8), 0
        for start in range(0, nbytes, block):
            part = content[start : start + block]
            os.preadv(descriptor, [part], offset_of(k) + start)
            checksum = extend_crc32c(checksum, part) if how in {"in turn", "beside"} else 0
        if durable:
            os.pwrite(descriptor, bytes(MARK), offset_of(k))
            os.fdatasync(descriptor)

    return Way(write, read)


def ours(stack: ExitStack, directory: Path, states: list[Any], buffer: int = 0, *, durable: bool = False) -> Way:
    """Return the calls of a storage with reserved room: what it takes back is put once more."""
    own = stack.enter_context(tempfile.TemporaryDirectory(dir=directory))
    storage = stack.enter_context(Disk(own, buffer=buffer, durable=durable))
    storage.reserve(len(states), entry_nbytes(states[:1]))
    last = len(states) - 1

    def write(k: int) -> None:
        storage.put(k, [states[k]])
        if k == last:
            storage.flush()

    def read(k: int) -> None:
        if k == last:
            storage.prefetch(range(last, -1, -1))
        storage.take(k)

    return Way(write, read)


def have_pages(nbytes: int) -> None:
    """
    Have the system find pages, and give them back.

    A virtual machine gets them from its host when they are first touched, which takes 70 ms for 32 MiB that are read in
    8: whoever came first would pay for all.
    """
    np.ones(nbytes, np.uint8)


def timed(made: Mapping[str, Callable[[ExitStack], Way]], count: int, nbytes: int, turn: int) -> dict[str, Times]:
    """
    Return the seconds of writing states and reading them in reverse order, twice: first to new places.

    The ways take turns with each state.
    """
    found: dict[str, Times] = {}
    names = list(made)
    with ExitStack() as stack:
        have_pages((count + 4) * nbytes * len(names))
        ways = {name: make(stack) for name, make in made.items()}
        for name in PASSES:
            for side in ("write", "read"):
                times = found[f"{side}, {name}"] = {way: [] for way in names}
                have_pages(4 * nbytes)
                for k in range(count) if side == "write" else range(count - 1, -1, -1):
                    for place in range(len(names)):
                        way = names[(turn + k + place) % len(names)]
                        start = time.perf_counter()
                        getattr(ways[way], side)(k)
                        times[way].append(time.perf_counter() - start)
    return found


def sweeps_of(made: Mapping[str, Callable[[ExitStack], Way]], count: int, nbytes: int, turn: int) -> dict[str, Times]:
    """
    Return the same for whole sweeps of one way after the other: what is done later has to end, too.

    Each way goes twice, and the second time counts: a thread that reads ahead takes pages that another core gave back,
    and those that nobody had touched yet are the host's (0.2 of the speed), however many the others have found.
    """
    found: dict[str, Times] = {}
    names = list(made)
    for place in range(len(names)):
        name = names[(turn + place) % len(names)]
        timed({name: made[name]}, count, nbytes, 0)
        for what, times in timed({name: made[name]}, count, nbytes, 0).items():
            found.setdefault(what, {})[name] = [sum(times[name])]
    return found


def large_of(nbytes: int, count: int, runs: int) -> None:
    """Print the tables of bandwidth."""
    states = [generator(k).standard_normal(nbytes // 8) for k in range(count)]
    for directory in directories():
        raw = {"raw": lambda stack, d=directory: by_hand(stack, d, states)}
        controls = {name: lambda stack, d=directory, n=name: by_hand(stack, d, states, n) for name in CONTROLS}
        alone = {**raw, **controls, "at once": lambda stack, d=directory: ours(stack, d, states)}
        later = {**raw, **controls, "buffer": lambda stack, d=directory: ours(stack, d, states, 2 * nbytes)}
        synchronized = {
            "raw": lambda stack, d=directory: by_hand(stack, d, states, durable=True),
            "durable": lambda stack, d=directory: ours(stack, d, states, durable=True),
        }
        title = f"{count} states of {nbytes / MIB:g} MiB in {directory}: MiB/s"
        heads = ("ratio to plain calls", *(f"plain calls, {name}" for name in CONTROLS))
        table = Table(title, heads, "pwrite, pread")
        for name, made, measure in (
            ("at once", alone, timed), ("buffer", later, sweeps_of), ("durable", synchronized, timed)
        ):  # fmt: skip
            found: dict[str, Times] = {}
            for turn in range(runs + 1):
                for what, times in measure(made, count, nbytes, turn).items():
                    for way, seconds in times.items() if turn else ():
                        found.setdefault(what, {}).setdefault(way, []).extend(seconds)
            for what, times in found.items():
                states_each = count if measure is sweeps_of else 1
                speed = {way: states_each * nbytes / MIB / statistics.median(s) for way, s in times.items()}
                # Speed, so the inverse ratio of times.
                reached = ratio(times, "raw", name)
                cells = [str(reached), *[str(ratio(times, "raw", one)) if one in times else "" for one in CONTROLS]]
                # Memory that looks like a disk is as fast as a checksum: it shows what we cost, and has no bar.
                bar, met = ("", None) if directory == SHARED else ("0.90", reached.median >= 0.9)
                table.add(f"{what}, {name}", f"{speed[name]:.0f}", cells, f"{speed['raw']:.0f}", bar, met)
        table.note("New: pages of a preallocated file that are written for the first time. Again: of the cache.")
        table.note("At once: no buffer. Buffer: two states, written behind and read ahead, in sweeps of their own.")
        table.note("Shifted: as many bytes after a multiple of 64 as in memory, as ours; the limit of plain calls.")
        table.note("In turn: checksums of each block before it is written. Beside: by a second thread meanwhile.")
        table.note("Reads: both in turn.")
        table.note(
            "Durable: each state is on the disk before the next one, and gone from there once it is taken back, by "
            "plain calls, too; the others end in the page cache."
        )
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


def main(quick: bool = False) -> None:
    """Print the tables."""
    large_of(*((MIB // 4, 2, 1) if quick else (LARGE, COUNT, RUNS)))
    checksums_of((4 * 2**10, 2**18, LARGE), *((MIB, 1) if quick else (2 * LARGE, RUNS)))
    small_of(SMALL, *((3, 1) if quick else (CYCLES, RUNS)))


if __name__ == "__main__":
    run(main)
