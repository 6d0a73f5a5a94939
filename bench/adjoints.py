"""
The adjoint of one time loop, ours and that of the peers: equinox's checkpointed loop, and pyadjoint.

The model is the explicit step of viscous Burgers of `bench.timeloop`, with as many snapshots for each. pyadjoint takes
its schedule from checkpoint_schedules (Multistage in memory: the least number of forward steps), and its step is a
block with the derivative by hand. equinox's loop is compiled by XLA, which fuses the step and uses all cores; what it
plans to allocate is not what tracemalloc sees, so read its bytes as a size. The limit is the gradient by hand, in plain
NumPy, with every state kept. Bars: the forward steps of Revolve, as many states at a time as snapshots and nine more
(those that the step itself needs), and for disk against memory 1.5 of the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.measure import (
    MISSING,
    Table,
    alternate,
    apart,
    in_units,
    installed,
    jax_peak,
    median_of,
    peak_bytes,
    ratio,
    run,
)
from bench.timeloop import SPACING, TIME_STEP, VISCOSITY, by_hand, step, step_back
from ebbtide import grad, timeloop
from ebbtide.schedules import Costs, Hierarchical, Revolve, Schedule, StoreAll
from ebbtide.storage import Disk, Memory, Storage

PEERS = ("equinox", "pyadjoint")
NODES, STEPS, RUNS = 100_000, 100, 7
CASES = ((100, 5), (100, 10), (100, 20))
WORK = 9  # states: that of the step and its cotangent, six saved values and temporaries of it, and the argument's copy
BAR_DISK = 1.5


def gradient(steps: int, schedule: Schedule, storage: Callable[[], Storage] = Memory) -> Callable[[Any], Any]:
    """Return our gradient of half the sum of squares of the final state."""

    def call(u: Any) -> Any:
        with storage() as place:

            def misfit(u: Any) -> Any:
                after = timeloop(step, u, steps, schedule=schedule, storage=place, progress=False)
                return 0.5 * np.sum(after * after)

            return grad(misfit)(u)

    return call


def steps_of(steps: int, schedule: Schedule, u: Any) -> int:
    """Return how many forward steps our gradient runs."""
    ran = [0]

    def counted(u: Any, i: Any) -> Any:
        ran[0] += 1
        return step(u, i)

    grad(lambda u: np.sum(timeloop(counted, u, steps, schedule=schedule, progress=False)))(u)
    return ran[0]


# pyadjoint, with the smallest type that it can tape: an array, the block of a step, and the block of the misfit.


def pyadjoint_gradient(u: Any, steps: int, snapshots: int, ran: list[int] | None = None) -> Any:
    """Return the gradient by a new tape; counts forward steps in *ran*."""
    import checkpoint_schedules
    import pyadjoint

    Vector, StepBlock, MisfitBlock = pyadjoint_types(ran if ran is not None else [0])
    schedule = checkpoint_schedules.MultistageCheckpointSchedule(steps, snapshots, 0)
    with pyadjoint.set_working_tape() as tape:
        pyadjoint.continue_annotation()
        tape.enable_checkpointing(schedule)
        start = state = Vector(u)
        control = pyadjoint.Control(start)
        for _ in tape.timestepper(iter(range(steps))):
            state = StepBlock.applied(state)
        misfit = MisfitBlock.applied(state)
        found = pyadjoint.compute_derivative(misfit, control, tape=tape)
        pyadjoint.pause_annotation()
        return found.data


def pyadjoint_types(ran: list[int]) -> tuple[Any, Any, Any]:
    """Return an overloaded type that holds an array, and the blocks of a step and of the misfit."""
    import pyadjoint

    def forward(u: Any) -> Any:
        ran[0] += 1
        return step(u.copy(), 0)

    class Vector(pyadjoint.OverloadedType):
        def __init__(self, data: Any) -> None:
            super().__init__()
            self.data = data

        def __add__(self, other: Any) -> Any:
            return Vector(self.data + other.data)

        @classmethod
        def _ad_init_object(cls, value: Any) -> Any:
            return value if isinstance(value, cls) else cls(value)

        def _ad_init_zero(self, dual: bool = False) -> Any:
            return Vector(np.zeros_like(self.data))

        def _ad_create_checkpoint(self) -> Any:
            return Vector(self.data.copy())

        def _ad_restore_at_checkpoint(self, checkpoint: Any) -> Any:
            return checkpoint

        def _ad_copy(self) -> Any:
            return Vector(self.data.copy())

    def recorded(block: Any, state: Any, value: Any) -> Any:
        block.add_dependency(state)
        pyadjoint.get_working_tape().add_block(block)
        block.add_output(value.create_block_variable())
        return value

    class StepBlock(pyadjoint.Block):
        @classmethod
        def applied(cls, state: Any) -> Any:
            return recorded(cls(), state, Vector(forward(state.data)))

        def recompute_component(self, inputs: Any, block_variable: Any, idx: Any, prepared: Any) -> Any:
            return Vector(forward(inputs[0].data))

        def evaluate_adj_component(self, inputs: Any, adj_inputs: Any, *_: Any, **__: Any) -> Any:
            return Vector(step_back(inputs[0].data, adj_inputs[0].data))

    class MisfitBlock(pyadjoint.Block):
        @classmethod
        def applied(cls, state: Any) -> Any:
            return recorded(cls(), state, pyadjoint.AdjFloat(0.5 * np.sum(state.data**2)))

        def recompute_component(self, inputs: Any, block_variable: Any, idx: Any, prepared: Any) -> Any:
            return pyadjoint.AdjFloat(0.5 * np.sum(inputs[0].data ** 2))

        def evaluate_adj_component(self, inputs: Any, adj_inputs: Any, *_: Any, **__: Any) -> Any:
            return Vector(inputs[0].data * adj_inputs[0])

    return Vector, StepBlock, MisfitBlock


# equinox.


def equinox_function(steps: int, snapshots: int, counted: Callable[[], None] | None = None) -> Any:
    """Return the gradient as a function of a JAX array."""
    import equinox.internal
    import jax
    import jax.numpy as jnp

    def body(u: Any, _: Any) -> Any:
        if counted is not None:
            jax.debug.callback(counted)
        left, middle, right = u[:-2], u[1:-1], u[2:]
        flux = middle * (right - left) * (0.5 / SPACING)
        curve = (right - 2.0 * middle + left) * (VISCOSITY / SPACING**2)
        return u.at[1:-1].set(middle + TIME_STEP * (curve - flux)), None

    def misfit(u: Any) -> Any:
        after, _ = equinox.internal.scan(body, u, None, length=steps, kind="checkpointed", checkpoints=snapshots)
        return 0.5 * jnp.sum(after * after)

    return jax.grad(misfit)


def equinox_steps(steps: int, snapshots: int) -> int:
    """Return how many forward steps the loop runs; in a process of its own, as what runs counts itself."""
    import jax

    ran = [0]

    def count() -> None:
        ran[0] += 1

    jax.jit(equinox_function(steps, snapshots, count))(np.linspace(0.0, 1.0, 16)).block_until_ready()
    jax.effects_barrier()
    return ran[0]


def counts_of(cases: tuple[tuple[int, int], ...]) -> None:
    """Print the table of forward steps, as each loop counts them itself on a state of a few numbers."""
    u = np.linspace(0.0, 1.0, 16)
    table = Table("Forward steps of one gradient", PEERS, "no recomputation")
    for steps, snapshots in cases:
        schedule, cells = Revolve(snapshots), []
        found, bar = steps_of(steps, schedule, u), schedule.forward_steps(steps)
        theirs = apart("equinox", "bench.adjoints:equinox_steps", steps=steps, snapshots=snapshots)
        cells.append(MISSING if theirs is None else f"{theirs:,}")
        ran = [0]
        if has_pyadjoint():
            pyadjoint_gradient(u, steps, snapshots, ran)
        cells.append(f"{ran[0]:,}" if ran[0] else MISSING)
        case = f"{steps:,} steps, {snapshots} snapshots"
        table.add(case, f"{found:,}", cells, f"{steps:,}", f"{bar:,}", found == bar)
    table.show()


def has_pyadjoint() -> bool:
    """Return whether pyadjoint can be run with a schedule."""
    return installed("pyadjoint") and installed("checkpoint_schedules")


def peers_of(nodes: int, cases: tuple[tuple[int, int], ...], runs: int) -> None:
    """Print the tables of seconds and bytes."""
    u = 0.5 * np.sin(np.linspace(0, 40 * np.pi, nodes))
    heads = tuple(f"{peer}, ratio to ours" for peer in PEERS)
    seconds = Table(f"Seconds of one gradient, {nodes:,} nodes", heads, "by hand, ratio")
    held = Table(f"Peak bytes in states of {u.nbytes:,} bytes", PEERS, "by hand, all kept")
    for steps, snapshots in cases:
        case, hand = f"{steps} steps, {snapshots} snapshots", by_hand(u, steps)
        ours = gradient(steps, Revolve(snapshots))
        calls: dict[str, Callable[[], Any]] = {"ours": lambda f=ours: f(u), "by hand": lambda n=steps: by_hand(u, n)}
        if has_pyadjoint():
            calls["pyadjoint"] = lambda n=steps, s=snapshots: pyadjoint_gradient(u, n, s)
        peaks = {name: peak_bytes(call) for name, call in calls.items()}
        if installed("equinox"):
            import jax

            jax.config.update("jax_enable_x64", True)
            function = equinox_function(steps, snapshots)
            compiled = jax.jit(function)
            calls["equinox"] = lambda f=compiled: np.asarray(f(u))
            peaks["equinox"] = jax_peak(function, u)
        for call in calls.values():
            np.testing.assert_allclose(call(), hand, rtol=1e-9, atol=1e-12)
        times = alternate(calls, runs)
        ratios = [str(ratio(times, peer, "ours")) if peer in times else MISSING for peer in PEERS]
        seconds.add(case, median_of(times, "ours", 1.0, 3), ratios, str(ratio(times, "by hand", "ours")), "", None)
        cells = [in_units(peaks.get(peer), u.nbytes, peer) for peer in PEERS]
        bar = (snapshots + WORK) * u.nbytes
        hand_cell, bar_cell = in_units(peaks["by hand"], u.nbytes), in_units(bar, u.nbytes)
        held.add(case, in_units(peaks["ours"], u.nbytes), cells, hand_cell, bar_cell, peaks["ours"] <= bar)
    seconds.note("equinox: compiled once before, on all cores; pyadjoint: a new tape for each gradient.")
    held.note("equinox: temporaries and outputs as XLA plans them; all others by tracemalloc.")
    for table in (seconds, held):
        table.show()


def disk_of(nodes: int, steps: int, runs: int) -> None:
    """Print the table of disk against memory, for the same schedules."""
    u = 0.5 * np.sin(np.linspace(0, 40 * np.pi, nodes))
    table = Table(
        f"Disk against memory: {steps} steps, states of {u.nbytes:,} bytes", ("in memory, s", "with a buffer, ratio"),
        "by hand, ratio",
    )  # fmt: skip
    entries = 4 * (u.nbytes + 4096)
    with tempfile.TemporaryDirectory() as directory:
        for schedule in (StoreAll("disk"), Revolve(10), Hierarchical(3, 20, Costs(write=1.0, read=1.0))):
            places: dict[str, Callable[[], Storage]] = {
                "memory": Memory, "disk": lambda: Disk(directory), "buffer": lambda: Disk(directory, buffer=entries),
            }  # fmt: skip
            ours = {name: gradient(steps, schedule, place) for name, place in places.items()}
            calls = {name: lambda f=f: f(u) for name, f in ours.items()}
            calls["by hand"] = lambda: by_hand(u, steps)
            bits = {name: calls[name]().tobytes() for name in places}
            if len(set(bits.values())) != 1:
                raise AssertionError(f"{schedule}: the gradient depends on where the snapshots are")
            times = alternate(calls, runs)
            found = ratio(times, "disk", "memory")
            cells = [median_of(times, "memory", 1.0, 3), str(ratio(times, "buffer", "memory"))]
            hand = str(ratio(times, "by hand", "memory"))
            table.add(str(schedule), f"{found}", cells, hand, f"{BAR_DISK}", found.median <= BAR_DISK)
    table.note("Ours: the ratio of disk to memory, all snapshots there; pages may sit in the page cache.")
    table.show()


def verify_of(nodes: int, steps: int, runs: int) -> None:
    """Print the table of what it costs to compare the steps that run again."""
    u = 0.5 * np.sin(np.linspace(0, 40 * np.pi, nodes))
    table = Table(f"Checking that steps that run again lead to the same: {steps} steps", ("without, s",), "no check")

    def misfit(u: Any, schedule: Schedule, verify: bool) -> Any:
        return np.sum(timeloop(step, u, steps, schedule=schedule, verify=verify, progress=False) ** 2)

    for schedule in (StoreAll(), Revolve(10), Revolve(5)):
        checked, unchecked = (grad(partial(misfit, schedule=schedule, verify=verify)) for verify in (True, False))
        calls = {"with": lambda f=checked: f(u), "without": lambda f=unchecked: f(u)}
        times = alternate(calls, runs)
        without = median_of(times, "without", 1.0, 3)
        table.add(str(schedule), f"{ratio(times, 'with', 'without')}", [without], "1", "", None)
    table.note("Ours: the ratio of the time with the check to that without.")
    table.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    counts_of(((12, 3),) if quick else (*CASES, (1000, 10)))
    peers_of(*((50, ((12, 3),), 1) if quick else (NODES, CASES, RUNS)))
    verify_of(*((50, 12, 1) if quick else (NODES, STEPS, 3 * RUNS)))
    disk_of(*((50, 12, 1) if quick else (NODES, STEPS, RUNS)))


if __name__ == "__main__":
    run(main)
