"""Every function with a rule: its value is NumPy's, and its derivatives are right."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import optree
import pytest
from scipy import special
from tests.scale import FULL, sample_of_each

from ebbtide import jit, jvp, vjp
from ebbtide.arrays.registry import HANDLERS
from ebbtide.scipy.special import logsumexp
from ebbtide.testing import check_grads

from .example import M, callable_of, name_of
from .examples import EXAMPLES, INTERNAL, NN, WRAPPED, label, typed_cases

NO_OUTPUTS = (bool, int, str, np.dtype)  # what functions return beside arrays; no outputs of a vjp
DTYPES = (np.float64, np.float32, np.complex128, np.complex64)


def bits_of(value: Any) -> Any:
    """Return what identifies a value to the last bit; of what is no array, the value itself."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, value.tobytes()
    return type(value), value


def test_every_function_has_examples():
    """Every function of the registry is swept over by these tests, and no other."""
    of_numpy = EXAMPLES.keys() - WRAPPED - NN.keys()
    assert {name_of(key) for key in HANDLERS.keys() - INTERNAL} == {name_of(key) for key in of_numpy}
    assert not INTERNAL & EXAMPLES.keys()


@pytest.mark.parametrize("function", WRAPPED, ids=name_of)
def test_plain_values_are_the_originals(function):
    """A function of `ebbtide.numpy` or `ebbtide.scipy` gives on plain arrays the bits of the original."""
    for example in WRAPPED[function]:
        operands = example.operands(np.float64)
        found, expected = [optree.tree_leaves(example.call(f, operands)) for f in (function, function.__wrapped__)]
        assert [bits_of(x) for x in found] == [bits_of(x) for x in expected]


@pytest.mark.parametrize("case", sample_of_each(typed_cases(*DTYPES), 10), ids=label)
def test_value_is_numpys(case):
    """A function gives the same bits whether a derivative is taken or not, in both modes, and changes no operand."""
    key, example, dtype = case
    function = callable_of(key)
    operands = example.operands(dtype)
    before = [np.array(x) for x in operands]
    expected = [bits_of(x) for x in optree.tree_leaves(example.call(function, operands))]
    others: list[Any] = []

    def run(*xs):
        leaves = optree.tree_leaves(example.call(function, list(xs)))
        others.extend(x for x in leaves if isinstance(x, NO_OUTPUTS))
        return [x for x in leaves if not isinstance(x, NO_OUTPUTS)]

    reverse = vjp(run, *operands)[0]
    assert [bits_of(x) for x in reverse + others] == expected
    others.clear()
    forward = jvp(run, operands, [np.ones_like(x) for x in operands])[0]
    assert [bits_of(x) for x in forward + others] == expected
    assert [bits_of(np.array(x)) for x in operands] == [bits_of(x) for x in before]


LAYOUTS = {
    "backwards": lambda x: x[..., ::-1],
    "strided": lambda x: x[..., ::2],
    "rows backwards": lambda x: x[::-1],
    "transposed": lambda x: x.T,
    "broadcast": lambda x: np.broadcast_to(x[..., :1], x.shape),
}
SUMS = {
    "dot": np.dot,
    "inner": lambda x, y: np.inner(x, y.T),
    "tensordot": lambda x, y: np.tensordot(x, y, 1),
    "multi_dot": lambda x, y: np.linalg.multi_dot([x, y, x] if x.ndim == 2 else [x, y]),
    "outer": np.outer,
    "vdot": np.vdot,
    "matmul": np.matmul,
    "norm": lambda x, y: np.linalg.norm(x) * np.linalg.norm(y),
    "dot of ravel": lambda x, y: np.dot(x.ravel(), y.ravel()),
}


