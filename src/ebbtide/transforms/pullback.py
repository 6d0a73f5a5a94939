"""Reverse mode for any function: its value, and the pullback of cotangents."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, cast, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import flatten, form_of, frozen_leaf, output_types, unflatten
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.location import user_line
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.primitive import matched
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.errors import CotangentError, ReleasedValueError
from ebbtide.tape.account import account
from ebbtide.tape.recording import Recording
from ebbtide.tape.saved import guard_shared


def vjp(
    f: Callable[..., Any], *args: Any, retain: bool = False, budget: Budget | None = None
) -> tuple[Any, Pullback]:
    """
    Run *f* and return its value and the pullback of cotangents.

    Args:
        f: A function of arrays and containers of arrays.
        *args: Its arguments, all differentiated.
        retain: Keep the saved values, so that the pullback can be called several times, by several threads in turns.
        budget: The bytes that the run and the pullback may take; None for no bound.

    Returns:
        (value, pullback). `pullback(cotangent)`, with a cotangent of the structure of the value, returns a
        tuple with the cotangent of each argument.

    Raises:
        TypeError: An input is no floating-point number, or an output is no array and no number.
        BudgetError: The budget is too small.

    Memory:
        The saved values of all operations, until the pullback is called, or dropped.

    Example:
        >>> import numpy as np
        >>> value, pullback = vjp(np.exp, np.zeros(2))
        >>> pullback(np.ones(2))
        (array([1., 1.]),)
    """
    check_function(f, "vjp")
    with account(budget, retain=retain) as acct:
        recording = Recording(f, args, {}, range(len(args)), acct)
        structure = recording.structure
        kinds = output_types(recording.outputs, structure, "vjp")
        roots = recording.roots()
        guard_shared([node for node, _ in roots if node is not None], [value for _, value in roots])
        acct.keep_open()
    # No views that later writes would change.
    value = unflatten(structure, [frozen_leaf(value) for _, value in roots])
    return value, Pullback(recording, structure, roots, kinds, retain)


@final
class Pullback:
    """
    Takes a cotangent of the outputs of a function to the cotangents of its arguments.

    Threads may share one: their calls wait for each other.

    Memory:
        Holds the tape of one run of the function until it is called, unless it retains it.
    """

    __slots__ = ("__weakref__", "_consumer", "_kinds", "_lock", "_recording", "_retain", "_roots", "_structure")

    def __init__(
        self, recording: Recording, structure: Any, roots: list[Any], kinds: list[ArrayType], retain: bool
    ) -> None:
        self._recording: Recording | None = recording
        self._consumer = ""
        self._structure = structure
        self._roots = [node for node, _ in roots]
        self._kinds = kinds
        self._retain = retain
        # A sweep takes the saved values and the snapshots of loops from place to place; two at a time would mix them.
        self._lock = RLock()

    @property
    def depends(self) -> list[bool]:
        """Whether each array of the value depends on the arguments; empty once the saved values are consumed."""
        return [node is not None for node in self._roots]

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        """
        Return the cotangents of the arguments.

        Args:
            cotangent: Of the structure, shapes and dtypes of the value of the function.

        Raises:
            CotangentError: It is of another structure, shape or kind of dtype.
            ReleasedValueError: An earlier call consumed the saved values.
        """
        self._held()
        leaves, structure = flatten(cotangent)
        if structure != self._structure:
            raise CotangentError(
                f"The cotangent has the structure {form_of(structure)}, and the value of the function has "
                f"{form_of(self._structure)}. Give one cotangent for each output."
            )
        del cotangent
        return self.pull(leaves)

    def pull(self, cotangents: list[Any], *, retain: bool | None = None) -> tuple[Any, ...]:
        """
        Return the cotangents of the arguments for cotangents that are given away.

        Python keeps the argument of a call until the call returns; what is in a list can be gone at its last use.

        Args:
            cotangents: One for each array of the value, in the order of its containers, None for zeros. They are not
                written into; the list is emptied.
            retain: Whether the saved values are kept for another call; None for what `vjp` was told.

        Raises:
            CotangentError: One is of another shape or kind of dtype, or they are more or less; nothing is consumed.
            ReleasedValueError: An earlier call consumed the saved values.

        Memory:
            Each cotangent until it is used, if nobody else holds it.

        Example:
            >>> _, pullback = vjp(np.exp, np.zeros(2))
            >>> given = [np.ones(2)]
            >>> pullback.pull(given), given
            ((array([1., 1.]),), [])
        """
        with self._lock:
            recording = self._held()
            if not isinstance(cast("object", cotangents), list) or len(cotangents) != len(self._roots):
                raise CotangentError(
                    f"pull takes a list with a cotangent, or None, for each of the {len(self._roots)} arrays of the "
                    f"value, and was given {cotangents!r:.60}. A container of cotangents is for the pullback itself."
                )
            seeds = [
                (node, seed_of(leaf, kind), False)
                for node, kind, leaf in zip(self._roots, self._kinds, cotangents, strict=True)
                if node is not None and leaf is not None
            ]
            cotangents.clear()
            if self._retain if retain is None else retain:
                return tuple(recording.gradients(seeds, retain=True))
            recording.tape.consumer = self._consumer = f"the pullback called at {user_line()}"
            self._recording, self._roots = None, []
            try:
                gradients = tuple(recording.gradients(seeds))
            except BaseException as error:
                recording.account.fail(error)
                raise
            recording.account.close()
            return gradients

    def _held(self) -> Recording:
        """Return the recording, unless it was consumed."""
        if self._recording is None:
            raise ReleasedValueError(
                f"The saved values of this pullback are gone: {self._consumer} consumed them. Ask vjp for retain=True, "
                "or torch for retain_graph=True, to pull back several times."
            )
        return self._recording

    def free(self) -> None:
        """Let go of all saved values; a later call raises."""
        with self._lock:
            if self._recording is None:
                return
            self._recording.tape.consumer = self._consumer = f"free() at {user_line()}"
            self._recording.account.close()
            for node in self._roots:
                if node is not None:
                    node.parents = node.saved = None
            self._recording, self._roots = None, []


def seed_of(leaf: Any, kind: ArrayType, name: str = "cotangent", place: str = "output") -> Any:
    """Return a cotangent given by the user in the type of its output, or a tangent in that of its argument."""
    value = leaf if isinstance(leaf, (np.ndarray, np.generic, TracedArray)) else np.asarray(leaf)
    if type(value) is not np.ndarray:
        refuse_class(type(value), f"Cannot take a {name} of an {place}")
    if value.shape != kind.shape or value.dtype.kind not in ("fciub" if kind.dtype.kind == "c" else "fiub"):
        raise CotangentError(
            f"A {name} of type {value.dtype}{list(value.shape)} was given for an {place} of type {kind}. "
            f"Give an array of the shape and dtype of the {place}."
        )
    return matched(value, kind)
