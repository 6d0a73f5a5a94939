"""A function recorded once: its tape, its leaves and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of
from ebbtide.arrays.containers import as_value, check_vectors, flatten, objects_in, paths_of, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.machine import Heap
from ebbtide.tape.account import Account
from ebbtide.tape.node import Node
from ebbtide.tape.overhead import ARGUMENT_BYTES
from ebbtide.tape.record import Tape
from ebbtide.tape.sweep import sweep


@final
class Recording:
    """A function recorded once: its tape, its leaves and its outputs."""

    __slots__ = ("account", "are_arrays", "leaves", "outputs", "structure", "structures", "tape")

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, argnums: Any, acct: Account) -> None:
        self.account = acct
        context = current()
        level = context.level + 1
        self.tape = Tape(level, acct.ledger, pager=acct.pager)
        if level == 1:
            acct.ledger.phase = "forward"
        self.are_arrays: list[bool] = []  # and not numbers; the packed array of a vector dies at its last use
        self.structures = []
        acct.exclude(objects_in((args, kwargs)))
        acct.exclude_reached(f)
        full = list(args)
        arrays: list[TracedArray] = []
        for k in argnums:
            check_vectors(args[k])
            leaves, structure = flatten(args[k])
            given = set(map(id, objects_in(args[k])))
            acct.lend([leaf for leaf in leaves if isinstance(leaf, np.ndarray) and id(leaf) not in given])
            places = paths_of(structure)
            values = [as_value(leaf, f"argument {k}{p}") for leaf, p in zip(leaves, places, strict=True)]
            traced = [self.tape.leaf(v, reachable=isinstance(v, np.ndarray)) for v in values]
            self.are_arrays += [isinstance(bottom(leaf), np.ndarray) for leaf in leaves]
            self.structures.append(structure)
            arrays += traced
            full[k] = unflatten(structure, traced)
            del traced, leaves, values
        self.leaves = [array._node for array in arrays]
        if self.tape.pager is not None:
            self.tape.pager.overhead.count(max(0, len(arrays) - 1) * ARGUMENT_BYTES)
        del arrays
        try:
            traces = (*context.traces, self.tape)
            with entered(
                level=level, tape=self.tape, tangent=None, traces=traces, ledger=acct.ledger, budget=acct.budget
            ):
                outputs = f(*full, **kwargs)
                self.outputs, self.structure = flatten(outputs)
                settle(self.outputs)
        finally:
            self.tape.close()
        del full, outputs

    def roots(self) -> list[tuple[Node | None, Any]]:
        """Return for each output its node (None for constants) and its value; forgets the outputs."""
        found = []
        for output in self.outputs:
            if type(output) is TracedArray and output._trace is self.tape:
                found.append((output._node, output._value))
            else:
                found.append((None, output))
        self.outputs = []
        return found

    def gradients(self, seeds: list[tuple[Node, Any, bool]], *, retain: bool = False) -> list[Any]:
        """Return the cotangents of the inputs, one container for each argument."""
        ledger = self.account.ledger
        before, ledger.phase = ledger.phase, "reverse"
        try:
            with Heap(steps=False), entered(ledger=ledger, budget=self.account.budget), self.account.at_work():
                self.account.settle(seeds, self.leaves)
                self.account.borrow(seeds)
                found = sweep(self.tape, seeds, self.leaves, retain=retain)
                if not retain:
                    self.account.finish()
                elif self.account.pager is not None:
                    self.account.pager.put_back()
        finally:
            if self.tape.level > 1:  # the sweep of an inner gradient is a part of the phase around it
                ledger.phase = before
        kinds = [leaf.type for leaf in self.leaves]
        found.reverse()  # each goes when it is finished: one that is not ours is copied
        finished = [_finished(*found.pop(), k, a) for k, a in zip(kinds, self.are_arrays, strict=True)]
        result = []
        for structure in self.structures:
            result.append(unflatten(structure, finished[: structure.num_leaves]))
            del finished[: structure.num_leaves]
        return result


def settle(outputs: list[Any]) -> None:
    """Give views among the outputs of a function their present values, while its trace still records."""
    for output in outputs:
        if type(output) is TracedArray:
            output.present()


def _finished(value: Any, owned: bool, kind: ArrayType, is_array: bool) -> Any:
    """Return a cotangent as the caller gets it: of the type of the input, and never our memory."""
    if type(value) is TracedArray:
        return value.frozen()  # the same object may be a cotangent that was given, or another result
    if value is None:
        value, owned = np.zeros(kind.shape, kind.dtype), True
    if not is_array:
        return value[()]  # a number in, a number out
    if not isinstance(value, np.ndarray) or value.dtype != kind.dtype:  # a scalar, or in another order of bytes
        return np.asarray(value, kind.dtype)
    # A view of a much larger array would keep that alive in the caller's hands.
    return value if owned and owner_of(value).nbytes <= 2 * value.nbytes else np.array(value)
