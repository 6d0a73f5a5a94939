"""
Communication on a tape: what the other processes of a run wait for, whatever this process needs itself.

The reverse sweep of an operation that communicates communicates too, so all processes have to come to it, in the same
order: also one whose operand depends on nothing that is differentiated, and one that does not use the result. So all
such operations depend on an array without elements, the presence of the tape, and the tape holds their nodes: the
sweep passes them in their turn, with a cotangent of zeros where there is none. So do time loops, which agree on what
they do, and the regions that have any of these in them.
"""

from __future__ import annotations

from heapq import heapify
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.context import current
from ebbtide.arrays.primitive import inside
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.accumulate import Accumulator
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.tangent import TangentTrace


def presence_on(tape: Any, value: Any = None) -> TracedArray:
    """
    Return the presence of a tape: one for all that communicates there.

    Args:
        tape: The tape, which keeps its node and value: an array that knows the tape would be a reference cycle.
        value: The presence of a trace around it, if there is one.
    """
    if tape.presence is None:
        made = tape.leaf(np.zeros(0) if value is None else value, reachable=False)
        tape.presence = made._node, made._value
    return TracedArray(tape, *tape.presence)


def presence_here() -> Any:
    """Return the presence of the tapes around, which the regions that run have met by now; None where none records."""
    found: Any = None
    for trace in current().traces:
        if type(trace) is Tape:
            found = presence_on(trace, found)
        elif type(trace) is TangentTrace and trace.linear is None:
            found = TracedArray(trace, np.zeros(0), np.zeros(0) if found is None else found)
    return inside(current().capture, found)


def require(array: Any) -> None:
    """Let the sweeps of all tapes that an array is on pass its node."""
    while type(array) is TracedArray:
        trace, node = array._trace, array._node
        if type(node) is Node:
            trace.required[node.number] = node
        else:
            require(node)  # a tangent, which may be on the tapes around
        array = array._value


def required_nodes(tape: Any, heap: list[int], *, retain: bool) -> dict[int, Node]:
    """Return the nodes of a tape that its sweep has to pass, by number, after their numbers were put on the heap."""
    if not tape.required:
        return {}
    required = dict(tape.required)
    if not retain:
        tape.required.clear()
    heap += [-number for number in required]
    heapify(heap)
    return required


def reached(
    watch: Any, required: dict[int, Node], slots: dict[int, Accumulator], number: int
) -> Accumulator | None:
    """Return the slot of the node with a number, of zeros where nothing came to it; None if the sweep has passed it."""
    node, slot = required.pop(number, None), slots.pop(number, None)
    if slot is None and node is not None:
        kind: Any = node.type
        several = type(kind) is not ArrayType
        value = [None] * len(kind) if several else np.zeros(kind.shape, kind.dtype)
        slot = Accumulator(node, value, not several)
        if watch is not None and not several:
            watch.take(value)
    return slot
