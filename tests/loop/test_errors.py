"""Wrong use of a time loop: clear errors, never a wrong gradient."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from ebbtide import (
    Budget,
    DeterminismError,
    MutationError,
    ScheduleError,
    StorageError,
    TraceError,
    grad,
    hvp,
    jit,
    jvp,
    stop_gradient,
    timeloop,
    vjp,
    vmap,
)
from ebbtide.schedules import Copy, EndForward, EndReverse, Forward, Move, Reverse, Revolve, Schedule, StoreAll
from ebbtide.storage import Disk

STEPS = 7
U0 = np.linspace(0.2, 1.1, 5)
SCHEDULES = (StoreAll(), Revolve(1), Revolve(3))


def run(step: Any, state: Any = U0, steps: int = STEPS, **options: Any) -> Any:
    """The gradient of the sum of the final state."""

    def f(u):
        result = timeloop(step, u, steps, **options)
        return np.sum(result[0]) + np.sum(result[1]) if options.get("outputs") else np.sum(result)

    return grad(f)(state)


# Arguments.


@pytest.mark.parametrize("inputs", [np.ones((6, 5)), [1.0] * 8, []])
def test_number_of_inputs_that_disagrees(inputs):
    """As many inputs as steps, or an error that names both numbers."""
    for call in (run, timeloop):
        with pytest.raises(ValueError, match=f"{len(inputs)} inputs for 7 steps"):
            call(lambda u, x: u, U0, STEPS, inputs=inputs)


def test_several_arrays_of_inputs():
    """Arrays side by side that have a row for each step are no inputs, and the error says how to give their rows."""
    a, b = np.arange(35.0).reshape(7, 5), np.ones((7, 5))
    with pytest.raises(ValueError, match=r"2 inputs for 7 steps.* has 7 rows: .*inputs=lambda i: \(a\[i\], b\[i\]\)"):
        run(lambda u, x: u * x[0], inputs=(a, b))
    assert np.array_equal(run(lambda u, x: u + x[0] * x[1], inputs=lambda i: (a[i], b[i])), np.ones(5))
    with pytest.raises(ValueError, match=r"step\.$"):
        run(lambda u, x: u * x[0], inputs=(a, np.ones((6, 5))))


@pytest.mark.parametrize("steps", [-1, 2.0, True, "3", None])
def test_steps_that_are_no_number(steps):
    """`steps` is an int that is not negative."""
    with pytest.raises(ValueError, match="give steps=, or until=" if steps is None else re.escape(repr(steps))):
        timeloop(lambda u, i: u, U0, steps)


@pytest.mark.parametrize("schedule", ["revolve", 3, Revolve])
def test_schedule_that_is_none(schedule):
    """`schedule` is a schedule."""
    with pytest.raises(ScheduleError, match="schedule="):
        run(lambda u, i: u, schedule=schedule)


@pytest.mark.parametrize(
    ("option", "error"),
    [({"storage": "disk"}, TypeError), ({"budget": 10**6}, TypeError), ({"costs": 1.0}, TypeError),
     ({"resume_every": "5"}, ValueError), ({"resume_every": -1}, ValueError), ({"resume": 5}, TypeError),
     ({"resume": ""}, StorageError)],
    ids=str,
)  # fmt: skip
def test_options_that_are_none(option, error):
    """What is no storage, budget, costs, interval or directory is refused with its value, differentiated or not."""
    for call in (run, lambda step, **options: timeloop(step, U0, STEPS, **options)):
        with pytest.raises(error, match=re.escape(repr(*option.values()))):
            call(lambda u, i: u, **option)


@pytest.mark.parametrize("often", [0, -2, True])
def test_collect_every_that_is_no_positive_number(often):
    """`collect_every` is a positive number of steps."""
    with pytest.raises(ValueError, match="collect_every"):
        run(lambda u, i: u, collect_every=often)


def test_outputs_of_no_steps():
    """A loop of no steps has no outputs, and says so."""
    with pytest.raises(ValueError, match="0 steps"):
        timeloop(lambda u, i: (u, u), U0, 0, outputs=True)


@pytest.mark.parametrize("state", ["text", Fraction(1, 2), object(), np.array([None]), {1, 2}])
def test_state_that_is_no_array(state):
    """Leaves of a state are arrays and numbers, also where the loop is a part of a program."""
    loop = lambda u: timeloop(lambda s, i: s, {"u": u, "other": state}, 2)["u"]
    for call in (loop, jit(loop), grad(lambda u: np.sum(loop(u))), lambda u: jvp(loop, (u,), (u,))):
        with pytest.raises(TypeError, match=r"A leaf of the state (is a|has the dtype).*called at .*test_errors\.py:"):
            call(U0)


@pytest.mark.parametrize("d", [grad, jit, lambda f: jit(grad(f)), lambda f: grad(lambda c: vmap(f)(np.stack([c]))[0])])
def test_traced_inputs_in_an_unknown_sequence(d):
    """Traced elements of a sequence that is read step by step are an error, not a lost cotangent."""
    make = lambda rows: type("S", (), vars_of(rows))()
    with pytest.raises(TraceError, match=r"is a S with traced elements.*Give a list of its elements"):
        d(lambda c: np.sum(timeloop(lambda u, x: u * x, U0, 3, inputs=make([c, c, c]))))(2.0)
    with pytest.raises(TraceError, match=r"is a S with traced elements.*Give a list of its elements"):
        grad(lambda c: jvp(lambda c: timeloop(lambda u, x: u * x, c, 3, inputs=make([c, c, c])), (c,), (c,))[1])(2.0)
    plain = make([0.5, 2.0, 3.0])
    found = grad(lambda u: np.sum(timeloop(lambda u, x: u * x, u, 3, inputs=plain)))(U0)
    np.testing.assert_array_equal(found, np.full(5, 3.0))


def test_plain_inputs_in_an_unknown_sequence():
    """Arrays of a sequence that is read step by step are none that are traced, also in a derivative of a derivative."""
    inputs = type("S", (), vars_of([U0, U0 + 1.0, 2.0]))()
    for schedule in (StoreAll(), Revolve(1)):
        def f(u):
            return np.sum(timeloop(lambda u, x: np.sin(u * x), u, 3, inputs=inputs, schedule=schedule))

        found = grad(lambda u: jvp(f, (u,), (U0,))[1])(U0)
        np.testing.assert_allclose(found, hvp(f)(U0, U0), rtol=1e-12)


@pytest.mark.parametrize("verify", [False, True])
def test_arrays_of_objects_as_inputs(verify):
    """An array of objects is no array of numbers: traced arrays among them would lose their derivative in silence."""

    def f(c, inputs):
        return np.sum(timeloop(lambda u, x: u * x, U0, 3, inputs=inputs([c, 2.0, c]), verify=verify))

    def objects(rows):
        found = np.empty(3, object)
        for k, row in enumerate(rows):
            found[k] = row
        return found

    for call in (lambda: f(2.0, objects), lambda: grad(f)(2.0, objects), lambda: jit(f, 1)(2.0, objects)):
        with pytest.raises(TypeError, match=r"inputs= is an array of dtype object, .*list\(inputs\)"):
            call()
    assert grad(f)(2.0, list) == pytest.approx(4 * 2 * np.sum(U0))
    rows = [np.array([1.0], object)] * 3
    for call in (timeloop, run):
        with pytest.raises(TypeError, match="A leaf of the inputs has the dtype object"):
            call(lambda u, x: u * x, U0, 3, inputs=rows)


def vars_of(rows: Any) -> dict[str, Any]:
    """The methods of a sequence that is no list."""
    return {"__len__": lambda self: len(rows), "__getitem__": lambda self, k: rows[k]}


@pytest.mark.parametrize(
    ("inputs", "what"),
    [({"a": np.ones((STEPS, 5))}, "dict with the keys 'a'"), (dict.fromkeys("abcde", 1.0), "dict .*'d', ..."),
     ({1.0, 2.0}, "set"), ("abcdefg", "str"), ({}.values(), "dict_values")],
    ids=str,
)  # fmt: skip
def test_inputs_that_are_no_sequence(inputs, what):
    """A dict, a set and a string have no input for each step: the error says what has."""
    for call in (run, timeloop):
        with pytest.raises(TypeError, match=rf"inputs= is a {what}.* of 7 inputs.*a list of dicts"):
            call(lambda u, x: u, U0, STEPS, inputs=inputs)


@pytest.mark.parametrize("call", [run, timeloop, lambda *args: jvp(lambda u: timeloop(*args), (U0,), (U0,))])
def test_step_that_is_no_function_of_state_and_input(call):
    """What cannot be called with a state and an input is refused with what a step is; errors in a step are its own."""
    short = lambda u: u
    with pytest.raises(TypeError, match=r"called as step\(state, x\) \(too many") as raised:
        call(short, U0, STEPS)
    assert line_of(short) in str(raised.value)
    with pytest.raises(TypeError, match=r"called as step\(state, x\) \(missing a required argument: 'c'"):
        call(lambda u, i, c: u, U0, STEPS)
    with pytest.raises(TypeError, match=r"test_errors.py:\d+ was given an object of type array .*step\(state, x\)"):
        call(U0, U0, STEPS)
    with pytest.raises(TypeError, match="unsupported operand"):
        call(lambda u, i: u + sorted, U0, STEPS)


@pytest.mark.parametrize("call", [run, timeloop, lambda *a, **k: jvp(lambda u: timeloop(*a, **k), (U0,), (U0,))])
def test_step_that_runs_nothing_when_it_is_called(call):
    """A `yield` or an `async` in a step is told as such: the state was "a generator", to be registered as a vector."""

    def yields(u, i):
        yield u * 0.9

    async def waits(u, i):
        return u * 0.9

    for wrong in (yields, waits, partial(yields)):
        with pytest.raises(TypeError, match="`yield` in it, or is an `async def`") as raised:
            call(wrong, U0, STEPS)
        assert line_of(getattr(wrong, "func", wrong)) in str(raised.value)


@pytest.mark.parametrize("call", [run, timeloop, lambda *a, **k: jvp(lambda u: timeloop(*a, **k), (U0,), (U0,))])
@pytest.mark.parametrize(
    ("answer", "text"),
    [(lambda u: None, "returned None, .*`return`"), (lambda u: u > 5.0, r"of shape \(5,\), .*np.any"),
     (lambda u: np.zeros(0), r"of shape \(0,\)"), (lambda u: "no", "an object of type str"),
     (lambda u: [u[0] > 5.0], "an object of type list"), (lambda u: np.str_("no"), "an object of type str_"),
     (lambda u: np.datetime64("2026-11-30"), "an object of type datetime64")],
)  # fmt: skip
def test_condition_without_an_answer(answer, text, call):
    """A condition says with one value whether the loop ends: nothing, or one for each element, is an error."""
    with pytest.raises(TypeError, match=f"until= at .*{text}") as raised:
        call(lambda u, i: u, U0, None, until=answer, max_steps=STEPS)
    assert line_of(answer) in str(raised.value)


@pytest.mark.parametrize(
    "call",
    [run, timeloop, lambda *a, **k: jvp(lambda u: timeloop(*a, **k), (U0,), (U0,)),
     lambda step, u, *a, **k: jit(lambda u: timeloop(step, u, *a, **k))(u),
     lambda step, u, *a, **k: vmap(lambda u: timeloop(step, u, *a, **k))(np.stack([u, u]))],
)  # fmt: skip
def test_functions_that_cannot_be_called(call):
    """A condition and a function of inputs are functions of one argument; errors in them are their own."""
    for wrong in (3, "until", [True]):
        with pytest.raises(TypeError, match=r"until= takes a function until\(state\), and was given .* type \w+, "):
            call(lambda u, i: u, U0, None, until=wrong, max_steps=STEPS)
    never, several = lambda: False, lambda u, v: False
    for wrong, reason in ((never, "too many"), (several, "missing")):
        with pytest.raises(TypeError, match=rf"until= at .* called as until\(state\) \({reason}.*whether") as raised:
            call(lambda u, i: u, U0, None, until=wrong, max_steps=STEPS)
        assert line_of(wrong) in str(raised.value)
        with pytest.raises(TypeError, match=rf"inputs= at .* called as inputs\(i\) \({reason}.*number") as raised:
            call(lambda u, x: u, U0, STEPS, inputs=wrong)
        assert line_of(wrong) in str(raised.value)
    with pytest.raises(TypeError, match="unsupported operand"):
        call(lambda u, x: u, U0, STEPS, inputs=lambda i: i + sorted)


def test_condition_of_one_element():
    """An array of one element is an answer."""
    assert timeloop(lambda u, i: u + 1, 0.0, until=lambda u: np.array([u > 2]), max_steps=STEPS) == 3.0


def line_of(function: Any) -> str:
    """Where a function is defined."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


