"""`ebbtide.numpy`: what NumPy's dispatch does not reach, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide.numpy as enp
from ebbtide import TraceError, grad, jit, jvp, vjp, vmap
from ebbtide.testing import check_grads

X = np.array([0.3, -0.7, 1.9])


ORIGINALS = {
    "array": lambda x: np.array([x[0], x[1]]),
    "asarray": np.asarray,
    "asanyarray": lambda x: np.asanyarray([x[0]]),
    "asarray_chkfinite": np.asarray_chkfinite,
    "ascontiguousarray": np.ascontiguousarray,
    "asfortranarray": np.asfortranarray,
    "require": lambda x: np.require(x, float),
    "full": lambda x: np.full(3, x[0]),
    "full_like": lambda x: np.full_like(np.ones(3), x[0]),
    "arange": lambda x: np.arange(x[0], x[2]),
    "fromiter": lambda x: np.fromiter([x[0]], float),
    "r_": lambda x: np.r_[x, 1.0],
    "c_": lambda x: np.c_[x, x],
}


def test_nothing_that_numpy_does_itself():
    """A function is here only because NumPy's own cannot take traced arrays."""
    assert set(ORIGINALS) == set(enp.__all__)
    for call in ORIGINALS.values():
        with pytest.raises((TraceError, ValueError)):
            grad(lambda x, call=call: np.sum(call(x)))(X)


JOINED = {
    "rows": lambda o, x: o.r_[x, 0.5, x[:2]],
    "a slice": lambda o, x: o.r_[x[0] : x[2] : 0.5, 1:3],
    "as many numbers": lambda o, x: o.r_[x[0] : x[2] : 4j],
    "columns": lambda o, x: o.c_[x, x * 2, np.ones((3, 2))],
    "columns of matrices": lambda o, x: o.c_[x[:, None], [[1.0], [2.0], [3.0]]],
    "along an axis": lambda o, x: o.r_["-1", x[None], [[4.0]]],
    "with more axes": lambda o, x: o.r_["0,2", x, x],
    "with axes behind": lambda o, x: o.r_["1,2,0", x, x],
    "with three axes": lambda o, x: o.r_["0,3,-1", x[None], x[None]],
    "in the middle": lambda o, x: o.r_["0,3,1", x, x],
}


@pytest.mark.parametrize("joined", JOINED.values(), ids=JOINED)
def test_joined_by_index(joined):
    """`r_` and `c_` of traced and of plain parts are NumPy's, bit by bit, with the right derivative."""
    expected = joined(np, X)
    value = vjp(lambda x: joined(enp, x), X)[0]
    assert (value.shape, value.dtype, value.tobytes()) == (expected.shape, expected.dtype, expected.tobytes())
    assert joined(enp, X).tobytes() == expected.tobytes()
    check_grads(lambda x: joined(enp, x), X)


PRECISIONS = {
    "a number": lambda o, x: o.r_[x, 1.0, 2],
    "a complex number": lambda o, x: o.r_[1j, x],
    "a number of NumPy": lambda o, x: o.r_[x, np.float64(1.0)],
    "a list": lambda o, x: o.r_[x, [1.0]],
    "integers": lambda o, x: o.r_[x, 0:2],
    "numbers alone": lambda o, x: o.r_[x[0], 1.0],
    "columns": lambda o, x: o.c_[x[:1], 1.0],
    "choose": lambda o, x: np.choose([0, 1, 0], [x, 1.0]),
    "choose a complex number": lambda o, x: np.choose([0, 1, 0], [x, 1j]),
    "select": lambda o, x: np.select([[True, False, True]], [x], 2.5),
    "select a complex number": lambda o, x: np.select([[True, False, True]], [x], 1j),
}


@pytest.mark.parametrize("function", PRECISIONS.values(), ids=PRECISIONS)
def test_numbers_take_the_precision_of_arrays(function):
    """A Python number that is joined with float32, or chosen beside it, is of single precision, as it is in NumPy."""
    x = X.astype(np.float32)
    expected = function(np, x)
    f = lambda x: function(enp, x)
    for value in (vjp(f, x)[0], jit(f)(x), vmap(f)(x[None])[0], jvp(f, (x,), (x,))[0]):
        assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes())
    loss = lambda x: np.sum(np.abs(f(x)) ** 2)
    for gradient in (grad(loss)(x), jit(grad(loss))(x), grad(jit(loss))(x)):
        assert gradient.dtype == np.float32
        assert np.allclose(gradient, grad(loss)(X))


def test_a_number_that_does_not_fit_is_refused():
    """A Python number takes the dtype of the arrays beside it, where it would be another one: an error, as in NumPy."""
    few = np.array([1, 2], np.int8)
    with pytest.raises(OverflowError):
        jit(lambda n: enp.r_[n, 300])(few)
    np.testing.assert_array_equal(jit(lambda n: enp.r_[n, 30])(few), [1, 2, 30])


def test_a_choice_of_one_array_of_any_kind():
    """Its result is a new array, of booleans as of numbers."""
    chosen = jit(lambda n: np.choose(n, [np.array([True, False])], mode="clip"))(np.array([1, 0]))
    np.testing.assert_array_equal(chosen, [True, False])


def test_arrays_of_lists():
    """Nested lists of traced and plain numbers are an array, whose elements have their own derivatives."""

    def f(x):
        matrix = enp.array([[x[0], 1.0, 2], [x[1] * x[2], x[0], np.float32(3)]])
        assert matrix.dtype == np.float64
        return matrix @ x

    check_grads(f, X)
    np.testing.assert_array_equal(jit(f)(X), f(X))
    np.testing.assert_array_equal(vmap(f)(np.stack([X, X + 1])), [f(X), f(X + 1)])
    with pytest.raises(ValueError, match=r"different shapes, \[\(\), \(3,\)\]"):
        grad(lambda x: np.sum(enp.array([x, x[0]])))(X)


def test_copies_and_views():
    """`array` copies, `asarray` does not: a write into what it gives is a write into what it was given."""

    def f(x):
        x = np.copy(x)
        enp.array(x)[0] = 5.0
        enp.asarray(x)[1] = 7.0
        return x

    np.testing.assert_array_equal(vjp(f, X)[0], [X[0], 7.0, X[2]])
    assert f(X).tolist() == [X[0], 7.0, X[2]]
    filled = vjp(lambda x: enp.full((2, 3), x).T, X)[0]
    assert filled.tolist() == np.full((2, 3), X).T.tolist()


def test_memory_order():
    """`ascontiguousarray` and its kin lie as they say; what lies so already is not copied."""

    def f(x):
        matrix = np.reshape(x, (1, 3)) * np.ones((2, 1))
        assert enp.ascontiguousarray(matrix) is matrix
        assert enp.ascontiguousarray(matrix.T).flags.c_contiguous
        assert enp.asfortranarray(matrix).flags.f_contiguous
        assert enp.require(matrix, requirements=["F"]).flags.f_contiguous
        with pytest.raises(ValueError, match="infs or NaNs"):
            enp.asarray_chkfinite(x * np.inf)
        return np.sum(matrix)

    grad(f)(X)
