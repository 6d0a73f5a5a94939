"""
The gradient of the demo, the 2-D Burgers equation over 300 steps, with its time step compiled ahead of time.

Ours is the demo's own step, jitted for the machine, with and without Numba, in a time loop; once with every state kept,
once with 20 snapshots.
Beside it JAX (jit of the gradient of a scan; equinox's checkpointed loop for the snapshots), the adjoint by hand in
NumPy, in arrays that are there already, and the adjoint by hand in Numba, one fused loop over the points for a step and
one for its reverse. Bars: twice as fast as JAX, three times as fast as NumPy by hand, half as fast as Numba by hand.
Each number of threads is a process of its own, which has as many cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from bench.measure import MISSING, Table, alternate, apart, generator, installed, median_of, ratio, run
from ebbtide import grad, jit, timeloop
from ebbtide.demo.burgers import Problem, guess, step
from ebbtide.schedules import Copy, Forward, Move, Position, Reverse, Revolve, Schedule, StoreAll

NODES, STEPS, SNAPSHOTS, RUNS = 201, 300, 20, 5
OURS = {"machine": "machine", "machine with Numba": "numba"}
BARS = {"JAX": 2.0, "NumPy by hand": 3.0, "Numba by hand": 0.5}


def ours(problem: Problem, schedule: Schedule, executor: str = "machine") -> Callable[..., Any]:
    """Return our gradient of half the sum of squares of the last state."""

    def plain(state: Any, viscosity: Any) -> Any:
        return step(state, viscosity, problem.spacing, problem.time_step)

    advance = jit(plain, donate_argnums=0, executor=executor)

    def loss(state: Any, viscosity: Any) -> Any:
        last = timeloop(lambda u, _: advance(u, viscosity), state, problem.steps, schedule=schedule, progress=False)
        return 0.5 * np.sum(last * last)

    return grad(loss, (0, 1))


# By hand: the cotangent in two parts, `g` with zeros on the boundary, where a step takes nothing from, and `edge`.


def by_hand(advance: Any, back: Any, problem: Problem, schedule: Schedule) -> Callable[..., Any]:
    """
    Return the gradient by hand, which keeps the states that a schedule names.

    Args:
        advance: Writes the state after a step into another array.
        back: Writes the cotangent of the state before a step into another array, adds to that of the edge, and returns
            what the step adds to the derivative in the viscosity.
        problem: The problem.
        schedule: When to keep which state. What it calls the saved values of a step is the state before it.
    """
    everything = isinstance(schedule, StoreAll)
    count = problem.steps + 1 if everything else schedule.peak_snapshots(problem.steps) + 2
    diffusion, advection = problem.time_step / problem.spacing**2, problem.time_step / (2 * problem.spacing)

    def gradient(start: Any, viscosity: float) -> tuple[Any, float]:
        rows = list(np.empty((count, *start.shape)))
        kept, saved, slope = {}, {}, 0.0
        state = rows.pop()
        state[...] = start
        edge, g = np.zeros_like(start), np.zeros_like(start)
        other = np.zeros_like(start)
        position = Position(steps=problem.steps)
        while (action := schedule.next_action(position)) is not None:
            if isinstance(action, Forward):
                if action.snapshot:
                    kept[action.start] = rows.pop()
                    kept[action.start][...] = state
                for number in range(action.start, action.stop):
                    if action.save:
                        saved[number] = state
                    if action.save and position.forward_ended:
                        break  # the state before the step is all that its reverse takes
                    after = rows.pop()
                    advance(state, after, viscosity, diffusion, advection)
                    if not action.save:
                        rows.append(state)
                    state = after
                if action.stop == problem.steps and not position.forward_ended:
                    g[:, 1:-1, 1:-1] = state[:, 1:-1, 1:-1]
                    edge[...] = state - g
                    rows.append(state)
            elif isinstance(action, Reverse):
                for number in reversed(range(action.stop, action.start)):
                    slope += back(saved[number], g, other, edge, viscosity, diffusion, advection)
                    g, other = other, g
                    rows.append(saved.pop(number))
            elif isinstance(action, (Copy, Move)):
                state = rows.pop()
                state[...] = kept[action.step]
                if isinstance(action, Move):
                    rows.append(kept.pop(action.step))
            position = position.after(action)
        return g + edge, slope

    return gradient


def numpy_by_hand(problem: Problem, schedule: Schedule) -> Callable[..., Any]:
    """Return the gradient by hand in NumPy."""
    inner = (2, problem.nodes - 2, problem.nodes - 2)
    curve, flux, other = np.empty(inner), np.empty(inner), np.empty(inner)

    def shifted(x: Any) -> Any:
        return x[:, 2:, 1:-1], x[:, :-2, 1:-1], x[:, 1:-1, 2:], x[:, 1:-1, :-2], x[:, 1:-1, 1:-1]

    def curvature(east: Any, west: Any, north: Any, south: Any, center: Any) -> None:
        np.add(east, west, out=curve)
        np.add(curve, north, out=curve)
        np.add(curve, south, out=curve)
        np.multiply(center, 4.0, out=flux)
        np.subtract(curve, flux, out=curve)

    def advance(state: Any, after: Any, viscosity: float, diffusion: float, advection: float) -> None:
        east, west, north, south, center = shifted(state)
        curvature(east, west, north, south, center)
        np.multiply(curve, viscosity * diffusion, out=curve)
        np.subtract(east, west, out=flux)
        np.multiply(flux, center[0], out=flux)
        np.subtract(north, south, out=other)
        np.multiply(other, center[1], out=other)
        np.add(flux, other, out=flux)
        np.multiply(flux, advection, out=flux)
        np.subtract(curve, flux, out=curve)
        after[...] = state
        after[:, 1:-1, 1:-1] += curve

    def back(
        state: Any, g: Any, before: Any, edge: Any, viscosity: float, diffusion: float, advection: float
    ) -> float:
        east, west, north, south, center = shifted(state)
        inside = g[:, 1:-1, 1:-1]
        curvature(east, west, north, south, center)
        slope = diffusion * float(np.vdot(curve, inside))
        before[...] = g
        down = before[:, 1:-1, 1:-1]
        np.multiply(inside, viscosity * diffusion, out=curve)
        np.multiply(curve, -4.0, out=flux)
        np.add(down, flux, out=down)
        for axis, (plus, minus, one) in enumerate(((east, west, shifted(before)), (north, south, shifted(before)))):
            np.subtract(plus, minus, out=flux)
            np.multiply(flux, inside, out=flux)
            np.multiply(flux, advection, out=flux)
            np.subtract(down[axis], flux[0], out=down[axis])
            np.subtract(down[axis], flux[1], out=down[axis])
            np.multiply(inside, center[axis], out=flux)
            np.multiply(flux, advection, out=flux)
            np.subtract(curve, flux, out=other)
            np.add(one[2 * axis], other, out=one[2 * axis])
            np.add(curve, flux, out=other)
            np.add(one[2 * axis + 1], other, out=one[2 * axis + 1])
        for part in (np.s_[:, [0, -1], :], np.s_[:, 1:-1, [0, -1]]):
            edge[part] += before[part]
            before[part] = 0.0
        return slope

    return by_hand(advance, back, problem, schedule)


def numba_by_hand(problem: Problem, schedule: Schedule) -> Callable[..., Any]:
    """Return the gradient by hand in Numba."""
    import numba

    threads = numba.config.NUMBA_NUM_THREADS > 1
    compiled = numba.njit(fastmath=True, parallel=threads)
    rows = numba.prange if threads else range

    @compiled
    def advance(state: Any, after: Any, viscosity: float, diffusion: float, advection: float) -> None:
        n = state.shape[1]
        d = viscosity * diffusion
        for c in range(2):
            for k in range(n):
                after[c, 0, k], after[c, n - 1, k] = state[c, 0, k], state[c, n - 1, k]
        for i in rows(1, n - 1):
            for c in range(2):
                after[c, i, 0], after[c, i, n - 1] = state[c, i, 0], state[c, i, n - 1]
                for j in range(1, n - 1):
                    east, west = state[c, i + 1, j], state[c, i - 1, j]
                    north, south = state[c, i, j + 1], state[c, i, j - 1]
                    center = state[c, i, j]
                    curve = east + west + north + south - 4.0 * center
                    flux = (east - west) * state[0, i, j] + (north - south) * state[1, i, j]
                    after[c, i, j] = center + (d * curve - advection * flux)

    @compiled
    def back(
        state: Any, g: Any, before: Any, edge: Any, viscosity: float, diffusion: float, advection: float
    ) -> float:
        n = state.shape[1]
        d = viscosity * diffusion
        slope = 0.0
        for i in rows(1, n - 1):
            for j in range(1, n - 1):
                along, across = 0.0, 0.0
                for c in range(2):
                    east, west = state[c, i + 1, j], state[c, i - 1, j]
                    north, south = state[c, i, j + 1], state[c, i, j - 1]
                    own = g[c, i, j]
                    slope += own * (east + west + north + south - 4.0 * state[c, i, j])
                    along += own * (east - west)
                    across += own * (north - south)
                for c in range(2):
                    taken = along if c == 0 else across
                    before[c, i, j] = (
                        (1 - 4 * d) * g[c, i, j] - advection * taken
                        + (d - advection * state[0, i - 1, j]) * g[c, i - 1, j]
                        + (d + advection * state[0, i + 1, j]) * g[c, i + 1, j]
                        + (d - advection * state[1, i, j - 1]) * g[c, i, j - 1]
                        + (d + advection * state[1, i, j + 1]) * g[c, i, j + 1]
                    )  # fmt: skip
        for c in range(2):
            for k in range(1, n - 1):
                edge[c, 0, k] += (d + advection * state[0, 1, k]) * g[c, 1, k]
                edge[c, n - 1, k] += (d - advection * state[0, n - 2, k]) * g[c, n - 2, k]
                edge[c, k, 0] += (d + advection * state[1, k, 1]) * g[c, k, 1]
                edge[c, k, n - 1] += (d - advection * state[1, k, n - 2]) * g[c, k, n - 2]
        return slope * diffusion

    return by_hand(advance, back, problem, schedule)


def in_jax(problem: Problem, snapshots: int | None) -> Callable[..., Any]:
    """Return the gradient in JAX; with snapshots by equinox's loop."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    spacing, time_step = problem.spacing, problem.time_step

    def loss(start: Any, viscosity: Any) -> Any:
        def body(state: Any, _: Any) -> tuple[Any, None]:
            east, west, north, south = state[:, 2:, 1:-1], state[:, :-2, 1:-1], state[:, 1:-1, 2:], state[:, 1:-1, :-2]
            u, v = state[0, 1:-1, 1:-1], state[1, 1:-1, 1:-1]
            curve = east + west + north + south - 4.0 * state[:, 1:-1, 1:-1]
            flux = (east - west) * u + (north - south) * v
            change = viscosity * (time_step / spacing**2) * curve - time_step / (2.0 * spacing) * flux
            return state.at[:, 1:-1, 1:-1].add(change), None

        if snapshots is None:
            last, _ = jax.lax.scan(body, start, None, length=problem.steps)
        else:
            import equinox.internal

            last, _ = equinox.internal.scan(
                body, start, None, length=problem.steps, kind="checkpointed", checkpoints=snapshots
            )  # fmt: skip
        return 0.5 * jnp.sum(last * last)

    compiled = jax.jit(jax.grad(loss, (0, 1)))
    return lambda start, viscosity: jax.block_until_ready(compiled(start, viscosity))