@pytest.mark.parametrize("dtype", [np.float64, np.complex64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_views_are_numpys(name, layout, ndim, dtype):
    """A sum over a view that BLAS cannot read as it lies has NumPy's bits too: steps that run again are compared."""
    function, view = SUMS[name], LAYOUTS[layout]
    rng = np.random.default_rng(3)
    # An outer product is no sum, and of two matrices of this size it takes 110 MB.
    size = 17 if name == "outer" and not FULL else 61
    base = [rng.standard_normal((size,) * ndim).astype(dtype) for _ in range(2)]

    def run(x, y):
        x, y = view(x), view(y)
        y = y.T if ndim == 2 else y
        return function(x, y)

    expected = bits_of(run(*base))
    assert bits_of(vjp(run, *base)[0]) == expected
    assert bits_of(jvp(run, base, base)[0]) == expected


@pytest.mark.parametrize("exponent", [2, 0.5, -1, 0, 1, 3, 2.5, -2])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_power_operator(dtype, exponent):
    """`x ** n` with a number gives the bits of NumPy's operator, which has short ways for some exponents."""
    x = (np.abs(M) + (0.1j if np.dtype(dtype).kind == "c" else 0)).astype(dtype)
    value = vjp(lambda x: operator.pow(x, exponent), x)[0]
    assert bits_of(value) == bits_of(x**exponent)


NUMBERS = {
    "norm": np.linalg.norm,
    "norm of order 3": lambda v: np.linalg.norm(v, 3),
    "largest": np.max,
    "largest of some": lambda v: np.max(v, initial=0.1, where=v > 0.2),
    "deviation": np.std,
    "product": np.prod,
    "sum of some": lambda v: np.sum(v, where=v > 0.2),
    "sum without nan": np.nansum,
    "median": np.median,
    "quantile": lambda v: np.quantile(v, 0.3),
    "reduction": np.hypot.reduce,
    "logarithm of a determinant": lambda v: np.linalg.slogdet(np.outer(v, v) + np.eye(4))[1],
    "condition": lambda v: np.linalg.cond(np.outer(v, v) + np.eye(4)),
    "number for nan": lambda v: np.nan_to_num(v[0]),
    "choice": lambda v: np.choose(1, [v[0], v[1]]),
    "logarithm of a sum": lambda v: logsumexp(v) if type(v) is not np.ndarray else special.logsumexp(v),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_powers_of_numbers(name):
    """What NumPy's functions return without axes is a number, whose powers are those of the C library."""
    power = lambda v: NUMBERS[name](v) ** 1.7
    compiled = jit(power)
    for v in np.random.default_rng(0).random((100, 4)) + 0.1:
        expected = bits_of(power(v))
        assert bits_of(vjp(power, v)[0]) == expected
        assert bits_of(jvp(power, (v,), (v,))[0]) == expected
        assert bits_of(compiled(v)) == expected


def test_norms_with_an_axis_of_one_element():
    """A norm has NumPy's bits also where an axis of one element has the stride 0."""
    for x in np.random.default_rng(1).standard_normal((20, 12, 17)):
        norm = lambda x: np.linalg.norm(np.swapaxes(x[None], 0, 2))
        assert vjp(norm, x)[0] == norm(x)


@pytest.mark.parametrize("of", [lambda x: x, np.array, lambda x: np.array([x])], ids=["scalar", "0-d", "1-d"])
@pytest.mark.parametrize("function", [np.multiply, operator.mul], ids=lambda function: function.__name__)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128], ids=lambda dtype: dtype.__name__)
def test_products_of_one_element(dtype, function, of):
    """With AVX-512 NumPy has two: that of its operator on scalars and that of its function on arrays."""
    for x, y in (np.random.default_rng(5).standard_normal((100, 2, 2)) @ [1, 1j]).astype(dtype):
        a, b = of(x), of(y)
        results = [np.multiply(a, b), np.reshape(x * y, np.shape(a))]
        found = [vjp(function, a, b)[0], jvp(function, (a, b), (a, b))[0], jit(function)(a, b)]
        assert {bits_of(one)[2] for one in found} <= {bits_of(one)[2] for one in results}
        assert {bits_of(one)[:2] for one in found} == {bits_of(results[0])[:2]}


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64, np.complex128, smooth=True), 5), ids=label)
def test_derivatives(case):
    """Derivatives of first and second order in both modes are those of finite differences, in the operands' dtype."""
    key, example, dtype = case
    function = callable_of(key)
    check_grads(lambda *xs: example.call(function, list(xs)), *example.operands(dtype))


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float32, np.complex64, smooth=True), 15), ids=label)
def test_derivatives_in_single_precision(case):
    """In single precision, too, derivatives to second order are right and stay in single precision."""
    key, example, dtype = case
    function = callable_of(key)
    check_grads(lambda *xs: example.call(function, list(xs)), *example.operands(dtype))
