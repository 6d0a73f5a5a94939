"""Overflow, division by zero and nan: a program treats them as its function does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ebbtide import grad, jit, trace
from ebbtide.program.evaluate import evaluate

X = np.array([0.0, 1.0, -1.0])


def outcome(f):
    """What a call gives: the messages of its warnings, or of the error that it raises, and the result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = f().tobytes()
        except FloatingPointError as error:
            result = str(error)
    return [str(warning.message) for warning in caught], result


def bare(x):
    """A logarithm of zero and of a negative number."""
    return np.log(x) * 2.0


def quiet(x):
    """The same, with no word about it; the division after it is not covered."""
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(x) * 2.0
    return y / np.array([0.0, 1.0, 2.0])


def strict(x):
    """A division by zero that has to raise."""
    with np.errstate(divide="raise"):
        y = 1.0 / x
    return np.log(x[::-1]) + y


def mixed(x):
    """The same operation twice, covered and not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(x)
    return y + np.log(x)


@pytest.mark.parametrize("f", [bare, quiet, strict, mixed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("around", ["ignore", "warn", "raise"])
def test_what_is_set_around_and_inside(f, around):
    """What the caller of a run has set holds, and within the function what the function sets."""
    g = jit(f)
    with np.errstate(all="ignore"):
        program = trace(f, X)
        outcome(lambda: g(X))  # traced while all is ignored
    with np.errstate(all=around):
        expected = outcome(lambda: f(X))
        assert outcome(lambda: g(X)) == expected
        assert outcome(lambda: evaluate(program, [X])[0]) == expected


def test_what_rules_set():
    """A rule that lets an error pass in silence does so in a program, too."""
    slope = grad(lambda x: np.sum(np.power(np.abs(x), x)))
    with np.errstate(all="ignore"):
        planned = jit(slope)
        planned(X)
    assert outcome(lambda: planned(X)) == outcome(lambda: slope(X))


def test_the_source_says_so():
    """The source has the same blocks as the function."""
    text = jit(quiet).program(X).source
    assert "    with np.errstate(divide='ignore', invalid='ignore'):\n        log_" in text
    assert "\n    np.divide(" in text or "\n    divide_" in text


@pytest.mark.parametrize("around", ["ignore", "warn", "raise"])
def test_plain_arrays_in_a_traced_function(around):
    """What the function computes of plain arrays alone is treated as its caller has set it, while it is traced."""
    def f(x):
        return x * np.sum(1.0 / np.array([0.0, 1.0]) * 0.0)

    with np.errstate(all=around):
        expected = outcome(lambda: f(X))
        assert outcome(lambda: jit(f)(X)) == expected
