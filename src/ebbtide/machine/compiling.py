"""Steps of the machine that are compiled for what they do, by Numba."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from ebbtide.machine._chains import Elementwise
from ebbtide.machine._compiled import Compiled
from ebbtide.machine.nests import NAMES, Part, nest_of


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
    places = tuple([(view.buffer, view.offset) for view in nest.views])
    return Compiled(tuple([Elementwise(*part) for part in parts]), places, _function(nest.text).address)


@cache
def _function(text: str) -> Any:
    """Return the source of a nest as a function of C."""
    numba: Any = importlib.import_module("numba")
    types = numba.types
    names = {name: getattr(np, name) for name in NAMES}
    names.update(carray=numba.carray, sqrt=np.sqrt, choose=_choice())
    exec(text, names)  # noqa: S102 - our own text
    # As NumPy does it: what fails has a flag and no exception. A function of C alone takes half as long to compile as
    # one that calls a function of Numba's.
    return numba.cfunc(types.void(types.CPointer(types.voidptr)), error_model="numpy")(names["nest"])


@cache
def _choice() -> Any:
    """Return the choice between two values that are both computed, as Numba compiles it."""
    extending: Any = importlib.import_module("numba.extending")

    def choose(typing: Any, condition: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.select(*arguments)

        return one(condition, one, other), generate

    return extending.intrinsic(choose)
