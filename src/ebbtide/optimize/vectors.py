"""Controls as vectors: checks, steps along a direction, pairings, and the way to one real vector and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, axes_in_memory, type_of
from ebbtide.arrays.containers import as_value, flatten, form_of, paths_of


def check_leaves(given: Any, structure: Any, kinds: tuple[ArrayType, ...], what: str) -> list[Any]:
    """
    Return the leaves of a container that has to be of the type of a control, arrays without gaps in memory.

    Args:
        given: The container.
        structure: The structure that it has to have.
        kinds: The shapes and dtypes that its leaves have to have.
        what: What it is, for the message.

    Raises:
        ValueError: It has another structure, or a leaf has another shape.
        TypeError: A leaf has another dtype, or is no floating-point number.
    """
    leaves, theirs = flatten(given)
    if theirs != structure:
        raise ValueError(
            f"{what} has the structure {form_of(theirs)}, and its control has {form_of(structure)}. Give a container "
            "of the same form."
        )
    found: list[Any] = []
    for leaf, kind, place in zip(leaves, kinds, paths_of(structure), strict=True):
        value = as_value(leaf, f"{what}{place}")
        have = type_of(value)
        if have.shape != kind.shape:
            raise ValueError(
                f"{what}{place} is of type {have}, and its control of type {kind}. Give an array of the control's "
                "shape, or make a Control of the new one."
            )
        if have.dtype != kind.dtype:
            raise TypeError(
                f"{what}{place} is of type {have}, and its control of type {kind}. Write "
                f"x.astype({str(kind.dtype)!r}), or make a Control of {have.dtype}."
            )
        found.append(_without_gaps(value))
    return found


def _without_gaps(leaf: Any) -> Any:
    """Return a leaf that lies as its copies do, in whatever order, so that all of them give the same bits."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    return leaf if leaf.transpose(axes_in_memory(leaf)).flags.c_contiguous else copied(leaf)


def copied(leaf: Any) -> Any:
    """Return a leaf in memory of its own, of the same order of axes, without gaps."""
    if isinstance(leaf, np.ndarray):
        return np.array(leaf, order="K")
    return leaf.copy() if getattr(leaf, "ndim", 0) else leaf


def moved(leaves: list[Any], distance: float, direction: list[Any]) -> list[Any]:
    """Return leaves + distance * direction, in the dtypes of the leaves."""
    found: list[Any] = []
    for x, d in zip(leaves, direction, strict=True):
        dtype = type_of(x).dtype
        there = x + d * dtype.type(distance)
        found.append(np.asarray(there, dtype) if isinstance(x, np.ndarray) else there)  # NumPy has its own byte order
    return found


def pairing(cotangent: list[Any], direction: list[Any]) -> float:
    """Return the change of a real function with this cotangent along a direction, summed in double precision."""
    pairs = zip(cotangent, direction, strict=True)
    return float(sum(np.real(np.dot(np.ravel(_precise(c)), np.ravel(_precise(d)))) for c, d in pairs))


def _precise(x: Any) -> Any:
    return np.asarray(x, np.result_type(type_of(x).dtype, np.float64))


def conjugate(leaf: Any) -> Any:
    """Return the complex conjugate of a leaf in memory of its own; an array without axes stays an array."""
    found = np.conj(leaf)  # a copy, also of real arrays
    return np.asarray(found) if isinstance(leaf, np.ndarray) else found


def ravel(leaves: list[Any]) -> Any:
    """Return leaves as one float64 vector; a complex number becomes two neighbors, real and imaginary part."""
    kinds = [np.complex128 if np.iscomplexobj(leaf) else np.float64 for leaf in leaves]
    parts = [np.ravel(np.asarray(leaf, kind)).view(np.float64) for leaf, kind in zip(leaves, kinds, strict=True)]
    return np.concatenate(parts)


def unravel(vector: Any, kinds: tuple[ArrayType, ...], numbers: tuple[bool, ...]) -> list[Any]:
    """
    Return the leaves that `ravel` made a vector of, in memory of their own.

    Args:
        vector: A float64 vector.
        kinds: Shape and dtype of each leaf.
        numbers: Whether each leaf is a number, and no array.
    """
    found: list[Any] = []
    start = 0
    for kind, number in zip(kinds, numbers, strict=True):
        is_complex = kind.dtype.kind == "c"
        stop = start + kind.size * (2 if is_complex else 1)
        # A copy, as the vector is the optimizer's and changes under our hands.
        part = np.array(vector[start:stop], np.float64)
        part = part.view(np.complex128) if is_complex else part
        leaf = part.astype(kind.dtype, copy=False).reshape(kind.shape)
        found.append(leaf[()] if number else leaf)
        start = stop
    return found
