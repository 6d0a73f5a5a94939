"""
Calls in functions that are traced: each becomes an equation, and so do its derivatives.

A call is followed from its operands down to the symbols of the program, trace by trace: of a tape the operation is one
node, of forward mode a call with tangents. A tape that has nothing but symbols beneath, and forward mode perhaps, has
one equation that runs the call and holds what the sweep needs, and one that takes it. Of a tape with more beneath the
reverse sweep is an equation of its own, which runs the call again on a tape: that can be differentiated as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import is_array
from ebbtide.arrays.context import current
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.program.calls import Batched, Call, Held, Pulled, Pushed, hold, joined, named, parts, unnamed
from ebbtide.program.equation import OBJECT, Variable
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.tape.joint import JointRule, record_joint
from ebbtide.tape.linear import LinearRule
from ebbtide.tape.linear_region import Pushing, node_of, split, tape_of
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.tangent import TangentTrace


def is_symbolic(operands: Iterable[Any]) -> bool:
    """Return whether a function is traced here, and operands depend on its symbols, at whatever depth."""
    trace = current().follower
    return trace is not None and any(_reaches(trace, operand) for operand in operands)


def _reaches(trace: SymbolicTrace, operand: Any) -> bool:
    while type(operand) is TracedArray:
        operand.present()
        theirs = operand._trace
        if theirs is trace or trace.covers(theirs):
            # Of an array that is known the value stands there.
            return theirs is not trace or type(operand._node) is Variable
        if type(operand._node) is TracedArray and _reaches(trace, operand._node):
            return True
        operand = operand._value
    return False


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
    operands = [operand.present() if type(operand) is TracedArray else operand for operand in operands]
    trace = innermost(tuple(operands))
    if trace is None:
        return call.run(operands)
    if type(trace) is SymbolicTrace:
        return trace.call(_Run(call), call.name, call.params(operands), variables(call))
    if trace.closed:
        raise TraceError(
            f"{call.name} at {trace.here()} uses a traced array after the function that it was made in had returned, "
            "so its derivative is lost. Return the array from the function."
        )
    if type(trace) is Tape:
        return _on_tape(trace, call, [trace.adopt(operand) for operand in operands])
    if type(trace) is TangentTrace:
        return _on_duals(trace, call, operands)
    if type(trace) is BatchTrace:
        return _on_members(trace, call, operands)
    return record(call, [trace.inside(operand) for operand in operands])


def variables(call: Call) -> list[Variable]:
    """Return new variables for the results of a call."""
    return [Variable(kind, "part", is_number=n) for kind, n in zip(call.kinds, call.numbers, strict=True)]


@final
class _Run:
    """A call as the function of an equation."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, **params: Any) -> tuple[Any, ...]:
        """Return the results; in a function that is traced, as its equation."""
        operands = self._call.operands(params)
        params.clear()
        return tuple(record(self._call, operands) if is_symbolic(operands) else self._call.run(operands))


# Forward mode and batches.


def _on_duals(trace: TangentTrace, call: Call, operands: list[Any]) -> list[Any]:
    """Return the results with their tangents."""
    capture = current().capture
    pushing = capture if trace.linear is not None and type(capture) is Pushing else None
    pairs = [split(trace, operand) for operand in operands] if pushing is None else pushing.pairs(trace, operands)
    values = [value.frozen() if type(value) is TracedArray else value for value, _ in pairs]
    tangents = [tangent for _, tangent in pairs]
    if all(tangent is None for tangent in tangents):
        return record(call, values)
    if trace.linear is not None and pushing is None:
        return _on_linear_tape(trace, call, values, tangents)
    found = record(Pushed(call), values + tangents)
    return _duals(trace, call, found, found[len(call.kinds) :])


def _duals(trace: TangentTrace, call: Call, values: Sequence[Any], tangents: Iterable[Any]) -> list[Any]:
    """Return values of which those that can have one have a tangent."""
    rest = iter(tangents)
    pairs = zip(values, call.kinds, strict=False)
    return [TracedArray(trace, next(rest), value) if kind.dtype.kind in "fc" else value for value, kind in pairs]


