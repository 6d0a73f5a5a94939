"""The function of the equation that a `vmap` becomes: the program of one member, for all members of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import BatchTrace, full
from ebbtide.arrays.context import current
from ebbtide.arrays.traced import TracedArray
from ebbtide.program.equation import Inner, Variable
from ebbtide.program.evaluate import evaluate
from ebbtide.program.program import Program
from ebbtide.program.symbolic import SymbolicTrace


@final
@dataclass(frozen=True, slots=True, eq=False)
class Members(Inner):
    """
    A function of one member, done for the members of a batch one after the other.

    Args:
        program: That of one member. Its first inputs are each member's own, the others are the same for all.
        size: Number of members.
        threads: One, before they have places.
        work: What they cost; nothing is known before they have places.
        moment_nbytes: What they take for a moment; nothing is known.
    """

    program: Program
    size: int
    threads: int = 1
    work: int = 0
    moment_nbytes: int = 0

    def __call__(self, *, each: Sequence[Any], shared: Sequence[Any]) -> tuple[Any, ...]:
        """
        Return the results of all members, along their first axes.

        Args:
            each: The operands that have the members on their first axis.
            shared: The operands that are the same for all.
        """
        traced = [x for x in (*each, *shared) if type(x) is TracedArray]
        if not traced:
            rows = [evaluate(self.program, [*[x[k] for x in each], *shared]) for k in range(self.size)]
            return tuple([np.stack(parts) for parts in zip(*rows, strict=True)])
        symbols = current().capture
        if type(symbols) is SymbolicTrace and symbols.by_members and all(x._trace is symbols for x in traced):
            return tuple(self.record(symbols, each, shared))
        return self._by_rules(each, shared)

    def record(self, symbols: SymbolicTrace, each: Sequence[Any], shared: Sequence[Any]) -> list[TracedArray]:
        """Record it as an equation; return the arrays of all members that it gives."""
        kinds = [x.type for x in self.program.outputs]
        results = [Variable(ArrayType((self.size, *kind.shape), kind.dtype), "part") for kind in kinds]
        return symbols.call(self, "members", {"each": list(each), "shared": list(shared)}, results)

    def _by_rules(self, each: Sequence[Any], shared: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results by the batch rules, which derivatives go through."""
        trace = BatchTrace(0, self.size)
        trace.closed = True  # but in the block
        with trace.above():
            found = evaluate(self.program, [*[trace.members(x) for x in each], *shared])
            pairs = [trace.split(x) for x in found]
        return tuple([full(*pair, self.size) for pair in pairs])
