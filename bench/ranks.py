"""
Storage of many ranks: each state written and read back by `Disk(comm=)`, beside np.save / np.load and h5py.

With a file for each rank a state takes no more than 1.3 of the time of np.save and np.load, also where the cores have
other work. One file for the ranks of a node, or for all, takes the same: its parts are written and read without a word
between the ranks. h5py opens its file for each state, as a library that keeps no file open does.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import MISSING, ROOT, Table, generator, installed, run
from ebbtide.storage import Disk

SIZES = (323_208, 3_232_080)
COUNT, RUNS = 10, 7
RANKS = (1, 2, 4)
WAYS = ("rank", "node", "world", "np.save", "h5py")
BAR = 1.3

Pair = tuple[Callable[[int, Any], None], Callable[[int], Any]]


def ways(directory: Path, stack: ExitStack) -> dict[str, Pair]:
    """Return for each way how a state is written and how it is read and forgotten."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    mine = Path(tempfile.mkdtemp(dir=directory))
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    found: dict[str, Pair] = {}
    for name, comm in (("rank", MPI.COMM_SELF), ("node", node), ("world", world)):
        storage = stack.enter_context(Disk(directory, comm=comm))
        found[name] = (lambda k, state, s=storage: s.put(k, [state])), (lambda k, s=storage: s.take(k)[0])

    def save(k: int, state: Any) -> None:
        np.save(mine / f"{k}.npy", state)

    def load(k: int) -> Any:
        state = np.load(path := mine / f"{k}.npy")
        path.unlink()  # as the storages forget what is taken; a file that is written anew takes twice the time
        return state

    found["np.save"] = save, load
    if installed("h5py"):
        h5py = importlib.import_module("h5py")

        def write(k: int, state: Any) -> None:
            with h5py.File(mine / "states.h5", "a") as file:
                if str(k) in file:
                    file[str(k)][...] = state
                else:
                    file[str(k)] = state

        def read(k: int) -> Any:
            with h5py.File(mine / "states.h5", "r") as file:
                return file[str(k)][...]

        found["h5py"] = write, read
    return found


def work(*, directory: str, size: int, count: int, runs: int) -> dict[str, list[list[float]]]:
    """Return for each way the seconds of writing and of reading a state, of each run; on all ranks at the same time."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    state = generator(world.rank).standard_normal(size // 8)
    times: dict[str, list[list[float]]] = {}
    with ExitStack() as stack:
        pairs = ways(Path(directory), stack)
        names = list(pairs)
        for turn in range(runs + 1):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                write, read = pairs[name]
                world.Barrier()
                start = time.perf_counter()
                for k in range(count):
                    write(k, state)
                middle = time.perf_counter()
                for k in reversed(range(count)):
                    assert read(k)[-1] == state[-1]
                end = time.perf_counter()
                if turn:  # the first one makes the files
                    times.setdefault(name, []).append([(middle - start) / count, (end - middle) / count])
        world.Barrier()
    return times


def on_ranks(ranks: int, size: int, count: int, runs: int) -> list[dict[str, Any]]:
    """Return what each of so many ranks measures."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    with tempfile.TemporaryDirectory() as directory:
        given = json.dumps({"directory": directory, "size": size, "count": count, "runs": runs})
        command = [str(mpiexec), "-n", str(ranks), sys.executable, "-m", "bench.ranks", "--work", given]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
        done = subprocess.run(command, env=os.environ | single, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def shown(found: list[dict[str, Any]], name: str) -> str:
    """Return the milliseconds of a write and a read: medians over the runs of all ranks."""
    if name not in found[0]:
        return MISSING
    write, read = np.median([pair for rank in found for pair in rank[name]], axis=0) * 1e3
    return f"{write:.2f} + {read:.2f}"


def against_files(found: list[dict[str, Any]], name: str) -> float:
    """Return the ratio to np.save and np.load, write and read together: the median over paired runs of all ranks."""
    pairs = [zip(rank[name], rank["np.save"], strict=True) for rank in found]
    return statistics.median(sum(ours) / sum(theirs) for rank in pairs for ours, theirs in rank)


def main(*, quick: bool = False) -> None:
    """Print the tables, on idle and on busy cores."""
    table = Table("A state written + read by each rank, ms", ("per node", "one file", "h5py"), "np.save + np.load")
    ratios: list[str] = []
    cores = os.cpu_count() or 1
    if not installed("mpi4py"):
        table.note(f"mpi4py: {MISSING}")
    for busy in ((False,) if quick else (False, True)) * installed("mpi4py"):
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores * busy)]
        try:
            for size in SIZES if not quick else SIZES[:1]:
                for ranks in RANKS if not quick else RANKS[1:2]:
                    found = on_ranks(ranks, size, *((COUNT, RUNS) if not quick else (2, 1)))
                    case = f"{size // 1000} kB, {ranks} ranks{', busy cores' * busy}"
                    ratio = against_files(found, "rank")
                    others = [shown(found, name) for name in ("node", "world", "h5py")]
                    table.add(case, shown(found, "rank"), others, shown(found, "np.save"), f"{BAR}x", ratio <= BAR)
                    ratios.append(f"{case}: " + ", ".join(f"{n} {against_files(found, n):.2f}" for n in WAYS[:3]))
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
    table.note("Ratio to np.save + np.load, medians of paired runs: " + "; ".join(ratios) + ".")
    table.show()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        sys.stdout.write(json.dumps(work(**json.loads(sys.argv[2]))) + "\n")
        sys.stdout.flush()
    else:
        run(main)
