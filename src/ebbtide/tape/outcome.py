"""
What a pull is going to return and to allocate, found by running its rule on arrays without data.

A rule is made of operations that have rules themselves, so an abstract trace sees each array that it makes, and
weak references see when it dies.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.abstract import AbstractTrace
from ebbtide.arrays.array_type import ArrayType, owner_of, type_of
from ebbtide.arrays.context import outside
from ebbtide.arrays.primitive import BORROWED, FRESH, PASSED, Primitive, Pull
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import EbbtideError
from ebbtide.tape.forms import Form, abstract_form, arrays_of_form, form_of, like

# Smaller arrays are not worth the time.
_LEAST = 1 << 12
# Rules of users' own operations are never run without data: they may do anything.
_USERS = "ebbtide.arrays.custom"


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What a pull returns.

    Args:
        passes: Whether it returns its cotangent or a view of it.
        nbytes: Else the bytes that its result keeps alive.
        temporary: Bytes that it takes beside its result for a moment.
        ours: Whether the sweep may write into the result; of a cotangent that is passed on, if that was ours.
        form: Its form, if it is no array.
    """

    passes: bool
    nbytes: int
    temporary: int
    ours: bool
    form: Form | None = None

    def at_least(self, nbytes: int) -> Outcome:
        """Return that of a pull which was seen to take so many bytes, its result among them."""
        return replace(self, temporary=max(self.temporary, nbytes - self.nbytes)) if nbytes else self


# Of a pull that works in the memory of its cotangent.
CONSUMED = Outcome(passes=True, nbytes=0, temporary=0, ours=True)


@final
class _Block:
    """Memory, and how many arrays are in it."""

    __slots__ = ("holders", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.holders = 0


@final
class _Watch:
    """Counts the memory of abstract arrays; `close` ends it."""

    __slots__ = ("_arrays", "live", "peak")

    def __init__(self) -> None:
        self._arrays: dict[int, tuple[Any, _Block]] = {}
        self.live = 0
        self.peak = 0

    def see(self, primitive: Primitive | None, operands: tuple[Any, ...], params: Any, made: TracedArray) -> None:
        """Count the result of an operation, and what a rule made without one."""
        for operand in operands:
            if type(operand) is np.ndarray and self.block_of(operand) is None:
                self.put(operand, _Block(owner_of(operand).nbytes))
        if primitive is not None and primitive.scratch is not None:
            beside = int(primitive.scratch(params or {}, *map(type_of, operands)))
            self.peak = max(self.peak, self.live + made._value.nbytes + beside)
        block = self.block_of(operands[0]) if operands and (primitive is None or primitive.aliases) else None
        self.put(made, block or _Block(made._value.nbytes))

    def put(self, array: Any, block: _Block) -> None:
        """Note that an array is in a block."""
        if not block.holders:
            self.live += block.nbytes
            self.peak = max(self.peak, self.live)
        block.holders += 1
        key = id(array)
        arrays, me = self._arrays, self

        def died(_: Any) -> None:
            if arrays.pop(key, None) is not None:
                block.holders -= 1
                if not block.holders:
                    me.live -= block.nbytes

        arrays[key] = weakref.ref(array, died), block

    def block_of(self, array: Any) -> _Block | None:
        """Return the block that an array is in; None for one that was not seen."""
        found = self._arrays.get(id(array))
        return None if found is None else found[1]

    def close(self) -> None:
        """Forget all arrays."""
        self._arrays.clear()


def is_users(pull: Pull) -> bool:
    """Return whether a pull is of a user's own operation: of it only sizes are known, whatever its parameters."""
    return pull.rule.__module__ == _USERS


def is_large(g: Any, kind: ArrayType, saved: list[Any]) -> bool:
    """Return whether it is worth the time to run a pull without data, for what it is given and what it returns."""
    return max([g.nbytes, kind.nbytes, *[getattr(value, "nbytes", 0) for value in saved]]) >= _LEAST


def outcome_of(pull: Pull, g: Any, kind: ArrayType, params: Any, saved: list[Any]) -> Outcome:
    """
    Return what a pull is going to return and to allocate.

    Args:
        pull: The pull.
        g: Type or form of its cotangent.
        kind: Type of the operand.
        params: Parameters of the operation.
        saved: Types or forms of the saved values that it takes, or numbers; None for what is not known.
    """
    if is_large(g, kind, saved) and not is_users(pull) and not any(value is None for value in saved):
        try:
            return _watched(pull, g, kind, params, saved)
        except (EbbtideError, AttributeError, IndexError, TypeError, ValueError):
            pass  # the rule wants data
    return _guessed(pull, g, kind, saved)


def _guessed(pull: Pull, g: Any, kind: ArrayType, saved: list[Any]) -> Outcome:
    """Return what a pull returns judging by its sizes."""
    result = like(kind, g, *saved)
    form = result if type(result) is Form else None
    same = result.nbytes == g.nbytes
    # Forward mode does to tangents what is done to values, and adds up.
    count = pull.temporaries if form is None else pull.temporaries + 1
    temporary = count * max(result.nbytes, g.nbytes) + (0 if same else g.nbytes)
    if is_users(pull):
        return Outcome(False, result.nbytes, temporary, False, form)
    if pull.result is FRESH or (pull.result is PASSED and not same):
        return Outcome(False, result.nbytes, temporary, True, form)
    return Outcome(True, 0, 0, pull.result is PASSED, form)


def _watched(pull: Pull, g: Any, kind: ArrayType, params: Any, saved: list[Any]) -> Outcome:
    """Return what a pull returns by running it on arrays without data."""
    watch = _Watch()
    try:
        trace = AbstractTrace(watch.see)
        cotangent, given = abstract_form(g, trace), _Block(0)
        for array in arrays_of_form(cotangent):
            watch.put(array, given)
        values = [abstract_form(value, trace) for value in saved]
        for array in [array for value in values for array in arrays_of_form(value)]:
            watch.put(array, _Block(0))  # a view of it takes nothing
        # The function around may still run: on its tapes a rule that communicates would be recorded, and swept later.
        with outside():
            result = pull.rule(cotangent, kind, params, *values)
        arrays = arrays_of_form(result)
        if not arrays:
            return _guessed(pull, g, kind, saved)  # made of constants
        found = form_of(result)
        form = found if type(found) is Form else None
        blocks = [watch.block_of(array) for array in arrays]
        if pull.result is not FRESH and all(block is given for block in blocks):
            return Outcome(True, 0, watch.peak, pull.result is PASSED, form)
        ours, whole = pull.result is not BORROWED, like(kind, found)
        if any(block is None or block is given for block in blocks):  # what is new copies memory that has none here
            return Outcome(False, whole.nbytes, watch.peak, ours, form)
        nbytes = sum({id(block): block.nbytes for block in blocks if block is not None}.values())
        extra = 0
        if result.dtype != kind.dtype:
            extra, nbytes = nbytes, whole.nbytes  # the sweep casts it
        return Outcome(False, nbytes, watch.peak + extra - nbytes, ours, form)
    finally:
        watch.close()
