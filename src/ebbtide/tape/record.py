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
from ebbtide.arrays.context import advice_in_thread, current
from ebbtide.arrays.kinds import PLAIN
from ebbtide.arrays.location import OURS, is_ours, user_line
from ebbtide.arrays.misuse import refuse_objects
from ebbtide.arrays.primitive import Primitive, Signature, inside, plain
from ebbtide.arrays.spaces import PackedVectors
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import Sharing
from ebbtide.errors import TraceError
from ebbtide.storage.checksum import compute_crc32c
from ebbtide.tape.blocks import kept_value
from ebbtide.tape.node import Node
from ebbtide.tape.saved import SavedValue, guarded, saved_operand

_new = object.__new__


@final
class Tape:
    """
    Records the operations of one call.

    Args:
        level: Depth of nesting; larger than that of all traces around it.
        ledger: The account of the outermost call.
        outer: For regions (a time step, a checkpointed function): the tape around it, whose arrays are static values.
        around: For regions: the region around it.
        met: For regions: arrays from outside as the region met them first.
        pager: Counts, pages and bounds the saved values if a budget or profile wants it.
        constancy: Checks that plain arrays met by a step do not change from step to step.

    Memory:
        Holds static values of a region; no nodes but those of communication.
    """

    is_linear = False  # see `context.beneath`
    __slots__ = (
        "__weakref__", "around", "closed", "constancy", "consumer", "count", "fast", "ledger", "level", "met", "outer",
        "packed", "pager", "presence", "required", "statics",
    )  # fmt: skip

    def __init__(
        self,
        level: int,
        ledger: Any,
        *,
        outer: Any = None,
        around: Any = None,
        met: Any = None,
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
        self.met = met
        self.packed: PackedVectors = PackedVectors() if outer is None else outer.packed
        # Whether nothing but the operation itself has to be thought of: no budget, no profile, no region inside.
        self.fast = pager is None
        # Static values of a region: address of the node outside -> (node here, array outside).
        self.statics: dict[int, tuple[Node, TracedArray]] = {}
        # See `tape.communication`.
        self.presence: tuple[Node, Any] | None = None
        self.required: dict[int, Node] = {}

    def close(self) -> None:
        """End the recording: an operation on an array of this tape is an error from now on."""
        self.closed = True
        self.fast = False

    def covers(self, trace: Any) -> bool:
        """Return whether arrays of *trace* are static values of this region."""
        return trace is self.outer or (self.around is not None and self.around.covers(trace))

    def first_met(self, array: TracedArray) -> TracedArray:
        """Return an array from outside as the region met it first."""
        return array.frozen() if self.met is None else self.met.first(array, self)

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
        if self.around is not None:
            value = inside(self.around, value)
        self.count += 1
        array = TracedArray(self, Node(self.count, None, (), (), None, type_of(value)), value)
        if reachable:
            array._sharing = Sharing(reachable=True)
        return array

    def lift(self, operand: TracedArray) -> Any:
        """Return what an array from outside of the region is inside: a static value."""
        operand = self.met.first(operand, self)
        if operand._trace is not self.outer:
            operand = self.around.lift(operand)
            if type(operand) is not TracedArray or operand._trace is not self.outer:
                return operand
            operand = operand.frozen()
        if operand._node is None:
            return inside(self.around, operand._value)
        found = self.statics.get(id(operand._node))
        if found is None:
            leaf = self.leaf(operand._value, reachable=True)
            # The array outside is kept, and with it its node: the key stays unique.
            self.statics[id(operand._node)] = leaf._node, operand
            if self.outer.presence is not None and operand._node is self.outer.presence[0]:
                self.presence = leaf._node, leaf._value  # what communicates in a region of this one depends on it
            return leaf
        value = found[1]._value if self.around is None else inside(self.around, found[1]._value)
        here = TracedArray(self, found[0], value)
        here._sharing = Sharing(reachable=True)
        return here

    def unary(self, primitive: Primitive, signature: Signature, operand: TracedArray) -> Any:
        """Record an elementwise operation of one array; `process` without what cannot occur here."""
        parent = operand._node
        if operand._sharing is not None or parent is None:
            return self.process(primitive, (operand,), None)
        value = operand._value
        out = primitive.function(value)
        kind = parent.type
        if kind.dtype is not out.dtype:
            out, kind = _typed(out)
        saved: Any = ()
        if not signature.simple:
            saved = self._save(signature, (operand,), (value,), out)
        elif signature.saves:
            kept = value if signature.saves[0] >= 0 else out
            if type(kept) is np.ndarray:
                self.ledger.saved += kept.nbytes
            saved = (kept,)
        return self._recorded(signature, (parent,), saved, kind, out)

    def mixed(self, primitive: Primitive, signature: Signature, operand: TracedArray, other: Any, left: bool) -> Any:
        """Record an elementwise operation of an array, the *left* operand or the right one, and one not traced."""
        parent = operand._node
        # A region looks whether arrays stay the same from step to step; of one object NumPy makes what has no dtype.
        unseen = type(other) is np.ndarray and (self.outer is not None or not other.ndim)
        if operand._sharing is not None or parent is None or unseen:
            return self.process(primitive, (operand, other) if left else (other, operand), None)
        values = (operand._value, other) if left else (other, operand._value)
        out = primitive.function(values[0], values[1])
        kind = parent.type
        if kind.dtype is not out.dtype or kind.shape != out.shape:
            out, kind = _typed(out)
        saved: Any = ()
        if not signature.simple:
            saved = self._save(signature, (operand, other) if left else (other, operand), values, out)
        elif signature.saves:
            place = signature.saves[0]
            kept = values[place] if place >= 0 else out
            if type(kept) is np.ndarray:
                if kept is other:
                    kept = guarded(kept)  # the user can reach it
                else:
                    self.ledger.saved += kept.nbytes
            saved = (kept,)
        return self._recorded(signature, (parent,), saved, kind, out)

    def binary(self, primitive: Primitive, signature: Signature, x: TracedArray, y: TracedArray) -> Any:
        """Record an elementwise operation of two arrays of this tape."""
        first, second = x._node, y._node
        of_x, of_y = x._sharing, y._sharing
        # A view has to look at its root for its present value.
        if (
            first is None
            or second is None
            or (of_x is not None and of_x.root is not None)
            or (of_y is not None and of_y.root is not None)
        ):
            return self.process(primitive, (x, y), None)
        out = primitive.function(x._value, y._value)
        kind = first.type
        if kind.dtype is not out.dtype or kind.shape != out.shape:
            out, kind = _typed(out)
        saved: Any = ()
        if signature.keeps:
            saved = self._save(signature, (x, y), (x._value, y._value), out)
        elif signature.saves:
            kept: list[Any] = []
            for k in signature.saves:
                operand = y if k else x
                if k < 0 or operand._sharing is None:
                    value = out if k < 0 else operand._value
                    if type(value) is np.ndarray:
                        self.ledger.saved += value.nbytes
                else:
                    value = self._kept(operand)
                kept.append(value)
            saved = tuple(kept)
        return self._recorded(signature, (first, second), saved, kind, out)

    def _recorded(self, signature: Signature, parents: tuple[Node, ...], saved: Any, kind: ArrayType, out: Any) -> Any:
        """Return a new array and its node, both filled here: their constructors would take twice the time."""
        frame: Any = sys._getframe(4)
        code = frame.f_code
        while code.co_filename in OURS and frame.f_back is not None:
            frame = frame.f_back
            code = frame.f_code
        node = _new(Node)
        self.count = node.number = self.count + 1
        node.signature = signature
        node.parents = parents
        node.saved = saved
        node.params = None
        node.type = kind
        node.code = code
        node.instruction = frame.f_lasti
        made = _new(TracedArray)
        made._trace = self
        made._node = node
        made._value = out
        made._sharing = None
        return made

    def _kept(self, operand: TracedArray) -> Any:
        """Return the value of an operand that is no view in the form in which it is saved."""
        sharing = operand._sharing
        value = operand._value
        if sharing is not None:
            sharing.private = False
            if sharing.reachable:
                if type(value) is not np.ndarray:
                    return guarded(value)
                crc = compute_crc32c(value)
                if sharing.guard is None or sharing.guard.crc != crc:
                    sharing.guard = SavedValue(value, crc)
                return sharing.guard
        if type(value) is np.ndarray:
            self.ledger.saved += value.nbytes
        return value

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
        if self.level > 1:
            operands = tuple([self.adopt(operand) for operand in operands])
        values, active, bit, deeper = [], 0, 1, False
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
                elif operand._trace.level > self.level:  # that of what an array from outside stands for
                    return primitive.bind(operands, params)
                else:
                    deeper = True
                    values.append(operand)
            else:
                is_plain = type(operand) in PLAIN and not (type(operand) is np.ndarray and operand.dtype.hasobject)
                values.append(operand if is_plain else plain(operand))
            bit += bit
        if self.pager is not None and active:
            self.pager.expect(primitive.signature(active, len(values)), values, params)
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
            saved = self._save(signature, operands, values, out, params)
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

    def adopt(self, operand: Any) -> Any:
        """Return an operand as the region sees it: arrays of the tapes around are static values."""
        if type(operand) is TracedArray:
            capture = None if operand._trace is self else current().capture
            if capture is not None and capture.covers(operand._trace):
                return capture.lift(operand)  # the capture is this tape, or gives a function in it other values
        elif self.constancy is not None and isinstance(operand, np.ndarray):
            self.constancy.meet(operand)
        return operand

    def _inactive(self, primitive: Primitive, operands: tuple[Any, ...], out: Any) -> Any:
        made = TracedArray(self, None, out)
        if primitive.aliases:
            _share(made, operands, primitive)
        return made

    def _save(self, signature: Signature, operands: Any, values: Any, out: Any, params: Any = None) -> tuple[Any, ...]:
        """Return the values that a signature saves, those that the user can reach with a guard."""
        ledger = self.ledger
        saved = []
        for k in signature.saves:
            if k < 0:
                value = guarded(out) if signature.aliases else out
            else:
                value = values[k]
                operand = operands[k]
                if type(operand) is TracedArray:
                    value = saved_operand(operand, value)
                    if operand._trace is not self:
                        value = operand.frozen()
                elif type(value) is np.ndarray:
                    value = guarded(value)
            if type(value) is np.ndarray:
                ledger.saved += value.nbytes
            saved.append(value)
        for make, positions in signature.keeps:
            value = kept_value(make, [out if k < 0 else values[k] for k in positions], out, signature.along, params)
            ledger.saved += getattr(value, "nbytes", 0)
            saved.append(value)
        return tuple(saved)

    def _escaped(self, primitive: Primitive) -> TraceError:
        return TraceError(
            f"{primitive.name} at {user_line()} uses a traced array after the function that it was made in "
            "had returned, so its derivative is lost. Return the array from the function (has_aux=True "
            f"gives it back as a plain array), and do not keep it in a global or an attribute.{advice_in_thread()}"
        )


def _typed(out: Any) -> tuple[Any, ArrayType]:
    """Return an output and its type; Python scalars (from users' functions) become arrays."""
    if not hasattr(out, "shape"):
        out = np.asarray(out)
    refuse_objects(out, "The result of an operation")
    return out, ArrayType(out.shape, out.dtype)


def _share(made: TracedArray, operands: tuple[Any, ...], primitive: Primitive) -> None:
    """Note that an output may share the memory of its operands, or that of whatever a user's function returns."""
    for operand in operands:
        if type(operand) is np.ndarray or primitive.runs_user_code:
            made.sharing().reachable = True
        if type(operand) is TracedArray and operand._sharing is not None:
            if primitive.put is None:
                operand._sharing.private = False  # no view that would follow a later write
            if operand._sharing.reachable:
                made.sharing().reachable = True
