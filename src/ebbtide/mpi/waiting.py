"""Talking to other ranks, who may have failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ebbtide.arrays.context import current
from ebbtide.mpi.library import library

# So long a wait is for a message on its way; after it, the processor is left to others, as ranks may share it.
_SPIN = 50e-6
_NAP = 1e-3


def channel(comm: Any) -> Any:
    """Return the communicator that the operations on a communicator use: in `distributed` a duplicate of it."""
    ranks = current().ranks
    return comm if ranks is None else ranks.channel(comm)


def wait(requests: Sequence[Any]) -> None:
    """
    Wait until requests are done.

    Args:
        requests: Requests of MPI.

    Raises:
        RankError: Another rank failed meanwhile.
    """
    mpi = library()
    ranks = current().ranks
    start = time.perf_counter()
    nap = 1e-6
    while not mpi.Request.Testall(requests):
        waited = time.perf_counter() - start
        if waited > _SPIN:
            if ranks is not None:
                ranks.check(requests)
            time.sleep(nap)
            nap = min(_NAP, 0.1 * waited)
