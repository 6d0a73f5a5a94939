"""
Exchanges: linear operations on the arrays of all ranks together, each with its transpose.

An exchange takes one array on each rank and gives one on each. Put one below the other, the arrays of all ranks are one
vector, and the exchange is a matrix; its transpose is an exchange, too, which is what a reverse sweep does. Forward
mode does to the tangents what it does to the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of, with_shape
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.context import current, meet_plain
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import FRESH, PASSED, Primitive, Pull, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.errors import TraceError
from ebbtide.mpi.waiting import channel
from ebbtide.tape.communication import presence_on, require
from ebbtide.tape.record import Tape
from ebbtide.tape.tangent import TangentTrace


@dataclass(frozen=True, slots=True)
class Exchange(ABC):
    """
    A linear operation on the arrays of all ranks of a communicator.

    Args:
        comm: The communicator.
        taken: Type of the array that this rank gives away.
        given: Type of the one that it gets.
    """

    comm: Any = field(repr=False)
    taken: ArrayType
    given: ArrayType

    @abstractmethod
    def run(self, array: np.ndarray) -> np.ndarray:
        """Return what this rank gets for an array, C-contiguous and of the type that it takes."""

    @property
    def is_two_way(self) -> bool:
        """Whether what a rank gives and what it gets may be of different dtypes, with other ranks."""
        return False

    @property
    def channel(self) -> Any:
        """The communicator on which the ranks talk."""
        return channel(self.comm)

    @property
    @abstractmethod
    def transposed(self) -> Exchange:
        """The transpose."""


def exchange(operation: Exchange, array: Any) -> Any:
    """
    Return what this rank gets in an exchange, recorded on all tapes of the calls around unless it is of integers.

    Args:
        operation: The exchange.
        array: What this rank gives away, traced or not.

    Raises:
        TraceError: It stands in a function that is batched, jitted or linearized.
    """
    # All ranks get one dtype; but of an exchange there and back each may get another one.
    if operation.given.dtype.kind in "iub" and not operation.is_two_way:
        return _done(apart(array), operation=operation)
    return recorded(operation, array)


def recorded(operation: Exchange, array: Any, traces: Sequence[Any] | None = None) -> Any:
    """
    Return what this rank gets in an exchange, recorded on all tapes of the calls around.

    Args:
        operation: The exchange.
        array: What this rank gives away, traced or not.
        traces: The traces of these calls, the innermost last, if they are not those of the present context.

    Raises:
        TraceError: As `exchange`.
    """
    result = _COMMUNICATE.bind((anchored(array, traces),), {"operation": operation})
    require(result)
    return result


def apart(array: Any) -> Any:
    """Return the value of an array of integers or booleans, which no derivative goes through; see `anchored`."""
    anchored(np.zeros(0))  # a region that runs again does so on all ranks
    meet_plain(value := bottom(array))
    return value


def given_array(value: Any) -> Any:
    """
    Return what a rank gives away as an array of numbers, in the byte order of the machine.

    Raises:
        TypeError: It is no array of numbers and no number.
        TraceError: It is of a class of arrays whose meaning would be lost, as the mask of a masked one.
    """
    array = plain(value)
    dtype = type_of(array).dtype
    if dtype.kind not in "biufc":
        raise TypeError(f"An array of dtype {dtype} was to be sent. Ebbtide sends numbers, and mpi4py what is none.")
    array = with_shape(array)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def traces_of(array: Any) -> list[Any]:
    """Return the traces that an array is on, the innermost last."""
    found = []
    while type(array) is TracedArray:
        found.insert(0, array._trace)
        array = array._value
    return found


def anchored(array: Any, traces: Sequence[Any] | None = None) -> Any:
    """Return an array as one that depends on whatever is differentiated around it, as it may on other ranks."""
    context = current()
    if context.follower is not None:
        raise _refusal("jit", "Jit the functions between the communications instead.")
    anchor: Any = None
    for trace in context.traces if traces is None else traces:
        if type(trace) is Tape:
            anchor = presence_on(trace, anchor)
        elif type(trace) is TangentTrace:
            if trace.linear is not None:
                raise _refusal("linearize", "Use jvp and vjp, or hvp.")
            value = np.zeros(0) if anchor is None else anchor
            anchor = TracedArray(trace, np.zeros(0), value)
        elif type(trace) is BatchTrace:
            raise _refusal("vmap", "Communicate arrays of all members instead, outside of vmap.")
    return array if anchor is None else _ANCHOR.bind((array, anchor))


def _refusal(who: str, advice: str) -> TraceError:
    return TraceError(f"Communication at {user_line()} in a function under {who}, which knows no other ranks. {advice}")


def _done(array: Any, *, operation: Exchange) -> Any:
    return operation.run(np.asarray(array, operation.taken.dtype, order="C"))


def _push_exchange(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    # The tangent is on the traces that the value is on.
    return recorded(params["operation"], tangents[0], traces_of(out))


def _pull_exchange(g: Any, kind: ArrayType, params: Any) -> Any:
    return recorded(params["operation"].transposed, g)


def _push_anchor(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    return zeros_like(values[0]) if tangents[0] is None else tangents[0]


def _no_elements(g: Any, kind: ArrayType, params: Any) -> Any:
    return np.zeros(kind.shape, kind.dtype)


_COMMUNICATE = Primitive(
    _done,
    name="communication",
    operands=("array",),
    pull=lambda k: Pull(_pull_exchange, result=FRESH),
    push=_push_exchange,
    infer=lambda array, *, operation: operation.given,
)

_ANCHOR = Primitive(
    lambda array, presence: array if isinstance(array, np.ndarray) else np.asarray(array),
    name="anchor",
    operands=("array", "presence"),
    pull=lambda k: Pull(_no_elements, result=FRESH) if k else Pull(lambda g, kind, params: g, result=PASSED),
    push=_push_anchor,
    infer=lambda array, presence: type_of(array),
    aliases=True,
)
