"""
The linear tape: what a function does to tangents at one point, recorded once and done again for any tangents.

Forward mode computes tangents by operations that are linear in them: products with derivatives, and the linear
operations themselves. Given tangents that are traced here, it leaves those operations behind with their other operands,
which are the derivatives at this point, and nothing of the function itself.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of, type_of
from ebbtide.arrays.location import user_frame, user_line
from ebbtide.arrays.primitive import Primitive, inside, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import ReleasedValueError, TraceError
from ebbtide.tape.holders import arrays_in, is_pageable
from ebbtide.tape.kept import Kept
from ebbtide.tape.node import PROJECTION, Node, nodes_before
from ebbtide.tape.saved import SavedValue, guarded, opened, parts_of, value_of

# A node with its tuples, a guard, and a place in the program, as tracemalloc sees them; and a program of a time step.
RECORD_BYTES = PROGRAM_BYTES = 800
# Among the saved values of a node the place of an operand that is a tangent, its parents in order.
TANGENT = object()


class LinearRule(ABC):
    """
    A linear operation with several results, such as a time loop.

    Attributes:
        record_bytes: What the interpreter takes for it, in pushes, too; 4 KB measured of checkpointed functions.
    """

    __slots__ = ()
    record_bytes = 8 * 1024

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call the operation."""

    @abstractmethod
    def push(self, tangents: list[Any], saved: list[Any]) -> list[Any]:
        """Return the tangents of the results for those of the operands; *saved* is what it was recorded with."""


