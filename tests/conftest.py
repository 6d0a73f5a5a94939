"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

# Before NumPy is imported: on busy cores the threads of BLAS wait for each other in loops, and small products take
# many times as long. Bits do not depend on it in one run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the 500,000 objects of the tests themselves from the collector, which took 0.4 s with them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests counted, after a campaign."""
    from tests.scale import FULL, SEED

    if not FULL:
        return
    terminalreporter.section("campaign")
    terminalreporter.write_line(f"seed {SEED}; EBBTIDE_CAMPAIGN_SEED=... takes another one")
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            if report.user_properties:
                counts = ", ".join(f"{count} {what}" for what, count in report.user_properties)
                name = report.nodeid.partition("::")[2]
                terminalreporter.write_line(f"{outcome}  {name} ({report.duration:.0f} s): {counts}")
