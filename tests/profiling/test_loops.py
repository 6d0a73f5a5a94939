"""The loops of a profile: what was planned, what came of it, and the same run again."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, BudgetError, checkpoint, grad, hvp, jvp, linearize, profile, timeloop, vjp
from ebbtide.budget import format_bytes
from ebbtide.ledger import Ledger
from ebbtide.loop.planning.sizes import RESERVE
from ebbtide.profiling.loops import LoopReport
from ebbtide.schedules import Costs, Mixed, Periodic, Revolve, StoreAll
from ebbtide.storage import system
from ebbtide.tape.blocks import BLOCK

U0 = np.linspace(0.2, 1.3, 40_000)
STATE = U0.nbytes
COSTS = Costs(forward=0.001, reverse=0.002, write=0.01, read=0.01)


def new(u, _):
    """A step that saves three arrays."""
    return u + 0.1 * np.sin(u) * np.cos(u)


def energy(u, schedule=None, steps=17):
    """A function with one loop."""
    return np.sum(timeloop(new, u, steps, schedule=schedule, costs=COSTS) ** 2)


@pytest.mark.parametrize("states", [8, 12, 20, 100])
@pytest.mark.parametrize("disk", [0, "100 MiB"])
def test_the_schedule_repeats_the_run(states, disk, tmp_path):
    """The schedule of a profile gives the bits, the steps and the plan of the run that it is of."""
    budget = Budget(memory=states * STATE, disk=disk, directory=tmp_path)
    with profile() as first:
        expected = grad(energy, budget=budget)(U0)
    with profile() as second:
        found = grad(lambda u: energy(u, first.loops[0].schedule), budget=budget)(U0)
    assert found.tobytes() == expected.tobytes() == grad(energy)(U0).tobytes()
    (a,), (b,) = first.loops, second.loops
    assert (a.schedule, a.steps_forward, a.plan.schedule) == (b.schedule, b.steps_forward, b.plan.schedule)
    assert a.steps_forward == a.plan.predicted_steps_forward == first.steps_forward >= 17


def test_loops_are_listed_in_order():
    """Each loop has its own plan and its own counts; the totals are their sums."""

    def two(u):
        u = timeloop(new, u, 9, schedule=Revolve(2))
        return np.sum(timeloop(new, u, 5, schedule=StoreAll()) ** 2)

    with profile() as p:
        grad(two)(U0)
    assert [loop.schedule for loop in p.loops] == [Revolve(2), StoreAll()]
    assert [loop.plan.steps for loop in p.loops] == [9, 5]
    assert p.loops[1].steps_forward == 5
    assert p.loops[0].steps_forward > 9
    assert sum(loop.steps_forward for loop in p.loops) == p.steps_forward == p.predicted_steps_forward


@pytest.mark.parametrize("states", [20, 40, 400])
@pytest.mark.parametrize("kind", ["in turn", "in steps"])
def test_the_predicted_peak_is_one_for_all_loops(kind, states):
    """Of several loops the most that a plan predicts counts: no less than was measured, and no more than allowed."""

    def f(u):
        if kind == "in turn":
            return np.sum(timeloop(new, timeloop(new, u, 20), 30))
        return np.sum(timeloop(lambda v, i: timeloop(new, v, 8), u, 30))

    budget = Budget(memory=states * STATE)
    grad(f, budget=budget)(U0)
    alone, whole = peak_bytes(lambda: f(U0)), peak_bytes(lambda: grad(f, budget=budget)(U0))
    with profile() as p:
        grad(f, budget=budget)(U0)
    # Loops in later steps may take a little more than in the first, where there is room.
    assert (whole - alone) * (1.0 if kind == "in turn" else 0.97) <= p.predicted_peak_bytes <= budget.memory
    if states < 400:
        assert p.predicted_peak_bytes >= 0.8 * budget.memory
    assert p.predicted_peak_bytes == max(loop.predicted_peak for loop in p.loops)
    assert all("unknown" in str(loop) for loop in p.loops)


@pytest.mark.parametrize("times", [1.0, 1.2, 1.6, 2.0])
def test_the_predicted_peak_of_many_loops_is_within_the_budget(times):
    """What loops held and give up for a later one is not counted beside that."""

    def f(u):
        for _ in range(4):
            u = timeloop(lambda u, i: u * 0.9 + 0.05 * (np.exp(-u * u) * 0.3 + 0.7) * np.exp(-u * u), u, 9)
        return np.sum(u**2)

    memory = 1
    for _ in range(8):
        try:
            grad(f, budget=Budget(memory=memory))(U0)
        except BudgetError as error:
            memory = error.least
    budget = Budget(memory=int(times * memory))
    with profile() as p:
        grad(f, budget=budget)(U0)
    assert 0.5 * budget.memory <= p.predicted_peak_bytes <= budget.memory


def test_loops_inside_are_a_part_of_what_runs_them():
    """A loop in a step, or in a checkpointed function, is not listed, however often it runs; its steps count."""

    def nested(u):
        return np.sum(timeloop(lambda u, _: timeloop(new, u, 3), u, 50))

    with profile() as p:
        grad(nested)(U0[:10])
    (outer,) = p.loops
    assert (outer.plan.steps, outer.steps_forward, p.steps_forward) == (50, 50, 200)
    with profile() as p:
        grad(checkpoint(energy))(U0[:10])
    assert p.loops == []
    assert p.steps_forward == p.predicted_steps_forward == 34


@pytest.mark.parametrize("states", [24, 32, 48])
@pytest.mark.parametrize("disk", [0, "100 MiB"])
def test_steps_of_loops_inside_are_predicted_when_they_begin(states, disk, tmp_path):
    """Of loops in steps of loops and in checkpointed functions, whatever they give up for each other."""

    def nested(u):
        return np.sum(timeloop(lambda u, _: timeloop(new, u, 10, costs=COSTS), u, 20, costs=COSTS) ** 2)

    def several(u):
        u = checkpoint(lambda u: timeloop(new, u, 40, costs=COSTS))(u)
        return energy(checkpoint(lambda u: timeloop(lambda u, _: timeloop(new, u, 5), u, 4))(u))

    for function in (nested, several):
        with profile() as p:
            grad(function, budget=Budget(memory=states * STATE, disk=disk, directory=tmp_path))(U0)
        assert p.steps_forward == p.predicted_steps_forward > 180


@pytest.mark.parametrize(("inner", "outer"), [(4, 12), (8, 8), (10, 12)])
@pytest.mark.parametrize("states", [10, 14, 36])
@pytest.mark.parametrize("step", ["new", "neighbors"])
def test_loops_inside_take_what_is_predicted(step, states, inner, outer):
    """Steps are equal, and the whole peak is within 10 % of the prediction and 150 KiB, never above."""
    step = {"new": new, "neighbors": neighbors}[step]
    f = lambda u: np.sum(timeloop(lambda u, _: timeloop(step, u, inner), u, outer) ** 2)
    with profile() as p:
        grad(f, budget=Budget(memory=states * STATE))(0.1 * U0)
    assert p.steps_forward == p.predicted_steps_forward
    assert 0.9 * p.predicted_whole_bytes - 150 * 1024 <= p.peak_bytes <= p.predicted_whole_bytes


@pytest.mark.parametrize(
    ("states", "kind"), [(11.5, Revolve), (12.25, Revolve), (13, Revolve), (13.5, Mixed), (15.5, Mixed), (17, Mixed)]
)
def test_loops_inside_run_beside_saved_steps(states, kind):
    """Where other steps are saved beside the loops in a step that runs again, the whole peak is not above either."""
    wave = lambda v, _: v + 0.01 * (np.roll(v, 1) - v) * np.cos(v)
    inner, outer = Costs(forward=0.1, reverse=0.2), Costs(forward=1.0, reverse=2.0)
    step = lambda u, _: 0.99 * timeloop(wave, u, 8, costs=inner)
    with profile() as p:
        grad(lambda u: np.sum(timeloop(step, u, 12, costs=outer)), budget=Budget(memory=int(states * STATE)))(U0)
    assert isinstance(p.loops[0].plan.schedule, kind)
    assert p.steps_forward == p.predicted_steps_forward
    assert 0.9 * p.predicted_whole_bytes - 150 * 1024 <= p.peak_bytes <= p.predicted_whole_bytes


@pytest.mark.parametrize("squared", [True, False])
def test_what_a_step_saves_may_have_been_there_before(squared):
    """A step of two leaves that saves one of the caller's: the whole peak was up to 5 % above the prediction."""

    def step(state, _):
        u, _ = state
        v = 0.18 * np.std(np.stack([u, u, u * u, np.sin(u)]), axis=0)
        return u / (1 + 0.1 * u * u), v / (1 + 0.1 * v * v)

    def f(u, v):
        u, v = timeloop(step, (u, v), 23, costs=COSTS)
        return np.sum(u * u) + np.sum(v * v) if squared else np.sum(u) + np.sum(v)

    with profile() as p:
        grad(f, argnums=(0, 1), budget=Budget(memory=int(25.58 * STATE)))(U0, np.cos(U0))
    # The cotangents of plain sums are ones that take nothing, in the sweep of the last step, where most is held.
    assert 0.95 * p.predicted_whole_bytes - (not squared) * STATE <= p.peak_bytes <= p.predicted_whole_bytes


