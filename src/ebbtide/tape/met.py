"""Arrays from outside of a region as they were when it met them first."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, final

from ebbtide.arrays.primitive import first_met
from ebbtide.arrays.traced import TracedArray


@final
class Met:
    """
    What a region that runs again is given for arrays from outside that were written since, as by `k *= 3` after a loop.

    Memory:
        The values of the arrays, as long as these live; the region keeps them as static values anyway.
    """

    __slots__ = ("__weakref__", "_known")

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[TracedArray], TracedArray]] = {}

    def first(self, array: TracedArray, region: Any) -> TracedArray:
        """
        Return an array as it was when a region, or the one around it, met it first; any other as it is now.

        Args:
            array: The array.
            region: The trace that the region runs on.
        """
        key = id(array)
        known = self._known.get(key)
        if known is not None and known[0]() is array:
            return known[1]
        found = array.frozen()
        if found._trace is region.outer:
            forget = partial(_forget, weakref.ref(self), key)
            self._known[key] = weakref.ref(array, forget), found
            return found
        return first_met(region.around, array)


def _forget(met: weakref.ref[Met], key: int, dead: weakref.ref[TracedArray]) -> None:
    """Forget an array that has died."""
    region = met()
    known = None if region is None else region._known.get(key)
    if region is not None and known is not None and known[0] is dead:
        del region._known[key]
