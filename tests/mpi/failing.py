"""A run on ranks of which the last one fails; started by `mpiexec` from test_mpi.py: where, and how."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import ebbtide as eb
from ebbtide import mpi

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
PLACE, END = sys.argv[1:]
PULLS: list[int] = []


def fail() -> None:
    """End the last rank; let the others wait where Ebbtide cannot see them, if that is asked for."""
    if RANK == SIZE - 1:
        if END == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("This rank fails on purpose.")
    if END == "block":
        time.sleep(60.0)  # as in communication that is not Ebbtide's, but without a core


def pull(g: Any) -> Any:
    """Pass a cotangent, but for the fifth one."""
    PULLS.append(1)
    if PLACE == "reverse" and len(PULLS) == 5:
        fail()
    return g


def copied(u: Any) -> Any:
    """Return a copy."""
    return np.array(u)


seen = eb.primitive(copied, vjp=(pull,))


def step(u: Any, i: int) -> Any:
    """Take a step with the state of the rank below."""
    if PLACE == "forward" and i == 5:
        fail()
    below = mpi.sendrecv(seen(u), COMM, (RANK + 1) % SIZE, (RANK - 1) % SIZE)
    return u + 0.1 * np.sin(below)


with mpi.distributed(COMM):
    eb.grad(lambda u: mpi.total(np.sum(eb.timeloop(step, u, 20) ** 2), COMM))(np.ones(3) + RANK)
print("finished")
