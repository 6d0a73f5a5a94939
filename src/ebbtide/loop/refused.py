"""
A loop that does not fit, in the first step of another one, which is being measured.

It runs on without keeping anything, so that the step around is measured to its end, and the one refusal that follows
names what all of it takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, final

from ebbtide.ledger import SNAPSHOTS, Ledger
from ebbtide.loop.holding.held import beyond_bytes
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.resuming.links import Links
from ebbtide.loop.stepping.collect import emit
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.tape.joint import Holding, JointRule
from ebbtide.tape.node import Node


@final
class RefusedLoop(JointRule):
    """
    Says of a loop what it would hold with its smallest plan, when it has given up all that it can.

    Args:
        ledger: The account, which counts it.
        plan: The plan of a budget that is just enough.
        on_disk: Whether its first state would be on disk.
        links: Its parents on the tape around.
        sums: Bytes of the sums for static values that its steps met.
        emitted: Its outputs.
        kept: What its steps would be run again with.

    Memory:
        The last of these; what it says to hold beside them is in the account until it dies.
    """

    __slots__ = ("__weakref__", "_held", "_kept", "_on_disk", "_sums", "emitted", "links", "plan")

    has_reserve = True

    def __init__(
        self, ledger: Ledger, plan: Plan, on_disk: bool, links: Links, sums: int, emitted: list[Any], kept: list[Any]
    ) -> None:
        self.plan, self.links, self.emitted, self._on_disk = plan, links, emitted, on_disk
        self._kept = kept
        self._sums = max(plan.sizes.gradients, sums)
        sizes = plan.sizes
        self._held = sizes.saved + sizes.shared + (0 if on_disk else sizes.data)
        ledger.add(SNAPSHOTS, self._held)
        weakref.finalize(self, ledger.add, SNAPSHOTS, -self._held).atexit = False
        ledger.lend(self)

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return "timeloop"

    def holding(self, bare: bool) -> Holding:
        """See `JointRule.holding`."""
        plan, sizes = self.plan, self.plan.sizes
        # With disk the entries of its states, which a loop in a step does not give up.
        beyond = max(plan.fewest, sizes.listed) if self._on_disk else sizes.entry
        return Holding(self._held, beyond_bytes(plan, 0, 0, 0, 0) + beyond, plan.least)

    @property
    def kept(self) -> Iterable[Any]:
        """See `JointRule.kept`."""
        return self._kept

    def needs(self, owned: bool, given: int) -> int:
        """See `JointRule.needs`."""
        sizes = self.plan.sizes
        return max(0, sizes.sweep_beyond - sizes.saved - sizes.shared) + self._sums - given

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Never called: the loop around is refused."""
        raise AssertionError("A loop that was refused is swept.")

    def close(self) -> None:
        """See `LoopRule.close`; there is nothing to give up."""


def run_on(
    stepper: Stepper, values: list[Any], steps: int, options: Options, nodes: list[Node | None], inputs: Any,
    plan: Plan, on_disk: bool,
) -> tuple[RefusedLoop, list[Any]]:  # fmt: skip
    """
    Run all steps of a loop that was refused on plain values.

    Args:
        stepper: Runs them.
        values: Leaves of the initial state, owned by the loop.
        steps: The number of steps, or its upper bound.
        options: Says how the loop may end, and whether it has outputs.
        nodes: Nodes of the same leaves on the tape around; None for constants of it.
        inputs: The inputs as the user gave them.
        plan: Its smallest plan.
        on_disk: Whether there is disk for its first state.

    Returns:
        (what stands for it on the tape, leaves of the final state).
    """
    region, until = stepper.region, options.until
    assert region is not None
    bypass, emitted = region.bypass(), list[Any]()
    with region.running(bypass):
        for index in range(steps):
            if until is not None and index and stepper.holds(until, values):
                break
            values, output = stepper.plain(index, values, bypass)
            if options.outputs:
                emit(emitted, index, None if until is not None else steps, output)
            del output
    links = Links(region, nodes, inputs, bypass.statics)
    sums = sum(met.nbytes for met in bypass.statics.values())
    stepper.kept.add(bypass.statics.values())
    return RefusedLoop(region.ledger, plan, on_disk, links, sums, emitted, stepper.kept.cells), values
