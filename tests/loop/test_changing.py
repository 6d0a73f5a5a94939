"""Steps that change what they reach, a memo or a counter: the same program goes on, and another one is refused."""

from __future__ import annotations

import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import DeterminismError, ResumeError, grad, timeloop
from ebbtide.loop.values.code import data_of, digest_code
from ebbtide.schedules import Revolve, StoreAll

U = np.linspace(0.5, 1.0, 20)
PROGRAM = """
import numpy as np
DT = 0.1
{before}
def step(u, i):
    {does}
    return u + DT * np.sin(u) * factor(i)
"""
# What a step does beside its work, and what that needs.
KINDS = {
    "memo": ("M = {}\ndef factor(i): return M.setdefault(i, np.cos(0.1 * i))", "pass"),
    "memo of functions": ("M = {}\ndef factor(i): return M.setdefault(i, lambda: 0.5)()", "pass"),
    "counter": ("N = [0]\ndef factor(i): return 1.0", "N[0] += 1"),
    "number": ("N = 0\ndef factor(i): return 1.0", "global N; N += 1"),
    "array": ("N = np.zeros(3, int)\ndef factor(i): return 1.0", "N[i % 3] += 1"),
    "made late": ("N = None\ndef factor(i): return 1.0", "global N; N = N if N is not None and i else np.ones(i + 1)"),
    "attribute": ("def factor(i): return 1.0", "step.calls = getattr(step, 'calls', 0) + 1"),
    "default": ("def factor(i, seen=[]): seen.append(i); return 1.0", "pass"),
    "object": ("class N:\n    def met(self): self.n = getattr(self, 'n', 0) + 1\nN = N()\ndef factor(i): return 1.0",
               "N.met()"),
    "deep": ("N = {'a': [{'b': [[0]]}]}\ndef factor(i): return 1.0", "N['a'][0]['b'][0][0] += 1"),
}  # fmt: skip


def fresh(kind: str, change: tuple[str, str] = ("", "")) -> Any:
    """The module of a program as a new process has it."""
    before, does = KINDS[kind]
    module = types.ModuleType("of_a_user")
    source = PROGRAM.format(before=before, does=does)
    assert change[0] in source
    exec(source.replace(*change), vars(module))  # noqa: S102 - a user's module
    return module


