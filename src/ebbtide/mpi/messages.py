"""The exchanges of two ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ebbtide.mpi.exchange import Exchange
from ebbtide.mpi.waiting import wait


@final
@dataclass(frozen=True, slots=True)
class Sending(Exchange):
    """An array goes to another rank; nothing is left."""

    to: int
    tag: int

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        wait([self.channel.Isend(array, self.to, self.tag)], self.channel, [self.to])
        return np.empty(self.given.shape, self.given.dtype)

    @property
    def transposed(self) -> Exchange:
        """Its cotangent comes from there."""
        return Receiving(self.comm, self.given, self.taken, self.to, self.tag)


@final
@dataclass(frozen=True, slots=True)
class Receiving(Exchange):
    """An array comes from another rank."""

    source: int
    tag: int

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.empty(self.given.shape, self.given.dtype)
        wait([self.channel.Irecv(result, self.source, self.tag)], self.channel, [self.source])
        return result

    @property
    def transposed(self) -> Exchange:
        """Its cotangent goes there."""
        return Sending(self.comm, self.given, self.taken, self.source, self.tag)


@final
@dataclass(frozen=True, slots=True)
class Passing(Exchange):
    """An array goes to one rank, and one comes from another."""

    to: int
    source: int
    tag: int

    @property
    def is_two_way(self) -> bool:
        """See `Exchange.is_two_way`."""
        return True

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.zeros(self.given.shape, self.given.dtype)
        comm = self.channel
        requests = [comm.Irecv(result, self.source, self.tag), comm.Isend(array, self.to, self.tag)]
        wait(requests, comm, [self.source, self.to])
        return result

    @property
    def transposed(self) -> Exchange:
        """The way back."""
        return Passing(self.comm, self.given, self.taken, self.source, self.to, self.tag)
