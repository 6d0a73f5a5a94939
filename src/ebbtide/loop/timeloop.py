"""The differentiable time loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.agree import agree, check_alike, is_alone, own_communicator
from ebbtide.arrays.batched import innermost_batch
from ebbtide.arrays.containers import check_vectors, flatten, paths_of, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.ledger import Ledger
from ebbtide.loop.derivatives.batched import batched_loop
from ebbtide.loop.derivatives.duals import dual_loop
from ebbtide.loop.derivatives.linearized import linear_loop
from ebbtide.loop.derivatives.masked import masked_loop
from ebbtide.loop.holding.buffers import hold_buffer, let_buffer_go
from ebbtide.loop.holding.snapshots import Snapshots
from ebbtide.loop.measuring.choose import first_steps
from ebbtide.loop.measuring.within import refusing_before
from ebbtide.loop.refused import RefusedLoop, run_on
from ebbtide.loop.resuming.changes import Changes
from ebbtide.loop.resuming.directory import ResumeDirectory, refuse_inner, refuse_lossy
from ebbtide.loop.resuming.fingerprint import fingerprint_of
from ebbtide.loop.resuming.journal import Journal
from ebbtide.loop.resuming.links import Links, count_links, gradient_nbytes
from ebbtide.loop.resuming.resume import Resumption, plain
from ebbtide.loop.room import Room
from ebbtide.loop.run import LoopRule
from ebbtide.loop.stepping.collect import stacked
from ebbtide.loop.stepping.every import every
from ebbtide.loop.stepping.inputs import Inputs, in_order
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.plain import check_arguments, check_functions, check_length, refuse_calls, run_plain
from ebbtide.loop.stepping.progress import Watch
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.loop.traced import traced_loop
from ebbtide.loop.values.state import native, owned, writable
from ebbtide.machine import Heap
from ebbtide.quota import Quota
from ebbtide.schedules import Costs, Schedule
from ebbtide.storage import Disk, Storage
from ebbtide.storage.failures import without_frames
from ebbtide.tape.communication import presence_here
from ebbtide.tape.joint import record_results
from ebbtide.tape.kept import Kept
from ebbtide.tape.linear_region import linear_trace
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Region


def timeloop(
    step: Callable[..., Any],
    state: Any,
    steps: int | None = None,
    *,
    until: Callable[[Any], Any] | None = None,
    max_steps: int | None = None,
    inputs: Any = None,
    outputs: bool = False,
    schedule: Schedule | None = None,
    costs: Costs | None = None,
    storage: Storage | None = None,
    budget: Budget | None = None,
    resume: str | Path | None = None,
    resume_every: float | None = None,
    verify: bool = True,
    collect_every: int | None = None,
    progress: bool | None = None,
) -> Any:
    """
    Run a step many times; its derivative keeps within a budget, whatever the number of steps.

    Args:
        step: `step(state, x)` returns the new state, or (new state, output) with *outputs*. It may write into
            its state. Arrays that it uses from outside (by closure, global, attribute or default) are static
            values: kept once, their cotangents summed over the steps; they must not change in the loop.
        state: A container of arrays, numbers, vectors of registered types and random generators
            (`numpy.random.Generator`, from which each run of a step draws the same; each in one leaf); copied once,
            so that the caller's generators stay where they are. Leaves have memory of their own in each step, also
            where a step returns views of one another.
        steps: The number of steps; None with *until*.
        until: `until(state)` says before each step whether the loop ends there, from the state's values; the number of
            steps is then not differentiated.
        max_steps: The most steps of a loop with *until*, after which it ends in any case.
        inputs: `x` is `inputs[i]`: an array with *steps* rows (one that reads them from a file where it can), or a
            sequence of *steps* containers, or a dict of these by step number; or `inputs(i)`: a function of the step
            number, called again when a step runs again; None for the step number itself. An input lives as long as its
            step, is the same each time, and is traced as the state is where it has a derivative.
        outputs: Whether each step gives an output. What it hands out otherwise, as by a list that it closes over, has
            no derivative where steps run again.
        schedule: When to store and recompute; None to choose from the budget. A given one is followed exactly.
        costs: What steps and transfers cost in seconds, by which a schedule is chosen; None to measure the first step
            and, if the budget has disk, one state's way there.
        storage: Where states go, whatever their tier, and saved values whose tier is the disk; None for memory and a
            private file on the disk.
        budget: What the loop may take, beside the budgets of the calls around it.
        resume: A directory in which the run of a gradient is kept so that, when it is killed and the same call is made
            again, it goes on and ends with the same bits; its name is free for another run when the gradient is there.
            On a file system that outlives the machine; what `storage` and `budget` write need not.
        resume_every: How often to save there: after so many steps (an int), run or reversed, or seconds (a float);
            None for as often as takes 2 % of the time.
        verify: Whether to check that steps that run again have the same input and lead to the same state and output.
        collect_every: Collect garbage each time after this many steps; for user code with reference cycles.
        progress: Whether to show a bar for the forward and one for the reverse sweep; None for none.

    Returns:
        The final state, or (final state, outputs), each leaf of the outputs stacked on a new first axis.

    Raises:
        ValueError: There are not as many inputs as steps; `steps`, `max_steps`, `collect_every` or `resume_every` is no
            number of steps (or, the last, of seconds); or there is neither `steps` nor `until` with `max_steps`.
        TypeError: The step is no function of state and input, or it returned something else; a leaf is no array,
            number or generator; *until* is no function of the state, or returned no truth value; *inputs* is a dict
            with other keys, a set, a string, an array of objects, or no function of the step number; `costs`,
            `storage`, `budget` or `resume` is of another type.
        ScheduleError: *schedule* is no `Schedule`, or cannot be followed; a loop by `NoReverse` is pulled.
        BudgetError: The budget is too small; says the least that would do.
        MutationError: A static value or an input changed before the reverse sweep was over.
        DeterminismError: A step gave another result when it was run again.
        ResumeError: The directory holds another run; says what differs. Or the storage loses digits.
        StorageError: What the loop needs cannot be stored or read, or `resume` cannot be used: `StorageLockedError`
            where another process uses it.
        TraceError: `resume` was given to a loop within a time step or a checkpointed function; or a leaf of the state
            came back with another shape or dtype.

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
    check_functions(step, until)
    length = check_length(steps, until, max_steps)
    options = Options(
        until=until, max_steps=max_steps, outputs=outputs, schedule=schedule, costs=costs, storage=storage,
        budget=budget, resume=resume, resume_every=resume_every, verify=verify, collect_every=collect_every,
        progress=progress,
    )  # fmt: skip
    inputs = in_order(inputs)
    try:
        if until is not None:
            ended, options = masked_loop(timeloop, step, state, inputs, options)
            if ended is not None:
                return ended
        batch = innermost_batch()
        if batch is not None:
            return batched_loop(timeloop, batch, step, state, steps, inputs, options)
        context = current()
        check_vectors(state)
        leaves, structure = flatten(state)
        leaves = native(leaves)
        check_arguments(length, leaves, inputs, options)
        if length and context.follower is not None:
            found = traced_loop(timeloop, step, leaves, structure, length, inputs, options)
            if found is not None:
                return found
        refuse_inner(resume, context)
        if not length:
            return run_plain(step, leaves, structure, 0, inputs, options)
        linear = linear_trace(context)
        if linear is not None:
            del state  # of which the loop has its copy
            return linear_loop(linear, step, leaves, structure, length, inputs, options)
        if context.tape is not None and context.tangent is not None:
            return dual_loop(timeloop, context.tangent, step, state, steps, inputs, options)
        del state  # which goes when the loop has its copy, unless the caller has it
        if context.tape is None:
            return run_plain(step, leaves, structure, length, inputs, options)
        return _taped_loop(context.tape, step, leaves, structure, length, inputs, options)
    except TypeError as error:
        refuse_calls(step, until, inputs, error)
        raise


