"""
Traced programs: what a call and a trace cost, and what a jitted gradient holds.

A cached call of ten operations on arrays of ten elements takes 15 us at most, the trace of a function of 100 layers
half a second. A jitted gradient holds no more than a sweep by hand: of 20 layers of `bench.mlp` 22.05 arrays, of the
recurrent net of `bench.rnn` 7.4 MiB. Of 12 layers of 512 with exact gelu, on 8192 rows in single precision, it holds
240 MiB without any product done twice, and 165 MiB under a budget with one more forward run at most. The time step of
the demo, jitted in its own state, is 1.5 times as fast as it stands, in a gradient too, and allocates nothing but what
NumPy takes for operands that overlap. Each by both executors.
"""

from __future__ import annotations

import statistics
import time
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.special import erf

from bench import mlp, rnn
from bench.measure import (
    Table,
    alternate,
    apart,
    generator,
    in_units,
    jax_peak,
    median_of,
    peak_bytes,
    ratio,
    resident_peak,
    run,
)
from ebbtide import Budget, grad, jit, timeloop, trace, value_and_grad
from ebbtide.demo.burgers import Problem, guess, step
from ebbtide.schedules import StoreAll

CALLS, RUNS, LAYERS = 2000, 15, 100
MIB = 2**20
CALL_BAR, TRACE_BAR, NET_BAR, RECURRENT_BAR = 15.0, 0.5, 22.05, 7.4
GELU_LAYERS, GELU_WIDTH, GELU_ROWS = 12, 512, 8192
PLAIN_BAR, BUDGET_BAR = 240, 165
NODES, STEPS, STEP_BAR = 201, 60, 1.5
EXECUTORS = ("reference", "machine")
# Arrays are then mapped one by one, and given back to the system when they are freed.
MAPPED = MappingProxyType({"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"})


def ten(x: Any) -> Any:
    """Ten operations on a small array."""
    for _ in range(3):
        x = np.sin(x) * 1.01 + 0.1
    return np.tanh(x)


def ten_by_hand(x: Any, out: Any) -> Any:
    """The same in one array."""
    np.sin(x, out=out)
    for k in range(3):
        if k:
            np.sin(out, out=out)
        np.multiply(out, 1.01, out=out)
        np.add(out, 0.1, out=out)
    return np.tanh(out)


def calls_of(calls: int, runs: int) -> None:
    """Print the table of what a call costs."""
    x, out = generator().standard_normal(10), np.empty(10)
    jitted = {executor: jit(ten, executor=executor) for executor in EXECUTORS}
    for f in jitted.values():
        f(x)

    def repeated(f: Any) -> Any:
        return lambda: [f(x) for _ in range(calls)]

    found = {
        **{executor: repeated(f) for executor, f in jitted.items()},
        "plain": repeated(ten),
        "by hand": repeated(lambda x: ten_by_hand(x, out)),
    }
    times = alternate(found, runs)
    scale = 1e6 / calls
    table = Table("A call of ten operations on ten elements: us", ("plain NumPy", "ratio to it"), "by hand, in place")
    for executor in EXECUTORS:
        median = statistics.median(times[executor]) * scale
        cells = [median_of(times, "plain", scale), str(ratio(times, executor, "plain"))]
        met = median <= CALL_BAR
        table.add(executor, f"{median:.2f}", cells, median_of(times, "by hand", scale), f"{CALL_BAR:g}", met)
    table.show()


def traces_of(layers: int, runs: int) -> None:
    """Print the table of what a trace costs."""
    weights, x = mlp.arrays(10, layers)
    functions = {
        "value": lambda weights, x: mlp.net(np, weights, x),
        "gradient": grad(lambda weights, x: mlp.net(np, weights, x)),
    }
    table = Table(f"The first trace of {layers} layers: s", ("equations", "with its plan and source"), "")
    for name, f in functions.items():
        tracing, planning = [], []
        for _ in range(runs):
            start = time.perf_counter()
            program = trace(f, weights, x)
            tracing.append(time.perf_counter() - start)
            start = time.perf_counter()
            jit(f).program(weights, x)
            planning.append(time.perf_counter() - start)
        median = statistics.median(tracing)
        cells = [f"{len(program.equations)}", f"{statistics.median(planning):.3f}"]
        table.add(name, f"{median:.3f}", cells, "", f"{TRACE_BAR:g}", median <= TRACE_BAR)
    table.show()