@pytest.mark.parametrize("schedule", [Revolve(3), Mixed(9, restart=1, saved=3), Periodic(4, 2)], ids=str)
def test_a_loop_that_is_not_swept_runs_its_steps_once(schedule):
    """Where nothing depends on a result, or nobody pulls, what a sweep would have run again is not predicted."""
    with profile() as p:
        grad(lambda u: np.sum(u) + 0.0 * energy(U0, schedule))(U0)
        grad(lambda u: [energy(u, schedule), np.sum(u)][1])(U0)
        _, pullback = vjp(lambda u: energy(u, schedule), U0)
    assert p.steps_forward == p.predicted_steps_forward == 3 * 17
    with profile() as later:
        pullback(1.0)
    assert later.steps_forward == later.predicted_steps_forward == 0  # the account is that of the forward sweep


def test_steps_of_other_derivatives_are_predicted():
    """Of linearized loops, of Hessians, and of loops that nothing is recorded of."""
    budget = Budget(memory=60 * STATE)
    with profile() as p:
        _, push = linearize(energy, U0, budget=Budget(memory=30 * STATE))
        push(U0)
        push(U0)
        push.free()
        hvp(energy, budget=budget)(U0, U0)
        jvp(energy, (U0,), (U0,))
        energy(U0)
        timeloop(new, U0, until=lambda u: float(np.mean(u)) > 1.0, max_steps=100)
    assert p.steps_forward == p.predicted_steps_forward > 6 * 17


