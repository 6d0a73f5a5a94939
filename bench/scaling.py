"""
Strong scaling: the gradient of the demo's 2-D Burgers on one and on two ranks, and how much of the I/O is hidden.

Two cores share caches and memory: two processes that have nothing to do with each other are not twice as fast as one.
They are the limit: two processes, each with one half of the problem and without a message, as they gain on one process
with the whole. The speed-up of two ranks beside this gain is what the communication costs; bar: 0.93 of it. malloc is
told to keep what it has, as fresh pages take a quarter of the time, and now and then a second. With states on a disk,
what is hidden is the part of the time that the disk adds where each transfer is waited for, and not where it goes on
behind the steps. The disk is throttled, as what goes to the page cache is a copy, which needs the core of the steps.

`mpiexec -n 2` starts this module again, for the measurement.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np

from bench.hidden import throttled
from bench.measure import MISSING, ROOT, Table, installed, run
from bench.storage import MIB
from ebbtide import Budget, value_and_grad
from ebbtide.demo import burgers
from ebbtide.demo.decomposition import Decomposition, Silent, Window
from ebbtide.schedules import Revolve, StoreAll
from ebbtide.storage import Disk

NODES, STEPS, RUNS = 1601, 6, 21
DISK_STEPS, DISK_RUNS = 12, 3
# How many states the budget has, and how much of a plain step the transfer of one takes on the throttled disk.
STATES, SHARE = 16, 0.8
BAR = 0.93
# glibc's: no array is mapped apart, and nothing is given back.
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


@final
class Apart(Silent):
    """The parts of another decomposition without its messages: what each rank computes, and not the right numbers."""

    def __init__(self, other: Decomposition) -> None:
        self.other = other

    @property
    def ranks(self) -> tuple[int, ...]:
        """See `Decomposition.ranks`."""
        return self.other.ranks

    @property
    def speaks(self) -> bool:
        """See `Decomposition.speaks`."""
        return self.other.speaks

    def window(self, nodes: int) -> Window:
        """See `Decomposition.window`."""
        return self.other.window(nodes)

    def own(self, nodes: int) -> Window:
        """See `Decomposition.own`."""
        return self.other.own(nodes)


def gradient(problem: burgers.Problem, budget: Budget | None = None, **loop: Any) -> Callable[[], Any]:
    """Return a call that takes the gradient of the demo's misfit; the observations are of no matter to the time."""
    guess, observed = burgers.guess(problem), burgers.vortices(problem, burgers.TRUE_VORTICES)

    def misfit(initial: Any, viscosity: Any) -> Any:
        return burgers.misfit(initial, viscosity, observed, problem, **loop)

    def call() -> Any:
        with problem.decomposition.run():
            return value_and_grad(misfit, (0, 1), budget=budget)(guess, problem.viscosity)

    return call


def timed(world: Any, calls: dict[str, tuple[int, Callable[[], Any]]], runs: int) -> dict[str, list[float]]:
    """Return the seconds of calls in turns, each on so many ranks at once, until the last of them is done."""
    from ebbtide.mpi.waiting import wait

    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(runs + 1):
        for k in range(len(names)):
            name = names[(turn + k) % len(names)]
            ranks, call = calls[name]
            wait([world.Ibarrier()])  # asleep, not in a loop: the others have the cores
            start = time.perf_counter()
            if world.rank < ranks:
                call()
            wait([world.Ibarrier()])
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
    return times


def speed(world: Any, problem: burgers.Problem, runs: int) -> dict[str, list[float]]:
    """Return the seconds of one process, of two that are alone with a half each, and of two ranks."""
    whole = burgers.Problem(problem.nodes, problem.steps)
    halves = burgers.Problem(problem.nodes, problem.steps, Apart(problem.decomposition))
    calls = {
        "one process": (1, gradient(whole, schedule=StoreAll())),
        "halves without messages": (2, gradient(halves, schedule=StoreAll())),
        "two ranks": (2, gradient(problem, schedule=StoreAll())),
    }
    return timed(world, calls, runs)


