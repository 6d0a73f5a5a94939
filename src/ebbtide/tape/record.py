"""
The tape: what an eager run of a function leaves behind for the reverse sweep.

Nodes point to their parents only. The tape itself holds no node: what the outputs do not depend on dies with
the user's names for it.
"""

from __future__ import annotations

import sys
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.location import HOME, is_ours, user_line
from ebbtide.arrays.primitive import Primitive, Signature, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import Sharing
from ebbtide.errors import TraceError
from ebbtide.tape.node import Node
from ebbtide.tape.saved import guarded, kept_value

# Operands of these types go to NumPy as they are.
_PLAIN = frozenset({np.ndarray, float, int, complex, bool, np.float64, np.float32})


@final
class Tape:
    """
    Records the operations of one call.

    Args:
        level: Depth of nesting; larger than that of all traces around it.
        ledger: The account of the outermost call.
        outer: For regions (a time step, a checkpointed function): the tape around it, whose arrays the
            region takes for static values.
        around: For regions: the region around it.
        pager: Counts, pages and bounds the saved values if a budget or profile wants it.
        constancy: Checks that plain arrays met by a step do not change from step to step.

    Memory:
        Holds static values of a region; no nodes.
    """

    __slots__ = (
        "around", "closed", "constancy", "consumer", "count", "fast", "ledger", "level", "outer", "pager",
        "statics",
    )  # fmt: skip

    def __init__(
        self,
        level: int,
        ledger: Any,
        *,
        outer: Any = None,
        around: Any = None,
        pager: Any = None,
        constancy: Any = None,
    ) -> None:
        self.level = level
        self.ledger = ledger
        self.count = 0
        self.closed = False
        self.consumer: str | None = None
        self.pager = pager
        self.constancy = constancy
        self.outer = outer
        self.around = around
        # Whether nothing but the operation itself has to be thought of: no region, no budget, no profile.
        self.fast = pager is None and outer is None
        # Static values of a region: address of the node outside -> (node here, array outside).
        self.statics: dict[int, tuple[Node, TracedArray]] = {}

    def close(self) -> None:
        """End the recording: an operation on an array of this tape is an error from now on."""
        self.closed = True
        self.fast = False

    def here(self) -> str:
        """Return the user's present line."""
        return user_line()

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* are static values of this region."""
        return trace is self.outer or (self.around is not None and self.around.covers(trace))

    def constant(self, value: Any) -> TracedArray:
        """Return a traced array that depends on nothing; it can take traced values."""
        made = TracedArray(self, None, value)
        made.sharing().private = True
        return made

    def leaf(self, value: Any, *, reachable: bool) -> TracedArray:
        """
        Return a new input of the recorded function.

        Args:
            value: The array; not copied.
            reachable: Whether the user can reach the memory under another name.
        """
        self.count += 1
        array = TracedArray(self, Node(self.count, None, (), (), None, type_of(value)), value)
        if reachable:
            array._sharing = Sharing(reachable=True)
        return array

    def lift(self, operand: TracedArray) -> Any:
        """Return what an array from outside of the region is inside: a static value."""
        operand = operand.frozen()
        if operand._trace is not self.outer:
            operand = self.around.lift(operand)
            if operand._trace is not self.outer:
                return operand
        if operand._node is None:
            return operand._value
        found = self.statics.get(id(operand._node))
        if found is None:
            # The array outside is kept, and with it its node: the key stays unique.
            found = self.leaf(operand._value, reachable=True)._node, operand.frozen()
            self.statics[id(operand._node)] = found
        inside = TracedArray(self, found[0], found[1]._value)
        inside._sharing = Sharing(reachable=True)
        return inside

    def unary(self, primitive: Primitive, signature: Signature, operand: TracedArray, number: Any = None) -> Any:
        """Record an elementwise operation of one array, or of an array and a number, by the shortest way."""
        parent = operand._node
        if operand._sharing is not None or parent is None:
            return self.process(primitive, (operand,) if number is None else (operand, number), None)
        value = operand._value
        out = primitive.function(value) if number is None else primitive.function(value, number)
        saved: Any = ()
        if signature.simple:
            if signature.saves:
                place = signature.saves[0]
                kept = out if place < 0 else number if place else value
                saved = (kept,)
                if type(kept) is np.ndarray:
                    self.ledger.saved += kept.nbytes
        else:
            saved = self._save(signature, (operand, number), (value, number), out)
        kind = parent.type
        if kind.dtype is not out.dtype:
            out, kind = _typed(out)
        frame: Any = sys._getframe(3)
        code = frame.f_code
        while code.co_filename.startswith(HOME) and is_ours(code.co_filename) and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        self.count = number = self.count + 1
        return TracedArray(self, Node(number, signature, (parent,), saved, None, kind, code, frame.f_lasti), out)

    def binary(self, primitive: Primitive, x: Any, y: Any) -> Any:
        """Record an elementwise operation of two operands; `process` without what cannot occur here."""
        values = [x, y]
        active = 0
        kind: Any = None
        parents: tuple[Node, ...] = ()
        if type(x) is TracedArray:
            node = x._node
            if x._trace is not self or x._sharing is not None or node is None:
                return primitive.bind((x, y))
            values[0] = x._value
            parents = (node,)
            kind = node.type
            active = 1
        elif type(x) not in _PLAIN:
            return primitive.bind((x, y))
        if type(y) is TracedArray:
            node = y._node
            if y._trace is not self or y._sharing is not None or node is None:
                return primitive.bind((x, y))
            values[1] = y._value
            parents = (*parents, node)
            kind = node.type
            active += 2
        elif type(y) not in _PLAIN:
            return primitive.bind((x, y))
        out = primitive.function(values[0], values[1])
        signature = primitive._cache.get(active) or primitive.signature(active, 2)
        if len(signature.active) != len(parents):
            return self.process(primitive, (x, y), None)  # an operand whose derivative is zero
        if kind.dtype is not out.dtype or kind.shape != out.shape:
            out, kind = _typed(out)
        saved: Any = ()
        if not signature.simple:
            saved = self._save(signature, (x, y), values, out)
        elif signature.saves:
            k = signature.saves[0]
            kept = values[k] if k >= 0 else out
            if type(kept) is np.ndarray:
                if kept is x or kept is y:
                    kept = guarded(kept)  # a plain operand, which the user can reach
                else:
                    self.ledger.saved += kept.nbytes
            saved = (kept,)
        frame: Any = sys._getframe(3)
        code = frame.f_code
        while code.co_filename.startswith(HOME) and is_ours(code.co_filename) and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        self.count = number = self.count + 1
        return TracedArray(self, Node(number, signature, parents, saved, None, kind, code, frame.f_lasti), out)

    def process(self, primitive: Primitive, operands: tuple[Any, ...], params: Any) -> Any:
        """
        Do an operation on the values and record it.

        Args:
            primitive: The operation.
            operands: Its operands, at least one of them traced here or, in a region, outside.
            params: Its parameters.

        Returns:
            A traced array of this tape.
        """
        if self.closed:
            raise self._escaped(primitive)
        if self.outer is not None:
            operands = tuple([self._adopt(operand) for operand in operands])
        values = []
        active = 0
        bit = 1
        deeper = False
        for operand in operands:
            if type(operand) is TracedArray:
                if operand._sharing is not None:
                    operand.present()
                if operand._trace is self:
                    if operand._node is not None:
                        active |= bit
                    value = operand._value
                    deeper = deeper or type(value) is TracedArray
                    values.append(value)
                else:
                    deeper = True
                    values.append(operand)
            else:
                values.append(operand if type(operand) in _PLAIN else plain(operand))
            bit += bit
        if deeper:
            out = primitive.bind(tuple(values), params)
        elif params:
            out = primitive.function(*values, **params)
        else:
            out = primitive.function(*values)
        if not active:
            return self._inactive(primitive, operands, out)
        signature = primitive._cache.get(active)
        if signature is None:
            signature = primitive.signature(active, len(values))
        parents = tuple([operands[k]._node for k in signature.active])
        kind = parents[0].type if parents else None
        if kind is None or kind.shape != out.shape or kind.dtype is not out.dtype:
            out, kind = _typed(out)
        self.count = number = self.count + 1
        saved: Any = ()
        if signature.saves or signature.keeps:
            saved = self._save(signature, operands, values, out)
        frame: Any = sys._getframe(2)
        while frame.f_back is not None and is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        node = Node(number, signature, parents, saved, params, kind, frame.f_code, frame.f_lasti)
        if self.pager is not None:
            node.saved = self.pager.hold(node, signature, saved)
        made = TracedArray(self, node, out)
        if primitive.aliases:
            _share(made, operands, primitive)
        return made

    def _adopt(self, operand: Any) -> Any:
        """Return an operand as the region sees it: arrays of the tapes around are static values."""
        if type(operand) is TracedArray:
            if operand._trace is not self and self.covers(operand._trace):
                return self.lift(operand)
        elif type(operand) is np.ndarray and self.constancy is not None:
            self.constancy.meet(operand)
        return operand

    def _inactive(self, primitive: Primitive, operands: tuple[Any, ...], out: Any) -> Any:
        made = TracedArray(self, None, out)
        if primitive.aliases:
            _share(made, operands, primitive)
        return made

    def _save(self, signature: Signature, operands: Any, values: Any, out: Any) -> tuple[Any, ...]:
        """Return the values that a signature saves, those that the user can reach with a guard."""
        ledger = self.ledger
        saved = []
        for k in signature.saves:
            if k < 0:
                value = out
                if signature.primitive.aliases:
                    value = guarded(value)
            else:
                value = values[k]
                operand = operands[k]
                if type(operand) is TracedArray:
                    if operand._sharing is not None:
                        value = _saved_shared(operand, value)
                    if operand._trace is not self:
                        value = operand.frozen()
                elif type(value) is np.ndarray:
                    value = guarded(value)
            if type(value) is np.ndarray:
                ledger.saved += value.nbytes
            saved.append(value)
        for make, positions in signature.keeps:
            value = kept_value(make, [out if k < 0 else values[k] for k in positions], out)
            ledger.saved += getattr(value, "nbytes", 0)
            saved.append(value)
        return tuple(saved)

    def _escaped(self, primitive: Primitive) -> TraceError:
        return TraceError(
            f"{primitive.name} at {self.here()} uses a traced array after the function that it was made in "
            "had returned, so its derivative is lost. Return the array from the function (has_aux=True "
            "gives it back as a plain array), and do not keep it in a global or an attribute."
        )


def _typed(out: Any) -> tuple[Any, ArrayType]:
    """Return an output and its type; Python scalars (from users' functions) become arrays."""
    if not hasattr(out, "shape"):
        out = np.asarray(out)
    return out, ArrayType(out.shape, out.dtype)


def _share(made: TracedArray, operands: tuple[Any, ...], primitive: Primitive) -> None:
    """Note that an output may share the memory of its operands."""
    for operand in operands:
        if type(operand) is not TracedArray:
            if type(operand) is np.ndarray:
                made.sharing().reachable = True
        elif operand._sharing is not None:
            if primitive.put is None:
                operand._sharing.private = False  # no view that would follow a later write
            if operand._sharing.reachable:
                made.sharing().reachable = True


def _saved_shared(operand: TracedArray, value: Any) -> Any:
    """Return the value of an operand that shares memory, in the form in which it can be saved."""
    sharing = operand._sharing
    assert sharing is not None
    sharing.private = False
    if sharing.root is not None:
        sharing.root.sharing().private = False
    return guarded(value) if sharing.reachable else value