def short(u, _):
    """Three operations."""
    return u + 0.1 * np.sin(u)


def neighbors(u, _):
    """A step that saves two of its arrays."""
    return u - 0.1 * u * (np.roll(u, -1) - np.roll(u, 1))


SECOND = {
    "hvp": lambda f, budget: hvp(f, budget=budget)(U0, np.cos(U0)),
    "jvp of grad": lambda f, budget: jvp(grad(f, budget=budget), (U0,), (np.cos(U0),)),
    "grad of jvp": lambda f, budget: grad(lambda u: jvp(f, (u,), (np.cos(u),))[1], budget=budget)(U0),
}


@pytest.mark.parametrize("more", [0, 8, 20])
@pytest.mark.parametrize("step", [new, short, neighbors])
@pytest.mark.parametrize("derivative", SECOND)
def test_second_derivatives_take_what_is_predicted(derivative, step, more):
    """The whole peak is within 10 % of the prediction and 150 KiB, never above, the steps are equal, the time known."""
    f = lambda u: np.sum(timeloop(step, u, 34) ** 2)
    with pytest.raises(BudgetError) as caught:
        SECOND[derivative](f, Budget(memory=1))
    with profile() as p:
        SECOND[derivative](f, Budget(memory=caught.value.least + more * STATE))
    assert 0.9 * p.predicted_whole_bytes - 150 * 1024 <= p.peak_bytes <= p.predicted_whole_bytes
    assert p.steps_forward == p.predicted_steps_forward
    assert p.loops[0].plan.has_costs


@pytest.mark.parametrize("step", [new, short, neighbors])
@pytest.mark.parametrize("derivative", ["hvp", "jvp of grad"])
def test_the_least_of_second_derivatives(derivative, step):
    """The least of a loop of pairs of value and tangent is what one step saves and four pairs, as it is of values."""
    f = lambda u: np.sum(timeloop(step, u, 34))
    with pytest.raises(BudgetError) as caught:
        SECOND[derivative](f, Budget(memory=1))
    least = caught.value.least
    with profile() as p:
        SECOND[derivative](f, Budget(memory=least))
    plan = p.loops[0].plan
    assert plan.state_bytes == 2 * STATE
    assert least <= plan.saved_bytes + 4 * plan.state_bytes + RESERVE + BLOCK + 8192


