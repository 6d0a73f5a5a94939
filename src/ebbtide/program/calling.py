"""
Calls in functions that are traced: each becomes an equation, and so do its derivatives.

A call is followed from its operands down to the symbols of the program, trace by trace: on a tape the operation is one
node, in forward mode a call with tangents. On a tape that has nothing but symbols beneath, and forward mode perhaps,
one equation runs the call and holds what the sweep needs, and another takes that (`holding`). On a tape with more
beneath the reverse sweep is an equation of its own, which runs the call again: that can be differentiated as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import frozen_leaf
from ebbtide.arrays.context import current
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.program.calls import Batched, Call, Pulled, Pushed
from ebbtide.program.holding import HeldSymbol, Running, Saving, duals, only_forward, variables
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.tape.joint import JointRule, record_results
from ebbtide.tape.linear import LinearRule
from ebbtide.tape.linear_region import Pushing, node_of, split, tape_of
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.tangent import TangentTrace


def record(call: Call, operands: Sequence[Any]) -> list[Any]:
    """
    Return the results of a call, as arrays of the innermost trace of its operands.

    Args:
        call: The call.
        operands: Its operands: symbols of the function that is traced, and arrays of other traces around these; what
            is no array may be among them.

    Raises:
        TraceError: A trace of theirs has ended.
    """
    operands = [*map(frozen_leaf, operands)]
    trace = innermost(tuple(operands))
    if trace is None:
        return call.run(operands)
    if type(trace) is SymbolicTrace:
        return trace.call(Running(call), call.name, call.params(operands), variables(call))
    if trace.closed:
        raise TraceError(
            f"{call.name} at {user_line()} uses a traced array after the function that it was made in had returned, "
            "so its derivative is lost. Return the array from the function."
        )
    if type(trace) is Tape:
        return _on_tape(trace, call, [trace.adopt(operand) for operand in operands])
    if type(trace) is TangentTrace:
        return _on_duals(trace, call, operands)
    if type(trace) is BatchTrace:
        return _on_members(trace, call, operands)
    return record(call, [trace.inside(operand) for operand in operands])


def _on_duals(trace: TangentTrace, call: Call, operands: list[Any]) -> list[Any]:
    """Return the results with their tangents."""
    capture = current().capture
    pushing = capture if trace.linear is not None and type(capture) is Pushing else None
    pairs = [split(trace, operand) for operand in operands] if pushing is None else pushing.pairs(trace, operands)
    values = [frozen_leaf(value) for value, _ in pairs]
    tangents = [tangent for _, tangent in pairs]
    if all(tangent is None for tangent in tangents):
        return record(call, values)
    if trace.linear is not None and pushing is None:
        return _on_linear_tape(trace, call, values, tangents)
    found = record(Pushed(call), values + tangents)
    return duals(trace, call, found, found[len(call.kinds) :])


def _on_linear_tape(trace: TangentTrace, call: Call, values: list[Any], tangents: list[Any]) -> list[Any]:
    """Return the results of a call in a function that is linearized: each push runs it on values and tangents."""
    found = record(call, values)
    tape = tape_of(trace, current())
    nodes = [node_of(tape, tangent) for tangent in tangents]
    parents = [node for node in nodes if node is not None]
    if not parents:
        return found
    rest = iter(range(len(parents)))
    rule = _LinearCall(call, [None if node is None else next(rest) for node in nodes])
    zeros = [zeros_like(v)[()] for v, kind in zip(found, call.kinds, strict=True) if kind.dtype.kind in "fc"]
    return duals(trace, call, found, tape.record(rule, parents, zeros, values))


@final
class _LinearCall(LinearRule):
    """
    A call on a linear tape.

    Args:
        call: The call, whose operands are saved.
        places: For each of them its place among the tangents, or None.
    """

    __slots__ = ("_call", "_places")

    def __init__(self, call: Call, places: list[int | None]) -> None:
        self._call = call
        self._places = places

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._call.name

    def push(self, tangents: list[Any], saved: list[Any]) -> list[Any]:
        """See `LinearRule.push`."""
        given = [None if place is None else tangents[place] for place in self._places]
        return record(Pushed(self._call), saved + given)[len(self._call.kinds) :]


def _on_members(trace: BatchTrace, call: Call, operands: list[Any]) -> list[Any]:
    """Return the results for all members of a batch."""
    pairs = [trace.split(operand) for operand in operands]
    values, mapped = [value for value, _ in pairs], [is_mapped for _, is_mapped in pairs]
    if not any(mapped):
        return record(call, values)
    together = Batched(call, mapped, trace.size)
    found = record(together, values)
    return [trace.members(x) if of_members else x for x, of_members in zip(found, together.of_members, strict=True)]


def _on_tape(tape: Tape, call: Call, operands: list[Any]) -> list[Any]:
    """Return the results, recorded as one operation."""
    nodes: list[Node | None] = []
    values: list[Any] = []
    for operand in operands:
        inside = type(operand) is TracedArray and operand._trace is tape
        nodes.append(operand._node if inside else None)
        values.append(operand._value if inside else operand)
    if all(node is None for node in nodes):
        return record(call, values)
    active, places = _active(nodes, call.rows)
    symbols = current().follower
    fits, trace = only_forward(symbols, values)
    held = HeldSymbol(symbols, trace, Saving(call, places, dual=trace is not None), values) if fits else None
    found = record(call, values) if held is None else held.results
    pulled = Pulled(call, places, [node.type for node in active])
    parents = list(dict.fromkeys(active))
    rule = _CallRule(call.name, pulled, values, [parents.index(node) for node in active], held)
    return record_results(tape, rule, tuple(parents), found)


def _active(nodes: Sequence[Node | None], rows: range) -> tuple[list[Node], list[int | None]]:
    """Return the nodes of the active operands, and for each operand its place among them; the same rows are one."""
    active: list[Node] = []
    places: list[int | None] = []
    for number, node in enumerate(nodes):
        known = places[rows.start : number] if number in rows else []
        place = next((k for k in known if k is not None and active[k] is node), len(active))
        places.append(None if node is None else place)
        active += [node] if node is not None and place == len(active) else []
    return active, places


@final
class _CallRule(JointRule):
    """
    A call on a tape of a function that is traced.

    Args:
        name: What messages call it.
        pulled: Its reverse sweep, as a call of its own.
        values: Its operands.
        places: For each cotangent the number of its parent.
        held: What it holds for its reverse sweep; None where it holds nothing.
    """

    __slots__ = ("_held", "_name", "_places", "_pulled", "_values")

    def __init__(
        self, name: str, pulled: Pulled, values: list[Any], places: list[int], held: HeldSymbol | None
    ) -> None:
        self._name = name
        self._pulled = pulled
        self._values = values
        self._places = places
        self._held = held

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._name

    def needs(self, owned: bool, given: int) -> int:
        """Nothing."""
        return 0

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Record the reverse sweep: of what is held, or where the cotangents have derivatives of their own, anew."""
        given = [None if pair is None else pair[0] for pair in cotangents]
        cotangents.clear()
        if self._held is not None and self._held.takes(given):
            found = self._held.pull(given, retain)
        else:
            found = record(self._pulled, self._values + given)
        for place, gradient in zip(self._places, found, strict=True):
            yield place, gradient, False
