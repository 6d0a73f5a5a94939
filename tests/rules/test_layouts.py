"""Results lie in memory as NumPy's do, so that a reshape of one is a view where NumPy's is; new arrays are new."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide.numpy as enp
from ebbtide import grad, jit, jvp, value_and_grad, vjp, vmap

M = np.random.default_rng(0).normal(size=(4, 5))
BOX = np.random.default_rng(1).normal(size=(3, 4, 5))
GIVEN = {
    "C": M,
    "Fortran": np.asfortranarray(M),
    "backwards": np.asfortranarray(M)[::-1],
    "apart": np.asfortranarray(M)[::2],
    "box": np.asfortranarray(BOX),
    "turned box": BOX.transpose(2, 0, 1),
}
PLACED = {
    "sort": np.sort,
    "sort rows": lambda x: np.sort(x, 0),
    "sort complex": np.sort_complex,
    "partition": lambda x: np.partition(x, 1, 0),
    "insert": lambda x: np.insert(x, 1, 2.0, 0),
    "insert several": lambda x: np.insert(x, [0, 2], 2.0, 1),
    "delete": lambda x: np.delete(x, 1, 0),
    "delete a slice": lambda x: np.delete(x, slice(0, 2), 1),
    "delete several": lambda x: np.delete(x, [0, 1], 1),
    "select": lambda x: np.select([x > 0, x < -1], [x, 2 * x]),
    "quantiles": lambda x: np.quantile(x, [0.2, 0.3], 0),
    "meshgrid": lambda x: np.meshgrid(x[0].ravel(), x[:, 0].ravel())[0],
    "angle": np.angle,
    "take": lambda x: np.take(x, [0, 1], 0),
    "take one": lambda x: np.take(x, 1, -1),
    "repeat": lambda x: np.repeat(x, 2, 0),
    "tile": lambda x: np.tile(x, (2, 1)),
    "pad": lambda x: np.pad(x, 1, mode="edge"),
    "cumulative_sum": lambda x: np.cumulative_sum(x, axis=0, include_initial=True),
    "array of arrays": lambda x: enp.array([x, x]),
}
ONLY_EAGER = {
    "choose": lambda x: np.choose([[0, 1, 0, 1, 0]], [x, 2 * x]) if x.shape[-1] == 5 else x,
    "piecewise": lambda x: np.piecewise(x, [np.ones(x.shape, bool)], [lambda v: 2 * v]),
    "matrix_power": lambda x: np.linalg.matrix_power(x[..., :2, :2], 0) + 0 * x[..., :2, :2],
}


def memory(x):
    """Return dtype, bytes and the strides of axes of several elements."""
    return x.dtype, x.tobytes(), [step for step, n in zip(x.strides, x.shape, strict=True) if n > 1]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", [*PLACED, *ONLY_EAGER])
def test_results_lie_as_in_numpy(name, given):
    """The result of a function on arrays in several orders has NumPy's strides, on tapes, in tangents and programs."""
    function, x = {**PLACED, **ONLY_EAGER}[name], GIVEN[given]
    expected = memory(function(x))
    assert memory(vjp(function, x)[0]) == expected
    assert memory(jvp(function, (x,), (x,))[0]) == expected
    if name in PLACED:
        for executor in ("reference", "machine"):
            assert memory(jit(function, executor=executor)(x)) == expected
    loss = lambda x: np.sum(np.sin(np.real(function(x))))
    assert np.allclose(grad(loss)(x), grad(loss)(np.ascontiguousarray(x)))


STARTS = {"product": lambda x: x * 1.0, "copy": np.copy, "full_like": lambda x: np.full_like(x, 2.0)}
WRITES = {
    "flat": lambda y, x: y.flat.__setitem__(slice(1, None), np.ravel(x)[:3]),
    "rows": lambda y, x: y.__setitem__((..., 0), y[..., 0] + x[..., 1]),
    "nothing": lambda y, x: None,
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_lies_as_it_did(start, write, given):
    """After a write by `x.flat` an array was in C order, and others in programs: reshapes were views of it, or none."""
    x = GIVEN[given]

    def f(x):
        y = STARTS[start](x)
        WRITES[write](y, x)
        np.reshape(y.T, -1)[3] = x[(0,) * x.ndim]
        np.reshape(y, -1)[4] = x[(1,) * x.ndim]
        return y

    expected = f(x).tolist()
    assert vjp(f, x)[0].tolist() == jvp(f, (x,), (x,))[0].tolist() == expected
    for executor in ("reference", "machine"):
        assert jit(f, executor=executor)(x).tolist() == expected


BIG_ENDIAN = {
    "nan_to_num": np.nan_to_num,
    "ediff1d": lambda x: np.ediff1d(x, 1.0, 2.0),
    "pad with means": lambda x: np.pad(x, 1, "mean"),
    "pad with ramps": lambda x: np.pad(x, 2, "linear_ramp", end_values=1.5),
    "sort": np.sort,
}


@pytest.mark.parametrize("function", BIG_ENDIAN.values(), ids=BIG_ENDIAN)
def test_orders_of_bytes(function):
    """What NumPy gives in the order of bytes of its operand has that order."""
    x = M.astype(">f8")
    expected = function(x)
    assert expected.dtype == x.dtype
    for found in (vjp(function, x)[0], jvp(function, (x,), (x,))[0], jit(function)(x)):
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
    assert np.allclose(grad(lambda x: np.sum(function(x) ** 2))(x), grad(lambda x: np.sum(function(x) ** 2))(M))


COPIES = {
    "clip": lambda y: np.clip(y, None, None),
    "choose": lambda y: np.choose(0, [y]),
    "tile": lambda y: np.tile(y, 1),
    "tile with an axis": lambda y: np.tile(y, (np.int64(1), 1, 1)),
    "pad": lambda y: np.pad(y, 0, mode="edge"),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_new_arrays(copied):
    """What is written into the result of a function that leaves all as it is, is not written into its operand."""

    def f(x):
        y = x * 1.0
        z = copied(y)
        z *= 2
        return np.sum(y * y) + np.sum(z)

    assert f(M) == value_and_grad(f)(M)[0] == jit(f)(M) == vmap(f)(M[None])[0]
    assert np.allclose(grad(f)(M), 2 * M + 2)


def test_members_of_a_batch_lie_as_they_do_alone():
    """An array that is filled in Fortran order lies so for each member, so that a reshape of it is a copy."""

    def f(x):
        y = np.insert(x, 1, 2.0, 0)
        np.reshape(y, -1)[0] = 7.0
        np.reshape(y.T, -1)[1] = 9.0
        return y

    x = np.asfortranarray(M)
    both = np.asfortranarray(np.stack([x, 2 * x], -1)).transpose(2, 0, 1)
    assert np.array_equal(vmap(f)(both), [f(x), f(2 * x)])
    assert np.array_equal(jit(vmap(f))(both), [f(x), f(2 * x)])


def test_members_of_no_batch():
    """A batch without members may write into what is the same for all."""
    assert vmap(lambda x: np.insert(x, 1, 2.0))(np.zeros((0, 3))).shape == (0, 4)
