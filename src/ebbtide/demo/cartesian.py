"""The nodes in parts on a Cartesian grid of ranks; needs the extra `mpi`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np

from ebbtide import mpi
from ebbtide.demo.decomposition import Decomposition, DemoInputError, Whole, Window
from ebbtide.mpi.library import library

# The axes of a state: component, x, y.
_AXES = (1, 2)


@final
class Cartesian(Decomposition):
    """
    The inner nodes in parts as equal as can be, one for each rank of a grid.

    Args:
        comm: A Cartesian communicator of two directions.

    Memory:
        The communicator.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    @property
    def ranks(self) -> tuple[int, ...]:
        """See `Decomposition.ranks`."""
        return tuple(self.comm.dims)

    @property
    def speaks(self) -> bool:
        """See `Decomposition.speaks`."""
        return self.comm.rank == 0

    def window(self, nodes: int) -> Window:
        """
        See `Decomposition.window`.

        Raises:
            DemoInputError: There are fewer inner nodes than ranks.
        """
        if max(self.comm.dims) > nodes - 2:
            raise DemoInputError(
                f"A grid of {self.comm.dims[0]} x {self.comm.dims[1]} ranks needs as many inner nodes in each "
                f"direction, and there are {nodes - 2}: give --nodes {max(self.comm.dims) + 2} or more, or start fewer "
                "ranks."
            )
        x, y = (
            slice(inner * place // count, inner * (place + 1) // count + 2)
            for place, count, inner in zip(self.comm.coords, self.comm.dims, (nodes - 2,) * 2, strict=True)
        )
        return x, y

    def own(self, nodes: int) -> Window:
        """See `Decomposition.own`."""
        x, y = (
            slice(int(place > 0), part.stop - part.start - int(place < count - 1))
            for place, count, part in zip(self.comm.coords, self.comm.dims, self.window(nodes), strict=True)
        )
        return x, y

    def update(self, state: Any) -> Any:
        """See `Decomposition.update`."""
        return mpi.halo_update(state, self.comm, axes=_AXES)

    def complete(self, state: Any) -> Any:
        """See `Decomposition.complete`."""
        # A traced one is not written into.
        return self.update(np.copy(state) if isinstance(state, np.ndarray) else state)

    def total(self, number: Any) -> Any:
        """See `Decomposition.total`."""
        return mpi.total(number, self.comm)

    def replicated(self, number: Any) -> Any:
        """See `Decomposition.replicated`."""
        return mpi.replicated(number, self.comm)

    def largest(self, number: float) -> float:
        """See `Decomposition.largest`."""
        return float(mpi.allreduce(float(number), self.comm, "max"))

    def run(self) -> AbstractContextManager[None]:
        """See `Decomposition.run`."""
        return mpi.distributed(self.comm)


def of_all_ranks() -> Decomposition:
    """Return the decomposition over all ranks of the run, as square as can be."""
    world = library().COMM_WORLD
    if world.size == 1:
        return Whole()
    return Cartesian(world.Create_cart(library().Compute_dims(world.size, 2)))
