"""Time loops in a batch of `vmap` whose members end after different numbers of steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ebbtide.arrays.batched import BatchTrace, innermost_batch
from ebbtide.arrays.containers import flatten, is_array, unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.derivatives.differing import OneForAll, differs, find_differing, of_members
from ebbtide.loop.stepping.condition import ask
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.returned import refuse_structure
from ebbtide.loop.values.state import refuse_class
from ebbtide.program.constant import stop_gradient


def masked_loop(timeloop: Any, step: Any, state: Any, inputs: Any, options: Options) -> tuple[Any, Options]:
    """
    Run the loops of all members until the last one ends, if their conditions differ from member to member.

    A member that has ended keeps its state. The step that others go on with is given, in its place, the state before
    its last step: there it has been run, whereas at the last one it may have no derivative, and zero times infinity is
    none.

    Args:
        timeloop: The loop.
        step: The user's step.
        state: The user's state.
        inputs: The user's inputs.
        options: The other arguments of the loop, among them the condition.

    Returns:
        The final state, or None if this is no such loop; and the options of the loop that it is then.

    Raises:
        TraceError: The loop has outputs, or its state a random generator.
        TypeError: A leaf is an array of a class that computes in its own way.

    Memory:
        States have twice the bytes.
    """
    condition: Any = options.until
    batches = [trace for trace in current().traces if type(trace) is BatchTrace]
    if not batches or isinstance(condition, OneForAll):
        return None, options
    begin, structure = flatten(state)
    for leaf in begin:
        refuse_class(leaf)
    values = [stop_gradient(leaf) for leaf in begin]
    # Floating-point numbers are of all members of all batches, as any step may make them so.
    known = [of_members(batches, value) if is_array(value) else value for value in values]
    refusal = _refusal(begin, options)
    try:
        ended = stop_gradient(ask(condition, structure, known))
    except TraceError:
        ended = None
    if ended is None or (refusal and differs(ended)):
        known = find_differing(batches, step, values, structure, int(options.max_steps or 0), inputs, options)
        ended = stop_gradient(ask(condition, structure, known))
        options = replace(options, until=OneForAll(condition, [differs(value) for value in known]))
    if not differs(ended):
        return None, options
    if refusal:
        raise TraceError(
            f"The condition `until` of a time loop at {user_line()} differs from member to member of vmap, and the "
            f"loop {refusal}. Call the function for one member after the other."
        )
    context = current()
    now = ended if context.follower is not None else stop_gradient(ask(condition, structure, values))
    run = partial(_run_masked, timeloop, batches, step, structure, inputs, options)
    if differs(now):
        return run(*_of_all_members(batches, begin, ended)), options
    # With a tape around the batch the loop goes beneath it, as one over pairs of values and tangents.
    is_inside = context.tape is None or context.tape.level > batches[-1].level
    if is_inside and innermost_batch() is None:
        return run(begin, np.bool_(now)), options
    try:
        return run(*_of_all_members(batches, begin, ended)), options
    except TraceError:
        if options.resume is None and context.resume is None:
            with suppress(TraceError):
                return run(begin, np.bool_(now)), options
        raise


def _of_all_members(batches: list[BatchTrace], begin: list[Any], ended: Any) -> tuple[list[Any], Any]:
    """Return the initial state of all members, whatever begins the same, and which of them have ended there."""
    ended = of_members(batches, ended)
    return [leaf if _is_of_members(batches, leaf) else np.where(ended, leaf, leaf) for leaf in begin], ended


def _run_masked(
    timeloop: Any,
    batches: list[BatchTrace],
    step: Any,
    structure: Any,
    inputs: Any,
    options: Options,
    begin: list[Any],
    ended: Any,
) -> Any:
    """
    Run the loop.

    A loop with a derivative inside of the batch takes states that come to differ with a later step. What begins the
    same for all stays so until then, as the values in `hessian` do, of which a step may ask.

    Args:
        timeloop: The loop.
        batches: The batches, the innermost the last.
        step: The user's step.
        structure: Structure of the state.
        inputs: The user's inputs.
        options: The other arguments of the loop.
        begin: Leaves of the initial state.
        ended: Which members end there.
    """
    condition: Any = options.until
    over = _array_of(ended)
    if isinstance(over, (np.ndarray, np.generic)) and over.all():
        return unflatten(structure, [x.copy() if hasattr(x, "copy") else x for x in begin])
    before = [_stand_in(batches, stop_gradient(value), ended) for value in begin]

    def step_of_all(carried: Any, x: Any) -> Any:
        values, before, ended = carried
        given = [np.where(ended, old, value) for old, value in zip(before, values, strict=True)]
        before = stop_gradient(given)  # a step may write into its state
        after, structure_after = flatten(step(unflatten(structure, given), x))
        if structure_after != structure:
            refuse_structure(step, None, structure_after, structure, False)
        for leaf in after:
            refuse_class(leaf)
        values = [np.where(ended, value, new) for value, new in zip(values, after, strict=True)]
        reached = stop_gradient(ask(condition, structure, stop_gradient(values)))
        ended = np.logical_or(ended, reached)
        if differs(ended):  # a plan knows by the first step how much later ones carry
            before = [old if differs(old) else np.where(ended, old, old) for old in before]
        return values, before, ended

    rest = options.as_arguments() | {"until": OneForAll(_all_have_ended)}
    return unflatten(structure, timeloop(step_of_all, (begin, before, ended), inputs=inputs, **rest)[0])


def _all_have_ended(carried: Any) -> Any:
    return np.all(_array_of(carried[2]))


def _refusal(begin: list[Any], options: Options) -> str:
    """Return what a loop has that it cannot have if its members end apart."""
    if options.outputs:
        return "has outputs, which would be another number for each"
    if any(isinstance(leaf, np.random.Generator) for leaf in begin):
        return "has a random generator in its state, which would come to differ"
    return ""


def _array_of(value: Any) -> Any:
    """Return the array of all members of all batches, or the type of what is not known here."""
    while type(value) is TracedArray:
        is_mapped = type(value.present()._trace) is BatchTrace and value._node is not None
        value = value._node if is_mapped else value._value
    return value


def _is_of_members(batches: list[BatchTrace], value: Any) -> bool:
    """Return whether a value is another one for each member of each batch."""
    for trace in reversed(batches):
        value, is_mapped = trace.beneath(value)
        if not is_mapped:
            return False
    return True


def _stand_in(batches: list[BatchTrace], value: Any, ended: Any) -> Any:
    """Return where a step is run for members that have none to run: at the state of one that has."""
    if not differs(ended):
        return value
    *around, trace = batches
    (members, _), (over, _) = trace.split(value), trace.split(ended)
    other = np.take(members, np.argmin(over, axis=0), axis=0)
    if around:  # of a batch whose members have all ended, that of a member of another one
        other = _stand_in(around, other, np.all(over, axis=0))
    return np.where(ended, trace.constant(other), value)
