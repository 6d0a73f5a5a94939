"""Runs that are interrupted and called again: the same call goes on, and any other one is refused."""

from __future__ import annotations

import errno
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import checkpoint_schedules
import numpy as np
import optree
import pytest
from tests.loop.lost import unsynchronized
from tests.measure import peak_bytes
from threadpoolctl import threadpool_limits

import ebbtide
from ebbtide import Budget, ResumeError, StorageError, grad, timeloop
from ebbtide.loop.resuming.journal import Journal
from ebbtide.schedules import Mixed, Periodic, Revolve, StoreAll, from_checkpoint_schedules
from ebbtide.storage import Disk, Memory, StorageLockedError, system
from ebbtide.storage.listing import list_storage

U = np.linspace(0.5, 1.0, 20)
FACTOR = np.linspace(0.9, 1.1, 20)
FORCING = 0.01 * np.arange(13 * 20.0).reshape(13, 20)


class Call(NamedTuple):
    """A gradient through a loop, and all that may be another one when the call is made again."""

    u: Any = U
    factor: Any = FACTOR
    forcing: Any = FORCING
    steps: int = 12
    power: int = 1
    before: float = 1.0
    between: float = 1.0
    after: float = 1.0
    threads: int = 1
    schedule: Any = Revolve(3)

    def run(self, directory: Path, stop: int = 0) -> Any:
        """Return the gradients; Ctrl-C comes in the step that is run as number *stop*."""
        ticker, power = Ticker(stop), self.power
        system.met_job_step = ticker.met

        def objective(u: Any, factor: Any) -> Any:
            def step(x: Any, f: Any) -> Any:
                system.met_job_step()
                return np.sin(x) * factor**power + f

            options = {"schedule": self.schedule, "resume_every": 2}
            first = timeloop(step, u * self.before, self.steps, inputs=self.forcing[: self.steps], **options)
            second = timeloop(lambda x, i: x - 0.1 * x * x, first * self.between, 3, **options)
            return self.after * np.sum(second**2)

        with threadpool_limits(self.threads, user_api="blas"):
            return grad(objective, argnums=(0, 1), resume=directory)(self.u, self.factor)


# Of each ticker the calls and where it stops: what it holds itself would be a part of the call that is resumed.
TICKS: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()


class Ticker:
    """Counts steps, and interrupts at one of them."""

    def __init__(self, stop: int = 0) -> None:
        TICKS[self] = [0, stop]

    @property
    def calls(self) -> int:
        """How many steps there were."""
        return TICKS[self][0]

    def met(self) -> None:
        """Count a step."""
        TICKS[self][0] += 1
        if TICKS[self][0] == TICKS[self][1]:
            raise KeyboardInterrupt

    def __call__(self, index: int) -> int:
        """Count a step by the input that it reads."""
        self.met()
        return index


def changed(array: Any, row: int) -> Any:
    """A copy with one other row."""
    other = array.copy()
    other[row] += 1e-9
    return other


DIGEST = "[0-9a-f]{16}"
CRC, COUNTED = "[0-9a-f]{8}", "10 with the checksum [0-9a-f]{8}"
NARROW = {"u": U[:5], "factor": FACTOR[:5], "forcing": FORCING[:, :5]}
SINGLE = {"u": U.astype("f4"), "factor": FACTOR.astype("f4"), "forcing": FORCING.astype("f4")}
# What is another one, at which step the run is interrupted, and what the error says of it: both values.
ROWS = {
    "shape": (NARROW, 11, r"leaf 0 of the state: float64\[5\] now, float64\[20\] in"),
    "dtype": (SINGLE, 11, r"leaf 0 of the state: float32\[20\] now, float64\[20\] in"),
    "control": ({"u": changed(U, 7)}, 11, f"initial value of leaf 0: {CRC} now, {CRC} in"),
    "steps": ({"steps": 13}, 11, "steps: 13 now, 12 in"),
    "code": ({"power": 2}, 11, "code of step: [0-9a-f]{16} now, [0-9a-f]{16} in"),
    "name": ({"power": 2}, 11, r".*\n  power in the code: int 2 now, int [01] in"),
    "static value": ({"factor": changed(FACTOR, 3)}, 11, f"static value 0: {CRC} now, {CRC} in"),
    "input read": ({"forcing": changed(FORCING, 4)}, 11, f"inputs read so far: {COUNTED} now, {COUNTED} in"),
    "before the loops": ({"before": 1.5}, 11, f"initial value of leaf 0: {CRC} now, {CRC} in"),
    "between the loops": ({"between": 1.5}, 20, f"Time loop 1 has\n *initial value of leaf 0: {CRC} now, {CRC} in"),
    "value": ({"after": 1.5}, 25, r"value of the function: np.float64\(.*\) now, np.float64\(.*\) in"),
    "threads of BLAS": ({"threads": 2}, 11, "threads of BLAS: 2 now, 1 in"),
}


@pytest.mark.parametrize("row", ROWS)
def test_another_call_is_refused(row: str, tmp_path: Path) -> None:
    """A call that is not the one that was interrupted is refused with both values, and spoils nothing."""
    change, stop, words = ROWS[row]
    call, expected = Call(), Call().run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        call.run(tmp_path / "run", stop)
    with pytest.raises(ResumeError, match=f"{words} {tmp_path}"):
        call._replace(**change).run(tmp_path / "run")
    for found, wanted in zip(call.run(tmp_path / "run"), expected, strict=True):
        assert np.array_equal(found, wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["constant", "array", "default", "helper"])
def test_what_differs_in_the_code_is_named(other: str, tmp_path: Path) -> None:
    """The error names what the code finds by another value, and functions that do something else."""

    def run(stop: int, **change: Any) -> None:
        of = {"constant": 1.5, "array": FACTOR, "default": 0.5, "helper": lambda u: 2 * u} | change
        constant, array, helper, ticker = of["constant"], of["array"], of["helper"], Ticker(stop)

        def step(u: Any, i: int, default: float = of["default"]) -> Any:
            ticker.met()
            return constant * helper(u) * array + default

        grad(lambda u: np.sum(timeloop(step, u, 9, resume_every=2)), resume=tmp_path / "run")(U)

    lines = {
        "constant": (2.5, "constant in the code: float 2.5 now, float 1.5 in"),
        "array": (2 * FACTOR, f"array in the code: {DIGEST} now, {DIGEST} in"),
        "default": (0.25, f"defaults of step in the code: {DIGEST} now, {DIGEST} in"),
        "helper": (lambda u: 3 * u, rf"<lambda>\(\) in the code: {DIGEST} now, {DIGEST} in"),
    }
    with pytest.raises(KeyboardInterrupt):
        run(7)
    value, line = lines[other]
    with pytest.raises(ResumeError, match=rf"has\n  code of step: .*\n  {line} .*\nMake the same call"):
        run(0, **{other: value})
    run(0)
    assert list(tmp_path.iterdir()) == []


def test_other_arguments_that_are_differentiated_are_named(tmp_path: Path) -> None:
    """What a step uses has the same value, and a derivative in one of two calls."""

    def run(numbers: Any, stop: int = 0) -> None:
        ticker = Ticker(stop)

        def f(u: Any, factor: Any) -> Any:
            def step(x: Any, i: int) -> Any:
                ticker.met()
                return np.sin(x) * factor

            return np.sum(timeloop(step, u, 9, resume_every=2))

        grad(f, numbers, resume=tmp_path / "run")(U, FACTOR)

    with pytest.raises(KeyboardInterrupt):
        run((0, 1), 7)
    with pytest.raises(ResumeError, match=f"factor in the code: {DIGEST} now, an array with a derivative in"):
        run(0)
    run((0, 1))


