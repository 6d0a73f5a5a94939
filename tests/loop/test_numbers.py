"""Numbers in the state, of Python's and of NumPy's, that come to depend on something, or on nothing any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import find_least
from tests.nestings import loop_in_python

from ebbtide import Budget, DeterminismError, TraceError, grad, hvp, jit, jvp, linearize, timeloop, value_and_grad, vmap
from ebbtide.schedules import Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll

STEPS = 12
SCHEDULES = (
    None, StoreAll(), StoreAll("disk"), Revolve(1), Revolve(3), Mixed(5, 1, 2), Periodic(4, 2), Hierarchical(2, 2),
)  # fmt: skip
NUMBERS = (
    0.5, 0.5 + 0.2j, 1, True, np.float64(0.5), np.float32(0.5), np.float16(0.5), np.complex128(0.5 + 0.2j),
    np.complex64(0.5 + 0.2j), np.int64(1), np.int32(1), np.bool_(True),
)  # fmt: skip


class Numbers:
    """The numbers of the steps, which loops read one by one; Ctrl-C comes at one of the calls."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.calls = 0

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, i: int) -> int:
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt
        return range(STEPS)[i]


def begins_late(number: Any, first: int) -> Any:
    """A function of a loop whose number depends on the control from a step on."""

    def f(k: Any, loop: Any) -> Any:
        def step(state: Any, i: int) -> Any:
            z, u = state
            if i >= first:
                z = z * z * 0.5 - z / 3 + 0.1 * k
            return z, u * 0.9 + np.real(z) * np.sin(u)

        z, u = loop(step, (number, np.linspace(0, 1, 3)), STEPS)
        return np.sum(u * np.abs(z) ** 2)

    return f


@pytest.mark.parametrize("first", [0, 3, STEPS - 1])
@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{type(number).__module__} {type(number).__name__}")
def test_a_number_that_comes_to_depend_has_its_derivative(number: Any, first: int) -> None:
    """Whatever kind of number it is, and whichever the step, all schedules give the gradient of the plain loop."""
    f = begins_late(number, first)
    wanted = grad(lambda k: f(k, loop_in_python))(0.7)
    for schedule in SCHEDULES:
        for verify in (True, False):
            loop = lambda *args, s=schedule, v=verify: timeloop(*args, schedule=s, verify=v)
            assert grad(lambda k: f(k, loop))(0.7) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("first", [0, 3])
def test_a_number_of_a_loop_of_unknown_length(first: int) -> None:
    """So it is where a condition ends the loop."""
    f = begins_late(0.5 + 0.2j, first)

    def until(step: Any, state: Any, steps: int, **options: Any) -> Any:
        count = lambda s, i: (step(s[0], i), s[1] + 1)
        return timeloop(count, (state, 0), until=lambda s: s[1] >= steps, max_steps=30, **options)[0]

    wanted = grad(lambda k: f(k, loop_in_python))(0.7)
    for schedule in (Online(2), StoreAll(), None):
        found = grad(lambda k: f(k, lambda *args: until(*args, schedule=schedule)))(0.7)
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("first", [0, 3])
def test_a_number_in_other_derivatives(first: int) -> None:
    """So it is in products with the Hessian, in forward mode, and in what is linearized, also where steps run again."""
    f = begins_late(0.5 + 0.2j, first)
    plain = lambda k: f(k, loop_in_python)
    for schedule in (StoreAll(), Revolve(2)):
        g = lambda k: f(k, lambda *args: timeloop(*args, schedule=schedule))
        assert hvp(g)(0.7, 1.0) == pytest.approx(hvp(plain)(0.7, 1.0), rel=1e-12)
        wanted = jvp(plain, (0.7,), (1.0,))[1]
        assert jvp(g, (0.7,), (1.0,))[1] == pytest.approx(wanted, rel=1e-12)
        for _ in range(2):
            assert linearize(g, 0.7)[1](1.0) == pytest.approx(wanted, rel=1e-12)
        each = vmap(grad(plain))(np.array([0.7, 0.8]))
        assert vmap(grad(g))(np.array([0.7, 0.8])) == pytest.approx(each, rel=1e-12)


def test_a_number_of_a_run_that_is_resumed(tmp_path: Path) -> None:
    """So it is where the loop is stopped in either sweep and goes on."""
    f = begins_late(0.5 + 0.2j, 5)

    def run(directory: Path | None, stop: int = 0) -> tuple[Any, int]:
        inputs = Numbers(stop)
        options: dict[str, Any] = {"schedule": Revolve(2), "inputs": inputs, "resume": directory, "resume_every": 2}
        return grad(lambda k: f(k, lambda *args: timeloop(*args, **options)))(0.7), inputs.calls

    expected, calls = run(None)
    assert expected == pytest.approx(grad(lambda k: f(k, loop_in_python))(0.7), rel=1e-12)
    for stop in range(3, calls, 6):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", stop)
        assert run(tmp_path / "run")[0] == expected


