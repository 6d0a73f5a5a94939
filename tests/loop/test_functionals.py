"""Several functionals of one forward run, and all transforms of loops: one number, whatever is kept."""

from __future__ import annotations

import gc
from functools import partial
from itertools import permutations
from typing import Any

import checkpoint_schedules
import numpy as np
import optree
import pytest
from tests.loop.test_matrix import assert_same_bits
from tests.measure import peak_bytes

from ebbtide import (
    Budget,
    checkpoint,
    gauss_newton_product,
    grad,
    hvp,
    jacobian,
    jvp,
    linearize,
    profile,
    timeloop,
    vjp,
    vmap,
)
from ebbtide.schedules import (
    Costs,
    Hierarchical,
    Mixed,
    Online,
    Periodic,
    Revolve,
    Schedule,
    StoreAll,
    from_checkpoint_schedules,
)
from ebbtide.storage import Memory

STEPS = 13
COSTS = Costs(forward=0.001, reverse=0.002, write=0.01, read=0.01)
SCHEDULES = (
    StoreAll(),
    StoreAll("disk"),
    Revolve(1),
    Revolve(4),
    Mixed(8, restart=1, saved=3),
    Hierarchical(2, 2, COSTS),
    Periodic(3, 2),
    Online(3),
    from_checkpoint_schedules(checkpoint_schedules.Revolve(STEPS, 3)),
    from_checkpoint_schedules(checkpoint_schedules.SingleDiskStorageSchedule(), STEPS),
)
U0 = np.linspace(0.2, 1.3, 6)
W = np.cos(np.arange(6.0))
BIG = np.linspace(0.2, 1.3, 20_000)
STATE = BIG.nbytes


class Model:
    """A run with two functionals and its trajectory, which counts its steps."""

    def __init__(self, schedule: Schedule | None = None, storage: Any = None, steps: int = STEPS) -> None:
        self.schedule, self.storage, self.steps, self.count = schedule, storage, steps, 0

    def __call__(self, u: Any, k: Any) -> Any:
        def step(u: Any, i: Any) -> Any:
            self.count += 1
            u = u + 0.1 * np.sin(k * u) * np.roll(u, 1)
            return u, (np.sum(u * u), u[1:3] * k)

        final, (energies, probes) = timeloop(
            step, np.cos(u), self.steps, outputs=True, schedule=self.schedule, storage=self.storage, costs=COSTS
        )
        return np.sum(final**2) * k, np.sum(energies * np.linspace(0, 1, self.steps)), probes


def seeds() -> list[Any]:
    """A cotangent for the first functional, the second, the trajectory, and all together."""
    probes = np.sin(np.arange(2.0 * STEPS)).reshape(STEPS, 2)
    zero = np.float64(0.0)
    return [
        (np.float64(1.0), zero, probes * 0),
        (zero, np.float64(1.0), probes * 0),
        (zero, zero, probes),
        (np.float64(0.3), np.float64(-2.0), probes),
    ]


def separate(schedule: Schedule | None, seed: Any) -> Any:
    """The cotangents of one functional, in a run of its own."""
    return vjp(Model(schedule), U0, np.float64(0.7))[1](seed)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_pullbacks_in_any_order(schedule):
    """Each pullback of one run gives the bits of a run of its own; the forward sweep runs once."""
    expected = [separate(StoreAll(), seed) for seed in seeds()]
    for order in [*list(permutations(range(4)))[::5], (0, 0, 1, 0)]:
        model = Model(schedule)
        _, pullback = vjp(model, U0, np.float64(0.7), retain=True)
        assert model.count == STEPS
        for k in order:
            found = pullback(seeds()[k])
            assert_same_bits(found, expected[k])
            found[0][...] = np.nan
        if isinstance(schedule, StoreAll):
            assert model.count == STEPS
        else:
            # No forward sweep again: what runs is at most that of a sweep from the first snapshot.
            assert model.count <= STEPS + 4 * schedule.forward_steps(STEPS)