def _taped_loop(
    tape: Tape, step: Any, leaves: list[Any], structure: Any, length: int, inputs: Any, options: Options
) -> Any:
    """Run a loop as one operation on a tape; the leaves that the caller gave are taken out of their list."""
    budget, region = options.budget, _region_of(tape, options.budget)
    ledger, allowed = region.ledger, _budget_of(options, length)
    each = Inputs(region.value(inputs) if isinstance(inputs, TracedArray) else inputs, region, checked=options.verify)
    stepper = Stepper(step, structure, each, options.outputs, region, options.collect_every)
    stepper.keep(Kept(tape.pager), inputs, options.until)
    stepper.kept.settle()
    count_links(tape.pager, region, inputs)
    values = [writable(owned(region.value(leaf)), stepper.below) for leaf in leaves]
    if options.until is not None and stepper.holds(options.until, values):
        values.clear()  # a loop that takes no step has one copy, like that of the function alone
        return run_plain(step, leaves, structure, 0, inputs, options)
    room = Room(ledger, allowed, budget, options.storage)
    room.whole.meet(leaves, inputs, tape.pager, 0 if options.storage is None else options.storage.buffer_nbytes)
    nodes = [region.node(leaf) for leaf in leaves]
    leaves.clear()
    resumption, directory = _find_journal(options, stepper, values, length if options.until is None else None)
    try:
        with refusing_before(tape, nodes, None if budget else allowed) as common, room.limited(), Heap():
            hold_buffer(ledger, options.storage)
            earlier = None if resumption is None or options.schedule is not None else resumption.find_plan()
            beside = room.disk, room.whole, gradient_nbytes(region, inputs), earlier, common
            first, plan, report = first_steps(stepper, values, length, options, allowed, *beside)
            if resumption is not None:
                resumption.begin(first.after, verify=options.verify)
                if options.schedule is None and (earlier is None or plan.schedule != earlier.schedule):
                    resumption.save_plan(plan)
    except BaseException as error:
        let_buffer_go(ledger, options.storage)
        if directory is not None:
            directory.close()
        first, report, plan = None, None, next((plan for known, plan in ledger.refusals[1] if known is error), None)
        if plan is None:
            raise
        without_frames(error)
    if first is None:
        on_disk = room.disk.has_room(plan.sizes.stored) and allowed is not None and allowed.disk > 0
        refused, final = run_on(stepper, values, length, options, nodes, inputs, plan, on_disk)
        return _recorded(tape, refused, final, structure, stepper, options.outputs, asks=True)
    verifier = Verifier(paths_of(structure), options.outputs, options.verify)
    make_disk = partial(_make_disk, allowed, room.disk.snapshots, plan.buffer)
    label = None if resumption is None else resumption.label
    snapshots = Snapshots(ledger, options.storage, make_disk, room.disk.relieve, label)
    watch = Watch(ledger, options.progress, report)
    rule = LoopRule(stepper, plan, snapshots, verifier, ledger, room, options.until, watch, resumption, directory)
    ledger.unfinished.add(rule, directory)
    try:
        with room.limited(), entered(ledger=ledger):
            room.disk.lacks = snapshots.reserve(plan)
            room.stale = room.disk.lacks > 0 and options.schedule is None
            final = rule.run_forward(values, first)
            if options.until is not None:
                room.ended(rule)
    except BaseException as error:
        rule.fail(error)
        raise
    rule.links = Links(region, nodes, inputs, rule.statics)
    return _recorded(tape, rule, final, structure, stepper, options.outputs, asks=_asks(options, allowed, resumption))


