"""Time loops of which nothing is recorded, and the checks that all time loops begin with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sized
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from ebbtide.agree import is_alone
from ebbtide.arrays.containers import unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.functions import check_call, check_function, is_whole, line_of_function
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import check_budget, parse_directory
from ebbtide.errors import ScheduleError
from ebbtide.loop.stepping.collect import emit, stacked
from ebbtide.loop.stepping.every import every
from ebbtide.loop.stepping.inputs import Inputs
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.progress import Bar
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.values.generators import refuse_shared
from ebbtide.loop.values.state import begun
from ebbtide.machine import Heap
from ebbtide.schedules import Costs, Schedule
from ebbtide.storage import Storage
from ebbtide.tape.communication import presence_here


def run_plain(step: Any, leaves: list[Any], structure: Any, steps: int, inputs: Any, options: Options) -> Any:
    """Run a loop of which nothing is recorded; the leaves that the caller gave are taken out of their list."""
    until, outputs = options.until, options.outputs
    context = current()
    if not is_alone():
        presence_here()  # a region that runs it again does so on all ranks
    report = context.ledger.report
    stepper = Stepper(step, structure, Inputs(inputs, None, checked=False), outputs, None, options.collect_every)
    state = [begun(leaf, stepper.below) for leaf in leaves]
    leaves.clear()
    emitted: list[Any] = []
    with Heap() as heap, Bar("forward", steps if until is None else None, options.progress) as bar:
        for index in range(steps):
            if until is not None and stepper.holds(until, state):
                break
            state, output = stepper.plain(index, state, None)
            if outputs:
                emit(emitted, index, steps if until is None else None, output)
            del output  # before the next step runs
            bar.advance()
            if heap is not None:
                heap.passed()
            if report is not None:
                report.count_step(None)
    check_outputs(stepper)
    after = unflatten(structure, state)
    return (after, unflatten(stepper.seen.structure, stacked(emitted))) if outputs else after


def check_outputs(stepper: Stepper) -> None:
    """Raise if a loop that is over has to have outputs, and has run no step."""
    if stepper.outputs and stepper.seen.structure is None:
        raise ValueError(
            "A loop whose condition holds at the start has no outputs, not even their shapes. Leave outputs= out, or "
            "look at the state before the loop."
        )


def check_functions(step: Any, until: Any) -> None:
    """Raise if a step or a condition is no function."""
    if not callable(step):
        kind = "array" if isinstance(step, (np.ndarray, TracedArray)) else type(step).__name__
        raise TypeError(
            f"timeloop at {user_line()} was given an object of type {kind} for its step. Its first argument is the "
            "function step(state, x) that returns the new state, its second one the initial state."
        )
    if inspect.isgeneratorfunction(step) or inspect.iscoroutinefunction(step):
        raise TypeError(
            f"The step at {line_of_function(step)} has a `yield` in it, or is an `async def`, so that to call it runs "
            "nothing. A step is a plain function that returns the new state."
        )
    if until is not None:
        check_function(until, "until=", "until(state)")


def refuse_calls(step: Any, until: Any, inputs: Any, error: TypeError) -> None:
    """
    Do nothing if the functions of a loop can be called as they are, so that an error is of what they do.

    Raises:
        TypeError: One cannot.
    """
    takes = (
        "A step takes the state and its input, which is the number of the step where the loop has no inputs=, and "
        "returns the new state."
    )
    check_call(step, "The step", "step(state, x)", takes, 2, error)
    if until is not None:
        takes = "It takes the state, and says whether the loop ends there."
        check_call(until, "The condition until=", "until(state)", takes, 1, error)
    if callable(inputs):
        takes = "It takes the number of a step, and returns its input."
        check_call(inputs, "The function inputs=", "inputs(i)", takes, 1, error)


def check_length(steps: Any, until: Any, max_steps: Any) -> int:
    """Return the number of steps, or the most steps of a loop with `until=`; raise if there is no telling."""
    if until is None and max_steps is not None:
        raise ValueError("max_steps= is for loops with until=. Give steps= for a loop of known length.")
    if until is not None and (steps is not None or max_steps is None):
        raise ValueError("A loop with until= has max_steps= and no steps=: the condition says when it ends.")
    if until is None and steps is None:
        raise ValueError("timeloop needs the number of steps: give steps=, or until= with max_steps=.")
    name, count = ("steps", steps) if until is None else ("max_steps", max_steps)
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
        raise ValueError(f"{name}= is a number of steps, not {count!r}.")
    return int(count)


def count_inputs(inputs: Any) -> int:
    """Return the number of inputs; some arrays in files have a shape and no length."""
    shape: Any = getattr(inputs, "shape", None)
    with suppress(TypeError):  # a sparse array has a length that it does not tell
        if isinstance(inputs, Sized) and shape != ():
            return len(inputs)
    if not shape or hasattr(inputs, "nnz"):
        kind = f"{type(inputs).__name__}{' without axes' if shape == () else ''}"
        raise TypeError(f"inputs= is a {kind}. Give a sequence with a length or shape, or a function of the step.")
    return int(shape[0])


def _refuse_unordered(inputs: Any, steps: int) -> None:
    """Raise if inputs have a length and are no sequence of arrays: `inputs[i]` is nothing, or no input of a step."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.hasobject:
        # A traced array among its objects would lose its derivative.
        raise TypeError(
            f"inputs= is an array of dtype {inputs.dtype}, and no array of numbers. Give its objects in a list: "
            "list(inputs)."
        )
    is_read_by_number = hasattr(inputs, "__getitem__") and not isinstance(inputs, str)
    keys = ""
    if isinstance(inputs, Mapping):
        if all(k in inputs for k in range(len(inputs))):
            return
        keys = f" with the keys {', '.join(map(repr, islice(inputs, 4)))}{', ...' if len(inputs) > 4 else ''}"
    elif is_read_by_number or callable(inputs) or not isinstance(inputs, Sized):
        return
    raise TypeError(
        f"inputs= is a {type(inputs).__name__}{keys}, and no sequence of {steps} inputs, of which inputs[i] is that of "
        "step i. To give several arrays to each step, give a list of dicts or tuples, one for each step."
    )


