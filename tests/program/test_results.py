"""What a program gives its caller: arrays that may be written, and that share memory only where the function's do."""

from __future__ import annotations

import numpy as np
import pytest
from optree import tree_leaves

import ebbtide as eb
from ebbtide.program.results import own_constants

X = np.array([1.0, 2.0, 3.0])
SQUARE = np.arange(9.0).reshape(3, 3)
AROUND = np.arange(3.0)


def pulled(f):
    """The cotangents of the arguments of *f* for the last one."""
    return lambda *args: eb.vjp(f, *args[:-1])[1](args[-1])


def twice(x, t):
    """The tangent of a function, taken two times."""
    pushforward = eb.linearize(lambda x: 2.0 * x, x)[1]
    return pushforward(t), pushforward(t)


# Function and arguments.
FUNCTIONS = {
    "the same computed twice": (lambda x: (x + 1.0, x + 1.0), X),
    "one of them three times": (lambda x: (x + 1.0, (y := x + 1.0), y, x + 1.0), X),
    "views of the same": (lambda x: (np.sin(x)[1:], np.sin(x)[:2]), X),
    "an array and its view": (lambda x: ((y := np.sin(x)), y[1:]), X),
    "gradients of two arguments": (eb.grad(lambda x, y: np.sum(np.sin(x + y)), argnums=(0, 1)), X, X + 1.0),
    "a gradient of ones": (eb.grad(lambda x, y: np.sum(x + y), argnums=(0, 1)), X, X + 1.0),
    "a gradient from outside": (eb.grad(lambda x: np.sum(x * AROUND)), X),
    "a Hessian": (eb.hessian(lambda x: x @ x), X),
    "a pullback of the identity": (pulled(lambda x: x), X, X + 1.0),
    "pullbacks that are views": (pulled(lambda a, b: a.T + b), SQUARE, SQUARE, SQUARE + 1.0),
    "pushes": (twice, X, X + 1.0),
    "members as they are": (eb.vmap(lambda row: (row, row)), SQUARE),
    "members computed twice": (eb.vmap(lambda row: (np.sin(row), np.sin(row))), SQUARE),
    "the same for all members": (eb.vmap(lambda row, x: x, in_axes=(0, None)), SQUARE, X),
    "constants": (lambda x: (np.zeros_like(x), np.full((2, 2), 3.0), np.zeros(()), AROUND * 2.0, x * 1.0), X),
    "a constant at two places": (lambda x: ((z := np.zeros(3)), z, np.zeros(3), x * 1.0), X),
    "a view of a constant": (lambda x: (np.reshape(np.zeros_like(x), -1), np.zeros_like(x.T)[1:]), SQUARE),
    "an auxiliary result": (eb.grad(lambda x: (np.sum(x), x), has_aux=True), X),
}  # fmt: skip


def shared(results, args):
    """For each result which results and arguments it shares memory with."""
    return [[np.may_share_memory(one, other) for other in (*results, *args)] for one in results]


@pytest.mark.parametrize("executor", ["reference", "machine"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_the_callers(name, executor):
    """They share what the function's share, and what is written into them is not seen in the next call."""
    f, *args = FUNCTIONS[name]
    program = eb.jit(f, executor=executor)
    expected = tree_leaves(f(*args))
    for _ in range(2):
        found = tree_leaves(program(*args))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert shared(found, args) == shared(expected, args)
        for array in found:
            if isinstance(array, np.ndarray):
                array[...] = 77.0


def added_to(u):
    """A function that writes into a result of a program that is a constant."""
    doubled, weight = PROGRAM(u)
    weight += 1.0
    return np.sum(doubled**2 * weight)


PROGRAM = eb.jit(lambda u: (u * 2.0, np.zeros_like(u)))
DERIVATIVES = {
    "gradient": lambda f: eb.grad(f)(X),
    "tangent": lambda f: eb.jvp(f, (X,), (X,))[1],
    "Hessian": lambda f: eb.hvp(f)(X, X),
    "members": lambda f: eb.vmap(f)(SQUARE),
    "program": lambda f: eb.jit(eb.grad(f))(X),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_constants_of_programs_of_derivatives(name):
    """A derivative has the same value each time, whatever the function does to the constant results of a program."""
    derivative = DERIVATIVES[name]
    expected = derivative(lambda u: np.sum((u * 2.0) ** 2))
    for _ in range(2):
        np.testing.assert_allclose(derivative(added_to), expected, rtol=1e-14)


def test_copies_are_planned():
    """They are equations: counted, within a budget, and in the source; what needs none is as it was."""
    x = np.ones(1000)
    program = eb.jit(lambda x: (np.zeros_like(x), x + 1.0, x + 1.0)).program(x)
    assert [equation.name for equation in program.program.equations] == ["add", "copy", "copy"]
    assert program.predict().peak_bytes == 3 * x.nbytes
    with pytest.raises(eb.BudgetError) as refused:
        eb.jit(lambda x: (x + 1.0, x + 1.0), budget=eb.Budget(memory=x.nbytes + 200))(x)
    assert refused.value.least >= 2 * x.nbytes
    traced = eb.trace(lambda x: (x + 1.0, x + 1.0), x)
    assert [equation.name for equation in traced.equations] == ["add"]
    assert traced.predict().peak_bytes == 2 * x.nbytes
    alone = eb.trace(lambda x: x + 1.0, x)
    assert own_constants(alone) is alone