class Inputs:
    """The inputs of 20 steps, which loops read one by one; Ctrl-C comes at one of the calls."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.calls = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> int:
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt
        return range(20)[i]


def run(module: Any, directory: Path | None, stop: int = 0) -> tuple[Any, int]:
    """The gradient through three loops of one step, and how many inputs it read; Ctrl-C comes at one of them."""
    inputs = Inputs(stop)

    def objective(u: Any) -> Any:
        for _ in range(3):
            u = timeloop(module.step, u, 20, inputs=inputs, schedule=Revolve(3), resume_every=2)
        return np.sum(u**2)

    return grad(objective, resume=directory)(U), inputs.calls


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_changes_what_it_reaches_goes_on(kind: str, tmp_path: Path) -> None:
    """A run that is killed in any loop or sweep, twice, ends with the bits of an undisturbed one."""
    expected, steps = run(fresh(kind), None)
    for stop in range(5, steps, 41):
        for at in (stop, 12):
            with pytest.raises(KeyboardInterrupt):
                run(fresh(kind), tmp_path / "run", at)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found, _ = run(fresh(kind), tmp_path / "run")
        assert found.tobytes() == expected.tobytes()
        assert all("this is no concern" in str(one.message) for one in caught)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [("DT = 0.1", "DT = 0.2"), ("np.sin(u)", "np.cos(u)")], ids=["number", "code"])
def test_another_program_is_refused(kind: str, change: tuple[str, str], tmp_path: Path) -> None:
    """Whatever the steps change of their own, a constant or code that is another one is refused, in any loop."""
    with pytest.raises(KeyboardInterrupt):
        run(fresh(kind), tmp_path / "run", 130)
    with pytest.raises(ResumeError, match=r"code of step: [0-9a-f]{16} now"):
        run(fresh(kind, change), tmp_path / "run")
    # Also where only the last loop has another step.
    first, last = fresh(kind), fresh(kind, change)

    def objective(u: Any) -> Any:
        for module in (first, first, last):
            u = timeloop(module.step, u, 20, inputs=list(range(20)), schedule=Revolve(3), resume_every=2)
        return np.sum(u**2)

    with pytest.raises(ResumeError, match=r"code of step: [0-9a-f]{16} now"):
        grad(objective, resume=tmp_path / "run")(U)


# How the steps of a first loop set what those of a second one compute with: at which of them, and to what.
SETTINGS = {
    "at one step": lambda p, i: p.update(dt=0.2) if i == 3 else None,
    "anew at each": lambda p, i: p.update(dt=0.1 + 0.01 * i),
    "a sum": lambda p, i: p.update(dt=p["dt"] + 0.01),
    "the same at each": lambda p, i: p.update(dt=0.2),
}


def run_setting(kind: str, directory: Path | None, stop: int = 0) -> tuple[Any, int]:
    """The gradient through two loops, of which the first sets what the second finds, as `run` gives it."""
    p, inputs = {"dt": 0.1}, Inputs(stop)

    def sets(u: Any, i: int) -> Any:
        SETTINGS[kind](p, i)
        return u + 0.1 * np.sin(u)

    def finds(u: Any, i: int) -> Any:
        return u + p["dt"] * np.sin(u)

    def objective(u: Any) -> Any:
        for step in (sets, finds):
            u = timeloop(step, u, 20, inputs=inputs, schedule=Revolve(3), resume_every=2)
        return np.sum(u**2)

    return grad(objective, resume=directory)(U), inputs.calls


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_is_lost_with_steps_that_do_not_run_again_is_told(kind: str, tmp_path: Path) -> None:
    """What steps of an earlier loop set gives a later one the same gradient, or a warning or an error says it."""
    expected, calls = run_setting(kind, None)
    told = refused = 0
    for stop in range(5, calls, 5):
        directory = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            run_setting(kind, directory, stop)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found, _ = run_setting(kind, directory)
            except DeterminismError:  # the two parts of a sweep of the later loop do not fit together
                refused += 1
                continue
        texts = [str(one.message) for one in caught]
        assert all("changed 'p' before the run" in text for text in texts)
        assert len(texts) <= 1
        assert texts or found.tobytes() == expected.tobytes()
        told += len(texts)
    assert (told > 5, refused > 0) == ((False, False) if kind == "the same at each" else (True, True))


@pytest.mark.parametrize("own", [False, True], ids=["grad", "timeloop"])
@pytest.mark.parametrize("kind", ["step", "until", "after"])
def test_what_a_loop_itself_has_lost_is_told(kind: str, own: bool, tmp_path: Path) -> None:
    """Steps, a condition and code after a loop whose steps run once: other bits come with a warning or an error."""

    def run(directory: Path | None, stop: int = 0) -> tuple[Any, int]:
        p, inputs = {"dt": 0.1, "seen": 0, "met": 0}, Inputs(stop)

        def step(u: Any, i: int) -> Any:
            if kind == "step" and i == 3:
                p["dt"] = 0.05
            p["met"] += kind == "after"
            return u + p["dt"] * np.sin(u)

        def until(u: Any) -> bool:
            p["seen"] += bool(np.sum(u) > 20.0)
            return p["seen"] > 4

        ends = {"until": until, "max_steps": 20} if kind == "until" else {"steps": 20}
        inside, outside = (directory, None) if own else (None, directory)

        def objective(u: Any) -> Any:
            u = timeloop(step, u, inputs=inputs, schedule=StoreAll(), resume_every=6, resume=inside, **ends)
            return np.sum(u**2) / (1 + p["met"])

        return grad(objective, resume=outside)(U), inputs.calls

    expected, calls = run(tmp_path / "run")
    told = 0
    for stop in range(2, calls + 1, 2):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", stop)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found, _ = run(tmp_path / "run")
            except DeterminismError:  # in the reverse sweep all steps run again
                assert list(tmp_path.iterdir()) == []
                continue
        texts = [str(one.message) for one in caught]
        assert all("before the run" in text for text in texts)
        assert texts or found.tobytes() == expected.tobytes()
        told += found.tobytes() != expected.tobytes()
        assert list(tmp_path.iterdir()) == []
    assert told


def test_what_is_left_out_is_what_changed() -> None:
    """Of what a step reaches, names alone are left out under which data changed, whatever they hold."""
    for kind in KINDS:
        module = fresh(kind)
        before = data_of(module.step)
        for i in (0, 1):
            module.step(U, i)
        after = data_of(module.step)
        changed = {name for name in {**before, **after} if before.get(name) != after.get(name)}
        assert changed
        assert changed.isdisjoint({"DT", "np", "factor", "step"})
        assert digest_code(module.step, changed) == digest_code(fresh(kind).step, changed)
        assert digest_code(module.step, changed) != digest_code(fresh(kind, ("DT = 0.1", "DT = 0.2")).step, changed)