def memory_of(size: int, layers: int, width: int, steps: int) -> None:
    """Print the table of what jitted gradients hold."""
    table = Table("What a jitted gradient holds", ("predicted", "not jitted"), "by hand")
    weights, x = mlp.arrays(size, layers)
    slope = grad(lambda weights: mlp.net(np, weights, x))
    planned = jit(slope).program(weights)
    predicted, held = planned.predict().peak_bytes, peak_bytes(lambda: planned.run(list(weights)))
    by_hand = in_units(peak_bytes(lambda: mlp.by_hand(weights, x)), x.nbytes)
    cells = [in_units(predicted, x.nbytes), in_units(peak_bytes(lambda: slope(weights)), x.nbytes)]
    name, bar = f"{layers} layers, in arrays of {x.nbytes / MIB:.2g} MiB", NET_BAR * layers / mlp.LAYERS
    table.add(name, in_units(held, x.nbytes), cells, by_hand, f"{bar:g}", held <= bar * x.nbytes)
    params, start, label = rnn.arrays(width)
    loss = grad(lambda params: rnn.loss(np, params, start, label, steps))
    planned = jit(loss).program(params)
    predicted, held = planned.predict().peak_bytes, peak_bytes(lambda: planned.run(list(params)))
    by_hand = in_units(peak_bytes(lambda: rnn.by_hand(params, start, label, steps, True)), MIB)
    cells = [in_units(predicted, MIB), in_units(peak_bytes(lambda: loss(params)), MIB)]
    name = f"recurrent net, {steps} steps, in MiB"
    table.add(name, in_units(held, MIB), cells, by_hand, f"{RECURRENT_BAR:g}", held <= RECURRENT_BAR * MIB)
    table.note("The first run of a program, in which its block is made.")
    table.show()


def gelu_net(weights: Any, biases: Any, x: Any) -> Any:
    """The last layer's output of a deep net with exact gelu."""
    for w, b in zip(weights, biases, strict=True):
        x = x @ w + b
        x = 0.5 * x * (1 + erf(x / 1.4142135623730951))
    return x


def gelu_arrays(layers: int, width: int, rows: int) -> tuple[list[Any], list[Any], Any]:
    """Return weights, biases and the input."""
    random = generator()
    weights = [(random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32) for _ in range(layers)]
    biases = [np.full(width, 0.1, np.float32) for _ in range(layers)]
    return weights, biases, random.standard_normal((rows, width)).astype(np.float32)


def gelu_in_torch(layers: int, width: int, rows: int, how: str) -> int | None:
    """Return how far torch's process grows: "eager", with a "checkpoint" for each layer, or with "compile"."""
    import torch
    from torch.utils.checkpoint import checkpoint

    def layer(x: Any, w: Any, b: Any) -> Any:
        x = x @ w + b
        return 0.5 * x * (1 + torch.erf(x / 1.4142135623730951))

    def loss(weights: Any, biases: Any, x: Any) -> Any:
        for w, b in zip(weights, biases, strict=True):
            x = checkpoint(layer, x, w, b, use_reentrant=False) if how == "checkpoint" else layer(x, w, b)
        return x.sum()

    weights, biases, x = gelu_arrays(layers, width, rows)
    given = [[torch.tensor(a, requires_grad=True) for a in some] for some in (weights, biases)]
    call = torch.compile(loss) if how == "compile" else loss

    def gradient() -> None:
        for a in (*given[0], *given[1]):
            a.grad = None
        call(*given, torch.tensor(x)).backward()

    return resident_peak(gradient, gradient)


