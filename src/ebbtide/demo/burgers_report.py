"""The report of `ebbtide demo burgers`: plan, measurement beside it, and a Taylor test of the gradient."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import ebbtide
from ebbtide.agree import agree
from ebbtide.budget import Budget, format_bytes
from ebbtide.demo import burgers
from ebbtide.demo.decomposition import Decomposition, started
from ebbtide.errors import BudgetError, EbbtideError
from ebbtide.optimize.taylor import taylor_remainders
from ebbtide.profiling.peak import measured_peak
from ebbtide.profiling.plot import check_picture

# Far within the 1/4 up to which `burgers.direction` is stable, and far above the rounding of order 2.
DISTANCES = (2.0**-8, 2.0**-9, 2.0**-10, 2.0**-11, 2.0**-12)
# So large that the trial run, which only measures sizes, is never refused.
NO_LIMIT = 2**62
# A prediction counts arrays; tracemalloc also sees interpreter objects (frames, nodes, progress bars).
SLACK = 64 * 1024
# What the command exits with on a rank that leaves the message to another one.
FAILED = 2


@dataclass(frozen=True, slots=True)
class Options:
    """
    What the command line says.

    Args:
        nodes: Points per direction.
        steps: Number of time steps.
        memory: Bytes of memory, an int or a text such as `"64MiB"`.
        disk: Bytes of disk, likewise.
        initial: A .npy file with the initial velocity, the demo's own if None.
        plot: Where the picture of the memory timeline goes.
    """

    nodes: int = 201
    steps: int = 1000
    memory: int | str = "64MiB"
    disk: int | str = 0
    initial: Path | None = None
    plot: Path = Path("memory.png")


@dataclass(frozen=True, slots=True)
class Case:
    """The problem with its data: initial velocity and observations of shape (2, n, n), and the budget."""

    problem: burgers.Problem
    initial: burgers.Field
    observed: burgers.Field
    budget: Budget

    def misfit(self, initial: Any, viscosity: Any, *, progress: bool | None = None) -> Any:
        """Return the misfit J of an initial velocity and a viscosity."""
        return burgers.misfit(initial, viscosity, self.observed, self.problem, progress=progress)


def run(options: Options) -> int:
    """
    Run the demo and print its report.

    Args:
        options: What the command line says.

    Returns:
        0 if every verdict is good, else 1. Of many ranks one prints the report and raises the error, also that of
        another rank; these return `FAILED`.

    Raises:
        DemoInputError: An option or the initial field cannot be used.
        ValueError: A number of bytes cannot be read.
        BudgetError: The budget is too small for the gradient.
    """
    decomposition = started()
    try:
        with _heard(decomposition), decomposition.run():
            return _report(options, decomposition)
    except (EbbtideError, ValueError):
        if decomposition.speaks:
            raise
        return FAILED


@contextmanager
def _heard(decomposition: Decomposition) -> Iterator[None]:
    """Print what one of the ranks prints; all of them do the same, and their numbers are agreed on."""
    if decomposition.speaks:
        yield
    else:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield


def _report(options: Options, decomposition: Decomposition) -> int:
    problem = burgers.Problem(options.nodes, options.steps, decomposition)
    budget = Budget(memory=options.memory, disk=options.disk)
    if decomposition.speaks:
        _check_plot(options.plot)
    initial = burgers.guess(problem)
    if options.initial is not None:
        initial = burgers.load_initial(options.initial, problem)
    _print_problem(problem, initial)
    case = Case(problem, initial, burgers.observations(problem), budget)
    _print_sizes(case)
    gradient, verdicts = _gradient(case, options.plot)
    verdicts += _taylor(case, *gradient)
    failed = agree(tuple([not good for good, _ in verdicts]))
    print("\nVerdict" + (" of all ranks" if _many(problem) else ""))
    for bad, (_, line) in zip(failed, verdicts, strict=True):
        print(f"  {'FAIL' if bad else 'ok  '}  {line}")
    return int(any(failed))


def _many(problem: burgers.Problem) -> bool:
    """Return whether there are several ranks."""
    return problem.decomposition.ranks != (1, 1)


def _check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before the work and not after it."""
    try:
        check_picture(path)
    except ValueError as error:
        raise burgers.DemoInputError(f"--plot: {error}") from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise burgers.DemoInputError(f"--plot: {str(path)!r} cannot be written. Give the name of another file.")
    if path.suffix.lower() not in {".png", ".pdf", ".svg"}:
        raise burgers.DemoInputError(f"The picture {str(path)!r} must end in .png, .pdf or .svg.")