def test_gradients_of_the_functionals():
    """A pullback of one functional is its gradient, and a sum of cotangents gives the sum."""
    _, pullback = vjp(Model(Revolve(3)), U0, np.float64(0.7), retain=True)
    for k in range(2):
        gradient = grad(lambda u, c, k=k: Model()(u, c)[k], argnums=(0, 1))(U0, np.float64(0.7))
        for a, b in zip(pullback(seeds()[k]), gradient, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    e = 1e-6
    slope = sum(np.sum(g * d) for g, d in zip(pullback(seeds()[1]), (W, 0.2), strict=True))
    plus, minus = (Model()(U0 + s * e * W, 0.7 + s * e * 0.2)[1] for s in (1, -1))
    np.testing.assert_allclose(slope, (plus - minus) / (2 * e), rtol=1e-7)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_two_runs_interleaved(schedule):
    """Pullbacks of two runs that share a storage, in turns, do not see each other."""
    with Memory() as storage:
        pulls = [vjp(Model(schedule, storage), U0 * s, np.float64(0.7), retain=True)[1] for s in (1.0, 1.1)]
        expected = [vjp(Model(), U0 * s, np.float64(0.7))[1](seeds()[3]) for s in (1.0, 1.1)]
        for k in (0, 1, 1, 0, 1):
            assert_same_bits(pulls[k](seeds()[3]), expected[k])
        for pull in pulls:
            pull.free()
        del pull, pulls
        assert storage.keys() == ()


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(3), Mixed(8, restart=1, saved=3)], ids=str)
def test_snapshots_are_shared(schedule):
    """Three functionals hold what one holds: another pullback adds no snapshot."""

    def f(u):
        u = timeloop(lambda u, _: u + 0.1 * np.sin(u), u, 20, schedule=schedule)
        return np.sum(u), np.sum(u**2), np.sum(u**3)

    def run(count):
        _, pullback = vjp(f, BIG, retain=True)
        for k in range(count):
            pullback(tuple(np.float64(k == j) for j in range(3)))

    one = peak_bytes(lambda: run(1))
    assert peak_bytes(lambda: run(3)) <= one + STATE // 8


@pytest.mark.parametrize("states", [12, 20, 40])
@pytest.mark.parametrize("disk", [0, "100 MiB"])
def test_budget_of_several_functionals(states, disk, tmp_path):
    """The run and all pullbacks keep within the budget, with the bits of no budget."""

    def f(u):
        u = timeloop(lambda u, _: u + 0.1 * np.sin(u) * np.cos(u), u, 30, costs=COSTS)
        return np.sum(u), np.sum(u**2)

    budget = Budget(memory=states * STATE, disk=disk, directory=tmp_path)
    alone = peak_bytes(lambda: f(BIG))
    pulls: list[Any] = []
    assert peak_bytes(lambda: pulls.append(vjp(f, BIG, retain=True, budget=budget)[1])) - alone <= budget.memory
    held: list[Any] = []

    def run():
        pull = vjp(f, BIG, retain=True, budget=budget)[1]
        held[:] = [pull((np.float64(k == 0), np.float64(k == 1)))[0] for k in (0, 1, 0)]

    # Results of earlier pullbacks are the caller's: two of them lie beside the last sweep.
    assert peak_bytes(run) - alone - 2 * STATE <= budget.memory
    for k, found in zip((0, 1, 0), held, strict=True):
        assert_same_bits(found, grad(lambda u, k=k: f(u)[k])(BIG))
    pulls[0].free()
    del pulls[:]
    gc.collect()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_loop_that_sheds_can_be_pulled_back_again():
    """A loop that gave up snapshots for what comes after it gives the same bits each time."""

    def f(u):
        u = timeloop(lambda u, _: u + 0.1 * np.sin(u) * np.cos(u), u, 30, costs=COSTS)
        wide = np.concatenate([u] * 6)
        doubled = wide * 2.0
        return np.sum(doubled), np.sum(u)

    expected = [grad(lambda u, k=k: f(u)[k])(BIG) for k in range(2)]
    with profile() as p:
        _, pullback = vjp(f, BIG, retain=True, budget=Budget(memory=20 * STATE))
        for k in (0, 1, 1, 0):
            assert_same_bits(pullback((np.float64(k == 0), np.float64(k == 1)))[0], expected[k])
    assert p.loops[0].plan.schedule != p.loops[0].schedule


# All transforms of one loop.


def scalar(schedule: Schedule | None, u: Any, k: Any) -> Any:
    """One number of a run."""
    return Model(schedule)(u, k)[1]


def derivatives(schedule: Schedule | None) -> dict[str, Any]:
    """All transforms of a loop under a schedule."""
    f, k = Model(schedule), np.float64(0.7)
    v = (W, np.float64(0.2))
    _, pushforward = linearize(f, U0, k)
    return {
        "jvp": jvp(f, (U0, k), v),
        "linearize": pushforward(*v),
        "vjp": vjp(f, U0, k)[1](seeds()[3]),
        "hvp": hvp(partial(scalar, schedule), argnums=(0, 1))(U0, k, v),
        "gauss_newton": gauss_newton_product(f, argnums=(0, 1))(U0, k, v),
        "gauss_newton_loss": gauss_newton_product(
            f, lambda r: np.sqrt(1 + r[0] ** 2) + r[1] ** 4 + np.sum(np.exp(r[2])), argnums=(0, 1)
        )(U0, k, v),
    }


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
def test_all_transforms_are_those_of_store_all(schedule):
    """Forward, reverse and second derivatives and Gauss-Newton products have the bits of StoreAll."""
    found, expected = derivatives(schedule), derivatives(StoreAll())
    for name, known in expected.items():
        assert_same_bits(optree.tree_leaves(found[name]), optree.tree_leaves(known))


