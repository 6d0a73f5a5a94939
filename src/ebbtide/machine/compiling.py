"""Steps of the machine that are compiled for what they do, by Numba."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from ebbtide.machine._chains import Elementwise
from ebbtide.machine._compiled import Compiled
from ebbtide.machine.nests import Part, nest_of


def compiled(*parts: Part) -> Compiled:
    """
    Return the step that does elementwise steps of one shape, all operations of them for each element.

    Args:
        *parts: The arguments of the steps, as `Elementwise` takes them.

    Raises:
        ValueError: There is no such nest of loops, see `nest_of`.
        ImportError: Numba is not installed.

    Memory:
        What Numba keeps of the function, until the process ends: the same source is compiled once.
    """
    nest = nest_of(parts)
    if nest is None:
        raise ValueError("These steps have no nest of loops with the bits of NumPy.")
    function = _function(nest.text, tuple([(view.letter, view.length) for view in nest.views]))
    places = tuple([(view.buffer, view.offset) for view in nest.views])
    return Compiled(tuple([Elementwise(*part) for part in parts]), places, function.address)


@cache
def _function(text: str, views: tuple[tuple[str, int], ...]) -> Any:
    """Return the source of a nest as a function of C, which takes the addresses of its views."""
    numba: Any = importlib.import_module("numba")
    names = {np.dtype(letter).name for letter, _ in views} | {"float32", "float64"}
    inside = {"abs": abs, "sqrt": np.sqrt, "choose": _choice(), **{name: getattr(np, name) for name in names}}
    exec(text, inside)  # noqa: S102 - our own text
    arrays = [
        f"carray(addresses[{number}], ({length},), {np.dtype(letter).name})"
        for number, (letter, length) in enumerate(views)
    ]
    around: dict[str, Any] = {**inside, "carray": numba.carray}
    # As NumPy does it: what fails has a flag and no exception.
    around["nest"] = numba.njit(error_model="numpy")(inside["nest"])
    exec(f"def call(addresses):\n    nest({', '.join(arrays)})\n", around)  # noqa: S102
    types = numba.types
    return numba.cfunc(types.void(types.CPointer(types.voidptr)))(around["call"])


@cache
def _choice() -> Any:
    """Return the choice between two values that are both computed, as Numba compiles it."""
    extending: Any = importlib.import_module("numba.extending")

    def choose(typing: Any, condition: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.select(*arguments)

        return one(condition, one, other), generate

    return extending.intrinsic(choose)
