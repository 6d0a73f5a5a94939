"""Every program by every schedule, storage and transform: one gradient, that of the plain `for` loop."""

# ruff: noqa: D103 - a program has the name of what it does; tests have their docstrings
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import optree
import pytest
from tests.scale import sample

from ebbtide import checkpoint, grad, jvp, timeloop, value_and_grad, vjp
from ebbtide.arrays.context import current
from ebbtide.arrays.traced import TracedArray
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, Schedule, StoreAll
from ebbtide.storage import Disk, Memory

STEPS = 11
DT = 0.1
SCHEDULES = (StoreAll(), Revolve(1), Revolve(2), Revolve(5), Revolve(50))
COSTS = Costs(write=1.0, read=1.0)
MORE = (
    StoreAll("disk"), Mixed(8, restart=1, saved=3), Mixed(2, reverse=4), Hierarchical(2, 2, COSTS), Periodic(3, 2),
    Online(3),
)  # fmt: skip
STORAGES = {"memory": Memory, "disk": Disk}
COEFFICIENT: Any = None
U0 = np.linspace(0.2, 1.3, 6)
V0 = np.cos(U0)
FORCING = np.sin(np.arange(STEPS * 6.0)).reshape(STEPS, 6)
PLAIN = np.linspace(0.5, 1.5, 6)
MATRIX = np.cos(np.arange(36.0)).reshape(6, 6) / 6
TABLE = np.array([(0.5, 3), (0.25, 4)], [("level", float), ("count", int)])
Levels = namedtuple("Levels", ["now", "before"])


@dataclass(frozen=True)
class Program:
    """A scalar function `f(loop, control)`, which calls `loop(step, state, steps, inputs=, outputs=)`."""

    f: Callable[..., Any]
    control: Any


PROGRAMS: dict[str, Program] = {}


