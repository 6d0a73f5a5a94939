"""Who has which nodes: all of them one process, or each rank of an MPI run a part."""

from __future__ import annotations

import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from ebbtide.errors import EbbtideError

Window = tuple[slice, slice]

# What launchers of MPI (Hydra and Slurm, PMIx, Open MPI) set for the processes that they start.
_STARTED_BY_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


class DemoInputError(EbbtideError, ValueError):
    """An option or an initial field that the demo cannot run with."""


class Decomposition(ABC):
    """
    A grid of ranks over a grid of nodes.

    The array of a rank has the nodes that it advances and one layer around them: of the boundary, or of nodes that its
    neighbors advance. So the same step goes for the part of a rank as for the whole.
    """

    @property
    @abstractmethod
    def ranks(self) -> tuple[int, ...]:
        """How many ranks there are in each direction."""

    @property
    @abstractmethod
    def speaks(self) -> bool:
        """Whether this rank writes the report."""

    @abstractmethod
    def window(self, nodes: int) -> Window:
        """Return which nodes the array of this rank has, of so many per direction."""

    @abstractmethod
    def own(self, nodes: int) -> Window:
        """Return where in its array the nodes are that are this rank's alone; each node is one rank's."""

    @abstractmethod
    def update(self, state: Any) -> Any:
        """Return a state with the present layers of the neighbors, which it is given in place."""

    @abstractmethod
    def complete(self, state: Any) -> Any:
        """Return a state with the present layers of the neighbors; the given one stays as it is."""

    @abstractmethod
    def total(self, number: Any) -> Any:
        """Return the sum over all ranks, one value that all of them have; differentiable."""

    @abstractmethod
    def replicated(self, number: Any) -> Any:
        """Return a number that all ranks have as one variable; differentiable."""

    @abstractmethod
    def largest(self, number: float) -> float:
        """Return the largest over all ranks."""

    @abstractmethod
    def run(self) -> AbstractContextManager[None]:
        """Return the context in which all ranks are one run."""


class Silent(Decomposition):
    """A part that sends no message: the whole, or what a measurement takes for a rank's part."""

    def update(self, state: Any) -> Any:
        """See `Decomposition.update`."""
        return state

    def complete(self, state: Any) -> Any:
        """See `Decomposition.complete`."""
        return state

    def total(self, number: Any) -> Any:
        """See `Decomposition.total`."""
        return number

    def replicated(self, number: Any) -> Any:
        """See `Decomposition.replicated`."""
        return number

    def largest(self, number: float) -> float:
        """See `Decomposition.largest`."""
        return number

    def run(self) -> AbstractContextManager[None]:
        """See `Decomposition.run`."""
        return nullcontext()


@final
class Whole(Silent):
    """One process has all nodes."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """See `Decomposition.ranks`."""
        return (1, 1)

    @property
    def speaks(self) -> bool:
        """See `Decomposition.speaks`."""
        return True

    def window(self, nodes: int) -> Window:
        """See `Decomposition.window`."""
        return slice(0, nodes), slice(0, nodes)

    def own(self, nodes: int) -> Window:
        """See `Decomposition.own`."""
        return slice(0, nodes), slice(0, nodes)


def started() -> Decomposition:
    """
    Return the decomposition over the processes that were started together: one, if no launcher of MPI started this one.

    Raises:
        DemoInputError: A launcher started this process, and mpi4py is not installed.
    """
    if not any(name in os.environ for name in _STARTED_BY_MPI):
        return Whole()
    if importlib.util.find_spec("mpi4py") is None:
        raise DemoInputError(
            "A launcher of MPI started this process, and mpi4py is not installed, without which each of them would do "
            'the same: pip install "ebbtide[mpi]".'
        )
    cartesian: Any = importlib.import_module("ebbtide.demo.cartesian")  # needs the extra mpi
    return cartesian.of_all_ranks()