def test_loops_of_nested_gradients():
    """Loops of an inner gradient are listed as they are recorded, in order."""
    with profile() as p:
        grad(lambda u: np.sum(grad(lambda v: energy(v, Revolve(2)))(u)))(U0[:10])
    assert p.loops[0].schedule == Revolve(2)
    assert all(loop.steps_forward >= 17 for loop in p.loops)


def test_a_plain_loop_is_not_planned():
    """A loop that nothing is recorded of has steps and no plan."""
    with profile() as p:
        energy(U0[:10])
    assert (p.loops, p.steps_forward) == ([], 17)


def test_measured_beside_predicted(tmp_path):
    """The library holds at most what was planned, and not much less where arrays are what it holds."""
    for schedule in (StoreAll(), Revolve(4), Mixed(9, restart=1, saved=3)):
        with profile() as p:
            grad(energy)(U0) if schedule is None else grad(lambda u, s=schedule: energy(u, s))(U0)
        (loop,) = p.loops
        assert 0.4 * loop.plan.predicted_peak_bytes < loop.held_bytes <= loop.plan.predicted_peak_bytes + (1 << 16)
        assert loop.held_bytes <= p.held_bytes
        assert loop.seconds > 0
        assert loop.plan.predicted_time > 0


@pytest.mark.parametrize(("copies", "states"), [(3, 14), (6, 12), (6, 20)])
def test_a_loop_that_sheds(copies, states):
    """A loop gives up snapshots for the cotangents of what comes after it; its first schedule repeats the run."""

    def late(u, schedule=None):
        u = timeloop(new, u, 30, schedule=schedule, costs=COSTS)
        wide = np.concatenate([u] * copies)
        doubled = wide * 2.0  # named: NumPy would write the product of a temporary into it
        return np.sum(doubled)

    expected, budget = grad(late)(U0), Budget(memory=states * STATE)
    alone = peak_bytes(lambda: late(U0))
    assert peak_bytes(lambda: grad(late, budget=budget)(U0)) - alone <= budget.memory
    with profile() as first:
        found = grad(late, budget=budget)(U0)
    (a,) = first.loops
    assert a.steps_forward - a.plan.measuring_steps > a.schedule.forward_steps(30)
    assert a.steps_forward == a.plan.predicted_steps_forward == first.predicted_steps_forward
    with profile() as second:
        again = grad(lambda u: late(u, a.schedule), budget=budget)(U0)
    assert found.tobytes() == again.tobytes() == expected.tobytes()
    assert second.loops[0].steps_forward == a.steps_forward


def test_pullbacks_add_to_the_steps():
    """A pullback that is called again runs steps again, and they count."""
    with profile() as p:
        _, pullback = vjp(lambda u: timeloop(new, u, 12, schedule=Revolve(2)), U0, retain=True)
        forward = p.loops[0].steps_forward
        pullback(U0)
        once = p.loops[0].steps_forward
        assert once == p.loops[0].plan.predicted_steps_forward
        pullback(U0)
    (loop,) = p.loops
    assert 12 == forward < once < loop.steps_forward == p.steps_forward
    assert loop.plan.predicted_steps_forward == p.predicted_steps_forward == p.steps_forward
    assert loop.plan.predicted_time == loop.plan.costs.time(forward=p.steps_forward, reverse=24)


