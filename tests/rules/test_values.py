"""Every function with a rule: its value is NumPy's, and its derivatives are right."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import optree
import pytest

from ebbtide import jvp, vjp
from ebbtide.arrays.registry import HANDLERS
from ebbtide.testing import check_grads

from .examples import EXAMPLES, INTERNAL, M, callable_of, cases, label, name_of

DTYPES = (np.float64, np.float32, np.complex128, np.complex64)


def bits_of(value: Any) -> Any:
    """Return what identifies a value to the last bit; of what is no array, the value itself."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, value.tobytes()
    return type(value), value


def test_every_function_has_examples():
    """Every function of the registry is swept over by these tests, and no other."""
    assert {name_of(key) for key in HANDLERS.keys() - INTERNAL} == {name_of(key) for key in EXAMPLES}
    assert not INTERNAL & EXAMPLES.keys()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("case", cases(), ids=label)
def test_value_is_numpys(case, dtype):
    """A function gives the same bits whether a derivative is taken or not, in both modes."""
    key, example = case
    if np.dtype(dtype).kind == "c" and not example.complex:
        dtype = np.float16  # NumPy has no complex numbers here
    function = callable_of(key)
    operands = example.operands(dtype)
    before = [np.array(x) for x in operands]
    expected = [bits_of(x) for x in optree.tree_leaves(example.call(function, operands))]
    reverse = vjp(lambda *xs: example.call(function, list(xs)), *operands)[0]
    forward = jvp(lambda *xs: example.call(function, list(xs)), operands, [np.ones_like(x) for x in operands])[0]
    assert [bits_of(x) for x in optree.tree_leaves(reverse)] == expected
    assert [bits_of(x) for x in optree.tree_leaves(forward)] == expected
    assert [bits_of(np.array(x)) for x in operands] == [bits_of(x) for x in before]


@pytest.mark.parametrize("exponent", [2, 0.5, -1, 0, 1, 3, 2.5, -2])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_power_operator(dtype, exponent):
    """`x ** n` with a number gives the bits of NumPy's operator, which has short ways for some exponents."""
    x = (np.abs(M) + (0.1j if np.dtype(dtype).kind == "c" else 0)).astype(dtype)
    value = vjp(lambda x: operator.pow(x, exponent), x)[0]
    assert bits_of(value) == bits_of(x**exponent)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=["float64", "complex128"])
@pytest.mark.parametrize("case", cases(smooth=True), ids=label)
def test_derivatives(case, dtype):
    """Derivatives of first and second order in both modes are those of finite differences, in the operands' dtype."""
    key, example = case
    if np.dtype(dtype).kind == "c" and not example.complex:
        dtype = np.float32  # NumPy has no complex numbers here
    function = callable_of(key)
    check_grads(lambda *xs: example.call(function, list(xs)), *example.operands(dtype))


@pytest.mark.parametrize("case", cases(smooth=True), ids=label)
def test_derivatives_in_single_precision(case):
    """In single precision, too, derivatives are right and stay in single precision."""
    key, example = case
    function = callable_of(key)
    check_grads(lambda *xs: example.call(function, list(xs)), *example.operands(np.float32), order=1)
