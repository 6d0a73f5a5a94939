"""How much randomized tests do: a fixed sample in the gate, all of it in `make campaign`, which shows how far it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

FULL = bool(os.environ.get("EBBTIDE_CAMPAIGN"))
# What random cases are made from; each campaign prints it, and does the same again with it.
SEED = int(os.environ.get("EBBTIDE_CAMPAIGN_SEED", "20261121"))

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


def bar(cases: Iterable[T], what: str) -> Iterable[T]:
    """Return cases as they are; in a campaign, with a line that says how many are done."""
    return _Bar(cases, what, disable=not FULL, mininterval=5.0, file=sys.stderr)
