"""Finding out that ranks wait for each other forever."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from ebbtide.mpi.library import library

PATIENCE = 5.0  # seconds, after which a rank that waits says so
# What a rank tells each of the others in a round. The first is the agreement that it waits in, 0 for none.
_AGREES, _STAYS, _NEEDS, _LOOPS, _MET = range(5)


@final
class Watch:
    """
    What the ranks of a run tell each other when all of them have waited long.

    A rank that waits in an agreement and one that waits to communicate with it wait forever. Each rank that has waited
    long gives its part of a round, which is over when all have: nobody computes. What was on its way has come by the
    next round. A rank that is in the same wait as at the last one then names another rank that it needs, if that one
    was in an agreement; where that one still is, too, all of them know that both stay there.

    Args:
        comm: The communicator of the run.

    Memory:
        A duplicate of the communicator, and a few numbers for each rank.
    """

    __slots__ = (
        "_agreed", "_comm", "_key", "_known", "_met", "_own", "_pending", "_round", "_said", "_wait", "loops", "stuck",
    )  # fmt: skip

    def __init__(self, comm: Any) -> None:
        self.loops = 0  # begun
        self.stuck = ""  # the message, when ranks are
        self._own, self._comm = comm, comm.Dup()
        self._met: dict[int, tuple[Any, int]] = {}  # how many collectives on which communicator, since all agreed
        self._known = np.zeros((int(comm.size), 5), np.int64)  # of the last round
        self._pending: tuple[Any, np.ndarray, np.ndarray] | None = None
        self._agreed = self._round = self._wait = 0
        self._said, self._key = (-1, 0.0), library().Comm.Create_keyval()

    def begin(self, comm: Any, is_collective: bool) -> None:
        """Note that a wait begins on a communicator, maybe for all of its ranks."""
        self._wait += 1
        if is_collective and comm is not None and comm is not self._own:
            handle = comm.py2f()
            self._met[handle] = comm, self._met.get(handle, (comm, 0))[1] + 1

    def agreed(self) -> None:
        """Note that the ranks have agreed: all of them have left the collectives before."""
        self._agreed += 1
        self._met.clear()

    def say(self, requests: Sequence[Any], comm: Any, partners: Sequence[int]) -> None:
        """Give the part of this rank of the next round, which waits for requests, if it is time; see `wait`."""
        now = time.perf_counter()
        if self._pending is not None or self._said[1] + PATIENCE > now:
            return
        stays, agrees = self._said[0] == self._wait, self._agreed + 1 if comm is self._own else 0
        mine = np.zeros_like(self._known)
        mine[:, _MET] = met = self._count_met()
        needs = self._needed(requests, comm, partners, met) if stays and not agrees else -1
        mine[:, [_AGREES, _STAYS, _NEEDS, _LOOPS]] = agrees, stays, needs, self.loops
        self._said = self._wait, now
        self._give(mine)

    def hear(self) -> None:
        """Look whether a round is over, and what it says."""
        if self._pending is None or not self._pending[0].Test():
            return
        self._known, self._pending = self._pending[2], None
        for rank, (_, stays, needs, loops, _) in enumerate(self._known.tolist()):
            if stays and needs >= 0 and self._known[needs, _AGREES] and self._known[needs, _STAYS]:
                self.stuck = (
                    f"Ranks wait for each other: rank {rank} to communicate with rank {needs}, and rank {needs} until "
                    "all ranks have come to the same time loop, or to the end of `distributed`. Differentiated time "
                    f"loops begun there: {loops} on rank {rank}, {self._known[needs, _LOOPS]} on rank {needs}. All "
                    "ranks call the same ones, in the same order and with the same communication between them."
                )
                return

    def stop(self) -> int:
        """Begin no other round; return how many this rank took part in."""
        self._said = self._wait, np.inf
        return self._round

    def free(self, rounds: int) -> None:
        """Give the communicator back, when all ranks have stopped and this one has taken part in as many rounds."""
        while self._pending is not None or self._round < rounds:
            if self._pending is None:
                self._give(np.zeros_like(self._known))
            else:
                self._pending[0].Wait()
                self._pending = None
        self._comm.Free()
        self._key = library().Comm.Free_keyval(self._key)

    def _give(self, mine: np.ndarray) -> None:
        theirs = np.empty_like(mine)
        self._pending = self._comm.Ialltoall(mine, theirs), mine, theirs
        self._comm.Set_attr(self._key, self._pending)  # they live as long as the communicator, also after a failure
        self._round += 1

    def _count_met(self) -> np.ndarray:
        """Return how many collectives this rank has entered with each rank, since all agreed."""
        met = np.zeros(len(self._known), np.int64)
        for comm, count in self._met.values():
            if comm == library().COMM_NULL:  # was freed: with whom they were is not known
                met[:] += 1 << 32
            else:
                met[self._ranks(comm, range(comm.size))] += count
        return met

    def _needed(self, requests: Sequence[Any], comm: Any, partners: Sequence[int], met: np.ndarray) -> int:
        """Return a rank that was in an agreement and has not done what this one waits for; -1 if there is none."""
        if comm is None:
            return -1
        if partners:
            null, pairs = library().PROC_NULL, zip(requests, partners, strict=True)
            needed = self._ranks(comm, [one for request, one in pairs if one != null and not request.Get_status()])
        else:
            needed = [rank for rank in self._ranks(comm, range(comm.size)) if self._known[rank, _MET] < met[rank]]
        return min([rank for rank in needed if self._known[rank, _AGREES] > self._agreed], default=-1)

    def _ranks(self, comm: Any, ranks: Iterable[int]) -> list[int]:
        """Return those ranks of a communicator that are of the run, by their numbers there."""
        if comm.Is_inter():
            return []
        found = comm.group.Translate_ranks(list(ranks), self._own.group)
        return [rank for rank in found if rank >= 0]
