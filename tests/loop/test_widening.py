"""Loops whose steps come to save more than planned: within the budget, and refused at none above one that is enough."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes
from tests.scale import FULL

import ebbtide
from ebbtide import Budget, BudgetError, grad, timeloop
from ebbtide.schedules import Costs, Mixed, StoreAll

U = np.linspace(0.2, 1.1, 16384)
STATE = U.nbytes
# Each of these was refused or passed its budget at one of the multiples, before loops kept a way back; the last one,
# where nobody looked at what the function alone takes.
SEEDS = range(300) if FULL else (3, 10, 11, 14, 17, 20, 25, 46, 54, 272)
MULTIPLES = (1.0, 1.07, 1.2, 1.35, 1.6, 2.0, 2.6, 3.5)
OPERATIONS: tuple[Callable[[Any], Any], ...] = (
    lambda u: u + 0.01 * np.sin(u), lambda u: u * (1 - 0.001 * np.cos(u)), lambda u: np.maximum(u, 0.5 * u * u),
)  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """A loop whose steps do one operation so often each."""

    operation: Callable[[Any], Any]
    widths: tuple[int, ...]

    def step(self, u: Any, i: Any) -> Any:
        """Do it as often as this step does."""
        for _ in range(self.widths[int(i)]):
            u = self.operation(u)
        return u

    def energy(self, u: Any, **options: Any) -> Any:
        """A scalar of the last state."""
        return np.sum(timeloop(self.step, u, len(self.widths), **options) ** 2)


def drawn(seed: int) -> Loop:
    """Return a loop of up to 60 steps: some are wider, each than those before, all from one on, or just one is."""
    random = np.random.default_rng(seed)
    steps, kind, base = int(random.integers(6, 60)), random.integers(4), int(random.integers(1, 4))
    if kind == 0:
        widths = [base + int(random.integers(0, 12)) * (random.random() < 0.15) for _ in range(steps)]
    elif kind == 1:
        widths = [base + i * int(random.integers(1, 4)) // 8 for i in range(steps)]
    else:
        at = int(random.integers(1, steps))
        widths = [base + (8 if kind == 2 and i >= at else 10 if i == at else 0) for i in range(steps)]
    return Loop(OPERATIONS[int(random.integers(3))], (base, *widths[1:]))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_loops(seed: int) -> None:
    """From the least on that refusals come to, all budgets are kept, with the bits of one that keeps everything."""
    loop = drawn(seed)
    loop.energy(U)
    alone = peak_bytes(lambda: loop.energy(U))
    expected = grad(lambda u: loop.energy(u, schedule=StoreAll()))(U).tobytes()
    least = find_least(lambda memory: grad(loop.energy, budget=Budget(memory=memory))(U))
    for memory in [int(least * multiple) for multiple in MULTIPLES]:
        found: list[Any] = []
        bounded = grad(loop.energy, budget=Budget(memory=memory))
        assert peak_bytes(lambda: found.append(bounded(U))) - alone <= memory
        assert found[0].tobytes() == expected


# The same beside what else there is in loops, with a disk that has room for some of it.

K, F = np.linspace(0.5, 1.5, U.size), np.linspace(-1e-3, 1e-3, 60 * U.size).reshape(60, U.size)
COLUMN = np.array([[1.0], [0.9], [0.8], [0.7]])


def written(u: Any) -> Any:
    """Write into an array, and return it."""
    u *= 1 - 0.01 * u
    return u


def pairs(loop: Loop, u: Any, k: Any, **options: Any) -> Any:
    """A loop over two arrays."""

    def step(s: Any, i: Any) -> Any:
        return 0.5 * s[1] + 0.5 * loop.step(s[0], i), s[0]

    return timeloop(step, (u, 0.9 * u), len(loop.widths), **options)[0]


def emitting(loop: Loop, u: Any, k: Any, **options: Any) -> Any:
    """A loop with outputs."""

    def step(u: Any, i: Any) -> Any:
        u = loop.step(u, i)
        return u, np.sum(u)

    last, sums = timeloop(step, u, len(loop.widths), outputs=True, **options)
    return last * np.sum(sums)


def wider(operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A loop whose steps do an operation with a static value."""

    def run(loop: Loop, u: Any, k: Any, **options: Any) -> Any:
        return timeloop(Loop(lambda u: operation(u, k), loop.widths).step, u, len(loop.widths), **options)

    return run


