"""The measuring steps of a time loop: what its parts take, in bytes and in seconds."""

from __future__ import annotations

import mmap
import resource
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import NoneType
from typing import Any, final

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.primitive import Signature
from ebbtide.arrays.reach import arrays_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.ledger import SAVED, Ledger
from ebbtide.loop.generators import working_nbytes
from ebbtide.loop.sizes import Sizes
from ebbtide.loop.state import bytes_of, count_numbers, owned, pack
from ebbtide.loop.steps import Stepper, TapedStep
from ebbtide.loop.swap import nodes_of, swappable_bytes
from ebbtide.machine import Meter
from ebbtide.profiling.peak import measured_peak
from ebbtide.schedules import Costs
from ebbtide.storage import entry_nbytes
from ebbtide.storage.system import count_processors
from ebbtide.tape.blocks import BLOCK
from ebbtide.tape.forecast import held_by
from ebbtide.tape.pager import Pager
from ebbtide.tape.saved import SavedValue, key_of
from ebbtide.tape.saved import bytes_of as bytes_saved

# Forward steps that are run for nothing but their time: one plain, one taped. With fewer steps they are not worth it:
# they and one sweep of a step take 5 % of the time of 40 steps.
EXTRA_STEPS, LEAST_STEPS = 2, 32
# Two times of one thing that are further apart: something else had the processor during the longer one. Nearer ones
# may both be usual: a sweep of ten small steps took 20 ms, or 44 where the C library had given its memory back, and 30
# on average of a loop; with 1.25 in the place of 2 the loop took 1.2 to 1.5 of what was predicted.
_FAR = 2.0
# With less than this part of a processor to themselves threads take the time of the steps that they run beside: two
# threads of BLAS on two processors waited for the reads of what they saved, 1.6 ms each step of 24.
_FREE = 0.5
# So many pages are taken to time a page fault.
_PAGES = 64


@final
class First:
    """
    The taped first step with its results, handed over once.

    Args:
        record: The step.
        after: Leaves of the state after it.
        output: Leaves of its output.
        seconds: What it took.
        is_busy: Whether it left no processor to the threads of a storage.
        traced: The most bytes that were allocated for it at a time, its own temporaries and what it saves; None where
            `tracemalloc` does not run.
    """

    __slots__ = ("_held", "is_busy", "record", "seconds", "traced")

    def __init__(
        self,
        record: TapedStep,
        after: list[Any],
        output: list[Any],
        seconds: float,
        *,
        is_busy: bool,
        traced: int | None = None,
    ) -> None:
        self.record: TapedStep | None = record
        self.traced = traced
        self.seconds = seconds
        self.is_busy = is_busy
        self._held: tuple[list[Any], list[Any]] | None = after, output

    def take(self) -> tuple[TapedStep, list[Any], list[Any]]:
        """Return the step, the state after it and its output, and forget them."""
        record, held = self.record, self._held
        assert record is not None
        assert held is not None
        self.record = self._held = None
        return record, *held


def run_first(stepper: Stepper, values: list[Any], ledger: Ledger, allowed: Budget | None) -> First:
    """
    Run the first step on a tape.

    Args:
        stepper: Runs it.
        values: Leaves of the initial state, which stay as they are.
        ledger: The account; a step that does not fit into its bound goes on with sizes alone.
        allowed: The budget; None for no bound.
    """
    assert stepper.region is not None
    # No file is written before it is known that there is a plan.
    bound = None if ledger.limit is None or allowed is None else Budget(allowed.memory)
    pager = Pager(ledger, bound, around=stepper.region.outer.pager)
    with measured_peak() if tracemalloc.is_tracing() else nullcontext() as peak:
        start, begun = time.perf_counter(), time.process_time()
        with entered(ledger=ledger):
            record, after, output = stepper.taped(0, list(values), pager)
        seconds, busy = time.perf_counter() - start, time.process_time() - begun
    is_busy = busy > (count_processors() - _FREE) * seconds
    return First(record, after, output, seconds, is_busy=is_busy, traced=None if peak is None else peak.nbytes)


def measure_sizes(
    stepper: Stepper, values: list[Any], first: First, ledger: Ledger, before: dict[str, int], rows: int
) -> Sizes:
    """
    Return what the parts of a loop take, from its first step.

    Args:
        stepper: The step.
        values: Leaves of the initial state.
        first: The taped step.
        ledger: The account in which it is counted.
        before: Bytes in it before the step, by kind.
        rows: Bytes of the gradient with respect to the inputs.
    """
    record = first.record
    assert record is not None
    kinds = [leaf.type.nbytes for leaf, _ in record.tape.statics.values()]
    counted = ledger.held[SAVED] - before[SAVED] + record.tape.pager.overhead.uncounted
    shared = min(counted, _bytes_kept_by_others(stepper, record, ledger))
    record.nbytes = counted
    return Sizes(
        state=bytes_of(values),
        saved=counted - shared,
        shared=shared,
        nodes=max(0, counted - shared - swappable_bytes(record)),
        sweep=record.forecast() + record.tape.pager.overhead.uncounted - sum(before.values()) + working_nbytes(values),
        gradients=sum(kinds) + rows,
        stored=entry_nbytes(pack(values).arrays),
        leaves=len(values),
        numbers=count_numbers(values),
        passed_on=_bytes_passed_on(values, first, ledger),
    )


