"""What the steps of a time loop take, in seconds: a few of them are run for nothing else."""

from __future__ import annotations

from contextlib import nullcontext
from types import NoneType
from typing import Any

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.containers import paths_of
from ebbtide.arrays.context import entered
from ebbtide.arrays.primitive import Signature
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.ledger import Ledger
from ebbtide.loop.measuring.first import First, run_first
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.loop.stepping.steps import Stepper, TapedStep
from ebbtide.loop.stepping.swap import nodes_of
from ebbtide.loop.stepping.verify import Verifier
from ebbtide.loop.stepping.warm import Timed, time_fault
from ebbtide.loop.values.state import owned
from ebbtide.machine import Meter
from ebbtide.schedules import Costs
from ebbtide.tape.forms import Form, form_of, has_arrays, ones_of

# Forward steps that are run for nothing but their time: one plain, one taped. With fewer steps they are not worth it:
# they and one sweep of a step take 5 % of the time of 40 steps.
EXTRA_STEPS, LEAST_STEPS = 2, 32
# Two times of one thing that are further apart: something else had the processor during the longer one. Nearer ones
# may both be usual: a sweep of ten small steps took 20 ms, or 44 where the C library had given its memory back, and 30
# on average of a loop; with 1.25 in the place of 2 the loop took 1.2 to 1.5 of what was predicted.
_FAR = 2.0


def is_timed(values: list[Any], steps: int) -> bool:
    """Return whether the steps of a loop are measured by running one of them again."""
    return steps >= LEAST_STEPS and all(_is_plain(leaf) or type(form_of(leaf)) is Form for leaf in values)


def _is_plain(leaf: Any) -> bool:
    if type(leaf) is TracedArray and leaf._node is None and has_arrays(leaf._trace):
        leaf = leaf._value  # it has no tangent, or is the same for all members
    return isinstance(leaf, (np.ndarray, np.generic, int, float, complex))


def measure_steps(
    stepper: Stepper, values: list[Any], first: First, sizes: Sizes, ledger: Ledger, allowed: Budget,
    plain: Timed | None,
) -> tuple[First, Costs]:  # fmt: skip
    """
    Run the first step again twice, taped and plain, and sweep it: now that all is warm, it takes the time of any step.

    Fresh memory takes more time than what a light step does with it. The steps of the loop have that of those before
    them, and what these were given of it is taken off their times.

    Args:
        stepper: Runs it.
        values: Leaves of the initial state, plain.
        first: The taped first step; used up.
        sizes: What it takes.
        ledger: The account.
        allowed: The budget.
        plain: A plain step, if one has been timed.

    Returns:
        (the taped first step, costs without transfers).

    Raises:
        DeterminismError: It leads to another result; see `verifier_of`.

    Memory:
        Where that fits, the sweep of a step and two states beside another taped step. Where it does not, or where
        sweeps are not repeated as they were, no more than a sweep: one taped step at a time, and its only sweep counts,
        a cold one.
    """
    assert first.record is not None
    verifier = verifier_of(stepper, first.after, first.outputs)
    roomy = _is_roomy(first.record, 3, sizes, ledger)
    taped, runs, sweeps = first, [first.timed], list[Timed]()
    if roomy:
        sweeps.append(_time_sweep(stepper, first.record, _ones_like(values), sizes, ledger, retain=True))
    cotangent = _ones_like(values)
    if roomy:
        taped = _run_again(stepper, values, sizes, ledger, allowed, verifier)
    copies = [owned(leaf) for leaf in values] if roomy else []
    sweeps.append(_time_sweep(stepper, taped.record, cotangent, sizes, ledger, retain=False))
    taped.close()
    if plain is None:
        plain = time_plain(stepper, copies or [owned(leaf) for leaf in values], ledger, None)
    del copies
    if not roomy:
        first = taped = _run_again(stepper, values, sizes, ledger, allowed, verifier)
    runs.append(taped.timed)
    fault = time_fault()
    once, swept = [usual_time([one.warm(fault) for one in many]) for many in (runs, sweeps)]
    # A plain step takes no longer than a taped one.
    usual = max(once if stepper.on_tape else min(plain.warm(fault), once), 1e-9)
    return first, Costs(forward=usual, reverse=swept + max(0.0, once - usual))


def measure_sweep(
    stepper: Stepper, values: list[Any], first: First, sizes: Sizes, ledger: Ledger, plain: Timed | None
) -> Costs:  # fmt: skip
    """
    Sweep a taped step that is warm, and run no other; see `measure_steps`.

    Where there is no room for that, a sweep counts as two steps.
    """
    assert first.record is not None
    fault = time_fault()
    once = max(first.timed.warm(fault), 1e-9)
    usual = once if plain is None else max(min(plain.warm(fault), once), 1e-9)
    if not _is_roomy(first.record, 2, sizes, ledger):
        return Costs(forward=usual, reverse=2.0 * once)
    swept = _time_sweep(stepper, first.record, _ones_like(values), sizes, ledger, retain=True)
    return Costs(forward=usual, reverse=swept.warm(fault) + once - usual)