# Steps in which Python computes what NumPy computes on a tape, as a float of NumPy's is one of Python's.
OF_PYTHON = {
    "product": (lambda s, i: (0.5 + 0.4j) * np.abs(s), 1 + 1j),
    "quotient": (lambda s, i: (1.3 + 0.7j) / (1.1 + np.abs(s)), 1 + 1j),
    "power": (lambda s, i: (0.3 + 0.7j) ** np.abs(s), 1 + 1j),
    "of an array": (lambda s, i: (0.5 + 0.4j) * np.abs(s[()]), np.asarray(1 + 1j)),
    "its size": (lambda s, i: abs((0.4 + 0.5j) * s), 1.0),
    "a part": (lambda s, i: s * ((1.3 + 0.7j) / (s[0] + 1.1)).real, np.linspace(1, 2, 3)),
    "product by the function": (lambda s, i: np.multiply(np.multiply(s, s), 0.9 + 0.1j) + 0.1, 0.5 + 0.2j),
    "size by the operator": (lambda s, i: abs(s) * (0.5 + 0.3 * s), 0.5 + 0.2j),
    "later": (lambda s, i: (0.5 + 0.4j) * np.abs(s) if i > 3 else 0.9 * s, 1 + 1j),
}


@pytest.mark.parametrize("name", OF_PYTHON)
def test_complex_numbers_of_python_and_floats_of_numpy(name: str) -> None:
    """What Python makes of the two is on no tape, and has its derivative all the same."""
    step, begin = OF_PYTHON[name]
    f = lambda k, loop, steps: np.sum(np.abs(loop(step, begin * k, steps)) ** 2)
    for steps in (9, 40):
        wanted = grad(lambda k: f(k, loop_in_python, steps))(0.7)
        slope = jvp(lambda k: f(k, loop_in_python, steps), (0.7,), (1.0,))[1]
        for schedule in SCHEDULES:
            g = lambda k: f(k, lambda *args: timeloop(*args, schedule=schedule), steps)
            assert grad(g)(0.7) == pytest.approx(wanted, rel=1e-11)
            assert jvp(g, (0.7,), (1.0,))[1] == pytest.approx(slope, rel=1e-11)
            assert linearize(g, 0.7)[1](1.0) == pytest.approx(slope, rel=1e-11)


def test_a_number_that_widens_in_a_loop_within_a_loop() -> None:
    """A number of NumPy's may become a float64 in any loop, also where it comes from another one, and is traced."""
    step = lambda s, i, k: s * 0.5 + 0.1 * k
    inner = lambda s, k, loop: loop(lambda s, i: step(s, i, k), s, 4)
    f = lambda k, loop: loop(lambda s, i: inner(s, k, loop), np.float32(0.5), 3) ** 2
    wanted = grad(lambda k: f(k, loop_in_python))(0.7)
    assert grad(lambda k: f(k, timeloop))(0.7) == pytest.approx(wanted, rel=1e-7)
    assert jvp(lambda k: f(k, timeloop), (0.7,), (1.0,))[1] == pytest.approx(wanted, rel=1e-7)
    assert linearize(lambda k: f(k, timeloop), 0.7)[1](1.0) == pytest.approx(wanted, rel=1e-7)


def test_a_linearized_loop_within_a_budget() -> None:
    """Steps that are not kept run with NumPy's numbers at the point, as they do in a push."""
    step, begin = OF_PYTHON["quotient"]
    f = lambda k: np.abs(timeloop(lambda s, i: (s[0] * 1.01, step(s[0] * s[1], i)), (begin * k, begin), 40)[1]) ** 2
    wanted = jvp(f, (0.7,), (1.0,))[1]
    bounded = lambda memory: linearize(f, 0.7, budget=Budget(memory=memory))[1](1.0)
    assert bounded(find_least(bounded)) == wanted


def test_a_number_of_numpys_stays_one() -> None:
    """A number of Python's in the place of one of NumPy's becomes one of its precision, in each way to run a loop."""
    for begin, reset in ((np.float32(1), 0.25), (np.float64(1), 0.1), (np.complex64(1), 0.5j), (np.asarray(1.0), 0.1)):
        step = lambda s, i: (reset if i == 1 else s[0], s[1] * s[0])
        run = lambda k: timeloop(step, (begin, begin * k), 4)
        values = run(begin.dtype.type(2))
        seen: list[Any] = []
        gradient = grad(lambda k: (seen.append(r := run(k)), np.real(r[1]))[1])(begin.dtype.type(2))
        assert values[0].dtype == begin.dtype
        assert type(values[0]) is type(begin)
        assert gradient.dtype == begin.dtype
        assert (seen[0][0].dtype, seen[0][1].dtype) == (begin.dtype, begin.dtype)


