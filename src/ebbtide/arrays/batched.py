"""
The trace of `vmap`: the members of a batch as one array, with a first axis that the function does not see.

An array of the trace has the type that one member has. Each operation is done once for all members, by the batch rule
of its primitive, on arrays that may be traced themselves: derivatives and programs, inside and around, go through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, with_shape
from ebbtide.arrays.context import above, beneath, current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive, made_outside, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError


@final
class BatchTrace:
    """
    Does operations for all members of a batch at once.

    What a traced array keeps with it is the array of all members, which are along its first axis, and its value is the
    type of a member. What is the same for all members has a value and keeps nothing.

    Args:
        level: Depth of nesting; larger than that of all traces around it.
        size: Number of members.

    Memory:
        Nothing: arrays live as long as what they are traced for.
    """

    __slots__ = ("closed", "fast", "level", "size")

    def __init__(self, level: int, size: int) -> None:
        self.level = level
        self.size = size
        self.closed = False
        self.fast = False

    def constant(self, value: Any) -> TracedArray:
        """Return an array that is the same for all members; it can take values that are not."""
        return TracedArray(self, None, value)

    def members(self, array: Any) -> TracedArray:
        """Return the array of which each member has the part at its place on the first axis of *array*."""
        return TracedArray(self, array, ArrayType(tuple(array.shape[1:]), array.dtype))

    def split(self, value: Any) -> tuple[Any, bool]:
        """Return the array of all members and True, or what is the same for all of them and False."""
        if type(value) is not TracedArray or value.present()._trace is not self:
            return (value.frozen() if type(value) is TracedArray else value), False
        return (value._value, False) if value._node is None else (value._node, True)

    def beneath(self, value: Any) -> tuple[Any, bool]:
        """Return what `split` does, of an array that traces inside of this one know with a derivative."""
        while type(value) is TracedArray and value.present()._trace.level > self.level:
            value = value._value
        return self.split(value)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> TracedArray:
        """Do an operation for all members."""
        if self.closed:
            raise TraceError(
                f"{primitive.name} at {user_line()} uses an array of a batch after the function that vmap had called "
                "had returned. Return the array from the function."
            )
        pairs = [self.split(operand) for operand in operands]
        # Of a list: a tuple of a generator is cut to size, and the interpreter keeps those that it cut.
        values = tuple([x if type(x) is TracedArray else plain(x) for x, _ in pairs])
        mapped = tuple([is_mapped for _, is_mapped in pairs])
        if not any(mapped):
            out = made_outside(primitive.bind(values, params), self.level)
            return TracedArray(self, None, with_shape(out))
        writes = bool(params) and "in_place" in params
        if writes:
            params = {**params, "in_place": params["in_place"] and is_private(operands[0])}
        if primitive.batch is None:
            out = by_members(primitive.name, _alone(primitive), values, mapped, params, self.size)
        elif primitive.runs_user_code:
            with beneath(self):
                out = primitive.batch(values, mapped, params or {}, self.size)
        else:
            out = primitive.batch(values, mapped, params or {}, self.size)
        if primitive.aliases and primitive.put is None:
            for operand in operands:  # no view of it would follow a later write
                if type(operand) is TracedArray and operand._sharing is not None:
                    operand._sharing.private = False
        made = self.members(made_outside(out, self.level))
        if writes:
            made.sharing().private = True
        return made

    def above(self) -> AbstractContextManager[None]:
        """Run the block, in which the function of the batch is called, inside of the traces that are there by now."""
        return above(self)


def innermost_batch() -> BatchTrace | None:
    """Return the batch whose function runs here if no derivative is taken inside of it, else None."""
    context = current()
    for trace in reversed(context.traces):
        if type(trace) is BatchTrace:
            others = (*context.traces, context.tape, context.tangent, context.capture)
            inside = any(other is not None and other.level > trace.level for other in others)
            return None if inside else trace
    return None


def is_private(x: Any) -> bool:
    """Return whether the members of an array are in memory that was made by a write and that nothing else holds."""
    if type(x) is not TracedArray or type(x._trace) is not BatchTrace or type(x._node) is not np.ndarray:
        return False
    sharing = x._sharing
    return sharing is not None and sharing.private and sharing.root is None


# How batch rules bring operands together.


def widened(x: Any, ndim: int) -> Any:
    """Return an array of members with axes of length 1 in front of theirs, so that each member has *ndim* axes."""
    missing = ndim + 1 - x.ndim
    return np.expand_dims(x, tuple(range(1, 1 + missing))) if missing > 0 else x


def ndim_of(x: Any, is_mapped: bool) -> int:
    """Return the number of axes of each member of an operand."""
    return getattr(x, "ndim", 0) - is_mapped


def aligned(values: Sequence[Any], mapped: Sequence[bool]) -> tuple[Any, ...]:
    """Return operands that NumPy broadcasts together as it would broadcast those of each member."""
    pairs = list(zip(values, mapped, strict=True))
    ndim = max([ndim_of(x, m) for x, m in pairs])
    return tuple([widened(x, ndim) if m else x for x, m in pairs])


def full(x: Any, is_mapped: bool, size: int) -> Any:
    """Return an operand as an array of members, also if it is the same for all of them."""
    if is_mapped:
        return x
    x = x if type(x) is TracedArray else np.asarray(x)
    return np.broadcast_to(x, (size, *x.shape))


def all_full(values: Sequence[Any], mapped: Sequence[bool], size: int) -> tuple[Any, ...]:
    """Return operands as arrays of members, also those that are the same for all of them."""
    return tuple([full(x, m, size) for x, m in zip(values, mapped, strict=True)])


def _alone(primitive: Primitive) -> Callable[..., Any]:
    """Return what does an operation for one member; of a user's function, which may give one array to all, copies."""
    if not primitive.runs_user_code:
        return primitive.bind
    return lambda operands, params: np.copy(primitive.bind(operands, params))


def by_members(
    name: str,
    function: Callable[..., Any],
    values: Sequence[Any],
    mapped: Sequence[bool],
    params: Any,
    size: int,
    kind: ArrayType | None = None,
) -> Any:
    """
    Return what a function gives for one member after the other.

    Args:
        name: Name of the operation, for messages.
        function: `function(operands, params)` of one member.
        values: The operands of all members.
        mapped: Which of them have the members on their first axis.
        params: The parameters.
        size: Number of members.
        kind: Type of the result, which an empty batch does not show.

    Raises:
        TraceError: The results differ in shape, or there is no member.
    """
    rows = []
    for k in range(size):
        row = function(tuple([x[k] if m else x for x, m in zip(values, mapped, strict=True)]), params)
        rows.append(with_shape(row))
    if not rows:
        if kind is None:
            raise TraceError(
                f"{name} at {user_line()} is done for each member alone, and the batch of vmap has none, so that the "
                "type of its result is not known. Do not call vmap for no members, or give "
                "ebbtide.primitive(batch=...)."
            )
        return np.zeros((0, *kind.shape), kind.dtype)
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise TraceError(
            f"{name} at {user_line()} gave arrays of the shapes {sorted(shapes)} for different members of vmap, and "
            "those of a batch have one shape. Choose elements with np.where in place of a mask as an index."
        )
    return np.stack(rows)