# What a step returns.


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda u: (u, u), TypeError, "structure"),
        (lambda u: None, TypeError, r"returned None as the new state.*Is there a `return`"),
        (lambda u: {"u": u}, TypeError, "structure"),
        (lambda u: u[:-1], TraceError, "float64\\[4\\]"),
        (lambda u: u[None], TraceError, "float64\\[1, 5\\]"),
        (lambda u: u.astype(np.float32), TraceError, "float32\\[5\\]"),
        (lambda u: u + 0j, TraceError, "complex128\\[5\\]"),
        (np.sum, TraceError, "float64\\[\\]"),
        (lambda u: "text", TypeError, "str"),
    ],
)
def test_state_that_changes_its_type(change, error, text, at, traced):
    """A state of another structure, shape or dtype is an error that names the step and both types."""

    def step(u, i):
        return change(u) if i == at else u * 0.5

    call = run if traced else timeloop
    with pytest.raises(error, match=text) as raised:
        call(step, U0, STEPS)
    if text != "str":
        assert f"Step {at} returned" in str(raised.value)
        assert f"(the step is at {line_of(step)})" in str(raised.value)


@pytest.mark.parametrize("call", [grad, lambda f: f, lambda f: lambda u: jvp(f, (u,), (u,))])
def test_leaf_that_changes_its_type(call):
    """The error names the path of the leaf, whether it changes its shape, its dtype, or is a generator no more."""
    state = lambda u: {"u": [u, u], "g": np.random.default_rng(1)}
    for changed, text in (
        (lambda s: s | {"u": [s["u"][0], s["u"][1][1:]]}, r"float64\[4\] for the leaf \['u'\]\[1\] .* float64\[5\]"),
        (lambda s: s | {"g": s["u"][0]}, r"a \w+ for the leaf \['g'\] .* a Generator .*stays in its place"),
    ):
        f = lambda u, changed=changed: np.sum(timeloop(lambda s, i: changed(s), state(u), 2)["u"][0])
        with pytest.raises(TraceError, match=f"Step 0 returned {text}"):
            call(f)(U0)