def gelu_in_jax(layers: int, width: int, rows: int) -> int:
    """Return the bytes that XLA plans."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, biases: Any, x: Any) -> Any:
        for w, b in zip(weights, biases, strict=True):
            x = x @ w + b
            x = 0.5 * x * (1 + jax.scipy.special.erf(x / 1.4142135623730951))
        return jnp.sum(x)

    return jax_peak(jax.value_and_grad(loss, (0, 1)), *gelu_arrays(layers, width, rows))


def peers_of(layers: int, width: int, rows: int) -> None:
    """Print the table of what others hold for the same gradient."""
    arrays = gelu_arrays(layers, width, rows)
    ours = jit(value_and_grad(lambda *args: np.sum(gelu_net(*args)), (0, 1))).program(*arrays)
    held = in_units(peak_bytes(lambda: ours.run([*arrays[0], *arrays[1], arrays[2]])), MIB)
    sizes = {"layers": layers, "width": width, "rows": rows}
    ways = ("eager", "checkpoint", "compile")
    found = {f"torch, {how}": ("torch", "gelu_in_torch", {**sizes, "how": how}) for how in ways}
    found["JAX, jit"] = ("jax", "gelu_in_jax", sizes)
    title = f"{layers} layers of {width} with exact gelu, sum, elsewhere: MiB above arguments"
    table = Table(title, ("torch or JAX",), "")
    for name, (peer, function, given) in found.items():
        peak = apart(peer, f"bench.programs:{function}", environment=MAPPED, **given)
        table.add(name, held, [in_units(peak, MIB, peer)], "", "", None)
    table.note("Ours by tracemalloc, torch's by its resident memory, XLA's as it plans.")
    table.show()


def budgets_of(layers: int, width: int, rows: int) -> None:
    """Print the table of what a gradient holds under budgets."""
    weights, biases, x = gelu_arrays(layers, width, rows)
    losses = {
        "sum": lambda weights, biases, x: np.sum(gelu_net(weights, biases, x)),
        "mean square": lambda weights, biases, x: np.mean(np.square(gelu_net(weights, biases, x))),
    }
    scale = x.nbytes / (GELU_ROWS * GELU_WIDTH * 4)
    columns = ("predicted", "products again", "more work", "planned in s")
    table = Table(f"{layers} layers of {width} with exact gelu: MiB above arguments", columns, "kept layers' inputs")
    for name, loss in losses.items():
        # The least that whole arrays take without products: each layer's input, and two more.
        kept = f"{(layers + 2) * x.nbytes / MIB:.5g}"
        for bar, executor in ((PLAIN_BAR, "reference"), (PLAIN_BAR, "machine"), (BUDGET_BAR, "reference")):
            budget = None if bar == PLAIN_BAR else Budget(memory=int(bar * scale * MIB))
            start = time.perf_counter()
            gradient = jit(value_and_grad(loss, (0, 1)), budget=budget, executor=executor)
            planned = gradient.program(weights, biases, x)
            seconds = time.perf_counter() - start
            leaves = [*weights, *biases, x]
            held, predicted = peak_bytes(lambda planned=planned, leaves=leaves: planned.run(leaves)), planned.predict()
            cells = [
                in_units(predicted.peak_bytes, MIB), f"{predicted.products}", f"{predicted.extra_work:.0%}",
                f"{seconds:.2g}",
            ]  # fmt: skip
            met = held <= bar * scale * MIB and predicted.products <= (0 if budget is None else layers)
            case = f"{name}, {executor if budget is None else f'{bar * scale:.4g} MiB'}"
            table.add(case, in_units(held, MIB), cells, kept if budget is None else "", f"{bar * scale:.4g}", met)
    table.note("More work is that of the cost model, as a part of the work without a budget and repetition.")
    table.show()


def advance_by_hand(problem: Problem) -> Any:
    """Return the time step of the demo in arrays that are there already."""
    inner = (2, problem.nodes - 2, problem.nodes - 2)
    total, flux, other = np.empty(inner), np.empty(inner), np.empty(inner)
    spacing, time_step = problem.spacing, problem.time_step

    def advance(state: Any, viscosity: float) -> Any:
        east, west = state[:, 2:, 1:-1], state[:, :-2, 1:-1]
        north, south = state[:, 1:-1, 2:], state[:, 1:-1, :-2]
        center = state[:, 1:-1, 1:-1]
        np.add(east, west, out=total)
        np.add(total, north, out=total)
        np.add(total, south, out=total)
        np.multiply(center, 4.0, out=flux)
        np.subtract(total, flux, out=total)
        np.multiply(total, viscosity * time_step / spacing**2, out=total)
        np.subtract(east, west, out=flux)
        np.multiply(flux, center[0], out=flux)
        np.subtract(north, south, out=other)
        np.multiply(other, center[1], out=other)
        np.add(flux, other, out=flux)
        np.multiply(flux, time_step / (2.0 * spacing), out=flux)
        np.subtract(total, flux, out=total)
        np.add(center, total, out=total)
        center[...] = total
        return state

    return advance


def steps_of(nodes: int, steps: int, runs: int) -> None:
    """Print the table of what a jitted time step is worth."""
    problem = Problem(nodes, steps)
    start, viscosity = guess(problem), problem.viscosity

    def plain(state: Any, nu: Any) -> Any:
        return step(state, nu, problem.spacing, problem.time_step)

    ways = {
        "plain": plain,
        **{executor: jit(plain, donate_argnums=0, executor=executor) for executor in EXECUTORS},
        "by hand": advance_by_hand(problem),
    }

    def forward(advance: Any) -> Any:
        def run() -> Any:
            state = start.copy()
            for _ in range(steps):
                state = advance(state, viscosity)
            return state

        return run

    def backward(advance: Any) -> Any:
        def loss(state: Any, nu: Any) -> Any:
            return np.sum(timeloop(lambda u, _: advance(u, nu), state, steps, schedule=StoreAll()) ** 2)

        return lambda: grad(loss, (0, 1))(start, viscosity)

    table = Table(f"{steps} steps of the demo on {nodes} x {nodes} points: times as fast as it stands",
                  ("plain, ms a step", "jitted, ms a step", "bytes a step allocates"), "by hand")  # fmt: skip
    for name, make in (("forward", forward), ("gradient, all values saved", backward)):
        names = ["plain", *EXECUTORS, *(["by hand"] if make is forward else [])]
        times = alternate({way: make(ways[way]) for way in names}, runs)
        for executor in EXECUTORS:
            allocated, limit = "", ""
            if make is forward:
                limit = str(ratio(times, "plain", "by hand"))
                advance = ways[executor]
                state = advance(start.copy(), viscosity)
                allocated = f"{peak_bytes(lambda state=state, f=advance: f(state, viscosity)):,} for a moment"
            cells = [median_of(times, way, 1e3 / steps) for way in ("plain", executor)]
            gain = statistics.median(a / b for a, b in zip(times["plain"], times[executor], strict=True))
            table.add(
                f"{name}, {executor}", str(ratio(times, "plain", executor)), [*cells, allocated], limit,
                f"{STEP_BAR:g}", gain >= STEP_BAR,
            )  # fmt: skip
    table.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    calls_of(*((10, 1) if quick else (CALLS, RUNS)))
    traces_of(*((3, 1) if quick else (LAYERS, 5)))
    memory_of(*((20, 3, 16, 3) if quick else (mlp.SIZE, mlp.LAYERS, rnn.WIDTH, rnn.STEPS)))
    steps_of(*((11, 3, 1) if quick else (NODES, STEPS, RUNS)))
    for part in (budgets_of, peers_of):
        part(*((4, 32, 1024) if quick else (GELU_LAYERS, GELU_WIDTH, GELU_ROWS)))


if __name__ == "__main__":
    run(main)
