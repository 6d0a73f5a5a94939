"""Convolutions and windows in programs: what they take beside their operands, and how much work they are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import grad, nn, trace
from ebbtide.program.evaluate import compute
from ebbtide.program.windowed import CONVOLUTIONS, POOLINGS, moment_of, multiplications_of, with_scratch

PADDINGS = [0, "same"]
# Bytes of the objects that views are.
OBJECTS = 8192


def equations_of(f, *arguments):
    """Return the equations of windows in a program, by name, and all values that it has."""
    program = trace(f, *arguments)
    known = dict(zip(program.inputs, arguments, strict=True))
    for equation in program.equations:
        known[equation.output] = compute(equation, known)
    return {e.name: e for e in program.equations if e.name in {**CONVOLUTIONS, **POOLINGS}}, known


def convolutions(padding, dtype):
    """Return the equations of the gradient of a convolution with respect to both operands."""
    random = np.random.default_rng(3)
    x, kernels = (random.standard_normal(shape).astype(dtype) for shape in ((24, 16, 16, 5), (3, 3, 5, 8)))
    return equations_of(grad(lambda x, k: np.sum(nn.conv2d(x, k, padding=padding) ** 2), (0, 1)), x, kernels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("padding", PADDINGS)
def test_what_a_convolution_takes(padding, dtype):
    """What NumPy takes for a moment is within what is planned for it, and not far below."""
    found, known = convolutions(padding, dtype)
    assert set(found) == set(CONVOLUTIONS)
    for name, equation in found.items():
        peak, planned = peak_bytes(lambda e=equation: compute(e, known)), moment_of(equation)
        assert peak <= equation.output.type.nbytes + planned + OBJECTS, name
        assert planned <= 1.5 * (peak - equation.output.type.nbytes) + 65536, name


def test_how_much_work_a_convolution_is():
    """Each of its three forms is a product for each element of a result and each of a kernel that it has."""
    for equation in convolutions(0, np.float64)[0].values():
        assert multiplications_of(equation) == 24 * (14 * 14) * (3 * 3 * 5 * 8)


def test_memory_of_a_convolution_is_a_value():
    """Memory comes before the convolution, which has it as its last operand and computes the same."""
    found, known = convolutions("same", np.float64)
    for equation in found.values():
        memory, taking = with_scratch(equation)
        assert taking.arguments == (*equation.arguments, memory.output)
        assert memory.output.type.nbytes <= moment_of(equation)
        known[memory.output] = compute(memory, known)
        assert known[memory.output].nbytes == memory.output.type.nbytes
        assert np.array_equal(compute(taking, known), compute(equation, known))
        assert multiplications_of(taking) == multiplications_of(equation)


@pytest.mark.parametrize("window", [2, (3, 1), (1, 2)], ids=str)
def test_what_windows_take(window):
    """The largest, their places and what goes back to them take no more than is planned for them."""
    x = np.random.default_rng(4).standard_normal((16, 24, 24, 6))
    found, known = equations_of(grad(lambda x: np.sum(nn.max_pool2d(x, window) ** 2)), x)
    assert set(found) <= set(POOLINGS)
    assert len(found) >= 2
    for name, equation in found.items():
        peak = peak_bytes(lambda e=equation: compute(e, known))
        assert peak <= equation.output.type.nbytes + moment_of(equation) + OBJECTS, name


def conv2d(x):
    """Return something else than ours of the same name."""
    return 2 * x


def test_functions_of_the_same_name_are_none_of_ours():
    """A user's function that is called as one of ours is another one."""
    (equation,) = trace(np.sin, np.ones(3)).equations
    other = type(equation)(None, conv2d, "conv2d", *[
        getattr(equation, name) for name in ("arguments", "params", "output", "where", "errors")
    ])  # fmt: skip
    assert (moment_of(other), multiplications_of(other), with_scratch(other)) == (None, None, None)
    assert (moment_of(equation), multiplications_of(equation), with_scratch(equation)) == (None, None, None)