WAYS: dict[str, Callable[..., Any]] = {
    "static": wider(lambda u, k: u + 0.01 * np.sin(k * u)),
    "linear": wider(lambda u, k: 0.3 * u + 0.7 * np.roll(u, 1) * k),
    "rows": wider(lambda u, k: 0.2 * np.max(u * COLUMN, axis=0) + 0.8 * u),
    "written": wider(lambda u, k: written(u)),
    "inputs": lambda loop, u, k, **options: timeloop(
        lambda u, x: loop.step(u, x[0]) + x[1],
        u,
        len(loop.widths),
        inputs=list(enumerate(F[: len(loop.widths)])),
        **options,
    ),
    "outputs": emitting,
    "pairs": pairs,
    "two": lambda loop, u, k, **options: timeloop(
        loop.step, np.sin(timeloop(loop.step, u, len(loop.widths), **options)), len(loop.widths), **options
    ),
}
# Of those that passed their budgets before: with a disk that is full, as errors kept what could not be stored; where
# the state that a step starts from was paged, and stayed in memory; by sums for static values; by storages of pages.
# Without a disk of those that were refused: by the records of steps that were gone; where another loop gave up as much
# while a step ran, so that what that saved was taken for less.
DISKS = (
    [(way, seed, disk) for way in WAYS for seed in range(20) for disk in (0, 40, 400)] if FULL else
    [("static", 0, 40), ("linear", 8, 0), ("linear", 5, 0), ("rows", 77, 40), ("written", 148, 40), ("inputs", 28, 40),
     ("outputs", 56, 40), ("pairs", 12, 40), ("two", 8, 0)]
)  # fmt: skip


@pytest.mark.parametrize(("way", "seed", "disk"), DISKS)
@pytest.mark.filterwarnings("ignore:The .* values of step .* of a time loop are lost:RuntimeWarning")
def test_budgets_are_kept_in_all_loops(way: str, seed: int, disk: int, tmp_path: Path) -> None:
    """Whatever there is of disk no budget is passed, and without any none is refused above one that is enough."""
    loop = drawn(seed)

    def f(u: Any, k: Any, **options: Any) -> Any:
        return np.sum(WAYS[way](loop, u, k, **options) ** 2)

    def bounded(memory: int) -> Any:
        return grad(f, (0, 1), budget=Budget(memory=memory, disk=disk * STATE, directory=tmp_path))(U, K)

    f(U, K)
    alone = peak_bytes(lambda: f(U, K))
    expected = grad(lambda u, k: f(u, k, schedule=StoreAll()), (0, 1))(U, K)
    least = find_least(bounded)
    for memory in [int(least * multiple) for multiple in MULTIPLES]:
        found: list[Any] = []
        with suppress(BudgetError) if disk else nullcontext():
            assert peak_bytes(lambda: found.append(bounded(memory))) - alone <= memory
            assert [g.tobytes() for g in found[0]] == [g.tobytes() for g in expected]
    assert list(tmp_path.iterdir()) == []


def test_a_loop_goes_back_to_its_initial_state() -> None:
    """Where a step is wide among the first, which run again last, those before it give up what they saved."""
    loop, plans = Loop(OPERATIONS[0], tuple(12 if i == 3 else 1 for i in range(40))), list[Any]()
    expected = grad(lambda u: loop.energy(u, schedule=StoreAll()))(U)
    with ebbtide.profile(on_plan=plans.append) as p:
        found = grad(loop.energy, budget=Budget(memory=20 * STATE))(U)
    assert found.tobytes() == expected.tobytes()
    before, after = plans[0], plans[-1]
    assert isinstance(before.schedule, Mixed)
    assert after.sizes.saved > 5 * before.sizes.saved
    assert p.steps_forward == p.predicted_steps_forward > before.predicted_steps_forward


@pytest.mark.parametrize("states", [8, 12, 16, 24, 32])
def test_equal_steps_run_as_planned(states: int) -> None:
    """Where no step saves more than planned, the way back that is kept costs no step and no byte."""
    loop, plans = Loop(OPERATIONS[0], (1,) * 60), list[Any]()
    alone = peak_bytes(lambda: loop.energy(U))
    call = grad(loop.energy, budget=Budget(memory=states * STATE))
    with ebbtide.profile(on_plan=plans.append) as p:
        call(U)
    assert p.steps_forward == plans[0].predicted_steps_forward
    assert len({plan.schedule for plan in plans}) == 1
    assert peak_bytes(lambda: call(U)) - alone <= plans[0].predicted_peak_bytes <= states * STATE


def test_wider_steps_leave_room_for_what_no_ledger_counts() -> None:
    """A slope takes four arrays for a moment; of steps that saved more than planned they passed most budgets by 0.7."""
    u = np.linspace(0.2, 1.1, 60_000)
    coefficient = np.linspace(0.5, 1.0, u.size)

    def moved(u: Any) -> Any:
        v = u.copy()
        v[1:-1] += 0.1 * (u[2:] - u[:-2])
        return v

    def step(u: Any, i: Any) -> Any:
        for _ in range(1 + 2 * int(i) % 3):
            u = moved(u)
            u = u + 0.01 * np.sin(u)
            u = moved(u * np.exp(-0.01 * u))
        return u + 0.01 * coefficient * u

    def energy(u: Any) -> Any:
        after = timeloop(step, u, 28)
        return np.sum(after * after)

    expected, alone = grad(energy)(u), peak_bytes(lambda: energy(u))
    least = find_least(lambda memory: grad(energy, budget=Budget(memory=memory))(u))
    for multiple in (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4):
        memory = int(multiple * least)
        bounded = grad(energy, budget=Budget(memory=memory))
        try:
            assert np.array_equal(bounded(u), expected)
        except BudgetError:
            assert memory < least
            continue
        assert peak_bytes(lambda bounded=bounded: bounded(u)) - alone <= memory


