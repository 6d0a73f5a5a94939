"""
How the benches measure: bytes by tracemalloc, times by alternated runs, peers apart by their resident memory.

A function that is to run apart is named as text, "bench.dots:torch_peak": a fresh process imports and calls it, so
that what one peer allocates and which threads it starts is nothing to the others.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MISSING = "not installed"
UNKNOWN = "not known"
ROOT = Path(__file__).parents[1]
STATUS = Path("/proc/self/status")


# Peers.


def installed(name: str) -> bool:
    """Return whether a peer can be imported."""
    return importlib.util.find_spec(name) is not None


def apart(peer: str, function: str, *, environment: Mapping[str, str] | None = None, **kwargs: Any) -> Any:
    """
    Call a function of a bench in a fresh process and return what it returns; None where the peer is not installed.

    Args:
        peer: The package without which the function cannot run.
        function: "module:name".
        environment: Variables that the process has beside those of this one.
        **kwargs: The function's arguments, as JSON has them.
    """
    if not installed(peer):
        return None
    command = [sys.executable, "-m", "bench.measure", function, json.dumps(kwargs)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{function} failed: {last}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


# Bytes.


def peak_bytes(call: Callable[[], Any]) -> int:
    """Return the peak of memory during a call less what was allocated at its start."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def resident(field: str = "VmRSS") -> int | None:
    """Return the resident bytes of this process, or with "VmHWM" their peak; None where the system does not say."""
    if not STATUS.exists():
        return None
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def resident_peak(warm_up: Callable[[], Any], call: Callable[[], Any]) -> int | None:
    """
    Return how far the resident bytes of this process grow in a call, after one that loads libraries.

    The peak of a process falls only where the system lets it be reset; else the first call has to be a small one. This
    is for a process of its own.
    """
    warm_up()
    gc.collect()
    with suppress(OSError):
        STATUS.with_name("clear_refs").write_text("5", encoding="ascii")
    before = resident()
    call()
    peak = resident("VmHWM")
    return None if before is None or peak is None else peak - before


def jax_peak(function: Callable[..., Any], *args: Any) -> int:
    """Return what XLA plans to allocate for a jitted function: temporaries and outputs."""
    import jax

    plan = jax.jit(function).lower(*args).compile().memory_analysis()
    return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


def in_units(count: int | None, unit: int, peer: str | None = None) -> str:
    """Return bytes in units; of a peer that gave none, why."""
    if count is None:
        return MISSING if peer is not None and not installed(peer) else UNKNOWN
    return f"{count / unit:.2f}"


# Times.


@dataclass(frozen=True)
class Ratio:
    """Median of the ratios of paired runs, and their range: the noise."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def alternate(calls: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, list[float]]:
    """
    Return seconds of each run of each call.

    The calls take turns, each run begins with another one, and the collector runs between them and not within: what
    else the machine does then meets all alike, and the ratios of one turn are worth more than the times.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for call in calls.values():
        call()
    for run in range(runs):
        for k in range(len(names)):
            name = names[(run + k) % len(names)]
            times[name].append(seconds_of(calls[name]))
    return times


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes, after a collection of garbage and without one in it."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    finally:
        if was_on:
            gc.enable()


def ratio(times: Mapping[str, list[float]], top: str, bottom: str) -> Ratio:
    """Return the ratio of two calls over their paired runs."""
    ratios = [a / b for a, b in zip(times[top], times[bottom], strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def median_of(times: Mapping[str, list[float]], name: str, scale: float, digits: int = 2) -> str:
    """Return the median time of a call, multiplied by *scale*; why there is none if it was not run."""
    return f"{statistics.median(times[name]) * scale:.{digits}f}" if name in times else MISSING


def gains(times: Mapping[str, list[float]], mine: str, bars: Mapping[str, float]) -> tuple[list[str], list[bool]]:
    """
    Return how many times ours the milliseconds of peers are.

    Args:
        times: Seconds of paired runs; of the peers that are installed.
        mine: The name of ours there.
        bars: For each peer, how many times it has to be.

    Returns:
        A cell of each peer, and for each that was run whether its bar is met.
    """
    cells, met = [], []
    for peer, bar in bars.items():
        if peer in times:
            gain = ratio(times, peer, mine)
            cells.append(f"{median_of(times, peer, 1e3)}: {gain} times")
            met.append(gain.median >= bar)
        else:
            cells.append(MISSING)
    return cells, met


# Tables.


class Table:
    """
    One claim as a Markdown table: case, ours, peers, the hand-written limit, the bar, and whether it is met.

    Args:
        title: What is measured, in which unit.
        peers: Headings of the columns of peers.
        limit: Heading of the column of the hand-written limit.
    """

    def __init__(self, title: str, peers: tuple[str, ...], limit: str = "hand-written") -> None:
        self.title = title
        self.head = ("case", "ours", *peers, limit, "bar", "met?")
        self.rows: list[tuple[str, ...]] = []
        self.notes: list[str] = []

    def add(self, case: str, ours: str, peers: list[str], limit: str, bar: str, met: bool | None) -> None:
        """Add a row; *met* is None where there is no bar."""
        verdict = "" if met is None else "yes" if met else "NO"
        self.rows.append((case, ours, *peers, limit, bar, verdict))

    def note(self, text: str) -> None:
        """Add a line under the table."""
        self.notes.append(text)

    def show(self) -> None:
        """Print the table, with columns of equal width."""
        widths = [max(len(row[k]) for row in (self.head, *self.rows)) for k in range(len(self.head))]
        lines = [f"### {self.title}", ""]
        for row in (self.head, tuple("-" * w for w in widths), *self.rows):
            cells = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
            lines += [f"| {' | '.join(cells)} |"]
        lines += [""] + [f"{text}\n" for text in self.notes]
        print("\n".join(lines), flush=True)


def machine() -> str:
    """Return a line about the machine and the versions that were measured."""
    names = ("numpy", "scipy", "autograd", "torch", "jax")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names if installed(name)]
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{_processor()}, {os.cpu_count()} cores{load}; Python {platform.python_version()}, {', '.join(versions)}"


def _processor() -> str:
    """Return what the system calls its processor."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def run(main: Callable[..., None]) -> None:
    """Run a bench from its own command line: `--quick` takes tiny sizes, which show that it works and no more."""
    parser = argparse.ArgumentParser(description=sys.modules[main.__module__].__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, and measures nothing")
    print(machine() + "\n")
    main(quick=parser.parse_args().quick)


def _main() -> None:
    module, name = sys.argv[1].split(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))


def generator(seed: int = 0) -> np.random.Generator:
    """Return the random numbers of a bench, the same in each run."""
    return np.random.default_rng(seed)


if __name__ == "__main__":
    _main()
