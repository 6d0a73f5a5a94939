"""
The planner: what it predicts and what happens, and budgets that are never passed.

Budgets of 2 to 64 states of 32 MiB: each runs in a process of its own, whose resident memory is watched beside the
allocations that `tracemalloc` sees; both less what the function alone takes. Bar: neither passes the budget; a budget
that is too small is refused, and the least that the refusal names does.

The planner measures costs itself, on the first steps of the loop of `bench.timeloop`. Bars: forward steps equal, the
peak within 5% of the predicted one and never above it, and the time within 15% for steps of 5 ms and more.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from bench.measure import Table, alternate, apart, peak_bytes, resident, run
from bench.timeloop import step
from ebbtide import Budget, BudgetError, grad, profile, timeloop

# States of 32 MiB, and a step as light as a step can be that saves something.
STATE, STEPS, BUDGETS = 32 * 2**20, 24, (2, 4, 8, 16, 32, 64)
# Of the predictions: steps of 5 ms and more, and budgets in restart states, memory and disk.
LARGE, FEW_STEPS, PAIRS = 1_000_000, 40, ((24, 0), (48, 0), (96, 0), (24, 60), (24, 1000))
WITHIN_TIME, WITHIN_PEAK = 0.15, 0.05


def light(u: Any, i: Any) -> Any:
    """Return u after a step that saves one array, and writes into its state."""
    u *= 1.0 - 1e-3 * u
    return u


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
    plan = plans[-1]
    return {
        "refused": 0, "memory": memory, "peak": beyond, "resident": grown, "seconds": seconds,
        "predicted_peak": plan.predicted_peak_bytes, "predicted_seconds": plan.predicted_time,
        "timed": bool(plan.measuring_steps), "steps": found.steps_forward,
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
            cells += [f"{found['predicted_peak'] / nbytes:.3f}", f"{found['steps']}", f"{found['predicted_steps']}"]
            cells += [f"{found['seconds']:.2f}", f"{found['predicted_seconds']:.2f}" if found["timed"] else "not timed"]
            met = met and found["steps"] == found["predicted_steps"] and found["peak"] <= found["predicted_peak"]
        table.add(name, ours, cells, bar, "<= budget", met)
    table.note("Steps of a loop are timed if there are 32 or more of them and not all that they save fits.")
    table.show()


def predictions_of(nodes: int, steps: int, budgets: tuple[tuple[int, int], ...], runs: int) -> None:
    """Print the table of what plans predict, and what happens."""
    u = 0.5 * np.sin(np.linspace(0, 40 * np.pi, nodes))

    def misfit(u: Any) -> Any:
        after = timeloop(step, u, steps, progress=False)
        return 0.5 * np.sum(after * after)

    alone = peak_bytes(lambda: misfit(u))
    table = Table(f"Predicted and measured, {steps} steps on {nodes:,} nodes", ("predicted",), "budget")
    for memory, disk in budgets:
        allowed = Budget(memory=memory * u.nbytes, disk=disk * u.nbytes)
        taken = grad(misfit, budget=allowed)
        plans: list[Any] = []
        with profile(on_plan=plans.append) as found:
            taken(u)
        beyond = peak_bytes(lambda taken=taken: taken(u)) - alone
        # A plan and a run take turns, so that what else the machine does meets both alike.
        times: list[float] = []
        predicted: list[float] = []
        for _ in range(runs):
            times += alternate({"taken": lambda taken=taken: taken(u)}, 1)["taken"]
            with profile(on_plan=plans.append):
                taken(u)
            predicted.append(plans[-1].predicted_time)
        plan = plans[0]
        name = f"{memory} + {disk} states, {type(plan.schedule).__name__}"
        steps_met = found.steps_forward == plan.predicted_steps_forward
        cells = [f"{plan.predicted_steps_forward}"]
        table.add(f"{name}: forward steps", f"{found.steps_forward}", cells, "", "equal", steps_met)
        whole, bound = beyond + alone, plan.predicted_peak_bytes
        peak_met = abs(whole / bound - 1) <= WITHIN_PEAK and beyond <= min(bound, allowed.memory)
        ours, cells = f"{whole / u.nbytes:.2f} ({beyond / u.nbytes:.2f})", [f"{bound / u.nbytes:.2f}"]
        table.add(f"{name}: peak in states", ours, cells, f"{memory}", "5%", peak_met)
        if not plan.measuring_steps:
            continue
        ratios = [a / b for a, b in zip(times, predicted, strict=True)]
        ratio, spread = statistics.median(ratios), f"({min(ratios):.2f} to {max(ratios):.2f})"
        ours = f"{statistics.median(times):.3f}"
        cells = [f"{statistics.median(predicted):.3f}, ratio {ratio:.2f} {spread}"]
        table.add(f"{name}: time in s", ours, cells, "", "15%", abs(ratio - 1) <= WITHIN_TIME)
    table.note("In brackets the peak less that of the function alone, which the budget bounds.")
    table.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    budgets = ((8, 0),) if quick else (*((states, 0) for states in BUDGETS), (4, 64), (8, 64), (0, 0), (0, 64))
    budgets_of(*((2**18, 6, budgets) if quick else (STATE, STEPS, budgets)))
    predictions_of(*((20_000, 6, ((24, 0),), 1) if quick else (LARGE, FEW_STEPS, PAIRS, 3)))


if __name__ == "__main__":
    run(main)