@final
class LinearTape:
    """
    Records the linear operations on tangents.

    Args:
        level: Depth of nesting; less than that of the forward mode whose tangents are traced here.
        ledger: The account of the outermost call.
        pager: Counts, pages and bounds the saved values if a budget or profile wants it.
        outer: For a time step: the tape around it, whose tangents are static values of the step.
        room: Bytes that may be saved, after which nothing is; None for no bound.
        counted: Addresses of arrays that others save already, which take no room.
        meet_operand: Is told what operations of the forward mode take; None where nobody asks.

    Memory:
        Static values of a step; no nodes. A node keeps the operands that are no tangents.
    """

    is_linear = True  # users' rules for tangents are single operations here

    __slots__ = (
        "__weakref__", "_alone", "_counted", "_known", "closed", "count", "fast", "ledger", "level", "meet_operand",
        "outer", "pager", "room", "statics",
    )  # fmt: skip

    def __init__(
        self,
        level: int,
        ledger: Any,
        pager: Any = None,
        *,
        outer: LinearTape | None = None,
        room: int | None = None,
        counted: Collection[int] = (),
        meet_operand: Callable[[Any], None] | None = None,
    ) -> None:
        self.meet_operand = meet_operand
        self.level = level
        self.ledger = ledger
        self.pager = pager
        self.outer = outer
        self.room = room
        self._counted = counted
        self._alone: int | None = None  # that of the ledger before the first operation that runs again in a push
        self.closed = False
        self.fast = False
        self.count = 0
        # Static values: address of the node outside -> (node here, tangent outside).
        self.statics: dict[int, tuple[Node, TracedArray]] = {}
        # One guard for all nodes that save an array.
        self._known: weakref.WeakValueDictionary[int, SavedValue] = weakref.WeakValueDictionary()

    def close(self) -> None:
        """End the recording."""
        self.closed = True

    def covers(self, trace: Any) -> bool:
        """Return whether tangents of *trace* are static values of this step."""
        return self.outer is not None and (trace is self.outer or self.outer.covers(trace))

    def constant(self, value: Any) -> TracedArray:
        """Return a tangent that depends on nothing."""
        return TracedArray(self, None, value)

    def leaf(self, value: Any) -> TracedArray:
        """Return a new input, of the type of *value*."""
        self.count += 1
        return TracedArray(self, Node(self.count, None, (), (), None, type_of(value)), value)

    def lift(self, operand: TracedArray) -> Any:
        """Return what a tangent from outside of the step is inside."""
        operand = operand.frozen()
        if operand._node is None:
            return operand._value
        found = self.statics.get(id(operand._node))
        if found is None:
            found = self.statics[id(operand._node)] = self.leaf(operand._value)._node, without_data(operand)
        return TracedArray(self, found[0], operand._value)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> TracedArray:
        """Do a linear operation on the tangents that are at hand, and record it."""
        if self.closed:
            raise TraceError(
                f"{primitive.name} at {user_line()} uses a traced array after the function that it was made in "
                "had returned, so its tangent is lost. Return the array from the function."
            )
        values: list[Any] = []
        nodes: list[Node | None] = []
        for given in operands:
            operand = inside(self, given)
            if type(operand) is TracedArray and operand.present()._trace is self:
                nodes.append(operand._node)
                values.append(operand._value)
            else:
                nodes.append(None)
                values.append(operand.frozen() if type(operand) is TracedArray else plain(operand))
        if nodes[0] is None and params and params.get("in_place"):
            params = {**params, "in_place": False}  # each push begins with the operand that is saved
        # The tangents at hand are zeros, which are not the user's: 0 * inf is none of their concern.
        with np.errstate(all="ignore"):
            out = primitive.bind(tuple(values), params)
        parents = tuple([node for node in nodes if node is not None])
        if not parents:
            return TracedArray(self, None, out)
        self.take(RECORD_BYTES)
        saved = [self._kept(v) if n is None else TANGENT for v, n in zip(values, nodes, strict=True)]
        frame = user_frame()
        where = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        self.count += 1
        node = Node(self.count, primitive, parents, (), params, type_of(out), *where)
        self._hold(node, saved)
        return TracedArray(self, node, out)

    def _kept(self, value: Any) -> Any:
        """Return an operand in the form in which it is saved: the user may reach it, so that it is guarded."""
        known = self._known.get(id(value))
        if known is not None and known.value is value:
            return known
        kept = guarded(value)
        if type(kept) is SavedValue:
            self._known[id(value)] = kept
            if self.room is not None:
                self.take(sum(part.nbytes for part in owners_of(kept) if id(part) not in self._counted))
        return kept

    def record(
        self, rule: LinearRule, parents: list[Node], outputs: list[Any], values: Iterable[Any] = ()
    ) -> list[TracedArray]:
        """
        Record an operation with several results.

        Args:
            rule: Its rule.
            parents: Nodes of its operands, in the order of the rule.
            outputs: Its results for the tangents at hand.
            values: What each push takes beside the tangents, which is saved.
        """
        frame = user_frame()
        where = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        self.count += 1
        kinds = [type_of(value) for value in outputs]
        node = Node(self.count, rule, tuple(parents), (), None, kinds, *where)
        traced = []
        for position, (value, kind) in enumerate(zip(outputs, kinds, strict=True)):
            self.count += 1
            traced.append(TracedArray(self, Node(self.count, PROJECTION, (node,), (), position, kind, *where), value))
        saved = [self._kept(value) for value in values]
        self.take(rule.record_bytes)
        if self.pager is not None:
            self.pager.overhead.count(rule.record_bytes)
        # What the rule keeps itself is counted, too, and nothing need come after it.
        self._hold(node, saved)
        return traced

    def keeping(self) -> Kept:
        """
        Return what counts what an operation keeps to run again: in the account of the call, also for one in a step.

        A push of one operation takes what that keeps as the function alone does; of several it has what all of them
        keep while each of them runs.
        """
        if self.outer is not None:
            return self.outer.keeping()
        if self._alone is None:
            self._alone = self.ledger.alone
            return Kept(self.pager)
        self.ledger.alone = min(self.ledger.alone, self._alone)
        return Kept(self.pager, outlives=True)

    def take(self, nbytes: int) -> None:
        """Have so many bytes less of room, where there is a bound."""
        if self.room is not None:
            self.room -= nbytes

    def _hold(self, node: Node, saved: list[Any]) -> None:
        """Have a node save values; where there is no room for them it has none, and nothing of what led to it."""
        if self.room is not None:
            arrays = {id(array): array.nbytes for array in held_by(node) if id(array) not in self._counted}
            self.take(sum(arrays.values()))
            if self.room < 0:
                # Nobody pushes through it: of many operations on a few numbers the nodes take more than there is.
                node.saved, node.parents = None, ()
                return
        node.saved = tuple(saved) if self.pager is None else self.pager.hold(node, None, saved)


