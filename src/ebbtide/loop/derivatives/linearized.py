"""A time loop of a function that is linearized, from its arguments to its results."""

from __future__ import annotations

from functools import partial
from typing import Any

from ebbtide.arrays.containers import paths_of, unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.derivatives.linear import LinearLoop
from ebbtide.loop.derivatives.linear_steps import limit_of, most_kept
from ebbtide.loop.stepping.collect import stacked
from ebbtide.loop.stepping.inputs import Inputs, frozen
from ebbtide.loop.stepping.options import Options
from ebbtide.loop.stepping.plain import check_outputs, run_plain
from ebbtide.loop.stepping.progress import Watch
from ebbtide.loop.stepping.steps import Stepper
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.loop.values.state import begun, bytes_of
from ebbtide.tape.linear import without_data
from ebbtide.tape.linear_region import is_alone, split, tape_of
from ebbtide.tape.region import shown
from ebbtide.tape.tangent import TangentTrace


def linear_loop(
    trace: TangentTrace,
    step: Any,
    leaves: list[Any],
    structure: Any,
    steps: int,
    inputs: Any,
    options: Options,
) -> Any:
    """
    Run a time loop of a function that is linearized.

    Args:
        trace: The forward mode of the function.
        step: The user's step.
        leaves: Leaves of the state.
        structure: Structure of the state.
        steps: The number of steps, or the most.
        inputs: The user's inputs.
        options: The other arguments of the loop. A schedule says of how many steps the derivatives are kept; without
            one it is as many as there is room for.

    Returns:
        What the loop returns.

    Raises:
        TraceError: Other derivatives are taken of the loop at the same time, and it has a budget of its own.
        BudgetError: The budget of the loop is less than its state.

    Memory:
        What the kept steps take. All steps, recorded one by one, where other derivatives are taken at the same time.
    """
    context = current()
    if not is_alone(trace, context):
        # Each derivative records on the tapes of the others, step by step: whose budget there is bounds the call.
        if options.budget is not None:
            raise TraceError(
                f"At {user_line()}: a time loop with budget= is linearized together with another derivative of it, as "
                "in the linearization of a gradient, which keeps all its steps, so that the budget would not hold. "
                "Give the budget to linearize in place of the loop, or use jvp or hvp, which follow a schedule."
            )
        return run_plain(step, leaves, structure, steps, inputs, options)
    ledger = context.ledger
    outputs, budget = options.outputs, options.budget
    given = Inputs(frozen(inputs, partial(_without_zeros, trace)), None, checked=options.verify, mode=trace)
    tape = tape_of(trace, context)
    stepper = Stepper(step, structure, given, outputs, None, options.collect_every)
    stepper.keep(tape.keeping(), given.given, options.until)
    state = [shown(trace, begun(leaf, None)) for leaf in leaves]
    limit = limit_of(ledger, budget, bytes_of([split(trace, leaf)[0] for leaf in state]))
    loop = LinearLoop(
        tape,
        trace,
        stepper,
        Verifier(paths_of(structure), outputs, options.verify),
        Watch(ledger, options.progress, None),
        most_kept(options.schedule, steps),
        limit,
    )
    leaves.clear()
    final = loop.run(state, steps, options.until)
    check_outputs(stepper)
    results = loop.record(loop.operands(), final + stacked(loop.emitted))
    loop.emitted = []
    stepper.kept.end_forward(())
    tape.take(stepper.kept.nbytes)
    after = unflatten(structure, results[: len(final)])
    return (after, unflatten(stepper.seen.structure, results[len(final) :])) if outputs else after


def _without_zeros(trace: TangentTrace, leaf: TracedArray) -> TracedArray:
    """Return an input as the loop keeps it, without the zeros that are the tangent at hand."""
    value, tangent = split(trace, leaf)
    return leaf if type(tangent) is not TracedArray else TracedArray(trace, without_data(tangent), value)
