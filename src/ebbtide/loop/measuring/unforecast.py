"""What users' own rules, and SciPy's, take for a moment: no forecast tells it, and the first step does."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ebbtide.agree import agree
from ebbtide.loop.measuring.likeness import is_measured
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import nodes_of
from ebbtide.machine import Meter
from ebbtide.tape.forms import form_here, form_of, ones_of
from ebbtide.tape.node import Node
from ebbtide.tape.outcome import outcome_of
from ebbtide.tape.region import Region
from ebbtide.tape.saved import SavedValue


def measure_rules(record: TapedStep, region: Region) -> int:
    """
    Return the most bytes that a rule of the first step takes beyond what is forecast of it.

    Each of those that nobody knows is run once, with a cotangent of ones. A step whose saved values passed the budget
    has them no more: it is refused, and what its rules take is measured where it fits.

    Args:
        record: The taped first step.
        region: The region of the steps.

    Memory:
        A cotangent, and what one rule takes at a time, beside what the step saved and as long as no function runs.
    """
    # A rule may talk to other processes, so that all run it or none does.
    if agree(record.tape.pager.passed is not None):
        return 0
    found = 0
    for node in nodes_of(record):
        if not is_measured(node.signature):
            continue
        # Of an error tells the sweep, which comes with the cotangent that it is about.
        with region.outside(region.ledger), np.errstate(all="ignore"), suppress(Exception):
            found = max(found, _most_beyond(node))
    return found


def _most_beyond(node: Node) -> int:
    """Return by how much the pulls of an operation take more than what is forecast."""
    assert Meter is not None
    signature: Any = node.signature
    cells: Any = node.saved
    found = 0
    for (pull, uses, _), parent in zip(*signature.ordered(node.parents), strict=True):
        values = [cells[s].open(node) if type(cells[s]) is SavedValue else cells[s] for s in uses]
        kind = form_here(node.type)
        known, g = outcome_of(pull, kind, parent.type, node.params, [form_of(value) for value in values]), ones_of(kind)
        with Meter() as meter:
            pull.rule(g, parent.type, node.params, *values)
        found = max(found, meter.peak - known.nbytes - known.temporary)
    return found
