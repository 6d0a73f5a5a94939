"""Time loops and checkpoints in traced functions: a loop stays a loop, and a gradient of it is the one without jit."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.program.test_tracing import bits

from ebbtide import (
    Budget,
    checkpoint,
    gauss_newton_product,
    grad,
    hessian,
    hvp,
    jacobian,
    jit,
    jvp,
    linearize,
    profile,
    stop_gradient,
    timeloop,
    trace,
    value_and_grad,
    vjp,
    vmap,
)
from ebbtide.arrays.containers import flatten
from ebbtide.errors import DeterminismError, ReleasedValueError, TraceError
from ebbtide.program.evaluate import evaluate
from ebbtide.schedules import Mixed, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk

RANDOM = np.random.default_rng(0)
U, W = RANDOM.standard_normal(6), RANDOM.standard_normal(6)
FORCING = RANDOM.standard_normal((12, 6))
SCHEDULES = (None, StoreAll(), Revolve(1), Revolve(3), Mixed(4), Periodic(4, 1))


def model(u, w, forcing, **options):
    """A loop over two arrays, with inputs, outputs, and static values computed before it, in a larger function."""
    v = np.exp(w)

    def step(state, x):
        a, b = state
        a = np.sin(a) * v + 0.1 * (b + x)
        b = 0.5 * b + a * w
        return (a, b), np.sum(a * b)

    (a, b), energy = timeloop(step, (u, u * 2.0), 12, inputs=forcing, outputs=True, **options)
    return np.sum(a * b * v) + np.sum(energy**2) * w[0]


def same(f, *args):
    """Whether a function and its jitted form give the same bits, at the first call and at a later one."""
    jitted = jit(f)
    expected = bits(f(*args))
    return bits(jitted(*args)) == expected and bits(jitted(*args)) == expected


def names(program):
    """The operations of a program, in order."""
    return [equation.name for equation in program.equations]


# What a loop is in a program.


def test_a_loop_is_one_equation():
    """The program of a loop has one equation for it, whatever the number of steps, and one for each result."""
    def f(u, w, steps):
        return timeloop(lambda u, i: np.sin(u) * w, u, steps) * 2.0

    for steps in (1, 10, 1_000_000):
        program = trace(lambda u, w, n=steps: f(u, w, n), U, W)
        assert names(program) == ["timeloop", "part", "multiply"]
        assert program.equations[0].params["steps"] == steps
    assert "timeloop(steps=1000000, state=[u], static=[w])" in str(program)


def test_a_gradient_has_one_equation_forward_and_one_in_reverse():
    """The gradient of a loop is one equation that keeps what the sweep needs, and one that takes it."""
    program = trace(grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 500))), U)
    loops = [equation for equation in program.equations if equation.name.startswith("timeloop")]
    assert [equation.name for equation in loops] == ["timeloop_saving", "timeloop_reverse"]
    held = loops[1].params["held"]
    assert [equation.name for equation in program.equations if held in equation.inputs] == ["timeloop_reverse"]


def test_the_step_is_called_once_when_it_is_traced():
    """Tracing calls the step once, and the program calls it once for each step, with the number of the step."""
    calls, last = np.zeros(2, int), np.zeros(1, int)

    def step(u, i):
        calls[i // 50] += 1
        last[0] = i
        return u * 0.5

    f = jit(lambda u: timeloop(step, u, 100))
    f.program(U)
    assert (calls.tolist(), last[0]) == ([1, 0], 0)
    assert bits(f(U)) == bits(timeloop(lambda u, i: u * 0.5, U, 100))
    assert (calls.tolist(), last[0]) == ([51, 50], 99)


# The same bits.


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("argnums", [0, 1, 2, (0, 1, 2)])
def test_gradients_have_the_bits_of_those_without_jit(schedule, argnums):
    """Gradients by state, static values and inputs are bitwise those of the function that is not jitted."""
    assert same(value_and_grad(lambda *args: model(*args, schedule=schedule), argnums), U, W, FORCING)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_hessian_products_have_the_bits_of_those_without_jit(schedule):
    """A product with the Hessian goes through the same two equations, with tangents."""
    def f(u, w, v):
        return hvp(lambda u, w: model(u, w, FORCING, schedule=schedule), (0, 1))(u, w, (v, 2.0 * v))

    assert same(f, U, W, np.cos(U))
    assert [n for n in names(trace(f, U, W, U)) if "loop" in n] == ["timeloop_saving", "timeloop_reverse"]


CASES = {
    "cotangents that pass through": lambda u, w: hvp(
        lambda u, w: sum_of_product(timeloop(lambda s, i: (np.sin(s[0]) * w, s[1] + s[0] * w), (u, u * 2.0), 1)), (0, 1)
    )(u, w, (w, u)),
    "value": lambda u, w: model(u, w, FORCING),
    "jvp": lambda u, w: jvp(lambda u, w: model(u, w, FORCING), (u, w), (w, u)),
    "jvp of one": lambda u, w: jvp(lambda w: model(u, w, FORCING), (w,), (u,)),
    "vjp": lambda u, w: vjp(lambda u, w: model(u, w, FORCING), u, w)[1](2.0),
    "Gauss-Newton": lambda u, w: gauss_newton_product(lambda u: timeloop(lambda u, i: np.sin(u) * w, u, 5))(u, w),
    "list of inputs": grad(
        lambda u, w: np.sum(timeloop(lambda u, x: np.sin(u) * x[0] + x[1], u, 4, inputs=[(w, 1.0), (w * w, u)] * 2)),
        (0, 1),
    ),
    "one array for all inputs": grad(
        lambda u, w: np.sum(w * u) + np.sum(timeloop(lambda u, x: np.sin(u) * x, u, 4, inputs=[w, u, w, w])), (0, 1)
    ),
    "function for inputs": grad(
        lambda u, w: np.sum(timeloop(lambda u, x: np.sin(u) * x, u, 4, inputs=lambda i: w * i)), (0, 1)
    ),
    "until": grad(
        lambda u, w: np.sum(
            timeloop(lambda u, i: np.sin(u) * w, u, until=lambda u: np.sum(u) < 0.1 * np.sum(w * w), max_steps=9)
        ),
        (0, 1),
    ),
    "until with a number": grad(
        lambda u, w: np.sum(
            timeloop(lambda u, i: 0.5 * np.sin(u) * w, u, until=lambda u: float(np.max(u)) < 0.1, max_steps=9)
        ),
        (0, 1),
    ),
    "writing into the state": grad(
        lambda u, w: np.sum(timeloop(lambda u, i: np.concatenate([u[1:], w[:1] * u[:1]]), u, 4) ** 2), (0, 1)
    ),
    "plain state": grad(lambda u, w: np.sum(timeloop(lambda s, i: s + np.sin(u) * w, np.zeros(6), 4) ** 2), (0, 1)),
    "state leaf that is static": grad(lambda u, w: np.sum(timeloop(lambda s, i: s * u * w, u, 4) * u), (0, 1)),
    "numbers in the state": lambda u, w: timeloop(lambda s, i: (s[0] * w, s[1] + 1, s[2] * 2.0), (u, 0, 0.5), 4),
    "numbers that become arrays": lambda u, w: timeloop(
        lambda s, i: (s[0] * w, np.sum(s[0]), s[1], s[2]), (u, 0.0, 1.0, 2.0), 5
    ),
    "control by the number of the step": grad(
        lambda u, w: np.sum(timeloop(lambda u, i: u * w if i % 2 == 0 else np.sin(u), u, 5)), (0, 1)
    ),
    "loop in a step": grad(
        lambda u, w: np.sum(
            timeloop(
                lambda u, i: timeloop(lambda u, j: np.sin(u) * w, u, 3, schedule=Revolve(1)), u, 4, schedule=Revolve(2)
            )
        ),
        (0, 1),
    ),
    "checkpoint in a step": grad(
        lambda u, w: np.sum(timeloop(lambda u, i: checkpoint(lambda u: np.sin(u) * w)(u), u, 4, schedule=Revolve(2))),
        (0, 1),
    ),
    "loop in a checkpoint": grad(
        lambda u, w: np.sum(checkpoint(lambda u: timeloop(lambda u, i: np.sin(u) * w, u, 4))(u * w) ** 2), (0, 1)
    ),
    "Hessian of a loop in a checkpoint": lambda u, w: hvp(
        lambda u: np.sum(checkpoint(lambda u: timeloop(lambda u, i: np.sin(u) * w, u, 4))(u * w) ** 2)
    )(u, w),
    "gradient in a step": grad(
        lambda u, w: np.sum(timeloop(lambda u, i: u - 0.1 * grad(lambda t: np.sum(np.sin(t) * w))(u), u, 4)), (0, 1)
    ),
    "Hessian of a gradient in a step": lambda u, w: hvp(
        lambda w: np.sum(timeloop(lambda u, i: u - 0.1 * grad(lambda t: np.sum(np.sin(t) * w * t))(u), u, 4))
    )(w, u),
    "one loop after the other": grad(
        lambda u, w: np.sum(timeloop(lambda u, i: np.sin(u) * w, timeloop(lambda u, i: np.cos(u) * w, u, 4), 3)), (0, 1)
    ),
    "views": grad(lambda u, w: np.sum(timeloop(lambda s, i: np.sin(s) * w[1::2], u[::2], 4)), (0, 1)),
    "complex": grad(lambda u, w: np.sum(np.abs(timeloop(lambda s, i: 0.3 * s * w, u * 1j, 4)) ** 2), (0, 1)),
    "no steps": grad(lambda u, w: np.sum(timeloop(lambda s, i: s * w, u, 0) * w), (0, 1)),
    "nothing traced": lambda u, w: u + timeloop(lambda s, i: s * 0.5, np.ones(6), 4),
    "twice the same loop": grad(
        lambda u, w: np.sum(timeloop(cool, u, 4) * timeloop(cool, u, 4) * w), (0, 1)
    ),
    "leaves that are one array": lambda u, w: used(timeloop(lambda s, i: twice(np.sin(s[0]) * w), (u, u), 3)),
    "leaves that overlap": lambda u, w: used(timeloop(lambda s, i: halves(np.sin(s[1]) * w[1:]), (u, u[1:]), 3)),
    "what passes through": lambda u, w: used(timeloop(lambda s, i: (s[0], w), (u, u), 3)),
    "outputs that are states": lambda u, w: used(timeloop(lambda s, i: (s * w, s), u, 3, outputs=True)),
    "transposed": lambda u, w: np.sum(
        grad(lambda m: np.sum(timeloop(lambda s, i: np.sin(s).T, m, 3) ** 2))(np.outer(u, w)), axis=0
    ),
    "saved and used up": grad(
        lambda u, w: np.sum(np.sqrt(timeloop(lambda s, i: np.exp(s * 0.1), u, 4, schedule=StoreAll()) * 3.0 + w * w)),
        (0, 1),
    ),
    "a row that is written": grad(
        lambda u, w: np.sum(timeloop(doubled, u, 6, inputs=np.outer(u, w)) ** 2), (0, 1)
    ),
    "masks and numbers in the state": lambda u, w: timeloop(
        lambda s, i: (s[0] * w, s[0] > 0.5, s[2] + np.sum(s[1]), None), (u, np.ones(6, bool), 0, None), 3
    ),
    "nothing in it": grad(lambda u, w: np.sum(timeloop(lambda s, i: np.sin(s), u[:0], 3)) + np.sum(u * w), (0, 1)),
    "a single number": grad(lambda u, w: timeloop(lambda s, i: np.sin(s) * u[0], w[0], 3), (0, 1)),
    "constants to derivatives": grad(
        lambda u, w: np.sum(timeloop(lambda s, i: np.sin(stop_gradient(s)) * u + s * stop_gradient(w), u * w, 3)),
        (0, 1),
    ),
}  # fmt: skip


def twice(x):
    """One array as two leaves."""
    return x, x


def halves(x):
    """An array and a part of it."""
    return np.concatenate([x, x[:1]]), x


def used(pair):
    """Functions of two arrays that could be written where the arrays were."""
    a, b = pair
    return np.exp(a * 2.0), np.sin(b + 1.0), a, b[1:]


def doubled(u, x):
    """A step that writes into its input."""
    x *= 2.0
    return 0.5 * u + x


def sum_of_product(pair):
    """Something that makes the cotangents of each depend on the other."""
    return np.sum(pair[0] * pair[1])


def cool(u, i):
    """A step of the module."""
    return np.sin(u) * 0.9


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_loop_is_given(case):
    """A jitted function with a loop gives the bits of the function, as do its derivatives."""
    assert same(CASES[case], U, W)


def test_numbers_do_not_change_the_dtype():
    """A Python number among arguments, state and inputs does not make float64 of float32, as without jit."""
    single = U.astype(np.float32)
    assert same(lambda u, k: timeloop(lambda s, i: (np.sin(s[0]) * s[1] * k, s[1] * 0.5), (u, k), 4), single, 0.3)
    assert same(lambda u, k: timeloop(lambda s, x: s * x, u, 2, inputs=[k, 0.1]), single, 0.3)
    assert same(lambda u, k: u * timeloop(lambda s, i: (s[0] * k, s[1] + 1), (u, 0), 4)[1], single, 0.3)


def test_a_number_that_becomes_another_one():
    """A loop whose number becomes a float or complex number later runs for that, also where no result depends on it."""
    def integer(x):
        end = timeloop(lambda s, i: (s[0] * x, s[1] + np.sum(s[0]) if i == 2 else s[1]), (U, 0), 4)
        return end[1]

    def real(x):
        end = timeloop(lambda s, i: (s[0] * x, s[1] * np.exp(1j * np.sum(s[0])) if i == 2 else s[1]), (U, 1.0), 4)
        return np.imag(end[1])

    def output(x):
        return timeloop(lambda u, i: (u * x, 0 if i < 2 else u[0]), U, 4, outputs=True)[1][3]

    ways = {
        "grad": grad,
        "jvp": lambda f: lambda x: jvp(f, (x,), (W,))[1],
        "linearize": lambda f: lambda x: linearize(f, x)[1](W),
        "hvp": lambda f: lambda x: hvp(f)(x, W),
        "grad of grad": lambda f: grad(lambda x: np.sum(grad(f)(x))),
        "gauss_newton_product": lambda f: lambda x: gauss_newton_product(f)(x, W),
        "jacobian": jacobian,
        "vmap of grad": lambda f: lambda x: vmap(grad(f))(np.stack([x, W])),
        "a checkpoint": lambda f: grad(checkpoint(f)),
        "a program": lambda f: jit(grad(f)),
        "no derivative": lambda f: grad(lambda x: x[0] + stop_gradient(f(x))),
    }
    for name, way in ways.items():
        for f in (integer, real, output):
            for options in {}, {"executor": "machine"}, {"budget": Budget(memory=100000)}:
                with pytest.raises(TypeError if f is output else TraceError, match=r"ended with|output of|leaf"):
                    pytest.fail(f"{name}: {jit(way(f), **options)(U)}")
    assert bits(grad(jit(real))(U)) == bits(grad(real)(U))
    assert refused(real, U, match="ended with complex128")


def test_a_loop_that_nobody_needs_is_left_out():
    """So it is where its state has no numbers; one with them runs once, whatever derivatives are taken of it."""
    def arrays(x):
        return np.sum(timeloop(lambda u, i: u * x, U, 4))

    def counted(x):
        return np.sum(timeloop(lambda s, i: (s[0] * x, s[1] + 1), (U, 0), 4)[0])

    def unused(f):
        return grad(lambda x: np.sum(x**2) + stop_gradient(f(x)))

    def loops(f):
        return [name for name in names(jit(f).program(U).program) if name.startswith("timeloop")]

    assert loops(unused(arrays)) == []
    assert loops(unused(counted)) == ["timeloop"]
    assert loops(grad(counted)) == loops(grad(arrays)) == ["timeloop_saving", "timeloop_reverse"]
    for way in (
        lambda f: grad(lambda x: np.sum(grad(f)(x))),
        lambda f: lambda x: hvp(f)(x, W),
        lambda f: lambda x: linearize(f, x)[1](W),
        hessian,
    ):
        assert loops(way(counted)) == loops(way(arrays))


OF_NUMBERS = {
    "grad": lambda f, x, v: grad(f)(x),
    "vjp": lambda f, x, v: vjp(f, x)[1](v),
    "jvp": lambda f, x, v: jvp(f, (x,), (v,)),
    "linearize": lambda f, x, v: linearize(f, x)[1](v),
    "hvp": lambda f, x, v: hvp(f)(x, v),
    "hessian": lambda f, x, v: hessian(f)(x),
    "jacobian": lambda f, x, v: jacobian(f)(x),
    "jvp of grad": lambda f, x, v: jvp(grad(f), (x,), (v,)),
    "jvp of vjp": lambda f, x, v: jvp(lambda x: vjp(f, x)[1](v)[0], (x,), (v,)),
    "grad of vjp": lambda f, x, v: grad(lambda x: vjp(f, x)[1](v)[0])(x),
    "grad of jvp": lambda f, x, v: grad(lambda x: jvp(f, (x,), (v,))[1])(x),
    "jvp of hvp": lambda f, x, v: jvp(lambda x: hvp(f)(x, v), (x,), (v,)),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_derivatives_at_python_numbers(name):
    """A Python number as argument and as tangent is an array without axes to a derivative of a loop, as without jit."""
    def f(x):
        return timeloop(lambda u, i: u * 0.9 + np.sin(u) * x, x, 5)

    assert same(lambda x, v: OF_NUMBERS[name](f, x, v), 0.5, 1.3)


def test_retained_pullbacks():
    """A pullback that retains what it needs pulls back several times, also in a program."""
    def f(u, w):
        _, pullback = vjp(lambda u: timeloop(lambda u, i: np.sin(u) * w, u, 5), u, retain=True)
        return pullback(w), pullback(u)

    assert same(f, U, W)


def test_programs_with_loops_have_derivatives():
    """A program with a loop, run equation by equation on traced arrays, is differentiated like the function."""
    program = trace(lambda u, w: model(u, w, FORCING), U, W)
    found = grad(lambda u, w: evaluate(program, [u, w])[0], (0, 1))(U, W)
    assert bits(found) == bits(grad(lambda u, w: model(u, w, FORCING), (0, 1))(U, W))


def test_a_program_traced_deep_inside_runs_outside():
    """A program that was traced within other derivatives runs where there are none, and within more of them."""
    f = jit(grad(lambda u: np.sum(timeloop(lambda s, i: np.sin(s) * u, u, 5, schedule=Revolve(2)))))
    expected = bits(grad(lambda u: np.sum(timeloop(lambda s, i: np.sin(s) * u, u, 5)))(U))

    def deep(x, depth):
        return np.sum(f(U)) * x if depth == 0 else grad(lambda y: deep(y, depth - 1) * y)(x)

    deep(1.0, 3)
    assert bits(f(U)) == expected
    deep(1.0, 2)
    assert f.reasons == []
    assert bits(f(U)) == expected


# Derivatives of derivatives.


def wave(u):
    """A number at the end of a loop."""
    return np.sum(timeloop(cool, u, 3) ** 2)


def written_out(u):
    """The same without a loop."""
    for i in range(3):
        u = cool(u, i)
    return np.sum(u**2)


DEEP = {
    "reverse over reverse": lambda f: grad(lambda u: np.sum(grad(f)(u) ** 2)),
    "reverse over forward": lambda f: grad(lambda u: jvp(f, (u,), (u * u,))[1]),
    "forward over forward": lambda f: lambda u: jvp(lambda v: jvp(f, (v,), (v * u,))[1], (u,), (u,))[1],
    "three times in reverse": lambda f: grad(lambda u: np.sum(grad(lambda v: np.sum(grad(f)(v) ** 2))(u))),
    "reverse over a Hessian": lambda f: grad(lambda u: np.sum(hvp(f)(u, u * W))),
    "pulled back with a derivative": lambda f: lambda u: grad(lambda s: vjp(f, u)[1](s)[0] @ W)(2.0),
    "pulled back later with a derivative": lambda f: lambda u: later(vjp(f, u, retain=True)[1]),
    "linearized": lambda f: lambda u: linearize(f, u)[1](u),
    "linearized checkpoint": lambda f: lambda u: linearize(checkpoint(f), u)[1](u),
    "gradient of a linearization": lambda f: grad(lambda u: linearize(f, u)[1](u)),
    "Jacobian of the gradient": lambda f: jacobian(grad(f)),
    "Hessian": hessian,
    "members": lambda f: grad(lambda u: np.sum(vmap(grad(f))(np.stack([u, 2.0 * u])) ** 2)),
    "checkpoint in reverse over reverse": lambda f: grad(lambda u: np.sum(grad(checkpoint(f))(u) ** 2)),
}


def later(pullback):
    """The derivative by a cotangent, taken after the function has returned; and the sweep once more."""
    return grad(lambda s: np.sum(pullback(s)[0] ** 2))(1.5), pullback(1.0)


@pytest.mark.parametrize("case", DEEP)
def test_derivatives_of_any_order(case):
    """A loop is one equation in derivatives of derivatives too, which are those of the function without a loop."""
    found = jit(DEEP[case](wave))
    expected = flatten(DEEP[case](written_out)(U))[0]
    for _ in range(2):
        for one, other in zip(flatten(found(U))[0], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    counted = [name for name in names(found.program(U).program) if name.startswith("timeloop")]
    assert 1 <= len(counted) <= 8


@pytest.mark.parametrize("case", DEEP)
def test_derivatives_of_an_input_that_steps_share(case):
    """One array that is the input of several steps has the cotangents of all of them, whatever the order."""
    step = lambda v, x: np.sin(v) * x[0] + 0.3 * x[1]
    rows = lambda u: [(u, u * k) for k in range(3)]

    def in_python(u):
        v = u
        for x in rows(u):
            v = step(v, x)
        return np.sum(v**2)

    f = lambda u: np.sum(timeloop(step, u, 3, inputs=rows(u)) ** 2)
    expected = flatten(DEEP[case](in_python)(U))[0]
    for one, other in zip(flatten(jit(DEEP[case](f))(U))[0], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


# Memory, files, and what is left behind.


def test_what_a_loop_holds_is_gone_after_its_reverse_sweep():
    """In a jitted gradient a loop holds what its schedule says, as without jit, and one state more at most."""
    u = np.linspace(0, 1, 20_000)
    f = grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 60, schedule=Revolve(3))))
    g = jit(f)
    g(u), f(u)
    assert peak_bytes(lambda: g(u)) <= peak_bytes(lambda: f(u)) + u.nbytes + 20_000


def test_two_loops_do_not_hold_snapshots_at_the_same_time_in_reverse():
    """What the later loop holds is let go before the earlier one is swept."""
    u = np.linspace(0, 1, 20_000)

    def f(u, loops):
        for _ in range(loops):
            u = timeloop(lambda u, i: np.sin(u), u, 40, schedule=Revolve(8))
        return np.sum(u)

    one, two = (jit(grad(lambda u, n=n: f(u, n))) for n in (1, 2))
    one(u), two(u)
    # The second loop finds the snapshots of the first, and no more than these are there later.
    assert peak_bytes(lambda: two(u)) <= peak_bytes(lambda: one(u)) + 9.5 * u.nbytes


@pytest.mark.parametrize("fails_at", ["forward", "between", "reverse"])
def test_an_error_leaves_no_files_and_no_memory(fails_at, tmp_path):
    """Whether it comes forward, between the sweeps or in reverse, after an error no file and no array is left."""
    runs, seen = np.zeros(1, int), weakref.WeakValueDictionary()

    class HotError(Exception):
        pass

    def step(u, i):
        runs[0] += 1
        if not isinstance(u, np.ndarray):
            seen[runs[0]] = u
        if (fails_at == "forward" and runs[0] == 20) or (fails_at == "reverse" and runs[0] == 60):
            raise HotError
        return np.sin(u)

    def f(u):
        after = timeloop(step, u, 40, schedule=Revolve(2), storage=Disk(tmp_path))
        return np.sum(check(after) ** 2)

    def check(u):
        if fails_at == "between":
            return timeloop(lambda u, i: u / 0, u, 1)
        return u

    g = jit(grad(f))
    gc.collect()
    gc.disable()
    try:
        with np.errstate(all="raise"), pytest.raises((HotError, FloatingPointError)):
            g(np.linspace(0.1, 1, 1000))
        assert not list(tmp_path.rglob("*.*"))
        assert runs[0] > (1 if fails_at == "between" else 19)
        assert not seen
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_nothing_is_kept_alive():
    """Neither a program with loops nor its parts are part of a reference cycle, also after an error in tracing."""
    def fail(u):
        timeloop(lambda s, i: np.sin(s) * u, u, 3)
        raise KeyError

    gc.collect()
    gc.disable()
    try:
        f = jit(hvp(lambda u: model(u, W, FORCING, schedule=Revolve(2))))
        f(U, W)
        planned = weakref.ref(f.program(U, W))
        del f
        assert planned() is None
        with pytest.raises(KeyError):
            jit(fail)(U)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_prediction_says_what_it_does_not_know():
    """A program with loops names them in its prediction, as they hold more than it says."""
    planned = jit(grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 5)))).program(U)
    found = planned.predict()
    assert [name.rpartition("_")[0] for name, _ in found.unknown] == ["timeloop_saving", "timeloop_reverse"]
    assert all("test_loops.py" in line for _, line in found.unknown)
    assert "timeloop_saving_1" in str(found)
    assert jit(np.sin).program(U).predict().unknown == ()


def test_a_profile_lists_the_loops_of_a_program():
    """A profile says of a loop in a program what it says of one outside: plan, steps and saved values."""
    f = grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 20, schedule=Revolve(2))))
    jitted = jit(f)
    jitted(U)
    found = []
    for g in (f, jitted):
        with profile() as report:
            g(U)
        line = next(line for line in str(report).splitlines() if line.startswith("loop"))
        found.append((line.rpartition(",")[0], report.loops[0].held_bytes))  # the peak is of the whole call
    assert found[0] == found[1]


def test_what_a_loop_holds_is_taken_once():
    """The second reverse sweep of what was held by one run is an error."""
    program = trace(grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 5))), U)
    saving, reverse = (e for e in program.equations if e.name.startswith("timeloop"))
    held, _ = saving.function(**(saving.params | {"state": [U]}))
    given = reverse.params | {"held": held, "cotangents": [np.ones(6)]}
    reverse.function(**given)
    with pytest.raises(ReleasedValueError, match="was swept before"):
        reverse.function(**given)


# What is refused.


def refused(f, *args, match, error=TraceError):
    """Whether tracing refuses a function, naming this file."""
    with pytest.raises(error, match=match) as caught:
        jit(f)(*args)
    return "test_loops.py" in str(caught.value)


def test_control_flow_on_the_result_of_a_loop_is_refused():
    """Python code that asks for the value of a result is an error, as without a loop; so is a step that does."""
    assert refused(lambda u: 1.0 if np.sum(timeloop(cool, u, 3)) > 0 else 2.0, U, match="truth")
    assert refused(lambda u: timeloop(lambda u, i: u if u[0] > 0 else u * 2, u, 3), U, match="truth")


def test_what_an_equation_cannot_be_is_refused():
    """A number of outputs that is not known, a generator in the state, and a journal are errors."""
    def f(u, **options):
        return timeloop(lambda u, i: (cool(u, i), u), u, outputs=True, **options)[0]

    assert refused(lambda u: f(u, until=lambda u: np.sum(u) < 0.1, max_steps=9), U, match="Leave outputs= out")
    assert refused(
        lambda u: timeloop(lambda s, i: (s[0] * s[1].random(), s[1]), (u, np.random.default_rng(0)), 3)[0],
        U, match="random generator in its state",
    )  # fmt: skip
    assert refused(lambda u: f(u, steps=3, resume="somewhere"), U, match="Leave resume= out")
    assert refused(grad(lambda u: np.sum(f(u, steps=3)), resume="somewhere"), U, match="Leave resume= out")
    # A budget around is none: see test_loop_budgets.
    slope = grad(lambda u: np.sum(f(u, steps=3)), budget=Budget(memory="10 MiB"))
    assert bits(jit(slope)(U)) == bits(slope(U))


def test_donated_arrays_that_a_step_finds_around_it():
    """An array that is donated, and that a step uses by its name, would be overwritten: an error."""
    c = np.linspace(0.1, 1.0, 100)
    f = jit(lambda u: timeloop(lambda s, i: s * c, np.exp(u), 3), donate_argnums=0)
    expected = timeloop(lambda s, i: s * c, np.exp(c), 3)
    with pytest.raises(TypeError, match="shares memory with another argument, or an array that the function uses"):
        f(c)
    assert bits(f(c.copy())) == bits(expected)


def test_what_a_step_counts_is_not_written_while_it_is_traced():
    """A step writes into its state and inputs; those that depend on nothing traced are the caller's, and stay."""
    state, rows = np.zeros(2, int), [np.array([k, k]) for k in (1, 2, 3)]

    def step(s, x):
        s[1][0] += 1
        x[0] += 5
        return s[0] * x[0] * s[1][0], s[1]

    def f(u):
        return timeloop(step, (u, state), 3, inputs=rows)

    assert bits(jit(f)(U)) == bits(f(U))
    assert [state.tolist(), *(row.tolist() for row in rows)] == [[0, 0], [1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("at", [1, 5, 9, 14])
def test_the_next_run_after_an_error(at):
    """A run that ended with an error, wherever it was, leaves the next one as it is."""
    runs = np.zeros(2, int)

    def step(u, i):
        runs[0] += 1
        if runs[0] == runs[1]:
            raise KeyError
        return np.sin(u) * W

    f = jit(grad(lambda u: np.sum(timeloop(step, u, 8, schedule=Revolve(2)) ** 2)))
    expected = bits(f(U))
    runs[:] = 0, at
    with pytest.raises(KeyError):
        f(U)
    assert bits(f(U)) == expected


def test_programs_with_loops_in_threads():
    """Runs of one program at the same time do not meet."""
    f = jit(grad(lambda u: np.sum(grad(wave)(u) ** 2)))
    expected = [bits(f(k * U)) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: bits(f(k % 4 * U)), range(24)))
    assert found == expected * 6


def test_a_loop_has_a_budget_of_its_own():
    """A loop in a program keeps within the budget that it is given, by a schedule chosen when it runs."""
    u = np.linspace(0, 1, 20_000)
    f = lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 100, budget=Budget(memory=12 * u.nbytes)))
    for g in (jit(grad(f)), grad(jit(f)), jit(grad(jit(f)))):
        assert bits(g(u)) == bits(grad(f)(u))
        assert peak_bytes(lambda g=g: g(u)) < 17 * u.nbytes


