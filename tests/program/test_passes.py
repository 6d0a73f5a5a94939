"""Passes and lifetimes: what is left out, merged, and how long values live."""

from __future__ import annotations

import numpy as np

from ebbtide import grad, trace
from ebbtide.program.evaluate import evaluate
from ebbtide.program.lifetimes import last_uses, live_bytes, releases
from ebbtide.program.simplify import merge_common
from ebbtide.program.text import write_program


def names(program):
    """The operations, in order."""
    return [equation.name for equation in program.equations]


def test_what_nothing_uses_is_left_out():
    """An equation that no output depends on is not in the program."""
    def f(x):
        np.exp(x) * 3
        return np.sin(x)

    assert names(trace(f, np.ones(3))) == ["sin"]


def test_the_same_function_of_the_same_values_is_computed_once():
    """Equal equations are one; numbers of another type or sign are not equal."""
    program = trace(lambda x: np.sin(x) * 2 + np.sin(x) * 2.0 + np.copysign(x, 0.0) + np.copysign(x, -0.0), np.ones(3))
    assert names(program).count("sin") == 1
    assert names(program).count("multiply") == 2
    assert names(program).count("copysign") == 2
    x = np.array([1.0, -2.0, 3.0])
    assert evaluate(program, [x])[0].tolist() == (np.sin(x) * 2 + np.sin(x) * 2.0 + np.abs(x) - np.abs(x)).tolist()


def test_merged_equations_keep_their_outputs():
    """Outputs that are the same value are the same variable."""
    program = merge_common(trace(lambda x: (np.sin(x), [np.sin(x)]), np.ones(3)))
    assert program.outputs[0] is program.outputs[1]
    assert len(program.equations) == 1


def test_lifetimes():
    """A value dies with its last use, an unused input at once, and an output not at all."""
    program = trace(lambda x, y, z: (np.sin(x) * y, x), np.ones(3), np.ones(3), np.ones(3))
    x, y, z = program.inputs
    sine, product = (equation.output for equation in program.equations)
    assert last_uses(program) == {x: 2, y: 1, z: -1, sine: 1, product: 2}
    assert releases(program) == [[], [y, sine]] or releases(program) == [[], [sine, y]]
    assert live_bytes(program) == [24, 24]


def test_a_chain_holds_two_values():
    """However long a chain is, two of its values are held at a time."""
    def f(x):
        for _ in range(50):
            x = np.sin(x)
        return x

    program = trace(f, np.ones(100))
    assert max(live_bytes(program)) == 800


def test_the_text_of_a_program():
    """It shows the types, the bytes that are held, what is freed, and the user's line; outputs are its last line."""
    def f(x):
        y = np.sin(x)
        return np.sum(y[1:] * 2.5)

    text = write_program(trace(f, np.ones(4, np.float32)))
    lines = text.splitlines()
    assert lines[0] == "program f(x: float32[4])"
    assert lines[-1] == "  return sum_4"
    assert "sin_1 = sin(x)" in lines[2]
    assert "# float32[4]" in lines[2]
    assert "getitem_2 = getitem(sin_1, index=(1:,))" in lines[3]
    assert "-sin_1" in lines[3]
    assert "test_passes.py:" in lines[3]
    assert "multiply_3 = multiply(getitem_2, 2.5)" in lines[4]


def test_a_program_is_the_same_each_time():
    """Tracing twice gives the same text."""
    f = grad(lambda x: np.sum(np.tanh(x) ** 2))
    assert write_program(trace(f, np.ones(4))) == write_program(trace(f, np.ones(4)))
