"""Budgets of derivatives in traced functions, and of programs with time loops: promises like any other."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.program.test_tracing import bits

from ebbtide import Budget, BudgetError, TraceError, grad, hvp, jit, jvp, timeloop, trace, vjp, vmap
from ebbtide.schedules import Hierarchical, Periodic, StoreAll

U = np.linspace(0, 1, 4000)
MATRIX = np.linspace(-0.1, 0.1, 64 * 64).reshape(64, 64)


def heat(u, k):
    """Two time loops, the second of which uses a value from between them, and work around."""
    v = np.exp(np.sin(u) * k) * u

    def step(u, i):
        return u + k * (np.roll(u, 1) - 2 * u + np.roll(u, -1)) + 0.001 * np.sin(u) * v

    after = timeloop(step, u, 14) * v
    after = timeloop(lambda u, i: u * np.cos(u * k) * v, after, 10)
    return np.sum(after**2 * np.cos(after))


def deep(u):
    """Layers of products."""
    for _ in range(12):
        u = np.tanh(u @ MATRIX + u)
    return np.sum(u * u)


WAYS = {
    "of the derivative": lambda f, budget: jit(grad(f, budget=budget)),
    "of jit": lambda f, budget: jit(grad(jit(f)), budget=budget),
    "machine": lambda f, budget: jit(grad(f, budget=budget), executor="machine"),
    "of vjp": lambda f, budget: jit(lambda *args: vjp(f, *args, budget=budget)[1](1.0)[0]),
    "of a program inside": lambda f, budget: jit(grad(jit(f, budget=budget))),
}


def held_by(f, *args):
    """Bytes that the first run of the program takes, in which its block is made."""
    planned = f.program(*args)
    return peak_bytes(lambda: planned.run(list(args)))


def refusal(f, *args):
    """The error of a call, whose text has the least number of bytes; None if it runs."""
    try:
        f(*args)
    except BudgetError as error:
        return error if f"{error.least}" in str(error) else None
    return None


@pytest.mark.parametrize("way", WAYS)
def test_loops_in_a_program_keep_to_its_budget(way):
    """A gradient of loops holds no more than its budget, with the same bits; refused below the least, it runs there."""
    make, expected = WAYS[way], bits(grad(heat)(U, 0.1))
    least, said = 300_000, []
    while error := refusal(make(heat, Budget(memory=least)), U, 0.1):
        said.append(error.least)
        least = error.least
    # First what is planned, then loop by loop.
    assert said == sorted(set(said))
    assert len(said) <= 3
    free = held_by(jit(grad(heat)), U, 0.1)
    assert least < free / 2
    for limit in (least, 2 * free):
        f = make(heat, Budget(memory=limit))
        assert held_by(f, U, 0.1) <= limit
        assert bits(f(U, 0.1)) == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_derivative_in_a_program_has_its_budget(way):
    """A derivative without loops is planned under its budget as under one of jit."""
    x = np.ones((500, 64))
    limit = held_by(jit(grad(deep)), x) // 2
    f = WAYS[way](deep, Budget(memory=limit))
    assert held_by(f, x) <= limit
    assert way == "machine" or bits(f(x)) == bits(jit(grad(deep))(x))
    with pytest.raises(BudgetError, match="holds least takes"):
        WAYS[way](deep, Budget(memory=x.nbytes))(x)


def test_a_trace_knows_the_budget():
    """What `trace` returns is planned under the budgets of the derivatives inside; the smallest counts."""
    budgets = [Budget(memory=5_000_000), Budget(memory=1_500_000)]
    x = np.ones((500, 64))
    program = trace(lambda x: [grad(deep, budget=budget)(x) for budget in budgets], x)
    assert program.predict().peak_bytes <= 1_500_000 < trace(grad(deep), x).predict().peak_bytes


def test_members_keep_to_the_budget():
    """A budget of a derivative in a member binds the program around, of all members."""
    x = np.linspace(0, 1, 8 * 30 * 64).reshape(8, 30, 64)
    free = jit(vmap(grad(deep)), executor="machine").program(x).predict().peak_bytes
    least = 10_000
    with pytest.raises(BudgetError) as refused:
        jit(vmap(grad(deep, budget=Budget(memory=least))), executor="machine")(x)
    least = refused.value.least
    assert least <= free
    f = jit(vmap(grad(deep, budget=Budget(memory=least))), executor="machine")
    assert f.program(x).predict().peak_bytes <= least
    np.testing.assert_allclose(f(x), vmap(grad(deep))(x), rtol=1e-12, atol=1e-12)


def test_derivatives_of_derivatives():
    """Forward over reverse and products with Hessians obey the budget of the derivative inside."""
    def f(u):
        return np.sum(timeloop(lambda u, i: np.sin(u) * 1.1, u, 60) ** 2)

    budget = Budget(memory=1_000_000)
    for make in (lambda b: jvp_of(grad(f, budget=b)), lambda b: lambda u: hvp(f)(u, u), lambda b: grad(f, budget=b)):
        expected = make(None)(U)
        assert bits(jit(make(budget))(U)) == bits(expected)
    # Above what the function itself takes, as without jit.
    assert held_by(jit(jvp_of(grad(f, budget=budget))), U) - held_by(jit(jvp_of(f)), U) <= 1_000_000


def jvp_of(f):
    """The tangent of a function in the direction of its argument."""
    return lambda u: jvp(f, (u,), (u,))[1]


def test_budgets_inside_of_a_step_are_those_of_its_run():
    """A budget of a derivative in a time step counts in each run of the step, and not for the program around."""
    energy = lambda u: np.sum(np.sin(u) ** 2)
    step = lambda u, i: u - 0.1 * grad(energy, budget=Budget(memory=12 * U.nbytes))(u)
    f = jit(grad(lambda u: np.sum(timeloop(step, u, 30) ** 2)))
    assert bits(f(U)) == bits(grad(lambda u: np.sum(timeloop(step, u, 30) ** 2))(U))
    assert peak_bytes(lambda: f(U)) > 12 * U.nbytes


def test_what_cannot_be_promised_is_refused():
    """A disk in a program, and a budget of a jitted loop that runs as it stands, are errors that say what to write."""
    with pytest.raises(ValueError, match=r"no use for a disk.*Budget\(memory=1000000\).*timeloop\(\.\.\., budget=\)"):
        jit(grad(heat, budget=Budget(memory=1_000_000, disk=10**9)))(U, 0.1)
    with pytest.raises(TraceError, match=r"Put jit\(\.\.\., budget=\) around the derivative"):
        grad(jit(heat, budget=Budget(memory=1_000_000)))(U, 0.1)
    # Each of what it says is right.
    for f in (jit(grad(heat), budget=Budget(memory=1_000_000)), grad(jit(heat), budget=Budget(memory=1_000_000))):
        assert bits(f(U, 0.1)) == bits(grad(heat)(U, 0.1))


@pytest.mark.parametrize("schedule", [StoreAll("disk"), Hierarchical(1, 2), Periodic(2, 1)])
def test_a_loop_that_stores_on_disk(schedule):
    """It is the disk that a budget of memory lacks, whatever that is, and not bytes of it; what the error says runs."""
    def f(u, **options):
        return np.sum(timeloop(lambda v, i: np.sin(v) * u, u, 6, schedule=schedule, **options))

    with pytest.raises(BudgetError, match="budget of memory alone") as refused:
        jit(grad(f, budget=Budget(memory="3 MiB")))(U)
    memory, disk = map(int, re.findall(r"memory=(\d+), disk=(\d+)", str(refused.value))[0])
    assert (memory, disk) == (refused.value.least, refused.value.least_disk)
    assert bits(jit(grad(lambda u: f(u, budget=Budget(memory, disk))))(U)) == bits(grad(f)(U))


def test_a_run_that_was_refused_leaves_the_next_one_as_it_is():
    """Where a loop does not fit, nothing stays, and a call with smaller arrays runs."""
    f = jit(grad(heat), budget=Budget(memory=400_000))
    for _ in range(2):
        with pytest.raises(BudgetError, match="a time loop in it takes"):
            f(U, 0.1)
        assert bits(f(U[:500], 0.1)) == bits(grad(heat)(U[:500], 0.1))
