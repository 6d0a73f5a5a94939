"""The exchange of halos: the outermost layers of the neighbors on a Cartesian grid of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.primitive import plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.mpi.exchange import Exchange, anchored, exchange, given_array
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
        TypeError: The communicator is not Cartesian, or a width is no whole number.
        ValueError: There are fewer layers than asked for, or the axes are no different axes of the array.

    Memory:
        The result, and four layers for a moment. A tape saves nothing.
    """
    array = given_array(array)
    taken = type_of(array)
    places, widths = _layers_of(taken, comm, width, axes, 1)
    wider = list(taken.shape)
    for k, w in zip(places, widths, strict=True):
        wider[k] += 2 * w
    return exchange(Halo(comm, taken, ArrayType(tuple(wider), taken.dtype), places, widths), array)


def halo_update(array: Any, comm: Any, width: int | Sequence[int] = 1, axes: Sequence[int] | None = None) -> Any:
    """
    Overwrite the outermost layers of an array, which are copies, with the layers of its neighbors, in place.

    For a state that has its halo with it: only layers move, not the array. Layers at an end of the grid, where there is
    no neighbor, stay as they are: they are the boundary.

    Args:
        array: The part of a global array that this rank owns, with *width* layers around it.
        comm: A Cartesian communicator (`comm.Create_cart`).
        width: As for `halo_exchange`.
        axes: As for `halo_exchange`.

    Returns:
        The array; to be used in its place, as a plain one is not written into where a derivative is taken.

    Raises:
        TypeError: The communicator is not Cartesian, or a width is no whole number.
        ValueError: There are fewer layers than asked for, or the axes are no different axes of the array.

    Memory:
        Four layers for a moment. A tape saves nothing.
    """
    array = plain(array)
    places, widths = _layers_of(type_of(array), comm, width, axes, 3)
    # Along the others no rank has a neighbor. Where that is all of them nothing is anchored either: of a time step that
    # would be met where it runs on plain values, and not where it is taped.
    directions = [k for k, ranks in enumerate(comm.dims) if ranks > 1 or comm.periods[k]]
    array = array if type(array) is TracedArray or not directions else anchored(array)
    # One axis after the other, with the layers that are there: so the corners come from the neighbors' neighbors.
    for direction in directions:
        axis, layers = places[direction], widths[direction]
        length = array.shape[axis]

        def at(start: int, stop: int, axis: int = axis) -> tuple[slice, ...]:
            return (slice(None),) * axis + (slice(start, stop),)

        mine = given_array(np.stack([array[at(layers, 2 * layers)], array[at(length - 2 * layers, length - layers)]]))
        kind = type_of(mine)
        theirs = exchange(Swap(comm, kind, kind, direction), mine)
        for side, (neighbor, first) in enumerate(zip(comm.Shift(direction, 1), (0, length - layers), strict=True)):
            if neighbor != library().PROC_NULL:
                array[at(first, first + layers)] = theirs[side]
    return array


def _layers_of(
    kind: ArrayType, comm: Any, width: int | Sequence[int], axes: Sequence[int] | None, share: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axis and the number of layers of each direction; *share* times as many have to be there."""
    if not isinstance(comm, library().Cartcomm):
        raise TypeError("A halo needs neighbors: give a Cartesian communicator, comm.Create_cart(dims).")
    places = tuple(range(comm.ndim)) if axes is None else tuple(axes)
    widths = tuple([index(w) for w in (width if isinstance(width, Iterable) else (width,) * comm.ndim)])
    if len(places) != comm.ndim or len(set(places)) < comm.ndim or not all(0 <= k < kind.ndim for k in places):
        raise ValueError(
            f"A halo was asked for on axes {places} of an array with {kind.ndim}, and the grid of ranks has "
            f"{comm.ndim} directions: give one axis for each."
        )
    if len(widths) != comm.ndim or any(w < 0 or share * w > kind.shape[k] for k, w in zip(places, widths, strict=True)):
        raise ValueError(
            f"A halo was asked for with {widths} layers, of a part of shape {kind.shape}: one number for each of the "
            f"{comm.ndim} directions, and no more than there are on the axes {places}. Use fewer ranks."
        )
    return places, widths


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
        requests = [self.channel.Irecv(into, rank, come) for rank, _, into, _, come in pairs]
        requests += [self.channel.Isend(layers, rank, go) for rank, layers, _, go, _ in pairs]
        wait(requests, self.channel, 2 * [rank for rank, *_ in pairs])


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


@final
@dataclass(frozen=True, slots=True)
class Swap(Exchange):
    """
    Both neighbors along a direction of the grid get a layer, and each gives one; no neighbor gives zeros.

    The arrays have the layers of the lower and of the upper side on their first axis. It is its own transpose.
    """

    direction: int

    def run(self, array: np.ndarray) -> np.ndarray:
        """See `Exchange.run`."""
        result = np.zeros(self.given.shape, self.given.dtype)
        lower, upper = self.comm.Shift(self.direction, 1)
        wait(
            [
                self.channel.Irecv(result[0], lower, _UP),
                self.channel.Irecv(result[1], upper, _DOWN),
                self.channel.Isend(array[0], lower, _DOWN),
                self.channel.Isend(array[1], upper, _UP),
            ],
            self.channel,
            2 * [lower, upper],
        )
        return result

    @property
    def transposed(self) -> Exchange:
        """The same."""
        return self