def test_a_step_that_is_the_only_way_back_keeps_what_it_saved() -> None:
    """The first step gave up the initial state for what it saved, and then that: the steps after it had no way back."""
    u = np.linspace(0.2, 1.1, 300_000)
    coefficient = np.linspace(0.5, 1.0, u.size)

    def step(u: Any, i: Any) -> Any:
        for _ in range(1 + (i > 2)):
            v = u.copy()
            v[1:-1] += 0.1 * (u[2:] - u[:-2])
            u = v
        return u + 0.01 * coefficient * u

    def energy(u: Any) -> Any:
        after = timeloop(step, u, 5)
        return np.sum(after * after)

    found: list[Any] = []
    find_least(lambda memory: found.append(grad(energy, budget=Budget(memory=memory))(u)))
    assert np.array_equal(found[-1], grad(energy)(u))


def swapped(u: Any, i: Any) -> Any:
    """Return u after four operations, and two more in one late step, which has temporaries when all is saved."""
    u = np.maximum(u, 0.2) * np.cos(u)
    u = np.tanh(u) * u
    u = u * u * 0.5 + 0.1
    u = np.sqrt(1.0 + u * u) - 0.5
    return np.log1p((np.sqrt(1.0 + u * u) - 0.5) ** 2) if i == 18 else u


def filtered(u: Any) -> Any:
    """Return u after a transform and back, of which a step computes with complex numbers."""
    return np.fft.irfft(0.9 * np.fft.rfft(u), u.size)


def transformed(u: Any, i: Any) -> Any:
    """Return u after a step with complex numbers, which runs on a tape each time; two of them are wider."""
    u = filtered(u)
    if i not in (3, 5):
        return np.tanh(u) * u
    u = u / (1.0 + u * u)
    u = np.log1p((u / (1.0 + u * u)) ** 2)
    return 0.1 * np.stack([u, u + 1.0, u + 2.0, u + 3.0]).sum(axis=0) ** 2 + 0.1


def other(u: Any, i: Any) -> Any:
    """Return u after an operation, or after six others in one late step."""
    if i != 4:
        return u + 0.1 * np.sin(u)
    u = 0.5 * np.roll(filtered(u), 1) + 0.5 * u
    u = np.cumsum(np.log1p(np.where(u > 0.3, 0.9 * u, u * u) ** 2)) / u.size
    return 0.1 * (u + 1.0) + 0.2 * (u + 2.0) + (0.3 * (u - 1.0) + 0.2 * (u - 0.5))


@pytest.mark.parametrize(("step", "steps", "multiples"), [
    (swapped, 20, (1.0, 1.28, 1.3, 1.32)), (transformed, 12, (1.0, 1.1)), (other, 6, (1.0, 1.2, 1.5)),
])  # fmt: skip
def test_steps_that_have_more_beside_what_they_save(step: Any, steps: int, multiples: tuple[float, ...]) -> None:
    """What the function alone takes was room for the ledger, too: budgets were passed by 0.3 to 1.3 states."""
    u = np.linspace(0.0, 1.0, 50_000)
    costs = Costs(forward=1.0, reverse=2.0)
    f = lambda u: np.sum(timeloop(step, u, steps, costs=costs) ** 2)
    plain, alone = grad(f)(u), peak_bytes(lambda: f(u))
    least = find_least(lambda memory: grad(f, budget=Budget(memory))(u))
    for times in multiples:
        bounded = grad(f, budget=Budget(int(times * least)))
        assert np.array_equal(bounded(u), plain)
        assert peak_bytes(lambda bounded=bounded: bounded(u)) - alone <= int(times * least)


def rolled(u: Any, i: Any) -> Any:
    """Return u after a step that saves nothing, or two arrays if it is a late one."""
    u = np.cumsum(u) / u.size
    u = 0.5 * np.roll(u, 1) + 0.5 * u
    return np.tanh(u) * u if i > 10 else u


@pytest.mark.filterwarnings("ignore:The saved values of step:RuntimeWarning")  # wider than the room that was planned
@pytest.mark.parametrize("disk", [3, 10])
def test_what_finds_no_room_on_disk_is_given_up_before_an_operation_makes_its_result(disk: int) -> None:
    """The room for it was asked of the disk alone: nearly all budgets were passed, by up to 0.9 states."""
    u = np.linspace(0.0, 1.0, 60_000)
    f = lambda u: np.sum(timeloop(rolled, u, 20, costs=Costs(forward=1.0, reverse=2.0, write=0.3, read=0.3)) ** 2)
    plain, alone = grad(f)(u), peak_bytes(lambda: f(u))
    least = find_least(lambda memory: grad(f, budget=Budget(memory, disk * u.nbytes))(u))
    for times in (1.0, 1.3, 1.6, 1.9):
        bounded = grad(f, budget=Budget(int(times * least), disk * u.nbytes))
        assert np.array_equal(bounded(u), plain)
        assert peak_bytes(lambda bounded=bounded: bounded(u)) - alone <= int(times * least)
