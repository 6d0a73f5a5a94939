"""Every kind of step with every control, by every schedule and storage: one gradient, also at new controls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_schedules import MultistageCheckpointSchedule
from tests.loop.test_matrix import DT, MORE, SCHEDULES, STEPS, Counted, assert_close, assert_same_bits, new, plain_loop
from tests.scale import sample

from ebbtide import Budget, BudgetError, grad, profile
from ebbtide.schedules import StoreAll, from_checkpoint_schedules
from ebbtide.storage import Disk, Memory, Storage, Tiered

MULTISTAGE = from_checkpoint_schedules(MultistageCheckpointSchedule(STEPS, 1, 2))
# For the most part constant in space, so that it can be compressed.
U0 = np.append(np.linspace(0.2, 1.3, 6), np.ones(58))
C0 = 0.4 + 0.5 * U0
FORCING = np.sin(np.arange(float(STEPS)))[:, None] * np.ones(64)


def in_place(u: Any, i: Any, c: Any) -> Any:
    """An explicit step that writes into its state."""
    u[1:-1] += DT * np.sin(c[1:-1] * u[1:-1]) * (u[2:] - u[:-2])
    u[0] = u[1] * 0.5
    return u


def two_levels(state: Any, i: Any, c: Any) -> Any:
    """A scheme of two steps."""
    u, before = state
    f = np.sin(c * u) * np.roll(u, 1)
    return u + DT * (1.5 * f - 0.5 * before), f


def long_range(state: Any, i: Any, c: Any) -> Any:
    """A state that the next three steps depend on."""
    u, kept = state
    return new(u, c) * (1 + DT * kept), (u * 1.0 if i % 3 == 0 else kept)


KINDS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "in place": in_place,
    "new object": lambda u, i, c: new(u, c),
    "two levels": two_levels,
    "long range": long_range,
    "every third": lambda u, i, c: new(u, c) if i % 3 == 1 else new(u),
    "forcing": lambda u, x, c: new(u, c) + DT * x,
}
CONTROLS = {"initial state": (0,), "coefficient": (1,), "both": (0, 1)}
POINTS = ((U0, C0), (0.9 * U0 + 0.05, 1.1 * C0 - 0.02))


def compressing(path: Path) -> Disk:
    """A disk that found compression faster than itself."""
    disk, zeros = Disk(path, compression="lossless"), np.zeros(1000)
    for kind in ("restart", "saved"):
        codec = disk._codecs.of(kind)
        for _ in range(4):
            codec.encode(zeros)
            codec.wrote(zeros.nbytes, 10.0)
    return disk


PLACES: dict[str, Callable[[Path], Storage | None]] = {
    "its own": lambda path: None,
    "memory": lambda path: Memory(),
    "disk": Disk,
    "buffered disk": lambda path: Disk(path, buffer="1 MiB"),
    "tiered": lambda path: Tiered(6 * U0.nbytes, Disk(path)),  # six states in memory, the others on disk
    "compressing": compressing,
}


def energy(kind: str, loop: Any, u: Any, c: Any) -> Any:
    """A scalar of the last state."""
    twofold = kind in ("two levels", "long range")
    step = lambda state, x: KINDS[kind](state, x, c)
    last = loop(step, (u, u) if twofold else u, STEPS, inputs=FORCING.astype(u.dtype) if kind == "forcing" else None)
    return np.sum((last[0] if twofold else last) ** 2)


@cache
def expected(kind: str, control: str) -> list[Any]:
    """The gradients of StoreAll, which are those of a `for` loop to rounding."""
    found, plain = (
        [grad(partial(energy, kind, loop), CONTROLS[control])(*point) for point in POINTS]
        for loop in (Counted(StoreAll()), plain_loop)
    )
    assert_close(found, plain)
    with pytest.raises(AssertionError):
        assert_same_bits(*found)
    return found


# In the gate each kind of step has each control, in one place or another.
@pytest.mark.parametrize(("kind", "control", "place"), sample(list(product(KINDS, CONTROLS, PLACES)), 4))
def test_original_control_new_control_and_again(kind, control, place, tmp_path):
    """Under every schedule and storage the gradient is that of StoreAll, at one control, a new one, and the first."""
    with PLACES[place](tmp_path) or nullcontext() as storage:
        for schedule in (*SCHEDULES, *MORE, MULTISTAGE):
            gradient = grad(partial(energy, kind, Counted(schedule, storage)), CONTROLS[control])
            for k in (0, 1, 0):
                assert_same_bits(gradient(*POINTS[k]), expected(kind, control)[k])
            assert storage is None or storage.keys() == ()


@pytest.mark.parametrize(("kind", "place"), sample(list(product(KINDS, PLACES)), 3))
def test_single_precision(kind, place, tmp_path):
    """A state of float32 comes back in its bits, compressed or not, and its gradient is one of float32."""
    u, c = (one.astype(np.float32) for one in POINTS[0])
    reference = grad(partial(energy, kind, Counted(StoreAll())), (0, 1))(u, c)
    assert [one.dtype for one in reference] == [np.float32, np.float32]
    with PLACES[place](tmp_path) or nullcontext() as storage:
        for schedule in (*SCHEDULES, *MORE, MULTISTAGE):
            assert_same_bits(grad(partial(energy, kind, Counted(schedule, storage)), (0, 1))(u, c), reference)


@pytest.mark.parametrize(("kind", "control"), list(product(KINDS, CONTROLS)))
def test_plans_within_budgets(kind: str, control: str) -> None:
    """Whatever schedule a budget leads to, in memory or with disk, the gradient is that of StoreAll."""
    plans = set[str]()
    for disk in (0, 2**20):
        run = partial(energy, kind, Counted(None))
        with pytest.raises(BudgetError) as refused:
            grad(run, CONTROLS[control], budget=Budget(memory=1, disk=disk))(*POINTS[0])
        for more in (0, 6 * U0.nbytes, 2**20):
            gradient = grad(run, CONTROLS[control], budget=Budget(memory=refused.value.least + more, disk=disk))
            for k in (0, 1, 0):
                with profile() as p:
                    found = gradient(*POINTS[k])
                assert_same_bits(found, expected(kind, control)[k])
            plans.add(type(p.loops[0].schedule).__name__)
    assert len(plans) > 1


@pytest.mark.parametrize("schedule", [StoreAll("disk"), MULTISTAGE], ids=["saved values", "states"])
def test_compression_is_at_work(schedule, tmp_path):
    """Where it pays, fewer bytes are written of states and of what steps save."""
    written = []
    for make in (Disk, compressing):
        with make(tmp_path) as disk:
            grad(partial(energy, "new object", Counted(schedule, disk)))(U0, C0)
            written.append(disk.bytes_written)
    assert written[1] < 0.8 * written[0]