def test_structures_are_shown_as_they_are_written():
    """A container of another structure is shown with both, and `outputs=True` is advice for pairs with a state only."""
    nested = {"b": (U0, [U0, None])}
    with pytest.raises(TypeError, match="structure") as raised:
        timeloop(lambda s, i: {"b": U0}, nested, 2)
    assert "structure {'b': *}, and it was given {'b': (*, [*, None])}, where" in str(raised.value)
    assert "outputs" not in str(raised.value)
    with pytest.raises(TypeError, match=r"structure \(\*, \*\), and it was given \* \(one .*pass outputs=True"):
        timeloop(lambda u, i: (u, np.sum(u)), U0, 2)
    with pytest.raises(TypeError, match=r"structure (\[|\*, )+... \(3000 arrays or numbers\), and") as raised:
        timeloop(lambda u, i: [0.0] * 3000, U0, 2)
    assert len(str(raised.value)) < 500
    with pytest.raises(TypeError, match=r"structure \(\*, \*, \*\), and it was given \(\*, \*\), [^=]*$"):
        timeloop(lambda s, i: (*s, s[0]), (U0, U0), 2)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("first", "later"),
    [
        (lambda u: u, lambda u: (u, u)),
        (lambda u: u, lambda u: {"u": u}),
        (lambda u: u, lambda u: u[1:]),
        (lambda u: u, np.sum),
        (lambda u: 0, lambda u: 0.5),
        (lambda u: np.float32(1), lambda u: 0.5),
        (lambda u: u, lambda u: u * 1j),
    ],
)
def test_output_that_changes_its_type(first, later, traced):
    """Outputs have one structure, shape and dtype: a float is never cut down to the integer that came first."""
    call = run if traced else timeloop
    with pytest.raises(TypeError, match=r"Step 2 returned an output.*test_errors\.py"):
        call(lambda u, i: (u * 0.5, (first if i < 2 else later)(u)), U0, STEPS, outputs=True)
    for way in (of_members, of_pairs):
        with pytest.raises(TypeError, match=r"A step returned an output.*test_errors\.py"):
            way(lambda u, i: (u * 0.5, (first if i < 2 else later)(u)))


