"""The condition of the user that says where a time loop ends: it looks at the state, and may not change it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, read_only
from ebbtide.arrays.containers import map_vectors, unflatten
from ebbtide.arrays.functions import line_of_function
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.errors import MutationError
from ebbtide.loop.values.state import CHANGEABLE, checksums_of, owned
from ebbtide.program.constant import stop_gradient

_CHANGED = (
    "until= changed the state that it was given, which it may only look at: it wrote into an array or a record of it, "
    "or drew from a generator. Steps that are run again would start from another state. Let the step do that, or write "
    "into a copy."
)


def ask(condition: Callable[[Any], Any], structure: Any, state: list[Any]) -> Any:
    """
    Return what a condition of the user says of a state: true where the loop ends. It has no axes.

    Args:
        condition: `until=` of the loop.
        structure: Structure of the state.
        state: Its leaves; arrays are shown as views that cannot be written, vectors as plain ones of the user's type.

    Raises:
        MutationError: It wrote into the state, or drew from a generator in it: steps that are run again would not.
        TypeError: It returned nothing, or an object that is no number, or an array of no or several elements.
    """
    shown = [_shown(leaf) for leaf in state]
    try:
        found = condition(map_vectors(stop_gradient, unflatten(structure, list(shown))))
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise MutationError(_CHANGED) from error
    if any(_is_changed(leaf, copy) for leaf, copy in zip(state, shown, strict=True)):
        raise MutationError(_CHANGED)
    _refuse_undecided(condition, found)
    return np.reshape(found, ()) if getattr(found, "shape", ()) else found


def _refuse_undecided(condition: Callable[[Any], Any], found: Any) -> None:
    """Raise if what a condition returned does not say whether the loop ends."""
    shape = getattr(found, "shape", ())
    if found is None:
        what, advice = "None", "is there a `return` in it?"
    elif prod(shape) != 1:
        what, advice = f"an array of shape {shape}", "make one of all elements by np.all or np.any, or take a norm."
    elif not _is_number(found):
        what, advice = f"an object of type {type(found).__name__}", "compare it with something."
    else:
        return
    raise TypeError(
        f"until= at {line_of_function(condition)} returned {what}, and it says with one value, true or false, whether "
        f"the loop ends: {advice}"
    )


def _is_number(found: Any) -> bool:
    """Return whether an object is a number or a truth value, and no text or time of NumPy's, which count as true."""
    return found.dtype.kind in "biufc" if hasattr(found, "dtype") else isinstance(found, (bool, int, float, complex))


def _shown(leaf: Any) -> Any:
    if type(leaf) is TracedArray:
        # No derivative comes of where a loop ends, so that a condition may ask for values as in a loop on a tape.
        value = bottom(leaf.present())
        leaf = leaf.frozen() if type(value) is ArrayType else value
    if isinstance(leaf, np.ndarray):
        return read_only(leaf)
    return owned(leaf) if isinstance(leaf, CHANGEABLE) else leaf


def _is_changed(leaf: Any, copy: Any) -> bool:
    leaf = bottom(leaf.present()) if type(leaf) is TracedArray and type(copy) is not TracedArray else leaf
    if type(leaf) is TracedArray:
        return copy.present()._value is not leaf._value or copy._node is not leaf._node
    return leaf is not copy and not isinstance(leaf, np.ndarray) and checksums_of([leaf]) != checksums_of([copy])
