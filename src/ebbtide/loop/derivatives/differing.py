"""Which leaves of the state of a time loop differ between the members of a batch of `vmap`, found by its first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from ebbtide.arrays.batched import BatchTrace, full
from ebbtide.arrays.containers import is_array
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.ledger import Ledger
from ebbtide.loop.stepping.inputs import Inputs
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.plain import check_arguments
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.values.state import begun
from ebbtide.tape.region import Region


@final
@dataclass(frozen=True, slots=True)
class OneForAll:
    """
    A condition whose answer is one for all members of all batches.

    Args:
        condition: What is asked of the state.
        differing: Which leaves of the state may be other ones for each member; None for all floating-point ones.
    """

    condition: Callable[[Any], Any]
    differing: list[bool] | None = None

    def __call__(self, state: Any) -> Any:
        """Return whether a loop ends."""
        return self.condition(state)


def of_members(batches: list[BatchTrace], value: Any) -> Any:
    """Return a value without a derivative as an array of all members of all batches, the innermost the last."""
    if not batches:
        return value
    *around, trace = batches
    return trace.members(of_members(around, full(*trace.split(value), trace.size)))


def differs(value: Any) -> bool:
    """Return whether a value, whatever its derivative is, is another one for each member of a batch."""
    while type(value) is TracedArray:
        if type(value.present()._trace) is BatchTrace and value._node is not None:
            return True
        value = value._value
    return False


def find_differing(
    batches: list[BatchTrace], step: Any, values: list[Any], structure: Any, most: int, inputs: Any, options: Options
) -> list[Any]:
    """
    Return values of an initial state, of which those are arrays of all members that a first step makes different.

    In `hessian`, all members of a batch have the same values, and other tangents. What a later step makes different
    for the first time is refused where that step is run.

    Args:
        batches: The batches, the innermost the last.
        step: The user's step.
        values: Leaves of the state, without derivatives; they stay as they are.
        structure: Structure of the state.
        most: The number of steps, or the most.
        inputs: The user's inputs.
        options: The other arguments of the loop.

    Memory:
        What one step takes on values; no budget counts it.
    """
    check_arguments(most, values, inputs, options)
    while most and any(is_array(value) and not differs(value) for value in values):
        after = _run_first(step, values, structure, inputs, options)
        grown = [differs(new) and not differs(old) for old, new in zip(values, after, strict=True)]
        if not any(grown):
            break
        values = [of_members(batches, x) if is_new else x for x, is_new in zip(values, grown, strict=True)]
    return values


def _run_first(step: Any, values: list[Any], structure: Any, inputs: Any, options: Options) -> list[Any]:
    """Return the state after the first step, run on values: tapes around do not grow."""
    context = current()
    tape = context.tape
    region = None if tape is None else Region(tape)
    given = region.value(inputs) if region is not None and isinstance(inputs, TracedArray) else inputs
    stepper = Stepper(step, structure, Inputs(given, region, checked=False), options.outputs, region)
    state = [begun(value, stepper.below) for value in values]
    # Loops in the step are no part of what is reported, nor of what is resumed.
    with entered(ledger=Ledger(), budget=None, resume=None):
        if region is None:
            return stepper.plain(0, state, None)[0]
        bypass = region.bypass()
        with region.running(bypass):
            return stepper.plain(0, state, bypass)[0]
