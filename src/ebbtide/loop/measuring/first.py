"""The first step of a time loop, run on a tape to be measured."""

from __future__ import annotations

import time
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.context import entered
from ebbtide.arrays.reach import reaches_complex
from ebbtide.budget import Budget
from ebbtide.ledger import Ledger
from ebbtide.loop.stepping.steps import Stepper, TapedStep
from ebbtide.loop.stepping.warm import Timed
from ebbtide.machine import Meter
from ebbtide.profiling.peak import measured_peak
from ebbtide.storage.system import count_processors
from ebbtide.tape.pager import Pager
from ebbtide.tape.rounding import is_other_off_tape

# With less than this part of a processor to themselves threads take the time of the steps that they run beside: two
# threads of BLAS on two processors waited for the reads of what they saved, 1.6 ms each step of 24.
_FREE = 0.5


@final
@dataclass(slots=True, eq=False)
class First:
    """
    The taped first step with its results, handed over once.

    Args:
        record: The step; None when it is handed over, or given up.
        results: Leaves of the state after it, and of its output; likewise.
        timed: What it took.
        is_busy: Whether it left no processor to the threads of a storage.
        taken: The most bytes of arrays that were allocated for it at a time, and its record; 0 where there is no bound,
            or no telling.
        beyond: The most of them in no ledger at a time, where that is known of a step with loops in it; else as many.
        unlisted: The most of them less those in the ledger at the time; None where that is not known.
        dead: Bytes that it saved, when it held most, and holds no more, as nothing depends on what they were saved for.
        traced: The most bytes that were allocated for it at a time, its own temporaries and what it saves; None where
            `tracemalloc` does not run.
        refused: The bytes without which a loop in it was refused; 0 if none was.
        kept: Bytes in the ledger that it left, with what loops in it could do without; known when it is measured.
    """

    record: TapedStep | None
    results: tuple[list[Any], list[Any]] | None
    timed: Timed
    is_busy: bool
    taken: int
    beyond: int
    unlisted: int | None
    dead: int
    traced: int | None
    refused: int
    kept: int = 0

    @property
    def after(self) -> list[Any]:
        """The leaves of the state after it."""
        assert self.results is not None
        return self.results[0]

    @property
    def outputs(self) -> list[Any]:
        """The leaves of its output."""
        assert self.results is not None
        return self.results[1]

    def take(self) -> tuple[TapedStep, list[Any], list[Any]]:
        """Return the step, the state after it and its output, and forget them."""
        record, results = self.record, self.results
        assert record is not None
        assert results is not None
        self.record = self.results = None
        return record, *results

    def close(self) -> None:
        """Give up the step and its results, if they are there."""
        if self.record is not None:
            self.record.tape.pager.close()
        self.record = self.results = None


@final
class _Missed:
    """
    An array that a step gave up as it does not fit, which a budget that is enough would have held.

    Args:
        nbytes: Its bytes.
        meters: Have it count when it is gone.
    """

    __slots__ = ("_cells", "_is_gone", "_meters", "_nbytes")

    def __init__(self, nbytes: int, meters: list[Meter]) -> None:
        self._nbytes, self._meters, self._cells, self._is_gone = nbytes, meters, 0, False

    def hold(self, cell: Any) -> None:
        """Have it count as long as a cell stands for it."""
        self._cells += 1
        weakref.finalize(cell, self._let_go).atexit = False

    def _let_go(self) -> None:
        self._cells -= 1
        if self._is_gone and not self._cells:
            self._count(-self._nbytes)

    def end(self) -> None:
        """Take note that the array is gone."""
        self._is_gone = True
        if self._cells:
            self._count(self._nbytes)

    def _count(self, nbytes: int) -> None:
        for meter in self._meters:
            meter.count(-nbytes)