def test_transforms_fit_together():
    """J v and J^T w are transposes, Gauss-Newton products are J^T J v, Hessians are differences of gradients."""
    found = derivatives(Revolve(3))
    push = sum(np.sum(a * b) for a, b in zip(found["jvp"][1], seeds()[3], strict=True))
    pull = sum(np.sum(a * b) for a, b in zip(found["vjp"], (W, 0.2), strict=True))
    np.testing.assert_allclose(push, pull, rtol=1e-12)
    again = vjp(Model(), U0, np.float64(0.7))[1](found["jvp"][1])
    assert_same_bits(found["gauss_newton"], again)
    square = sum(np.sum(t * t) for t in found["jvp"][1])
    inner = sum(np.sum(a * b) for a, b in zip(found["gauss_newton"], (W, 0.2), strict=True))
    np.testing.assert_allclose(inner, square, rtol=1e-12)
    e = 1e-6
    gradient = grad(partial(scalar, None), argnums=(0, 1))
    plus, minus = (gradient(U0 + s * e * W, np.float64(0.7 + s * e * 0.2)) for s in (1, -1))
    for product, a, b in zip(found["hvp"], plus, minus, strict=True):
        np.testing.assert_allclose(product, (a - b) / (2 * e), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("states", [20, 40])
@pytest.mark.parametrize("transform", ["hvp", "gauss_newton"])
def test_budget_of_second_derivatives(transform, states):
    """Products of a loop keep within the budget, beside the tangents of forward mode, with the bits of no budget."""

    def final(u):
        return timeloop(lambda u, _: u + 0.1 * np.sin(u) * np.cos(u), u, 40, costs=COSTS)

    v = np.cos(BIG)
    f = (lambda u: np.sum(final(u) ** 2)) if transform == "hvp" else final
    product = {"hvp": hvp, "gauss_newton": gauss_newton_product}[transform]
    bounded = product(f, budget=Budget(memory=states * STATE))
    alone = peak_bytes(lambda: jvp(f, (BIG,), (v,)))
    assert peak_bytes(lambda: bounded(BIG, v)) - alone <= states * STATE
    with profile() as p:
        found = bounded(BIG, v)
    assert_same_bits(found, product(f)(BIG, v))
    if states == 20:
        assert p.loops[0].steps_forward > 40


@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(3), Mixed(8, restart=1, saved=3)], ids=str)
def test_functionals_that_are_pulled_back_together_share_all_steps(schedule):
    """A batch of cotangents takes the steps of one; so does the Jacobian."""
    model, seeds = Model(schedule), np.eye(3)
    f = lambda u: np.stack([u[0] * 1.0, *model(u, np.float64(0.7))[:2]])
    _, pullback = vjp(f, U0)
    (found,) = vmap(pullback)(seeds)
    assert model.count == schedule.forward_steps(STEPS)
    for row, seed in zip(found, seeds, strict=True):
        np.testing.assert_allclose(row, vjp(f, U0)[1](seed)[0], rtol=1e-12, atol=1e-15)
    model.count = 0  # that of the rows is more
    np.testing.assert_allclose(jacobian(f)(U0), found, rtol=1e-12, atol=1e-15)
    assert model.count == schedule.forward_steps(STEPS)


class Nested:
    """A loop of loops that use what is outside, which counts the steps of both."""

    def __init__(self, outer: Schedule | None, inner: Schedule | None, until: Any = None) -> None:
        self.outer, self.inner, self.until, self.count = outer, inner, until, [0, 0]

    def __call__(self, u: Any, k: Any = 0.7) -> Any:
        def small(v: Any, w: Any) -> Any:
            self.count[1] += 1
            return 0.9 * v + 0.1 * np.sin(w) * k

        def step(w: Any, i: Any) -> Any:
            self.count[0] += 1
            steps = {"steps": 4} if self.until is None else {"until": self.until, "max_steps": 6}
            return w + 0.1 * timeloop(lambda v, j: small(v, w), w * u, schedule=self.inner, **steps)

        return timeloop(step, u, 7, schedule=self.outer)

    def counted(self, call: Any) -> tuple[Any, list[int]]:
        """What a call returns, and how many steps of both loops it took."""
        self.count = [0, 0]
        return call(), self.count