@pytest.mark.parametrize("schedule", [Revolve(3), StoreAll(), Mixed(9, restart=1, saved=3), Periodic(4, 2)], ids=str)
@pytest.mark.parametrize("stop", [5, 16, 25, 29])
def test_steps_of_a_resumed_run(schedule, stop, tmp_path, monkeypatch):
    """The loop counts those of all processes, the profile its own; both are as predicted."""

    def step(u, i):
        system.met_step()  # which is no part of the code of the run
        return new(u, i)

    def count():
        ran[0] += 1
        if ran[0] > ran[1]:
            raise KeyboardInterrupt

    def run():
        return grad(lambda u: np.sum(timeloop(step, u, 30, schedule=schedule, resume_every=4)), resume=tmp_path)(U0)

    monkeypatch.setattr(system, "met_step", count, raising=False)
    ran = [0, stop]
    with pytest.raises(KeyboardInterrupt):
        run()
    ran = [0, 1000]
    with profile() as p:
        found = run()
    (loop,) = p.loops
    assert p.steps_forward == p.predicted_steps_forward == ran[0]
    assert loop.steps_forward == loop.plan.predicted_steps_forward
    assert 0 <= stop + ran[0] - loop.steps_forward <= 4  # those since the last save do not count
    expected = grad(lambda u: np.sum(timeloop(new, u, 30)))(U0)
    assert found.tobytes() == expected.tobytes()


def test_loops_of_an_exception():
    """A loop whose step fails is listed with what was run, and the ledger's peak is still the largest."""

    def fails(u, i):
        if i == 5:
            raise ZeroDivisionError
        return new(u, i)

    with profile() as p, pytest.raises(ZeroDivisionError):
        grad(lambda u: np.sum(timeloop(fails, u, 9)))(U0)
    assert p.loops[0].steps_forward == 5
    assert p.held_bytes >= p.loops[0].held_bytes > 0


def test_no_cycle():
    """A profile and its loops die by their references."""
    gc.collect()
    gc.disable()
    try:
        with profile() as p:
            grad(lambda u: energy(u, Periodic(4, 2)))(U0[:10])
        del p
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_printed():
    """A report prints each prediction beside its measurement."""
    with profile() as p:
        grad(lambda u: energy(u, Revolve(2)))(U0)
    text = str(p.loops[0])
    assert "Revolve(snapshots=2)" in text
    for row in ("steps", "bytes", "time"):
        assert row in text
    assert f"{p.loops[0].steps_forward:,}" in text
    assert "loop          Revolve(snapshots=2): 67 of 67 steps, " in str(p)


@pytest.mark.parametrize("states", [6, 8, 20])
def test_no_more_is_printed_than_predicted(states):
    """Both numbers of a loop are of the same: what the function alone takes is in neither, or in both."""
    u = np.linspace(0.1, 0.9, 100_000)
    g = grad(
        lambda u: np.sum(timeloop(lambda u, i: u + 0.1 * np.sin(u), u, 30, costs=Costs()) ** 2),
        budget=Budget(memory=states * u.nbytes),
    )
    g(u)
    with profile() as p:
        g(u)
    (loop,) = p.loops
    assert 0 < loop.peak_bytes <= p.peak_bytes
    assert loop.plan.predicted_whole_bytes is not None
    assert 0.95 * loop.plan.predicted_whole_bytes <= loop.peak_bytes <= loop.plan.predicted_whole_bytes
    row = next(row for row in str(loop).splitlines() if row.startswith("bytes"))
    told = format_bytes(loop.plan.predicted_whole_bytes), format_bytes(loop.peak_bytes)
    assert row.split()[1:] == " ".join(told).split()


def test_usable_alone():
    """The peak of the ledger before and after a loop stays the largest of all."""
    with profile() as p:
        grad(lambda u: energy(u, Revolve(2)))(U0)
    ledger = Ledger()
    ledger.peak = 100
    report = LoopReport(p.loops[0].plan)
    with report.running(ledger):
        ledger.add("snapshots", 70)
        ledger.add("snapshots", -70)
    assert (report.held_bytes, ledger.peak) == (70, 100)


def test_the_peak_of_a_changed_plan_is_no_less_than_what_was_held():
    """A loop that gives up its buffers has held them; the plan after it says what is to come."""
    with profile() as p:
        grad(lambda u: energy(u, Revolve(3)), budget=Budget(memory=20 * STATE))(U0)
    loop, ledger = p.loops[0], Ledger(watched=True)
    held, plan = loop.held_bytes, dataclasses.replace(loop.plan, predicted_peak_bytes=STATE)
    assert held > 3 * STATE
    loop.take(plan, ledger)
    assert held <= loop.plan.predicted_peak_bytes <= held + 2 * RESERVE
    more = dataclasses.replace(plan, predicted_peak_bytes=30 * STATE)
    loop.take(more, ledger)
    assert loop.plan == more