@final
class LinearProgram:
    """
    A linear function of tangents, as it was recorded.

    Args:
        inputs: Nodes of the inputs.
        outputs: Nodes of the outputs; None for those that depend on no input.
        pager: Makes room for saved values that are on disk.

    Memory:
        The nodes that the outputs depend on, with what they saved.
    """

    __slots__ = ("_inputs", "_nodes", "_outputs", "_pager", "_releases")

    def __init__(self, inputs: list[Node], outputs: list[Node | None], pager: Any = None) -> None:
        self._pager = pager
        self._inputs = [node.number for node in inputs]
        self._outputs = [None if node is None else node.number for node in outputs]
        recorded = [node for node in nodes_before(outputs) if node.signature is not None]
        self._nodes = sorted(recorded, key=lambda node: node.number)
        last: dict[int, int] = {}
        for place, node in enumerate(self._nodes):
            last.update({parent.number: place for parent in node.parents or ()})
        # What no later node and no output takes dies when its last node has been passed.
        self._releases: list[list[int]] = [[] for _ in self._nodes]
        for number, place in last.items():
            if number not in self._outputs:
                self._releases[place].append(number)

    def push(self, tangents: list[Any]) -> list[Any]:
        """
        Return the tangents of the outputs.

        Args:
            tangents: Those of the inputs, of their shapes and dtypes; emptied.

        Returns:
            For each output its tangent; None for those that depend on no input.

        Raises:
            MutationError: An array that the function used has been changed since.

        Memory:
            The tangents between the inputs and the outputs.
        """
        held = dict(zip(self._inputs, tangents, strict=True))
        tangents.clear()
        for node, releases in zip(self._nodes, self._releases, strict=True):
            tangents = [held[parent.number] for parent in node.parents or ()]
            for number in releases:
                del held[number]
            held[node.number] = self._do(node, tangents)
        return [None if number is None else held[number] for number in self._outputs]

    def _do(self, node: Node, tangents: list[Any]) -> Any:
        """Do one operation with the tangents of its operands, which a rule of several results takes out of the list."""
        rule = node.signature
        if rule is PROJECTION:
            return tangents[0][node.params]
        saved = node.saved
        if saved is None:
            raise ReleasedValueError(f"The saved values of {node.name} at {node.line} were given up.")
        if self._pager is not None:
            self._pager.load_room(0, node, saved)
        values = opened(saved, node)
        if isinstance(rule, LinearRule):
            return rule.push(tangents, values)
        following = iter(tangents)
        return rule.bind(tuple([next(following) if v is TANGENT else v for v in values]), node.params)

    @property
    def most_loaded(self) -> int:
        """The most bytes that one operation takes of what may be on disk."""
        taken = [{id(v): v for v in node.saved or () if type(v) is SavedValue} for node in self._nodes]
        return max([sum([v.type.nbytes for v in cells.values() if is_pageable(v)]) for cells in taken], default=0)

    def arrays(self) -> Iterator[np.ndarray]:
        """Yield the arrays whose memory is saved, each as often as it is saved."""
        for node in self._nodes:
            yield from held_by(node)
            for value in node.saved or ():
                yield from owners_of(value)

    @property
    def record_bytes(self) -> int:
        """What the interpreter takes for the record, arrays apart."""
        rules = [node.signature.record_bytes for node in self._nodes if isinstance(node.signature, LinearRule)]
        return PROGRAM_BYTES + RECORD_BYTES * len(self._nodes) + sum(rules)


def without_data(tangent: TracedArray) -> TracedArray:
    """Return a tangent with its node, and in the place of the zeros at hand an array of their type that takes none."""
    kind = type_of(tangent._value)
    return TracedArray(tangent._trace, tangent._node, np.broadcast_to(np.zeros((), kind.dtype), kind.shape))


def owners_of(saved: Any) -> list[np.ndarray]:
    """Return the arrays that own the memory of a saved value."""
    return [owner_of(part) for part in parts_of(value_of(saved))]


def held_by(node: Node) -> list[np.ndarray]:
    """Return the arrays that own the memory of conditions and indices of a node, which live as long."""
    return [owner_of(array) for array in arrays_in(node.params, lambda array: True)]
