"""What the steps of a loop save in common: static values, and what the step closes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.reach import arrays_of
from ebbtide.ledger import Ledger
from ebbtide.loop.stepping.steps import Stepper, TapedStep
from ebbtide.loop.stepping.swap import nodes_of
from ebbtide.tape.holders import held_by
from ebbtide.tape.saved import SavedValue, bytes_of, key_of


def shared_bytes(stepper: Stepper, record: TapedStep, ledger: Ledger) -> int:
    """
    Return the bytes of arrays that the first step saved, and others will, too, as they do not die with it.

    But for those that code before the loop has saved, too: they were counted before the step.
    """
    cells = _shared_cells(stepper, record, ledger)
    kept = {key_of(cell): bytes_of(cell) for cell in cells.values()}
    # Of a view the saved value is the step's own, and the memory may be that of an earlier one.
    find = record.tape.pager.find
    holders = Counter([key_of(cell) for cell in cells.values() if find(cell.value, own=False) is None])
    return sum(kept[key] for key in kept if ledger.count_holders(key) <= holders[key])


def counted_before(stepper: Stepper, record: TapedStep, earlier: TapedStep, ledger: Ledger) -> int:
    """Return the bytes of such arrays that a step holds, and that were counted as an earlier one holds them."""
    known = {key_of(cell) for cell in saved_arrays(earlier, ledger)}
    kept = {key_of(cell): bytes_of(cell) for cell in _shared_cells(stepper, record, ledger).values()}
    return sum([nbytes for key, nbytes in kept.items() if key in known])


def _shared_cells(stepper: Stepper, record: TapedStep, ledger: Ledger) -> dict[int, SavedValue]:
    """Return the saved values of a step that are static, or that it closes over, by their addresses."""
    others = {id(owner_of(met._value)) for _, met in record.tape.statics.values() if type(met._value) is np.ndarray}
    others |= {id(owner_of(array)) for array in arrays_of(stepper.step)}
    return {id(cell): cell for cell in saved_arrays(record, ledger) if id(owner_of(cell.value)) in others}


def saved_arrays(record: TapedStep, ledger: Ledger) -> Iterator[SavedValue]:
    """Return the arrays that a step holds."""
    for node in nodes_of(record):
        for cell in held_by(node, ledger.holds):
            if type(cell) is SavedValue and type(cell.value) is np.ndarray:
                yield cell
