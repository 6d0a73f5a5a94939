"""Index arrays and masks among the arguments of a jitted function: one program for all of their values."""

from __future__ import annotations

import numpy as np
import pytest
from tests.program.test_tracing import bits

from ebbtide import TraceError, grad, hvp, jit, jvp, value_and_grad

X = np.random.default_rng(0).standard_normal((5, 4))
K, J = np.array([3, 1, 1, -2]), np.array([0, 2, 2, 3])


def written(x, index, value):
    """A copy of x with a value at an index."""
    u = np.copy(x)
    u[index] = value
    return u


def added(x, i):
    """A copy of x with one more at an index, read and written."""
    u = np.copy(x)
    u[i] += 1.0
    return u * u


FUNCTIONS = {
    "rows": lambda x, i, j: x[i],
    "columns": lambda x, i, j: x[:, i],
    "transposed": lambda x, i, j: x.T[j] * 2.0,
    "pairs": lambda x, i, j: x[i, j],
    "table": lambda x, i, j: x[i[:, None], j],
    "take": lambda x, i, j: np.take(x, i, axis=1),
    "take along": lambda x, i, j: np.take_along_axis(x, i[None, :] % 5, axis=0),
    "element": lambda x, i, j: x[i[0], j[1]] * x,
    "computed": lambda x, i, j: x[(i + j) % 5],
    "sorted": lambda x, i, j: x[np.argsort(x[:, 0])][i],
    "written": lambda x, i, j: written(x, i, np.cos(x[j])),
    "written alike": lambda x, i, j: written(x, (i, j), 0.5),
    "written columns": lambda x, i, j: written(x, (slice(None), j), x[:, i]),
    "added": lambda x, i, j: added(x, i),
    "counted": lambda x, i, j: np.copy(j)[i] * x[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_index_arrays(name, order):
    """Reading and writing by index arrays, with gradients, tangents and Hessian products: bits of NumPy's indexing."""
    f = FUNCTIONS[name]
    x = np.asarray(X, order=order)
    slope = grad(lambda x, i, j: np.sum(np.sin(f(x, i, j)) ** 2))
    jitted, sloped = jit(f), jit(slope)
    for i, j in ((K % 4, J), (J, K % 4), (K * 0, J)):
        assert bits(jitted(x, i, j)) == bits(f(x, i, j))
        np.testing.assert_allclose(sloped(x, i, j), slope(x, i, j), rtol=1e-13, atol=1e-13)
        assert sloped(x, i, j).dtype == x.dtype
    assert jitted.reasons == sloped.reasons == []
    along = jit(lambda x, i, j: jvp(lambda x: f(x, i, j), (x,), (np.cos(x),)))
    for one, other in zip(along(x, K % 4, J), jvp(lambda x: f(x, K % 4, J), (x,), (np.cos(x),)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)

    def curved(x, i, j):
        return hvp(lambda x: np.sum(f(x, i, j) ** 3))(x, np.sin(x))

    np.testing.assert_allclose(jit(curved)(x, K % 4, J), curved(x, K % 4, J), rtol=1e-12, atol=1e-12)


def test_bounds():
    """An index beyond the end is NumPy's error, and the next run is right."""
    f = jit(lambda x, i: x[i] * 2.0)
    f(X, K)
    with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 5"):
        f(X, np.array([0, 9, 0, 0]))
    assert bits(f(X, J)) == bits(X[J] * 2.0)


def test_masks():
    """A mask chooses with np.where, or says where to write a number or a row: one program for all masks."""
    def f(x, mask, value, rows):
        u = written(x, mask, value)
        u[rows] = x[0]
        return np.where(mask, u, np.sin(u) * 0.5)

    slope = value_and_grad(lambda x, m, v, r: np.sum(f(x, m, v, r) ** 2), (0, 2))
    jitted, sloped = jit(f), jit(slope)
    for bound in (0.0, 0.5, 99.0):
        arguments = X, bound < X, 1.5, X[:, 0] > bound
        assert bits(jitted(*arguments)) == bits(f(*arguments))
        for one, other in zip(sloped(*arguments)[1], slope(*arguments)[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)
    assert jitted.reasons == sloped.reasons == []


@pytest.mark.parametrize(
    "f", [lambda x, m: np.sum(x[m]), lambda x, m: written(x, m, np.ones(3))], ids=["read", "write"]
)
def test_masks_whose_elements_are_counted(f):
    """How many elements a mask chooses is data: the error names the line and what to write instead."""
    mask = np.zeros((5, 4), bool)
    mask[0, :3] = True
    with pytest.raises(TraceError, match=r"test_indices.py.*np.where\(mask"):
        jit(f)(X, mask)


def test_plain_arrays_by_an_index_of_the_program():
    """NumPy does not hand over x[i] of a plain x: the error says what to do."""
    with pytest.raises(TraceError, match="make the table an argument"):
        jit(lambda i: X[i])(K)


def test_the_source_indexes():
    """The source reads as it is written, in memory that is there already."""
    text = jit(grad(lambda x, i: np.sum(np.sin(written(x, i, 1.0)[i])))).program(X, K).source
    assert "[i]" in text
    assert ".fill(0)" in text
    assert "np.add.at(" in text
    assert "ebbtide" not in text
