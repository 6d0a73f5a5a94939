"""Large states under budgets, each in a process of its own: neither its arrays nor the process itself take more."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scale import FULL

from ebbtide import Budget, BudgetError, grad, timeloop

STEPS = 24
# States of 32 MiB in a campaign, of 4 MiB in the gate.
NUMBERS = (4 if not FULL else 32) * 2**17
# What a process takes beside arrays: the allocator's pages, the code that runs for the first time.
SLACK = 2 * 2**20


def light(u: Any, i: Any) -> Any:
    """A step that does little and saves one state."""
    return u + 1e-3 * np.sin(u)


def status(name: str) -> int:
    """Return the resident bytes of this process, or with VmHWM their peak since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def resident_peak(call: Any) -> int:
    """Return by how much the resident memory grows in a call, at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def traced_peak(call: Any) -> int:
    """Return by how much the arrays grow in a call, at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def measure(states: int, disk: int) -> None:
    """Print what is beyond the function alone and the budget, in bytes: arrays, then the process; the least if none."""
    u = np.linspace(0.1, 0.9, NUMBERS)

    def f(u: Any) -> Any:
        return timeloop(light, u, STEPS, progress=False)[0]

    gradient = grad(f, budget=Budget(memory=states * u.nbytes, disk=disk * u.nbytes))
    try:
        gradient(u)
    except BudgetError as error:
        print("refused", error.least / u.nbytes)
        return
    f(u)
    alone, process = traced_peak(lambda: f(u)), resident_peak(lambda: f(u))
    print("held", resident_peak(lambda: gradient(u)) - process, traced_peak(lambda: gradient(u)) - alone)


@pytest.mark.parametrize(("states", "disk"), [(2, 0), (4, 0), (8, 0), (16, 0), (32, 0), (64, 0), (8, 32)])
def test_no_budget_is_passed(states: int, disk: int) -> None:
    """Of 2 to 64 states: refused with the least, which is 4 states and what a step saves, or never passed."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("resident memory and its peak are read from /proc")
    command = f"from tests.loop.test_large_budgets import measure; measure({states}, {disk})"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=500)
    kind, *numbers = found.stdout.split()
    if kind == "refused":
        assert states < float(numbers[0]) <= 4 + 1 + 0.1
        return
    process, arrays = map(float, numbers)
    assert arrays >= 2 * 8 * NUMBERS, "the measure sees nothing"
    assert arrays <= states * 8 * NUMBERS
    assert process <= states * 8 * NUMBERS + SLACK