def _print_problem(problem: burgers.Problem, initial: burgers.Field) -> None:
    speed = problem.decomposition.largest(np.abs(initial).max())
    peclet = speed * problem.spacing / problem.viscosity
    end = problem.steps * problem.time_step
    print(f"2-D viscous Burgers equation on {problem.nodes} x {problem.nodes} nodes ({problem.nodes**2:,})")
    print(f"  {problem.steps:,} explicit steps of {problem.time_step:.4g} to t = {end:.4g}")
    print(
        f"  viscosity {problem.viscosity:.4g}, largest speed {speed:.4g}; diffusion number "
        f"{burgers.DIFFUSION_NUMBER:g} (stable to {burgers.MOST_DIFFUSION_NUMBER:g}), cell Peclet number "
        f"{peclet:.3g} (stable to {burgers.MOST_PECLET_NUMBER:g})"
    )
    if _many(problem):
        ranks = " x ".join(map(str, problem.decomposition.ranks))
        print(f"  {ranks} ranks; sizes are the largest of any rank, and each has the budget")


def _print_sizes(case: Case) -> None:
    """Measure and print what a state and a step take, by a gradient of two steps."""
    short = replace(case.problem, steps=min(2, case.problem.steps))
    trial = Case(short, case.initial, case.observed, Budget(memory=NO_LIMIT))
    with ebbtide.profile() as profile:
        ebbtide.value_and_grad(trial.misfit, argnums=(0, 1), budget=trial.budget)(trial.initial, short.viscosity)
    plan = profile.loops[0].plan
    state_bytes, saved_bytes = agree((plan.state_bytes, plan.saved_bytes))
    everything = saved_bytes * case.problem.steps
    print("\nSizes")
    print(f"  one state (u, v), float64        {format_bytes(state_bytes):>12}")
    print(f"  what one step saves              {format_bytes(saved_bytes):>12}")
    print(f"  storing every one of {case.problem.steps:>6,} steps {format_bytes(everything):>12}")
    print(f"  budget                           {format_bytes(case.budget.memory):>12} of memory")
    print(f"                                   {format_bytes(case.budget.disk):>12} of disk")


def _watched(case: Case) -> Callable[..., Any]:
    """Return the misfit of initial velocity and viscosity, with a bar for its steps."""

    def watched(initial: Any, nu: Any) -> Any:
        return case.misfit(initial, nu, progress=case.problem.decomposition.speaks)

    return watched


def _gradient(case: Case, plot: Path) -> tuple[tuple[float, Any, float], list[tuple[bool, str]]]:
    """Take the gradient under the budget, print it beside its plan, and write the picture."""
    viscosity = case.problem.viscosity
    _show_first_bar()
    alone, value, forward_time = _function_alone(case)

    print("\nGradient with respect to initial velocity and viscosity", flush=True)
    start = time.perf_counter()
    with ebbtide.profile(on_plan=_plan_printer()) as profile:
        both = ebbtide.value_and_grad(_watched(case), argnums=(0, 1), budget=case.budget)
        found, slopes = both(case.initial, viscosity)
    elapsed = time.perf_counter() - start
    print("\nPrediction and measurement")
    verdicts = _print_measured(profile, alone, case)
    print(f"  seconds                          {'':>14} {elapsed:>14.1f}   the function alone: {forward_time:.1f}")
    slope_nu = float(slopes[1])
    norm = math.sqrt(float(case.problem.decomposition.total(np.sum(slopes[0] ** 2))))
    print(f"\n  J = {float(found):.12g},  dJ/dnu = {slope_nu:.12g},  |dJ/dinitial| = {norm:.12g}")
    verdicts.append((float(found) == value, "the value under the budget is the bits of the function's own"))
    if case.problem.decomposition.speaks:
        _write_picture(profile, plot, many=_many(case.problem))
    return (value, slopes[0], slope_nu), verdicts


def _show_first_bar() -> None:
    """Show a bar to nobody: what tqdm loads and keeps at its first one (0.3 MB) is not the gradient's."""
    with tqdm(total=1, file=io.StringIO()) as bar:
        bar.update()


def _plan_printer() -> Callable[[Any], None]:
    """Return what prints a plan, and another one that takes its place; of one that is kept predictions may change."""
    shown: list[Any] = []

    def show(plan: Any) -> None:
        if shown != [plan.schedule]:
            shown[:] = [plan.schedule]
            print(f"Plan\n{_indented(str(plan))}\n", flush=True)

    return show


