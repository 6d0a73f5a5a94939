"""The exchanges in which all ranks of a communicator take part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.mpi.exchange import Exchange
from ebbtide.mpi.waiting import wait


@final
@dataclass(frozen=True, slots=True)
class Sum(Exchange):
    """Each rank gets the sum of all arrays. It is its own transpose."""

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.empty(self.given.shape, self.given.dtype)
        wait([self.channel.Iallreduce(array, result)], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """The same."""
        return self


@final
@dataclass(frozen=True, slots=True)
class Total(Exchange):
    """Each rank gets a copy of one value, the sum of all arrays; its cotangent has a copy on each rank as well."""

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        return Sum(self.comm, self.taken, self.given).run(array)

    @property
    def transposed(self) -> Exchange:
        """The copies of one value."""
        return Copies(self.comm, self.given, self.taken)


@final
@dataclass(frozen=True, slots=True)
class Copies(Exchange):
    """Each rank has a copy of one value, and the cotangent of that is the sum of those of its copies."""

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        return np.array(array)

    @property
    def transposed(self) -> Exchange:
        """The sum."""
        return Total(self.comm, self.given, self.taken)


@final
@dataclass(frozen=True, slots=True)
class Broadcast(Exchange):
    """Each rank gets the array of one of them."""

    root: int

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.array(array) if self.comm.rank == self.root else np.empty(self.given.shape, self.given.dtype)
        wait([self.channel.Ibcast(result, self.root)], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """The sum on one rank."""
        return Reduction(self.comm, self.given, self.taken, self.root)


@final
@dataclass(frozen=True, slots=True)
class Reduction(Exchange):
    """One rank gets the sum of all arrays, the others zeros."""

    root: int

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.zeros(self.given.shape, self.given.dtype)
        into = result if self.comm.rank == self.root else None
        wait([self.channel.Ireduce(array, into, root=self.root)], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """The array of one rank for all."""
        return Broadcast(self.comm, self.given, self.taken, self.root)


@final
@dataclass(frozen=True, slots=True)
class Gathering(Exchange):
    """One rank gets the arrays of all ranks, one after the other along the first axis; the others nothing."""

    root: int
    counts: tuple[int, ...]

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.zeros(self.given.shape, self.given.dtype)
        into = _parts(result, self.counts, self.taken.shape) if self.comm.rank == self.root else None
        wait([self.channel.Igatherv(array, into, self.root)], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """A part for each rank."""
        return Scattering(self.comm, self.given, self.taken, self.root, self.counts)


@final
@dataclass(frozen=True, slots=True)
class Scattering(Exchange):
    """Each rank gets its part of the array of one of them."""

    root: int
    counts: tuple[int, ...]

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.empty(self.given.shape, self.given.dtype)
        out_of = _parts(array, self.counts, self.given.shape) if self.comm.rank == self.root else None
        wait([self.channel.Iscatterv(out_of, result, self.root)], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """The parts together."""
        return Gathering(self.comm, self.given, self.taken, self.root, self.counts)


@final
@dataclass(frozen=True, slots=True)
class GatheringForAll(Exchange):
    """Each rank gets the arrays of all ranks, one after the other along the first axis."""

    counts: tuple[int, ...]

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.empty(self.given.shape, self.given.dtype)
        wait([self.channel.Iallgatherv(array, _parts(result, self.counts, self.given.shape))], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """A part of the sum for each rank."""
        return PartOfSum(self.comm, self.given, self.taken, self.counts)


@final
@dataclass(frozen=True, slots=True)
class PartOfSum(Exchange):
    """Each rank gets its part, along the first axis, of the sum of all arrays."""

    counts: tuple[int, ...]

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.empty(self.given.shape, self.given.dtype)
        rows = _row(self.taken.shape)
        wait([self.channel.Ireduce_scatter(array, result, [count * rows for count in self.counts])], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """The parts of all ranks for all."""
        return GatheringForAll(self.comm, self.given, self.taken, self.counts)


@final
@dataclass(frozen=True, slots=True)
class Transposition(Exchange):
    """Each rank gets its part, along the first axis, of the array of each rank, one after the other."""

    sent: tuple[int, ...]
    received: tuple[int, ...]

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.empty(self.given.shape, self.given.dtype)
        sent, received = _parts(array, self.sent, self.taken.shape), _parts(result, self.received, self.given.shape)
        wait([self.channel.Ialltoallv(sent, received)], self.channel)
        return result

    @property
    def transposed(self) -> Exchange:
        """The way back."""
        return Transposition(self.comm, self.given, self.taken, self.received, self.sent)


def _row(shape: tuple[int, ...]) -> int:
    """Return how many elements one row has."""
    return math.prod(shape[1:])


def _parts(array: np.ndarray, counts: tuple[int, ...], shape: tuple[int, ...]) -> list[Any]:
    """Return an array as MPI takes it, with how many elements each rank has."""
    return [array, [count * _row(shape) for count in counts]]