def _bytes_kept_by_others(stepper: Stepper, record: TapedStep, ledger: Ledger) -> int:
    """Return the bytes of saved arrays that do not die with a step: static values, and what the step closes over."""
    others = {id(owner_of(met._value)) for _, met in record.tape.statics.values() if type(met._value) is np.ndarray}
    others |= {id(owner_of(array)) for array in arrays_of(stepper.step)}
    kept = {
        key_of(cell): bytes_saved(cell)
        for cell in _saved_arrays(record, ledger)
        if id(owner_of(cell.value)) in others
    }
    return sum(kept.values())


def _saved_arrays(record: TapedStep, ledger: Ledger) -> Iterator[SavedValue]:
    """Return the arrays that a step holds."""
    for node in nodes_of(record):
        for cell in held_by(node, ledger.holds):
            if type(cell) is SavedValue and type(cell.value) is np.ndarray:
                yield cell


def _bytes_passed_on(values: list[Any], first: First, ledger: Ledger) -> int:
    """Return the bytes of the leaves that the first step saved both as they were before it and as they are after it."""
    assert first.record is not None
    assert first._held is not None
    kept = {id(owner_of(cell.value)) for cell in _saved_arrays(first.record, ledger)}
    found: dict[int, int] = {}
    for before, after in zip(values, first._held[0], strict=True):
        if type(before) is type(after) is np.ndarray and before.nbytes == after.nbytes:
            owners = [owner_of(leaf) for leaf in (before, after)]
            if all(id(one) in kept and one.nbytes == after.nbytes for one in owners):
                found[id(owners[1])] = after.nbytes
    return sum(found.values())


def is_timed(values: list[Any], steps: int) -> bool:
    """Return whether the steps of a loop are measured by running one of them again."""
    return steps >= LEAST_STEPS and all(isinstance(leaf, (np.ndarray, np.generic, float, complex)) for leaf in values)


def measure_alone(
    stepper: Stepper, values: list[Any], first: First, sizes: Sizes, ledger: Ledger
) -> tuple[Sizes, float | None, int]:
    """
    Run the first step once more, on plain values, if its sweep takes more than most: the function alone takes some too.

    A cotangent waits in the sweep where the step held its value. At the maximum of eight branches eight of them wait,
    and the function alone holds as many values. What it holds covers also what rules take for a moment and no ledger
    counts, so that it is looked at only where they take nothing: of steps of elementwise and linear operations.

    Args:
        stepper: Runs it.
        values: Leaves of the initial state.
        first: The taped step.
        sizes: What it takes.
        ledger: The account.

    Returns:
        (sizes that say what the function alone takes, the seconds of the step, the bytes that others gave up for it);
        the same sizes, None and 0 where that is of no use or cannot be known.

    Memory:
        A state, beside that after the taped step, and the step's own arrays, which the function alone takes as well.
    """
    most = _most_that_waits(first, sizes)
    if ledger.limit is None or agree(Meter is None or sizes.sweep <= most or not _is_lone(values, first)):
        return sizes, None, 0
    before, outer = ledger.live, None if stepper.region is None else stepper.region.outer.pager
    ledger.relieve(before + 2 * sizes.state - ledger.limit)
    if outer is not None:
        outer.reserve(2 * sizes.state)
    freed, meter = before - ledger.live, Meter()
    seconds = _time_plain(stepper, [owned(leaf) for leaf in values], ledger, meter)
    return replace(sizes, alone=max(0, min(meter.peak, sizes.sweep - most))), seconds, freed


def _is_lone(values: list[Any], first: First) -> bool:
    """Return whether a plain step takes what the function alone does, and its sweep no more than the ledger counts."""
    context, record = current(), first.record
    assert record is not None
    # Another region, program or forward mode around runs the step beside something else, or with more than values; and
    # operations on static values are done one by one, where NumPy reuses the memory of temporaries.
    around = context.capture is not None or context.derived or bool(record.tape.statics)
    signatures = [node.signature for node in nodes_of(record) if node.signature is not None]
    simple = all(type(one) is Signature and (one.local or not (one.saves or one.keeps)) for one in signatures)
    return simple and not around and not any(type(leaf) is TracedArray for leaf in values)


def _most_that_waits(first: First, sizes: Sizes) -> int:
    """
    Return what the sweep of most steps takes: what one saves, three cotangents, and sums for static values.

    As much is left to the sweep of any step. A taped one runs beside a cotangent and may take an array more than a
    plain one: NumPy reuses the memory of temporaries of expressions, which a tape cannot.
    """
    assert first.record is not None
    kinds = [node.type for node in nodes_of(first.record) if node.signature is not None]
    arrays = [one.nbytes for kind in kinds for one in (kind if isinstance(kind, list) else [kind])]
    largest = max([2 * sizes.state, *arrays])
    return sizes.saved + sizes.shared + sizes.state + largest + sizes.gradients + BLOCK


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
    _close(taped)
    forward = _time_plain(stepper, copies or [owned(leaf) for leaf in values], ledger) if plain is None else plain
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


def _time_plain(stepper: Stepper, state: list[Any], ledger: Ledger, meter: Meter | None = None) -> float:
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
        block = mmap.mmap(-1, _PAGES * mmap.PAGESIZE)
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


def _close(taped: First) -> None:
    """Give up a taped step and its results."""
    record, _, _ = taped.take()
    record.tape.pager.close()


def estimate_steps(first: First) -> Costs:
    """Return the costs by the first step alone: a reverse sweep of a step takes about twice its run."""
    return Costs(forward=max(first.seconds, 1e-9), reverse=2.0 * first.seconds)
