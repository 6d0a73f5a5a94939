"""Time loops whose later states carry more than the initial one does: members of a batch, or tangents."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.context import entered
from ebbtide.loop.values.state import bytes_of, owned
from ebbtide.tape.region import Region

# The steps that are run for nothing else where an initial state is lifted: with it, and then without it. None is run to
# be timed: the one with it is the second, and warm.
LIFTED_STEPS = 2


def grown_leaves(values: list[Any], after: list[Any]) -> list[int]:
    """
    Return which leaves come to carry more.

    Args:
        values: The leaves of the initial state.
        after: The same after the first step.
    """
    both = enumerate(zip(values, after, strict=True))
    return [k for k, (old, new) in both if np.ndim(old) and bytes_of([new]) > bytes_of([old])]


def lifted(values: list[Any], after: list[Any], grown: list[int], region: Region) -> list[Any]:
    """
    Return an initial state that carries what all later ones do, to be measured in the place of the user's.

    A constant is one member of a batch, and has no tangent; what a step makes of it with a control has. By the first
    step alone, `hvp` of 40 steps from `np.ones` was planned with 240 steps and ran 820, and `vmap` passed its budget.
    The loop itself begins with the user's: a tangent of zeros is not the same as none, where a derivative is infinite.

    Args:
        values: The leaves of the initial state.
        after: The same after the first step.
        grown: Which of them come to carry more.
        region: The region of the steps.

    Memory:
        One such state.
    """
    found = list(values)
    with region.running(region.bypass()), entered(ledger=region.ledger):
        for k in grown:
            found[k] = owned(np.where(True, values[k], after[k]))
    return found
