"""Time loops whose later states carry more than the initial one does: members of a batch, or tangents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import is_array
from ebbtide.arrays.context import current, entered
from ebbtide.budget import Budget
from ebbtide.ledger import Ledger, Mark
from ebbtide.loop.measuring.first import First, run_first, run_instead
from ebbtide.loop.measuring.timing import is_alike, time_plain, verifier_of
from ebbtide.loop.planning.sizes import RESERVE
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.loop.stepping.warm import Timed
from ebbtide.loop.values.state import bytes_of, owned
from ebbtide.machine import Meter
from ebbtide.tape.forms import form_here, has_arrays

# States that a first step on plain values holds beside what the function alone does: the user's and a copy of it, and
# later the lifted one beside that after the step.
_BESIDE = 3


@final
@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """
    A first step that was run on plain values.

    Args:
        timed: What it took.
        meter: What saw its allocations; None where there is none.
    """

    timed: Timed
    meter: Meter | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """
    The first step on a tape, and the state that it was run with.

    Args:
        first: The step.
        values: Leaves of the initial state; others than the user's where later ones carry more.
        plain: The step on plain values that told so, or that they do not; None where that was not run.
        lifting: The taped steps that are run for nothing but that: 0 with the user's values. None is run to be timed
            then: the one with others is the second step, and warm.
        verifier: Knows what the step led to with the user's values, where others have taken their place.
    """

    first: First
    values: list[Any]
    plain: Plain | None = None
    lifting: int = 0
    verifier: Verifier | None = None

    def from_the_users(
        self, stepper: Stepper, values: list[Any], first: First, ledger: Ledger, allowed: Budget | None
    ) -> First:
        """Return the step to begin the loop with: the *first* one, or if need be another one with the user's values."""
        if not self.lifting:
            return first
        first = run_instead(stepper, values, first, ledger, allowed)
        assert first.record is not None
        if self.verifier is not None and is_alike(stepper, first.record):
            self.verifier.taped(0, first.after)
        return first


def begin(stepper: Stepper, values: list[Any], ledger: Ledger, mark: Mark, allowed: Budget | None) -> Begun:
    """
    Run the first step on a tape, from a state that carries what all later ones do.

    Where a leaf of the user's carries less than values may here, the step is run on plain values before: that one step
    tells what later states carry, and what the function alone takes. Where there is no room for it a taped step tells,
    and is run again from another state.

    Args:
        stepper: Runs it.
        values: Leaves of the initial state, which stay as they are.
        ledger: The account.
        mark: Where it stood before.
        allowed: The budget; None for no bound.

    Memory:
        Two states and the lifted one, beside what the steps take.
    """
    if ledger.limit is None or not any(map(has_arrays, current().traces)):
        return Begun(run_first(stepper, values, ledger, allowed), values)
    after: list[Any] = []
    if (plain := _run_plain(stepper, values, ledger, mark, after)) is not None:
        more, verifier = _lifted(stepper, values, after), verifier_of(stepper, after)
        after.clear()
        if more is None:
            first = run_first(stepper, values, ledger, allowed)
            assert first.record is not None
            if is_alike(stepper, first.record):
                verifier.taped(0, first.after)
            return Begun(first, values, plain)
        # Tangents of zeros are none of the user's.
        with np.errstate(all="ignore"):
            return Begun(run_first(stepper, more, ledger, allowed), more, plain, 1, verifier)
    first = run_first(stepper, values, ledger, allowed)
    if (more := _lifted(stepper, values, first.after)) is None:
        return Begun(first, values)
    verifier = verifier_of(stepper, first.after)
    with np.errstate(all="ignore"):
        return Begun(run_instead(stepper, more, first, ledger, allowed), more, None, 2, verifier)


def _run_plain(stepper: Stepper, values: list[Any], ledger: Ledger, mark: Mark, after: list[Any]) -> Plain | None:
    """Run the first step on plain values if a leaf may come to carry more and there is room; *after* gets the state."""
    arrays = [leaf for leaf in values if is_array(leaf) and np.ndim(leaf)]
    most = sum([form_here(type_of(leaf)).nbytes for leaf in arrays])
    # No process runs a step more than the others, which may wait for it, and none a step less.
    if not agree(most > bytes_of(arrays)):
        return None
    assert ledger.limit is not None
    needed = RESERVE + _BESIDE * most
    ledger.relieve(ledger.live + needed - ledger.limit, ledger.lenders_before(mark))
    if agree(ledger.live + needed > ledger.limit):
        return None
    meter = None if Meter is None else Meter()
    return Plain(time_plain(stepper, [owned(leaf) for leaf in values], ledger, None, meter, after), meter)


def _lifted(stepper: Stepper, values: list[Any], after: list[Any]) -> list[Any] | None:
    """
    Return an initial state that carries what all later ones do, to be measured in the place of the user's.

    A constant is one member of a batch, and has no tangent; what a step makes of it with a control has. By the first
    step alone, `hvp` of 40 steps from `np.ones` was planned with 240 steps and ran 820, and `vmap` passed its budget.
    The loop itself begins with the user's: a tangent of zeros is not the same as none, where a derivative is infinite.

    Args:
        stepper: Runs the steps.
        values: Leaves of the user's initial state.
        after: The same after the first step.

    Returns:
        Its leaves; None where none of them grows.

    Memory:
        One such state.
    """
    both = enumerate(zip(values, after, strict=True))
    grown = [k for k, (old, new) in both if np.ndim(old) and bytes_of([new]) > bytes_of([old])]
    if not agree(bool(grown)):
        return None
    region, found = stepper.region, list(values)
    assert region is not None
    with region.running(region.bypass()), entered(ledger=region.ledger):
        for k in grown:
            found[k] = owned(np.where(True, values[k], after[k]))
    return found
