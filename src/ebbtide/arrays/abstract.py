"""Abstract arrays: shape and dtype and no data, on which functions run to find the types of what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import abstract_types
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import Primitive
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError

Watch = Callable[[Primitive | None, tuple[Any, ...], Any, TracedArray], None]


@final
class AbstractTrace:
    """
    Infers the types of results and computes nothing.

    Args:
        watch: Called for each operation with the primitive, the operands, the parameters and the result; without a
            primitive for a constant, and for an array in the memory of an operand.

    Memory:
        Nothing but types.
    """

    __slots__ = ("closed", "fast", "level", "watch")

    def __init__(self, watch: Watch | None = None) -> None:
        self.level = -1  # outside of all traces: an abstract array is data to them
        self.closed = False
        self.fast = False
        self.watch = watch

    def constant(self, value: Any) -> TracedArray:
        """Return an abstract array of the type of *value*."""
        made = TracedArray(self, None, type_of(value))
        if self.watch is not None:
            self.watch(None, (), None, made)
        return made

    def share(self, made: TracedArray, array: TracedArray) -> None:
        """Note that an array is in the memory of another one."""
        if self.watch is not None:
            self.watch(None, (array,), None, made)

    def apply(self, function: Any, args: Any, kwargs: Any, result: ArrayType) -> TracedArray:
        """Return an abstract array for the result of a function without a derivative."""
        return self.constant(result)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> TracedArray:
        """
        Return an abstract array of the type that the operation gives.

        Raises:
            TraceError: The primitive is opaque: it cannot tell the type without the data.
        """
        if primitive.infer is None:
            raise TraceError(
                f"{primitive.name}, called at {user_line()}, is opaque: the type of its result cannot be known "
                "without data. Run it on arrays."
            )
        bare = tuple([x.present()._value if type(x) is TracedArray else x for x in operands])
        made = TracedArray(self, None, primitive.infer(*abstract_types(bare), **(params or {})))
        if self.watch is not None:
            self.watch(primitive, operands, params, made)
        return made


def abstract_array(shape: tuple[int, ...], dtype: Any, trace: AbstractTrace | None = None) -> TracedArray:
    """
    Return an array without data.

    Args:
        shape: The shape.
        dtype: The dtype.
        trace: Where it belongs to; operands of one operation belong to one trace. By default a new one.

    Example:
        >>> x = abstract_array((3, 4), np.float32)
        >>> np.sin(x @ np.ones((4, 2), np.float32)).shape
        (3, 2)
    """
    return TracedArray(AbstractTrace() if trace is None else trace, None, ArrayType(shape, np.dtype(dtype)))
