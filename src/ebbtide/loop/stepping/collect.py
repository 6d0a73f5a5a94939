"""What a time loop gathers on its way: outputs forward, cotangents in reverse; and how it gives up its snapshots."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.traced import TracedArray


@final
class Seen:
    """
    The structure of what steps emit, as the last step has shown it.

    It is no list: what a function of a program finds in one must stay as it was.
    """

    __slots__ = ("structure_of_outputs",)

    def __init__(self) -> None:
        self.structure_of_outputs: Any = None


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


def emit(emitted: list[Any], index: int, steps: int | None, output: list[Any]) -> None:
    """Put the output leaves of a step with those before; `stacked` gives the result. *steps* is None if unknown."""
    if not emitted:
        for leaf in output:
            kind = type_of(leaf)
            listed = type(leaf) is TracedArray or steps is None
            emitted.append([] if listed else np.empty((steps or 0, *kind.shape), kind.dtype))
    for position, leaf in enumerate(output):
        held = emitted[position]
        if type(leaf) is TracedArray and not isinstance(held, list):
            held = emitted[position] = list(held[:index])
        if isinstance(held, list):
            held.append(leaf)
            continue
        if np.shape(leaf) != held.shape[1:]:
            raise TypeError(f"Step {index} returned an output of shape {np.shape(leaf)}, not {held.shape[1:]}.")
        held[index] = leaf


def apart(output: list[Any], state: list[Any]) -> list[Any]:
    """
    Return the output leaves of a step in memory of their own.

    A taped step may have returned an array of its new state as its output, too, and the next step writes into that.
    """
    arrays = {id(leaf) for leaf in state if isinstance(leaf, np.ndarray)}
    return [np.array(leaf) if id(leaf) in arrays else leaf for leaf in output]


def stacked(emitted: list[Any]) -> list[Any]:
    """Return the outputs of all steps, each leaf on a new first axis."""
    return [np.stack(held) if isinstance(held, list) else held for held in emitted]
