"""The check that what steps meet from outside does not change from step to step."""

from __future__ import annotations

import weakref
from typing import Any, final

from ebbtide.arrays.location import describe_array, user_line
from ebbtide.errors import MutationError
from ebbtide.storage import compute_crc32c


@final
class Constancy:
    """
    Checks that the plain arrays that steps meet do not change from step to step.

    Memory:
        A weak reference and a checksum for each array that lives longer than a step.
    """

    __slots__ = ("_met", "_met_now")

    def __init__(self) -> None:
        self._met: dict[int, tuple[Any, int]] = {}
        self._met_now: set[int] = set()

    def begin(self) -> None:
        """Begin a step: within one, an array of its own may change between two uses."""
        self._met_now.clear()

    def meet(self, array: Any) -> None:
        """
        Note or check an array.

        Raises:
            MutationError: It has changed since a step met it first.
        """
        if id(array) in self._met_now:
            return
        self._met_now.add(id(array))
        crc = compute_crc32c(array)
        known = self._met.get(id(array))
        if known is None or known[0]() is not array:
            self._met[id(array)] = weakref.ref(array), crc
            if len(self._met) % 256 == 0:
                self._met = {key: entry for key, entry in self._met.items() if entry[0]() is not None}
        elif known[1] != crc:
            raise MutationError(
                f"The {describe_array(array)} that the step uses at {user_line()} has changed since an "
                "earlier step used it, so the step cannot be run again with the same result. Put it into the state if "
                "the step changes it, or into inputs if it is given from outside."
            )