def test_an_array_that_the_first_step_does_not_use():
    """An array from outside that only a later step uses is an error that says so, and never another gradient."""
    def f(u, w):
        return np.sum(timeloop(lambda u, i: u * w if i == 2 else np.sin(u), u, 4))

    assert refused(f, U, W, match="not use when the function was traced")
    assert refused(grad(f), U, W, match="not use when the function was traced")


def test_an_array_that_is_written_after_the_loop():
    """A static value that is written in place after the loop would be another one: an error."""
    def f(u):
        v = u * 2.0
        after = timeloop(lambda s, i: np.sin(s) * v, u, 4)
        v += 1.0
        return np.sum(after * v)

    assert refused(f, U, match="written in place after the loop")


def test_variables_that_stand_for_something_else_later():
    """A step has the variables that it had when the loop was called, as without jit, and so have functions in it."""
    def f(u, w):
        for k in range(1, 4):
            def scale(x):
                return x * k * w

            u = timeloop(lambda s, i: np.sin(scale(s)) + k, u, 3)
        w = w * 2.0
        return timeloop(lambda s, i: s * w, u, 2, until=None, inputs=lambda i: k)

    assert same(f, U, W)
    assert same(lambda u, w: grad(lambda w: np.sum(f(u, w)))(w), U, W)