@pytest.mark.parametrize("count", [30, 600])
def test_of_many_names_a_few_are_told(count: int, tmp_path: Path) -> None:
    """Of code that differs in many names the first are named; of more than are kept the digests alone tell."""

    def run(stop: int, value: float) -> None:
        model, ticker = SimpleNamespace(**{f"k{k:03}": value for k in range(count)}), Ticker(stop)

        def step(u: Any, i: int) -> Any:
            ticker.met()
            return model.k000 * np.sin(u)

        grad(lambda u: np.sum(timeloop(step, u, 9, resume_every=2)), resume=tmp_path / "run")(U)

    with pytest.raises(KeyboardInterrupt):
        run(7, 1.5)
    with pytest.raises(ResumeError, match="code of step: ") as raised:
        run(0, 2.5)
    told = [line for line in str(raised.value).splitlines() if "in the code: float 2.5 now, float 1.5 in" in line]
    assert len(told) == (20 if count == 30 else 0)
    assert len(str(raised.value).splitlines()) == 3 + len(told)
    run(0, 1.5)


@pytest.mark.parametrize("schedule", [StoreAll(), Mixed(5), Periodic(4, 2), Revolve(1)], ids=repr)
def test_another_schedule_goes_on(schedule: Any, tmp_path: Path) -> None:
    """How the steps are run is no part of the call: another schedule ends with the same bits."""
    expected = Call().run(tmp_path / "whole")
    for stop in (6, 16, 27):
        with pytest.raises(KeyboardInterrupt):
            Call().run(tmp_path / "run", stop)
        for found, wanted in zip(Call(schedule=schedule).run(tmp_path / "run"), expected, strict=True):
            assert np.array_equal(found, wanted)


@pytest.mark.parametrize("call", ["grad", "value_and_grad"])
def test_another_value_is_refused(call: str, tmp_path: Path) -> None:
    """Other code beside the loops is seen by the value of the function, once it was known; nothing is spoiled."""

    def run(stop: int = 0, add: float = 0.0, beside: float = 0.0) -> Any:
        system.met_job_step = Ticker(stop).met

        def step(u: Any, i: int) -> Any:
            system.met_job_step()
            return np.sin(u)

        def f(u: Any) -> Any:
            return np.sum(timeloop(step, u, 12, schedule=Revolve(3), resume_every=2)) + add + beside * np.sum(u)

        return getattr(ebbtide, call)(f, resume=tmp_path / "run")(U)

    def words(add: float = 0.0, beside: float = 0.0) -> str:
        now, then = (np.sum(timeloop(lambda u, i: np.sin(u), U, 12)) + more for more in (add + beside * np.sum(U), 0.0))
        return re.escape(f"The call has\n  value of the function: {now!r} now, {then!r} in ")

    expected = run()
    for other in {"add": 1.0}, {"beside": 1e-9}:
        for stop in (14, 20):
            with pytest.raises(KeyboardInterrupt):
                run(stop)
            with pytest.raises(ResumeError, match=words(**other)):
                run(**other)
            assert np.array_equal(run()[-1], expected[-1])
        # What was not known yet may be another one: nothing came of it.
        with pytest.raises(KeyboardInterrupt):
            run(8)
        found = run(**other)
        assert np.array_equal(found[-1], run(**other)[-1])
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_is_no_number_goes_on(tmp_path: Path) -> None:
    """A function whose value is NaN has the value that it had before, and its gradient is found all the same."""

    def run(stop: int = 0) -> Any:
        system.met_job_step = Ticker(stop).met

        def step(u: Any, i: int) -> Any:
            system.met_job_step()
            return np.sin(u)

        def f(u: Any) -> Any:
            return np.sum(timeloop(step, u, 12, schedule=Revolve(3), resume_every=2)) + np.nan

        return grad(f, resume=tmp_path / "run")(U)

    expected = run()
    assert np.all(np.isfinite(expected))
    with pytest.raises(KeyboardInterrupt):
        run(20)
    assert np.array_equal(run(), expected)


def test_a_complex_number_in_the_state_goes_on(tmp_path: Path) -> None:
    """A number of Python's own that is complex comes back with both of its parts."""

    def run(stop: int = 0) -> Any:
        system.met_job_step = Ticker(stop).met

        def step(state: Any, i: int) -> Any:
            system.met_job_step()
            return {"u": np.sin(state["u"]) * abs(state["z"]), "z": state["z"] * (0.9 + 0.1j)}

        def f(u: Any) -> Any:
            state = {"u": u, "z": 1.0 + 0.5j}
            return np.sum(timeloop(step, state, 12, schedule=Revolve(3), resume_every=2)["u"])

        return grad(f, resume=tmp_path / "run")(U)

    expected = run()
    with pytest.raises(KeyboardInterrupt):
        run(8)
    assert np.array_equal(run(), expected)


def test_another_cotangent_is_refused(tmp_path: Path) -> None:
    """A pullback that goes on has to be called with the cotangent that it was called with before."""

    def pulled(cotangent: Any, stop: int = 0) -> Any:
        ticker, options = Ticker(stop), {"schedule": Revolve(3), "resume": tmp_path / "run", "resume_every": 2}
        _, pull = ebbtide.vjp(lambda u: timeloop(lambda x, i: np.sin(x), u, 12, inputs=ticker, **options), U)
        return pull(cotangent)

    expected = pulled(np.cos(U))
    with pytest.raises(KeyboardInterrupt):
        pulled(np.cos(U), 30)
    with pytest.raises(ResumeError, match=f"incoming cotangent: {CRC} now, {CRC} in"):
        pulled(np.sin(U))
    assert np.array_equal(pulled(np.cos(U)), expected)


KINDS = {"array": lambda x: x, "list": lambda x: [{"x": x[i], "f": x[0]} for i in range(12)]}
BY = {"state": (0,), "inputs": (1,), "both": (0, 1), "static": (0, 1)}


def by_inputs(path: Path, kind: str, by: str, stop: int = 0) -> Any:
    """The gradients of a loop with inputs by its state or its inputs, which can be kept from having one."""
    system.met_job_step = Ticker(stop).met

    def objective(u: Any, x: Any) -> Any:
        def step(u: Any, x: Any) -> Any:
            system.met_job_step()
            return u + 0.1 * np.sin(u) * (x if kind == "array" else x["x"] + x["f"])

        inputs = KINDS[kind](ebbtide.stop_gradient(x) if by == "static" else x)
        return np.sum(timeloop(step, u, 12, inputs=inputs, schedule=Revolve(3), resume_every=2) ** 2) + np.sum(x)

    return grad(objective, argnums=BY[by], resume=path)(U, np.linspace(0.1, 1.0, 12))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("by", "other"), [("state", "inputs"), ("inputs", "state"), ("both", "static")])
