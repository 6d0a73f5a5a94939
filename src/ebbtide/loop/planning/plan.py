"""The planner of a time loop: from bytes, measured sizes and costs to a schedule, with a prediction."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from typing import final

from ebbtide.agree import agree
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.loop.planning.candidates import Bounds, find_candidates, find_least, forget_table
from ebbtide.loop.planning.predict import bound_bytes, buffer_of, in_memory, predict, spare_tier, table_bytes
from ebbtide.loop.planning.sizes import RESERVE_PER_PROFILE, Sizes, count_fitting
from ebbtide.schedules import Costs, Hierarchical, Mixed, Revolve, Schedule, StoreAll

__all__ = ["Plan", "Sizes", "make_plan"]

# Of a loop whose costs are not known: a transfer is as dear as a step.
UNKNOWN_COSTS = Costs(write=1.0, read=1.0)
# Times that differ by less differ by the order of additions.
_DIGITS = 12


@final
@dataclass(frozen=True, slots=True)
class Earlier:
    """
    What an earlier run of the same call chose, which is chosen again if it fits.

    Args:
        schedule: The schedule.
        alone: `Sizes.measured_alone` of the loop, which is not measured again.
    """

    schedule: Schedule
    alone: tuple[int, int, int, int]


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """
    What a loop is going to hold and to do.

    Args:
        schedule: The schedule.
        steps: The number of steps, or its upper bound.
        sizes: The measured sizes.
        costs: What steps and transfers cost, as the plan was made for it.
        snapshots: The largest number of snapshots at the same time, in memory and on disk, or a bound of it.
        predicted_steps_forward: Forward steps of the whole gradient, taped ones included.
        predicted_peak_bytes: The peak of memory beyond that of the function alone.
        predicted_disk_bytes: The peak of disk.
        predicted_time: The time of all steps and transfers, in the unit of the costs.
        buffer: Bytes of the buffers for disk; 0 without disk, or if they do not fit.
        measuring_steps: Forward steps that were run to be measured, which are part of the prediction.
        measuring_time: What measuring took beyond the first step, a part of the predicted time.
        least: The bytes in the ledger, those of calls around included, without which there would be no plan.
        fewest: The bytes of snapshots without which there would be none.
        predicted_whole_bytes: The peak of `tracemalloc` in the block of a profile, with the step's own temporaries;
            None where it does not run.
    """

    schedule: Schedule
    steps: int
    sizes: Sizes
    costs: Costs
    snapshots: int
    predicted_steps_forward: int
    predicted_peak_bytes: int
    predicted_disk_bytes: int
    predicted_time: float
    buffer: int = 0
    measuring_steps: int = 0
    measuring_time: float = 0.0
    least: int = 0
    fewest: int = 0
    predicted_whole_bytes: int | None = None

    @property
    def state_bytes(self) -> int:
        """Bytes of one restart state."""
        return self.sizes.state

    @property
    def saved_bytes(self) -> int:
        """Bytes that one step saves."""
        return self.sizes.saved

    @property
    def on_disk(self) -> bool:
        """Whether there are snapshots on disk."""
        return self.predicted_disk_bytes > 0

    @property
    def has_costs(self) -> bool:
        """Whether the costs are known, and with them the time."""
        return self.costs != UNKNOWN_COSTS

    @property
    def has_time(self) -> bool:
        """Whether the predicted time is one: of costs that are known but for what loops in the steps run again."""
        return replace(self.costs, reverse=UNKNOWN_COSTS.reverse) != UNKNOWN_COSTS

    def with_measuring(self, steps: int, seconds: float | None) -> Plan:
        """
        Return the plan with what has been done for its sake.

        Args:
            steps: Forward steps that were run to be measured.
            seconds: What they took with the first step, which the loop does not run again: part of the predicted time
                as it was, for what is slow once is not slow at each step. None where the costs are no seconds.
        """
        beyond = 0.0 if seconds is None else seconds - self.costs.forward
        return replace(
            self,
            predicted_steps_forward=self.predicted_steps_forward + steps,
            predicted_time=self.predicted_time + beyond,
            measuring_steps=self.measuring_steps + steps,
            measuring_time=self.measuring_time + beyond,
        )

    def with_whole(self, whole: int, so_far: int) -> Plan:
        """Return the plan with the predicted peak of the whole call, which has been *so_far* already."""
        return replace(self, predicted_whole_bytes=max(whole, so_far + RESERVE_PER_PROFILE))

    def with_more(self, nbytes: int) -> Plan:
        """Return the plan of a loop that holds so many bytes more."""
        whole = self.predicted_whole_bytes
        whole = None if whole is None else whole + nbytes
        return replace(self, predicted_peak_bytes=self.predicted_peak_bytes + nbytes, predicted_whole_bytes=whole)

    def __str__(self) -> str:
        place = "memory and on disk" if self.on_disk else "memory"
        runs = self.predicted_steps_forward / max(1, self.steps)
        names = ("forward", "reverse", "write", "read")
        each = ", ".join(f"{getattr(self.costs, name):.3g} {name}" for name in names)
        spent = f"{self.predicted_time:.4g} at {each}" if self.has_time else "unknown: no costs were given or measured"
        whole = self.predicted_whole_bytes
        with_step = "" if whole is None else f", {format_bytes(whole)} for the whole call"
        lines = [
            f"schedule        {self.schedule}",
            f"snapshots       {self.snapshots} of {format_bytes(self.sizes.state)} in {place}",
            f"one step saves  {format_bytes(self.sizes.saved)} ({format_bytes(self.sizes.sweep)} with cotangents)",
            f"forward steps   {self.predicted_steps_forward:,} for {self.steps:,} ({runs:.2f} runs)",
            f"time            {spent}",
            f"peak            {format_bytes(self.predicted_peak_bytes)} beyond the function alone{with_step}",
        ]
        if self.on_disk:
            lines.append(
                f"disk            {format_bytes(self.predicted_disk_bytes)}, "
                f"{format_bytes(self.buffer)} of the peak for buffers"
            )
        return "\n".join(lines)


def make_plan(
    steps: int,
    sizes: Sizes,
    *,
    memory: int | None,
    disk: int,
    schedule: Schedule | None = None,
    held: int = 0,
    costs: Costs | None = None,
    open: bool = False,  # noqa: A002 - the word of `Position`
    limit: int = 0,
    kept: int = 0,
) -> Plan:
    """
    Return the plan of a loop: of the schedules that fit the one with the least predicted time.

    For given costs more bytes never mean more predicted time, and without disk never more forward steps. With disk
    they may: a step run again can be cheaper than a transfer, and the other way round.

    Args:
        steps: The number of steps of the loop, or its upper bound.
        sizes: The measured sizes.
        memory: Bytes of memory that the loop may take; None for no bound.
        disk: Bytes of disk that it may take.
        schedule: What the user asked for, which is followed as it is, if there is room for the sweep of a step; None to
            choose.
        held: Bytes that calls around the loop hold now, which add to the least budget.
        costs: Seconds of steps and transfers; None if they are not known, and a transfer is as dear as a step.
        open: Whether the length is not known, and *steps* is its upper bound.
        limit: Bytes that are known not to be enough where nothing fits, whatever others would give up.
        kept: Bytes that a running loop has of its own while its next plan is made.

    Returns:
        The plan. Of an open loop it is for the upper bound as if that were known.

    Raises:
        BudgetError: Nothing fits; its `least` is the least number of bytes with which something does.

    Memory:
        The tables of schedules, whose bytes are part of the predicted peak, also while they are made.

    Example:
        >>> sizes = Sizes(state=2**20, saved=3 * 2**20, sweep=5 * 2**20, gradients=0, stored=2**20 + 4096)
        >>> plan = make_plan(100, sizes, memory=2**26, disk=0)
        >>> plan.predicted_steps_forward, plan.predicted_peak_bytes <= 2**26
        (182, True)
    """
    timed = costs is not None
    costs = UNKNOWN_COSTS if costs is None else costs
    # What was measured differs from process to process, and the decision must not.
    sizes, memory, disk, costs, kept = _agreed(sizes, memory, disk, costs, kept)
    shared = steps, sizes, costs, memory
    # A schedule is chosen as if states of the tier memory were there, wherever a storage of the user has them.
    own = replace(sizes, theirs=None)
    if isinstance(schedule, (Mixed, Hierarchical)) and memory is not None:
        _check_table(schedule, steps, sizes, memory, held, limit)
    asked = None if schedule is None else _planned(schedule, *shared)
    if isinstance(schedule, Mixed) and asked is not None and memory is not None and sizes.fixed <= memory:
        less = _with_less(schedule, steps, sizes, memory) if asked.predicted_peak_bytes > memory else ()
        fitting = [one for fewer in less if (one := _planned(fewer, *shared)).predicted_peak_bytes <= memory]
        if fitting:
            return replace(min(fitting, key=_rank), least=held + asked.predicted_peak_bytes)
    if asked is not None and (memory is None or max(sizes.fixed, sizes.tried) <= memory):
        return replace(_buffered(asked, memory), least=held + asked.predicted_peak_bytes)
    everything = _planned(StoreAll(), *shared)
    if memory is None:
        return everything
    making = memory - max(sizes.fixed, kept)
    bounds = Bounds(max(1, steps), own, memory - sizes.fixed, disk, costs, timed, making, open)
    fewest = min(everything.predicted_peak_bytes - sizes.fixed, find_least(bounds))
    least = held + max(sizes.fixed + fewest, sizes.tried)
    if asked is not None and not open:
        least = held + asked.predicted_peak_bytes  # with less it may run, or be refused later
    if everything.predicted_peak_bytes <= memory:
        return replace(everything, least=least, fewest=fewest)
    best, made = _find_best(find_candidates(bounds), steps, own, costs, memory)
    if best is None or sizes.tried > memory:
        raise _describe_least(steps, sizes, memory, disk, least if least > limit else limit + least - held - memory)
    plan = _buffered(best, memory)
    plan = plan if sizes.theirs is None else _planned(plan.schedule, *shared, buffered=plan.buffer > 0)
    peak = max(plan.predicted_peak_bytes, sizes.fixed + made)
    return replace(plan, predicted_peak_bytes=peak, least=least, fewest=fewest)


def _find_best(
    found: Iterator[tuple[Schedule, bool]], steps: int, sizes: Sizes, costs: Costs, memory: int | None
) -> tuple[Plan | None, int]:
    """
    Return the best plan, and the most bytes of a table that was made to find it, maybe of a schedule that is not taken.

    One plan at a time: forty of them take 14 KiB.
    """
    best, made = None, 0
    for schedule, buffered in found:
        plan = _planned(schedule, steps, sizes, costs, memory, buffered=buffered)
        made = max(made, table_bytes(schedule, steps, made=True))
        best = plan if best is None or _rank(plan) < _rank(best) else best
    return best, made


def _agreed(
    sizes: Sizes, memory: int | None, disk: int, costs: Costs, kept: int
) -> tuple[Sizes, int | None, int, Costs, int]:
    """Return what was measured as all processes have it: the largest sizes and costs, the least room."""
    names = [one.name for one in fields(costs)]
    costs = Costs(**dict(zip(names, agree(astuple(costs)), strict=True)))
    unknown = {name: -1 for name in ("nodes", "swapped", "theirs") if getattr(sizes, name) is None}
    sizes = replace(_negated(sizes), **unknown)
    *known, room, space, kept = agree((*astuple(sizes), -math.inf if memory is None else -memory, -disk, kept))
    sizes = Sizes(*known)
    unknown = {name: None for name in ("nodes", "swapped", "theirs") if getattr(sizes, name) == -1}
    sizes = replace(_negated(sizes), **unknown)
    return sizes, None if room == -math.inf else -int(room), -space, costs, kept


def _negated(sizes: Sizes) -> Sizes:
    """Return sizes with those negated of which the least counts."""
    least = {name: -getattr(sizes, name) for name in ("passed_on", "alone", "spent", "covered", "lent", "lent_swept")}
    return replace(sizes, **least)


def _rank(plan: Plan) -> tuple[float, int, int]:
    """Less is better: time, then forward steps, then memory."""
    return float(f"{plan.predicted_time:.{_DIGITS}g}"), plan.predicted_steps_forward, plan.predicted_peak_bytes


def _planned(
    schedule: Schedule, steps: int, sizes: Sizes, costs: Costs, memory: int | None, *, buffered: bool = False
) -> Plan:
    taken = predict(schedule, steps, sizes, costs, buffered=buffered)
    is_beside = memory is not None and spare_tier(schedule, steps) == "memory"

    def memory_of(one: Sizes) -> int:
        found = taken if one is sizes else predict(schedule, steps, one, costs, buffered=buffered)
        return found.memory + is_beside * one.restart

    return Plan(
        schedule=schedule,
        steps=steps,
        sizes=sizes,
        costs=costs,
        snapshots=taken.snapshots,
        predicted_steps_forward=taken.forward,
        predicted_peak_bytes=max(sizes.fixed + in_memory(sizes, memory_of), sizes.tried),
        predicted_disk_bytes=taken.disk,
        predicted_time=taken.time,
        buffer=taken.buffer,
    )


def _buffered(plan: Plan, memory: int | None) -> Plan:
    """Return a plan with buffers, if it writes to disk and they fit."""
    if not plan.on_disk or plan.buffer:
        return plan
    saved = isinstance(plan.schedule, StoreAll)
    if memory is not None and plan.predicted_peak_bytes + buffer_of(plan.sizes, saved=saved) > memory:
        return plan
    return _planned(plan.schedule, plan.steps, plan.sizes, plan.costs, memory, buffered=True)


def _check_table(schedule: Mixed | Hierarchical, steps: int, sizes: Sizes, memory: int, held: int, limit: int) -> None:
    """Raise if the table of a schedule that was asked for cannot be made beside what the first step saved."""
    taken, making = bound_bytes(schedule, steps, sizes)
    first = sizes.interpreter + sizes.taped + sizes.shared + sizes.state
    if making > (left := max(0, memory - first)):
        need = max(sizes.fixed + taken, first + making)
        least = held + need if held + need > limit else limit + need - memory
        raise BudgetError(
            f"{schedule} does not fit into {max(0, memory)} bytes ({format_bytes(max(0, memory))}) of memory: its "
            f"table for {steps} steps is made in {making} bytes, and what the first step saved leaves {left}. Give at "
            f"least {least} bytes ({format_bytes(least)}) of memory, or another schedule.",
            least,
        )


def _with_less(schedule: Mixed, steps: int, sizes: Sizes, memory: int) -> Iterator[Schedule]:
    """
    Yield what may fit of a schedule that does not: as many of its units as do, and restart states alone.

    A loop that began with all units would give up snapshots when it came to that, and with them its way back: with 12
    to 15 states it was refused in the reverse sweep, where it runs with 8 to 11.
    """
    forget_table(schedule)  # before that of another one is made

    def excess(units: int) -> bool:
        taken, _ = bound_bytes(Mixed(units, schedule.restart, schedule.saved), steps, sizes)
        return sizes.fixed + taken > memory

    fitting = bisect_left(range(schedule.restart, schedule.most), x=True, key=excess)
    if fitting:
        fewer = Mixed(schedule.restart + fitting - 1, schedule.restart, schedule.saved)
        yield fewer
        forget_table(fewer)
    snapshots = min(schedule.units // schedule.restart, count_fitting(memory - sizes.fixed, sizes.restart))
    if snapshots:
        yield Revolve(snapshots)


def _describe_least(steps: int, sizes: Sizes, memory: int, disk: int, least: int) -> BudgetError:
    return BudgetError(
        f"A time loop of {steps} steps does not fit into {max(0, memory)} bytes ({format_bytes(max(0, memory))}) of "
        f"memory and {disk} bytes of disk: one step saves {sizes.saved} bytes and takes {sizes.sweep_beyond} with "
        f"its cotangents, and one state is {sizes.state} bytes. Give at least {least} bytes ({format_bytes(least)}) of "
        "memory; what comes after the loop may take more.",
        least,
    )


def describe_larger(
    index: int, sizes: Sizes, allowed: Budget, limit: int, peak: int, others: int, *, grown: bool
) -> BudgetError:
    """
    Return the error for a step that does not fit, as it saves more than those before it, or beside what is held.

    Args:
        index: The step.
        sizes: Those of the loop, with what this step saves.
        allowed: The budget.
        limit: Its bytes in the ledger.
        peak: What the ledger would have at most.
        others: What it has for others, beside which there has to be room for the step alone and one restart state.
        grown: Whether it saves more.
    """
    reason = "more than the steps before it, and does" if grown else "which beside what the loop holds do"
    least = allowed.memory + max(0, peak - limit, sizes.fixed + sizes.restart + others - limit)
    return BudgetError(
        f"Step {index} of a time loop saves {sizes.saved} bytes and takes {sizes.sweep_beyond} with its cotangents, "
        f"{reason} not fit into the budget of {allowed}. Give at least {least} "
        f"bytes ({format_bytes(least)}) of memory.",
        least,
    )
