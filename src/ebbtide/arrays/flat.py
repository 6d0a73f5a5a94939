"""Containers of arrays as one vector, and back: what optimizers step, copy and save in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import flatten, paths_of, unflatten
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.primitive import matched
from ebbtide.arrays.traced import TracedArray


def ravel_tree(tree: Any) -> tuple[Any, Unravel]:
    """
    Return the leaves of a container as one vector, and the function that makes such containers of vectors.

    Args:
        tree: A container of arrays and numbers. Where these differ in dtype, the vector has the dtype to which NumPy
            promotes them.

    Returns:
        (vector, unravel): a new contiguous vector with the leaves one after the other in the order of the container,
        each in C order; `unravel(vector)` is a container of the same form. Both can be differentiated, traced and
        batched.

    Raises:
        TypeError: A leaf is no array of numbers and no number.
        TraceError: A leaf is a masked array, whose mask would be lost, or a matrix.

    Memory:
        The vector. Leaves that `unravel` makes of a plain vector are views of it, unless their dtype is another one.

    Example:
        >>> import numpy as np
        >>> flat, unravel = ravel_tree({"w": np.ones((2, 2)), "b": np.zeros(2)})
        >>> flat
        array([0., 0., 1., 1., 1., 1.])
        >>> unravel(2 * flat)["w"]
        array([[2., 2.],
               [2., 2.]])
    """
    leaves, structure = flatten(tree)
    kinds = tuple([_kind_of(leaf, place) for leaf, place in zip(leaves, paths_of(structure), strict=True)])
    dtype = np.result_type(*{kind.dtype for kind in kinds}) if kinds else np.dtype(np.float64)
    return _joined(leaves, kinds, dtype), Unravel(structure, kinds, dtype)


def _kind_of(leaf: Any, place: str) -> ArrayType:
    if isinstance(leaf, (np.ndarray, np.generic, TracedArray, bool, int, float, complex)):
        refuse_class(type(leaf), f"ravel_tree cannot take the leaf{place and ' ' + place}")
        kind = type_of(leaf)
        if kind.dtype.kind in "fciub":
            return kind
    found = getattr(leaf, "dtype", type(leaf).__name__)
    raise TypeError(
        f"ravel_tree was given a container whose leaf{place and ' ' + place} is of type {found}. Leaves are arrays of "
        "numbers, and numbers: keep the rest beside the container."
    )


def _joined(leaves: Sequence[Any], kinds: Sequence[ArrayType], dtype: Any) -> Any:
    """Return leaves one after the other: of plain ones without a copy on the way."""
    if any(type(leaf) is TracedArray for leaf in leaves):
        parts = [np.reshape(leaf, (-1,)) for leaf in leaves]
        return np.concatenate([part if part.dtype == dtype else part.astype(dtype) for part in parts])
    flat = np.empty(sum([kind.size for kind in kinds]), dtype)
    start = 0
    for leaf, kind in zip(leaves, kinds, strict=True):
        flat[start : start + kind.size].reshape(kind.shape)[...] = leaf
        start += kind.size
    return flat


@final
@dataclass(frozen=True, slots=True)
class Unravel:
    """
    Makes containers of vectors: what `ravel_tree` returned.

    Args:
        structure: That of the container.
        kinds: Shapes and dtypes of the leaves.
        dtype: That of the vector.

    Memory:
        Holds no array.
    """

    structure: Any
    kinds: tuple[ArrayType, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements of the vector."""
        return sum([kind.size for kind in self.kinds])

    @property
    def names(self) -> list[str]:
        """How each leaf is reached, such as `['weights'][0]`."""
        return paths_of(self.structure)

    def __call__(self, vector: Any) -> Any:
        """
        Return the container whose leaves are the parts of a vector.

        Args:
            vector: A vector of this size. Where all leaves had one dtype, they take that of the vector; else the vector
                has to be of the dtype that `ravel_tree` gave it, and the leaves have theirs.

        Raises:
            ValueError: It has another shape.
            TypeError: It has another dtype.
        """
        if np.shape(vector) != (self.size,):
            raise ValueError(
                f"unravel was given an array of shape {np.shape(vector)}, and the container has {self.size} elements "
                f"in {len(self.kinds)} leaves. Give it a vector of that length."
            )
        mixed = any(kind.dtype != self.dtype for kind in self.kinds)
        if mixed and vector.dtype != self.dtype:
            raise TypeError(
                f"unravel was given a vector of dtype {vector.dtype}, and the leaves, of several dtypes, were made "
                f"one of {self.dtype}. Write vector.astype(np.{self.dtype})."
            )
        leaves, start = [], 0
        for kind in self.kinds:
            part = vector[start : start + kind.size]
            start += kind.size
            part = matched(part, kind) if mixed else part
            leaves.append(np.reshape(part, kind.shape))
        return unflatten(self.structure, leaves)