def _is_roomy(record: TapedStep, states: int, sizes: Sizes, ledger: Ledger) -> bool:
    """Return whether a taped step can be swept and kept, beside so many states and the interpreter's share."""
    takes = sizes.sweep + states * sizes.state + sizes.interpreter
    roomy = ledger.limit is None or ledger.live + takes <= ledger.limit
    roomy = roomy and all(type(node.signature) in (Signature, NoneType) for node in nodes_of(record))
    # Steps and sweeps may wait for those of other processes, which come in one order.
    return not agree(not roomy)


def usual_time(times: list[float]) -> float:
    """
    Return what something usually takes by one or two times: their mean, or the lesser if the other is far from it.

    The lesser alone is too little where times vary, as those of products on two threads do: a loop of them took 1.26 of
    what was predicted by it. The mean alone is too much where a step was slow just once: the first, or one that others
    had the processor in.
    """
    return min(times) if max(times) > _FAR * min(times) else sum(times) / len(times)


def _run_again(
    stepper: Stepper, values: list[Any], sizes: Sizes, ledger: Ledger, allowed: Budget, verifier: Verifier
) -> First:
    """Return the taped first step once more, which leads to what it led to before."""
    again = run_first(stepper, values, ledger, allowed)
    assert again.record is not None
    _compare(verifier, again.after, again.outputs)
    again.record.nbytes = sizes.saved + sizes.shared
    return again


def verifier_of(stepper: Stepper, after: list[Any], output: list[Any] | None = None) -> Verifier:
    """
    Return what compares the next runs of the first step with the one that led to this state and output.

    A step that counts its calls makes another loop where it runs once more than in the function alone, and where
    nothing runs again nobody would see it.
    """
    verifier = Verifier(paths_of(stepper.structure), stepper.outputs, stepper.inputs.checked)
    verifier.before(1, after, again=False)
    if output is not None:
        verifier.emitted(0, output)
    return verifier


def is_alike(stepper: Stepper, record: TapedStep) -> bool:
    """Return whether a step has the bits of the taped one on plain values: complex numbers, also in loops, may not."""
    nodes = nodes_of(record)
    known = not stepper.on_tape and all(type(node.signature) in (Signature, NoneType) for node in nodes)
    return known and not any(node.type.dtype.kind == "c" for node in nodes)


def _compare(verifier: Verifier, after: list[Any], output: list[Any]) -> None:
    """Raise if the first step has led to another state or output than before."""
    verifier.taped(0, after)
    verifier.emitted(0, output)


def time_plain(
    stepper: Stepper, state: list[Any], ledger: Ledger, verifier: Verifier | None, meter: Meter | None = None,
    after: list[Any] | None = None,
) -> Timed:  # fmt: skip
    """
    Time the first step on plain values; *state* is given up to it, a *meter* watches, and *after* gets the new state.

    What it leads to is compared by a *verifier*.

    Off the tape also where steps run on one for their bits: it is the function alone that is measured, and beside the
    taped first step there may be no room for another one.
    """
    assert stepper.region is not None
    bypass, on_tape = stepper.region.bypass(), stepper.on_tape
    stepper.on_tape = False
    try:
        with Timed() as timed, meter or nullcontext(), stepper.region.running(bypass), entered(ledger=ledger):
            found, output = stepper.plain(0, state, bypass)
    finally:
        stepper.on_tape = on_tape
    if verifier is not None:
        _compare(verifier, found, output)
    if after is not None:
        after += found
    with Timed() as freed:
        del found, output  # a part of the time, as that of each state in the loop
    timed.seconds += freed.seconds
    return timed


def time_fresh(first: First) -> float:
    """Return the seconds that the pages of each byte took which the first step had to be given."""
    return time_fault() * first.timed.faults / first.taken if first.taken else 0.0


def _ones_like(values: list[Any]) -> list[Any]:
    """Return a cotangent of ones, which belongs to the caller, for each leaf."""
    return [(ones_of(form_of(leaf)), True) for leaf in values]


def _time_sweep(
    stepper: Stepper, record: TapedStep | None, cotangent: list[Any], sizes: Sizes, ledger: Ledger, *, retain: bool
) -> Timed:
    """Time a sweep of a step; the cotangent of the state after it is taken out of the list."""
    assert record is not None
    assert stepper.region is not None
    cotangent[:] = [pair if node else None for node, pair in zip(record.state_nodes, cotangent, strict=True)]
    none = [None] * len(record.output_nodes)
    with Timed() as timed, stepper.region.outside(ledger), np.errstate(all="ignore"), ledger.beside(sizes.alone):
        record.sweep(cotangent, none, retain=retain)
    return timed


def estimate_steps(first: First) -> Costs:
    """Return the costs by the first step alone: a reverse sweep of a step takes about twice its run."""
    seconds = first.timed.warm(time_fault())
    return Costs(forward=max(seconds, 1e-9), reverse=2.0 * seconds)