def seconds_of(nodes: int, steps: int, snapshots: int, runs: int, threads: int | None = None) -> dict[str, Any]:
    """Return seconds of all, for all states kept and for snapshots; in a process of its own, on as many cores."""
    if threads is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    problem = Problem(nodes, steps)
    start, viscosity = guess(problem) + 0.01 * generator().standard_normal(problem.shape), problem.viscosity
    found = {}
    for name, schedule in (("all kept", StoreAll()), ("snapshots", Revolve(snapshots))):
        makers: dict[str, Callable[[], Callable[..., Any]]] = {
            who: lambda s=schedule, e=executor: ours(problem, s, e)
            for who, executor in OURS.items()
            if executor != "numba" or installed("numba")
        }
        makers["NumPy by hand"] = lambda s=schedule: numpy_by_hand(problem, s)
        if installed("numba"):
            makers["Numba by hand"] = lambda s=schedule: numba_by_hand(problem, s)
        if installed("jax") and (name == "all kept" or installed("equinox")):
            makers["JAX"] = lambda s=snapshots, n=name: in_jax(problem, None if n == "all kept" else s)
        gradients = {who: make() for who, make in makers.items()}
        wanted = gradients["NumPy by hand"](start, viscosity)
        for gradient in gradients.values():
            for a, b in zip(gradient(start, viscosity), wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        found[name] = alternate({who: lambda f=f: f(start, viscosity) for who, f in gradients.items()}, runs)
    return found


def main(quick: bool = False) -> None:
    """Print the table."""
    sizes = {"nodes": 9, "steps": 6, "snapshots": 2, "runs": 1} if quick else {
        "nodes": NODES, "steps": STEPS, "snapshots": SNAPSHOTS, "runs": RUNS,
    }  # fmt: skip
    peers = ("JAX or equinox, ratio to ours", "NumPy by hand, ratio")
    title = f"Gradient of {sizes['steps']} steps of the demo, {sizes['nodes']} x {sizes['nodes']} points: us a step"
    table = Table(title, peers, "Numba by hand, ratio")
    for threads in (None,) if quick else (1, 2):
        function, environment = "bench.burgers_machine:seconds_of", {"NUMBA_NUM_THREADS": f"{threads}"}
        found = seconds_of(**sizes) if quick else apart(
            "numpy", function, environment=environment, threads=threads, **sizes
        )  # fmt: skip
        for name, times in (found or {}).items():
            case = name if name == "all kept" else f"{sizes['snapshots']} snapshots"
            mine = [one for one in OURS if one in times]
            best = min(mine, key=lambda one, t=times: median(t[one]))
            for one in mine:
                found_ratios = {who: ratio(times, who, one) for who in BARS if who in times}
                cells = {who: str(found_ratios.get(who, MISSING)) for who in BARS}
                met = all(found_ratios[who].median >= BARS[who] for who in found_ratios)
                table.add(
                    f"{case}, {threads or 'any'} threads, {one}", median_of(times, one, 1e6 / sizes["steps"], 0),
                    [cells["JAX"], cells["NumPy by hand"]], cells["Numba by hand"], "2, 3, 0.5",
                    met if one == best and len(found_ratios) == len(BARS) else None,
                )  # fmt: skip
    table.note("Ratios to ours: of JAX 2 and more, of NumPy by hand 3, of Numba by hand 0.5; by the better of our two.")
    table.show()


if __name__ == "__main__":
    run(main)
