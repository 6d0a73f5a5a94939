"""Static values are kept once; in wide steps the least budget that is named counts what is beyond the function."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes
from tests.scale import sample

from ebbtide import Budget, BudgetError, checkpoint, grad, hvp, primitive, profile, timeloop, value_and_grad, vjp
from ebbtide.loop.planning.sizes import RESERVE
from ebbtide.schedules import Costs, Hierarchical, Mixed, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk
from ebbtide.tape.blocks import BLOCK
from ebbtide.testing import check_grads

U = np.linspace(0.2, 1.1, 2 * 16384)
STATE = U.nbytes
COLUMN = np.linspace(0.5, 1, 8)[:, None]
VECTOR, SQUARE = np.linspace(0.9, 1.1, U.size), np.eye(64) * 0.9 + 0.001
BESIDE = RESERVE + BLOCK + 4096
STEPS = 5

# Of one operation of NumPy with a static value nothing else counts.
ALONE: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "number": (np.float64(0.7), lambda u, k: u * k + 0.1),
    "bounds": (np.float64(0.7), lambda u, k: np.clip(u, 0.2 * k, k)),
    "table": (np.linspace(0.2, 1, 50), lambda u, k: np.interp(u, np.linspace(0, 1.2, 50), k)),
    "coefficients": (np.linspace(0.1, 0.4, 4), lambda u, k: 0.3 * np.polyval(k, u)),
    "window": (np.array([0.2, 0.5, 0.3]), lambda u, k: np.convolve(u, k, "same")),
    "factor": (VECTOR, lambda u, k: u * k),
    "bound": (VECTOR, lambda u, k: np.clip(u, 0.3, k)),
    "choice": (VECTOR, lambda u, k: np.select([u > 0.8, u > 0.4], [k, u * 0.5], k)),
    "matrix": (SQUARE, lambda u, k: np.tanh(k @ u.reshape(64, -1)).reshape(u.shape)),
    "equations": (SQUARE, lambda u, k: np.linalg.solve(k, u.reshape(64, -1)).reshape(u.shape) * 0.5),
    "deviation of all": (VECTOR, lambda u, k: u * np.std(k) + 0.1),
    "mean of squares": (VECTOR, lambda u, k: u * np.mean(k[1] * 0.5 + k[0]) + 0.1 * np.max(k)),
    "sum of products": (SQUARE, lambda u, k: np.einsum("ij,jk->ik", k, u.reshape(64, -1)).reshape(u.shape)),
}
# What is made of static values alone may be less in the function, and that of functions of several operations.
FURTHER: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "run again": (VECTOR, lambda u, k: checkpoint(lambda u, k: np.median(u * COLUMN * k, axis=0))(0.9 * u, k)),
    "temporary": (np.float64(0.7), lambda u, k: np.prod(u * COLUMN * 0.9 * k * 0.9, axis=0) + 0.1),
    "made of it": (VECTOR, lambda u, k: u * np.sin(0.5 * k)),
    "deviation": (VECTOR * COLUMN, lambda u, k: u * 0.9 + 0.01 * np.std(k, axis=0)),
    "median": (VECTOR * COLUMN, lambda u, k: u * 0.9 + 0.01 * np.median(k, axis=0)),
    "joined": (VECTOR * COLUMN, lambda u, k: np.max(np.concatenate([u * COLUMN, k]), axis=0) * 0.5),
    "padded": (VECTOR * COLUMN, lambda u, k: 0.9 * u + 0.01 * np.max(np.pad(k, 1)[1:-1, 1:-1] * u, axis=0)),
    "covariance": (VECTOR, lambda u, k: u * (1 + 0.01 * np.cov(u, k)[0, 1])),
    "cross product": (VECTOR, lambda u, k: 0.9 * u + 1e-9 * np.cross(u[:-2].reshape(-1, 3), k[:3]).sum()),
    "gradient": (COLUMN[:, 0], lambda u, k: np.max(np.gradient(u * COLUMN, k, axis=0), axis=0) * 0.1),
    "average": (COLUMN[:, 0], lambda u, k: np.average(u * COLUMN, axis=0, weights=k)),
}


def energy(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a scalar of a loop, each step of which is the maximum of eight branches."""

    def f(u: Any, k: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            values = [operation(u * (0.9 + 0.01 * j), k) for j in range(8)]
            while len(values) > 1:
                values = [np.maximum(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
            return values[0]

        return np.sum(timeloop(step, u, STEPS))

    return f


@pytest.mark.parametrize("name", [*ALONE, *sample(list(FURTHER), 3)])
def test_the_function_holds_what_waits(name: str) -> None:
    """The least is what one step saves and 4 states, with the sum for the static value and what a step adds to it."""
    k, operation = (ALONE | FURTHER)[name]
    f = energy(operation)

    def bounded(memory: int) -> Any:
        return grad(f, (0, 1), budget=Budget(memory=memory))(U, k)

    with profile() as p:
        expected = grad(f, (0, 1))(U, k)
    sizes, least = p.loops[-1].plan.sizes, find_least(bounded)
    if name in ALONE:
        # NumPy may have done one with an operator in the memory of a temporary.
        states = 5 if name in ("number", "coefficients", "factor") else 4
        assert least <= sizes.saved + sizes.shared + states * STATE + 2 * k.nbytes + BESIDE
    alone = peak_bytes(lambda: f(U, k))
    for memory in (least, least * 5 // 4, 2 * least):
        found: list[Any] = []
        assert peak_bytes(lambda: found.append(bounded(memory))) - alone <= memory
        assert [g.tobytes() for g in found[0]] == [g.tobytes() for g in expected]


def test_the_sum_for_a_static_value_is_in_memory_of_its_own() -> None:
    """What a step only adds to its state has the cotangent itself: it is another's, and the caller's in the end."""
    seed = np.array([1.0, 2.0, 3.0])
    found = vjp(lambda u, a, b: timeloop(lambda u, i: u + a + b, u, 4), seed, seed, seed)[1](seed)
    assert [g.tolist() for g in (seed, *found)] == [[1, 2, 3], [1, 2, 3], [4, 8, 12], [4, 8, 12]]


def test_the_sum_for_a_static_value_comes_to_have_a_tangent() -> None:
    """The last step adds what is constant to a derivative forwards, as plain NumPy has it, and others what is not."""
    step = lambda u, k, i: u + k if i == 3 else np.sin(u) * k

    def unrolled(k: Any) -> Any:
        u = U[:3]
        for i in range(4):
            u = step(u, k, i)
        return np.sum(u)

    looped = lambda k: np.sum(timeloop(lambda u, i: step(u, k, i), U[:3], 4))
    np.testing.assert_allclose(hvp(looped)(VECTOR[:3], U[:3]), hvp(unrolled)(VECTOR[:3], U[:3]), rtol=1e-14)


# A static value that is large beside the state.

USES: dict[str, Callable[[int], bool]] = {"every third": lambda i: i % 3 == 1, "late": lambda i: i >= 7}
COSTS = Costs(write=1, read=1)
SCHEDULES = (StoreAll(), Revolve(3), Mixed(6), StoreAll("disk"), Periodic(5, 2), Hierarchical(2, 2, COSTS))


def weighted(used: Callable[[int], bool], u: Any, k: Any, steps: int, **options: Any) -> Any:
    """A scalar of a loop of which some steps use a static value."""

    def step(u: Any, i: int) -> Any:
        return u * (1 + 1e-9 * np.sum(k * u[0])) if used(i) else np.sin(u)

    return np.sum(timeloop(step, u, steps, **options))


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_memory_is_that_of_one_copy(schedule: Any, name: str) -> None:
    """However often it is used, beyond the function a static value takes nothing, and its gradient its own bytes."""
    u, k = np.linspace(0.1, 1, 10), np.linspace(0.5, 1.5, 400_000)
    f = lambda u, k: weighted(USES[name], u, k, 20, schedule=schedule)
    grad(f, (0, 1))(u, k)
    alone, given, differentiated = (peak_bytes(lambda: g(u, k)) for g in (f, grad(f), grad(f, (0, 1))))
    assert given - alone < 0.2 * k.nbytes
    assert differentiated - alone < 1.2 * k.nbytes


WRITING = (Revolve(5), StoreAll("disk"), Periodic(10, 3))


@pytest.mark.parametrize(
    ("steps", "schedule"), [*product([100], WRITING), *sample(list(product([1000], WRITING)), 3)], ids=str
)
def test_nothing_of_it_is_written(steps: int, schedule: Any, tmp_path: Path) -> None:
    """The bytes on disk are those of states and of what steps save, whatever the size of a static value."""

    def written(used: Callable[[int], bool], size: int) -> int:
        with Disk(tmp_path) as disk:
            k = np.linspace(0.5, 1.5, size)
            f = lambda u, k: weighted(used, u, k, steps, schedule=schedule, storage=disk)
            grad(f, (0, 1))(np.linspace(0.1, 1, 10), k)
            return disk.bytes_written

    small, large = ([written(used, size) for used in USES.values()] for size in (4, 20_000))
    assert large == small
    # States are the same however often it is used; what a step saves is not.
    assert len(set(small)) == 1 or schedule == StoreAll("disk")


@pytest.mark.parametrize("disk", [0, 400])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("first", [1, 7, 39])
def test_one_that_comes_late_is_refused_once_more(first: int, rows: int, disk: int) -> None:
    """Of a static value that no first step met a refusal after the forward run tells, with a budget that does."""
    k = np.linspace(0.5, 1.5, rows * U.size)

    def step(u: Any, k: Any, i: int) -> Any:
        if i < first:
            return 0.9 * np.sin(u) + 0.01 * u
        return 0.9 * np.sin(u) + 0.01 * np.sum(k.reshape(rows, -1), axis=0) * u

    f = lambda u, k: np.sum(timeloop(lambda u, i: step(u, k, i), u, 40) ** 2)
    bounded = lambda memory: grad(f, (0, 1), budget=Budget(memory=memory, disk=disk * STATE))(U, k)
    named, found = [STATE], []
    while not found:
        # Of a step that is wider than the first, with disk, the sweep may tell of some more bytes.
        assert len(named) <= 3 + (disk > 0)
        try:
            peak = peak_bytes(lambda: found.append(bounded(named[-1]))) - peak_bytes(lambda: f(U, k))
        except BudgetError as error:
            named.append(error.least)
    expected = [g.tobytes() for g in grad(f, (0, 1))(U, k)]
    assert STATE < named[1] < named[2] <= named[-1] <= (8 + 4 * rows) * STATE
    assert peak <= named[-1]
    assert [g.tobytes() for g in found[0]] == expected


@pytest.mark.parametrize("view", [lambda k: k, lambda k: k[:]], ids=["itself", "a view"])
@pytest.mark.parametrize(("states", "steps"), [(12, 56), (16, 42), (24, 35), (32, 32)])
def test_one_that_code_before_has_saved_is_no_part_of_what_a_step_saves(states: int, steps: int, view: Any) -> None:
    """It was taken off what a step saves, which never had it: 72, 46, 45 and 35 steps for plans that did not fit."""

    def f(u: Any) -> Any:
        k = np.tanh(u)
        step = lambda v, i: (v - 0.1 * v * (np.roll(v, -1) - np.roll(v, 1))) * view(k)
        return np.sum(timeloop(step, u, 20, costs=Costs(forward=1.0, reverse=2.0)))

    x = np.linspace(0.1, 1, 131_072)
    with profile() as p:
        found = grad(f, budget=Budget(memory=states * x.nbytes))(x)
    sizes = p.loops[0].plan.sizes
    assert sizes.shared == 0
    assert 3 * x.nbytes <= sizes.saved <= 3.1 * x.nbytes
    assert p.steps_forward == p.predicted_steps_forward <= steps
    assert 0.95 * p.predicted_whole_bytes <= p.peak_bytes <= p.predicted_whole_bytes
    assert found.tobytes() == grad(f)(x).tobytes()


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("steps", [20, 40])
@pytest.mark.parametrize("disk", [0, 400])
def test_one_that_a_checkpointed_function_has_saved(disk: int, steps: int, inner: bool, tmp_path: Path) -> None:
    """While the function is measured its size alone is kept, and a step with it is swept for its time."""

    def f(u: Any) -> Any:
        k = np.tanh(u)
        step = lambda v, i: (v + 0.01 / (1.0 + v)) * k
        return np.sum(timeloop(checkpoint(step) if inner else step, u, steps))

    def run(memory: int) -> Any:
        budget = Budget(memory, disk=disk * STATE, directory=tmp_path)
        return grad(lambda u: checkpoint(f)(u * 1.0), budget=budget)(U)

    with pytest.raises(BudgetError):
        run(1)
    f(U)
    alone, expected = peak_bytes(lambda: f(U * 1.0)), grad(f)(U).tobytes()
    for states in (14, 20, 40):
        found: list[Any] = []
        peak = peak_bytes(lambda states=states, found=found: found.append(run(states * STATE)))
        assert peak - alone <= states * STATE
        assert found[0].tobytes() == expected


def test_a_budget_above_one_that_does_is_not_refused() -> None:
    """Later steps save their state in place of the static value, which is as large: 15 to 21 states were refused."""
    costs = Costs(forward=1.0, reverse=2.0)

    def f(u: Any, c: Any) -> Any:
        d = 1.5 * c
        inner = lambda u: timeloop(lambda v, _: v + 0.01 * np.sin(v * d), u, 4, costs=costs)
        return np.sum(timeloop(lambda u, _: checkpoint(inner)(u), u, 12, costs=costs) ** 2)

    u, c = np.linspace(0.2, 1.1, 20_000), np.linspace(0.5, 1.0, 20_000)
    wanted, alone = [g.tobytes() for g in grad(f, argnums=(0, 1))(u, c)], peak_bytes(lambda: f(u, c))
    for quarters in range(64, 92, 4):
        memory, found = quarters * u.nbytes // 4, list[Any]()
        bounded = grad(f, argnums=(0, 1), budget=Budget(memory=memory))
        assert peak_bytes(lambda bounded=bounded, found=found: found.extend(bounded(u, c))) - alone <= memory
        assert [g.tobytes() for g in found] == wanted


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a number": lambda u, k, c: operator.setitem(u, 0, c),
    "elements": lambda u, k, c: operator.setitem(u, slice(1, 3), k),
    "chosen ones": lambda u, k, c: operator.setitem(u, u > 0.7, c),
    "by place": lambda u, k, c: operator.setitem(u.flat, 0, c),
    "fill": lambda u, k, c: u[:2].fill(c),
    "put": lambda u, k, c: np.put(u, [0, 2], k),
    "method": lambda u, k, c: u.put([0, 2], k),
    "copy": lambda u, k, c: np.copyto(u[1:3], k),
    "mask": lambda u, k, c: np.putmask(u, u > 0.7, k),
    "diagonal": lambda u, k, c: np.fill_diagonal(u[:4].reshape(2, 2), k),
    "at": lambda u, k, c: np.add.at(u, [0, 0], k),
    "insert": lambda u, k, c: operator.setitem(u, ..., np.insert(u, 1, k)[:-2]),
    "limits": lambda u, k, c: operator.setitem(u, ..., u.clip(0.3, c)),
    "line": lambda u, k, c: operator.setitem(u, ..., np.linspace(0.1, c, 5)),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_into_the_state(name: str) -> None:
    """A step writes a control into its state, as a boundary value, also where it runs again without a tape."""
    u, k, c = np.linspace(0.3, 1.1, 5), np.array([0.6, 0.4]), np.float64(0.65)

    def step(u: Any, k: Any, c: Any) -> Any:
        u *= 0.9
        WRITES[name](u, k, c)
        return u + 0.1 * np.sin(u)

    def total(k: Any, c: Any, schedule: Any = None) -> Any:
        return np.sum(timeloop(lambda u, i: step(u, k, c), u, 6, schedule=schedule) ** 2)

    def checkpointed(k: Any, c: Any) -> Any:
        return np.sum(checkpoint(lambda u: step(step(u, k, c), k, c))(u * k[1]) ** 2)

    slopes = value_and_grad(total, (0, 1))
    value, gradients = slopes(k, c, StoreAll())
    assert value == total(k, c)
    for other in (Revolve(1), Revolve(3), None):
        assert [x.tobytes() for x in slopes(k, c, other)[1]] == [x.tobytes() for x in gradients]
    assert value_and_grad(checkpointed)(k, c)[0] == checkpointed(k, c)
    check_grads(total, k, c, order=1)
    check_grads(checkpointed, k, c, order=1)


@pytest.mark.parametrize("since", [10.0, 2.4])
@pytest.mark.parametrize("failed", [3, 7, 9])
def test_what_a_condition_uses_is_no_static_value(
    failed: int, since: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What until= alone computes with has no derivative, and is not missed where a run goes on that was left."""
    monkeypatch.setenv("RAN", "0")

    def seen(g: Any) -> Any:
        monkeypatch.setenv("RAN", str(int(os.environ["RAN"]) + 1))
        if os.environ["RAN"] == os.environ["FAILED"]:
            raise ArithmeticError
        return g

    copied = primitive(lambda u: seen(np.array(u)), vjp=(seen,))

    def total(u: Any, k: Any) -> Any:
        def until(v: Any) -> Any:
            return np.sum(v) < since and np.sum(v) < 2.2 * (k * 2.0 > 1.0)

        return k * np.sum(timeloop(lambda v, i: np.sin(copied(v)), u, until=until, max_steps=7, resume_every=1))

    def slopes(failing: int, resume: Path | None = None) -> list[bytes]:
        monkeypatch.setenv("RAN", "0")
        monkeypatch.setenv("FAILED", str(failing))
        return [x.tobytes() for x in grad(total, (0, 1), resume=resume)(np.ones(4), np.float64(1.2))]

    expected = slopes(-1)
    with pytest.raises(ArithmeticError):
        slopes(failed, tmp_path / "run")
    assert slopes(-1, tmp_path / "run") == expected
