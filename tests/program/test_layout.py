"""How values lie: as NumPy puts them, so that sums along memory have NumPy's bits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.campaign.dags import make_dag
from tests.program.test_tracing import bits, functions_of, traced
from tests.rules.examples import label, typed_cases
from tests.scale import sample

from ebbtide import grad, jit, nn, stop_gradient, trace, value_and_grad
from ebbtide.program.evaluate import compute, evaluate
from ebbtide.program.layout import find_layout
from ebbtide.scipy import signal


def differences(program, inputs):
    """The equations whose results lie otherwise than the layout has it; axes of one element lie anyhow."""
    layout = find_layout(program, [np.asarray(x).strides for x in inputs])
    known, found = dict(zip(program.inputs, inputs, strict=True)), []
    for equation in program.equations:
        value = known[equation.output] = compute(equation, known)
        value = np.asarray(value)
        assert (value.shape, value.dtype) == (equation.output.type.shape, equation.output.type.dtype)
        sides = zip(layout.strides[equation.output], value.strides, value.shape, strict=True)
        if value.size and any(n > 1 and one != other for one, other, n in sides):
            found.append(equation.name)
    return found


def turned(operands, way):
    """The same operands, of which those with two axes and more lie otherwise."""
    if way == "C":
        return operands
    if way == "F":
        return [np.asarray(x, order="F") for x in operands]
    return [np.asarray(x)[tuple([slice(None, None, -1)] * np.ndim(x))] for x in operands]


@pytest.mark.parametrize("way", ["C", "F", "reversed"])
@pytest.mark.parametrize("case", sample(typed_cases(np.float64, np.complex64), 12), ids=label)
def test_every_rule(case, way):
    """The results of each function and its pullback have the type and lie as the program says, whatever it is given."""
    key, example, dtype = case
    operands = turned(example.operands(dtype), way)
    for f in functions_of(key, example):
        try:
            program = traced(f, operands)
        except (ValueError, IndexError):
            return  # the example is about the values that are turned round
        if program is None or any(isinstance(output, np.dtype) for output in program.outputs):
            return
        try:
            with np.errstate(all="ignore"):
                found = differences(program, operands)
        except np.linalg.LinAlgError:
            return  # turned round, the matrix is not positive definite any more
        # Which way a sum over several products goes, and so how it lies, depends on the sizes.
        assert found == [] or key is np.einsum


@pytest.mark.parametrize("seed", range(30))
def test_random_functions(seed):
    """So do the values of random functions and their gradients."""
    f, arguments = make_dag(seed)
    g = value_and_grad(f, (0, 1, 2), has_aux=True)
    program = trace(g, *arguments)
    assert differences(program, arguments) == []


ROWS = np.array([3, 1, 2, 7])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[:, ROWS], lambda x: x.T[ROWS], lambda x: x.T[:, ROWS], lambda x: x[ROWS[:, None], ROWS],
        lambda x: x[None, :, ROWS],
        lambda x: np.where(x.T > 0, x.T, 1.0), lambda x: np.cumsum(x.T, axis=0),
        lambda x: np.copy(x.T), lambda x: np.roll(x.T, 1, axis=0), lambda x: np.concatenate([x.T, x.T]),
        lambda x: np.pad(x.T, 1), lambda x: x.T.astype(np.float32),
        lambda x: np.reshape(x, (41, 31), order="F"), lambda x: x.T[::-1][None], lambda x: x.T[:, ::2] + 1.0,
    ],
)  # fmt: skip
def test_bits_of_sums(f):
    """A sum of what lies across has the bits of NumPy."""
    x = np.random.default_rng(3).standard_normal((31, 41)) * np.logspace(-8, 1, 41)

    def g(x):
        y = np.sin(f(x)) * 0.1 + 0.3
        return np.sum(y), np.sum(y, axis=0), np.mean(y, axis=-1)

    assert bits(jit(g)(x)) == bits(g(x))


def copied_elements(x):
    """An element is a number, which later writes do not change."""
    u = np.copy(x)
    element = u[0, 1]
    u[0, 1] = 5.0
    return element * u


def copied_by_reshape(x):
    """The elements of a transposed array in a row are a copy."""
    u = np.copy(x)
    row = u.T.reshape(-1)
    u[0, 0] = 5.0
    row[1] = 7.0
    return u * np.sum(row) + u[0]


def viewed_by_reshape(x):
    """Those of an array in its own order are a view; which array that is depends on how the argument lies."""
    u = np.copy(x)
    row = u.reshape(-1)
    row[1] = 7.0
    u[1, 1] = 5.0
    return u * np.sum(row * row[::-1])


@pytest.mark.parametrize("f", [copied_elements, copied_by_reshape, viewed_by_reshape], ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", ["C", "F", "reversed"])
def test_what_is_a_view(f, way):
    """What NumPy copies is a copy in a program, what is a view takes part in writes: values and gradients are right."""
    (x,) = turned([np.arange(6.0).reshape(2, 3) + 1], way)
    slope = grad(lambda x: np.sum(f(x) ** 2))
    np.testing.assert_array_equal(jit(f)(x), f(x))
    np.testing.assert_allclose(jit(slope)(x), slope(x), rtol=1e-14)
    np.testing.assert_allclose(trace_and_run(grad(jit(lambda x: np.sum(f(x) ** 2))), x), slope(x), rtol=1e-14)


def trace_and_run(f, x):
    """What the program of a function gives."""
    return evaluate(trace(f, x), [x])[0]


def test_windows_of_several_elements():
    """A window that leaves one element, or none, of the few by which a layout is tried: bits are those of the call."""
    x = np.asarray(np.random.default_rng(4).standard_normal((5, 12, 9, 3)), order="F")
    for window, strides in ((2, 2), (3, 1), ((5, 2), 2)):
        def f(x, window=window, strides=strides):
            y = np.sin(nn.max_pool2d(x, window, strides)) * 0.3
            return np.sum(y), np.sum(y, axis=0), np.sum(y, axis=(1, 2))

        for executor in ("reference", "machine"):
            assert bits(jit(f, executor=executor)(x)) == bits(f(x))


def test_an_index_without_axes():
    """It makes a copy, also of an array that lies backwards."""
    x = np.random.default_rng(4).standard_normal((31, 41, 7))[::-1, ::-1, ::-1]

    def f(x):
        y = x[:, :, np.array(-2)] * 1.5
        return np.sum(y), np.sum(y, axis=0), np.sum(y, axis=1)

    for executor in ("reference", "machine"):
        assert bits(jit(f, executor=executor)(x)) == bits(f(x))


def test_the_smaller_matrix_first():
    """SciPy gives a correlation backwards in memory then; ours is in order, in programs as without."""
    random = np.random.default_rng(4)
    small, large = random.standard_normal((3, 4)), random.standard_normal((30, 41))

    def f(x, y):
        z = signal.correlate2d(x, y, "valid") * 1.5
        return np.sum(z), np.sum(z, axis=0), np.sum(z, axis=1)

    assert min(traced_value(small, large).strides) > 0
    for executor in ("reference", "machine"):
        assert bits(jit(f, executor=executor)(small, large)) == bits(f(small, large))


def traced_value(x, y):
    """What the operation of the library gives, as it does in a gradient."""
    seen = []

    def f(x):
        z = signal.correlate2d(x, y, "valid")
        seen.append(np.asarray(stop_gradient(z)))
        return np.sum(z)

    grad(f)(x)
    return seen[0]
