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
from ebbtide.tape.forms import form_here, ones_of
from ebbtide.tape.node import Node
from ebbtide.tape.region import Region
from ebbtide.tape.saved import SavedValue


def measure_rules(record: TapedStep, region: Region) -> tuple[int, int]:
    """
    Note what the rules of the first step take.

    Each of those that nobody knows is run once, with a cotangent of ones. A step whose saved values passed the budget
    has them no more: it is refused, and what its rules take is measured where it fits.

    Args:
        record: The taped first step.
        region: The region of the steps.

    Returns:
        (by how much the sweep of the step takes more than was forecast, the most that one rule took, its cotangent
        included).

    Memory:
        A cotangent, and what one rule takes at a time, beside what the step saved and as long as no function runs.
    """
    # A rule may talk to other processes, so that all run it or none does.
    if agree(record.tape.pager.passed is not None):
        return 0, 0
    nodes = [node for node in nodes_of(record) if is_measured(node.signature)]
    if not nodes:
        return 0, 0
    before, ledger, most = record.forecast(), record.tape.pager.ledger, 0
    for node in nodes:
        # Of an error tells the sweep, which comes with the cotangent that it is about.
        with region.outside(region.ledger), np.errstate(all="ignore"), suppress(Exception):
            most = max(most, _measure(node, ledger.taken))
    return record.forecast() - before, most


def _measure(node: Node, taken: dict[tuple[int, Any, Any], int]) -> int:
    """Run the pulls of an operation, note the most that each takes, see `Ledger.taken`, and return it of all."""
    assert Meter is not None
    most = 0
    signature: Any = node.signature
    cells: Any = node.saved
    for (pull, uses, _), parent in zip(*signature.ordered(node.parents), strict=True):
        values = [cells[s].open(node) if type(cells[s]) is SavedValue else cells[s] for s in uses]
        g, key = ones_of(kind := form_here(node.type)), (id(pull), kind, parent.type)
        with Meter() as meter:
            pull.rule(g, parent.type, node.params, *values)
        taken[key] = max(meter.peak, taken.get(key, 0))
        most = max(most, kind.nbytes + meter.peak)
    return most
