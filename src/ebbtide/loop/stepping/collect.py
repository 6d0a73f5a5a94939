"""What a time loop gathers on its way: outputs forward, cotangents of inputs and static values in reverse."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.traced import TracedArray


@final
class Seen:
    """
    The structure of what steps emit, and the types of its leaves, as the first step has shown them.

    It is no list: what a function of a program finds in one must stay as it was.
    """

    __slots__ = ("kinds", "structure")

    def __init__(self) -> None:
        self.structure: Any = None
        self.kinds: list[ArrayType] = []


@final
class Collector:
    """Where each step's cotangents of inputs and static values go; see `timeloop`."""

    __slots__ = ("input_sums", "static_sums")

    def __init__(self) -> None:
        self.static_sums: dict[int, np.ndarray] = {}
        self.input_sums: dict[Any, Any] = {}

    def add(self, sums: dict[int, tuple[Any, bool]]) -> None:
        """Add a step's own sums for static values to the running ones."""
        for key, (value, own) in sums.items():
            running = self.static_sums.get(key)
            if running is None:
                self.static_sums[key] = value if own or not isinstance(value, np.ndarray) else np.array(value)
            elif isinstance(running, np.ndarray) and isinstance(value, (np.ndarray, np.generic)):
                np.add(running, value, out=running)
            else:
                self.static_sums[key] = running + value


@final
class _OfMembers:
    """
    The outputs of a batch of `vmap` around, in one array from the start.

    A list of them would be there beside what is made of it, which no plan counts.
    """

    __slots__ = ("_array", "_traces")

    def __init__(self, traces: list[BatchTrace], first: np.ndarray, steps: int) -> None:
        self._traces = traces
        outer = len(traces)
        self._array = np.empty((*first.shape[:outer], steps, *first.shape[outer:]), first.dtype)

    def put(self, index: int, leaf: Any) -> bool:
        """Put the output of a step in its place; return whether it is an array of the same members."""
        traces, array = _members_of(leaf)
        if traces != self._traces or type(array) is not np.ndarray or array.dtype != self._array.dtype:
            return False
        place = self._array[(*[slice(None)] * len(traces), index)]
        if place.shape != array.shape:
            return False
        place[...] = array
        return True

    def row(self, index: int) -> TracedArray:
        """Return the output of a step."""
        return self._traced(self._array[(*[slice(None)] * len(self._traces), index)])

    def whole(self) -> TracedArray:
        """Return those of all steps."""
        return self._traced(self._array)

    def _traced(self, array: Any) -> Any:
        for trace in reversed(self._traces):
            array = trace.members(array)
        return array


def _members_of(leaf: Any) -> tuple[list[BatchTrace], Any]:
    """Return the batches that an array belongs to, the innermost first, and the array of all their members."""
    traces: list[BatchTrace] = []
    while type(leaf) is TracedArray and type(leaf.present()._trace) is BatchTrace and leaf._node is not None:
        traces.append(leaf._trace)
        leaf = leaf._node
    return traces, leaf


def emit(emitted: list[Any], index: int, steps: int | None, output: list[Any]) -> None:
    """Put the output leaves of a step with those before; `stacked` gives the result. *steps* is None if unknown."""
    if not emitted:
        emitted += [_place_for(leaf, steps) for leaf in output]
    for position, leaf in enumerate(output):
        held = emitted[position]
        if isinstance(held, _OfMembers):
            if held.put(index, leaf):
                continue
            held = emitted[position] = [held.row(k) for k in range(index)]
        if type(leaf) is TracedArray and not isinstance(held, list):
            held = emitted[position] = list(held[:index])
        if isinstance(held, list):
            held.append(leaf)
            continue
        if np.shape(leaf) != held.shape[1:]:
            raise TypeError(f"Step {index} returned an output of shape {np.shape(leaf)}, not {held.shape[1:]}.")
        held[index] = leaf


def _place_for(leaf: Any, steps: int | None) -> Any:
    """Return where outputs go of which this is the first."""
    if steps is None:
        return []
    if type(leaf) is TracedArray:
        traces, array = _members_of(leaf)
        return _OfMembers(traces, array, steps) if traces and type(array) is np.ndarray else []
    kind = type_of(leaf)
    return np.empty((steps, *kind.shape), kind.dtype)


def apart(output: list[Any], state: list[Any]) -> list[Any]:
    """
    Return the output leaves of a step in memory of their own.

    A taped step may have returned an array of its new state as its output, too, and the next step writes into that.
    """
    arrays = {id(leaf) for leaf in state if isinstance(leaf, np.ndarray)}
    return [np.array(leaf) if id(leaf) in arrays else leaf for leaf in output]


def stacked(emitted: list[Any]) -> list[Any]:
    """Return the outputs of all steps, each leaf on a new first axis."""
    rows = [held.whole() if isinstance(held, _OfMembers) else held for held in emitted]
    return [np.stack(held) if isinstance(held, list) else held for held in rows]