def test_variables_that_a_step_assigns_to():
    """What a step assigns to is shared with the function around it, as without jit."""
    def f(u):
        n = 0

        def count():
            nonlocal n
            n += 1

        def step(s, i):
            count()
            return s * min(n, 2)

        return timeloop(step, u, 3)

    program = trace(f, U)
    # Of the two runs of the first step one was without data.
    assert bits(evaluate(program, [U])) == bits([U * 2 * 2 * 2])


def test_an_attribute_that_stands_for_something_else_later():
    """An attribute that is another object when the program runs is an error, and never another result."""
    class Model:
        scale = 1.0

    model = Model()

    def f(u):
        model.scale = 2.0
        after = timeloop(lambda s, i: s * model.scale, u, 2)
        model.scale = 3.0
        return timeloop(lambda s, i: s * model.scale, after, 2)

    assert f(np.ones(1))[0] == 36
    with pytest.raises(TraceError, match=r"model\.scale.*stands for another object"):
        jit(f)(np.ones(1))


def test_a_step_that_is_not_deterministic():
    """A step that gives another result when it runs again is an error in a program as elsewhere."""
    count = [0]

    def step(u, i):
        count[0] += 1
        return np.sin(u) * (1.0 + count[0])

    f = jit(grad(lambda u: np.sum(timeloop(step, u, 8, schedule=Revolve(2)))))
    with pytest.raises(DeterminismError):
        f(U)


