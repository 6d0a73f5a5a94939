"""Jitted functions whose results are views: differentiated, they are planned, and writes into them go where they go."""

from __future__ import annotations

import numpy as np
import pytest
from optree import tree_leaves

from ebbtide import checkpoint, grad, hvp, jit, jvp, timeloop
from ebbtide.program.planned import PlannedProgram

X = np.linspace(0.1, 1.0, 6).reshape(2, 3)


def pair(make):
    """A function of what another one computes."""
    return lambda x: make(np.sin(x))


FUNCTIONS = {
    "the argument": lambda x: x,
    "a view of the argument": lambda x: x.T,
    "a slice": lambda x: np.sin(x)[1:],
    "numbers, too": lambda x: (np.sin(x)[1:], 3.0, None),
    "twice the same": pair(lambda y: (y, y)),
    "an array and its views": pair(lambda y: (y, y[0], y.T.reshape(3, 2))),
    "a view of a view": pair(lambda y: (y[0], y[0][1:])),
    "another shape": lambda x: (x * 2.0).reshape(-1),
    "a container": lambda x: {"a": x[0], "b": np.cos(x)[:, 1] * x[0, 0], "c": (x,)},
    "without data of its own": lambda x: np.broadcast_to(np.sin(x)[0], (4, 3)),
    "a diagonal": lambda x: np.diagonal(np.exp(x[:, :2])),
    "a real part": lambda x: np.real(x * 1j * x),
}  # fmt: skip
# As NumPy's are.
READ_ONLY = ("without data of its own", "a diagonal")


def total(results):
    """A number that depends on each element of all results."""
    return sum(np.sum(np.cos(leaf) * 1.3) for leaf in tree_leaves(results) if leaf is not None)


def written(f, name):
    """A function that writes into the last result of another, and looks at all results and the argument."""
    def g(x):
        x = x * 1.0
        results = f(x)
        arrays = [leaf for leaf in tree_leaves(results) if np.ndim(leaf)]
        if name not in READ_ONLY:
            arrays[-1][...] = arrays[-1] * 2.0 + 0.5
        return total(results) + np.sum(x**2)

    return g


DERIVATIVES = {
    "gradient": lambda f, name: grad(written(f, name))(X),
    "tangent": lambda f, name: jvp(written(f, name), (X,), (X,))[1],
    "Hessian": lambda f, name: hvp(written(f, name))(X, X),
    "twice in reverse": lambda f, name: grad(lambda x: np.sum(grad(written(f, name))(x) ** 2))(X),
    "in a program": lambda f, name: jit(grad(written(f, name)))(X),
    "in a checkpoint": lambda f, name: grad(checkpoint(written(f, name)))(X),
    "in a loop": lambda f, name: grad(lambda x: np.sum(timeloop(lambda s, i: 0.3 * s * written(f, name)(s), x, 2)))(X),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_that_are_views(name, derivative):
    """What is written into a result is seen in what it is a view of, and derivatives are those of the function."""
    f = FUNCTIONS[name]
    found, expected = DERIVATIVES[derivative](jit(f), name), DERIVATIVES[derivative](f, name)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_they_are_planned(monkeypatch):
    """The gradient of a function that returns views is a forward and a reverse program."""
    runs = []
    original = PlannedProgram._on_tape

    def counted(self, *args):
        found = original(self, *args)
        runs.append(found is not None)
        return found

    monkeypatch.setattr(PlannedProgram, "_on_tape", counted)
    f = jit(FUNCTIONS["an array and its views"])
    grad(lambda x: total(f(x)))(X)
    assert runs == [True]
    forward, reverse = f.reversed(X)
    assert [equation.name for equation in forward.program.equations] == ["sin"]
    assert "cos" in [equation.name for equation in reverse.program.equations]
