"""
What a pull is going to return and to allocate, found by running its rule on arrays without data.

A rule is made of operations that have rules themselves, so an abstract trace sees each array that it makes, and
weak references see when it dies.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.abstract import AbstractTrace, abstract_array
from ebbtide.arrays.array_type import ArrayType, owner_of, type_of
from ebbtide.arrays.primitive import BORROWED, FRESH, PASSED, Primitive, Pull
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import EbbtideError

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
    """

    passes: bool
    nbytes: int
    temporary: int
    ours: bool


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
        block = self.block_of(operands[0]) if primitive is not None and primitive.aliases else None
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


def outcome_of(pull: Pull, out: ArrayType, kind: ArrayType, params: Any, saved: list[Any]) -> Outcome:
    """
    Return what a pull is going to return and to allocate.

    Args:
        pull: The pull.
        out: Type of its cotangent.
        kind: Type of the operand.
        params: Parameters of the operation.
        saved: Types of the saved values that it takes, or numbers; None for what is not known.
    """
    large = max(out.nbytes, kind.nbytes) >= _LEAST
    if large and not is_users(pull) and not any(value is None for value in saved):
        try:
            return _watched(pull, out, kind, params, saved)
        except (EbbtideError, AttributeError, IndexError, TypeError, ValueError):
            pass  # the rule wants data
    return _guessed(pull, out, kind)


def _guessed(pull: Pull, out: ArrayType, kind: ArrayType) -> Outcome:
    """Return what a pull returns judging by its sizes."""
    same = kind.nbytes == out.nbytes
    temporary = pull.temporaries * max(kind.nbytes, out.nbytes) + (0 if same else out.nbytes)
    if is_users(pull):
        return Outcome(False, kind.nbytes, temporary, False)
    if pull.result is FRESH or (pull.result is PASSED and not same):
        return Outcome(False, kind.nbytes, temporary, True)
    return Outcome(True, 0, 0, pull.result is PASSED)


def _watched(pull: Pull, out: ArrayType, kind: ArrayType, params: Any, saved: list[Any]) -> Outcome:
    """Return what a pull returns by running it on arrays without data."""
    watch = _Watch()
    try:
        trace = AbstractTrace(watch.see)
        g = abstract_array(out.shape, out.dtype, trace)
        given = _Block(0)
        watch.put(g, given)
        values = [abstract_array(v.shape, v.dtype, trace) if type(v) is ArrayType else v for v in saved]
        for value in values:
            if type(value) is TracedArray:
                watch.put(value, _Block(0))  # a view of it takes nothing
        result = pull.rule(g, kind, params, *values)
        if type(result) is not TracedArray:
            return _guessed(pull, out, kind)  # made of constants
        block = watch.block_of(result)
        if block is given and pull.result is not FRESH:
            return Outcome(True, 0, watch.peak, pull.result is PASSED)
        if block is None or block is given:  # what is new copies memory that has none here
            return Outcome(False, kind.nbytes, watch.peak, pull.result is not BORROWED)
        extra = 0
        if result.dtype != kind.dtype:
            extra, block = block.nbytes, _Block(kind.nbytes)  # the sweep casts it
        return Outcome(False, block.nbytes, watch.peak + extra - block.nbytes, pull.result is not BORROWED)
    finally:
        watch.close()
