"""The first step of a time loop is measured: what its parts take, in bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.context import current
from ebbtide.ledger import SNAPSHOTS, Ledger, Mark
from ebbtide.lender import lent_by
from ebbtide.loop.holding.held import RECORD
from ebbtide.loop.measuring.first import First
from ebbtide.loop.measuring.growing import Plain
from ebbtide.loop.measuring.likeness import hides_nothing, is_known, is_lone, is_plain, taken_beside, written_in_place
from ebbtide.loop.measuring.moments import bytes_asked
from ebbtide.loop.measuring.timing import is_alike, time_plain, verifier_of
from ebbtide.loop.measuring.unforecast import measure_rules
from ebbtide.loop.planning.sizes import RESERVE_PER_STEP, Sizes
from ebbtide.loop.stepping.shared import saved_arrays, shared_bytes
from ebbtide.loop.stepping.steps import Stepper, TapedStep
from ebbtide.loop.stepping.swap import nodes_of, swappable_bytes
from ebbtide.loop.stepping.warm import Timed
from ebbtide.loop.values.generators import working_nbytes
from ebbtide.loop.values.state import bytes_of, count_numbers, owned, pack
from ebbtide.machine import Meter
from ebbtide.storage import entry_nbytes
from ebbtide.tape.blocks import BLOCK
from ebbtide.tape.forms import form_here, has_arrays


def measure_sizes(
    stepper: Stepper, values: list[Any], first: First, ledger: Ledger, held: int, mark: Mark, rows: int
) -> Sizes:
    """
    Return what the parts of a loop take, from its first step.

    Args:
        stepper: The step.
        values: Leaves of the initial state.
        first: The taped step.
        ledger: The account in which it is counted.
        held: Bytes in it without those of the step.
        mark: Where it stood before the step, without what others have given up since.
        rows: Bytes of the gradient with respect to the inputs.
    """
    record = first.record
    assert record is not None
    kinds = [form_here(leaf.type).nbytes for leaf, _ in record.tape.statics.values()]
    saved, record.within = ledger.kept_since(mark)
    counted = saved + record.within + record.tape.pager.overhead.uncounted
    shared = min(counted, shared_bytes(stepper, record, ledger))
    record.nbytes, spare = counted, ledger.held[SNAPSHOTS] - mark.snapshots - record.within
    first.kept = counted + max(0, spare)
    # What the interpreter takes for loops in it is in no ledger, and the reserve of the loop around is for one.
    lenders, sweep = ledger.lenders_since(mark), record.forecast()
    more = RECORD if lenders else 0
    freed, on_disk = swappable_bytes(record)
    return Sizes(
        state=bytes_of(values),
        saved=counted - shared + more,
        shared=shared,
        nodes=counted - shared + more - freed,
        sweep=sweep + record.tape.pager.overhead.uncounted - held + working_nbytes(values),
        gradients=sum(kinds) + rows,
        stored=entry_nbytes(pack(values).arrays),
        swapped=on_disk,
        leaves=len(values),
        numbers=count_numbers(values),
        passed_on=_bytes_passed_on(values, first, ledger),
        # No ledger counts the cotangent beside which a step runs.
        run=counted + first.dead - bytes_of(values),
        seen=counted + first.dead,
        lent=max(0, lent_by(lenders) - max(0, spare)),
        lent_swept=max(0, sweep - record.forecast(bare=True)) if lenders else 0,
        traces=sum(map(has_arrays, current().traces)),
    )


def _bytes_passed_on(values: list[Any], first: First, ledger: Ledger) -> int:
    """Return the bytes of the leaves that the first step saved both as they were before it and as they are after it."""
    assert first.record is not None
    kept = {id(owner_of(cell.value)) for cell in saved_arrays(first.record, ledger)}
    found: dict[int, int] = {}
    for before, after in zip(values, first.after, strict=True):
        if type(before) is type(after) is np.ndarray and before.nbytes == after.nbytes:
            owners = [owner_of(leaf) for leaf in (before, after)]
            if all(id(one) in kept and one.nbytes == after.nbytes for one in owners):
                found[id(owners[1])] = after.nbytes
    return sum(found.values())


def _bytes_made(values: list[Any], first: First, written: dict[int, int]) -> int:
    """Return the bytes of the leaves after the first step in memory which it has made, and not *written* in place."""
    assert first.record is not None
    others = [*values, *[met._value for _, met in first.record.tape.statics.values()]]
    known = {id(owner_of(one)) for one in others if isinstance(one, np.ndarray)}
    made = zip(first.record.state_nodes, first.after, strict=True)
    new = [leaf for node, leaf in made if node is not None and not written.get(node.number)]
    owners = {id(one := owner_of(leaf)): one for leaf in new if type(leaf) is np.ndarray}
    return sum([one.nbytes for key, one in owners.items() if key not in known])


def bytes_passed(first: First, ledger: Ledger) -> int:
    """Return the bytes of the leaves of the state after the first step that it saved as they are."""
    assert first.record is not None
    kept = {id(owner_of(cell.value)) for cell in saved_arrays(first.record, ledger)}
    owners = {id(owner_of(leaf)): leaf.nbytes for leaf in first.after if type(leaf) is np.ndarray}
    return sum([nbytes for owner, nbytes in owners.items() if owner in kept])


def measure_alone(
    stepper: Stepper, values: list[Any], first: First, sizes: Sizes, ledger: Ledger, mark: Mark, gaining: int,
    room: int, plain: Plain | None,
) -> tuple[Sizes, Timed | None, int]:  # fmt: skip
    """
    Run the first step once more, on plain values, where the plan gains by it: the function alone takes some too.

    A cotangent waits in the sweep where the step held its value. At the maximum of eight branches eight of them wait,
    and the function alone holds as many values. What it holds would cover as well what rules take for a moment and no
    forecast counts, so that it is looked at only where forecasts are tested: of steps of NumPy's functions; and where
    that is measured, of users' own rules and SciPy's.

    What rules take for a moment while a step runs on a tape is metered: of a median over eight rows it was 16 states
    more than the function took, where the sweep took 13.

    Args:
        stepper: Runs it.
        values: Leaves of the initial state.
        first: The taped first step.
        sizes: What it takes.
        ledger: The account.
        mark: Where it stood before the step.
        gaining: The steps that may gain by more snapshots in the reverse sweep; 0 where a plan has no use for them.
        room: Bytes in the ledger that the loop may have.
        plain: The step on plain values, where it was run before the taped one; None to run it where that is of use.

    Returns:
        (sizes that say what the function alone takes, the time of the step, the bytes that others gave up for it);
        the same sizes, None and 0 where that is of no use or cannot be known.

    Memory:
        A state, beside that after the taped step, the interpreter's share for a loop, and the step's own arrays, which
        the function alone takes as well; with tangents one more.
    """
    record = first.record
    known_time = None if plain is None else plain.timed
    if ledger.limit is None or Meter is None or stepper.region is None or record is None:
        return sizes, known_time, 0
    sizes = _with_rules(sizes, *measure_rules(record, stepper.region))
    lone, has_room = is_lone(values, record), sizes.fixed - sizes.interpreter + RESERVE_PER_STEP
    beside = taken_beside(record) if lone else 0
    most = _most_that_waits(sizes, beside)
    taken = _most_taken(first, sizes)
    written = written_in_place(record)
    if most_written := max(written.values(), default=0):
        run = min(taken, most_written + (sizes.nodes or 0) + 2 * RESERVE_PER_STEP)
        sizes = replace(sizes, run=max(sizes.run, run))
    known = lone and is_known(record)
    waits = known and sizes.sweep > most
    # NumPy converts numbers block by block, in memory that no array has. What it returns the function makes, too.
    block, made = min(BLOCK, 2 * _largest(record)), _bytes_made(values, first, written)
    takes = not is_plain(record) and taken - made + block + sizes.state + sizes.gradients > has_room
    # A step with a loop in it took 32 KiB to 41 KiB of the interpreter's own.
    # With tangents what a step began with is there to its end; the function alone lets go of it earlier.
    beside_it = (3 if current().derived else 2) * sizes.state + beside + sizes.interpreter
    # Snapshots gain by what is free in the sweep, and so does a later step that saves more than this one: of 300 loops
    # with such steps four were refused at 1.07 of the least, where 0.5 to 0.55 of all steps had one and it was not
    # known. With one for three of four steps the look costs more than it saves, and of small states the interpreter's
    # share is more than there is to gain.
    everything = sizes.fixed + sizes.restart + (gaining - 1) * sizes.taped_beside
    count = (room - sizes.fixed) // sizes.restart
    free = known and 0 < 4 * count < 3 * gaining and everything > room and sizes.state >= BLOCK and is_own(stepper)
    free = free and (plain is not None or ledger.live + beside_it <= ledger.limit)
    # Where it cannot be known what the function takes, that run tells nothing, and may take more than the function.
    looks, takes, no_wait, not_free = agree((takes and lone, takes, not waits, not free))
    waits, free = not no_wait, not not_free
    if not (waits or looks or free):
        run = taken - made + block if takes else taken - sizes.state
        unseen = 0 if hides_nothing(record) else run - sizes.seen
        return replace(sizes, unseen=max(0, unseen), run=max(sizes.run, run if takes else 0)), known_time, 0
    freed = 0
    if plain is None:
        plain, sizes, freed = _run_beside(stepper, values, first, sizes, ledger, mark, beside_it)
        taken = _most_taken(first, sizes)
    function = plain.meter.peak if plain.meter is not None and plain.meter.exact and lone else 0
    function -= beside
    alone = max(0, min(function - block, sizes.sweep - most)) if waits else 0
    run = taken - max(function, made) + block
    tried, unseen = max(0, sizes.tried - max(0, function - block)), max(0, run - sizes.seen)
    sizes = replace(sizes, alone=alone, unseen=0 if hides_nothing(record) else unseen, tried=tried)
    if function > block and first.unlisted is not None:
        sizes = replace(sizes, covered=function - block - first.unlisted)
    if free and function > block:
        asked = max([nbytes for nbytes, _ in bytes_asked(record)], default=0)
        sizes = sizes.with_alone(sizes.data + function - block, max(0, run), asked, sizes.covered)
    if not (waits or takes):
        return sizes, plain.timed, freed  # there was room for it, and a plan needs no more than before
    # It ran beside what the taped one saved, and beside two states, and may have taken more than the function.
    least = sizes.saved + sizes.shared + sizes.state + beside if beside else 0
    return replace(sizes, run=max(sizes.run, least, run if takes or alone else 0)), plain.timed, freed


def _with_rules(sizes: Sizes, more: int, most: int) -> Sizes:
    """Return sizes with what rules take that were measured: *more* in the sweep, and the most that one of them did."""
    # Beside what the step saved, the state after it, and the loop's copy of that before it, as the function has one.
    tried = most + sizes.saved + sizes.shared + sizes.state + sizes.interpreter if most else 0
    return replace(sizes, sweep=sizes.sweep + more, tried=tried)


def _run_beside(
    stepper: Stepper, values: list[Any], first: First, sizes: Sizes, ledger: Ledger, mark: Mark, beside: int
) -> tuple[Plain, Sizes, int]:
    """
    Run the first step on plain values beside the taped one, when others have given up what there is no room for.

    Returns:
        (the step, what the taped one takes after that, the bytes that others gave up).
    """
    assert stepper.region is not None
    assert ledger.limit is not None
    outer = stepper.region.outer.pager
    freed = ledger.relieve(ledger.live + beside - ledger.limit, ledger.lenders_before(mark))
    if ledger.live + beside > ledger.limit:
        sizes = without_spare(values, first, sizes, ledger, mark)
    before, meter = ledger.live, None if Meter is None else Meter()
    if outer is not None:
        outer.reserve(beside)
    freed += before - ledger.live
    assert first.record is not None
    verifier = verifier_of(stepper, first.after, first.outputs) if is_alike(stepper, first.record) else None
    timed = time_plain(stepper, [owned(leaf) for leaf in values], ledger, verifier, meter)
    return Plain(timed, meter), sizes, freed


def _most_taken(first: First, sizes: Sizes) -> int:
    """Return the bytes that a step took at most, less those that it held and that were given up since."""
    # What was there before the step, and is in the ledger since then, no meter saw.
    return min(first.taken, sizes.seen + first.beyond + sizes.state + sizes.shared)


def is_own(stepper: Stepper) -> bool:
    """Return whether a loop is a part of the outermost gradient, and of no step or other function that is run again."""
    region = stepper.region
    return region is not None and region.outer.outer is None and region.outer.level == 1


def without_spare(values: list[Any], first: First, sizes: Sizes, ledger: Ledger, mark: Mark) -> Sizes:
    """
    Return what a step takes when the loops in it have given up what they can do without, which they do.

    Args:
        values: Leaves of the initial state.
        first: The taped first step.
        sizes: What it takes as it is.
        ledger: The account.
        mark: Where it stood before the step.
    """
    record = first.record
    assert record is not None
    saved, sweep = sum(ledger.kept_since(mark)), record.forecast()
    ledger.relieve(ledger.lent, ledger.lenders_since(mark))
    left, record.within = ledger.kept_since(mark)
    saved, sweep = saved - left - record.within, sweep - record.forecast()
    record.nbytes -= saved
    run, seen, (freed, on_disk) = sizes.run - saved, sizes.seen - saved, swappable_bytes(record)
    sizes = replace(sizes, saved=sizes.saved - saved, sweep=sizes.sweep - sweep, run=run, seen=seen)
    sizes = replace(sizes, nodes=sizes.saved - freed, swapped=on_disk, lent=0, lent_swept=0)
    return replace(sizes, passed_on=min(sizes.passed_on, _bytes_passed_on(values, first, ledger)))


def _most_that_waits(sizes: Sizes, beside: int) -> int:
    """
    Return what the sweep of most steps takes: what one saves, three cotangents, and sums for static values.

    As much is left to the sweep of any step, and to a plain one that is measured and takes so many bytes *beside*.
    """
    waiting = max(3 * sizes.state + BLOCK, 2 * sizes.state + beside)
    return sizes.saved + sizes.shared + waiting + sizes.gradients


def _largest(record: TapedStep) -> int:
    """Return the bytes of the largest array that a step makes."""
    kinds = [node.type for node in nodes_of(record) if node.signature is not None]
    each = [one for kind in kinds for one in (kind if isinstance(kind, list) else [kind])]
    return max([form_here(one).nbytes for one in each], default=0)