def check_arguments(steps: int, leaves: list[Any], inputs: Any, options: Options) -> None:
    """Raise if the arguments of a loop are not what they have to be, or do not fit together."""
    until, outputs, schedule, collect_every = options.until, options.outputs, options.schedule, options.collect_every
    refuse_shared(leaves)
    _refuse_unordered(inputs, steps)
    count = steps if inputs is None or callable(inputs) else count_inputs(inputs)
    if count != steps and (until is None or count < steps):
        most = "at most " if until is not None else ""
        more, listed = "", inputs if isinstance(inputs, (tuple, list)) else ()
        if listed and all((getattr(one, "shape", None) or ())[:1] == (steps,) for one in listed):
            more = f" Each of these has {steps} rows: give a row of each to step i by inputs=lambda i: (a[i], b[i])."
        raise ValueError(f"There are {count} inputs for {most}{steps} steps. Give one input for each step.{more}")
    if outputs and steps == 0:
        raise ValueError("A loop of 0 steps has no outputs, not even their shapes. Leave outputs= out.")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ScheduleError(f"schedule= takes a schedule out of ebbtide.schedules, not {schedule!r}.")
    for name, given, kind in (("costs", options.costs, Costs), ("storage", options.storage, Storage)):
        if given is not None and not isinstance(given, kind):
            raise TypeError(f"{name}= takes an ebbtide {kind.__name__}, not {given!r}.")
    check_budget(options.budget)
    if options.resume is not None:
        parse_directory(options.resume, "resume=", "a run that is not resumed")
    every(options.resume_every)
    if collect_every is not None and (not is_whole(collect_every) or collect_every < 1):
        raise ValueError(f"collect_every= is a positive number of steps, not {collect_every!r}.")
