"""Calls in traced functions: outside of them they run, and in each trace they are one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbtide import grad, hvp, jit, jvp, linearize, trace, vjp, vmap
from ebbtide.arrays.array_type import type_of
from ebbtide.errors import TraceError
from ebbtide.program.calling import record
from ebbtide.program.calls import Call

X, V = np.array([0.5, 1.5, -0.7]), np.array([0.3, -1.1, 0.9])


class Waves(Call):
    """Sine and cosine of an array, and how often they were computed."""

    name = "waves"
    level = 0
    rows = range(0)

    def __init__(self, x: Any) -> None:
        self.kinds = [type_of(x)] * 2
        self.numbers = [False] * 2
        self.runs = 0

    def run(self, operands: list[Any]) -> list[Any]:
        self.runs += 1
        (x,) = operands
        return [np.sin(x), np.cos(x)]

    def params(self, operands: Any) -> dict[str, Any]:
        return {"x": operands[0]}

    def operands(self, params: dict[str, Any]) -> list[Any]:
        return [params["x"]]

    def arrays(self) -> list[np.ndarray]:
        return []


def waves(x):
    """Both waves in one number for each element, by a call."""
    sine, cosine = record(Waves(X), [x])
    return sine * cosine + sine


def plainly(x):
    """The same without a call."""
    return np.sin(x) * np.cos(x) + np.sin(x)


def total(f):
    """The sum of a function."""
    return lambda x: np.sum(f(x))


def test_without_a_trace_a_call_runs():
    """On plain arrays nothing is recorded: the results are those of the function."""
    call = Waves(X)
    found = record(call, [X])
    assert [part.tobytes() for part in found] == [np.sin(X).tobytes(), np.cos(X).tobytes()]
    assert call.runs == 1


def test_a_call_is_an_equation():
    """In a traced function a call is one equation with two parts, and the program runs it."""
    call = Waves(X)
    program = trace(lambda x: record(call, [x])[0], X)
    assert [equation.name for equation in program.equations] == ["waves", "part"]
    assert call.runs == 0
    assert jit(waves)(X).tobytes() == plainly(X).tobytes()


def pulled_twice(pullback):
    """What two sweeps of one recording give."""
    return pullback(V)[0] + pullback(2 * V)[0]


DERIVATIVES = {
    "grad": lambda f: grad(total(f)),
    "jvp": lambda f: lambda x: jvp(f, (x,), (V,))[1],
    "hvp": lambda f: lambda x: hvp(total(f))(x, V),
    "grad of jvp": lambda f: grad(lambda x: np.sum(jvp(f, (x,), (V,))[1])),
    "grad of grad": lambda f: grad(lambda x: np.sum(grad(total(f))(x) * V)),
    "linearize": lambda f: lambda x: linearize(f, x)[1](V),
    "vmap": lambda f: lambda x: vmap(lambda y: f(x * y))(V),
    "grad of vmap": lambda f: grad(lambda x: np.sum(vmap(lambda y: f(x * y))(V))),
    "a retained pullback": lambda f: lambda x: pulled_twice(vjp(f, x, retain=True)[1]),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    """The derivatives of a call in a program are those of what it computes."""
    derive = DERIVATIVES[name]
    np.testing.assert_allclose(jit(derive(waves))(X), derive(plainly)(X), rtol=1e-12, atol=1e-14)


def test_a_trace_that_has_ended():
    """An operand of a trace that has ended is refused, with the name of the call."""
    escaped = []
    grad(lambda x: escaped.append(x) or np.sum(x))(X)
    with pytest.raises(TraceError, match=r"waves at .*test_calling\.py.* its derivative is lost"):
        record(Waves(X), escaped)