def test_derivatives_of_other_inputs_are_refused(kind: str, by: str, other: str, tmp_path: Path) -> None:
    """A reverse sweep without the derivatives of inputs goes on without, and one with them with: no other has all."""
    expected = by_inputs(tmp_path / "whole", kind, by)
    with pytest.raises(KeyboardInterrupt):
        by_inputs(tmp_path / "run", kind, by, 24)
    given = {"array": "the array of all", "list": "24 of 24 leaves with the digest [0-9a-f]{16}"}[kind]
    now, then = (given, "none")[:: 1 if other == "inputs" else -1]
    with pytest.raises(ResumeError, match=f"derivatives of inputs: {now} now, {then} in"):
        by_inputs(tmp_path / "run", kind, other)
    for found, wanted in zip(by_inputs(tmp_path / "run", kind, by), expected, strict=True):
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_the_same_inputs_go_on(kind: str, tmp_path: Path) -> None:
    """What has a derivative beside inputs may be another one: the sums for these are found again."""
    expected = by_inputs(tmp_path / "whole", kind, "both")
    for by, other, kept in (("both", "inputs", slice(1, 2)), ("inputs", "both", slice(2))):
        with pytest.raises(KeyboardInterrupt):
            by_inputs(tmp_path / "run", kind, by, 24)
        for found, wanted in zip(by_inputs(tmp_path / "run", kind, other), expected[kept], strict=True):
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("end", ["freed", "dropped", "used up"])
@pytest.mark.parametrize("resumed", [0, 12, 30], ids=["whole", "resumed", "resumed in reverse"])
def test_a_retained_pullback_keeps_its_directory(end: str, resumed: int, tmp_path: Path) -> None:
    """
    What is pulled several times needs its directory until it is freed or dropped, and then that is removed.

    A place in the reverse sweep of one that was not retained is that of one cotangent: no sweep here begins with it.
    """
    directory = tmp_path / "run"

    def retained(stop: int = 0, retain: bool = True, **options: Any) -> Any:
        ticker, options = Ticker(stop), {"schedule": Revolve(3), "resume_every": 2, **options}
        f = lambda u: timeloop(lambda x, i: np.sin(x), u, 12, inputs=ticker, **options)
        return ebbtide.vjp(f, U, retain=retain)

    _, plain = retained()
    expected = [plain(cotangent)[0].tobytes() for cotangent in (np.cos(U), np.sin(U))]
    if resumed:
        with pytest.raises(KeyboardInterrupt):
            retained(resumed, False, resume=directory)[1](np.cos(U))
    _, pull = retained(resume=directory)
    found = []
    for cotangent in (np.cos(U), np.sin(U), np.cos(U)):
        found.append(pull(cotangent)[0].tobytes())
        assert (directory / "segment").exists()
    assert found == [*expected, expected[0]]
    child = os.fork()
    if child == 0:
        pull.free()
        os._exit(0)
    os.waitpid(child, 0)
    assert (directory / "segment").exists()
    if end == "freed":
        pull.free()
    elif end == "used up":
        assert pull.pull([np.sin(U)], retain=False)[0].tobytes() == expected[1]
    else:
        del pull
    assert list(tmp_path.iterdir()) == []


def test_a_retained_pullback_that_is_killed_goes_on(tmp_path: Path) -> None:
    """A kill in the sweep of a pullback that is retained costs no step of the forward sweep."""
    ran = list[int]()

    def pulled(stop: int) -> Any:
        ran.clear()

        def step(x: Any, i: int) -> Any:
            system.met_job_step()
            ran.append(i)
            return np.sin(x)

        system.met_job_step = Ticker(stop).met
        options = {"schedule": Revolve(3), "resume_every": 2, "resume": tmp_path / "run"}
        _, pull = ebbtide.vjp(lambda u: timeloop(step, u, 12, **options), U, retain=True)
        forward = len(ran)
        return forward, pull(np.cos(U))[0].tobytes()

    with pytest.raises(KeyboardInterrupt):
        pulled(18)
    forward, found = pulled(0)
    assert forward < 4
    assert (12, found) == pulled(0)


def test_a_damaged_value_is_not_compared(tmp_path: Path) -> None:
    """Where the value of the function is damaged, a warning says so, and the run goes on."""
    with pytest.raises(KeyboardInterrupt):
        Call().run(tmp_path / "run", 25)
    (record,) = [one for one in list_storage(tmp_path / "run").entries if one.kind == "value of the function"]
    with (tmp_path / "run" / "segment").open("r+b") as file:
        file.seek(record.offset + record.length - 1)
        file.write(b"\xaa")
    with pytest.warns(RuntimeWarning, match="value of the function is damaged and not compared: .*segment"):
        found = Call().run(tmp_path / "run")
    assert all(map(np.array_equal, found, Call().run(tmp_path / "other")))


def of_dual(c: float, what: str) -> Any:
    """The gradient of a derivative, in which a step or inputs use an array that the gradient does not know."""

    def f(u: Any, k: Any) -> Any:
        if what == "inputs":
            return np.sum(timeloop(lambda x, y: x + 0.1 * np.sin(x) * y, u, 12, inputs=lambda i: k * i, resume_every=2))
        return np.sum(timeloop(lambda x, i: x + 0.1 * k * np.sin(x), u, 12, resume_every=2) ** 3)

    value, tangent = (c * FACTOR, FACTOR) if what == "value" else (FACTOR, c * FACTOR)
    return lambda u: ebbtide.jvp(f, (u, value), (U, tangent))[1]


def of_until(c: float) -> Any:
    """A loop whose end is told by a number of the gradient."""

    def f(u: Any) -> Any:
        most = c * np.sum(u * u)
        options = {"until": lambda x: np.sum(x * x) > most, "max_steps": 99, "resume_every": 2}
        return np.sum(timeloop(lambda x, i: 1.1 * x, u, **options) ** 2)

    return f