def of_members(step):
    """The loop of a step for members of a batch."""
    return vmap(lambda u: timeloop(step, u, STEPS, outputs=True))(np.stack([U0, U0]))


def of_pairs(step):
    """The gradient of the tangents of the loop of a step."""
    def tangents(u):
        return jvp(lambda u: np.sum(timeloop(step, u, STEPS, outputs=True)[0]), (u,), (U0,))[1]

    return grad(tangents)(U0)


@pytest.mark.parametrize("result", [lambda u: u, lambda u: (u,), lambda u: (u, u, u), lambda u: [u, u], lambda u: None])
def test_step_without_an_output(result):
    """With outputs=True a step returns a pair."""
    with pytest.raises(TypeError, match="outputs=True"):
        timeloop(lambda u, i: result(u), U0, 2, outputs=True)
    for way in (of_members, of_pairs):
        with pytest.raises(TypeError, match=r"outputs=True.* a step \(the step is at .*test_errors\.py"):
            way(lambda u, i: result(u))


def test_an_output_that_is_no_array():
    """Neither plainly nor with members or tangents."""
    for call in (run, of_members, of_pairs):
        with pytest.raises(TypeError, match=r"A leaf of the output is a str.*test_errors\.py:"):
            call(lambda u, i: (u, "done"), **({"outputs": True} if call is run else {}))