def _function_alone(case: Case) -> tuple[int, float, float]:
    """Return the peak bytes, the value and the seconds of the function without a gradient."""
    with measured_peak() as peak:
        start = time.perf_counter()
        value = float(case.misfit(case.initial, case.problem.viscosity))
        elapsed = time.perf_counter() - start
    return peak.nbytes, value, elapsed


def _print_measured(profile: Any, alone: int, case: Case) -> list[tuple[bool, str]]:
    """Print bytes and steps, predicted and measured, and return the verdicts on them."""
    limit = case.budget.memory
    within = profile.peak_bytes - alone <= profile.predicted_peak_bytes + SLACK
    peak, alone, above, predicted, written = agree(
        (
            profile.peak_bytes, alone, profile.peak_bytes - alone, profile.predicted_peak_bytes, profile.bytes_written,
        )
    )  # fmt: skip
    steps, planned = profile.steps_forward, profile.predicted_steps_forward
    print(f"  {'':<32} {'predicted':>14} {'measured':>14}")
    print(f"  peak bytes of the call           {'':>14} {peak:>14,}   (tracemalloc)")
    print(f"  peak bytes of the function alone {'':>14} {alone:>14,}   (tracemalloc)")
    print(f"  difference, which is budgeted    {predicted:>14,} {above:>14,}   of {limit:,}")
    print(f"  forward steps                    {planned:>14,} {steps:>14,}   {steps / case.problem.steps:.2f} runs")
    print(f"  bytes written to disk            {'':>14} {written:>14,}   of {case.budget.disk:,}")
    return [
        (
            above <= limit,
            f"measured peak {format_bytes(above)} is within the budget of {format_bytes(limit)}",
        ),
        (
            within,
            (
                f"measured peak is no more than the predicted {format_bytes(predicted)} "
                f"and {format_bytes(SLACK)}"
            ),
        ),
        (steps == planned, f"{steps:,} forward steps executed, {planned:,} predicted"),
    ]


def _write_picture(profile: Any, path: Path, *, many: bool) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("  no picture of the memory timeline: it needs matplotlib (pip install 'ebbtide[plot]')")
        return
    profile.plot(path)
    print(f"  memory timeline: {path}" + (" (of the first rank)" if many else ""))


def _taylor(case: Case, value: float, slope: Any, slope_nu: float) -> list[tuple[bool, str]]:
    """Print the table of Taylor remainders and return its verdicts."""
    moved, moved_nu = burgers.direction(case.initial, case.problem)
    moved = _not_orthogonal(moved, slope, case.problem, math.copysign(1.0, slope_nu * moved_nu))
    first = float(case.problem.decomposition.total(np.sum(slope * moved))) + slope_nu * moved_nu
    print(
        "\nSecond derivative along a direction (tangent of the same gradient, by the same schedule)",
        flush=True,
    )
    second = _curvature(case, moved, moved_nu)

    def along(distance: float) -> float:
        start = case.initial + distance * moved
        return float(case.misfit(start, case.problem.viscosity + distance * moved_nu))

    test = taylor_remainders(along, value, [first] if second is None else [first, second], DISTANCES)
    print("\nTaylor test: J(p + e m) less its expansion in e to order 0, 1, 2; rates 1, 2, 3 are right")
    print(_indented(test.table()))
    return [(test.is_right(order), test.verdict(order)) for order in range(test.orders)]


def _not_orthogonal(moved: Any, slope: Any, problem: burgers.Problem, sign: float) -> Any:
    """Return a direction turned halfway to the gradient: across it, order 0 sees only the curvature."""
    largest = problem.decomposition.largest
    inside = slope * burgers.inside(problem)
    scale = largest(np.abs(moved).max()) / (largest(np.abs(inside).max()) or 1.0)
    return (0.5 * sign) * (moved + scale * inside)


def _curvature(case: Case, moved: Any, moved_nu: float) -> float | None:
    """Return m . H m of the misfit's Hessian H, or None (and say so) if the budget is too small for it."""
    gradient: Callable[..., Any] = ebbtide.grad(_watched(case), argnums=(0, 1), budget=case.budget)
    point = (case.initial, case.problem.viscosity)
    try:
        _, (bent, bent_nu) = ebbtide.jvp(gradient, point, (moved, moved_nu))
    except BudgetError as error:
        print(
            f"  not computed: with tangents the budget must be at least {format_bytes(error.least)} "
            f"({error.least:,} bytes)"
        )
        return None
    return float(case.problem.decomposition.total(np.sum(bent * moved))) + float(bent_nu) * moved_nu


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
