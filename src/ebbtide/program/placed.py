"""The function of the equation of members once it is decided where their values are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Inner
from ebbtide.program.layout import Layout
from ebbtide.program.members import Members
from ebbtide.program.memory import Memory
from ebbtide.program.program import Program
from ebbtide.program.stretches import Stretch

# Rows of the workspace begin at lines of the cache of a processor, and no two threads write into one.
_ALIGNMENT = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlacedMembers(Inner):
    """
    A function of the members of a batch, with a plan of the memory of one member.

    Args:
        members: The function.
        program: That of one member: its inputs are each member's own, its parts of `into`, and what is shared. Each
            result is made in the memory of one of these.
        layout: How its values lie.
        memory: Where they are.
        stretches: What the machine does of it.
        threads: How many threads run members.
        work: What it costs to run all of them (see `costs`).
        moment_nbytes: Bytes that NumPy takes beside the workspace while they run.
    """

    members: Members
    program: Program
    layout: Layout
    memory: Memory
    stretches: tuple[Stretch, ...]
    threads: int
    work: int
    moment_nbytes: int

    def __call__(self, *, each: Sequence[Any], into: Sequence[Any], shared: Sequence[Any], space: Any) -> Any:
        """Return the results of all members as `Members` does: where they are to be is of no interest."""
        return self.members(each=each, shared=shared)

    @property
    def stretch(self) -> Stretch | None:
        """The one run of the machine that is the whole program; None where NumPy has to do something."""
        done = {place for stretch in self.stretches for place in stretch.places}
        bases = self.layout.bases
        left = [e for place, e in enumerate(self.program.equations) if place not in done and e.output not in bases]
        return self.stretches[0] if len(self.stretches) == 1 and not left else None

    @property
    def space(self) -> ArrayType:
        """Type of the workspace: a row for each thread."""
        return ArrayType((self.threads, max(1, -(-self.memory.nbytes // _ALIGNMENT)) * _ALIGNMENT), np.dtype(np.uint8))
