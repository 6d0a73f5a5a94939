"""Controls: what a functional is differentiated with respect to, and in which inner product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_value, flatten, form_of, paths_of, unflatten
from ebbtide.arrays.functions import check_call
from ebbtide.errors import CotangentError
from ebbtide.optimize.vectors import conjugate, copied


@final
@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """
    An unknown of an optimization, with the inner product of its space.

    The derivative of a functional is a cotangent: what it pairs with a direction is the change of the functional. The
    gradient is a vector, and depends on the inner product <a, b>_M = Re(conj(a) . M b): it is g with
    <g, d>_M = c . d for each direction d, so g = M^-1 conj(c). On a mesh with cells of different sizes the l2 gradient
    depends on the mesh; that of the mass matrix does not.

    Args:
        value: Where the optimization starts: an array of any shape, a number, or a container of them, floating-point
            or complex. Kept by reference; calls take their own values, and only the structure, shapes and dtypes
            count for them.
        riesz: The inner product: "l2" for M = 1; positive weights for a diagonal M, one number, or a container of the
            structure of *value* whose leaves broadcast to its shapes (cell volumes); or a function that takes conj(c)
            and returns M^-1 conj(c), both of the structure of *value* (a solve with the mass matrix).

    Raises:
        TypeError: A leaf of the value is no floating-point or complex array or number, or *riesz* is a function of
            something else.
        ValueError: The value has no leaves; or the weights do not fit it, or are not positive.

    Memory:
        Refers to the value and to the weights.

    Source:
        Schwedes, Ham, Funke, Piggott, Mesh Dependence in PDE-Constrained Optimisation (2017).

    Example:
        >>> import numpy as np
        >>> widths = np.array([0.5, 0.25])
        >>> Control(np.zeros(2), riesz=widths).gradient(np.array([1.0, 1.0]))
        array([2., 4.])
    """

    value: Any
    riesz: Any = "l2"

    def __post_init__(self) -> None:
        leaves, structure = flatten(self.value)
        if not leaves:
            raise ValueError("The value of a control has no leaves; give an array, a number, or a container of them.")
        values = [as_value(x, f"a control{place}") for x, place in zip(leaves, paths_of(structure), strict=True)]
        if isinstance(self.riesz, str):
            if self.riesz != "l2":
                raise ValueError(
                    f"riesz={self.riesz!r}: give 'l2', positive weights, or a function that solves with the mass "
                    "matrix."
                )
        elif callable(self.riesz):
            takes = "It takes conj(c) of a cotangent c, and returns the gradient."
            check_call(self.riesz, "The function riesz=", "riesz(c)", takes, 1)
        else:
            _weights(self.riesz, structure, [type_of(x) for x in values])

    @property
    def structure(self) -> Any:
        """The structure of the value."""
        return flatten(self.value)[1]

    @property
    def kinds(self) -> tuple[ArrayType, ...]:
        """Shape and dtype of each leaf of the value."""
        return tuple([type_of(leaf) for leaf in flatten(self.value)[0]])

    def gradient(self, cotangent: Any) -> Any:
        """
        Return the gradient that belongs to a cotangent, in the inner product of this control.

        Args:
            cotangent: Of the structure and shapes of the value, and real where that is real; not changed.

        Returns:
            M^-1 conj(cotangent), of the structure, shapes and dtypes of the value, in memory of its own.

        Raises:
            CotangentError: The cotangent, or what the function *riesz* returns, has another structure or shape than the
                value, or is not real or complex as that is.

        Memory:
            One copy of the cotangent, and what the function *riesz* takes.
        """
        leaves, structure = flatten(cotangent)
        ours, kinds = self.structure, self.kinds
        _check_types(leaves, structure, ours, kinds, "A cotangent")
        vectors = [conjugate(x) for x in leaves]
        if isinstance(self.riesz, str):
            return unflatten(ours, [_like(x, like, kind) for x, like, kind in zip(vectors, leaves, kinds, strict=True)])
        if not callable(self.riesz):
            weights = _weights(self.riesz, ours, kinds)
            rows = zip(vectors, leaves, weights, kinds, strict=True)
            return unflatten(ours, [_like(x / w, like, kind) for x, like, w, kind in rows])
        returned, theirs = flatten(self.riesz(unflatten(ours, vectors)))
        _check_types(returned, theirs, ours, kinds, "What the function riesz of a control returned")
        # Copied, as the function may return an array that it keeps.
        rows = zip(returned, leaves, kinds, strict=True)
        return unflatten(ours, [_like(copied(x), like, kind) for x, like, kind in rows])


def _like(x: Any, like: Any, kind: ArrayType) -> Any:
    """Return an array in a dtype, as a number if *like* is one."""
    found = np.asarray(x, kind.dtype)
    return found if isinstance(like, np.ndarray) else found[()]


def _check_types(leaves: list[Any], structure: Any, ours: Any, kinds: tuple[ArrayType, ...], what: str) -> None:
    """Raise unless leaves have the structure and shapes of a control, and are real where it is."""
    if structure != ours:
        raise CotangentError(
            f"{what} has the structure {form_of(structure)}, and the value of the control has {form_of(ours)}."
        )
    for leaf, kind, place in zip(leaves, kinds, paths_of(ours), strict=True):
        have = type_of(np.asarray(leaf))
        if have.shape != kind.shape or have.dtype.kind not in {"f", kind.dtype.kind}:
            raise CotangentError(
                f"{what}{place and f' at {place}'} is of type {have}, and the value of the control of type {kind}. "
                "Both have the same shape, and are real or complex alike."
            )


def _weights(riesz: Any, structure: Any, kinds: Any) -> list[Any]:
    """Return a weight, or an array of weights, for each leaf."""
    given, theirs = flatten(riesz)
    if len(given) == 1 and np.ndim(given[0]) == 0:
        given, theirs = given * len(kinds), structure
    if theirs != structure:
        raise ValueError(
            f"The weights of a control have the structure {form_of(theirs)}, and its value has {form_of(structure)}. "
            "Give one number, or weights for each leaf."
        )
    found: list[Any] = []
    for leaf, kind, place in zip(given, kinds, paths_of(structure), strict=True):
        weights = np.asarray(leaf)
        if weights.dtype.kind not in "fiu" or not (np.all(weights > 0) and np.all(np.isfinite(weights))):
            least = f", the least is {weights.min()!r}" if weights.dtype.kind in "fiub" else ""
            raise ValueError(
                f"The weights{place} of a control are of dtype {weights.dtype}{least}: an "
                "inner product has real, positive and finite weights. Leave out unknowns that must not change."
            )
        try:
            fits = np.broadcast_shapes(weights.shape, kind.shape) == kind.shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"The weights{place} of a control have the shape {weights.shape}, which does not broadcast to that of "
                f"its value, {kind.shape}."
            )
        found.append(weights)
    return found