def _budget_of(options: Options, length: int) -> Budget | None:
    """Return the budget that a loop is in, which all ranks have to call alike."""
    context, budget = current(), options.budget or current().budget
    if not is_alone():  # nobody else needs the texts, and a loop may be in each step
        check_alike("time loop", options.facts(length, budget, options.resume or context.resume))
    return budget


def _region_of(tape: Tape, budget: Budget | None) -> Region:
    """Return the region of the steps: with a budget of its own a loop keeps books, whoever else does not."""
    region = Region(tape)
    if budget is not None and not region.ledger.watched:
        region.ledger = Ledger(watched=True, unfinished=region.ledger.unfinished)
    return region


def _find_journal(
    options: Options, stepper: Stepper, values: list[Any], steps: int | None
) -> tuple[Resumption | None, ResumeDirectory | None]:
    """Return the journal of a loop that may be resumed, and its directory if that is the loop's alone."""
    context = current()
    shared: ResumeDirectory | None = context.resume if context.capture is None else None
    directory = shared if options.resume is None else ResumeDirectory(options.resume)
    if directory is None:
        return None, None
    refuse_lossy(options.storage)
    try:
        state = [plain(leaf) for leaf in values]
        ranks = {} if context.ranks is None else {"rank": f"{context.ranks.rank} of {context.ranks.size}"}
        others = {"until": options.until, "most": options.max_steps, "inputs": stepper.inputs.given}
        without = directory.changed
        found = fingerprint_of(stepper.step, state, stepper.structure, steps, without=without, **others) | ranks
        code = [f for f in (stepper.step, options.until, stepper.inputs.given) if callable(f)]
        changes = Changes([*code, stepper.structure], directory)
        policy = every(options.resume_every)
        nodes = 0 if context.tape is None else context.tape.count
        resumption = Resumption(Journal(directory, found, changes.found), policy, stepper.inputs.read, changes, nodes)
    except BaseException:
        directory.close()
        raise
    return resumption, None if options.resume is None else directory


def _make_disk(allowed: Budget | None, quota: Quota, buffer: int) -> Storage:
    """Return the storage of the tier "disk"; it knows no plan, whose tables would outlive a change of it."""
    if allowed is None:
        return Disk(buffer=buffer)
    return Disk(allowed.directory, limit=quota, buffer=buffer, comm=own_communicator())


def _asks(options: Options, allowed: Budget | None, resumption: Resumption | None) -> bool:
    """Return whether there is something to agree on in a reverse sweep: room, what a journal has, or what loss does."""
    is_lossy = options.storage is not None and options.storage.is_lossy("restart")
    return allowed is not None or resumption is not None or is_lossy


def _recorded(
    tape: Tape, rule: LoopRule | RefusedLoop, final: list[Any], structure: Any, stepper: Stepper, outputs: bool,
    *, asks: bool,
) -> Any:  # fmt: skip
    """
    Return the results of a loop, recorded as one operation if they depend on anything.

    Where the loop *asks* other ranks in its reverse sweep it is recorded on all of them, if it is on one.
    """
    count, parents = len(final), rule.links.parents
    results = final + stacked(rule.emitted)
    if isinstance(rule, LoopRule):
        stepper.kept.end_forward(rule.statics.values())
    if agree(bool(parents)) if asks else parents:
        others = () if is_alone() else (presence_here()._node,)
        recorded = record_results(tape, rule, parents or others, results)
        results = recorded if parents else results
        rule.emitted = []
    else:
        rule.close()
    after = unflatten(structure, results[:count])
    return (after, unflatten(stepper.seen.structure, results[count:])) if outputs else after
