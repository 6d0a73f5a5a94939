"""
The time loop: what the derivative of a loop costs over the loop itself, in time and in memory.

The step is an explicit one of viscous Burgers in one dimension, in place, as in the demo. The limit of the time is what
the schedule has to do: its forward steps (those that are taped among them) in plain NumPy, and a reverse sweep by hand
for each step. Bar: with the same number of snapshots the peak of 1,000 steps and of 100,000 differs by at most 16 KiB.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import Table, alternate, generator, median_of, peak_bytes, ratio, run
from ebbtide import grad, timeloop
from ebbtide.schedules import Revolve, StoreAll

NODES, STEPS, SNAPSHOTS, RUNS = 100_000, 100, 10, 5
TINY, LENGTHS = 4, (1_000, 100_000)
SPACING, TIME_STEP, VISCOSITY = 1.0, 0.1, 0.3
BAR = 16 * 2**10


def step(u: Any, i: Any) -> Any:
    """Return u after an explicit step."""
    left, middle, right = u[:-2], u[1:-1], u[2:]
    flux = middle * (right - left) * (0.5 / SPACING)
    curve = (right - 2.0 * middle + left) * (VISCOSITY / SPACING**2)
    u[1:-1] = middle + TIME_STEP * (curve - flux)
    return u


def step_back(u: Any, g: Any) -> Any:
    """Return the cotangent of the state before a step, given that after it; *u* is the state before it."""
    left, middle, right = u[:-2], u[1:-1], u[2:]
    a, b = TIME_STEP * 0.5 / SPACING, TIME_STEP * VISCOSITY / SPACING**2
    inner = g[1:-1]
    found = g.copy()
    found[1:-1] = inner * (1 - 2 * b - a * (right - left))
    found[2:] += inner * (b - a * middle)
    found[:-2] += inner * (b + a * middle)
    return found


def plain(u: Any, steps: int) -> Any:
    """Run the loop in plain NumPy."""
    u = u.copy()
    for i in range(steps):
        u = step(u, i)
    return u


def by_hand(u: Any, steps: int) -> Any:
    """Return the gradient of half the sum of squares, with every state kept."""
    kept = []
    u = u.copy()
    for i in range(steps):
        kept.append(u.copy())
        u = step(u, i)
    g = u
    while kept:
        g = step_back(kept.pop(), g)
    return g


def gradient(schedule: Any, steps: int) -> Callable[[Any], Any]:
    """Return the gradient of half the sum of squares of the final state."""

    def misfit(u: Any) -> Any:
        after = timeloop(step, u, steps, schedule=schedule, progress=False)
        return 0.5 * np.sum(after * after)

    return grad(misfit)


def decay(u: Any, i: Any) -> Any:
    """Return the state after a step that does next to nothing: five operations on four numbers."""
    return u + 0.001 * (u * u - 1.5 * u)


def times_of(nodes: int, steps: int, snapshots: int, runs: int) -> None:
    """Print the table of time for a step on many nodes."""
    u = 0.5 * np.sin(np.linspace(0, 40 * np.pi, nodes))
    schedules = {"store all": StoreAll(), f"revolve, {snapshots} snapshots": Revolve(snapshots)}
    calls: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain(u, steps),
        "loop": lambda: timeloop(step, u, steps, progress=False),
        "by hand": lambda: by_hand(u, steps),
    }
    wanted = by_hand(u, steps)
    for name, schedule in schedules.items():
        taken = gradient(schedule, steps)
        np.testing.assert_allclose(taken(u), wanted, rtol=1e-9, atol=1e-12)
        calls[name] = lambda taken=taken: taken(u)
    times = alternate(calls, runs)
    table = Table(
        f"{steps} steps on {nodes:,} nodes: ms a step, and ratio to the plain loop",
        ("ratio", "forward steps"), "limit, ratio",
    )  # fmt: skip
    per_step = 1e3 / steps
    table.add("plain NumPy loop", median_of(times, "plain", per_step), ["1", f"{steps}"], "1", "", None)
    cells = [str(ratio(times, "loop", "plain")), f"{steps}"]
    table.add("timeloop, value only", median_of(times, "loop", per_step), cells, "1", "", None)
    reverse = statistics.median(times["by hand"]) / statistics.median(times["plain"]) - 1
    cells = [str(ratio(times, "by hand", "plain")), f"{steps}"]
    hand = median_of(times, "by hand", per_step)
    table.add("gradient by hand, all kept", hand, cells, f"{1 + reverse:.2f}", "", None)
    for name, schedule in schedules.items():
        forward = schedule.forward_steps(steps)
        cells = [str(ratio(times, name, "plain")), f"{forward}"]
        limit = f"{forward / steps + reverse:.2f}"
        table.add(f"gradient, {name}", median_of(times, name, per_step), cells, limit, "", None)
    table.note("Limit: the forward steps that the schedule needs in plain NumPy, and the reverse sweep by hand.")
    table.show()


def overhead_of(steps: int, runs: int) -> None:
    """Print the table of what a step costs where its own work is next to nothing."""
    u = generator().uniform(0.5, 1, TINY)

    def loop() -> Any:
        v = u.copy()
        for i in range(steps):
            v = decay(v, i)
        return v

    def on_loop(schedule: Any) -> Any:
        return grad(lambda u: np.sum(timeloop(decay, u, steps, schedule=schedule, progress=False)))

    def on_tape(u: Any) -> Any:
        for i in range(steps):
            u = decay(u, i)
        return np.sum(u)

    everything, few, taped = on_loop(StoreAll()), on_loop(Revolve(SNAPSHOTS)), grad(on_tape)
    calls = {
        "plain": loop,
        "loop": lambda: timeloop(decay, u, steps, progress=False),
        "taped": lambda: taped(u),
        "all": lambda: everything(u),
        "revolve": lambda: few(u),
    }
    times = alternate(calls, runs)
    title = f"{steps} steps of five operations on {TINY} numbers: microseconds a step"
    table = Table(title, ("forward steps",), "plain loop")
    names = {
        "loop": "timeloop, value only", "taped": "gradient of a `for` loop", "all": "gradient, store all",
        "revolve": f"gradient, revolve, {SNAPSHOTS} snapshots",
    }  # fmt: skip
    forward = {"revolve": Revolve(SNAPSHOTS).forward_steps(steps)}
    for key, name in names.items():
        count = f"{forward.get(key, steps)}"
        table.add(name, median_of(times, key, 1e6 / steps), [count], median_of(times, "plain", 1e6 / steps), "", None)
    table.show()


def peaks_of(lengths: tuple[int, ...]) -> None:
    """Print the table of peaks for loops of different length with the same snapshots."""
    u = generator().uniform(0.5, 1, TINY)
    table = Table(f"Peak of a loop with {SNAPSHOTS} snapshots of {u.nbytes} bytes, in KiB", ("forward steps",), "limit")
    peaks = []
    for steps in lengths:
        call = grad(
            lambda u, steps=steps: np.sum(timeloop(decay, u, steps, schedule=Revolve(SNAPSHOTS), progress=False))
        )
        call(u) if steps == lengths[0] else None
        peaks.append(peak_bytes(lambda call=call: call(u)))
        met = None if len(peaks) == 1 else abs(peaks[-1] - peaks[0]) <= BAR
        bar = "" if met is None else f"{peaks[0] / 2**10:.1f} +- 16"
        cells = [f"{Revolve(SNAPSHOTS).forward_steps(steps):,}"]
        limit = f"{SNAPSHOTS * u.nbytes / 2**10:.1f}"
        table.add(f"{steps:,} steps", f"{peaks[-1] / 2**10:.1f}", cells, limit, bar, met)
    table.note("Limit: the snapshots alone; the rest is Python objects of one taped step.")
    table.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    times_of(*((200, 6, 2, 2) if quick else (NODES, STEPS, SNAPSHOTS, RUNS)))
    overhead_of(20 if quick else 1000, 2 if quick else RUNS)
    peaks_of((50, 100) if quick else LENGTHS)


if __name__ == "__main__":
    run(main)