# Checkpointed functions.


def layers(x):
    """Some elementwise layers."""
    for _ in range(4):
        x = np.tanh(np.exp(np.sin(x) * 0.1) * x)
    return x


def chain(wrap):
    """A chain of functions of four layers each."""
    def f(x):
        for _ in range(4):
            x = wrap(layers)(x)
        return np.sum(x)

    return f


def test_checkpointed_functions_are_computed_again():
    """In a gradient the equations of a checkpointed function are there twice, and its values are not kept."""
    x = np.linspace(0, 1, 100_000)
    plain, again = (jit(value_and_grad(chain(wrap))) for wrap in (lambda f: f, checkpoint))
    assert bits(plain(x)) == bits(again(x)) == bits(value_and_grad(chain(checkpoint))(x))
    counts = [names(jitted.program(x).program).count("tanh") for jitted in (plain, again)]
    assert counts == [16, 32]
    predicted = [jitted.program(x).predict().peak_bytes for jitted in (plain, again)]
    assert predicted[1] < 0.4 * predicted[0]
    measured = [peak_bytes(lambda f=jitted: f(x)) + f_block(jitted, x) for jitted in (plain, again)]
    assert measured[1] < 0.4 * measured[0]
    for one, other in zip(predicted, measured, strict=True):
        assert abs(one - other) < 0.01 * one