def _on_linear_tape(trace: TangentTrace, call: Call, values: list[Any], tangents: list[Any]) -> list[Any]:
    """Return the results of a call in a function that is linearized: each push runs it on values and tangents."""
    found = record(call, values)
    tape = tape_of(trace, current())
    nodes = [node_of(tape, tangent) for tangent in tangents]
    parents = [node for node in nodes if node is not None]
    if not parents:
        return found
    rest = iter(range(len(parents)))
    rule = _LinearCall(call, values, [None if node is None else next(rest) for node in nodes])
    zeros = [zeros_like(v)[()] for v, kind in zip(found, call.kinds, strict=True) if kind.dtype.kind in "fc"]
    return _duals(trace, call, found, tape.record(rule, parents, zeros))


@final
class _LinearCall(LinearRule):
    """
    A call on a linear tape.

    Args:
        call: The call.
        values: Its operands.
        places: For each of them its place among the tangents, or None.
    """

    __slots__ = ("_call", "_places", "_values")

    def __init__(self, call: Call, values: list[Any], places: list[int | None]) -> None:
        self._call = call
        self._values = values
        self._places = places

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._call.name

    def push(self, tangents: list[Any]) -> list[Any]:
        """See `LinearRule.push`."""
        given = [None if place is None else tangents[place] for place in self._places]
        return record(Pushed(self._call), self._values + given)[len(self._call.kinds) :]


def _on_members(trace: BatchTrace, call: Call, operands: list[Any]) -> list[Any]:
    """Return the results for all members of a batch."""
    pairs = [trace.split(operand) for operand in operands]
    if not any(is_mapped for _, is_mapped in pairs):
        return record(call, [value for value, _ in pairs])
    found = record(Batched(call, [is_mapped for _, is_mapped in pairs], trace.size), [value for value, _ in pairs])
    kinds = [kind.dtype.kind for kind in call.kinds]
    return [trace.members(x) if kind in "fc" else x for x, kind in zip(found, kinds, strict=True)]


# Reverse mode.


def _on_tape(tape: Tape, call: Call, operands: list[Any]) -> list[Any]:
    """Return the results, recorded as one operation."""
    nodes: list[Node | None] = [
        x._node if type(x) is TracedArray and x._trace is tape else None for x in operands
    ]  # fmt: skip
    values = [_beneath(tape, operand) for operand in operands]
    if all(node is None for node in nodes):
        return record(call, values)
    symbols = current().follower
    trace = _only_forward(symbols, values)
    if trace is not False:
        return _held(tape, symbols, trace, call, nodes, values)
    found = record(call, values)
    active = [number for number, node in enumerate(nodes) if node is not None]
    kinds = [node.type for node in nodes if node is not None]
    parents = list(dict.fromkeys(node for node in nodes if node is not None))
    places = [parents.index(node) for node in nodes if node is not None]
    return _recorded(tape, _CallRule(call.name, Pulled(call, active, kinds), values, places), parents, found)


def _beneath(tape: Tape, operand: Any) -> Any:
    """Return the value of an operand of a tape."""
    if type(operand) is not TracedArray:
        return operand
    return operand._value if operand._trace is tape else operand.frozen()


def _recorded(tape: Tape, rule: JointRule, parents: Sequence[Node], found: list[Any]) -> list[Any]:
    """Return results as they are on a tape; what is no array has no derivative, and only its place counts."""
    shown = [value if is_array(value) else 0 for value in found]
    traced = record_joint(tape, rule, tuple(parents), shown)
    return [t if is_array(v) else v for t, v in zip(traced, found, strict=True)]


def _only_forward(symbols: SymbolicTrace, values: list[Any]) -> TangentTrace | None | bool:
    """Return the forward mode that values are of, None if they are symbols; False if there is more beneath them."""
    found: TangentTrace | None = None
    for value in values:
        if type(value) is not TracedArray or _is_symbol(symbols, value):
            continue
        trace = value._trace
        if type(trace) is not TangentTrace or trace.linear is not None or trace.closed or found not in (None, trace):
            return False
        if not _is_symbol(symbols, value._value) or not _is_symbol(symbols, value._node):
            return False
        found = trace
    return found


def _is_symbol(symbols: SymbolicTrace, value: Any) -> bool:
    """Return whether a value has no trace but that of the function that is traced, and those around it."""
    if type(value) is not TracedArray:
        return True
    # What a region is given it takes from what it runs in.
    return value._trace is symbols or (symbols.covers(value._trace) and innermost((value,)) is symbols)


