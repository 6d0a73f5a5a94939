"""The check that what a region meets from outside is the same each time: in all steps, and when they run again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.location import describe_array, user_line
from ebbtide.arrays.reach import arrays_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.errors import MutationError
from ebbtide.storage import compute_crc32c
from ebbtide.tape.saved import checksum

# No larger array is noted, unless the region does more, and no more of them: a region may reach data that it does not
# use, and the checksum of 8 MiB takes half a millisecond.
_LEAST_BYTES, _MOST_ARRAYS = 8 << 20, 256


@final
class Constancy:
    """
    Checks that what regions meet does not change: time steps, of which each is one, or a checkpointed function.

    Plain arrays are seen where a region runs on a tape. One that it runs on first when it is run again may have changed
    before. So what its code reaches by name is noted when the forward run is over, and compared where it is met.

    Args:
        around: That of the region around; it meets what is met here.
        what: What messages call the region.

    Memory:
        A weak reference and a checksum for each array that lives longer than a step, of those that were not met before
        the forward run was over at most 256; a checksum for each static value.
    """

    __slots__ = ("_around", "_is_over", "_met", "_met_now", "_statics", "_what", "_whole")

    def __init__(self, around: Constancy | None = None, what: str = "the step") -> None:
        self._around, self._what = around, what
        self._met: dict[int, tuple[Any, int]] = {}
        self._met_now: set[int] = set()
        self._is_over = False  # the forward run
        self._whole: set[int] = set()  # arrays of which a view was met in this reverse sweep
        self._statics: dict[int, int] = {}

    def again(self) -> Constancy:
        """Return one for a run again, which compares what it meets with what was met here; others may run meanwhile."""
        made = Constancy(self._around, self._what)
        made._met, made._statics, made._is_over = dict(self._met), self._statics, self._is_over
        return made

    def begin(self) -> None:
        """Begin a step: within one, an array of its own may change between two uses."""
        self._met_now.clear()

    def end_forward(self, functions: Iterable[Any], statics: Mapping[int, TracedArray], nbytes: int) -> None:
        """
        Note what may be met when the region is run again.

        Args:
            functions: What it runs.
            statics: Its static values, each by a number of its own.
            nbytes: The bytes that it works on; of larger arrays it is taken that it does not use all.
        """
        reached = [array for f in functions for array in arrays_of(f)]
        fresh = [a for a in reached if not self._knows(a) and a.nbytes <= max(nbytes, _LEAST_BYTES) and _has_data(a)]
        for array in fresh[:_MOST_ARRAYS]:
            self._met[id(array)] = weakref.ref(array), compute_crc32c(array)
        self._statics = {key: checksum(array.present()) for key, array in statics.items()}
        self._is_over = True

    def begin_reverse(self) -> None:
        """Begin a reverse sweep."""
        self._whole.clear()

    def check_statics(self, statics: Mapping[int, TracedArray]) -> None:
        """
        Compare static values with what they were when the forward run was over.

        Raises:
            MutationError: One of them has changed.
        """
        for key, array in statics.items():
            if key in self._statics and checksum(array.present()) != self._statics[key]:
                raise self._changed(bottom(array), "")

    def meet(self, array: Any) -> None:
        """
        Note or check an array.

        Raises:
            MutationError: It has changed since a step met it first, or since the forward run.
        """
        if id(array) in self._met_now:
            return
        self._met_now.add(id(array))
        if self._around is not None:
            self._around.meet(array)
        crc = compute_crc32c(array)
        if self._knows(array):
            if self._met[id(array)][1] != crc:
                raise self._changed(array, f" at {user_line()}")
        else:
            self._met[id(array)] = weakref.ref(array), crc
            if len(self._met) % 16 == 0:  # an entry takes a quarter of a KiB
                self._met = {key: entry for key, entry in self._met.items() if entry[0]() is not None}
        if self._is_over and array.base is not None:
            self._meet_whole(owner_of(array))

    def _meet_whole(self, owner: Any) -> None:
        """Check the array that a view is of, which is another object in each step, once in a reverse sweep."""
        if id(owner) not in self._whole and self._knows(owner):
            self._whole.add(id(owner))
            if compute_crc32c(owner) != self._met[id(owner)][1]:
                raise self._changed(owner, f" at {user_line()}")

    def _knows(self, array: Any) -> bool:
        known = self._met.get(id(array))
        return known is not None and known[0]() is array

    def _changed(self, array: Any, place: str) -> MutationError:
        since = "an earlier step used it"
        advice = "Put it into the state if the step changes it, or into inputs if it is given from outside"
        if self._is_over:
            since = "the forward run"
            advice = "Leave it as it is until the gradient is there, or close over a copy of it"
        return MutationError(
            f"The {describe_array(array)} that {self._what} uses{place} has changed since {since}, so "
            f"{self._what} cannot be run again with the same result. {advice}."
        )


def _has_data(array: np.ndarray) -> bool:
    """Return whether an array has bytes of its own, which say what it is."""
    return array.nbytes > 0 and not array.dtype.hasobject