CHANGES = {
    "tangent": (lambda c: of_dual(c, "tangent"), "code of step"),
    "value": (lambda c: of_dual(c, "value"), "code of step"),
    "inputs": (lambda c: of_dual(c, "inputs"), "code of step"),
    "until": (lambda c: of_until(10 * c), "code of until"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", ["final", "reverse"])
def test_what_no_step_has_as_a_static_value_is_compared(name: str, kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Arrays of a derivative within the gradient, and those of a condition, are refused as any other change."""
    make, words = CHANGES[name]
    real = Journal._store

    def store(self: Any, key: str, *arguments: Any) -> Any:
        if real(self, key, *arguments) and key == kind:
            raise KeyboardInterrupt
        return True

    expected = grad(make(1.0))(U)
    monkeypatch.setattr(Journal, "_store", store)
    with pytest.raises(KeyboardInterrupt):
        grad(make(1.0), resume=tmp_path / "run")(U)
    monkeypatch.undo()
    with pytest.raises(ResumeError, match=f"{words}: [0-9a-f]{{16}} now, [0-9a-f]{{16}} in"):
        grad(make(2.0), resume=tmp_path / "run")(U)
    assert np.array_equal(grad(make(1.0), resume=tmp_path / "run")(U), expected)


def test_how_a_static_value_lies_is_compared(tmp_path: Path) -> None:
    """A static value with the same elements in another order of memory gives sums with other bits."""

    def run(order: Any, stop: int = 0) -> Any:
        system.met_job_step = Ticker(stop).met

        def f(u: Any) -> Any:
            k = np.reshape(u, (4, 5))
            k = k.T.copy().T if order == "F" else k * 1.0

            def step(x: Any, i: int) -> Any:
                system.met_job_step()
                return x + 0.1 * np.sin(k)

            return np.sum(timeloop(step, np.zeros((4, 5)), 12, schedule=Revolve(3), resume_every=2))

        return grad(f, resume=tmp_path / "run")(U)

    with pytest.raises(KeyboardInterrupt):
        run("C", 8)
    with pytest.raises(ResumeError, match=f"static value 0: {CRC} now, {CRC} in"):
        run("F")
    assert np.array_equal(run("C"), run("C"))


FORMS = {
    "shape": (lambda zero: np.reshape(zero, (2, 10)), lambda zero: np.reshape(zero, (10, 2))),
    "dtype": (lambda zero: zero, lambda zero: zero.astype(np.complex64)),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_static_value_is_compared(name: str, tmp_path: Path) -> None:
    """A static value of the same bytes with another shape or dtype is another one."""

    def run(form: Any, stop: int = 0) -> Any:
        system.met_job_step = Ticker(stop).met

        def f(u: Any) -> Any:
            k = form(u * 0.0)

            def step(x: Any, i: int) -> Any:
                system.met_job_step()
                return np.sin(x) * np.real(np.sum(np.cos(k)))

            return np.sum(timeloop(step, np.full(20, 0.1), 12, schedule=Revolve(3), resume_every=2))

        return grad(f, resume=tmp_path / "run")(U)

    form, other = FORMS[name]
    with pytest.raises(KeyboardInterrupt):
        run(form, 8)
    with pytest.raises(ResumeError, match=f"static value 0: {CRC} now, {CRC} in"):
        run(other)
    assert np.array_equal(run(form), run(form))


# What no code tells by a name: see `Ticker`.
HIDDEN: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


@pytest.mark.parametrize(("stop", "every"), [(14, 100), *[(stop, 1) for stop in range(18, 33, 4)]])
def test_a_reverse_sweep_that_goes_on_fits_to_what_was_swept(stop: int, every: int, tmp_path: Path) -> None:
    """Steps that are another one in what a fingerprint does not see lead to another state than the one swept from."""

    def run(scale: float, stop: int = 0, **options: Any) -> Any:
        ticker = Ticker(stop)
        HIDDEN[ticker] = scale

        def step(x: Any, i: int) -> Any:
            return x + HIDDEN[ticker] * np.sin(x)

        options = {"schedule": Revolve(3), "resume_every": every, "resume": tmp_path / "run", **options}
        return grad(lambda u: np.sum(timeloop(step, u, 12, inputs=ticker, **options) ** 2))(U)

    expected = run(0.1, resume=None)
    with pytest.raises(KeyboardInterrupt):
        run(0.1, stop)
    with pytest.raises(ebbtide.DeterminismError, match="gave another result when it was run again"):
        run(0.2)
    assert np.array_equal(run(0.1), expected)


@pytest.mark.parametrize("place", ["forward", "end", "reverse"])
def test_the_number_of_static_values_is_compared(place: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Of a step that meets fewer static values than before, in what a fingerprint does not see, none is forgotten."""

    def run(more: float, **options: Any) -> Any:
        ticker = Ticker()
        HIDDEN[ticker] = more

        def f(u: Any, c: Any) -> Any:
            found = repeat(c)  # where nobody looks for it

            def step(x: Any, i: int) -> Any:
                return np.sin(x) + 0.0 * next(found) if HIDDEN[ticker] and i == 3 else np.sin(x)

            options = {"schedule": Revolve(3), "resume_every": 5, "verify": False}
            return np.sum(timeloop(step, u, 12, inputs=ticker, **options) ** 2)

        return np.stack(grad(f, (0, 1), resume=tmp_path / "run")(U, FACTOR))

    expected, name = run(1.0), {"forward": "save_forward", "end": "save_final", "reverse": "save_reverse"}[place]
    real = getattr(Journal, name)

    def save(self: Any, found: Any) -> None:
        real(self, found)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, name, save)
        if place == "reverse":  # the end is lost, and all steps run again
            for lost in ("save_forward", "save_final"):
                patch.setattr(Journal, lost, lambda self, found: None)
        with pytest.raises(KeyboardInterrupt):
            run(1.0)
    with pytest.raises(ResumeError, match="number of static values: 0 now, 1 in"):
        run(0.0)
    if place != "reverse":  # there the refused call has run all steps anew, and its end is what the next one finds
        assert run(1.0).tobytes() == expected.tobytes()


@pytest.mark.parametrize("path", [5, True, b"x", [], ""])
@pytest.mark.parametrize("call", ["gradient", "loop"])
def test_what_names_no_directory_is_refused(path: Any, call: str) -> None:
    """The error says that it is `resume=`; what is empty would be the working directory."""
    of_gradient, of_loop = (path, None) if call == "gradient" else (None, path)
    with pytest.raises((TypeError, StorageError), match=rf"resume={re.escape(repr(path))} .* Give "):
        grad(lambda u: np.sum(timeloop(lambda x, i: x, u, 3, resume=of_loop)), resume=of_gradient)(U)


@pytest.mark.parametrize("call", ["gradient", "loop"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing/run", "No such file"), ("file", "Not a directory"), ("link", "Not a directory"),
     ("file/run", "Not a directory"), ("closed", "Permission denied"), ("closed/run", "Permission denied")],
)  # fmt: skip
def test_a_directory_that_cannot_be_used_is_told(
    path: str, reason: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says why, and which argument to change."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "closed").mkdir()

    def closed(done: Any) -> Any:
        """A call of the system that has no rights in one directory: for root they are no bounds."""

        def call(place: Any, *arguments: Any, **options: Any) -> Any:
            if (tmp_path / "closed") in Path(place).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
            return done(place, *arguments, **options)

        return call

    for name in ("open", "mkdir"):
        monkeypatch.setattr(os, name, closed(getattr(os, name)))
    of_gradient, of_loop = (tmp_path / path, None) if call == "gradient" else (None, tmp_path / path)
    with pytest.raises(StorageError, match=rf"{path} to resume from: {reason}.*\. Give one .* as resume=\.$") as caught:
        grad(lambda u: np.sum(timeloop(lambda x, i: x, u, 3, resume=of_loop)), resume=of_gradient)(U)
    assert caught.value.errno
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["closed", "file", "link"]


def test_two_loops_with_one_directory_are_refused(tmp_path: Path) -> None:
    """What is in use by this process is no other process to wait for: the error names `resume=` of the gradient."""

    def objective(u: Any) -> Any:
        first = timeloop(lambda x, i: np.sin(x), u, 3, resume=tmp_path / "run")
        return np.sum(timeloop(lambda x, i: np.cos(x), first, 3, resume=tmp_path / "run"))

    with pytest.raises(StorageLockedError, match=r"another time loop or call of this process.*grad\(f, resume=\)"):
        grad(objective)(U)


def test_an_input_that_was_not_read_may_be_another_one(tmp_path: Path) -> None:
    """Inputs of steps that were not run yet may still change: observations that come in while a run is down."""
    with pytest.raises(KeyboardInterrupt):
        Call().run(tmp_path / "run", 6)
    later = Call(forcing=changed(FORCING, 11))
    for found, wanted in zip(later.run(tmp_path / "run"), later.run(tmp_path / "whole"), strict=True):
        assert np.array_equal(found, wanted)


@optree.dataclasses.dataclass(namespace="")
class Forcing:
    """An input with metadata that is no part of its leaves."""

    values: Any
    scale: Any = optree.dataclasses.field(pytree_node=False, default=1.0)

    def scaled(self) -> Any:
        """What a step takes of it."""
        return self.values * (self.scale if isinstance(self.scale, float) else self.scale.by)


class Scale:
    """Metadata without a text of its own."""

    def __init__(self, by: float) -> None:
        self.by = by


STRUCTURES: Any = {
    "number": (lambda x: Forcing(x, 2.0), lambda x: Forcing(x, 3.0), Forcing.scaled),
    "object": (lambda x: Forcing(x, Scale(2.0)), lambda x: Forcing(x, Scale(3.0)), Forcing.scaled),
    "place of None": (
        lambda x: {"add": x, "sub": None}, lambda x: {"add": None, "sub": x},
        lambda f: f["add"] if f["sub"] is None else -f["sub"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("of_dual", [False, True], ids=["gradient", "of a derivative"])
@pytest.mark.parametrize("stop", [9, 24])
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_structure_of_an_input_is_compared(name: str, stop: int, of_dual: bool, tmp_path: Path) -> None:
    """Static metadata of an input, and where a None is in it, count as its arrays do; those of another object, too."""
    first, second, factor = STRUCTURES[name]

    def run(make: Any, stop: int = 0) -> Any:
        system.met_job_step = Ticker(stop).met

        def step(x: Any, f: Any) -> Any:
            system.met_job_step()
            return x + 0.0 * x**3 + np.sin(x) * factor(f)  # at rest no state shows the input

        def f(u: Any) -> Any:
            inputs = [make(x) for x in np.linspace(0.1, 0.5, 12)]
            return np.sum(timeloop(step, u, 12, inputs=inputs, schedule=Revolve(3), resume_every=2, verify=False))

        of = (lambda u: ebbtide.jvp(f, (u,), (U,))[1]) if of_dual else f
        return grad(of, resume=tmp_path / "run")(np.zeros(20))

    expected = run(first)
    with pytest.raises(KeyboardInterrupt):
        run(first, stop)
    # The step of a loop over values and tangents has all inputs, not those alone that were read.
    words = "code of step: " if of_dual else rf"inputs read so far: (\d+) with the checksum {CRC} now, \1 with .* in"
    with pytest.raises(ResumeError, match=words):
        run(second)
    assert run(first).tobytes() == expected.tobytes()


def at_rest(
    path: Path, stop: int = 0, late: float = 1.0, forcing: Any = FORCING[:12, :20], schedule: Any = None
) -> Any:
    """The gradient of a loop at whose state of rest neither its inputs nor a static value of its last steps show."""
    system.met_job_step = Ticker(stop).met

    def f(u: Any, c: Any) -> Any:
        def step(x: Any, pair: Any) -> Any:
            system.met_job_step()
            i, row = pair
            return np.sin(x) * (c if i > 9 else 1.0) * (1.0 + row)

        options = {"inputs": [*enumerate(forcing)], "schedule": schedule or Revolve(3), "resume_every": 5}
        return np.sum(timeloop(step, u, 12, verify=False, **options))

    return grad(f, (0, 1), resume=path)(np.zeros(20), late * FACTOR)[0]


@pytest.mark.parametrize("place", [True, False], ids=["a place is left", "no place is left"])
def test_a_reverse_sweep_whose_forward_end_was_lost(place: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """It goes on with the inputs and static values that it was begun with only, and nothing of others is kept."""
    expected = at_rest(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save_final", lambda self, found: None)
        if not place:
            patch.setattr(Journal, "save_forward", lambda self, found: None)
        with pytest.raises(KeyboardInterrupt):
            at_rest(tmp_path / "run", 26)
    for row in (3, 11):
        words = rf"inputs read so far: (\d+) with the checksum {CRC} now, \1 with the checksum {CRC} in"
        with pytest.raises(ResumeError, match=words):
            at_rest(tmp_path / "run", forcing=changed(FORCING[:12], row))
    with pytest.raises(ResumeError, match=f"static value 0: {CRC} now, {CRC} in"):
        at_rest(tmp_path / "run", late=2.0)
    assert at_rest(tmp_path / "run").tobytes() == expected.tobytes()


def test_where_a_forward_end_was_lost_what_steps_saved_is_the_way_back(tmp_path: Path, monkeypatch: Any) -> None:
    """A reverse sweep that goes on after all steps ran again has no restart state where each step was saved."""
    expected, real = at_rest(tmp_path / "whole"), Journal.save_reverse

    def save(self: Any, place: Any) -> None:
        real(self, place)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for name in ("save_final", "save_forward"):
            patch.setattr(Journal, name, lambda self, found: None)
        patch.setattr(Journal, "save_reverse", save)
        with pytest.raises(KeyboardInterrupt):
            at_rest(tmp_path / "run", schedule=StoreAll())
    assert any("/reverse/" in str(entry.key) for entry in list_storage(tmp_path / "run").entries)
    assert at_rest(tmp_path / "run", schedule=StoreAll()).tobytes() == expected.tobytes()


def with_late_static(
    path: Path, factor: Any, stop: int = 0, row: int = 0, verify: bool = False, hidden: bool = False, every: int = 5
) -> Any:
    """The gradients of a loop that meets a static value after its first steps, *hidden* where nobody looks for it."""
    system.met_job_step = Ticker(stop).met

    def f(u: Any, c: Any, late: Any) -> Any:
        met = repeat((c, late)) if hidden else (c, late)

        def step(x: Any, pair: Any) -> Any:
            system.met_job_step()
            i, row = pair
            factor, more = next(met) if hidden else met
            x = np.sin(x) * factor + row
            return x + 1e-3 * more if i >= 7 else x

        inputs = [*enumerate(FORCING if not row else changed(FORCING, row))]
        options = {"schedule": Revolve(3), "resume_every": every, "verify": verify}
        return np.sum(timeloop(step, u, 13, inputs=inputs, **options) ** 2)

    return np.stack(grad(f, (0, 1, 2), resume=path)(U, factor, np.cos(U)))


def with_many_statics(path: Path, kind: str, most: int = 0, before: int = 0, order: int = 1) -> tuple[int, Any]:
    """How many steps a run takes of which each one meets a static value of its own, and the gradients."""
    ticker = Ticker(most)
    system.met_job_step = ticker.met

    def f(u: Any, late: Any) -> Any:
        for _ in range(before):  # as where something is computed once in a process
            u * 2.0
        made = {i: late[i] * (1.0 + 0.01 * i * (kind == "made")) for i in (0, *range(1, 60)[::order])}
        each = late if kind == "arguments" else [made[i] for i in range(60)]
        hidden = repeat(each)  # where nobody looks for them

        def step(x: Any, i: Any) -> Any:
            system.met_job_step()
            return x + 0.01 * np.sin(x * (next(hidden) if kind == "hidden" else each)[int(i)])

        schedule = StoreAll() if kind == "hidden" else Revolve(4)
        return np.sum(timeloop(step, u, 60, schedule=schedule, resume_every=3) ** 2)

    found = grad(f, (0, 1), resume=path)(U, [np.ones(U.shape) for _ in range(60)])
    return ticker.calls, np.stack([found[0], *found[1]])


@pytest.mark.parametrize("kind", ["arguments", "made"])
def test_many_static_values_are_met_without_running_the_steps(kind: str, tmp_path: Path) -> None:
    """Jobs of a tenth of the steps come to the end, though each step has an array of its own; arguments are alike."""
    whole, expected = with_many_statics(tmp_path / "whole", kind)
    assert len({row.tobytes() for row in expected}) == 61
    legs, found = 0, None
    while found is None and legs < 11:
        legs += 1
        with suppress(KeyboardInterrupt):
            _, found = with_many_statics(tmp_path / "run", kind, whole // 10)
    assert found is not None
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("kind", "before", "order"), [("made", 1, 1), ("hidden", 0, 1), ("alike", 0, 1), ("alike", 0, -1), ("made", 0, -1)]
)
def test_static_values_that_are_not_known_are_met_by_running_the_steps(
    kind: str, before: int, order: int, tmp_path: Path
) -> None:
    """
    Where the code before the loop made more values than it did, or none finds them, each step says which it uses.

    So it does of values that are alike: code that goes through a set of names makes them in any order.
    """
    whole, expected = with_many_statics(tmp_path / "whole", kind)
    with pytest.raises(KeyboardInterrupt):
        with_many_statics(tmp_path / "run", kind, whole // 2)
    ran, found = with_many_statics(tmp_path / "run", kind, 0, before, order)
    assert found.tobytes() == expected.tobytes()
    assert ran >= 30


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("verify", [False, True])
def test_a_refused_call_leaves_no_restart_state(verify: bool, hidden: bool, tmp_path: Path) -> None:
    """Of a call with another static value nothing is kept that a later one goes on from."""
    options = {"verify": verify, "hidden": hidden, "every": 3}
    expected = with_late_static(tmp_path / "whole", FACTOR, **options)
    with pytest.raises(KeyboardInterrupt):
        with_late_static(tmp_path / "run", FACTOR, 12, **options)
    kept = {entry.key for entry in list_storage(tmp_path / "run").entries}
    with pytest.raises(ResumeError, match=f"static value 0: {CRC} now, {CRC} in"):
        with_late_static(tmp_path / "run", 2 * FACTOR, **options)
    assert {entry.key for entry in list_storage(tmp_path / "run").entries} == kept
    assert with_late_static(tmp_path / "run", FACTOR, **options).tobytes() == expected.tobytes()


def test_steps_that_were_run_to_meet_a_static_value_are_not_run_again(tmp_path: Path) -> None:
    """The state before the step that was the first to use it is kept, so that the next kill costs less."""
    expected = with_late_static(tmp_path / "whole", FACTOR)
    for stop in (15, 12):
        with pytest.raises(KeyboardInterrupt):
            with_late_static(tmp_path / "run", FACTOR, stop, hidden=True, every=100)
    assert "loop-0/anchor/7" in {entry.key for entry in list_storage(tmp_path / "run").entries}
    assert with_late_static(tmp_path / "run", FACTOR, hidden=True, every=100).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("killed", "row"), [(1, 3), (2, 8)])
def test_a_restart_state_beyond_the_last_place_goes(killed: int, row: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Where a kill comes between the two, steps after the place may have other inputs, and all follows from these."""
    expected = with_late_static(tmp_path / "whole", FACTOR, row=row)
    real, saved = Journal.save_forward, list[int]()

    def save(self: Any, place: Any) -> None:
        saved.append(place.step)
        if len(saved) == killed:
            raise KeyboardInterrupt
        real(self, place)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save_forward", save)
        with pytest.raises(KeyboardInterrupt):
            with_late_static(tmp_path / "run", FACTOR)
    assert f"loop-0/anchor/{saved[-1]}" in {entry.key for entry in list_storage(tmp_path / "run").entries}
    with pytest.raises(KeyboardInterrupt):
        with_late_static(tmp_path / "run", FACTOR, 12, row=row)
    assert with_late_static(tmp_path / "run", FACTOR, row=row).tobytes() == expected.tobytes()


def test_another_executor_is_refused(tmp_path: Path) -> None:
    """What one executor began is not taken up by another one, nor by other threads; the same goes on."""

    def run(stop: int = 0, **options: Any) -> Any:
        system.met_job_step = Ticker(stop).met
        inner = ebbtide.jit(lambda u: u + 0.1 * np.sin(u), **options)

        def step(u: Any, i: int) -> Any:
            system.met_job_step()
            return inner(u)

        return grad(lambda u: np.sum(timeloop(step, u, 12, resume_every=2) ** 2), resume=tmp_path / "run")(U)

    with pytest.raises(KeyboardInterrupt):
        run(8, executor="machine", threads=1)
    for options in ({}, {"executor": "machine"}, {"executor": "machine", "threads": 2}):
        with pytest.raises(ResumeError, match=r"executor: (reference|machine( with threads=2)?) now, machine with thr"):
            run(**options)
    assert np.array_equal(run(executor="machine", threads=1), run())


PROGRAM = """
import sys
from pathlib import Path
from tests.loop.test_resume import Call
try:
    Call().run(Path(sys.argv[1]), int(sys.argv[2]))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of kernels of OpenBLAS for another processor")
def test_other_kernels_of_blas_are_refused(tmp_path: Path) -> None:
    """A run whose BLAS takes other kernels, as on another node of a cluster, is refused, and both are named."""
    root, source = Path(__file__).parents[2], Path(ebbtide.__path__[0]).parent
    done = []
    for kernels, stop in (("Nehalem", 11), ("Sandybridge", 0)):
        environment = os.environ | {"PYTHONPATH": f"{source}:{root}", "OPENBLAS_CORETYPE": kernels}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(stop)]
        done.append(subprocess.run(command, capture_output=True, text=True, check=False, env=environment))
    assert done[0].stdout == "interrupted\n", done[0].stderr
    assert re.search("ResumeError.*BLAS: .* Sandybridge.* now, .* Nehalem.* in", done[1].stderr, re.DOTALL)


def test_several_loops_of_a_gradient(tmp_path: Path) -> None:
    """`resume=` of a gradient serves all its loops, by their order."""
    directory = tmp_path / "run"

    def gradient(ticker: Ticker) -> Any:
        def step(x: Any, i: Any) -> Any:
            return np.sin(x) * 1.01

        def objective(u: Any) -> Any:
            options = {"schedule": Revolve(2), "inputs": ticker, "resume_every": 2}
            first = timeloop(step, u, 15, **options)
            return np.sum(timeloop(step, first * 2.0, 10, **options) ** 2)

        return grad(objective, resume=directory)(U)

    whole = Ticker()
    expected = gradient(whole)
    for stop in range(3, whole.calls, 11):
        with pytest.raises(KeyboardInterrupt):
            gradient(Ticker(stop))
        again = Ticker()
        assert np.array_equal(gradient(again), expected)
        assert again.calls < whole.calls + 10
        assert not directory.exists()


def test_a_loop_within_a_step_is_refused(tmp_path: Path) -> None:
    """One directory cannot serve all runs of a loop within a step; that of the gradient serves the outer loop."""

    def gradient(ticker: Ticker, **inner: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            return timeloop(lambda y, j: np.sin(y), x, 3, **inner)

        def objective(u: Any) -> Any:
            return np.sum(timeloop(step, u, 12, inputs=ticker, schedule=Revolve(3), resume_every=2))

        return grad(objective, resume=None if inner else tmp_path / "run")(U)

    with pytest.raises(ebbtide.TraceError, match=r"runs several times.* outer loop"):
        gradient(Ticker(), resume=tmp_path / "inner")
    expected = gradient(Ticker())
    with pytest.raises(KeyboardInterrupt):
        gradient(Ticker(9))
    again = Ticker()
    assert np.array_equal(gradient(again), expected)
    assert again.calls < 40
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_cannot_plan_goes_on(tmp_path: Path) -> None:
    """A trace of checkpoint_schedules does not pass where a kill leaves a loop; the rest is planned with its room."""
    schedule = from_checkpoint_schedules(checkpoint_schedules.MultistageCheckpointSchedule(20, 2, 2))

    def gradient(ticker: Ticker) -> Any:
        options = {"schedule": schedule, "inputs": ticker, "resume": tmp_path / "run", "resume_every": 3}
        return grad(lambda u: np.sum(timeloop(lambda x, i: np.sin(x), u, 20, **options)))(U)

    whole = Ticker()
    expected = gradient(whole)
    for stop in range(5, whole.calls, 9):
        with pytest.raises(KeyboardInterrupt):
            gradient(Ticker(stop))
        assert np.array_equal(gradient(Ticker()), expected)


@pytest.mark.parametrize("units", [8, 14])
def test_a_run_that_goes_on_keeps_its_budget(units: int, tmp_path: Path) -> None:
    """Restart states of the journal take no memory: going on from either sweep peaks no higher than a whole run."""
    large = np.linspace(0.1, 1.0, 1 << 15)

    def gradient(ticker: Ticker) -> Any:
        def objective(u: Any) -> Any:
            return np.sum(timeloop(lambda x, i: np.sin(x) * 1.01, u, 40, inputs=ticker, resume_every=4))

        return grad(objective, budget=Budget(memory=units * large.nbytes), resume=tmp_path / "run")(large)

    whole = Ticker()
    expected = gradient(whole)
    peak = peak_bytes(lambda: gradient(Ticker()))
    for stop in (9, 30, whole.calls - 12):
        with pytest.raises(KeyboardInterrupt):
            gradient(Ticker(stop))
        found: list[Any] = []
        # Names of entries and the like.
        assert peak_bytes(lambda found=found: found.append(gradient(Ticker()))) <= peak + 50_000
        assert np.array_equal(found[0], expected)


@pytest.mark.parametrize("start", ["the control", "a constant"])
def test_nested_derivatives_are_refused(start: str, tmp_path: Path) -> None:
    """Derivatives of a derivative cannot be resumed, and say so before there is a file, from the first step on."""

    def inner(u: Any) -> Any:
        begun = u if start == "the control" else np.ones(u.shape)
        return np.sum(timeloop(lambda x, i: np.sin(x * u), begun, 5, resume=tmp_path / "run"))

    for again in (
        grad(lambda u: np.sum(grad(inner)(u) ** 2)), lambda u: ebbtide.hvp(inner)(u, u),
        lambda u: ebbtide.vmap(grad(inner))(np.stack([u, u])),
    ):  # fmt: skip
        with pytest.raises(ebbtide.TraceError, match=r"resume=.* can be resumed as grad\(lambda x: jvp"):
            again(U)
        assert not list(tmp_path.iterdir())


def test_inputs_of_batches_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that differ between members of one of two batches, as a list, are known again by another call."""
    factors, starts = np.stack([FACTOR, FACTOR**2]), np.stack([U, U**2, U**3])

    def gradient(stop: int = 0, **resumed: Any) -> tuple[Any, int]:
        ticker = Ticker(stop)
        monkeypatch.setattr(system, "met_job_step", ticker.met, raising=False)

        def run(u: Any, factor: Any) -> Any:
            def step(x: Any, f: Any) -> Any:
                system.met_job_step()
                return np.sin(x) * f[0] + f[1]

            return np.sum(timeloop(step, u, 9, inputs=[(u, 0.1), (factor, u), (factor, factor)] * 3, resume_every=1))

        def total(factors: Any) -> Any:
            return np.sum(ebbtide.vmap(lambda f: ebbtide.vmap(lambda u: run(u, f))(starts))(factors))

        return grad(total, **resumed)(factors), ticker.calls

    expected, steps = gradient()
    for stop in (6, 10):
        with pytest.raises(KeyboardInterrupt):
            gradient(stop, resume=tmp_path / "run")
    found, left = gradient(resume=tmp_path / "run")
    assert found.tobytes() == expected.tobytes()
    assert left < steps


def test_a_product_of_the_hessian_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a derivative is resumed, values and tangents: the same bits; `hvp` to rounding."""
    vector, options = np.cos(U), {"resume_every": 4, "schedule": Revolve(4)}

    def energy(u: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            system.met_job_step()
            return x + 0.1 * np.sin(x)

        return np.sum(timeloop(step, u, 40, **options) ** 2)

    def product(stop: int = 0, **resumed: Any) -> tuple[Any, int]:
        ticker = Ticker(stop)
        monkeypatch.setattr(system, "met_job_step", ticker.met, raising=False)
        return grad(lambda u: ebbtide.jvp(energy, (u,), (vector,))[1], **resumed)(U), ticker.calls

    expected, steps = product()
    for stop in (30, 60):
        with pytest.raises(KeyboardInterrupt):
            product(stop, resume=tmp_path / "run")
    found, left = product(resume=tmp_path / "run")
    assert found.tobytes() == expected.tobytes()
    assert left < steps - 50
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_allclose(found, ebbtide.hvp(energy)(U, vector), rtol=1e-12)


@pytest.mark.parametrize("kind", ["jvp", "vmap"])
@pytest.mark.parametrize(
    "changed", [{"schedule": Mixed(5)}, {"storage": Memory()}, {"budget": Budget(memory="1 MiB")}, {"resume_every": 4},
                {"progress": False}, {"verify": False}, {"outputs": True}], ids=lambda changed: next(iter(changed)),
)  # fmt: skip
def test_derivatives_and_batches_go_on_with_other_options(changed: Any, kind: str, tmp_path: Path) -> None:
    """How a loop of values and tangents, or of members, was run so far is not how it has to go on; what it does is."""

    def run(stop: int = 0, **options: Any) -> Any:
        ticker, pairs = Ticker(stop), "outputs" in options
        system.met_job_step = ticker.met

        def energy(u: Any) -> Any:
            def step(x: Any, i: Any) -> Any:
                system.met_job_step()
                x = x + 0.1 * np.sin(x)
                return (x, 1.0) if pairs else x

            found = timeloop(step, u, 20, **{"schedule": Revolve(3), "resume_every": 3, **options})
            return np.sum((found[0] if pairs else found) ** 3)

        if kind == "jvp":
            return grad(lambda u: ebbtide.jvp(energy, (u,), (FACTOR,))[1], resume=tmp_path / "run")(U)
        return grad(lambda u: np.sum(ebbtide.vmap(energy)(np.stack([u, 2 * u]))), resume=tmp_path / "run")(U)

    expected = run()
    with pytest.raises(KeyboardInterrupt):
        run(15)
    if "outputs" in changed:
        with pytest.raises(ResumeError, match="code of step"):
            run(**changed)
    else:
        assert run(**changed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("schedule", [None, Periodic(4, 1)], ids=str)
@pytest.mark.parametrize("of_loop", [False, True], ids=["gradient", "loop"])
def test_a_refused_call_leaves_no_file(of_loop: bool, schedule: Any, tmp_path: Path) -> None:
    """A budget that is too small, of memory or of disk, is refused before a directory is made or a file written."""
    of_the_loop, of_the_call = ({"resume": tmp_path / "run"}, {})[:: 1 if of_loop else -1]
    budget = Budget(memory=20 * U.nbytes if schedule is None else 1 << 20, disk=2 * U.nbytes, directory=tmp_path)
    ran = list[int]()

    def step(u: Any, i: int) -> Any:
        ran.append(i)
        return np.sin(u)

    def objective(u: Any) -> Any:
        return np.sum(timeloop(step, u, 40, schedule=schedule, **of_the_loop))

    with pytest.raises(ebbtide.BudgetError):
        grad(objective, budget=budget, **of_the_call)(U)
    assert ran == [0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["restart", "saved"])
@pytest.mark.parametrize("of_loop", [False, True], ids=["gradient", "loop"])
def test_a_storage_that_loses_digits_is_refused(of_loop: bool, kind: str, tmp_path: Path) -> None:
    """What comes back with other bits cannot be resumed to the same ones: nothing is run or written."""
    of_the_loop, of_the_call = ({"resume": tmp_path / "run"}, {})[:: 1 if of_loop else -1]
    ran = list[int]()

    def objective(u: Any) -> Any:
        return np.sum(timeloop(lambda u, i: ran.append(i) or np.sin(u), u, 9, storage=storage, **of_the_loop))

    with Disk(tmp_path, compression={kind: "float32"}) as storage:
        with pytest.raises(ResumeError, match=f"resume= was given a Disk storage, .* of '{kind}' entries loses digits"):
            grad(objective, **of_the_call)(U)
        assert list(tmp_path.iterdir()) == []
        assert ran == []
        of_the_loop.clear()
        grad(objective)(U)
    with Disk(tmp_path, compression={kind: "lossless"}) as storage:
        grad(objective, **of_the_call)(U)


@pytest.mark.filterwarnings("ignore:The steps of a time loop changed .ran. before")
def test_a_refused_call_leaves_the_earlier_run(tmp_path: Path) -> None:
    """A call with too small a budget changes nothing of an unfinished run, which then goes on where it was."""

    def run(stop: int = 0, memory: int = 1 << 20) -> tuple[Any, list[int]]:
        ran, ticker = list[int](), Ticker(stop)
        system.met_job_step = ticker.met

        def step(u: Any, i: int) -> Any:
            system.met_job_step()
            ran.append(i)
            return np.sin(u)

        def objective(u: Any) -> Any:
            return np.sum(timeloop(step, u, 20, resume_every=2))

        return grad(objective, budget=Budget(memory=memory), resume=tmp_path / "run")(U), ran

    with pytest.raises(KeyboardInterrupt):
        run(stop=16)
    before = (tmp_path / "run" / "segment").read_bytes()
    with pytest.raises(ebbtide.BudgetError):
        run(memory=16)
    assert (tmp_path / "run" / "segment").read_bytes() == before
    found, ran = run()
    assert found.tobytes() == grad(lambda u: np.sum(timeloop(lambda u, i: np.sin(u), u, 20)))(U).tobytes()
    assert ran[:3] == [0, 14, 15]


def test_an_error_gives_the_directory_free(tmp_path: Path) -> None:
    """After an interrupt the same process may go on at once, though its traceback is still held."""
    held = []
    for stop in (20, 4):
        with pytest.raises(KeyboardInterrupt) as caught:
            Call().run(tmp_path / "run", stop)
        held.append(caught)
    for found, wanted in zip(Call().run(tmp_path / "run"), Call().run(tmp_path / "other"), strict=True):
        assert np.array_equal(found, wanted)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changed_budget", [None, 60, 9], ids=str)
def test_the_chosen_schedule_is_kept(changed_budget: int | None, tmp_path: Path) -> None:
    """A run that goes on follows the schedule that was chosen first, without measuring again, while there is room."""
    big, plans = np.linspace(0.0, 1.0, 20_000), list[Any]()

    def run(stop: int, states: int) -> Any:
        ticker = Ticker(stop)
        system.met_job_step = ticker.met

        def step(u: Any, i: int) -> Any:
            system.met_job_step()
            return u + 0.1 * np.sin(u) * np.cos(u)

        with ebbtide.profile(on_plan=plans.append):
            budget = Budget(memory=states * big.nbytes)
            return grad(lambda u: np.sum(timeloop(step, u, 40, resume_every=2)), budget=budget, resume=tmp_path)(big)

    with pytest.raises(KeyboardInterrupt):
        run(30, 20)
    first = plans[-1]
    assert first.measuring_steps == 2
    plans.clear()
    found = run(0, changed_budget or 20)
    again = plans[0]
    if changed_budget == 9:
        assert again.schedule != first.schedule
    else:
        assert (again.schedule, again.measuring_steps) == (first.schedule, 0)
        assert plans[-1].schedule.inner == first.schedule
    expected = grad(lambda u: np.sum(timeloop(lambda u, i: u + 0.1 * np.sin(u) * np.cos(u), u, 40)))(big)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("stop", [9, 30, 70])
def test_what_was_measured_is_kept(stop: int, tmp_path: Path) -> None:
    """A run that goes on holds as many snapshots in its reverse sweep, without a run of a step that tells how many."""
    large, plans = np.linspace(0.1, 1.0, 1 << 15), list[Any]()

    def gradient(ticker: Ticker) -> Any:
        def objective(u: Any) -> Any:
            return np.sum(timeloop(lambda x, i: np.sin(x) * 1.01, u, 40, inputs=ticker, resume_every=4))

        with ebbtide.profile(on_plan=plans.append):
            return grad(objective, budget=Budget(memory=8 * large.nbytes), resume=tmp_path / "run")(large)

    whole = Ticker()
    expected = gradient(whole)
    assert plans[-1].schedule.reverse > plans[-1].schedule.units
    assert plans[-1].predicted_steps_forward == whole.calls > 80
    known = plans[-1].sizes.measured_alone
    with pytest.raises(KeyboardInterrupt):
        gradient(Ticker(stop))
    first = plans[-1]
    assert first.measuring_steps > 0
    plans.clear()
    assert np.array_equal(gradient(Ticker()), expected)
    again = plans[0]
    assert (again.schedule, again.measuring_steps, again.sizes.measured_alone) == (first.schedule, 0, known)


@pytest.mark.parametrize("stop", [10, 20, 30, 60, 90])
def test_what_a_run_that_goes_on_reports_is_what_is_predicted(stop: int, tmp_path: Path) -> None:
    """The steps of the earlier run and those that are run again to go on are counted in both numbers."""

    def step(u: Any, i: int) -> Any:
        system.met_job_step()
        return np.sin(u)

    def run(stop: int = 0) -> Any:
        system.met_job_step = Ticker(stop).met
        with ebbtide.profile() as profile:
            grad(lambda u: np.sum(timeloop(step, u, 40, schedule=Revolve(3), resume_every=2)), resume=tmp_path)(U)
        return profile

    with unsynchronized():
        with pytest.raises(KeyboardInterrupt):
            run(stop)
        found = run()
    assert found.steps_forward == found.predicted_steps_forward > 40
