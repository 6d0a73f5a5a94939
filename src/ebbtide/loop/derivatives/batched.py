"""Time loops in a batch of `vmap`: one loop, whose state has the members on a first axis."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

import numpy as np

from ebbtide.arrays.batched import BatchTrace, full
from ebbtide.arrays.containers import flatten, is_array, paths_of, unflatten
from ebbtide.arrays.context import beneath, current
from ebbtide.arrays.functions import is_users
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.derivatives.differing import OneForAll, differs, find_differing
from ebbtide.loop.stepping.collect import Seen
from ebbtide.loop.stepping.condition import ask
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.returned import parted, refuse_structure
from ebbtide.loop.values.state import alike, refuse_class
from ebbtide.program.constant import stop_gradient
from ebbtide.tape.batched import raised
from ebbtide.tape.recording import settle


def batched_loop(
    timeloop: Any, trace: BatchTrace, step: Any, state: Any, steps: int | None, inputs: Any, options: Options
) -> Any:
    """
    Run the loops of all members as one loop.

    What the step uses from outside it uses for all members at once; floating-point numbers of the state are of all
    members from the start, as a step may make them so, but for those that a condition needs to be one for all. If a
    step asks for values, the loop runs again with those leaves once that a first step leaves one for all.

    Args:
        timeloop: The loop.
        trace: The batch.
        step: The user's step.
        state: The user's state.
        steps: The number of steps.
        inputs: The user's inputs.
        options: The other arguments of the loop.

    Returns:
        What the loop returns, with the states of all members.

    Raises:
        TraceError: A step asks for values that differ from member to member, or a number of the state that is no
            floating-point one comes to differ with a later step than the first.
        TypeError: A leaf is an array of a class that computes in its own way.
    """
    leaves, structure = flatten(state)
    pairs = [trace.split(leaf) for leaf in leaves]
    differing = options.until.differing if isinstance(options.until, OneForAll) else None
    may_differ = differing or [is_array(array) for array, _ in pairs]
    mapped = [is_mapped or may for (_, is_mapped), may in zip(pairs, may_differ, strict=True)]
    del pairs
    try:
        return _loop_of_all(timeloop, trace, step, leaves, structure, mapped, steps, inputs, options)
    except TraceError:
        with suppress(TraceError):
            fewer = _found_mapped(trace, step, leaves, structure, steps, inputs, options)
            if fewer is not None and fewer != mapped:
                return _loop_of_all(timeloop, trace, step, leaves, structure, fewer, steps, inputs, options)
        raise


def _found_mapped(
    trace: BatchTrace, step: Any, leaves: list[Any], structure: Any, steps: int | None, inputs: Any, options: Options
) -> list[bool] | None:
    """
    Return which leaves of a state the first step leaves other ones for each member, of which a step may not ask.

    Of pairs of values and tangents, as of a Jacobian that is differentiated, the values may be one for all members.

    Returns:
        None where a first run has left something behind, or a program is traced, which knows no values anyway.
    """
    context = current()
    if context.follower is not None or options.resume is not None or context.resume is not None:
        return None
    most = options.max_steps if steps is None else steps
    values = [stop_gradient(leaf) for leaf in leaves]
    found = find_differing([trace], step, values, structure, int(most or 0), inputs, options)
    return [trace.split(leaf)[1] or differs(value) for leaf, value in zip(leaves, found, strict=True)]


def _loop_of_all(
    timeloop: Any,
    trace: BatchTrace,
    step: Any,
    leaves: list[Any],
    structure: Any,
    mapped: list[bool],
    steps: int | None,
    inputs: Any,
    options: Options,
) -> Any:
    """Run the loop; *mapped* says which leaves of its state have the members on their first axis."""
    places = paths_of(structure)
    pairs = [trace.split(leaf) for leaf in leaves]
    inputs, is_one = _of_all(trace, inputs)
    seen = Seen()
    # Closed over in place of the options, which may be other ones when the loop is resumed.
    outputs = options.outputs

    def lower(values: list[Any], flags: list[bool]) -> list[Any]:
        """Return leaves as the loop has them."""
        found = []
        for value, wanted, place in zip(values, flags, places, strict=False):
            array, is_mapped = trace.split(value)
            if is_mapped and not wanted:
                _refuse_differing(step, place)
            found.append(_full(trace, array, is_mapped) if wanted else array)
        return found

    def step_of_all(arrays: Any, x: Any) -> Any:
        with trace.above():
            state = raised(trace, arrays, mapped)
            result = step(unflatten(structure, state), _of_member(trace, x, is_one))
            result, outs = parted(step, None, result, seen) if outputs else (result, [])
            after, structure_after = flatten(result)
            if structure_after != structure:
                refuse_structure(step, None, structure_after, structure, outputs)
            settle(after)
            settle(outs)
            after = lower([alike(old, new) for old, new in zip(state, after, strict=True)], mapped)
            outs = [_full(trace, *trace.split(out), "the output") for out in outs]
        return (after, outs) if outputs else after

    condition: Any = options.until
    differing = condition.differing if isinstance(condition, OneForAll) else None

    def until(arrays: Any) -> bool:
        with trace.above():
            return bool(ask(condition, structure, raised(trace, arrays, mapped)))

    rest = options.as_arguments() | {"until": None if condition is None else OneForAll(until, differing)}
    with beneath(trace):
        begin = [_full(trace, a, m) if w else a for (a, m), w in zip(pairs, mapped, strict=True)]
        result = timeloop(step_of_all, begin, steps, inputs=inputs, **rest)
    if not outputs:
        return unflatten(structure, raised(trace, result, mapped))
    final, emitted = result
    of_members = [trace.members(np.moveaxis(out, 1, 0)) for out in emitted]
    return unflatten(structure, raised(trace, final, mapped)), unflatten(seen.structure, of_members)


def _refuse_differing(step: Any, place: str) -> NoReturn:
    """Raise for a leaf of the state that a step makes another one for each member, and the loop has once for all."""
    # Of pairs of values and tangents, and beneath another batch, the user does not know the places.
    where = f"The leaf {place or 'that is the state'}" if is_users(step) else "A leaf of the state"
    raise TraceError(
        f"{where} of a time loop at {user_line()} begins the same for all members of vmap, and a step makes it another "
        "one for each. Begin with an array that differs: add zeros that were mapped, or give it to vmap with in_axes=0."
    )


def _full(trace: BatchTrace, array: Any, is_mapped: bool, place: str = "the state") -> Any:
    """Return a leaf as the loop has it, an array of all members."""
    refuse_class(array, place)
    return full(array, is_mapped, trace.size)


@final
@dataclass(frozen=True, slots=True)
class _Form:
    """
    What an input is for a member. Its container is a leaf beside it, as inputs are compared with that in them.

    Args:
        trace: The batch: the input of one batch may go through the loop of another one around it.
        mapped: Which of its leaves have the members on their first axis.
    """

    trace: BatchTrace = field(repr=False)  # a journal has a checksum of what this is written as
    mapped: list[bool]


def _of_all(trace: BatchTrace, inputs: Any) -> tuple[Any, bool]:
    """Return inputs of which each says how it is that of a member, and whether they are one array of all members."""
    if callable(inputs):

        def of_all(i: int) -> Any:
            with trace.above():
                return _lowered(trace, inputs(i))

        return of_all, False
    if type(inputs) is TracedArray:
        array, is_mapped = trace.split(inputs)
        return (np.moveaxis(array, 1, 0) if is_mapped else array), is_mapped
    if isinstance(inputs, (list, tuple)):
        return [_lowered(trace, x) for x in inputs], False
    return inputs, False


def _lowered(trace: BatchTrace, x: Any) -> Any:
    """Return an input as the loop has it, beneath the batch."""
    leaves, structure = flatten(x)
    if not any(type(leaf) is TracedArray for leaf in leaves):
        return x
    pairs = [trace.split(leaf) for leaf in leaves]
    arrays, mapped = [array for array, _ in pairs], [is_mapped for _, is_mapped in pairs]
    return (arrays, structure, _Form(trace, mapped)) if any(mapped) else unflatten(structure, arrays)


def _of_member(trace: BatchTrace, x: Any, is_array: bool) -> Any:
    """Return an input as the step of a member sees it."""
    if is_array:
        return trace.members(x)
    if type(x) is tuple and len(x) == 3 and type(x[2]) is _Form and x[2].trace is trace:
        arrays, structure, form = x
        return unflatten(structure, raised(trace, arrays, form.mapped))
    return x
