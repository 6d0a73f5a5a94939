"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.lines import make_lines

# Before NumPy is imported: on busy cores the threads of BLAS wait for each other in loops, and small products take
# many times as long. Bits do not depend on it in one run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No test is a matter of wall time: on busy cores a first example took 16 s.
settings.register_profile("ebbtide", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ebbtide")


def set_aside() -> None:
    """Let the collector never look again at what is alive now."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the 500,000 objects of the tests themselves from the collector, which took 0.4 s with them each time."""
    gc.disable()
    try:
        done = yield
        make_lines("ebbtide", "tests")
        return done
    finally:
        set_aside()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the sample has not."""
    from tests.scale import is_in_sample

    places = Counter[str]()
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        path = item.nodeid.partition("::")[0]
        (chosen if is_in_sample(path, places[path]) else others).append(item)
        places[path] += 1
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Keep from it what tests leave in pytest, too: in the last of them 200 collections took 24 s, and 6 without it."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        set_aside()
    return done


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests to a worker when it waits for them, and never in the midst of a test that counts bytes."""
    from xdist.scheduler import LoadScheduling

    class BetweenTests(LoadScheduling):
        # The list of what to run next comes in another thread: 20 KB of some 3,600 tests. A worker does not start the
        # last that it has before it knows what comes after it.
        def check_schedule(self, node: Any, duration: float = 0) -> None:
            if len(self.node2pending[node]) < 2:
                super().check_schedule(node)

    return BetweenTests(config, log) if config.getvalue("dist") == "load" else None


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
