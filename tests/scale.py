"""How much tests do: a fixed sample in the gate, all of it in `make campaign`, which shows how far it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

FULL = bool(os.environ.get("EBBTIDE_CAMPAIGN"))
# What random cases are made from; each campaign prints it, and does the same again with it.
SEED = int(os.environ.get("EBBTIDE_CAMPAIGN_SEED", "20261121"))

# Files that take 51 minutes of the 61 that all tests take on one core: of their cases `make test` runs each so
# many-th, in the order of the file; `pytest` and campaigns run all.
SAMPLED = bool(os.environ.get("EBBTIDE_SAMPLE")) and not FULL
EVERY = {
    "tests/loop/test_after.py": 8,
    "tests/loop/test_changing.py": 8,
    "tests/loop/test_code.py": 8,
    "tests/loop/test_complex.py": 8,
    "tests/loop/test_constants.py": 8,
    "tests/loop/test_controls.py": 8,
    "tests/loop/test_disk_budget.py": 16,
    "tests/loop/test_disk_views.py": 8,
    "tests/loop/test_faults.py": 8,
    "tests/loop/test_fingerprint.py": 4,
    "tests/loop/test_functionals.py": 16,
    "tests/loop/test_growing.py": 8,
    "tests/loop/test_inputs.py": 8,
    "tests/loop/test_journal.py": 8,
    "tests/loop/test_kept.py": 8,
    "tests/loop/test_large_budgets.py": 8,
    "tests/loop/test_least.py": 32,
    "tests/loop/test_lifetimes.py": 4,
    "tests/loop/test_linearize.py": 8,
    "tests/loop/test_loop_budget.py": 32,
    "tests/loop/test_loss.py": 8,
    "tests/loop/test_losses.py": 4,
    "tests/loop/test_masked.py": 4,
    "tests/loop/test_matrix.py": 4,
    "tests/loop/test_measure.py": 4,
    "tests/loop/test_more_memory.py": 16,
    "tests/loop/test_moved.py": 8,
    "tests/loop/test_numbers.py": 8,
    "tests/loop/test_open.py": 16,
    "tests/loop/test_passed_on.py": 8,
    "tests/loop/test_plan.py": 16,
    "tests/loop/test_predicted_peak.py": 8,
    "tests/loop/test_rest.py": 4,
    "tests/loop/test_resume.py": 8,
    "tests/loop/test_resume_storages.py": 4,
    "tests/loop/test_retained.py": 8,
    "tests/loop/test_room.py": 8,
    "tests/loop/test_scratch_faults.py": 4,
    "tests/loop/test_small_states.py": 16,
    "tests/loop/test_spaces.py": 4,
    "tests/loop/test_static_values.py": 8,
    "tests/loop/test_unwritable.py": 4,
    "tests/loop/test_widening.py": 16,
    "tests/machine/test_strides.py": 4,
    "tests/memory/test_nodes.py": 4,
    "tests/optimize/test_functional.py": 4,
    "tests/optimize/test_minimize.py": 4,
    "tests/profiling/test_loops.py": 16,
    "tests/program/test_budgets.py": 4,
    "tests/program/test_loop_budgets.py": 4,
    "tests/program/test_loops.py": 4,
    "tests/program/test_members.py": 4,
    "tests/program/test_powers.py": 4,
    "tests/schedules/test_going_on.py": 4,
    "tests/schedules/test_hierarchical.py": 4,
    "tests/schedules/test_mixed.py": 16,
    "tests/schedules/test_online.py": 4,
    "tests/schedules/test_revolve.py": 4,
    "tests/storage/test_codecs.py": 16,
    "tests/storage/test_disk.py": 4,
    "tests/storage/test_durable.py": 4,
    "tests/storage/test_marks.py": 16,
    "tests/tape/test_checkpoint.py": 4,
    "tests/tape/test_forecast.py": 4,
    "tests/tape/test_takes.py": 16,
    "tests/test_budget.py": 16,
}

T = TypeVar("T")
# A case of a function: the function, and what it is given.
Case = TypeVar("Case", bound=Sequence[Any])


class _Bar(tqdm):
    """A bar without a thread of its own: tests count threads, and fork."""

    monitor_interval = 0


def sample(cases: Sequence[T], every: int) -> Sequence[T]:
    """Return every so many of some cases; in a campaign all of them."""
    return cases if FULL else cases[::every]


def sample_of_each(cases: Sequence[Case], every: int) -> Sequence[Case]:
    """Return the first of the cases of each function, and every so many of the others; in a campaign all of them."""
    if FULL:
        return cases
    seen: set[Any] = set()
    found = []
    for number, case in enumerate(cases):
        function = case[0]
        if number % every == 0 or function not in seen:
            found.append(case)
        seen.add(function)
    return found


def is_in_sample(path: str, place: int) -> bool:
    """Return whether `make test` runs the case at a place of a file of tests."""
    return not SAMPLED or place % EVERY.get(path, 1) == 0


def bar(cases: Iterable[T], what: str) -> Iterable[T]:
    """Return cases as they are; in a campaign, with a line that says how many are done."""
    return _Bar(cases, what, disable=not FULL, mininterval=5.0, file=sys.stderr)
