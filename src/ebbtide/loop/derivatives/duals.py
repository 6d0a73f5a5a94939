"""Forward mode inside of a recorded function: the loop runs on values and tangents as one state."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.containers import flatten, is_array, is_differentiable, unflatten
from ebbtide.arrays.context import beneath
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.loop.derivatives.differing import OneForAll, differs
from ebbtide.loop.stepping.collect import Seen
from ebbtide.loop.stepping.inputs import KNOWN, traced_elements, with_shown
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.returned import parted, refuse_structure
from ebbtide.loop.values.state import alike


def dual_loop(
    timeloop: Any, trace: Any, step: Any, state: Any, steps: int | None, inputs: Any, options: Options
) -> Any:
    """
    Run a loop whose values have tangents as a loop over pairs, which the tape around can record.

    Args:
        timeloop: The loop.
        trace: The forward mode that the tangents belong to.
        step: The user's step.
        state: The user's state.
        steps: The number of steps.
        inputs: The user's inputs.
        options: The other arguments of the loop.

    Returns:
        What the loop returns, with values and tangents joined.
    """
    leaves, structure = flatten(state)
    is_function = callable(inputs)
    rest = options.as_arguments() | {"until": _of_values(options.until, structure)}
    # Closed over in place of the options, which may be other ones when the loop is resumed.
    outputs = options.outputs

    def split(values: list[Any]) -> tuple[list[Any], list[Any]]:
        present = [_present(trace, v) for v in values]
        return [p[0] for p in present], [p[1] for p in present]

    def join(values: list[Any], tangents: list[Any]) -> list[Any]:
        return [_joined(trace, v, t) for v, t in zip(values, tangents, strict=True)]

    seen = Seen()

    def dual_step(pair: Any, x: Any) -> Any:
        values, tangents = pair
        if foreign:
            if any(_depends(trace, leaf) for leaf in flatten(x)[0]):
                raise traced_elements(inputs)
        elif rows:
            (x,) = join([x[0]], [x[1]])
        elif pairs is not None or is_function:
            parts, structure_x = x
            x = with_shown(trace, unflatten(structure_x, join(*parts)))
        elif inputs is not None:
            value, tangent = _present(trace, x)
            (x,) = join([value], [tangent])
        # Inside of the step's tape, on which arrays from outside may meet; also when the function has returned.
        state = join(values, tangents)
        with trace.above():
            result = step(unflatten(structure, state), x)
        result, outs = parted(step, None, result, seen) if outputs else (result, [])
        after, structure_after = flatten(result)
        if structure_after != structure:
            refuse_structure(step, None, structure_after, structure, outputs)
        after = [alike(old, new) for old, new in zip(state, after, strict=True)]
        if not outputs:
            return split(after)
        values_out, tangents_out = split(outs)
        return split(after), (values_out, [_stackable(v, t) for v, t in zip(values_out, tangents_out, strict=True)])

    inputs, rows = _rows_of(trace, inputs)
    pairs: list[Any] | None = None
    # Others are read row by row, perhaps from a file, and have no tangents.
    foreign = not (inputs is None or is_function or isinstance(inputs, KNOWN))
    if isinstance(inputs, (list, tuple)):
        pairs = [(split(flat), tree) for flat, tree in (flatten(inputs[k]) for k in range(len(inputs)))]
    with beneath(trace, derived=True):
        if rows:
            inputs = np.stack(_present(trace, inputs), axis=1)
        given = _of_pairs(trace, inputs) if is_function else inputs if pairs is None else pairs
        result = timeloop(dual_step, split(leaves), steps, inputs=given, **rest)
    if not outputs:
        return unflatten(structure, join(*result))
    final, emitted = result
    return unflatten(structure, join(*final)), unflatten(seen.structure, join(*emitted))


def _rows_of(trace: Any, inputs: Any) -> tuple[Any, bool]:
    """
    Return inputs, and whether they stay one array: a row of values beside a row of tangents.

    With tangents that differ from member to member of a batch, values that do not would then be of all members, too.
    """
    if type(inputs) is not TracedArray or inputs.present()._trace is not trace:
        return inputs, False
    if differs(inputs._node) and not differs(inputs):
        return list(inputs), False
    return inputs, True


def _of_pairs(trace: Any, inputs: Any) -> Any:
    """Return a function of the step number that gives inputs as those in a list are given, for them to be compared."""

    def of_pairs(index: int) -> Any:
        # Inside of the step's tape, like the step.
        with trace.above():
            leaves, structure = flatten(inputs(index))
            # What has no tangent gets none, whether it is an array of the tape around, as in a step that is swept, or
            # its value, as in one that only runs.
            pairs = [_present(trace, x) if _is_of(trace, x) else (x, 0.0) for x in leaves]
        return ([value for value, _ in pairs], [tangent for _, tangent in pairs]), structure

    return of_pairs


def _of_values(until: Any, structure: Any) -> Any:
    """Return a condition on the state as one on pairs of values and tangents; of these any may differ in a batch."""
    if until is None:
        return None

    def of_values(pair: Any) -> Any:
        return until(unflatten(structure, pair[0]))

    differing = until.differing if isinstance(until, OneForAll) else None
    return of_values if differing is None else OneForAll(of_values, differing + [True] * len(differing))


def _present(trace: Any, value: Any) -> tuple[Any, Any]:
    """
    Return value and tangent of a leaf.

    What is no floating-point array or NumPy number has the tangent 0.0, a Python float that takes the place of one: the
    pair of a number that comes to depend on something in a later step has the same structure before and after.
    """
    if _is_of(trace, value):
        if not is_array(value):
            return value._value, 0.0
        tangent = zeros_like(value._value) if value._node is None else value._node
        return value._value, tangent
    if is_differentiable(value):
        return value, np.zeros(value.shape, value.dtype)[()] if isinstance(value, np.generic) else zeros_like(value)
    return value, 0.0


def _is_of(trace: Any, value: Any) -> bool:
    """Return whether a value is an array of the forward mode."""
    return type(value) is TracedArray and value.present()._trace is trace


def _depends(trace: Any, value: Any) -> bool:
    """Return whether an array is one of the forward mode, or what an array of the tape of a step was made of is one."""
    while type(value) is TracedArray:
        if _is_of(trace, value):
            return True
        value = value._value
    return False


def _joined(trace: Any, value: Any, tangent: Any) -> Any:
    """Return a leaf of the state of a value and what `_present` gives as its tangent."""
    if tangent is None or type(tangent) is float or not is_array(value):
        return value
    # A Python number has an array of tangents where that is one for each member of a batch, and the number is not.
    return TracedArray(trace, tangent, np.asarray(value)[()] if type(value) in (float, complex) else value)


def _stackable(value: Any, tangent: Any) -> Any:
    """Return the tangent of an output, of its type or None, so that those of all steps can be stacked."""
    if type(tangent) is not float:
        return tangent
    return np.zeros((), type(value))[()] if type(value) in (float, complex) else None
