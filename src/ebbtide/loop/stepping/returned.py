"""What functions of the user's return to a time loop: states like those that steps were given, outputs of one type."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import flatten, form_of, objects_in, paths_of
from ebbtide.arrays.functions import is_users, line_of_function
from ebbtide.arrays.vectors import is_vector
from ebbtide.arrays.views import bottom
from ebbtide.errors import TraceError
from ebbtide.loop.stepping.collect import Seen
from ebbtide.loop.values.state import owned

_NOTHING = flatten(None)[1]


# The state.


def refuse_structure(step: Any, index: int | None, after: Any, before: Any, outputs: bool) -> NoReturn:
    """
    Raise for a state that is another container than the one before.

    Args:
        step: The user's step.
        index: Which one it was; None where that is not known.
        after: The structure of what it returned.
        before: That of the state that it was given.
        outputs: Whether it returns an output, too.
    """
    name, line = "A step" if index is None else f"Step {index}", line_of_function(step)
    if after == _NOTHING:
        raise TypeError(
            f"{name} returned None as the new state (the step is at {line}). Is there a `return` in it? A step returns "
            "the new state, also one that writes into the arrays that it is given."
        )
    pair = not outputs and after.type is tuple and after.num_children == 2 and after.child(0) == before
    raise TypeError(
        f"{name} returned a state of structure {form_of(after)}, and it was given {form_of(before)}, where * is "
        f"an array or a number (the step is at {line}). A step returns a state like the one it is given"
        f"{'; for an output beside it pass outputs=True' if pair else ''}."
    )


def check_types(step: Any, structure: Any, index: int, before: list[Any], after: list[Any]) -> None:
    """Raise if a step changed the shape or dtype of a leaf of the state."""
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        check_type(step, structure, index, k, old, new)


def check_type(step: Any, structure: Any, index: int, leaf: int, old: Any, new: Any) -> None:
    """
    Do nothing if a step has returned a leaf like the one before.

    Args:
        step: The step.
        structure: Structure of the state.
        index: Which step it was.
        leaf: The number of the leaf.
        old: The leaf before, or its type.
        new: The leaf after.

    Raises:
        TraceError: Its shape or dtype is another one, or a generator became an array or the other way round.
    """
    if type(old) is ArrayType and type(new) is np.ndarray and old.shape == new.shape and old.dtype is new.dtype:
        return
    if np.random.Generator in (type(old), type(new)):
        if type(old) is type(new):
            return
        kinds: tuple[Any, Any] = f"a {_name(old)}", f"a {_name(new)}"
        advice = "A random generator stays in its place in the state: return it from the step where it was."
    else:
        kinds = type_of(old), type_of(new)
        numbers = kinds[0].shape == kinds[1].shape == () and not isinstance(bottom(old), np.ndarray)
        if kinds[0] == kinds[1] or numbers:
            return
        advice = (
            "Shapes and dtypes of the state stay the same from step to step: give the initial state those that the "
            "step returns."
        )
        before, after = (kind.dtype for kind in kinds)
        if kinds[0].shape == kinds[1].shape and before.kind == after.kind and before.itemsize < after.itemsize:
            advice += (
                " Where a Python number is differentiated it counts as one of NumPy's: give "
                f"np.{before.type.__name__}(x) in its place."
            )
    # The loop over pairs of values and tangents has other paths than the user's.
    path = paths_of(structure)[leaf] if is_users(step) else None
    where = "a leaf of the state" if path is None else f"the leaf {path} of the state" if path else "the state"
    raise TraceError(
        f"Step {index} returned {kinds[1]} for {where} that was {kinds[0]} (the step is at {line_of_function(step)}). "
        f"{advice}"
    )


def _name(value: Any) -> str:
    return "array" if type(value) is ArrayType else type(value).__name__


# Outputs.


def parted(step: Any, index: int | None, result: Any, seen: Seen) -> tuple[Any, list[Any]]:
    """
    Return the new state, and the leaves of the output.

    Args:
        step: The user's step.
        index: Which one it was; None where that is not known.
        result: What it returned.
        seen: The form of the output at the first step, which is noted there.

    Raises:
        TypeError: It is no pair of state and output, or the output is none that can be stacked with those before.
    """
    name = "A step" if index is None else f"Step {index}"
    if not isinstance(result, tuple) or len(result) != 2:
        found = "None: is there a `return` in it?" if result is None else f"a {type(result).__name__}."
        raise TypeError(
            f"With outputs=True a step returns (state, output), and {name.lower()} (the step is at "
            f"{line_of_function(step)}) returned {found}"
        )
    state, emitted = result
    leaves, structure = objects_in(emitted), flatten(emitted)[1]
    if seen.structure not in (None, structure):
        raise TypeError(
            f"{name} returned an output of structure {form_of(structure)}, and the first step returned "
            f"{form_of(seen.structure)}, where * is an array or a number (the step is at "
            f"{line_of_function(step)}). Outputs are stacked: return the same container at each step."
        )
    if any(map(is_vector, leaves)):
        raise TypeError(
            f"{name} returned a vector as its output (the step is at {line_of_function(step)}), and the outputs of "
            "all steps are stacked into arrays. Return arrays or numbers computed from it, or keep it in the state."
        )
    kinds = [type_of(owned(leaf, "the output") if not hasattr(leaf, "dtype") else leaf) for leaf in leaves]
    for first, kind in zip(seen.kinds or kinds, kinds, strict=True):
        if first != kind:
            raise TypeError(
                f"{name} returned an output of type {kind}, and the first step returned {first} (the step is at "
                f"{line_of_function(step)}). Outputs are stacked: give them the same shape and dtype at each step."
            )
    seen.structure, seen.kinds = structure, kinds
    return state, leaves
