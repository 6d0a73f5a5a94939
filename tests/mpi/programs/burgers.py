"""
The demo on ranks, and its gradient beside that of one process; started by `mpiexec` from test_demo.py.

First on one, two or four ranks, with the number of the write at which the last of them is killed; then on four, which
go on with all of that.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from tests.scale import FULL

import ebbtide as eb
from ebbtide import cli, mpi
from ebbtide.demo import burgers
from ebbtide.demo.cartesian import Cartesian
from ebbtide.mpi.waiting import wait
from ebbtide.schedules import Mixed, Revolve
from ebbtide.storage import Disk, Memory
from ebbtide.storage.system import POSIX, System

NODES, STEPS, PLACE = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
PICTURE = PLACE / "memory.png"
FATAL_WRITE = int(sys.argv[4]) if len(sys.argv) > 4 else 0
WORLD = MPI.COMM_WORLD


def gradient(problem: burgers.Problem, budget: Any = None, **loop: Any) -> Any:
    """Return value and gradient of the demo's misfit, within a budget or with arguments of the time loop."""
    observed = burgers.observations(problem)
    f = eb.value_and_grad(lambda u, nu: burgers.misfit(u, nu, observed, problem, **loop), (0, 1), budget=budget)
    value, (by_initial, by_viscosity) = f(burgers.guess(problem), problem.viscosity)
    return float(value), by_initial, float(by_viscosity)


def apart(found: Any, expected: Any) -> float:
    """Return the largest relative difference of values and of gradients, these by their norms."""
    numbers = [abs(found[k] - expected[k]) / abs(expected[k]) for k in (0, 2)]
    return max(*numbers, float(np.linalg.norm(found[1] - expected[1]) / np.linalg.norm(expected[1])))


def same(found: Any, expected: Any) -> bool:
    """Return whether value and gradient have the same bits."""
    return found[0] == expected[0] and found[2] == expected[2] and np.array_equal(found[1], expected[1])


def resumed(problem: burgers.Problem, run: Path, fatal: int = 0) -> tuple[Any, int]:
    """Return a gradient that goes on where another run was killed, and how often it wrote; one write may be fatal."""
    count = 0

    def write(descriptor: int, content: Any, offset: int) -> int:
        nonlocal count
        count += 1
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return POSIX.pwrite(descriptor, content, offset)

    with Disk(PLACE, system=System(pwrite=write)) as disk:
        return gradient(problem, schedule=Revolve(3), storage=disk, resume=run, resume_every=2), count


def others(problem: burgers.Problem, directory: str) -> Iterator[Any]:
    """Yield the gradient by other schedules, from other storages and within budgets."""
    yield gradient(problem, schedule=Revolve(3), storage=Memory())
    with Disk(directory) as disk:
        yield gradient(problem, schedule=Mixed(7, restart=1, saved=3), storage=disk)
    budgets = [eb.Budget(memory=40 * 16 * NODES**2, disk="1 GiB")]
    if FULL:
        budgets += [eb.Budget(memory=states * 16 * NODES**2) for states in (30, 60, 90)]
    for budget in budgets:
        yield gradient(problem, budget)


def on(comm: Any) -> tuple[burgers.Problem, Path]:
    """Return the problem on the ranks of a communicator, and where so many of them leave what is to be resumed."""
    decomposition = Cartesian(comm.Create_cart(MPI.Compute_dims(comm.size, 2)))
    return burgers.Problem(NODES, STEPS, decomposition), PLACE / f"run-{comm.size}"


def check(comm: Any) -> Any:
    """Return value and gradient of all nodes on the first rank of a communicator; assert that it is one number."""
    problem, run = on(comm)
    with mpi.distributed(comm), tempfile.TemporaryDirectory() as directory:
        found = gradient(problem)
        for other in others(problem, directory):
            assert same(other, found)
        was_killed = run.exists()
        wait([comm.Ibarrier()])
        if was_killed:
            assert any(run.iterdir())
            (other, count), (again, in_all) = resumed(problem, run), resumed(problem, run)
            assert same(other, found)
            assert same(again, found)
            assert 0 < count < in_all
            wait([comm.Ibarrier()])
            assert not run.exists()
            if comm.rank == 0:
                print(f"{comm.size} ranks went on", flush=True)
    parts = comm.gather((problem.window, problem.own, found[1]))
    whole = np.full(problem.shape, np.nan)
    for window, own, part in parts or ():
        whole[window][own] = part[own]
        part[own] = 0.0
        assert not part.any()  # of the layers that are others' nothing is left
    return found[0], whole, found[2]


def check_gradients() -> None:
    """On 1, 2 and 4 ranks the gradient is that of one process."""
    few = WORLD.Split((0, 2, 2, 1)[WORLD.rank], WORLD.rank)
    mine = check(few) if WORLD.rank else gradient(burgers.Problem(NODES, STEPS))
    wait([WORLD.Ibarrier()])  # in which the others leave their cores to these
    alone, two, _, one = WORLD.allgather(mine)
    for size, found in ((1, one), (2, two), (4, check(WORLD))):
        if WORLD.rank == 0:
            distance = apart(found, alone)
            assert distance <= 1e-13, (size, distance)
            print(f"{size} ranks: {distance:.1e}", flush=True)


def main() -> None:
    """Compare gradients; then the command, with a budget that is too small and with one that is not."""
    if FATAL_WRITE:
        with mpi.distributed(WORLD):
            resumed(*on(WORLD), FATAL_WRITE if WORLD.rank == WORLD.size - 1 else 0)
        return
    check_gradients()
    for memory in ("1 KiB", "8 MiB"):
        options = ("--nodes", str(NODES), "--steps", str(STEPS), "--memory", memory, "--plot", str(PICTURE))
        statuses = WORLD.gather(cli.main(["demo", "burgers", *options]))
        if WORLD.rank == 0:
            print(f"statuses {statuses}", flush=True)


if __name__ == "__main__":
    main()
