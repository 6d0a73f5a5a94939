"""Containers of arrays: any nesting that optree knows, and the checks of what can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.traced import TracedArray


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a container and its structure."""
    leaves, structure = optree.tree_flatten(tree)
    return leaves, structure


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the container of this structure with these leaves."""
    return optree.tree_unflatten(structure, leaves)


def paths_of(structure: Any) -> list[str]:
    """Return for each leaf how to reach it, such as `[0]['weights']`."""
    return ["".join(f"[{key!r}]" for key in path) for path in optree.treespec_paths(structure)]


def is_array(value: Any) -> bool:
    """Return whether a leaf is an array or a number that can be traced."""
    return isinstance(value, (np.ndarray, np.generic, TracedArray, float, complex)) and np.dtype(
        getattr(value, "dtype", type(value))
    ).kind in "fc"


def as_value(leaf: Any, place: str) -> Any:
    """
    Return a leaf of an argument as an array or NumPy scalar that can be differentiated.

    Args:
        leaf: The leaf.
        place: What it is, for the message: `argument 0['weights']`.

    Raises:
        TypeError: It is an integer, a boolean, or no number at all.
    """
    if isinstance(leaf, TracedArray):
        return leaf.frozen()
    discrete = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iub"
    if discrete or isinstance(leaf, (bool, int, np.integer, np.bool_)):
        write = "x.astype(float)" if isinstance(leaf, np.ndarray) else f"float({leaf})"
        raise TypeError(
            f"Cannot differentiate with respect to {place}: it is of type "
            f"{getattr(leaf, 'dtype', type(leaf).__name__)}, and only floating-point and complex values have "
            f"derivatives. Write {write}, or choose other argnums."
        )
    if isinstance(leaf, float):
        return np.float64(leaf)
    if isinstance(leaf, complex):
        return np.complex128(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fc":
        return np.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
    raise TypeError(
        f"Cannot differentiate with respect to {place}: it is a {type(leaf).__name__}. Arguments are arrays, "
        "numbers, and containers of them; choose other argnums, or pass it by a closure."
    )


def output_type(leaf: Any, transform: str, place: str) -> ArrayType:
    """
    Return the type of a leaf of the output of a function.

    Args:
        leaf: The leaf.
        transform: Who took the derivative, for the message: `vjp`.
        place: Where in the output the leaf is: `[0]['weights']`; empty if it is the output itself.

    Raises:
        TypeError: It is neither an array of numbers nor a number.
    """
    if isinstance(leaf, (np.ndarray, np.generic, TracedArray, bool, int, float, complex)):
        kind = type_of(leaf)
        if kind.dtype.kind in "fciub":
            return kind
        found = f"an array of dtype {kind.dtype}"
    else:
        found = f"{leaf!r:.40} of type {type(leaf).__name__}"
    raise TypeError(
        f"{transform} was given a function that returned {found}{f' at {place}' if place else ''}. The outputs of a "
        "function are arrays, numbers, and containers of them: leave the rest out, or give it to the caller by "
        "has_aux=True of grad and value_and_grad."
    )


def output_types(leaves: Sequence[Any], structure: Any, transform: str) -> list[ArrayType]:
    """Return the types of the leaves of the output of a function; see `output_type`."""
    return [output_type(x, transform, place) for x, place in zip(leaves, paths_of(structure), strict=True)]


def single_output(leaves: Sequence[Any], structure: Any, transform: str) -> Any:
    """
    Return the output of a function that returns no container.

    Raises:
        TypeError: It is a container, or None.
    """
    container = structure.type
    if container is None:
        return leaves[0]
    name = "None (is a `return` missing?)" if container is type(None) else f"a {container.__name__} of {len(leaves)}"
    raise TypeError(
        f"{transform} was given a function that returned {name}. It needs one real number, as a scalar or an array "
        "without axes: return that alone, with has_aux=True as (number, anything else), or use vjp or jacobian for "
        "several outputs."
    )
