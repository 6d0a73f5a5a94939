"""What the steps of a time loop take, in seconds: a few of them are run for nothing else."""

from __future__ import annotations

import mmap
import resource
import time
from contextlib import nullcontext
from types import NoneType
from typing import Any

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.context import entered
from ebbtide.arrays.primitive import Signature
from ebbtide.budget import Budget
from ebbtide.ledger import Ledger
from ebbtide.loop.first import First, run_first
from ebbtide.loop.sizes import Sizes
from ebbtide.loop.state import owned
from ebbtide.loop.steps import Stepper, TapedStep
from ebbtide.loop.swap import nodes_of
from ebbtide.machine import Meter
from ebbtide.schedules import Costs

# Forward steps that are run for nothing but their time: one plain, one taped. With fewer steps they are not worth it:
# they and one sweep of a step take 5 % of the time of 40 steps.
EXTRA_STEPS, LEAST_STEPS = 2, 32
# Two times of one thing that are further apart: something else had the processor during the longer one. Nearer ones
# may both be usual: a sweep of ten small steps took 20 ms, or 44 where the C library had given its memory back, and 30
# on average of a loop; with 1.25 in the place of 2 the loop took 1.2 to 1.5 of what was predicted.
_FAR = 2.0
# So many pages are taken to time a page fault.
_PAGES = 64


def is_timed(values: list[Any], steps: int) -> bool:
    """Return whether the steps of a loop are measured by running one of them again."""
    kinds = (np.ndarray, np.generic, int, float, complex)
    return steps >= LEAST_STEPS and all(isinstance(leaf, kinds) for leaf in values)


def measure_steps(
    stepper: Stepper, values: list[Any], first: First, sizes: Sizes, ledger: Ledger, allowed: Budget,
    plain: float | None,
) -> tuple[First, Costs]:  # fmt: skip
    """
    Run the first step again twice, taped and plain, and sweep it: now that all is warm, it takes the time of any step.

    Fresh memory takes more time than what a light step does with it, so that each part is measured with memory as the
    loop has it, where there is room for that: a step is taped beside another one that is kept, and swept with the
    cotangent that was there before; and a plain step runs in what was given up beneath its state.

    Args:
        stepper: Runs it.
        values: Leaves of the initial state, plain.
        first: The taped first step; used up.
        sizes: What it takes.
        ledger: The account.
        allowed: The budget.
        plain: What a plain step took, if one has been run.

    Returns:
        (the taped first step, costs without transfers).

    Memory:
        Where that fits, the sweep of a step and two states beside another taped step. Where it does not, or where
        sweeps are not repeated as they were, no more than a sweep: one taped step at a time, and its only sweep counts,
        a cold one.
    """
    assert first.record is not None
    roomy = ledger.limit is None or ledger.live + sizes.sweep + 3 * sizes.state <= ledger.limit
    roomy = roomy and all(type(node.signature) in (Signature, NoneType) for node in nodes_of(first.record))
    # Steps and sweeps may wait for those of other processes, which come in one order.
    roomy = not agree(not roomy)
    taped, runs, sweeps = first, [first.seconds], list[float]()
    if roomy:
        sweeps.append(_time_sweep(first.record, _ones_like(values), sizes, ledger, retain=True))
    cotangent = _ones_like(values)
    if roomy:
        taped = _run_again(stepper, values, sizes, ledger, allowed)
    copies = [owned(leaf) for leaf in values] if roomy else []
    sweeps.append(_time_sweep(taped.record, cotangent, sizes, ledger, retain=False))
    taped.close()
    forward = time_plain(stepper, copies or [owned(leaf) for leaf in values], ledger) if plain is None else plain
    del copies
    if not roomy:
        first = taped = _run_again(stepper, values, sizes, ledger, allowed)
    runs.append(taped.seconds)
    once = usual_time(runs)
    # A plain step takes no longer than a taped one.
    forward = max(min(forward, once), 1e-9)
    return first, Costs(forward=forward, reverse=usual_time(sweeps) + max(0.0, once - forward))


def usual_time(times: list[float]) -> float:
    """
    Return what something usually takes by one or two times: their mean, or the lesser if the other is far from it.

    The lesser alone is too little where times vary, as those of products on two threads do: a loop of them took 1.26 of
    what was predicted by it. The mean alone is too much where a step was slow just once: the first, or one that others
    had the processor in.
    """
    return min(times) if max(times) > _FAR * min(times) else sum(times) / len(times)


def _run_again(stepper: Stepper, values: list[Any], sizes: Sizes, ledger: Ledger, allowed: Budget) -> First:
    """Return the taped first step once more."""
    again = run_first(stepper, values, ledger, allowed)
    assert again.record is not None
    again.record.nbytes = sizes.saved + sizes.shared
    return again


def time_plain(stepper: Stepper, state: list[Any], ledger: Ledger, meter: Meter | None = None) -> float:
    """
    Return the seconds that the first step takes on plain values; *state* is given up to it, and a *meter* watches.

    A plain step after another one finds the memory that was given up by that. This one may have to be given some, page
    by page, which took a Runge-Kutta step of 5 ms 11 ms; that is not counted.
    """
    assert stepper.region is not None
    bypass = stepper.region.bypass()
    faults, start = _count_faults(), time.perf_counter()
    with meter or nullcontext(), stepper.region.running(bypass), entered(ledger=ledger):
        stepper.plain(0, state, bypass)
    seconds, faults = time.perf_counter() - start, _count_faults() - faults
    return max(0.0, seconds - faults * _time_fault()) if faults else seconds


def _count_faults() -> int:
    """Return how often the system has given this thread a page of memory that was there, or was made."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_minflt


def _time_fault() -> float:
    """Return the seconds that the system takes to give a page of memory: of three times of some, the middle one."""
    times: list[float] = []
    for _ in range(3):
        block = mmap.mmap(-1, _PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        firsts = np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE]
        start = time.perf_counter()
        firsts[:] = 1
        times.append((time.perf_counter() - start) / _PAGES)
        del firsts
        block.close()
    return sorted(times)[1]


def _ones_like(values: list[Any]) -> list[Any]:
    """Return a cotangent of ones, which belongs to the caller, for each leaf."""
    return [(np.ones_like(leaf), True) for leaf in values]


def _time_sweep(
    record: TapedStep | None, cotangent: list[Any], sizes: Sizes, ledger: Ledger, *, retain: bool
) -> float:
    """Return the seconds that a sweep of a step takes; the cotangent of the state after it is taken out of the list."""
    assert record is not None
    cotangent[:] = [pair if node else None for node, pair in zip(record.state_nodes, cotangent, strict=True)]
    none = [None] * len(record.output_nodes)
    start = time.perf_counter()
    with entered(ledger=ledger), np.errstate(all="ignore"), ledger.beside(sizes.alone):
        record.sweep(cotangent, none, retain=retain)
    return time.perf_counter() - start


def estimate_steps(first: First) -> Costs:
    """Return the costs by the first step alone: a reverse sweep of a step takes about twice its run."""
    return Costs(forward=max(first.seconds, 1e-9), reverse=2.0 * first.seconds)