def program(control: Any) -> Callable[..., Any]:
    """Register the decorated function as a program with this control."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[f.__name__] = Program(f, control)
        return f

    return register


def new(u: Any, c: Any = 1.0) -> Any:
    """A nonlinear explicit step that makes a new object."""
    return u + DT * np.sin(c * u) * np.roll(u, 1)


# Kinds of step.


@program(U0)
def in_place(loop, u):
    def step(u, i):
        u[1:-1] += DT * np.sin(u[1:-1]) * (u[2:] - u[:-2])
        u[0] = u[1] * 0.5
        return u

    return np.sum(loop(step, u, STEPS) ** 2)


@program(U0)
def new_object(loop, u):
    return np.sum(loop(lambda u, i: new(u), u, STEPS) ** 2)


@program(U0)
def two_levels(loop, u):
    def step(state, i):
        u, before = state
        f = np.sin(u) * np.roll(u, 1)
        return u + DT * (1.5 * f - 0.5 * before), f

    return np.sum(loop(step, (u, np.zeros(6)), STEPS)[0] ** 2)


@program((U0, V0))
def swapped_levels(loop, c):
    def step(state, i):
        old, now = state
        old += 2 * DT * np.sin(now) * np.roll(now, 1)
        return now, old

    old, now = loop(step, c, STEPS)
    return np.sum(old * now**2)


@program(U0)
def long_range(loop, u):
    def step(state, i):
        u, kept = state
        return new(u) * (1 + DT * kept), (u * 1.0 if i % 3 == 0 else kept)

    return np.sum(loop(step, (u, u), STEPS)[0] ** 2)


@program(U0)
def returns_the_same_twice(loop, u):
    def step(state, i):
        a, b = state
        a *= 1 + DT * np.cos(b)
        return a, a

    a, b = loop(step, (u, PLAIN), STEPS)
    return np.sum(a * np.sin(b))


# Inputs and outputs.


@program(U0)
def input_array(loop, u):
    return np.sum(loop(lambda u, x: new(u) + DT * x, u, STEPS, inputs=FORCING) ** 2)


@program(U0)
def input_list(loop, u):
    return np.sum(loop(lambda u, x: new(u) * x, u, STEPS, inputs=list(1 + DT * FORCING)) ** 2)


@program(U0)
def input_dicts(loop, u):
    rows = [{"f": row, "weight": 0.5 * k, "k": k} for k, row in enumerate(FORCING)]
    return np.sum(loop(lambda u, x: new(u) + DT * x["f"] * x["weight"] + x["k"] * 0.01, u, STEPS, inputs=rows) ** 2)


@program(FORCING)
def control_input_array(loop, f):
    return np.sum(loop(lambda u, x: new(u) * (1 + DT * x), U0, STEPS, inputs=f) ** 2)


@program(FORCING)
def control_input_added(loop, f):
    """The cotangents of the last inputs are plain in a second derivative, those of earlier ones are not."""
    return np.sum(loop(lambda u, x: np.sin(u) + x, U0, STEPS, inputs=f))


@program((U0, V0))
def control_input_list(loop, c):
    return np.sum(loop(lambda u, x: new(u) * x, PLAIN, STEPS, inputs=[c[k % 2] for k in range(STEPS)]) ** 2)


@program((U0, V0))
def control_input_dicts(loop, c):
    rows = [{"a": c[0] * k, "b": [c[1], 0.5]} for k in range(STEPS)]
    return np.sum(loop(lambda u, x: new(u) + DT * x["a"] * x["b"][0] * x["b"][1], PLAIN, STEPS, inputs=rows) ** 2)


@program(U0)
def state_input_and_static_are_one(loop, u):
    return np.sum(loop(lambda s, x: new(s) * x + DT * u, u, STEPS, inputs=[u] * STEPS))


@program(U0)
def writes_its_input(loop, u):
    def step(u, x):
        x *= 0.5
        x[0] += 1.0
        return new(u) + DT * x

    return np.sum(loop(step, u, STEPS, inputs=FORCING) ** 2)


@program((U0, np.float64(0.7)))
def misfit_at_each_step(loop, c):
    u, k = c

    def step(u, i):
        u = new(u, k)
        return u, (np.sum((u - PLAIN) ** 2), {"probe": u[2:4] * k, "energy": np.sum(u * u)})

    final, (misfits, more) = loop(step, u, STEPS, outputs=True)
    weights = np.linspace(0, 1, STEPS)
    return np.sum(misfits * weights) + np.sum(more["probe"] ** 2) + more["energy"][3] + np.sum(final)


@program(U0)
def output_is_the_state(loop, u):
    def step(u, i):
        u *= 1 + DT * np.roll(u, 1)
        return u, u

    final, levels = loop(step, u, STEPS, outputs=True)
    return np.sum(levels**2) + np.sum(final)


@program(U0)
def outputs_only(loop, u):
    return np.sum(loop(lambda u, i: (new(u), np.sum(u * u) * i), u, STEPS, outputs=True)[1])


# Where controls come from.


@program(np.float64(0.7))
def closed_over(loop, c):
    return np.sum(loop(lambda u, i: new(u, c), U0, STEPS) ** 2)


@program((U0, PLAIN))
def both(loop, c):
    return np.sum(loop(lambda u, i: new(u, c[1]), c[0], STEPS) ** 2)


@program(PLAIN)
def attribute(loop, c):
    model = SimpleNamespace(c=c)
    return np.sum(loop(lambda u, i: new(u, model.c), U0, STEPS) ** 2)


@program(PLAIN)
def global_name(loop, c):
    globals()["COEFFICIENT"] = c
    return np.sum(loop(lambda u, i: new(u, COEFFICIENT), U0, STEPS) ** 2)


@program(PLAIN)
def default_argument(loop, c):
    def step(u, i, c=c):
        return new(u, c)

    return np.sum(loop(step, U0, STEPS) ** 2)


@program(PLAIN)
def bound_by_partial(loop, c):
    def step(c, u, i):
        return new(u, c)

    return np.sum(loop(partial(step, c), U0, STEPS) ** 2)


@program(PLAIN)
def static_every_third(loop, c):
    return np.sum(loop(lambda u, i: new(u, c) if i % 3 == 1 else new(u), U0, STEPS) ** 2)


@program(PLAIN)
def static_first_met_late(loop, c):
    return np.sum(loop(lambda u, i: new(u, c) if i >= 5 else new(u), U0, STEPS) ** 2)


@program((PLAIN, V0))
def static_met_at_the_first_step_only(loop, c):
    return np.sum(loop(lambda u, i: new(u, c[0]) if i == 0 else new(u, c[1]), U0, STEPS) ** 2)


@program(PLAIN)
def only_static_met_at_the_first_step_only(loop, c):
    return np.sum(loop(lambda u, i: new(u, c) if i == 0 else new(u), U0, STEPS) ** 2)


@program(PLAIN)
def static_met_at_the_last_step_only(loop, c):
    return np.sum(loop(lambda u, i: new(u, c) if i == STEPS - 1 else new(u), U0, STEPS) ** 2)


@program((MATRIX, np.float64(0.3), PLAIN))
def static_of_many_shapes(loop, c):
    """Static cotangents come as matrices, sums, broadcasts and transposed views."""
    a, k, w = c

    def step(u, i):
        return np.tanh(a @ u + a.T @ (u * k)) + np.sum(w) * 0.01 + w[::-1] * DT + np.reshape(a, (4, 9))[0, :6] * k

    return np.sum(loop(step, U0, STEPS) ** 2)


@program((U0, PLAIN))
def static_passed_through_an_operation_outside(loop, c):
    w = np.exp(c[1])
    return np.sum(loop(lambda u, i: new(u, w), c[0], STEPS) * w)


@program(U0)
def plain_statics(loop, u):
    return np.sum(loop(lambda u, i: np.tanh(MATRIX @ u) * PLAIN + FORCING[i] * DT, u, STEPS) ** 2)


# Kinds of state.


@program({"u": U0, "v": V0})
def dict_state(loop, c):
    def step(s, i):
        return {"v": s["v"] + DT * np.sin(s["u"]), "u": s["u"] - DT * s["v"] ** 2}

    s = loop(step, c, STEPS)
    return np.sum(s["u"] * s["v"])


@program(Levels(U0, V0))
def namedtuple_state(loop, c):
    s = loop(lambda s, i: Levels(new(s.now) + DT * s.before, s.now), c, STEPS)
    return np.sum(s.now * s.before)


@program(U0.astype(np.float32))
def float32_state(loop, u):
    return np.sum(loop(lambda u, i: new(u), u, STEPS) ** 2)


@program(U0.astype(np.float32))
def float32_state_with_python_time(loop, u):
    """A Python float in the state does not promote float32 arrays, as in the plain loop."""
    u, t = loop(lambda s, i: (new(s[0]) * (1 + DT * s[1]), s[1] + DT), (u, 0.0), STEPS)
    return np.sum(u * u) * t


@program(U0 + 0.3j * V0)
def complex_state(loop, z):
    return np.sum(np.abs(loop(lambda z, i: z + DT * 1j * z * z * np.roll(z, 1), z, STEPS)) ** 2)


@program((U0, np.float64(0.4)))
def counter_and_time(loop, c):
    def step(s, i):
        u, n, t = s
        return new(u, c[1]) * (1 + 0.01 * n) * np.cos(t), n + 1, t + DT

    u, n, t = loop(step, (c[0], 0, 0.0), STEPS)
    return np.sum(u) * n * t


@program(np.float64(0.4))
def time_becomes_active(loop, c):
    """A Python number that comes to depend on the control is differentiated from then on."""
    u, t = loop(lambda s, i: (new(s[0]) * np.cos(s[1]), s[1] + c * DT), (U0, 0.0), STEPS)
    return np.sum(u) * t


@program(U0)
def python_numbers_after_the_loop(loop, u):
    """What stays a Python number from step to step is one after the loop, too, and does what one does."""

    def step(s, i):
        u, t, z = s
        return new(u) * (1 + DT * t), t + DT, z * 1j

    u, t, z = loop(step, (u, 0.5, 1 + 2j), STEPS)
    assert (type(t), type(z)) == (float, complex)
    return np.sum(u * u) * (t + 1) * abs(z) * np.abs(t) * np.real(z + 3)


@program(U0)
def integer_array_in_state(loop, u):
    def step(s, i):
        u, n = s
        u = u * n[0]
        n[0] = 2 - n[0] + 1
        n[1] += 1
        return u * (1 + 0.01 * n[1]), n

    return np.sum(loop(step, (u, np.array([1, 0])), STEPS)[0] ** 2)


@program(U0)
def record_in_state(loop, u):
    """A step may write into a record of an array of structures, which is a view of that."""

    def step(s, i):
        u, record = s
        record["count"] += 1
        record["level"] *= 0.9
        return new(u) * (1 + record["level"] / record["count"]), record

    u, record = loop(step, (u, TABLE[0].copy()), STEPS)
    return np.sum(u * u) * record["level"]


@program(np.array(0.6))
def zero_dimensional(loop, u):
    def step(u, i):
        u += DT * np.sin(u * u)
        return u

    return loop(step, u, STEPS) ** 2


@program(np.float64(0.6))
def scalar(loop, u):
    return loop(lambda u, i: u + DT * np.sin(u * u), u, STEPS) ** 2


@program(np.float64(0.9))
def python_number(loop, c):
    return loop(lambda u, i: u * c + 0.1, 1.0, STEPS)


@program(U0)
def leaves_are_one_array(loop, u):
    def step(s, i):
        a, b = s
        a *= 1 + DT * b
        b -= DT * a
        return a, b

    a, b = loop(step, (u, u), STEPS)
    return np.sum(a * b)


@program(PLAIN)
def state_is_the_callers_array_and_static(loop, c):
    def step(s, i):
        a, b = s
        a += DT * PLAIN * np.sin(b) * c
        b += DT * a
        return a, b

    a, b = loop(step, (PLAIN, c), STEPS)
    return np.sum(a * b)


@program(np.asfortranarray(np.outer(U0, V0)))
def fortran_state(loop, u):
    def step(u, i):
        assert u.flags.c_contiguous
        u[1:] += DT * np.sin(u[:-1]) * np.sum(u, axis=1)[1:, None]
        return u

    return np.sum(loop(step, u, STEPS) ** 2)


@program(np.outer(U0, V0))
def views_returned(loop, u):
    def step(s, i):
        u, v = s
        assert u.flags.c_contiguous
        assert v.flags.c_contiguous
        u = u + DT * np.sin(np.sum(u, axis=0))
        return u.T, (v + DT * u[0])[::-1]

    u, v = loop(step, (u, V0[::-1]), STEPS)
    return np.sum(u**2) + np.sum(u[0] * v)


# Transforms and loops inside.


@program((U0, np.float64(0.4)))
def loop_inside(loop, c):
    def step(u, i):
        return timeloop(lambda v, j: new(v, c[1]) * (1 + 0.01 * u), u, 3, schedule=Revolve(1))

    return np.sum(loop(step, c[0], STEPS) ** 2)


@program((U0, np.float64(0.4)))
def checkpoint_inside(loop, c):
    return np.sum(loop(lambda u, i: checkpoint(lambda v: new(v, c[1]) * np.cos(u))(u) + 0.5, c[0], STEPS) ** 2)


@program((U0, np.float64(0.4)))
def gradient_inside(loop, c):
    def step(u, i):
        return u - DT * grad(lambda v: np.sum(np.sin(v * c[1]) * np.roll(v, 1)))(u)

    return np.sum(loop(step, c[0], STEPS) ** 2)


@program((U0, np.float64(0.4)))
def loop_inside_of_checkpoint(loop, c):
    return np.sum(checkpoint(lambda u: loop(lambda u, i: new(u, c[1]), u, STEPS))(c[0]) ** 2)


@program((U0, np.float64(0.4)))
def one_loop_after_the_other(loop, c):
    u = loop(lambda u, i: new(u, c[1]), c[0], STEPS)
    return np.sum(loop(lambda v, i: new(v, u) * c[1], u * 0.5, STEPS) ** 2)


# How they are run.


def owned(leaf: Any) -> Any:
    """A copy of an array, so that a step may write (also traced values) into it."""
    if isinstance(leaf, TracedArray):
        return leaf.copy()
    if not isinstance(leaf, np.ndarray):
        return leaf
    trace = current().tangent or current().tape
    copy = np.array(leaf, order="C")
    return copy if trace is None or copy.dtype.kind not in "fc" else trace.constant(copy)


def plain_loop(step: Any, state: Any, steps: int, inputs: Any = None, outputs: bool = False) -> Any:
    """The loop that users write without the library."""
    state = optree.tree_map(owned, state)
    emitted = []
    for k in range(steps):
        x = k if inputs is None else optree.tree_map(owned, inputs[k])
        state = step(state, x)
        if outputs:
            state, output = state
            emitted.append(optree.tree_map(owned, output))
        state = optree.tree_map(owned, state)
    if not outputs:
        return state
    return state, optree.tree_map(lambda *leaves: np.stack(leaves), *emitted)


class Counted:
    """A time loop with given schedule and storage that counts its steps."""

    def __init__(self, schedule: Schedule | None, storage: Any = None) -> None:
        self.schedule, self.storage, self.count, self.loops = schedule, storage, 0, 0

    def __call__(self, step: Any, state: Any, steps: int, inputs: Any = None, outputs: bool = False) -> Any:
        def counted(state: Any, x: Any) -> Any:
            self.count += 1
            return step(state, x)

        self.loops += 1
        return timeloop(
            counted, state, steps, inputs=inputs, outputs=outputs, schedule=self.schedule, storage=self.storage
        )


def direction(control: Any) -> Any:
    """A tangent of the control."""

    def tangent(x: Any) -> Any:
        return np.cos(np.arange(np.size(x)) + 0.5).reshape(np.shape(x)).astype(x.dtype)[()]

    return optree.tree_map(tangent, control)


def second(transform: str, f: Any, control: Any) -> Any:
    """A second derivative along `direction`, by forward over reverse or reverse over forward."""
    v = direction(control)
    if transform == "hvp":
        return jvp(grad(f), (control,), (v,))[1]
    return grad(lambda x: jvp(f, (x,), (v,))[1])(control)


@cache
def reference(name: str) -> dict[str, Any]:
    """Value and derivatives of the plain loop, and, bit for bit, those of `StoreAll`."""
    p = PROGRAMS[name]
    result: dict[str, Any] = {}
    for kind, loop in (("for", plain_loop), ("all", Counted(StoreAll()))):
        f = partial(p.f, loop)
        result[kind, "value"], result[kind, "grad"] = value_and_grad(f)(p.control)
        result[kind, "jvp"] = jvp(f, (p.control,), (direction(p.control),))
        if not np.iscomplexobj(optree.tree_leaves(p.control)[0]):
            result[kind, "hvp"] = second("hvp", f, p.control)
            result[kind, "rof"] = second("rof", f, p.control)
    result["untraced"] = p.f(plain_loop, p.control)
    return result


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Assert equality of type, dtype, shape and bits of all leaves."""
    leaves, structure = optree.tree_flatten(actual)
    theirs, structure_of_theirs = optree.tree_flatten(expected)
    assert structure == structure_of_theirs
    for a, b in zip(leaves, theirs, strict=True):
        assert type(a) is type(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def assert_close(actual: Any, expected: Any) -> None:
    """Assert equality to rounding of all leaves, with equal dtypes."""
    for a, b in zip(optree.tree_leaves(actual), optree.tree_leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=2e-4 if a.dtype == np.float32 else 1e-11, atol=1e-12)


@pytest.fixture(params=list(STORAGES))
def storage(request, tmp_path):
    """A storage of the user, which a loop has to leave as it was."""
    kept = Memory() if request.param == "memory" else Disk(tmp_path)
    with kept:
        kept.put("mine", [np.arange(3.0)])
        yield kept
        assert kept.keys() == ("mine",)
        np.testing.assert_array_equal(kept.get("mine")[0], np.arange(3.0))


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_store_all_equals_the_plain_loop(name):
    """Value and first and second derivatives with StoreAll equal those of a `for` loop to rounding."""
    found = reference(name)
    for what in ("value", "grad", "jvp", "hvp", "rof"):
        if ("for", what) in found:
            assert_close(found["all", what], found["for", what])


@pytest.mark.parametrize(("name", "schedule"), sample(list(product(PROGRAMS, SCHEDULES + MORE)), 3), ids=str)
def test_gradient_is_that_of_store_all(name, schedule, storage):
    """Value and gradient are those of StoreAll bit for bit, the step runs as often as the schedule says."""
    p = PROGRAMS[name]
    control = optree.tree_map(np.copy, p.control)
    constants = [np.copy(x) for x in (U0, V0, FORCING, PLAIN, MATRIX)]
    loop = Counted(schedule, storage)
    f = partial(p.f, loop)
    value, gradient = value_and_grad(f)(p.control)
    assert_same_bits(gradient, reference(name)["all", "grad"])
    assert_same_bits(np.asarray(value), np.asarray(reference(name)["untraced"]))
    runs = schedule.forward_steps(STEPS)
    if name == "loop_inside_of_checkpoint":
        assert loop.count == STEPS + runs  # once without a tape in the forward run of the checkpoint
    else:
        assert loop.count == loop.loops * runs
    assert_same_bits(optree.tree_map(np.asarray, p.control), optree.tree_map(np.asarray, control))
    for now, before in zip((U0, V0, FORCING, PLAIN, MATRIX), constants, strict=True):
        np.testing.assert_array_equal(now, before)


@pytest.mark.parametrize(
    ("name", "schedule"),
    sample(list(product([n for n in PROGRAMS if not n.startswith("complex")], SCHEDULES[1:4])), 2),
    ids=str,
)
def test_second_derivatives_are_those_of_store_all(name, schedule, tmp_path):
    """Forward over reverse and reverse over forward obey the schedule and give the bits of StoreAll."""
    p = PROGRAMS[name]
    for transform in ("hvp", "rof"):
        loop = Counted(schedule, Disk(tmp_path) if schedule == Revolve(2) else Memory())
        assert_same_bits(second(transform, partial(p.f, loop), p.control), reference(name)["all", transform])
        if name != "loop_inside_of_checkpoint":
            assert loop.count == loop.loops * schedule.forward_steps(STEPS)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_forward_mode_runs_each_step_once(name):
    """A jvp has no reverse sweep: no snapshot, each step once, value and tangent those of the plain loop."""
    p = PROGRAMS[name]
    storage = Memory()
    loop = Counted(Revolve(2), storage)
    found = jvp(partial(p.f, loop), (p.control,), (direction(p.control),))
    assert loop.count == loop.loops * STEPS
    assert storage.keys() == ()
    assert_close(found, reference(name)["for", "jvp"])


@pytest.mark.parametrize(("name", "schedule"), sample(list(product(PROGRAMS, SCHEDULES)), 3), ids=str)
def test_retained_pullback_gives_the_same_twice(name, schedule):
    """A retained pullback gives the bits of the gradient each time; the step runs again as the schedule says."""
    p = PROGRAMS[name]
    loop = Counted(schedule)
    value, pullback = vjp(partial(p.f, loop), p.control, retain=True)
    seed = np.ones((), np.asarray(value).dtype)[()]
    expected = reference(name)["all", "grad"]
    for _ in range(3):
        (found,) = pullback(seed)
        assert_same_bits(found, expected)
        for leaf in optree.tree_leaves(found):
            if isinstance(leaf, np.ndarray):
                leaf[...] = np.nan  # the caller's: nothing of it is used again
    if name != "loop_inside_of_checkpoint":
        pulls = 1 if isinstance(schedule, StoreAll) else 3
        assert loop.count == loop.loops * pulls * schedule.forward_steps(STEPS)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_untraced_loop_gives_the_value_of_the_plain_loop(name):
    """Without a trace a loop is a plain loop: same value, each step once, the control unchanged."""
    p = PROGRAMS[name]
    before = optree.tree_map(np.copy, p.control)
    loop = Counted(Revolve(2))
    assert_same_bits(np.asarray(p.f(loop, p.control)), np.asarray(reference(name)["untraced"]))
    assert loop.count == loop.loops * STEPS
    assert_same_bits(optree.tree_map(np.asarray, p.control), optree.tree_map(np.asarray, before))
