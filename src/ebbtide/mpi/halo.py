"""The exchange of halos: the outermost layers of the neighbors on a Cartesian grid of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.mpi.exchange import Exchange, exchange
from ebbtide.mpi.library import library
from ebbtide.mpi.waiting import wait

_UP, _DOWN = 0, 1  # tags: on a ring of two ranks both messages go to the same one


def halo_exchange(array: Any, comm: Any, width: int | Sequence[int] = 1, axes: Sequence[int] | None = None) -> Any:
    """
    Return an array with the layers of its neighbors around it.

    Args:
        array: The part of a global array that this rank owns.
        comm: A Cartesian communicator (`comm.Create_cart`).
        width: How many layers, for all directions of the grid of ranks, or one number for each.
        axes: The axis of the array for each direction; the first ones in order if None.

    Returns:
        An array with *width* more layers on both sides of each of the axes: those of the neighbors, corners included;
        zeros at an end of the grid, in the place of a neighbor.

    Raises:
        TypeError: The communicator is not Cartesian.
        ValueError: There are fewer layers than asked for, or the axes are no different axes of the array.

    Memory:
        The result, and four layers for a moment. A tape saves nothing.
    """
    mpi = library()
    if not isinstance(comm, mpi.Cartcomm):
        raise TypeError("halo_exchange needs neighbors: give it a Cartesian communicator, comm.Create_cart(dims).")
    taken = type_of(array)
    places = tuple(range(comm.ndim)) if axes is None else tuple(axes)
    widths = (width,) * comm.ndim if isinstance(width, int) else tuple(width)
    if len(places) != comm.ndim or len(set(places)) < comm.ndim or not all(0 <= k < taken.ndim for k in places):
        raise ValueError(
            f"halo_exchange was given axes {places} of an array with {taken.ndim}, and the grid of ranks has "
            f"{comm.ndim} directions: give one axis for each."
        )
    if len(widths) != comm.ndim or any(w < 0 or w > taken.shape[k] for k, w in zip(places, widths, strict=True)):
        raise ValueError(
            f"halo_exchange was asked for {widths} layers of a part of shape {taken.shape}: one number for each of the "
            f"{comm.ndim} directions, and no more than there are on the axes {places}. Use fewer ranks."
        )
    wider = list(taken.shape)
    for k, w in zip(places, widths, strict=True):
        wider[k] += 2 * w
    return exchange(Halo(comm, taken, ArrayType(tuple(wider), taken.dtype), places, widths), array)


@dataclass(frozen=True, slots=True)
class _Layers(Exchange):
    """
    What goes between neighbors.

    Args:
        axes: Of the array, one for each direction of the grid.
        widths: How many layers.
    """

    axes: tuple[int, ...]
    widths: tuple[int, ...]

    def inside(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Return where the part is that this rank owns."""
        found = [slice(None)] * len(shape)
        for k, w in zip(self.axes, self.widths, strict=True):
            found[k] = slice(w, shape[k] - w)
        return tuple(found)

    def sides(self, direction: int, array: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray, int, int]]:
        """Yield for both sides of an axis the neighbor, the own layers, the halo, and the tags to and from there."""
        k, w = self.axes[direction], self.widths[direction]
        lower, upper = self.comm.Shift(direction, 1)
        moved = np.moveaxis(array, k, 0)
        yield lower, moved[w : 2 * w], moved[:w], _DOWN, _UP
        yield upper, moved[len(moved) - 2 * w : len(moved) - w], moved[len(moved) - w :], _UP, _DOWN

    def swap(self, pairs: list[tuple[int, np.ndarray, np.ndarray, int, int]]) -> None:
        """Send and receive layers: (neighbor, what goes there, where what comes from there goes, the tags)."""
        requests = [self.comm.Irecv(into, rank, come) for rank, _, into, _, come in pairs]
        requests += [self.comm.Isend(layers, rank, go) for rank, layers, _, go, _ in pairs]
        wait(requests)


@final
@dataclass(frozen=True, slots=True)
class Halo(_Layers):
    """Each rank gets its array with the layers of its neighbors around it."""

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.zeros(self.given.shape, self.given.dtype)
        result[self.inside(result.shape)] = array
        # One axis after the other, with the halos that are there: so the corners come from the neighbors' neighbors.
        for direction in range(len(self.axes)):
            pairs, places = [], []
            for rank, layers, halo, go, come in self.sides(direction, result):
                pairs.append((rank, np.array(layers, order="C"), np.zeros(halo.shape, halo.dtype), go, come))
                places.append(halo)
            self.swap(pairs)
            for halo, (_, _, got, _, _) in zip(places, pairs, strict=True):
                halo[...] = got
        return result

    @property
    def transposed(self) -> Exchange:
        """The halos are added to what they are copies of."""
        return _Fold(self.comm, self.given, self.taken, self.axes, self.widths)


@final
@dataclass(frozen=True, slots=True)
class _Fold(_Layers):
    """The halos of an array are added to the layers of the neighbors that they are copies of."""

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        folded = np.array(array)
        for direction in reversed(range(len(self.axes))):
            pairs, places = [], []
            for rank, layers, halo, go, come in self.sides(direction, folded):
                pairs.append((rank, np.array(halo, order="C"), np.zeros(layers.shape, layers.dtype), go, come))
                places.append(layers)
            self.swap(pairs)
            for layers, (_, _, got, _, _) in zip(places, pairs, strict=True):
                np.add(layers, got, layers)
        return np.array(folded[self.inside(folded.shape)], order="C")

    @property
    def transposed(self) -> Exchange:
        """The halos again."""
        return Halo(self.comm, self.given, self.taken, self.axes, self.widths)
