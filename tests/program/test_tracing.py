"""Functions as programs: what they compute is what the function computes, to the bit, derivatives included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optree
import pytest
from tests.campaign.graphs import make_program
from tests.rules.example import callable_of
from tests.rules.examples import label, typed_cases
from tests.scale import sample_of_each

from ebbtide import grad, hvp, jit, jvp, trace, vjp
from ebbtide.errors import TraceError
from ebbtide.program.evaluate import evaluate


def bits(value: Any) -> list[Any]:
    """The types and bits of all leaves."""
    leaves = [np.asarray(leaf) for leaf in optree.tree_leaves(value)]
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in leaves]


def traced(f, operands):
    """The program of a function; None where it is refused because the function needs values."""
    try:
        return trace(f, *operands)
    except TraceError as error:
        if not any(reason in str(error) for reason in ("depends on the values", "is opaque", "only shape and dtype")):
            raise
    return None


def functions_of(key, example):
    """The function of an example, and the same with its pullback."""
    def f(*operands):
        return example.call(callable_of(key), list(operands))

    def both(*operands):
        value, pullback = vjp(f, *operands)
        return value, pullback(optree.tree_map(lambda v: v * 0.5, value))

    return f, both


def programs_of(case):
    """The operands of a case, with the program of its function and that of the pullback, where these can be traced."""
    key, example, dtype = case
    operands = example.operands(dtype)
    for f in functions_of(key, example):
        program = traced(f, operands)
        if program is None or any(isinstance(output, np.dtype) for output in program.outputs):
            return
        yield operands, program


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64, np.float32, np.complex64), 16), ids=label)
def test_every_rule(case):
    """The program of each function gives the function's bits."""
    key, example, dtype = case
    operands = example.operands(dtype)
    f = functions_of(key, example)[0]
    program = traced(f, operands)
    if program is not None:
        assert bits(evaluate(program, operands)) == bits(f(*operands))


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64, np.complex64, smooth=True), 16), ids=label)
def test_every_pullback(case):
    """The program of each function with its pullback gives the bits of both."""
    key, example, dtype = case
    operands = example.operands(dtype)
    both = functions_of(key, example)[1]
    program = traced(both, operands)
    if program is None:
        return
    found, expected = evaluate(program, operands), both(*operands)
    if key is np.einsum:
        # Products over several axes are made by NumPy in the sweep of arrays, and as matrices in a program.
        tolerance = 1e-12 if dtype is np.float64 else 1e-4
        for one, other in zip(found, optree.tree_leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    else:
        assert bits(found) == bits(expected)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    """Random functions with views, changes in place and fan-out, their gradients and second derivatives: equal bits."""
    f, arguments = make_program(seed, masks=False)
    argnums = tuple(range(len(arguments)))
    tangents = [np.cos(x) for x in arguments]

    def second(*xs):
        return jvp(grad(f, argnums), xs, tangents)

    for g in (f, grad(f, argnums), second):
        assert bits(evaluate(trace(g, *arguments), arguments)) == bits(g(*arguments))


def test_derivatives_go_through_a_program():
    """A program that is run on traced arrays is differentiated as its function: gradient, Hessian product, tangent."""
    def f(x):
        return np.sum(np.sin(x) * x[::-1] + np.where(x > 0.2, x**3, 1.0))

    x = np.linspace(-1, 1, 7)
    program = trace(f, x)

    def again(x):
        return evaluate(program, [x])[0]

    assert bits(grad(again)(x)) == bits(grad(f)(x))
    assert bits(hvp(again)(x, x)) == bits(hvp(f)(x, x))
    assert bits(jvp(again, (x,), (x,))) == bits(jvp(f, (x,), (x,)))


def test_python_numbers_stay_numbers():
    """A Python number among the arguments, and what arithmetic makes of it, takes the dtype of the arrays it meets."""
    def f(x, step):
        return x + (step * 0.5 + 1) * x

    x = np.ones(3, np.float32)
    program = trace(f, x, 0.1)
    assert program.outputs[0].type.dtype == np.float32
    assert bits(evaluate(program, [x, 0.1])) == bits(f(x, 0.1))
    assert trace(f, x, np.float64(0.1)).outputs[0].type.dtype == np.float64


def test_arrays_from_outside():
    """Plain arrays of a closure stand in the equations themselves, and what does not depend on inputs is known."""
    w = np.arange(3.0)
    program = trace(lambda x: (x * w, w, 2.0), np.ones(3))
    assert len(program.inputs) == 1
    assert program.outputs[1] is w
    assert bits(evaluate(program, [np.ones(3)])) == bits([w, w, 2.0])


def test_a_traced_array_from_outside_is_an_input():
    """An array of a gradient around the trace becomes an input, once, after those of the arguments."""
    programs = []

    def f(w):
        programs.append(trace(lambda x: x * w + np.sin(w) * w, np.ones(3)))
        return np.sum(evaluate(programs[0], [np.ones(3), w])[0])

    w = np.arange(3.0)
    assert bits(grad(f)(w)) == bits(np.sin(w) + np.cos(w) * w + 1)
    assert [variable.type.shape for variable in programs[0].inputs] == [(3,), (3,)]


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x if x[0] > 0 else -x, "truth"),
        (lambda x: np.sum(x) * int(x[0]), "number"),
        (lambda x: np.sum(x[x > 0]), "mask"),
        (lambda x: np.unique(np.round(x)), "depends on the values|no derivative rule"),
    ],
    ids=["if", "int", "mask", "unique"],
)
def test_what_asks_for_values_is_refused(f, message):
    """Control flow on values is an error that names the line and what to do instead."""
    with pytest.raises(TraceError, match=message) as caught:
        trace(f, np.ones(3))
    assert "test_tracing.py" in str(caught.value) or "stop_gradient" in str(caught.value)


def test_an_argument_that_is_written_is_refused():
    """What was given must not change: the error names the argument and the line."""
    def f(x):
        x[0] = 1.0
        return np.sum(x)

    with pytest.raises(TraceError, match=r"writes into its argument x at .*test_tracing.py"):
        trace(f, np.ones(3))


def test_control_flow_on_shapes():
    """Python loops and conditions on shapes run while the function is traced."""
    def f(x):
        total = 0.0
        for k in range(x.shape[0]):
            total = total + x[k] * (k if x.ndim == 1 else 0)
        return total

    program = trace(f, np.ones(4))
    assert evaluate(program, [np.arange(4.0)])[0] == f(np.arange(4.0))


def test_an_array_does_not_outlive_its_trace():
    """An array that escapes from the traced function is refused where it is used."""
    escaped = []
    trace(lambda x: escaped.append(x) or np.sum(x), np.ones(3))
    with pytest.raises(TraceError, match="after the function had returned"):
        np.sin(escaped[0])


def test_a_program_says_what_it_will_hold():
    """What `trace` returns is planned as `jit` plans it, also for arrays that lie otherwise; a pass's own is not."""
    x = np.linspace(0, 1, 12).reshape(4, 3).T
    f = grad(lambda x, k: np.sum(np.sin(x) * w * k))
    w = np.asfortranarray(np.ones((3, 4)))
    program, planned = trace(f, x, 2.0), jit(f).program(x, 2.0)
    assert program.predict() == planned.predict()
    assert program.source == planned.source
    with pytest.raises(TypeError, match=r"is not known, so that it cannot be planned\. Ask the program that"):
        replace(program, plan=None).predict()