def f_block(jitted, x):
    """Bytes of the block, which is there since the first call."""
    return jitted.program(x).arena_nbytes


def test_checkpointed_functions_in_derivatives_of_a_jitted_function():
    """Where a jitted function is differentiated its checkpointed parts keep what they take and run twice."""
    x = np.linspace(0, 1, 1000)
    plain, again, nested = jit(chain(lambda f: f)), jit(chain(checkpoint)), jit(checkpoint(chain(checkpoint)))
    assert bits(grad(plain)(x)) == bits(grad(again)(x)) == bits(grad(nested)(x)) == bits(grad(chain(checkpoint))(x))
    programs = [[one.program for one in f.reversed(x)] for f in (plain, again, nested)]
    counts = [tuple(names(program).count("tanh") for program in pair) for pair in programs]
    assert counts == [(16, 0), (16, 16), (16, 12 + 16)]
    # What the parts are given, the last one's result apart; each layer keeps some values else.
    assert [len(forward.outputs) for forward, _ in programs] == [33, 4, 1]
    for deeper in (hvp, lambda f: lambda x, v: grad(lambda x: np.sum(grad(f)(x) * v))(x)):
        np.testing.assert_allclose(deeper(again)(x, x), deeper(plain)(x, x), rtol=1e-12)


def test_checkpoints_in_checkpoints():
    """Each level is computed once more, where its values are needed, and the gradient stays the same."""
    x = np.linspace(0, 1, 1000)
    f, g = chain(lambda f: f), chain(checkpoint)
    assert bits(jit(grad(checkpoint(g)))(x)) == bits(jit(grad(f))(x))
    # The first time for the value, then the first three functions, then all of them one after the other.
    assert names(trace(value_and_grad(checkpoint(g)), x)).count("tanh") == 16 + 12 + 16


def test_the_same_values_within_one_run_are_computed_once():
    """Within one run of a checkpointed function, and outside of it, common equations are merged."""
    def f(x):
        return np.sum(checkpoint(lambda x: np.exp(np.sin(x) * np.sin(x)))(x))

    found = names(trace(grad(f), U))
    assert found.count("sin") == 1  # its value is not needed where nothing depends on it but what is run again


def test_checkpoints_of_a_jitted_function_without_gradient():
    """Where no gradient is taken a checkpointed function is computed once."""
    assert names(trace(chain(checkpoint), U)) == names(trace(chain(lambda f: f), U))


def test_the_order_of_runs():
    """The second run of a checkpointed function stands in the reverse sweep, after the function's own equations."""
    program = trace(grad(chain(checkpoint)), U)
    runs = [equation.again for equation in program.equations if equation.name == "tanh"]
    assert runs[:12] == [None] * 12
    assert sum(one is not other for one, other in pairwise(runs)) == 4