@final
class _Meters:
    """
    Measures in a block what a step takes of memory, and what of that is in no ledger.

    Arrays that it gives up where it does not fit count as if it held them, so that the least is known in any case.
    """

    __slots__ = ("_all", "_missed", "_unlisted")

    def __init__(self) -> None:
        assert Meter is not None
        self._all, self._unlisted = Meter(), Meter()
        self._missed: dict[int, _Missed] = {}

    def __enter__(self) -> None:
        self._all.__enter__()
        self._unlisted.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._unlisted.__exit__(*error)
        self._all.__exit__(*error)

    def count(self, nbytes: int) -> None:
        """Say that so many bytes more are in the ledger."""
        self._unlisted.count(nbytes)

    def miss(self, cell: Any, owners: list[Any]) -> None:
        """Have arrays that are given up count as long as a cell stands for them."""
        for owner in owners:
            missed = self._missed.get(id(owner))
            if missed is None:
                missed = self._missed[id(owner)] = _Missed(owner.nbytes, [self._all, self._unlisted])
                weakref.finalize(owner, self._end, id(owner)).atexit = False
            missed.hold(cell)

    def _end(self, key: int) -> None:
        self._missed.pop(key).end()

    @property
    def peak(self) -> int:
        """The most bytes at a time."""
        return self._all.beyond

    @property
    def beyond(self) -> int:
        """The most of them in no ledger."""
        return self._unlisted.beyond


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
    meter = None if ledger.limit is None or Meter is None else _Meters()
    given_up = ledger.given_up
    lendings = ledger.lendings
    tracing = measured_peak() if tracemalloc.is_tracing() else nullcontext()
    with tracing as peak, _gathering(ledger, meter, stepper.region.root) as refusals:
        begun = time.process_time()
        with Timed() as timed, meter or nullcontext(), entered(ledger=ledger), ledger.watching() as held:
            record, after, output = stepper.taped(0, list(values), pager)
        busy = time.process_time() - begun
    is_other = is_other_off_tape(record.state_nodes + record.output_nodes)
    stepper.on_tape = stepper.on_tape or is_other or _may_be_other(stepper.step, values, after)
    is_busy = busy > (count_processors() - _FREE) * timed.seconds
    taken = 0 if meter is None else meter.peak + pager.overhead.total
    # Loops hold what they can do without, which is in the ledger. Of a step that went on with sizes alone not all is.
    unlisted = None
    if meter is not None and pager.passed is None and not refusals:
        unlisted = meter.beyond + pager.overhead.total
    beyond = taken if unlisted is None or ledger.lendings == lendings else unlisted
    traced = None if peak is None else peak.nbytes
    dead = max(0, held.nbytes - ledger.live - ledger.given_up + given_up)
    refused = max([plan.least for _, plan in refusals], default=0)  # of this process, as what it holds
    return First(record, (after, output), timed, is_busy, taken, beyond, unlisted, dead, traced, refused)


def _may_be_other(step: Any, values: list[Any], after: list[Any]) -> bool:
    """
    Return whether later steps may compute with complex numbers of Python's what they compute in another way on a tape.

    Args:
        step: The user's step.
        values: The leaves of the initial state.
        after: The same after the first step.
    """
    # What comes of such a number is off the tape one of Python's, too, as if it were a constant.
    if complex in map(type, after):
        return True
    # The first step has not shown what they do with a float of NumPy's that it is the first to make.
    made = [type(new) is np.float64 and type(old) is not np.float64 for old, new in zip(values, after, strict=True)]
    return any(made) and reaches_complex(step)


def run_instead(stepper: Stepper, values: list[Any], first: First, ledger: Ledger, allowed: Budget | None) -> First:
    """Give up a first step, and return the same from another initial state; see `run_first`."""
    first.close()
    mark = ledger.mark()
    first = run_first(stepper, values, ledger, allowed)
    assert first.record is not None
    saved, first.record.within = ledger.kept_since(mark)
    first.record.nbytes = saved + first.record.within + first.record.tape.pager.overhead.uncounted
    return first


@contextmanager
def _gathering(ledger: Ledger, meter: _Meters | None, root: Any) -> Iterator[list[Any]]:
    """
    Tell a meter what is counted in the block, and have loops that are refused there run on; see `loop/refused`.

    Those of derivatives in the block, on other tapes than *root*, do not: they are swept in it.
    """
    before, meters, found = ledger.refusals, ledger.meters, list[Any]()
    ledger.refusals, ledger.meters = (root, found), meters if meter is None else [*meters, meter]
    try:
        yield found
    finally:
        ledger.refusals, ledger.meters = before, meters
