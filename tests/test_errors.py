from __future__ import annotations

import inspect
import pickle
import re

import numpy as np
import pytest
from scipy import special

import ebbtide
from ebbtide import errors

TREE = {
    "TraceError": TypeError,
    "RuleMissingError": errors.TraceError,
    "StaleViewError": errors.TraceError,
    "CotangentError": ValueError,
    "ReleasedValueError": RuntimeError,
    "MutationError": RuntimeError,
    "DeterminismError": RuntimeError,
    "SolutionError": RuntimeError,
    "BudgetError": MemoryError,
    "ScheduleError": ValueError,
    "StorageError": OSError,
    "ResumeError": ValueError,
    "RankError": SystemExit,
    "ProgramError": RuntimeError,
}
CLASSES = {name: thing for name, thing in vars(errors).items() if inspect.isclass(thing)}


def test_one_tree():
    """All errors of the library are in one tree, and each is also the error of Python's that it is a case of."""
    assert set(CLASSES) == set(TREE) | {"EbbtideError"}
    for name, base in TREE.items():
        assert issubclass(CLASSES[name], errors.EbbtideError)
        assert issubclass(CLASSES[name], base)


def test_tree_in_the_docstring():
    """The drawing of the tree names each class once, below its base."""
    drawing = [line for line in errors.__doc__.splitlines() if "──" in line]
    assert {line.split("── ")[1].split()[0] for line in drawing} == set(TREE)
    assert len(drawing) == len(TREE)
    for line in drawing:
        inner = line.startswith("│")
        name = line.split("── ")[1].split()[0]
        assert inner == (TREE[name] is errors.TraceError)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_public_documented_and_pickled(name):
    """Each error is a public name, has a docstring of its own, and survives a process boundary with its message."""
    kind = CLASSES[name]
    assert getattr(ebbtide, name) is kind
    assert name in ebbtide.__all__
    assert kind.__doc__
    assert kind.__doc__ != kind.__base__.__doc__
    error = kind("what is wrong", 5) if name == "BudgetError" else kind("what is wrong")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "what is wrong"
    assert getattr(copy, "least", None) == getattr(error, "least", None)


def test_a_function_without_a_rule():
    """A NumPy function without a rule is named with the line of its call, and how to add a rule."""
    def f(x):
        return np.sum(np.setxor1d(x, x * 2))

    with pytest.raises(errors.RuleMissingError, match=r"setxor1d.*ebbtide\.primitive") as caught:
        ebbtide.grad(f)(np.ones(2))
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in str(caught.value)


MISSING = {
    "struve": (special.struve, (None, lambda g, x, y: g * special.struve(x - 1, y))),
    "arctan2.accumulate": (lambda v, x: np.arctan2.accumulate(x), (lambda g, x: g,)),
    "setxor1d": (np.setxor1d, (lambda g, ar1, ar2: g[:2], lambda g, ar1, ar2: g[2:])),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_rule_is_declared_as_the_message_says(name):
    """The lines of the message, copied, declare the function with the rules that the user writes."""
    function, pulls = MISSING[name]
    with pytest.raises(errors.RuleMissingError) as caught:
        ebbtide.vjp(function, np.array([0.0, 1.0]), np.array([2.0, 3.0]))
    lines = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    text = "\n".join(lines)
    space = {"ebbtide": ebbtide, **dict(zip(re.findall(r"pull_\w+", text), pulls, strict=True))}
    exec(text, space)  # noqa: S102 - that it runs is what is tested
    declared = space[name.partition(".")[0]]
    operands = [np.array([0.0, 1.0]), np.array([2.0, 3.0])][-len(pulls) :]
    value, pullback = ebbtide.vjp(declared, *operands)
    assert value.tobytes() == function(np.array([0.0, 1.0]), np.array([2.0, 3.0])).tobytes()
    for found, pull in zip(pullback(np.ones_like(value)), pulls, strict=True):
        np.testing.assert_array_equal(found, np.zeros(2) if pull is None else pull(np.ones_like(value), *operands))


def test_stale_view_names_both_lines():
    """A view that cannot follow its base names where it was taken and where the base was written."""
    kept = []

    def f(x):
        u = x * 1.0
        view = u[1:]

        def inner(y):
            u[0] = y * 2.0
            return y * np.sum(u)

        kept.append(ebbtide.grad(inner)(x[0]))
        return np.sum(view)

    with pytest.raises(errors.StaleViewError) as caught:
        ebbtide.grad(f)(np.ones(3))
    first = f.__code__.co_firstlineno
    assert f"{__file__}:{first + 2}" in str(caught.value)
    assert f"{__file__}:{first + 5}" in str(caught.value)
