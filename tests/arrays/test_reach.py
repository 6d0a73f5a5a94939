"""What the code of a step reaches: arrays that it shares with all steps, wherever they are named."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.measure import peak_bytes

from ebbtide import Budget, grad, profile, timeloop
from ebbtide.arrays.reach import arrays_of, closed_over, is_installed, looked_up
from ebbtide.scipy.sparse import csr_array
from ebbtide.scipy.sparse.linalg import spsolve

settings = ModuleType("settings")
GLOBAL = np.linspace(0.1, 0.9, 4096)


class Model:
    """A user's object with an array."""

    def __init__(self, array: Any) -> None:
        self.held = {"arrays": [array]}

    def method(self, u: Any, i: int) -> Any:
        """A step."""
        return u

    def __call__(self, u: Any, i: int) -> Any:
        """A step."""
        return u


def default(u: Any, i: int, array: Any = GLOBAL) -> Any:
    """A step with a default."""
    return u * array


def inner(u: Any) -> Any:
    """What a step calls."""
    return u * GLOBAL


def closing_over(array: Any) -> Any:
    """Return a step that closes over an array."""
    return lambda u, i: u * array


STEPS = {
    "closure": closing_over(GLOBAL),
    "default": default,
    "global": lambda u, i: u * GLOBAL,
    "called function": lambda u, i: inner(u),
    "comprehension": lambda u, i: sum(v * GLOBAL for v in u),
    "partial": partial(lambda array, u, i: u * array, GLOBAL),
    "method": Model(GLOBAL).method,
    "object": Model(GLOBAL),
}


@pytest.mark.parametrize("name", STEPS)
def test_arrays_are_found_wherever_a_step_has_them(name):
    """An array is found once, by closure, default, global, nested code, call, partial, method and attribute."""
    assert [array is GLOBAL for array in arrays_of(STEPS[name])] == [True]


def test_arrays_in_modules_of_the_user(monkeypatch):
    """An array that a step names as an attribute of a user's module is found; those of installed ones are not."""
    monkeypatch.setattr(settings, "weights", GLOBAL, raising=False)
    monkeypatch.setattr(settings, "others", np.ones(3), raising=False)
    assert [array is GLOBAL for array in arrays_of(lambda u, i: u * settings.weights)] == [True]
    monkeypatch.setattr(np, "weights", GLOBAL, raising=False)
    assert arrays_of(lambda u, i: u * np.weights) == []


def test_functions_of_scipy_are_not_looked_through() -> None:
    """By names a function of SciPy's reaches 2000 objects, before which an array of the user's was not found."""
    found = arrays_of(lambda u, i: spsolve(u, GLOBAL))
    assert [array is GLOBAL for array in found] == [True]


def test_our_own_functions_are_not_looked_through(monkeypatch) -> None:
    """By its names `timeloop` reached 665 objects, at each gradient, and beside a few more no array of the user's."""
    monkeypatch.setattr("ebbtide.arrays.reach._MOST_REACHED", 20)
    loss = lambda u: timeloop(lambda s, i: s * GLOBAL, u, 3)
    for outer in (loss, lambda u: loss(u) + 1.0, grad(loss), lambda u: [grad(loss)(u), profile, Budget, settings]):
        assert [array is GLOBAL for array in arrays_of(outer)] == [True]


def test_arrays_in_slots() -> None:
    """Those of objects of the user, and of matrices of ours: a step with such a matrix named 17 states for 3."""
    @dataclass(slots=True)
    class Slotted:
        weights: Any
        later: Any

    model, matrix = Slotted(GLOBAL, None), csr_array(scipy.sparse.eye_array(3, format="csr"))
    del model.later
    found = arrays_of(lambda u: matrix @ (model.weights * u))
    wanted = (GLOBAL, matrix.data, matrix.indices, matrix.indptr)
    assert {id(array) for array in found} == {id(array) for array in wanted}


@pytest.mark.parametrize("kind", [list, tuple, dict.fromkeys], ids=["list", "tuple", "dictionary"])
def test_a_table_of_numbers_is_not_copied(kind: Any) -> None:
    """A gradient of a function that finds a large table keeps a budget below it, and finds the arrays beside it."""
    table, array = kind([0.1 * k for k in range(200_000)]), np.ones(3)

    def f(u: Any) -> Any:
        return np.sum(np.sin(u) * array) * len(table)

    assert [one is array for one in arrays_of(f)] == [True]
    call = grad(f, budget=Budget(memory="64 KiB"))
    call(np.ones(3))
    assert peak_bytes(lambda: call(np.ones(3))) < 64 * 1024


def test_what_leads_to_itself_ends():
    """Cycles, variables without a value, and traces of any length end the search, not the call."""
    later = 0  # deleted below

    def itself(u, i):
        return itself(u, later)  # noqa: F821 - a cell that is empty

    del later
    assert arrays_of(itself) == []
    assert list(closed_over(itself)) == [itself]
    chain: list[Any] = [GLOBAL]
    for _ in range(5000):
        chain = [chain]
    assert arrays_of(partial(itself, chain)) == []


def test_names_of_nested_code_are_looked_up():
    """Names in functions within a function count as its own."""
    assert dict(looked_up(STEPS["comprehension"], is_installed))["GLOBAL"] is GLOBAL


def test_what_nested_code_uses_is_counted_once():
    """An array that only code within a step names is no saved value of each step: the plan has it once."""
    u, steps = np.linspace(0.2, 1.1, 4096), 20

    def step(u, i):
        return sum(np.sin(v) * GLOBAL for v in [u])

    def by_name(u, i):
        return np.sin(u) * GLOBAL

    peaks = []
    for f in (by_name, step):
        plans: list[Any] = []
        with profile(on_plan=plans.append):
            grad(lambda u, f=f: np.sum(timeloop(f, u, steps)), budget=Budget(memory="64 MiB"))(u)
        peaks.append(plans[-1].predicted_peak_bytes)
    assert abs(peaks[1] - peaks[0]) < u.nbytes
