"""Where equations come from: each has the user's line, and in the reverse sweep that of the operation it pulls back."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from ebbtide import checkpoint, grad, hvp, jit, jvp, trace, value_and_grad, vjp

X = np.linspace(0.1, 1.0, 6)


def energy(u):
    """A function over three lines."""
    slope = (u[1:] - u[:-1]) * 10.0
    waves = np.cos(u[1:])
    return np.sum(slope * slope + waves)


FIRST = inspect.getsourcelines(energy)[1]
SLOPE, WAVES, SUM = (f"test_provenance.py:{FIRST + k}" for k in (2, 3, 4))


def lines(program):
    """The places that the text of a program shows, with the operations that come from each."""
    found = {}
    for line in str(program).splitlines():
        match = re.search(r"(\w+)\(.*  (\S+\.py:\d+(?: reverse)?)$", line)
        if match:
            found.setdefault(match[2], []).append(match[1])
    return found


def test_lines_of_a_gradient():
    """An equation of the reverse sweep shows the line that it pulls back, marked; forward ones their own."""
    found = lines(trace(grad(energy), X))
    assert set(found) == {SLOPE, f"{SLOPE} reverse", WAVES, f"{WAVES} reverse", SUM, f"{SUM} reverse"} - {SUM, WAVES}
    assert found[f"{WAVES} reverse"].count("sin") == 1
    assert "scatter" in found[f"{SLOPE} reverse"]
    assert set(lines(trace(value_and_grad(energy), X))) == set(found) | {WAVES, SUM}


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: lambda x: vjp(f, x)[1](1.0),
        lambda f: grad(jit(f)),
        lambda f: grad(checkpoint(f)),
        lambda f: lambda x: hvp(f)(x, x),
        lambda f: lambda x: jvp(grad(f), (x,), (x,)),
        lambda f: grad(lambda x: np.sum(grad(f)(x) ** 2)),
    ],
    ids=["vjp", "jit", "checkpoint", "hvp", "jvp of grad", "grad of grad"],
)
def test_lines_of_other_derivatives(derivative):
    """So do the equations of any derivative that sweeps: none is without the line that it is due to."""
    found = lines(trace(derivative(energy), X))
    assert "multiply" in found[f"{WAVES} reverse"]
    assert {place for place in found if not place.startswith("test_provenance.py")} == set()


def test_lines_of_tangents():
    """In forward mode the line of a tangent is that of its value."""
    found = lines(trace(lambda x: jvp(energy, (x,), (x,)), X))
    assert set(found) == {SLOPE, WAVES, SUM}
    assert "sin" in found[WAVES]


def test_after_a_sweep_lines_are_forward_again():
    """What the function does with a gradient is no part of the sweep, also where it is a sweep within a sweep."""
    def f(x):
        y = checkpoint(np.sin)(x) * grad(energy)(x)
        return np.sum(y * y)

    first = inspect.getsourcelines(f)[1]
    found = lines(trace(grad(f), X))
    assert f"test_provenance.py:{first + 1}" in found
    assert f"test_provenance.py:{first + 2} reverse" in found
    assert f"{WAVES} reverse" in found


def test_lines_in_source_and_prediction():
    """The source and the table of the peak show the same places."""
    planned = jit(grad(energy)).program(X)
    assert f"  {WAVES} reverse" in planned.source
    assert any(value.line.endswith(" reverse") for value in planned.predict().held)


def test_the_sweep_is_the_same_with_and_without_a_trace():
    """To follow a sweep does not change what it computes."""
    assert jit(grad(energy))(X).tobytes() == grad(energy)(X).tobytes()