@final
class _CallRule(JointRule):
    """
    A call on a tape of a function that is traced, whose reverse sweep is a call of its own.

    Args:
        name: What messages call it.
        pulled: Its reverse sweep.
        values: Its operands.
        places: For each cotangent the number of its parent.
    """

    __slots__ = ("_name", "_places", "_pulled", "_values")

    def __init__(self, name: str, pulled: Pulled, values: list[Any], places: list[int]) -> None:
        self._name = name
        self._pulled = pulled
        self._values = values
        self._places = places

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._name

    @property
    def sheddable(self) -> int:
        """Nothing: symbols take no memory."""
        return 0

    def shed(self, nbytes: int) -> int:
        """Give up nothing."""
        return 0

    def needs(self, owned: bool, given: int) -> int:
        """Nothing."""
        return 0

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Record the reverse sweep."""
        given = [None if pair is None else pair[0] for pair in cotangents]
        cotangents.clear()
        found = record(self._pulled, self._values + given)
        for place, gradient in zip(self._places, found, strict=True):
            yield place, gradient, False


def _held(
    tape: Tape,
    symbols: SymbolicTrace,
    trace: TangentTrace | None,
    call: Call,
    nodes: list[Node | None],
    values: list[Any],
) -> list[Any]:
    """Return the results of a call that holds what its reverse sweep needs."""
    active, places = _active(nodes, call.rows)
    saving = Saving(call, places, dual=trace is not None)
    pairs = [(value, None) if trace is None else split(trace, value) for value in values]
    primals = [value for value, _ in pairs]
    tangents = [] if trace is None else [tangent for _, tangent in pairs]
    held, *found = _saved(symbols, saving, primals, tangents)
    keep = [x for x in (*call.takes(primals), *(call.takes(tangents) if tangents else ())) if x is not None]
    if trace is not None:
        found = _duals(trace, call, found, found[len(call.kinds) :])
    parents = list(dict.fromkeys(active))
    rule = _HeldRule(symbols, trace, call.name, held, active, [parents.index(node) for node in active], keep)
    return _recorded(tape, rule, parents, found)


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


def _saved(symbols: SymbolicTrace, saving: Saving, primals: list[Any], tangents: list[Any]) -> list[Any]:
    """Return what a call holds, and its results with their tangents, as symbols."""
    call = saving.call
    outputs = variables(Pushed(call) if saving.dual else call)
    params = named(call, primals, "tangents", tangents) if saving.dual else call.params(primals)
    return symbols.call(saving, f"{call.name}_saving", params, [Variable(OBJECT, "part"), *outputs])


@final
class Saving:
    """
    A call as the function of an equation that keeps what the reverse sweep needs.

    Args:
        call: The call.
        places: For each operand its place among those whose cotangents are wanted, or None.
        dual: Whether operands have tangents.
    """

    __slots__ = ("call", "dual", "places")

    def __init__(self, call: Call, places: Sequence[int | None], *, dual: bool) -> None:
        self.call = call
        self.places = tuple(places)
        self.dual = dual

    def __call__(self, **params: Any) -> tuple[Any, ...]:
        """
        Return what the reverse sweep needs, and the results with their tangents.

        Memory:
            See `hold`.
        """
        operands, tangents = (
            unnamed(self.call, params, "tangents") if self.dual else (self.call.operands(params), [])
        )
        params.clear()
        if is_symbolic(operands + tangents):
            return self._followed(operands, tangents)
        held, found = hold(self.call, self.places, operands, tangents)
        return held, *found

    def _followed(self, operands: list[Any], tangents: list[Any]) -> tuple[Any, ...]:
        """Return the same for symbols, and for arrays of other traces around them."""
        given = operands + tangents
        if type(innermost(tuple(given))) is SymbolicTrace:
            held, *found = _saved(current().follower, self, operands, tangents)
        else:
            held, found = None, record(Pushed(self.call) if self.dual else self.call, given)
        return _Followed(self, held, operands, tangents), *found


@final
class _Followed:
    """
    Stands for what a call holds where the equation that holds it is followed.

    Args:
        saving: The equation's function.
        held: What stands for it in the program; None where there are derivatives that it does not know.
        operands: The operands.
        tangents: Their tangents.
    """

    __slots__ = ("held", "operands", "saving", "tangents")

    def __init__(self, saving: Saving, held: Any, operands: list[Any], tangents: list[Any]) -> None:
        self.saving = saving
        self.held = held
        self.operands = operands
        self.tangents = tangents

    def pull(self, cotangents: list[Any], tangents: list[Any], params: dict[str, Any]) -> list[Any]:
        """Return what `Held.pull` does: from what is held, or by running the call again."""
        places = self.saving.places
        count = len(set(places) - {None})
        active = [max(n for n, place in enumerate(places) if place == k) for k in range(count)]
        kinds = [type_of(self.operands[number]) for number in active]
        pulled = Pulled(self.saving.call, active, kinds)
        whole = Pushed(pulled) if self.saving.dual else pulled
        if self.held is not None and type(innermost(tuple(cotangents + tangents))) in (SymbolicTrace, type(None)):
            given = params | {"held": self.held}
            return current().follower.call(pull_back, f"{self.saving.call.name}_reverse", given, variables(whole))
        operands = [*self.operands, *cotangents]
        if self.saving.dual:
            operands += [*self.tangents, *(tangents or [None] * len(cotangents))]
        return record(whole, operands)


def pull_back(
    *,
    held: Held | _Followed,
    cotangents: Sequence[Any],
    tangents: Sequence[Any] = (),
    keep: Sequence[Any] = (),
    retain: bool = False,
) -> tuple[Any, ...]:
    """
    Run the reverse sweep of a call.

    Args:
        held: What `Saving` returned first.
        cotangents: For each result its cotangent, or None.
        tangents: For each of them its tangent, or None; empty if no derivative is taken along.
        keep: What the sweep uses by reference, so that the program keeps it until now.
        retain: Whether there is another sweep to come.

    Returns:
        The cotangents of the operands that are active; their tangents follow, if any derivative is taken along.
    """
    if type(held) is _Followed:
        params: dict[str, Any] = {"cotangents": list(cotangents)}
        params |= {"tangents": list(tangents)} if tangents else {}
        params |= {"keep": list(keep)} if keep else {}
        params |= {"retain": True} if retain else {}
        return tuple(held.pull(list(cotangents), list(tangents), params))
    del keep
    return tuple(held.pull(cotangents, tangents, retain=retain))


@final
class _HeldRule(JointRule):
    """
    A call on a tape of symbols that holds what its reverse sweep needs.

    Args:
        symbols: The trace of the function.
        trace: The forward mode that its values and cotangents are of, or None.
        name: What messages call it.
        held: What its reverse sweep needs.
        active: Nodes of the active operands; their types are taken.
        places: Numbers of their parents.
        keep: What the sweep uses by reference.
    """

    __slots__ = ("_held", "_keep", "_kinds", "_name", "_places", "_symbols", "_trace")

    def __init__(
        self,
        symbols: SymbolicTrace,
        trace: TangentTrace | None,
        name: str,
        held: Any,
        active: list[Node],
        places: list[int],
        keep: list[Any],
    ) -> None:
        self._symbols = symbols
        self._trace = trace
        self._name = name
        self._held = held
        self._kinds = [node.type for node in active]
        self._places = places
        self._keep = keep

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._name

    @property
    def sheddable(self) -> int:
        """Nothing: symbols take no memory."""
        return 0

    def shed(self, nbytes: int) -> int:
        """Give up nothing."""
        return 0

    def needs(self, owned: bool, given: int) -> int:
        """Nothing."""
        return 0

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Record the reverse sweep."""
        trace = self._trace
        given = [None if pair is None else pair[0] for pair in cotangents]
        cotangents.clear()
        pairs = [(g, None) if trace is None else split(trace, g) for g in given]
        params: dict[str, Any] = {"held": self._held, "cotangents": [value for value, _ in pairs]}
        if trace is not None:
            params["tangents"] = [tangent for _, tangent in pairs]
        if self._keep:
            params["keep"] = self._keep
        if retain:
            params["retain"] = True
        outputs = [Variable(kind, "part") for kind in self._kinds * (1 if trace is None else 2)]
        found = self._symbols.call(pull_back, f"{self._name}_reverse", params, outputs)
        count = len(self._kinds)
        gradients = found[:count] if trace is None else joined(trace, found[:count], found[count:])
        for place, gradient in zip(self._places, gradients, strict=True):
            yield place, gradient, False
