"""The inputs of steps: read where they lie, one at a time, and compared when they are read again."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from copy import copy
from typing import Any, final

import numpy as np

from ebbtide.arrays.containers import flatten, has_vectors, unflatten
from ebbtide.arrays.context import current, value_trace
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import first_met
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import MutationError, TraceError
from ebbtide.loop.state import CHANGEABLE, checksums_of, owned
from ebbtide.loop.structures import Structures
from ebbtide.tape.linear_region import split
from ebbtide.tape.region import Region, shown
from ebbtide.tape.tangent import TangentTrace

# Of this many sums those of neighboring steps become one.
_MOST = 512
_KNOWN = (np.ndarray, np.generic, TracedArray, np.random.Generator, bool, int, float, complex, str)


@final
class Readings:
    """
    Checksums of what steps read, by which is told what has changed when they run again.

    A short loop has one for each step. In one of 512 steps or more, a sum of those of neighboring steps is kept. It is
    compared when the reverse sweep has passed all of these, each of which it has once, whatever runs again.

    Args:
        mode: The forward mode whose tangents are not compared, as they are others in each run; None for no such one.

    Attributes:
        latest: The checksum of what was read last, for `swept`.
        total: A sum of the checksums of all that was read.
        spacing: How many steps share a sum.

    Memory:
        8 bytes for each sum, at most 4 KiB, and that of `Structures`.
    """

    __slots__ = (
        "_begin", "_end", "_in_order", "_line", "_mode", "_structures", "_sum", "_sums", "latest", "spacing", "total",
    )  # fmt: skip

    def __init__(self, mode: TangentTrace | None = None) -> None:
        self._line = user_line()
        self._mode = mode
        self._in_order = False  # whether the steps run again one after the other, from the first
        self._sum: int | None = None  # of the steps of a row that the sweep has passed
        self._begin = self._end = 0  # the steps of which there are checksums
        self._sums, self.spacing = array("q"), 1
        self._structures = Structures()
        self.latest = self.total = 0

    def again(self, first: int, total: int) -> Readings:
        """
        Return those of steps that run again in their order; others may run meanwhile.

        Args:
            first: The first of them.
            total: The sum of what the steps before it read.
        """
        made = copy(self)
        passed = np.frombuffer(self._sums, np.int64)[: (first - self._begin) // self.spacing]
        made._in_order, made._sum = True, total ^ int(np.bitwise_xor.reduce(passed))
        return made

    def read(self, index: int, leaves: list[Any], structure: Any) -> None:
        """
        Note or check the input of a step.

        Args:
            index: The step.
            leaves: The leaves of its input.
            structure: Their container, with the static metadata in it.

        Raises:
            MutationError: It is another one than when the step read it first.
        """
        if self._mode is not None:
            leaves = [split(self._mode, leaf)[0] for leaf in leaves]
        # Of another object it is not known what it says of itself. Sums of checksums would not see a change of sign.
        checks = checksums_of([x if isinstance(x, _KNOWN) else self._structures.tell_leaf(x) for x in leaves])
        if not structure.is_leaf():
            checks.append(self._structures.tell(structure))
        self.latest = found = hash((index, *checks))
        if self._in_order:
            self._compare(index, found)
            return
        if index < self._end:
            if self.spacing == 1 and index >= self._begin and self._sums[index - self._begin] != found:
                raise self._changed(index, index)
            return
        if index > self._end:  # a run that was resumed begins later
            self._begin, self._sums, self.spacing, self.total = index, array("q"), 1, 0
        self._end = index + 1
        place = (index - self._begin) // self.spacing
        if place == len(self._sums):
            self._sums.append(0)
        self._sums[place] ^= found
        self.total ^= found
        if len(self._sums) == _MOST and (self._end - self._begin) % self.spacing == 0:
            before = np.frombuffer(self._sums, np.int64)
            self._sums = array("q", (before[::2] ^ before[1::2]).tobytes())
            self.spacing *= 2

    def _compare(self, index: int, found: int) -> None:
        """Check what steps read that share a sum, when the last of them has read its own."""
        place, rest = divmod(index - self._begin, self.spacing)
        self._sum = found ^ (self._sum or 0)
        if rest == self.spacing - 1 or index == self._end - 1:
            passed, self._sum = self._sum, 0
            if passed != self._sums[place]:
                raise self._changed(index - rest, index)

    def swept(self, index: int, found: int) -> None:
        """
        Check what steps read that share a sum, when the last of them has been swept.

        Args:
            index: The step that was swept.
            found: The checksum of the input that it was taped with.

        Raises:
            MutationError: One of them read something else than at first.
        """
        if index < self._begin:
            return
        place, rest = divmod(index - self._begin, self.spacing)
        if rest == self.spacing - 1 or index == self._end - 1:
            self._sum = 0
        if self._sum is not None:  # else the sweep was taken up among them
            self._sum ^= found
            if not rest:
                passed, self._sum = self._sum, None
                if passed != self._sums[place]:
                    raise self._changed(index, min(index + self.spacing, self._end) - 1)

    def _changed(self, first: int, last: int) -> MutationError:
        which = f"The input of step {first}" if first == last else f"An input of the steps {first} to {last}"
        return MutationError(
            f"{which} of the time loop at {self._line} was not the same when the step ran again, so the gradient would "
            "be wrong. Leave what is given as inputs= as it is until the gradient is there, or give a copy of it; a "
            "function of the step number returns the same each time. verify=False switches this check off."
        )


@final
class Inputs:
    """
    The inputs of the steps of a loop.

    Args:
        given: A sequence of the values that enter the region, a function of the step number, or None for step numbers.
        region: The region that a step is; None where nothing is traced.
        checked: Whether what is read again is compared with what was read first.
        mode: Of `Readings`.

    Memory:
        Nothing beyond its arguments but `Readings`.
    """

    __slots__ = ("_region", "given", "is_function", "readings")

    def __init__(
        self, given: Any, region: Region | None, *, checked: bool, mode: TangentTrace | None = None
    ) -> None:
        self.given = given if region is None and current().capture is None else frozen(given)
        self.is_function = callable(given)
        self.readings = Readings(mode) if checked and given is not None else None
        self._region = region

    def again(self, first: int, total: int) -> Inputs:
        """Return them for steps that run again in their order; see `Readings.again`."""
        made = copy(self)
        made.readings = None if self.readings is None else self.readings.again(first, total)
        return made

    def read(self, index: int) -> tuple[list[Any], Any]:
        """
        Return the leaves of the input of a step as values, and their container.

        If inputs are a function or step numbers there are none, and None.
        """
        return ([], None) if self.given is None or self.is_function else self._read(index)[:2]

    def enter(self, index: int) -> tuple[list[Any], Any]:
        """Return leaves and structure of the input of a step, for it alone; the step number without a structure."""
        if self.given is None or self.is_function:
            return [index], None
        leaves, structure, is_shown = self._read(index)
        # A copy, so that a step that writes into its input does not change the caller's.
        leaves = [owned(x, "the inputs") if isinstance(x, (*CHANGEABLE, TracedArray)) else x for x in leaves]
        if is_shown:
            below = value_trace(current())
            leaves = leaves if below is None else [shown(below, leaf) for leaf in leaves]
        return leaves, structure

    def call(self, index: int) -> Any:
        """Return what the function of the step number gives; within a step."""
        found = self.given(index)
        if self.readings is not None:
            self.readings.read(index, *flatten(found))
        return found

    def swept(self, index: int, found: int) -> None:
        """Check what steps read, when one of them has been swept; see `Readings.swept`."""
        if self.readings is not None:
            self.readings.swept(index, found)

    def _read(self, index: int) -> tuple[list[Any], Any, bool]:
        x = self.given[index]
        leaves, structure = flatten(x)
        region = self._region
        if region is not None:
            if not isinstance(self.given, (np.ndarray, TracedArray, list, tuple)):
                _refuse_traced(index, leaves, region, type(self.given).__name__)
            leaves = [region.value(leaf) for leaf in leaves]
        if self.readings is not None:
            self.readings.read(index, leaves, structure)
        return leaves, structure, region is None and has_vectors(x)


def frozen(inputs: Any, form: Callable[[TracedArray], Any] = lambda array: array) -> Any:
    """
    Return inputs such that later writes of the user into traced arrays among them do not change them.

    Args:
        inputs: The user's inputs.
        form: Gives the form in which a traced array is kept.
    """
    capture = current().capture

    def as_met(array: TracedArray) -> Any:
        return form(first_met(capture, array))

    if isinstance(inputs, TracedArray):
        return as_met(inputs)
    if not isinstance(inputs, (list, tuple)):
        return inputs
    flat = [flatten(x) for x in inputs]
    if not any(type(leaf) is TracedArray for leaves, _ in flat for leaf in leaves):
        return inputs
    return [unflatten(tree, [as_met(x) if type(x) is TracedArray else x for x in leaves]) for leaves, tree in flat]


def _refuse_traced(index: int, leaves: list[Any], region: Region, kind: str) -> None:
    """Raise if there are arrays of the tape around among the leaves: their cotangents would be lost."""
    if any(region.node(leaf) is not None for leaf in leaves):
        raise TraceError(
            f"inputs= is a {kind} whose element {index} is traced, and only an array, a list or a tuple can have "
            "derivatives. Give list(inputs)."
        )
