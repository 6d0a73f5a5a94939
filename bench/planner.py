"""
The planner: what it predicts and what happens, and budgets that are never passed.

Budgets of 2 to 64 states of 32 MiB: each runs in a process of its own, whose resident memory is watched beside the
allocations that `tracemalloc` sees; both less what the function alone takes. Bar: neither passes the budget; a budget
that is too small is refused, and the least that the refusal names does.

The planner measures costs itself, on the first steps. Bars: forward steps equal, the peak within 5% of the predicted
one and never above it, and the time within 15% for steps of 5 ms and more. Each row is a process of its own, in which
gradients that plan and gradients by the schedule that was planned first take turns: how far the latter, which do the
same each time, differ from one another is the limit of any prediction. Rows of "kept heap" run where the C library
keeps freed memory, which it gives back to the system else, and has to be given anew, page by page, by the next step.

The file system may keep a run waiting, by no fault of the plan: where the host of a virtual machine takes free pages
back, those of a file that was removed come from there again, at 0.5 GB/s in place of 9, at the end of the next forward
sweep. Beside the time there is therefore the time less what a run waited for the disk beyond the one that waited least.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from typing import Any

import numpy as np

from bench.measure import Table, apart, peak_bytes, resident, run, seconds_of
from bench.timeloop import SPACING, TIME_STEP, VISCOSITY
from bench.timeloop import step as burgers
from ebbtide import Budget, BudgetError, grad, profile, timeloop

# States of 32 MiB, and a step as light as a step can be that saves something.
STATE, STEPS, BUDGETS = 32 * 2**20, 24, (2, 4, 8, 16, 32, 64)
# Of the predictions: steps of 5 ms and more on so many nodes, and budgets in states, memory and disk.
FEW_STEPS, RUNS = 40, 10
ROWS = (
    ("burgers", 2_000_000, 24, 0), ("burgers", 2_000_000, 48, 0), ("burgers", 2_000_000, 96, 0),
    ("burgers", 2_000_000, 24, 60), ("burgers", 2_000_000, 24, 1000),
    ("substeps", 100_000, 226, 0), ("substeps", 300_000, 226, 0), ("runge_kutta", 500_000, 95, 0),
    ("product", 360_000, 14, 0), ("product", 360_000, 14, 1000),
)  # fmt: skip
WITHIN_TIME, WITHIN_PEAK, LEAST_SECONDS = 0.15, 0.05, 0.005
# The C library of Linux reads these when a process starts.
KEPT_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(2**33), "MALLOC_MMAP_THRESHOLD_": str(2**32)}


def light(u: Any, i: Any) -> Any:
    """Return u after a step that saves one array, and writes into its state."""
    u *= 1.0 - 1e-3 * u
    return u


def substeps(u: Any, i: Any) -> Any:
    """Return u after ten explicit steps of viscous Burgers: more operations, on smaller arrays."""
    for _ in range(10):
        u = burgers(u, i)
    return u


def runge_kutta(u: Any, i: Any) -> Any:
    """Return u after a Runge-Kutta step of viscous Burgers with periodic ends."""

    def slope(u: Any) -> Any:
        left, right = np.roll(u, 1), np.roll(u, -1)
        return VISCOSITY / SPACING**2 * (right - 2.0 * u + left) - u * (right - left) * (0.5 / SPACING)

    first = slope(u)
    second = slope(u + 0.5 * TIME_STEP * first)
    third = slope(u + 0.5 * TIME_STEP * second)
    fourth = slope(u + TIME_STEP * third)
    return u + TIME_STEP / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)


def product(u: Any, i: Any) -> Any:
    """Return u after a step that is a product with a matrix, itself, and little else; u does not decay to zeros."""
    side = int(np.sqrt(u.size))
    square = u.reshape(side, side)
    return np.tanh(square + square @ square / side).reshape(u.size)


def peaks_apart(states: int, disk: int, nbytes: int, steps: int) -> dict[str, Any]:
    """
    Run a loop under a budget in this process, which is to be a fresh one.

    Args:
        states: The memory of the budget in states; 0 for the least that does.
        disk: Its disk, in states.
        nbytes: Bytes of a state.
        steps: The number of steps.
    """
    u = np.linspace(0.1, 0.9, nbytes // 8)

    def f(u: Any) -> Any:
        return timeloop(light, u, steps, progress=False)[0]

    grad(f, budget=Budget(memory=2**24, disk=2**24))(u[:64])
    memory = states * nbytes or _refused(grad(f, budget=Budget(memory=0, disk=disk * nbytes)), u)
    f(u)
    alone_resident = resident("VmHWM") or 0
    alone = peak_bytes(lambda: f(u))
    gradient = grad(f, budget=Budget(memory=memory, disk=disk * nbytes))
    plans: list[Any] = []
    try:
        start = time.perf_counter()
        gradient(u)
        seconds = time.perf_counter() - start
    except BudgetError as error:
        grown = (resident("VmHWM") or 0) - alone_resident
        return {"refused": error.least, "peak": peak_bytes(lambda: _refused(gradient, u)) - alone, "resident": grown}
    grown = (resident("VmHWM") or 0) - alone_resident
    beyond = peak_bytes(lambda: gradient(u)) - alone
    with profile(on_plan=plans.append) as found:
        gradient(u)
    plan, whole = plans[-1], found.predicted_whole_bytes or 0
    return {
        "refused": 0, "memory": memory, "peak": beyond, "resident": grown, "seconds": seconds,
        "predicted_peak": whole - alone, "part": (beyond + alone) / whole, "predicted_seconds": plan.predicted_time,
        "timed": plan.has_costs, "steps": found.steps_forward,
        "predicted_steps": plan.predicted_steps_forward, "schedule": type(plan.schedule).__name__,
    }  # fmt: skip


def _refused(gradient: Any, u: Any) -> int:
    """Return the least that the refusal of a gradient names; 0 if it is not refused."""
    try:
        gradient(u)
    except BudgetError as error:
        return error.least
    return 0


def budgets_of(nbytes: int, steps: int, budgets: tuple[tuple[int, int], ...]) -> None:
    """Print the table of budgets that are never passed."""
    title = f"{steps} steps, states of {nbytes / 2**20:g} MiB: peaks beyond the function alone, in states"
    heads = ("resident", "predicted", "steps", "predicted", "seconds", "predicted")
    table = Table(title, heads, "budget")
    for states, disk in budgets:
        found = apart(
            "numpy", "bench.planner:peaks_apart", states=states, disk=disk, nbytes=nbytes, steps=steps
        )  # fmt: skip
        if found is None:
            continue
        place = f"{states} states" if states else "the least"
        name = f"{place}, disk of {disk}" if disk else place
        limit = found.get("memory", states * nbytes)
        met = max(found["peak"], found["resident"]) <= limit
        ours, bar = f"{found['peak'] / nbytes:.3f}", f"{limit / nbytes:.3f}"
        cells = [f"{found['resident'] / nbytes:.3f}"]
        if found["refused"]:
            cells += ["", "", "", "", ""]
            name += f": refused, least {found['refused'] / nbytes:.3f}"
        else:
            name += f": {found['schedule']}"
            cells += [f"{found['predicted_peak'] / nbytes:.3f} ({found['part']:.3f})"]
            cells += [f"{found['steps']}", f"{found['predicted_steps']}"]
            cells += [f"{found['seconds']:.2f}", f"{found['predicted_seconds']:.2f}" if found["timed"] else "not timed"]
            met = met and found["steps"] == found["predicted_steps"] and 1 - WITHIN_PEAK <= found["part"] <= 1
        table.add(name, ours, cells, bar, "<= budget", met)
    table.note("Predicted: the whole call less the function alone; in brackets the ratio of whole peaks.")
    table.note("Steps of a loop are timed if there are 32 or more of them and not all that they save fits.")
    table.show()


def prediction_apart(step: str, nodes: int, memory: int, disk: int, steps: int, runs: int) -> dict[str, Any]:
    """
    Return what plans predict and what happens in this process, which is to be a fresh one.

    Args:
        step: The name of a step of this module.
        nodes: Numbers of a state.
        memory: The memory of the budget in states.
        disk: Its disk, in states.
        steps: The number of steps.
        runs: Warm runs, each of a gradient that plans and one that repeats its schedule.
    """
    u = 0.5 * np.sin(np.linspace(0, 40 * np.pi, nodes))

    def misfit(u: Any, schedule: Any = None) -> Any:
        after = timeloop(globals()[step], u, steps, schedule=schedule, progress=False)
        return 0.5 * np.sum(after * after)

    allowed = Budget(memory=memory * u.nbytes, disk=disk * u.nbytes)
    planning = grad(misfit, budget=allowed)
    found: list[Any] = []

    def timed(gradient: Any, reports: list[Any]) -> float:
        """Return the seconds of a gradient; its profile joins the reports."""
        with profile() as report:
            tracemalloc.stop()  # each small allocation takes several times as long with it
            seconds = seconds_of(lambda: gradient(u))
        reports.append(report)
        return seconds

    cold = timed(planning, found)
    schedule = found[0].loops[0].schedule
    again = grad(lambda u: misfit(u, schedule), budget=allowed)
    alone = peak_bytes(lambda: misfit(u))
    with profile() as watched:  # by the clock another run may have another plan
        beyond = peak_bytes(lambda: planning(u)) - alone
    times, repeated = [], []
    for _ in range(runs):
        times.append(timed(planning, found))
        repeated.append(timed(again, []))
    plans = [report.loops[0].plan for report in found]
    return {
        "schedule": type(schedule).__name__, "steps": found[0].steps_forward,
        "predicted_steps": plans[0].predicted_steps_forward, "beyond": beyond,
        "alone": alone, "predicted_peak": watched.predicted_peak_bytes, "whole": watched.predicted_whole_bytes,
        "timed": plans[0].has_costs,
        "cold": cold, "times": times, "repeated": repeated, "predicted": [plan.predicted_time for plan in plans],
        "waited": [report.disk_seconds for report in found[-runs:]],
        "state": u.nbytes, "forward": statistics.median(plan.costs.forward for plan in plans),
    }  # fmt: skip


def predictions_of(rows: tuple[tuple[str, int, int, int], ...], steps: int, runs: int) -> None:
    """Print the tables of what plans predict, and what happens."""
    counts = Table(f"Predicted and measured, {steps} steps: forward steps, peak in states", ("predicted",), "budget")
    heads = ("predicted", "ratio", "less waits", "cold ratio")
    clock = Table(f"Predicted and measured, {steps} steps: seconds", heads, "same schedule")
    for step, nodes, memory, disk in rows:
        for kept in (False, True):
            taken = apart(
                "numpy", "bench.planner:prediction_apart", environment=KEPT_HEAP if kept else None, step=step,
                nodes=nodes, memory=memory, disk=disk, steps=steps, runs=runs,
            )  # fmt: skip
            if taken is None:
                continue
            name = f"{step}, {memory} + {disk} states, {taken['schedule']}"
            if not kept:
                _add_counts(counts, name, taken, memory)
            if taken["timed"]:
                _add_times(clock, f"{name}, kept heap" if kept else name, taken)
    counts.note("The peak of tracemalloc during the whole call, beside the predicted one and their ratio.")
    counts.note("In brackets the peak less that of the function alone, which the budget bounds.")
    counts.show()
    clock.note("Medians of warm gradients of a process, in brackets their range; the cold one is its first gradient.")
    clock.note("Of the same schedule the median, and the range in parts of it. What keeps all steps is not timed.")
    clock.note("Less waits: the ratio without what a run waited for the disk beyond the one that waited least.")
    clock.show()


def _add_counts(table: Table, name: str, found: dict[str, Any], budget: int) -> None:
    """Add the rows of forward steps and of the peak."""
    steps, predicted = found["steps"], found["predicted_steps"]
    table.add(f"{name}: forward steps", f"{steps}", [f"{predicted}"], "", "equal", steps == predicted)
    unit, beyond, bound, predicted = found["state"], found["beyond"], found["predicted_peak"], found["whole"]
    whole = beyond + found["alone"]
    met = (1 - WITHIN_PEAK) * predicted <= whole <= predicted and beyond <= min(bound, budget * unit)
    ours = f"{whole / unit:.2f} ({beyond / unit:.2f})"
    cell = f"{predicted / unit:.2f} ({bound / unit:.2f}): {whole / predicted:.3f}"
    table.add(f"{name}: peak", ours, [cell], f"{budget}", "5%", met)


def _add_times(table: Table, name: str, found: dict[str, Any]) -> None:
    """Add the row of the time."""
    times, repeated, (first, *predicted) = found["times"], found["repeated"], found["predicted"]
    ratios = [a / b for a, b in zip(times, predicted, strict=True)]
    ours, theirs = statistics.median(times), statistics.median(predicted)
    cells = [f"{theirs:.2f}", f"{ours / theirs:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]
    waited = found["waited"]
    without = [took - (waits - min(waited)) for took, waits in zip(times, waited, strict=True)]
    cells.append(f"{statistics.median(without) / theirs:.2f}" if max(waited) else "")
    cells.append(f"{found['cold'] / first:.2f}")
    again = statistics.median(repeated)
    limit = f"{again:.2f} ({min(repeated) / again:.2f} to {max(repeated) / again:.2f})"
    bar, met = ("15%", abs(ours / theirs - 1) <= WITHIN_TIME) if found["forward"] >= LEAST_SECONDS else ("", None)
    table.add(f"{name}, step of {found['forward'] * 1e3:.1f} ms", f"{ours:.2f}", cells, limit, bar, met)


def main(quick: bool = False) -> None:
    """Print the tables."""
    budgets = ((8, 0),) if quick else (*((states, 0) for states in BUDGETS), (4, 64), (8, 64), (0, 0), (0, 64))
    budgets_of(*((2**18, 6, budgets) if quick else (STATE, STEPS, budgets)))
    predictions_of(*(((("burgers", 20_000, 24, 0),), 6, 1) if quick else (ROWS, FEW_STEPS, RUNS)))


if __name__ == "__main__":
    run(main)
