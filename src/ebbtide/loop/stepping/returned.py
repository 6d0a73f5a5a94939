"""What functions of the user's return to a time loop: states like those that steps were given, outputs of one type."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import flatten, form_of, paths_of
from ebbtide.arrays.functions import is_users, line_of_function
from ebbtide.arrays.vectors import is_vector
from ebbtide.arrays.views import bottom
from ebbtide.errors import TraceError
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


def refuse_output(step: Any, index: int, result: Any) -> NoReturn:
    """Raise for a step that returns no pair of state and output."""
    found = "None: is there a `return` in it?" if result is None else f"a {type(result).__name__}."
    raise TypeError(
        f"With outputs=True a step returns (state, output), and step {index} (the step is at {line_of_function(step)}) "
        f"returned {found}"
    )


def output_types(index: int, output: list[Any], known: list[Any]) -> list[Any]:
    """
    Return the types of the leaves of an output.

    Args:
        index: The step.
        output: What it returned, vectors whole.
        known: The types at the first step, which the output is stacked with; empty at that step.

    Raises:
        TypeError: They are others than at the first step.
    """
    if any(map(is_vector, output)):
        raise TypeError(
            f"Step {index} returned a vector as its output, and the outputs of all steps are stacked into arrays. "
            "Return arrays or numbers computed from it, or keep it in the state."
        )
    kinds = [type_of(owned(leaf, "the output") if not hasattr(leaf, "dtype") else leaf) for leaf in output]
    for first, kind in zip(known or kinds, kinds, strict=True):
        if first != kind:
            raise TypeError(
                f"Step {index} returned an output of type {kind}, and the first step returned {first}. Outputs "
                "are stacked: give them the same shape and dtype at each step."
            )
    return kinds
