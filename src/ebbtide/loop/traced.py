"""
The time loop of a function that is traced: a call of its program, or one forward and one in reverse.

The steps are not traced, whatever their number: the program calls `timeloop`. What the loop returns, and which arrays
from outside a step uses, is found with the first step (`outcome`); these arrays are operands of the equation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.arrays.containers import flatten, frozen_leaf, unflatten
from ebbtide.arrays.context import Context, current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.reach import arrays_of, bound_now
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.stepping.given import LoopCall
from ebbtide.loop.stepping.inputs import frozen
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.outcome import find_results
from ebbtide.program.calling import record
from ebbtide.program.holding import is_symbolic
from ebbtide.program.surroundings import Surroundings


def traced_loop(
    timeloop: Callable[..., Any],
    step: Callable[..., Any],
    leaves: list[Any],
    structure: Any,
    length: int,
    inputs: Any,
    options: Options,
) -> Any:
    """
    Record a time loop of a function that is traced.

    Args:
        timeloop: The loop.
        step: The user's step.
        leaves: Leaves of the state.
        structure: Structure of the state.
        length: The number of steps, or the most.
        inputs: The user's inputs.
        options: The other arguments of the loop.

    Returns:
        What the loop returns, as arrays of the trace; None if it depends on nothing that is traced.

    Raises:
        TraceError: The first step asks for values, or the loop is one that no equation can be.
    """
    _refuse(leaves, options)
    # The program runs when the variables that the user's functions close over may stand for something else.
    step, options = bound_now(step), replace(options, until=bound_now(options.until))
    inputs = bound_now(inputs) if callable(inputs) else inputs
    rows, tree = _rows_of(inputs)
    context = current()
    context.follower.check_unchanged()
    results = find_results(step, leaves, structure, length, inputs, options)
    operands = [*map(frozen_leaf, leaves), *rows, *results.statics]
    if not is_symbolic(operands):
        return None
    given = None if tree is not None else frozen(inputs)
    around = tuple([Surroundings(f, traced=False) for f in (step, options.until, given) if callable(f)])
    context.follower.reach(arrays_of((step, options.until, given)))
    call = LoopCall(
        timeloop, step, length if options.until is None else None, structure, given, tree, options,
        range(len(leaves), len(leaves) + len(rows)), tuple(results.statics), _traces(context, results.statics),
        around, context.level, results.kinds, results.numbers,
    )  # fmt: skip
    found = record(call, operands)
    after = unflatten(structure, found[: results.count])
    return (after, unflatten(results.structure, found[results.count :])) if options.outputs else after


def _traces(context: Context, statics: list[TracedArray]) -> tuple[Any, ...]:
    """Return the traces and regions of the function that is traced, those inside of it, and those of static values."""
    # Of a member of `vmap` a static value may be one of the program around, beneath a batch inside of the member.
    found: list[Any] = [context.follower, *context.traces, *[array._trace for array in statics]]
    capture = context.capture
    while capture is not None and capture is not context.follower:
        # In a reverse sweep the function whose tape is outside of the region has returned.
        found += [capture, getattr(capture, "outer", None)]
        capture = getattr(capture, "around", None)
    return tuple(dict.fromkeys(trace for trace in found if trace is not None))


def _rows_of(inputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of inputs that are operands, with their structure; none where nothing of them is traced."""
    if isinstance(inputs, (TracedArray, list, tuple)):
        leaves, structure = flatten(inputs)
        if any(type(leaf) is TracedArray for leaf in leaves):
            return [*map(frozen_leaf, leaves)], structure
    return [], None


def _refuse(leaves: list[Any], options: Options) -> None:
    """Raise for what the equation of a loop cannot be, or would leave out."""
    context = current()
    problem = None
    if options.outputs and options.until is not None:
        problem = "outputs of a number that until= says when the program runs", "Leave outputs= out"
    elif any(isinstance(leaf, np.random.Generator) for leaf in leaves):
        problem = "a random generator in its state, which no program returns", "Draw the numbers outside as inputs="
    elif options.resume is not None or context.resume is not None:
        problem = "a journal (resume=), which would not tell the arrays of two calls apart", "Leave resume= out"
    if problem is not None:
        raise TraceError(
            f"The time loop called at {user_line()} is in a traced function, and has {problem[0]}. {problem[1]}, or "
            "put jit around the step instead of the loop."
        )
