"""A gradient on ranks, and what happens to the last of them on the way; also a program, for faults that end it."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from group import Group
from mpi4py import MPI

import ebbtide as eb
from ebbtide import mpi
from ebbtide.schedules import Costs, Hierarchical
from ebbtide.storage import Disk
from ebbtide.storage.system import POSIX, System

STEPS = 12
LONG = 16  # with 59 places for a fault


def passed() -> None:
    """
    Count a step or a sweep, and have the fault where it is the turn of that.

    What is counted is in the environment: what a step reaches in any other way is part of what a resumed run has to
    have in common with the one before.
    """
    count = int(os.environ.get("COUNT", "0"))
    os.environ["COUNT"] = str(count + 1)
    kind, place = os.environ.get("FAULT", ""), int(os.environ.get("PLACE", "-1"))
    if count != place:
        return
    if "STAMP" in os.environ:
        Path(os.environ["STAMP"]).touch()
    if kind == "wait":
        MPI.COMM_WORLD.Barrier()  # communication that is not Ebbtide's, to which the last rank never comes
    if kind == "linger":
        time.sleep(60.0)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise ValueError("This rank fails on purpose.")
    if kind == "collect":
        gc.collect()


def full_write(descriptor: int, content: Any, offset: int) -> int:
    """Write as the operating system does, or refuse from the place of the fault on."""
    if os.environ.get("FAULT") == "full" and int(os.environ["COUNT"]) >= int(os.environ["PLACE"]):
        raise OSError(errno.ENOSPC, "No space left on device")
    return POSIX.pwrite(descriptor, content, offset)


def pull(g: Any) -> Any:
    """Pass a cotangent."""
    passed()
    return g


def copied(u: Any) -> Any:
    """Return a copy."""
    passed()
    return np.array(u)


SEEN = eb.primitive(copied, vjp=(pull,))


def gradient(
    group: Group, scratch: Path, kind: str = "", place: int = -1, steps: int = STEPS, **resume: Any
) -> bytes:
    """
    Return the bits of a gradient whose steps communicate and whose states are in a file of each rank.

    The fault comes to the last rank at a place: after so many steps and sweeps of steps. Where it *blocks*, in a
    *hurry* or not, or is *stuck*, the others wait there, where Ebbtide does not see them.
    """
    last = group.rank == group.size - 1
    of_last = {"block": "raise", "hurry": "raise", "stuck": "linger", "interrupt": "linger"}
    fault = of_last.get(kind, kind) if last else "wait" if kind in {"block", "hurry", "stuck"} else ""
    os.environ.update(FAULT=fault, PLACE=str(place), COUNT="0")

    def step(u: Any, i: int) -> Any:
        below = mpi.sendrecv(SEEN(u), group.comm, group.up, group.down)
        return u + 0.1 * np.sin(below) * np.cos(u)

    def functional(u: Any) -> Any:
        schedule = Hierarchical(1, 3, Costs(write=0.1, read=0.1))
        final = eb.timeloop(step, u, steps, schedule=schedule, storage=storage, **resume)
        return mpi.total(np.sum(final**2), group.comm)

    with mpi.distributed(group.comm):
        storage = Disk(scratch, comm=MPI.COMM_SELF, system=System(pwrite=full_write))
        with storage:
            return eb.grad(functional)(group.random((6,), np.float64, 3)).tobytes()


def main() -> None:
    """Run the gradient with each of some faults, `kind@place`; say which ones have the bits of a run without."""
    directory = Path(sys.argv[1])
    world = Group(MPI.COMM_WORLD)
    expected = gradient(world, directory / "scratch", steps=LONG)
    for number, fault in enumerate(sys.argv[2:]):
        kind, _, place = fault.partition("@")
        resume = {"resume": directory / "run", "resume_every": 2}
        found = gradient(world, directory / "scratch", kind, int(place or -1), LONG, **resume)
        sys.stdout.write(f"{number} {fault} on {world.rank}: {found == expected}\n")
        sys.stdout.flush()
    left = Disk(directory / "scratch", comm=world.comm)
    left.put("state", [np.ones(1000)])
    world.meet()
    MPI.Finalize()  # what is still open goes without MPI


if __name__ == "__main__":
    try:
        main()
    except Exception:
        MPI.Finalize()  # MPICH refuses it where there are messages on COMM_WORLD that nobody took
        raise
