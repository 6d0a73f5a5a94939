"""The inputs of steps: read where they lie, one at a time, and compared when they are read again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, final

import numpy as np

from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import flatten, has_vectors, map_plain_vectors, unflatten
from ebbtide.arrays.context import current, value_trace
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import first_met
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import MutationError, TraceError
from ebbtide.loop.values.state import CHANGEABLE, checksums_of, owned
from ebbtide.loop.values.structures import Structures
from ebbtide.loop.values.sums import Sums
from ebbtide.tape.linear_region import split
from ebbtide.tape.region import Region, shown
from ebbtide.tape.tangent import TangentTrace

KNOWN = (np.ndarray, TracedArray, list, tuple)
"""What is there as a whole, before a step reads its part."""
_LEAVES = (np.ndarray, np.generic, TracedArray, np.random.Generator, bool, int, float, complex, str)


@final
class Readings:
    """
    Checksums of what steps read, by which is told what has changed when they run again.

    Args:
        mode: The forward mode whose tangents are not compared, as they are others in each run; None for no such one.

    Attributes:
        latest: The checksum of what was read last, for `swept`.
        sums: These checksums.

    Memory:
        That of `Sums` and of `Structures`.
    """

    __slots__ = ("_line", "_mode", "_structures", "latest", "sums")

    def __init__(self, mode: TangentTrace | None = None) -> None:
        self._line = user_line()
        self._mode = mode
        self._structures = Structures()
        self.latest = 0
        self.sums = Sums()

    def again(self, first: int, total: int) -> Readings:
        """Return those of steps that run again in their order; see `Sums.again`."""
        made = copy(self)
        made.sums = self.sums.again(first, total)
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
        checks = checksums_of([x if isinstance(x, _LEAVES) else self._structures.tell_leaf(x) for x in leaves])
        if not structure.is_leaf():
            checks.append(self._structures.tell(structure))
        self.latest = found = hash((index, *checks))
        changed = self.sums.meet(index, found)
        if changed is not None:
            raise self._changed(*changed)

    def swept(self, index: int, found: int) -> None:
        """
        Check what a step read that has been swept; see `Sums.swept`.

        Args:
            index: The step that was swept.
            found: The checksum of the input that it was taped with.

        Raises:
            MutationError: One of them read something else than at first.
        """
        changed = self.sums.swept(index, found)
        if changed is not None:
            raise self._changed(*changed)

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

    __slots__ = ("_region", "checked", "given", "is_function", "readings")

    def __init__(
        self, given: Any, region: Region | None, *, checked: bool, mode: TangentTrace | None = None
    ) -> None:
        self.given = given if region is None and current().capture is None else frozen(given)
        self.is_function = callable(given)
        self.checked = checked
        self.readings = Readings(mode) if checked and given is not None else None
        self._region = region

    def again(self, first: int, total: int) -> Inputs:
        """Return them for steps that run again in their order; see `Sums.again`."""
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
        context = current()
        return with_shown(value_trace(context) if self._region is None else context.capture, found)

    def swept(self, index: int, found: int) -> None:
        """Check what steps read, when one of them has been swept; see `Readings.swept`."""
        if self.readings is not None:
            self.readings.swept(index, found)

    def _read(self, index: int) -> tuple[list[Any], Any, bool]:
        try:
            x = self.given[index]
        except IndexError as error:
            if not isinstance(self.given, list):
                raise
            raise MutationError(
                f"inputs= of a time loop is a list that has become shorter: step {index} runs again at {user_line()}, "
                "and finds none. Leave it as it is until the gradient is there, or give a copy of it."
            ) from error
        leaves, structure = flatten(x)
        region = self._region
        if region is not None:
            if not isinstance(self.given, KNOWN) and any(_is_recorded(region, leaf) for leaf in leaves):
                raise traced_elements(self.given)
            leaves = [region.value(leaf) for leaf in leaves]
        if self.readings is not None:
            self.readings.read(index, leaves, structure)
        return leaves, structure, region is None and has_vectors(x)


def with_shown(trace: Any, x: Any) -> Any:
    """Return the input of a step with its vectors as a function in a trace has them; None for no trace."""
    if trace is None or not getattr(trace, "shows", True):
        return x
    # A copy: `pack` may share memory with a vector that the user keeps.
    return map_plain_vectors(lambda array: shown(trace, owned(array, "the inputs")), x)


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


def in_order(inputs: Any) -> Any:
    """Return the inputs of a dictionary whose keys are the numbers of the steps, or of a deque, as a list."""
    if isinstance(inputs, dict) and all(k in inputs for k in range(len(inputs))):
        return [inputs[k] for k in range(len(inputs))]
    return list(inputs) if isinstance(inputs, deque) else inputs


def traced_elements(inputs: Any) -> TraceError:
    """Return the error for a sequence that is read step by step, as from a file: derivatives would be lost."""
    return TraceError(
        f"inputs= is a {type(inputs).__name__} with traced elements, and only an array, a list, a tuple, a deque or a "
        "dict can have these. Give a list of its elements, [inputs[i] for i in range(number of steps)]."
    )


def _is_recorded(region: Region, leaf: Any) -> bool:
    """Return whether an array, or that of all members of a batch, belongs to the tape around."""
    while type(leaf) is TracedArray and type(leaf.present()._trace) is BatchTrace:
        leaf = leaf._value if leaf._node is None else leaf._node
    return region.node(leaf) is not None
