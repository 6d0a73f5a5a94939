"""Talking to other ranks, who may have failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ebbtide.arrays.context import current
from ebbtide.mpi import watch
from ebbtide.mpi.library import library

# So long a wait is for a message on its way; after it, the processor is left to others, as ranks may share it.
_SPIN = 50e-6
_NAP = 1e-3


def channel(comm: Any) -> Any:
    """Return the communicator that the operations on a communicator use: in `distributed` a duplicate of it."""
    ranks = current().ranks
    return comm if ranks is None else ranks.channel(comm)


def wait(requests: Sequence[Any], comm: Any = None, partners: Sequence[int] = ()) -> None:
    """
    Wait until requests are done.

    Args:
        requests: Requests of MPI.
        comm: The communicator that they are of; None if nobody is to know.
        partners: The rank there that each of them is to; none for one to all ranks.

    Raises:
        RankError: Another rank failed meanwhile.
        ScheduleError: Ranks wait for each other; see `Watch`.
    """
    mpi = library()
    ranks = current().ranks
    start = time.perf_counter()
    nap = 1e-6
    if ranks is not None:
        ranks.watch.begin(comm, not partners)
    while not mpi.Request.Testall(requests):
        waited = time.perf_counter() - start
        if waited > _SPIN:
            if ranks is not None:
                ranks.check(requests)
                if waited > watch.PATIENCE:
                    ranks.watch.say(requests, comm, partners)
            time.sleep(nap)
            nap = min(_NAP, 0.1 * waited)