# Changes and randomness.


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("use", [lambda u, w: u * w, lambda u, w: u + w, lambda u, w: np.where(u > w, u, w)])
def test_plain_static_that_changes(use, schedule):
    """A plain array from outside that a step changes is an error that says where to put it."""
    w = np.full(5, 0.9)

    def step(u, i):
        u = use(u, w)
        w[i % 5] += 0.01
        return u

    with pytest.raises(MutationError, match=r"array w of shape .* into the state"):
        run(step, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_traced_static_that_is_written(schedule):
    """Writing a traced array from outside in a step is an error that says where to put it."""

    def f(c):
        w = c * 2

        def step(u, i):
            w[0] = i
            return u * w

        return np.sum(timeloop(step, U0, STEPS, schedule=schedule))

    with pytest.raises(TraceError, match="into the state"):
        grad(f)(U0)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_arrays_of_a_step_may_change_within_it(schedule):
    """A buffer or an integer array that a step makes and writes between two uses is no change of a static."""

    def step(u, i):
        buffer = np.zeros(5)
        for k in range(5):
            buffer[k] = k + i
            u = u + 0.01 * np.sin(u) + buffer * 0.1
        return u

    def plain(u):
        for i in range(STEPS):
            u = step(u, i)
        return np.sum(u)

    np.testing.assert_allclose(run(step, schedule=schedule), grad(plain)(U0), rtol=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
@pytest.mark.parametrize("where", ["state", "output", "static"])
def test_step_that_is_not_deterministic(where, schedule):
    """A step that gives another state or output, or meets other arrays, when it is run again is an error."""
    random = np.random.default_rng(1)
    calls = [0]

    def f(u, c):
        def step(u, i):
            calls[0] += 1
            if where == "state":
                return u * random.random(), np.sum(u)
            if where == "output":
                return u * 0.9, np.sum(u) * random.random()
            return (u * c if calls[0] > STEPS else u * 2.0), np.sum(u)

        final, out = timeloop(step, u, STEPS, schedule=schedule, outputs=True)
        return np.sum(final) + np.sum(out)

    with pytest.raises(DeterminismError, match="Step"):
        grad(f, (0, 1))(U0, 2.0)


def test_step_that_is_not_deterministic_under_store_all():
    """Under StoreAll no step is run again: the gradient is that of the run that was made."""
    factors: list[float] = []
    random = np.random.default_rng(1)

    def step(u, i):
        factors.append(random.random())
        return u * factors[-1]

    np.testing.assert_allclose(run(step, schedule=StoreAll()), np.full(5, np.prod(factors)), rtol=1e-13)


@pytest.mark.parametrize("memory", ["9 MiB", "2 MiB"])
@pytest.mark.parametrize("where", ["state", "output"])
def test_step_that_is_not_deterministic_when_it_is_measured(where, memory):
    """A first step that is run again to be timed is compared, too: a counter went on, with another loop."""
    calls, u = [0], np.linspace(0.5, 1.1, 20_000)

    def f(u):
        def step(u, i):
            calls[0] += 1
            factor = 1 + 0.01 * calls[0]
            changed = u + 0.1 * np.sin(factor * u)
            return (changed, 0.0) if where == "state" else (u + 0.1 * np.sin(u), np.sum(changed))

        final, out = timeloop(step, u, 60, outputs=True)
        return np.sum(final) + np.sum(out)

    with pytest.raises(DeterminismError, match=f"Step 0 gave another {'result' if where == 'state' else 'output'}"):
        grad(f, budget=Budget(memory=memory, disk="200 MiB"))(u)


@pytest.mark.parametrize("steps", [10, 40])
@pytest.mark.parametrize("call", ["grad", "hvp", "vmap"])
def test_step_that_is_not_deterministic_when_the_function_alone_is_measured(call, steps):
    """So is one that is run on plain values, or from others than the user's, whatever the budget."""
    calls, u = [0], np.linspace(0.5, 1.1, 20_000)

    def f(u):
        def step(x, i):
            calls[0] += 1
            sines = np.sin((1 + 0.01 * calls[0]) * x)
            return x + 0.1 * np.median(sines.reshape(8, -1), axis=0).repeat(8)

        return np.sum((timeloop(step, u if call == "grad" else np.ones(20_000), steps) * u) ** 2)

    budget = Budget(memory="400 MiB")
    pull = grad(f, budget=budget)
    calls_of = {"hvp": lambda u: hvp(f, budget=budget)(u, u), "vmap": lambda u: vmap(pull)(np.stack([u, u]))}
    with pytest.raises(DeterminismError, match="Step 0 gave another result"):
        calls_of.get(call, pull)(u)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_number_that_changes_between_two_pulls(schedule, late):
    """A retained pullback runs the loop again: a coefficient that changed is an error, not another gradient."""
    c = [2.0]

    def step(u, i):
        return u * c[0] if i == STEPS - 1 or not late else u * 0.5

    _, pullback = vjp(lambda u: timeloop(step, u, STEPS, schedule=schedule), U0, retain=True)
    (first,) = pullback(np.ones(5))
    c[0] = 3.0
    try:
        (second,) = pullback(np.ones(5))
    except DeterminismError:
        assert schedule != StoreAll()
    else:
        np.testing.assert_array_equal(second, first)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_inputs_that_change_between_forward_and_reverse(schedule):
    """Inputs that the caller changes before the pullback are an error, or do not matter."""
    rows = np.linspace(0.5, 1.5, STEPS * 5).reshape(STEPS, 5)

    def f(u):
        def step(u, x):
            return np.sin(u) * x, np.sum(u * x)

        return timeloop(step, u, STEPS, inputs=rows, outputs=True, schedule=schedule)

    seed = np.ones(5), np.ones(STEPS)
    (right,) = vjp(f, U0)[1](seed)
    _, pullback = vjp(f, U0)
    rows *= 1.01
    try:
        (found,) = pullback(seed)
    except (DeterminismError, MutationError):
        assert schedule != StoreAll()
    else:
        assert found.tobytes() == right.tobytes()


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_list_of_inputs_that_becomes_shorter(schedule, verify):
    """A step that runs again and finds no input says which list is shorter; it was an IndexError."""
    rows = [np.full(5, 0.5 + k) for k in range(STEPS)]
    options = {"inputs": rows, "schedule": schedule, "verify": verify}
    _, pullback = vjp(lambda u: timeloop(lambda u, x: u * x, u, STEPS, **options), U0)
    rows.clear()
    if schedule == StoreAll():
        np.testing.assert_allclose(pullback(np.ones(5))[0], np.prod(np.arange(STEPS) + 0.5), rtol=1e-13)
    else:
        with pytest.raises(MutationError, match=r"become shorter: step \d runs again at .*test_errors\.py:\d+,"):
            pullback(np.ones(5))


@pytest.mark.parametrize("spoil", ["flip", "cut"])
@pytest.mark.parametrize("snapshots", [1, 3])
def test_snapshot_that_is_damaged(spoil, snapshots, tmp_path):
    """A damaged snapshot is made again; only without the first one it is an error. The storage is left clean."""
    storage = Disk(tmp_path)
    options = {"schedule": Revolve(snapshots), "storage": storage}
    _, pullback = vjp(lambda u: timeloop(lambda u, i: np.sin(u), u, STEPS, **options), U0)
    (path,) = tmp_path.rglob("segment")
    data = path.read_bytes()
    last = data.rindex(U0.tobytes()[-4:]) if snapshots == 1 else len(data.rstrip(b"\0")) - 1
    with path.open("r+b") as file:
        if spoil == "cut":
            file.truncate(last - 1)
        else:
            file.seek(last)
            file.write(bytes([data[last] ^ 1]))
    if snapshots == 1:
        with pytest.warns(RuntimeWarning, match="lost"), pytest.raises(StorageError):
            pullback(np.ones(5))
    else:
        _, whole = vjp(lambda u: timeloop(lambda u, i: np.sin(u), u, STEPS), U0)
        with pytest.warns(RuntimeWarning, match="lost"):
            assert np.array_equal(pullback(np.ones(5))[0], whole(np.ones(5))[0])
    assert (storage.keys(), storage.nbytes) == ((), 0)
    storage.close()
    assert list(tmp_path.rglob("segment")) == []


def test_storage_that_is_closed():
    """A closed storage is an error of its own."""
    storage = Disk()
    storage.close()
    with pytest.raises(StorageError, match="closed"):
        run(lambda u, i: np.sin(u), schedule=Revolve(2), storage=storage)


# Schedules that misbehave.


class Scripted(Schedule):
    """Follows Revolve(2) but for one place, where it returns what it is told to."""

    def __init__(self, at: int, action: Any) -> None:
        self.at, self.action, self.asked = at, action, 0

    def next_action(self, position):
        self.asked += 1
        assert self.asked < 1000, "the loop follows the schedule for ever"
        here = position.reversed if position.forward_ended else -1
        return self.action if here == self.at else Revolve(2).next_action(position)

    def forward_steps(self, steps):
        return Revolve(2).forward_steps(steps)

    def peak_snapshots(self, steps):
        return 2


@pytest.mark.parametrize("at", [-1, 0, 2])
@pytest.mark.parametrize(
    "action",
    [
        None,
        "Forward",
        EndReverse(),
        Copy(step=5),
        Move(step=6),
        Copy(step=0),
        Forward(start=3, stop=4),
        Forward(start=0, stop=99),
        Reverse(start=3, stop=2),
        EndForward(),
    ],
    ids=repr,
)
def test_schedule_that_misbehaves(action, at):
    """An action that cannot be followed, none at all, or the same for ever is a ScheduleError."""
    with pytest.raises(ScheduleError):
        run(lambda u, i: np.sin(u), schedule=Scripted(at, action))
    np.testing.assert_allclose(run(lambda u, i: u * 2.0), np.full(5, 2.0**STEPS))


def test_forward_mode_sees_the_same_errors():
    """A step that changes its state's shape fails in forward mode as it does without."""
    with pytest.raises(TraceError, match="Step 1"):
        jvp(lambda u: timeloop(lambda u, i: u if i < 1 else u[1:], u, 3), (U0,), (U0,))


@pytest.mark.parametrize(
    "leaf", [np.ma.array([1.0, 2.0], mask=[0, 1]), np.eye(2).view(np.matrix)], ids=["masked", "matrix"]
)
@pytest.mark.parametrize("place", ["state", "inputs", "returned", "output", "ended", "returned to end"])
def test_arrays_that_compute_in_their_own_way_are_refused(leaf, place):
    """As a plain array a masked one would have no mask and a matrix another product: never silently."""
    def ended(k, begin, after):
        until = lambda s: s[1] * k > 9
        return np.sum(timeloop(lambda s, i: (after, s[1] + k), (begin, k), until=until, max_steps=3)[0])

    f = {
        "state": lambda k: np.sum(timeloop(lambda u, i: u * k, leaf, 3)),
        "inputs": lambda k: np.sum(timeloop(lambda u, x: u * x * k, np.array(leaf), 2, inputs=[leaf] * 2)),
        "returned": lambda k: np.sum(timeloop(lambda u, i: leaf, np.array(leaf), 3)) * k,
        "output": lambda k: np.sum(timeloop(lambda u, i: (u * k, leaf), np.array(leaf), 3, outputs=True)[1]) * k,
        "ended": lambda k: ended(k, leaf, leaf),
        "returned to end": lambda k: ended(k, np.array(leaf), leaf),
    }[place]
    k = np.array([2.0, 1.0])
    for call in (lambda: f(2.0), lambda: grad(f)(2.0), lambda: vmap(f)(k), lambda: vmap(grad(f))(k)):
        with pytest.raises(TypeError, match="operations are not those of plain arrays"):
            call()


def test_memory_mapped_states_are_plain(tmp_path):
    """A memmap computes as an array does, and is one."""
    u = np.memmap(tmp_path / "u", np.float64, "w+", shape=(5,))
    u[:] = U0
    f = lambda k, u: np.sum(timeloop(lambda u, i: np.sin(u) * k, u, 4))
    assert grad(f)(0.9, u) == grad(f)(0.9, U0)


PADDED = {
    "long double": (np.linspace(0.1, 1, 50, dtype="g"), lambda u, k: np.sin(u) * k),
    "complex": (np.linspace(0.1, 1, 50) * np.clongdouble(1 + 0.1j), lambda u, k: np.sin(u) * k),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_is_no_difference(name):
    """A step that is run again gives other bytes where an extended float has none that mean something."""
    state, step = PADDED[name]
    f = lambda k: np.real(np.sum(timeloop(lambda u, i: step(u, k), state, 40, schedule=Revolve(3))))
    for _ in range(10):
        grad(f)(np.linspace(0.9, 1.1, 50))


def test_gaps_between_fields_are_no_difference():
    """Nor what lies between the fields of an aligned leaf."""
    kind = np.dtype([("a", np.int8), ("b", np.float64)], align=True)

    def step(state, k):
        counts, u = state
        after = np.frombuffer(np.random.default_rng().bytes(3 * kind.itemsize), kind).copy()
        after["a"], after["b"] = counts["a"] + 1, counts["b"] * 0.5
        return after, np.sin(u) * k

    f = lambda k: np.sum(timeloop(lambda s, i: step(s, k), (np.ones(3, kind), U0), 20, schedule=Revolve(3))[1])
    assert grad(f)(0.9) == grad(lambda k: np.sum(timeloop(lambda u, i: np.sin(u) * k, U0, 20)))(0.9)


def test_inputs_without_axes_are_refused():
    """A number has no rows."""
    with pytest.raises(TypeError, match="inputs= is a ndarray without axes"):
        run(lambda u, x: u * x, inputs=np.array(3.0))


# What is written in place, or bound anew, after the loop.

ORDERS = {
    "gradient": lambda f: grad(f)(U0),
    "forward over reverse": lambda f: jvp(grad(f), (U0,), (U0 - 0.5,))[1],
    "reverse over reverse": lambda f: grad(lambda u: np.sum(grad(f)(u) * U0))(U0),
}


def by_for(step: Any, state: Any, steps: int, inputs: Any = None, schedule: Any = None) -> Any:
    """The loop with `for`."""
    del schedule
    for k in range(steps):
        state = step(state, k if inputs is None else inputs[k])
    return state


def of_one_loop(u: Any, loop: Any, **options: Any) -> Any:
    """Static values that are written after the loop: an array, a view of it, a row, and one without its derivative."""
    w = 2 * u
    view, rows, value = w[::-1], np.stack([w, u]), 0.5 * w
    end = loop(lambda s, i: np.sin(s) * w + view * stop_gradient(value) - rows[1] * s, u, STEPS, **options)
    w *= 3
    rows[1] = 0
    value[0] = 7
    return np.sum(end * end * w)


def of_two_loops(u: Any, loop: Any, **options: Any) -> Any:
    """What a loop in a step takes from the function around it: static values, its initial state, and inputs."""
    w = 2 * u
    rows, listed, start = np.stack([w, w + 1, w * w]), [w * 1.0, w + 1, w * 3], 0.3 * w

    def step(s, i):
        t = loop(lambda t, x: 0.9 * t + np.sin(x) * s + 0.1 * w, start * s, 3, inputs=rows, **options)
        return 0.3 * s + 0.1 * t + 0.1 * loop(lambda t, x: 0.9 * t + np.sin(x) * s, start, 3, inputs=listed, **options)

    end = loop(step, u, STEPS, **options)
    for array in (w, rows, start, *listed):
        array[...] = 3 * array
    return np.sum(end * end * w)


def of_a_step(u: Any, loop: Any, **options: Any) -> Any:
    """An array of a step that is written in that step, after the loop in it."""

    def step(s, i):
        w = 2 * s
        half = w[::2]
        t = loop(lambda t, j: np.sin(t) * w + np.sum(half), 0.5 * s, 3, **options)
        w *= 3
        return 0.2 * t + 0.1 * w

    return np.sum(loop(step, u, STEPS, **options) ** 2)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("objective", [of_one_loop, of_two_loops, of_a_step])
def test_traced_static_that_is_written_after_the_loop(objective, order, schedule):
    """Steps that run again are given traced arrays from outside as they were, whatever was written into them since."""
    found = ORDERS[order](lambda u: objective(u, timeloop, schedule=schedule))
    np.testing.assert_allclose(found, ORDERS[order](lambda u: objective(u, by_for)), rtol=1e-10)


@pytest.mark.parametrize("traced", [False, True])
def test_name_that_is_bound_anew_after_the_loop(traced):
    """A step that closes over a name sees what it is bound to later: the error says so."""

    def f(u):
        w = 2 * u if traced else np.full(5, 0.9)
        end = timeloop(lambda s, i: np.sin(s) * w, u, STEPS, schedule=Revolve(1))
        w = 3 * w
        return np.sum(end * w)

    with pytest.raises(DeterminismError, match=r"bound anew after the loop|is bound to the same array"):
        grad(f)(U0)
