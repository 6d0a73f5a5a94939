"""The trace of equations, and the names of what it is given."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import primitive
from ebbtide.arrays.array_type import ArrayType
from ebbtide.errors import TraceError
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.program.tracing import name_argument, trace_leaves


def test_operations_leave_equations():
    """Each operation is an equation with the type of its result and the line; no element is computed."""
    trace = SymbolicTrace(0)
    variable, x = trace.input(np.broadcast_to(np.float32(1), (10**6, 10**6)), "x")
    y = np.sin(x) * 2.0
    first, second = trace.equations
    assert (first.name, first.arguments, first.output.type) == ("sin", (variable,), ArrayType(x.shape, np.dtype("f4")))
    assert second.arguments == (first.output, 2.0)
    assert trace.entry(y) is second.output
    assert "test_symbolic.py" in first.line


def test_functions_without_a_derivative_leave_equations():
    """So do comparisons and the like, with their arguments where the function takes them."""
    trace = SymbolicTrace(0)
    variable, x = trace.input(np.ones((2, 3)), "x")
    assert np.argmax(x, axis=1).dtype == np.intp
    (equation,) = trace.equations
    assert (equation.primitive, equation.function) == (None, np.argmax)
    assert equation.inputs == (variable,)


def test_numbers_among_themselves_are_numbers():
    """Arithmetic of Python numbers gives a number; a ufunc of NumPy gives a scalar, which has a dtype."""
    trace = SymbolicTrace(0)
    _, step = trace.input(0.5, "step")
    half, sine = step * 2, np.sin(step)
    assert [equation.output.is_number for equation in trace.equations] == [True, False]
    _, x = trace.input(np.ones(2, np.float32), "x")
    assert ((x * half).dtype, (x * sine).dtype) == (np.float32, np.float64)


def test_what_needs_data_is_refused():
    """An operation that cannot tell its type says so, with the line and what to do."""
    opaque = primitive(lambda x: x * 2.0, vjp=(lambda g: g * 2.0,))
    _, x = SymbolicTrace(0).input(np.ones(2), "x")
    with pytest.raises(TraceError, match=r"test_symbolic.py.*is opaque.*pass the result in"):
        opaque(x)


def test_captured_arrays_are_the_last_inputs():
    """There are none where no trace is around; the outputs that are known are given as they are."""
    found = trace_leaves(lambda leaves: [leaves[0] + leaves[1], 3.0], [np.ones(2), 1.0], ["a", "b"], "f")
    assert [variable.name for variable in found.program.inputs] == ["a", "b"]
    assert found.program.outputs[1] == 3.0
    assert found.captured == ()


@pytest.mark.parametrize(
    ("path", "name"), [("[0]", "u"), ("[1]['w'][0]", "rest['w'][0]"), ("[2]", "argument2"), ("[3][1]", "argument3[1]")]
)
def test_names_of_arguments(path, name):
    """A leaf is called by its parameter and its path; beyond the parameters by its number."""
    def f(u, rest, *more):
        return u

    assert name_argument(f, path) == name