@pytest.mark.parametrize("until", [None, lambda v: np.sum(v) > 6.5], ids=["steps", "until"])
@pytest.mark.parametrize("inner", [StoreAll(), Revolve(1), None], ids=str)
@pytest.mark.parametrize("outer", [StoreAll(), Revolve(2), Mixed(4, restart=1, saved=3)], ids=str)
def test_functionals_share_the_steps_of_loops_inside(outer, inner, until):
    """A batch of cotangents runs the steps of a loop of loops as often as one does, and gives the bits of each."""
    f, seeds = Nested(outer, inner, until), np.array([W, U0, U0 * 0])

    def pulled(seed: Any) -> Any:
        return vjp(f, U0)[1](seed)[0]

    singly = [f.counted(partial(pulled, seed)) for seed in seeds]
    found, count = f.counted(lambda: vmap(vjp(f, U0)[1])(seeds)[0])
    for row, (alone, steps) in zip(found, singly, strict=True):
        assert_same_bits(row, alone)
        if inner is not None:  # what is measured depends on the time that it takes
            assert count == steps
    rows = jacobian(lambda u: f(u)[:3], mode="reverse")(U0)
    assert_same_bits(rows, np.stack([pulled(seed) for seed in np.eye(6)[:3]]))


@pytest.mark.parametrize("second", [StoreAll(), Revolve(1)], ids=str)
@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
def test_pullback_in_a_step_of_another_loop(schedule, second):
    """A retained pullback is a linear function that a step, a checkpoint and a linearized function may call."""
    pullback = vjp(Nested(schedule, Revolve(1)), U0, retain=True)[1]
    (once,) = pullback(W)

    def summed(c: Any) -> Any:
        return timeloop(lambda u, i: u + pullback(c * W)[0], U0 * 0, 3, schedule=second)

    def used_within(c: Any) -> Any:
        given = c * W
        return np.sum(timeloop(lambda u, i: u + pullback(given)[0], U0 * 0, 3, schedule=second) * U0)

    expected = 3 * np.sum(once * U0)
    np.testing.assert_allclose(grad(lambda c: np.sum(summed(c) * U0))(1.0), expected, rtol=1e-13)
    np.testing.assert_allclose(grad(used_within)(1.0), expected, rtol=1e-13)
    np.testing.assert_allclose(linearize(summed, 1.0)[1](1.0), 3 * once, rtol=1e-13)
    assert_same_bits(pullback(W)[0], once)


@pytest.mark.parametrize("other", [StoreAll(), Revolve(1)], ids=str)
@pytest.mark.parametrize("schedule", [StoreAll(), Revolve(1)], ids=str)
@pytest.mark.parametrize("where", ["step", "step_of_a_step", "checkpoint"])
def test_pullback_that_is_made_where_a_derivative_is_taken(where, schedule, other):
    """What runs again in a step of another loop has the values that the loop around differentiates for its own."""

    def total(outer: Any, inner: Any, second: Any, c: Any) -> Any:
        pullback = vjp(lambda u: Nested(outer, inner)(u, c), U0 * c, retain=True)[1]

        def step(u: Any, i: Any) -> Any:
            return 0.5 * u + pullback(u * c)[0] * c

        if where == "checkpoint":
            return np.sum(checkpoint(partial(step, i=0))(U0 * c))
        if where == "step":
            return np.sum(timeloop(step, U0 * c, 2, schedule=second))
        inside = lambda u, i: timeloop(step, u * c, 2, schedule=second)
        return np.sum(timeloop(inside, U0, 2, schedule=second))

    f, plain = partial(total, schedule, Revolve(1), other), partial(total, *[StoreAll()] * 3)
    slope = (plain(1 + 1e-6) - plain(1 - 1e-6)) / 2e-6
    np.testing.assert_allclose(grad(f)(1.0), slope, rtol=1e-7)
    np.testing.assert_allclose(jvp(f, (1.0,), (1.0,))[1], slope, rtol=1e-7)
    np.testing.assert_allclose(hvp(f)(1.0, 1.0), jvp(grad(plain), (1.0,), (1.0,))[1], rtol=1e-11)


def test_pullback_of_an_open_loop_in_a_step():
    """A loop that ends by its state runs again in a step of another loop as one of so many steps does."""

    def total(known: int | None, c: Any) -> Any:
        ending = {"until": lambda u: np.sum(u) > 9, "max_steps": 50} if known is None else {"steps": known}
        f = lambda u: timeloop(lambda v, i: v + 0.1 * np.sin(v) * u * c, u, schedule=Online(2), **ending)
        pullback = vjp(f, U0 * c, retain=True)[1]
        return np.sum(timeloop(lambda u, i: u + pullback(u)[0] * c, U0 * c, 2, schedule=Revolve(1)))

    steps = next(n for n in range(50) if np.sum(timeloop(lambda v, i: v + 0.1 * np.sin(v) * U0, U0, n)) > 9)
    assert_same_bits(grad(partial(total, None))(1.0), grad(partial(total, steps))(1.0))
    assert_same_bits(hvp(partial(total, None))(1.0, 1.0), hvp(partial(total, steps))(1.0, 1.0))