def test_powers_of_numbers_that_a_step_makes() -> None:
    """A step that has the power of a norm or of a largest element comes to the same state where it runs again."""
    for begin in np.random.default_rng(0).random((20, 5)) + 0.1:
        step = lambda u, i: 0.5 * u * (np.linalg.norm(u) ** 0.1 + np.max(u) ** 1.5)
        slope = lambda schedule: grad(lambda u: np.sum(timeloop(step, u, 8, schedule=schedule) ** 2))(begin)
        assert np.array_equal(slope(Revolve(1)), slope(StoreAll()))


def test_a_number_in_the_place_of_an_array_becomes_one() -> None:
    """An array without axes, of which a step returns a number, is an array in the next step, in each derivative."""

    def step(a: Any, i: int) -> Any:
        part = a.reshape(1)
        a -= 0.3
        a = a * 0.9
        return a + part[0]

    run = lambda a: timeloop(step, a, 3)
    x = np.array(0.7)
    value, gradient = value_and_grad(run)(x)
    assert value == run(x) == jvp(run, (x,), (x,))[0]
    np.testing.assert_allclose(gradient, 1.9**3)
    np.testing.assert_allclose(jvp(run, (x,), (x,))[1], 1.9**3 * x)
    np.testing.assert_allclose(linearize(run, x)[1](x), 1.9**3 * x)
    np.testing.assert_allclose(hvp(lambda a: run(a) ** 2)(x, x), 2 * 1.9**6 * x)


@pytest.mark.parametrize("begin", [np.array(0, np.float32), np.float32(0), np.array(0, np.complex64)])
def test_a_number_of_pythons_in_the_place_of_a_short_one(begin: Any) -> None:
    """It becomes one of its precision in derivatives, batches and programs, too, before it is looked at."""
    nothing = 0j if np.iscomplexobj(begin) else 0.0

    def f(k: Any) -> Any:
        def step(state: Any, i: int) -> Any:
            u, c = state
            return u * k, nothing if i % 3 == 0 else c + np.sum(u)

        u, c = timeloop(step, (np.ones(3, np.float32), begin), 6)
        return np.sum(u) + np.real(c)

    k = np.array([0.9, 0.8, 0.7], np.float32)
    members = np.stack([k, k / 2])
    values, gradients = (np.stack([g(row) for row in members]) for g in (f, grad(f)))
    assert np.allclose(gradients[0], sum(p * k ** (p - 1) for p in (4, 5, 6)), rtol=1e-6)
    for way, expected in ((vmap(f), values), (vmap(grad(f)), gradients), (jit(vmap(f)), values)):
        assert np.array_equal(way(members), expected)
        assert way(members).dtype == np.float32
    assert jit(f)(k).dtype == f(k).dtype == np.float32
    assert np.array_equal(jit(grad(f))(k), gradients[0])
    assert np.allclose(grad(lambda k: jvp(f, (k,), (k,))[1])(k), hvp(f)(k, k) + gradients[0])


@pytest.mark.parametrize("verify", [True, False])
def test_what_cannot_have_its_derivative_is_told(verify: bool) -> None:
    """A number of Python's that a later step adds to what it makes of floats of NumPy's has none, and it is told."""
    step = lambda s, i: (s[0] * 1.1, s[1] if i < 3 else s[1] + ((1 + 1j) * s[0]).real)
    f = lambda k, begin: timeloop(step, (0.5 * k, begin), STEPS, schedule=Revolve(2), verify=verify)[1]
    with pytest.raises(DeterminismError, match=r"a float of NumPy's|np\.float64\(0\.0\)"):
        grad(lambda k: f(k, 0.0))(0.7)
    assert grad(lambda k: f(k, np.float64(0.0)))(0.7) == pytest.approx(
        grad(lambda k: loop_in_python(step, (0.5 * k, 0.0), STEPS)[1])(0.7), rel=1e-12
    )


def test_a_number_that_is_made_one_of_pythons_later() -> None:
    """What `float` takes the derivative of is refused, in whichever step it does so first."""
    step = lambda s, i: s * 1.1 if i < 3 else float(s) * 1.1
    for schedule in (StoreAll(), Revolve(1), Revolve(3)):
        with pytest.raises(TraceError, match="cannot become a Python number"):
            grad(lambda k: timeloop(step, 0.5 * k, STEPS, schedule=schedule))(0.7)


@pytest.mark.parametrize("begin", [0.4, 1, np.float32(0.4)])
def test_a_number_that_becomes_a_float_of_numpys(begin: Any) -> None:
    """What a first step does with another number does not show what later ones do with it."""
    step = lambda s, i, k: s * 0.3 + ((1.3 + 0.7j) / (1.1 + s)).real + (0.1 * k if i == 0 else 0.0)
    f = lambda k, loop: loop(lambda s, i: step(s, i, k), begin, 40) ** 2
    wanted = grad(lambda k: f(k, loop_in_python))(0.7)
    for schedule in SCHEDULES:
        found = grad(lambda k: f(k, lambda *args: timeloop(*args, schedule=schedule)))(0.7)
        assert found == pytest.approx(wanted, rel=1e-12)
