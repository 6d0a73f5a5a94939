"""How a loop takes up an earlier run of it: from its journal, or for another pull."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.reach import traced_of
from ebbtide.errors import ReleasedValueError
from ebbtide.loop.holding import ahead
from ebbtide.loop.resuming.journal_entries import Forward
from ebbtide.loop.resuming.resume import Resumption, from_leaves
from ebbtide.loop.values.state import owned
from ebbtide.schedules import Position, Snapshot
from ebbtide.schedules.parts import Parts


def restore_forward(rule: Any, resumption: Resumption, first: Any) -> None:
    """
    Bring a loop that stands at its beginning to where an earlier run was in the forward sweep, or at its end.

    Args:
        rule: The loop; `rule.state` is the initial state.
        resumption: Its journal.
        first: The taped first step, whose static values are taken over.

    Raises:
        ResumeError: A static value or an input is another one than in the earlier run. Nothing that follows from it is
            kept.
        DeterminismError: The first step gave another result, of which nothing is kept either.
    """
    ended = resumption.find_final()
    place = ended or resumption.find_forward()
    if place is None:
        resumption.take_up(None)
        return
    rule.bypass.note(first.take()[0].tape)  # what it saved goes, and its results
    resumption.check_first([*rule.bypass.statics.values()])
    anchors = resumption.anchors(place.step)
    again = 1 + _meet_statics(rule, resumption, anchors)
    resumption.take_up(place)
    rule.ran += place.ran + again
    rule.watch.taken_up(place.ran, again)
    # Schedules that use the disk keep the first states there.
    tier = "disk" if rule.plan.on_disk else "memory"
    rule.snapshots.put_state(0, rule.state, tier, vital=True)
    rule.snapshots.adopt(anchors, resumption.load_anchor)
    kept = Snapshot(0, "restart", tier), *[Snapshot(step, "restart", "disk") for step in anchors]
    steps, open_ = rule.position.steps, rule.position.open
    if ended is not None:
        steps, open_ = place.step, False
    rule.state = from_leaves(place.state)
    rule.position = Position(steps=steps, state=place.step, forward_ended=ended is not None, snapshots=kept, open=open_)
    rule.plan = replace(rule.plan, schedule=Parts(ahead.replanned(rule.plan.schedule), anchors, tier))
    rule.room.goes_on(rule)
    _restore_outputs(rule, place)


def _meet_statics(rule: Any, resumption: Resumption, anchors: tuple[int, ...]) -> int:
    """
    Have the loop meet the static values that steps did which do not run again; return how many steps that took.

    What the code of the steps reaches is met as it is. For others the steps run again that were the first to use them.
    The restart states before these are kept, so that the next kill does not cost the same again: where each of ten jobs
    may run 463 steps, they were 52 of them.
    """
    ran, done = 0, 0
    stepper, bypass, state = rule.stepper, rule.bypass, list[Any]()
    outer = stepper.region.outer
    found = traced_of([stepper.step, stepper.inputs.given if stepper.inputs.is_function else None])
    reached = resumption.reached([array for array in found if array._trace is outer and array._node is not None])
    if not agree(reached is None) and reached is not None:
        for array in reached:
            bypass.lift(array)
        resumption.check_statics([*bypass.statics.values()], rule.position.steps)
        return 0
    left, end = [step for step, *_ in resumption.statics if step], rule.position.steps
    # The others may wait for this process in a step that runs again, whether they need it or not.
    while (target := -agree(-min(left, default=end))) < end:
        left = [step for step in left if step > target]
        near = _nearest(resumption, [step for step in anchors if done < step <= target])
        done, state = near or (done, state or _copied(rule.state))
        del near
        with stepper.region.running(bypass):
            for index in range(done, target):
                state, _ = stepper.plain(index, state, bypass)
            if target > done:
                # What another call would leave here the right one would go on from.
                resumption.check_statics([*bypass.statics.values()], target)
                resumption.keep(target, state)
            state, _ = stepper.plain(target, state, bypass)
        ran, done = ran + target + 1 - done, target + 1
    resumption.check_statics([*bypass.statics.values()], rule.position.steps)
    return ran


def _nearest(resumption: Resumption, anchors: list[int]) -> tuple[int, list[Any]] | None:
    """Return the last restart state that is whole, with its step."""
    for step in reversed(anchors):
        state = resumption.load_anchor(step)
        if not agree(state is None) and state is not None:
            return step, state
    return None


def _copied(state: list[Any]) -> list[Any]:
    """Return leaves that a step may write into."""
    return [owned(leaf) for leaf in state]


def _restore_outputs(rule: Any, place: Forward) -> None:
    """Put the outputs of the steps that ran back where those of the others will go."""
    for rows in place.outputs.arrays:
        assert rows is not None
        if rule.position.open or rule.position.steps == place.step:
            rule.emitted.append(list(rows) if rule.position.open else rows)
        else:
            whole = np.empty((rule.position.steps, *rows.shape[1:]), rows.dtype)
            whole[: place.step] = rows
            rule.emitted.append(whole)
    if rule.stepper.outputs:
        for index in range(place.step):
            rule.verifier.emitted(index, [held[index] for held in rule.emitted])


def restore_reverse(rule: Any, resumption: Resumption, cotangents: list[Any], collector: Any) -> None:
    """
    Bring a loop whose reverse sweep begins to where an earlier run was in it.

    Raises:
        ResumeError: The sweep begins from other cotangents than in the earlier run, or has derivatives of other inputs.
    """
    found = resumption.find_reverse(cotangents, rule.links)
    if found is None:
        return
    for kept in rule.position.snapshots:
        if kept.step >= found.end:
            rule.snapshots.drop(kept)
    # Where the end of the forward sweep was lost and all steps ran again, what they saved may be the only way back.
    first = found.end if rule.position.saved is None else min(rule.position.saved[0], found.end)
    rule.room.forget(rule, range(first, found.end))
    rule.position = Position(
        steps=rule.position.steps,
        reversed=rule.position.steps - found.end,
        state=None,
        saved=(first, found.end) if first < found.end else None,
        forward_ended=True,
        snapshots=tuple([kept for kept in rule.position.snapshots if kept.step < found.end]),
    )
    rule.verifier.goes_on(found.end, found.start)
    rule.cotangent = [None if leaf is None else (leaf, True) for leaf in from_leaves(found.cotangent)]
    sums = from_leaves(found.statics)
    collector.static_sums.update({k: v for k, v in zip(rule.links.statics, sums, strict=True) if v is not None})
    numbers, forms = found.inputs.forms
    parents = {number: parent for parent, number in rule.links.inputs.items()}
    keys = [parents[number] for number in numbers]
    collector.input_sums.update(zip(keys, from_leaves(replace(found.inputs, forms=forms)), strict=True))
    earlier = max(0, found.ran - resumption.earlier)
    rule.ran += earlier
    rule.watch.taken_up(earlier, 0)
    rule.room.goes_on(rule)


def begin_again(rule: Any) -> None:
    """
    Begin another pull of a loop whose reverse sweep is over.

    Raises:
        ReleasedValueError: Nothing of its first steps was kept.
        StorageError: What was kept is lost.
    """
    if rule.prefix is None:
        raise ReleasedValueError(
            "The reverse sweep of a time loop cannot be run again: its snapshots are gone, as an earlier call of the "
            "pullback failed or consumed them. Call vjp again for another pullback."
        )
    prefix = rule.prefix = rule.position
    if prefix.state is not None:
        state = rule.snapshots.get_state(prefix.state, keep=True)
        if state is None:
            try:
                raise next(iter(rule.snapshots.lost.values()))
            finally:
                rule.fail()
        rule.state = state
        rule.loss.loaded(prefix.state, "restart", rule.snapshots.error, rule.verifier)
    # A recorded one goes on from nowhere but where it has been.
    rule.plan = replace(rule.plan, schedule=ahead.replanned(rule.plan.schedule))
    rule.room.goes_on(rule, prefix.steps)
    rule.verifier.begin()
