"""The differentiable time loop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.arrays.containers import flatten, is_array, unflatten
from ebbtide.arrays.context import current, entered, value_trace
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.errors import ScheduleError
from ebbtide.ledger import SAVED, Ledger
from ebbtide.loop.collect import emit, stacked
from ebbtide.loop.duals import dual_loop
from ebbtide.loop.links import Links
from ebbtide.loop.plan import Plan, Sizes, make_plan
from ebbtide.loop.progress import Bar
from ebbtide.loop.run import LoopRule
from ebbtide.loop.state import bytes_of, owned, pack, writable
from ebbtide.loop.steps import Stepper
from ebbtide.schedules import Schedule
from ebbtide.storage import Disk, Storage
from ebbtide.storage.files import describe_file
from ebbtide.tape.joint import record_joint
from ebbtide.tape.pager import Pager
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Region


def timeloop(
    step: Callable[..., Any],
    state: Any,
    steps: int,
    *,
    inputs: Any = None,
    outputs: bool = False,
    schedule: Schedule | None = None,
    storage: Storage | None = None,
    budget: Budget | None = None,
    collect_every: int | None = None,
    progress: bool | None = None,
) -> Any:
    """
    Run a step many times; its derivative keeps within a budget, whatever the number of steps.

    Args:
        step: `step(state, x)` returns the new state, or (new state, output) with *outputs*. It may write into
            its state. Arrays that it uses from outside (by closure, global, attribute or default) are static
            values: kept once, their cotangents summed over the steps; they must not change in the loop.
        state: A container of arrays and numbers; copied once.
        steps: The number of steps.
        inputs: `x` is `inputs[i]`: an array with *steps* rows, or a sequence of *steps* containers; None for the
            step number.
        outputs: Whether each step gives an output.
        schedule: When to store and recompute; None to choose from the budget. A given one is followed exactly.
        storage: Where snapshots go; None for memory, or for disk where the budget says so.
        budget: What the loop may take, beside the budgets of the calls around it.
        collect_every: Collect garbage each time after this many steps; for user code with reference cycles.
        progress: Whether to show a bar for the forward and one for the reverse sweep.

    Returns:
        The final state, or (final state, outputs), each leaf of the outputs stacked on a new first axis.

    Raises:
        ValueError: The number of inputs is not *steps*.
        TypeError: The step returned another structure, or a leaf is no array or number.
        BudgetError: Not even one snapshot fits into the budget.
        MutationError: A static value changed during the loop.
        DeterminismError: A step gave another result when it was run again.

    Memory:
        Not differentiated: one state. Differentiated: the snapshots of the schedule and the saved values of one
        step, or with `StoreAll` of all steps, until the reverse sweep has passed them.

    Source:
        Griewank and Walther, Evaluating Derivatives, chapter 12 (time steps and snapshots).

    Example:
        >>> from ebbtide import grad
        >>> grad(lambda k: timeloop(lambda u, i: u * k, 1.0, 3))(2.0)
        np.float64(12.0)
    """
    _check(steps, inputs, outputs, schedule, collect_every)
    context = current()
    tape = context.tape
    if tape is not None and context.tangent is not None:
        rest = {"outputs": outputs, "schedule": schedule, "storage": storage, "budget": budget,
                "collect_every": collect_every, "progress": progress}  # fmt: skip
        return dual_loop(timeloop, context.tangent, step, state, steps, inputs, rest)
    leaves, structure = flatten(state)
    if tape is None or steps == 0:
        return _plain(step, leaves, structure, steps, inputs, outputs, collect_every, progress)
    region = Region(tape)
    given = region.value(inputs) if isinstance(inputs, TracedArray) else inputs
    stepper = Stepper(step, structure, given, outputs, region)
    below = value_trace(context)
    values = [writable(owned(region.value(leaf)), below) for leaf in leaves]
    first, plan = _first_step(stepper, values, steps, schedule, budget)
    if storage is None and plan.on_disk:
        allowed = budget or context.budget
        assert allowed is not None
        storage = Disk(allowed.directory, limit=allowed.disk)
        rule = LoopRule(stepper, plan, storage, context.ledger, collect_every, progress, theirs=False)
    else:
        rule = LoopRule(stepper, plan, storage, context.ledger, collect_every, progress, theirs=storage is not None)
    try:
        final = rule.run_forward(values, first)
    except BaseException:
        rule.close()
        raise
    rule.links = Links(region, leaves, inputs, rule.statics)
    emitted = stacked(rule.emitted)
    return _recorded(tape, rule, final, emitted, structure, stepper, outputs)


def _recorded(
    tape: Tape, rule: LoopRule, final: list[Any], emitted: list[Any], structure: Any, stepper: Stepper, outputs: bool
) -> Any:
    """Return the results of a loop, recorded as one operation if they depend on anything."""
    count = len(final)
    results = final + emitted
    if rule.links.parents:
        traced = record_joint(tape, rule, rule.links.parents, results)
        results = [t if is_array(v) else v for t, v in zip(traced, results, strict=True)]
        rule.emitted = []
    else:
        rule.close()
    after = unflatten(structure, results[:count])
    return (after, unflatten(stepper.output_structure, results[count:])) if outputs else after


class _First:
    """The taped first step with its results, handed over once."""

    __slots__ = ("_held",)

    def __init__(self, held: Any) -> None:
        self._held = held

    def take(self) -> Any:
        """Return it and forget it."""
        held, self._held = self._held, None
        return held


def _first_step(
    stepper: Stepper, values: list[Any], steps: int, schedule: Schedule | None, budget: Budget | None
) -> tuple[_First, Plan]:
    """Run the first step on a tape, measure it, and make the plan."""
    context = current()
    ledger = context.ledger
    available = None if ledger.limit is None else ledger.limit - ledger.live
    allowed = context.budget
    if budget is not None:
        available = budget.memory if available is None else min(available, budget.memory)
        allowed = budget
    measure = Ledger(watched=True)
    measure.limit = available
    pager = Pager(measure, None)
    with entered(ledger=measure):
        record, after, output = stepper.taped(0, list(values), pager)
    seeds = [(node, None, True) for node in record.state_nodes + record.output_nodes if node is not None]
    kinds = [leaf.type.nbytes for leaf, _ in record.tape.statics.values()]
    whole = stepper.inputs.nbytes if hasattr(stepper.inputs, "nbytes") and any(record.input_leaves) else 0
    sizes = Sizes(
        state=bytes_of(values),
        saved=measure.held[SAVED] + pager.uncounted,
        sweep=pager.forecast(seeds).peak + (max(kinds) if kinds else 0),
        gradients=sum(kinds) + whole,
        stored=describe_file(Path(), "", pack(values).arrays).nbytes,
    )
    plan = make_plan(steps, sizes, available, allowed.disk if allowed else 0, schedule, ledger.live)
    if ledger.report is not None:
        ledger.report.plan_of_loop(plan, ledger.live)
    return _First((record, after, output)), plan


def _plain(
    step: Any,
    leaves: list[Any],
    structure: Any,
    steps: int,
    inputs: Any,
    outputs: bool,
    collect_every: Any,
    progress: Any,
) -> Any:
    """Run a loop of which nothing is recorded."""
    context = current()
    report = context.ledger.report
    below = value_trace(context)
    stepper = Stepper(step, structure, inputs, outputs, None)
    state = [leaf.copy() if isinstance(leaf, TracedArray) else writable(owned(leaf), below) for leaf in leaves]
    emitted: list[Any] = []
    with Bar("forward", steps, progress) as bar:
        for index in range(steps):
            state, output = stepper.plain(index, state, None)
            if outputs:
                emit(emitted, index, steps, output)
            bar.advance()
            if report is not None:
                report.steps_forward += 1
            if collect_every and (index + 1) % collect_every == 0:
                gc.collect()
    after = unflatten(structure, state)
    return (after, unflatten(stepper.output_structure, stacked(emitted))) if outputs else after


def _check(steps: Any, inputs: Any, outputs: bool, schedule: Any, collect_every: Any) -> None:
    """Raise if the arguments do not fit together."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"steps= is a number of steps, not {steps!r}.")
    if inputs is not None and len(inputs) != steps:
        raise ValueError(f"There are {len(inputs)} inputs for {steps} steps. Give one input for each step.")
    if outputs and steps == 0:
        raise ValueError("A loop of 0 steps has no outputs, not even their shapes. Leave outputs= out.")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ScheduleError(f"schedule= takes a schedule out of ebbtide.schedules, not {schedule!r}.")
    if collect_every is not None and (isinstance(collect_every, bool) or int(collect_every) < 1):
        raise ValueError(f"collect_every= is a positive number of steps, not {collect_every!r}.")
