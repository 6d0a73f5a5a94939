"""Keywords of ufuncs and reductions that the examples do not have: what NumPy casts, refuses, and begins with."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest

from ebbtide import grad, jit, vjp, vmap
from ebbtide.testing import check_grads

from .example import M, T, between, name_of
from .examples import EXAMPLES


def takes_out(key):
    """Return whether a function of NumPy that is no ufunc has a parameter out."""
    try:
        is_numpys = getattr(key, "__module__", "").startswith("numpy") and not isinstance(key, np.ufunc)
        return is_numpys and "out" in inspect.signature(key).parameters
    except ValueError:  # of functions in C
        return False



# Functions that are no ufuncs and take out=, with a call of each; ufuncs have the same way to write, see test_in_place.
WITH_OUT = sorted([(key, example) for key, some in EXAMPLES.items() for example in some[:1] if takes_out(key)], key=str)
MASK = np.arange(12).reshape(3, 4) % 3 > 0


@pytest.mark.parametrize("case", WITH_OUT, ids=lambda case: name_of(case[0]))
def test_out(case):
    """Each function writes what it returns into out=, which it returns, and the derivative is the same."""
    function, example = case
    operands = example.operands(np.float64)
    plain = np.asarray(example.call(function, operands))

    def into(*xs):
        out = np.zeros_like(xs[0], plain.dtype, shape=plain.shape)
        assert example.call(partial(function, out=out), list(xs)) is out
        return out

    value, pullback = vjp(into, *operands)
    assert value.tobytes() == plain.tobytes()
    expected = vjp(lambda *xs: example.call(function, list(xs)), *operands)[1](value)
    for one, other in zip(pullback(value), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.multiply(x, 2, dtype=np.float64),
        lambda x: np.exp(x.astype(np.float64), dtype=np.float32, casting="same_kind"),
        lambda x: np.modf(x, signature=(None, np.float64, np.float64))[0],
        lambda x: np.hypot(x, [0.5, 1.0, 1.5, 2.0], dtype=np.float64, order="F"),
        lambda x: np.logaddexp(x, 0.5, sig="dd->d"),
        lambda x: np.absolute(x + 0.5j, dtype=np.float32),
        lambda x: np.vecdot(x, x[::-1], axis=0, dtype=np.complex64),
    ],
)
def test_dtypes_of_ufuncs(call):
    """A ufunc that is told its dtype computes in it, and the gradient has the dtype of the operand."""
    x = M.astype(np.float32)
    expected = call(x)
    value, pullback = vjp(call, x)
    assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes())
    assert (value.flags.c_contiguous, value.flags.f_contiguous) == (
        expected.flags.c_contiguous, expected.flags.f_contiguous,
    )  # fmt: skip
    assert pullback(np.ones_like(value))[0].dtype == np.float32
    np.testing.assert_array_equal(jit(call)(x), expected)
    check_grads(call, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.add(x, x, dtype=np.float32, casting="safe"),
        lambda x: np.sin(x, dtype=np.int64),
        lambda x: np.multiply(x, 1j, dtype=np.float64),
        lambda x: np.vecdot(x, x, axis=5),
        lambda x: np.matmul(x, x.T, axis=0),
        lambda x: np.einsum("ij->j", x, dtype=np.float32),
        lambda x: np.sum(x, initial=x[0]),
    ],
)
def test_refused_as_in_numpy(call):
    """What NumPy does not cast, or has no axis for, is an error of NumPy's kind."""
    with pytest.raises((TypeError, ValueError)) as expected:
        call(M)
    with pytest.raises((TypeError, ValueError)) as found:
        vjp(call, M)
    assert isinstance(found.value, (TypeError if isinstance(expected.value, TypeError) else ValueError,))


@pytest.mark.parametrize(
    "reduce",
    [np.sum, np.prod, np.nansum, np.nanprod, np.max, np.min, np.nanmax, np.add.reduce, np.multiply.reduce,
     np.maximum.reduce, np.logaddexp.reduce, np.hypot.reduce],
)  # fmt: skip
def test_initial_values_have_derivatives(reduce):
    """A traced number that a reduction begins with has its derivative, in batches and programs too."""

    def f(x, initial):
        return reduce(x, axis=1, initial=initial, where=MASK)

    initial = np.float64(0.77)
    np.testing.assert_allclose(vjp(f, M, initial)[0], f(M, initial), rtol=1e-15)
    check_grads(f, M, initial)
    def slope(x, i):
        return grad(lambda x, i: np.sum(reduce(x, axis=0, initial=i)), argnums=(0, 1))(x, i)[1]

    assert slope(M.astype(np.float32), np.float32(0.5)).dtype == np.float32
    assert slope(M.astype(np.float32), np.float64(0.5)).dtype == np.float64
    slopes = vmap(slope, (None, 0))(M, np.array([0.5, 0.77]))
    np.testing.assert_allclose(slopes[1], slope(M, initial), rtol=1e-14)
    np.testing.assert_allclose(jit(f)(M, initial), f(M, initial), rtol=1e-15)


def test_cores_along_other_axes():
    """Vectors and matrices of `matmul`, `vecdot`, `matvec` and `vecmat` may lie along any axes."""
    x, y, v = between(-2, 2, 3, 4, 2), between(-2, 2, 4, 5, 2), between(-2, 2, 4, 2)
    for f, operands in (
        (lambda x, y: np.matmul(x, y, axes=[(0, 1), (0, 1), (0, 1)]), (x, y)),
        (lambda x, y: np.matmul(x, y, axes=[(0, 1), (0,), (1,)]), (x, y[:, 0, 0])),
        (lambda x, y: np.matvec(x, y, axes=[(0, 1), 0, 1]), (x, v)),
        (lambda x, y: np.vecmat(y, x, axes=[(0,), (1, 0), (1,)]), (x, v)),
        (lambda x, y: np.vecdot(x, y, axes=[1, 0, ()]), (x[0].T, v)),
        (lambda x, y: np.vecdot(x, y, keepdims=True), (T, T + 1)),
    ):
        expected = f(*operands)
        np.testing.assert_array_equal(vjp(f, *operands)[0], expected)
        check_grads(f, *operands)
