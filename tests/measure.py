"""How all tests measure memory: from outside, with tracemalloc."""

from __future__ import annotations

import gc
import itertools
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ebbtide import BudgetError

_CALLS = itertools.count()


def _renew_names() -> None:
    """
    Have the interpreter make its table of interned strings anew, 1.9 MB at once, now and not in a measured call.

    Each new name, as `pathlib` makes one of each part of a path, uses up a place of it; names that die give none back.
    """
    before = tracemalloc.get_traced_memory()[0]
    for turn in range(4000):
        for k in range(100):
            sys.intern(f"a name that dies, {turn} {k}")
        if tracemalloc.get_traced_memory()[0] - before > 100_000:
            break


@contextmanager
def traced() -> Iterator[None]:
    """Have `tracemalloc` run in the block, in which the interpreter renews no table."""
    gc.collect()  # the interpreter keeps some thousand freed tuples for the next to come, unseen by tracemalloc
    tracemalloc.start()
    try:
        if next(_CALLS) % 50 == 0:
            _renew_names()
        yield
    finally:
        tracemalloc.stop()


def peak_of(call: Callable[[], Any]) -> int:
    """Return the peak of memory during a call less what was allocated at its start, as `tracemalloc` sees it."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    call()
    return tracemalloc.get_traced_memory()[1] - before


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the same, measured alone."""
    with traced():
        return peak_of(call)


def find_least(bounded: Callable[[int], Any]) -> int:
    """Return the first of the budgets named by refusals at which a call runs; each names more than it was given."""
    memory = 1
    while True:
        try:
            bounded(memory)
        except BudgetError as error:
            named = int(error.least)
        else:
            return memory
        assert named > memory, f"a budget of {memory} bytes is refused, and said to be enough"
        memory = named


def check_leaves_nothing(calls: Iterable[Callable[[Any], Any]], x: np.ndarray) -> None:
    """Check that calls let go of the copy of an array that they get, and leave nothing to the collector."""
    calls = list(calls)
    for call in calls:
        call(x)
    gc.collect()
    gc.disable()
    try:
        for call in calls:
            given = x.copy()
            known = weakref.ref(given)
            found = call(given)
            del given
            assert known() is None
            del found
        assert gc.collect() == 0
    finally:
        gc.enable()