def disk(world: Any, problem: burgers.Problem, runs: int) -> dict[str, list[float]]:
    """Return the seconds of two ranks with all states in memory, and on a disk with and without a buffer."""
    guess = burgers.guess(problem)
    start = time.perf_counter()
    for _ in range(2):
        burgers.step(problem.decomposition.update(guess), problem.viscosity, problem.spacing, problem.time_step)
    rate = guess.nbytes / (SHARE * problem.decomposition.largest((time.perf_counter() - start) / 2))
    schedule = Revolve(problem.steps)
    budget = Budget(memory=STATES * guess.nbytes, disk=(problem.steps + 2) * guess.nbytes)

    def on_disk(buffer: int) -> Any:
        with tempfile.TemporaryDirectory() as place, Disk(place, buffer=buffer, system=throttled(rate)) as storage:
            return gradient(problem, budget, schedule=schedule, storage=storage)()

    calls = {
        "memory": (2, gradient(problem, schedule=schedule)),
        "at once": (2, lambda: on_disk(0)),
        "buffer": (2, lambda: on_disk(2 * guess.nbytes + MIB)),
    }
    return timed(world, calls, runs)


def on_ranks(what: str, nodes: int, steps: int, runs: int) -> None:
    """Measure on the ranks of this run, and print the times of the first one."""
    from mpi4py import MPI

    from ebbtide.demo.cartesian import Cartesian

    world = MPI.COMM_WORLD
    decomposition = Cartesian(world.Create_cart([world.size, 1]))
    problem = burgers.Problem(nodes, steps, decomposition)
    found = {"speed": speed, "disk": disk}[what](world, problem, runs)
    if world.rank == 0:
        print(json.dumps(found), flush=True)


def started(what: str, nodes: int, steps: int, runs: int) -> dict[str, list[float]] | None:
    """Return what two ranks measure, in processes of their own; None without mpi4py."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not installed("mpi4py") or not mpiexec.exists():
        return None
    command = [str(mpiexec), "-n", "2", sys.executable, "-m", "bench.scaling", "ranks", what]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, **KEEPING, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    sizes = [str(nodes), str(steps), str(runs)]
    done = subprocess.run([*command, *sizes], env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def relative(top: list[float], bottom: list[float]) -> tuple[float, str]:
    """Return the median of the ratios of turns, and a text with their quartiles."""
    ratios = [a / b for a, b in zip(top, bottom, strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(middle), f"{middle:.3f} ({low:.3f} to {high:.3f})"


def show_speed(nodes: int, steps: int, runs: int) -> None:
    """Print the table of the speed-up."""
    title = f"Gradient of {steps} steps of 2-D Burgers, {nodes} x {nodes} nodes: speed-up over one process"
    table = Table(title, ("of the limit",), "halves without messages")
    times = started("speed", nodes, steps, runs)
    if times is None:
        table.add("two ranks", MISSING, [MISSING], "", f"{BAR}", None)
        table.show()
        return
    one, apart, together = times["one process"], times["halves without messages"], times["two ranks"]
    share, text = relative(apart, together)
    table.add("two ranks", relative(one, together)[1], [text], relative(one, apart)[1], f"{BAR}", share >= BAR)
    seconds = ", ".join([f"{name} {statistics.median(found):.2f}" for name, found in times.items()])
    table.note(f"Medians of {runs} paired turns, and quartiles. Seconds, medians: {seconds}.")
    table.show()


def show_disk(nodes: int, steps: int, runs: int) -> None:
    """Print the table of the disk."""
    title = f"Gradient of {steps} steps on two ranks in {STATES} states of memory, snapshots on throttled disks: s"
    table = Table(title, ("each transfer waited for",), "in memory")
    times = started("disk", nodes, steps, runs)
    if times is None:
        table.add("behind the steps", MISSING, [MISSING], "", "", None)
        table.show()
        return
    memory, waited, buffer = (statistics.median(times[name]) for name in ("memory", "at once", "buffer"))
    table.add("behind the steps", f"{buffer:.3f}", [f"{waited:.3f}"], f"{memory:.3f}", "", None)
    added = waited - memory
    hidden = (waited - buffer) / added
    table.note(f"Hidden: {hidden:.2f} of the {added:.2f} s that the disk adds where it is waited for.")
    table.show()


def main(*, quick: bool = False) -> None:
    """Print the tables; in a tiny size one turn of each."""
    nodes, steps, runs = (21, 2, 1) if quick else (NODES, STEPS, RUNS)
    show_speed(nodes, steps, runs)
    if not quick:
        show_disk(nodes, DISK_STEPS, DISK_RUNS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ranks"]:
        on_ranks(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        run(main)
