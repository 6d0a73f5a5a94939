"""Arguments that are more than arrays of numbers: read as such where that is all, else refused with what to write."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import TraceError, grad, jit, vmap

X = np.array([1.0, 2.0, 3.0])
OBJECTS = np.array([1.0, 2.0, 3.0], dtype=object)
MASKED = np.ma.masked_array(X, [False, True, False])


def f(x):
    """Return a sum of squares."""
    return np.sum(x * x)


@pytest.mark.parametrize("executor", ["reference", "machine"])
def test_arrays_in_files(executor, tmp_path):
    """An array in a file is read like any other, again when its elements are others, and written by nobody."""
    stored = np.memmap(tmp_path / "x", float, "w+", shape=(3,))
    stored[:] = X
    jitted = jit(f, executor=executor)
    assert jitted(stored) == jitted(X) == 14
    assert jit(lambda tree: f(tree["x"]), executor=executor)({"x": stored}) == 14
    assert jit(grad(f), executor=executor)(stored).tolist() == grad(jitted)(stored).tolist() == [2.0, 4.0, 6.0]
    stored[0] = 2.0
    assert jitted(stored) == 17
    assert stored.tolist() == [2.0, 2.0, 3.0]


def test_arrays_of_objects():
    """Arrays of Python's objects are refused, as arguments and by closure."""
    with pytest.raises(TraceError, match=r"x is an array of the type object .* Write x\.astype\(float\)"):
        jit(f)(OBJECTS)
    with pytest.raises(TraceError, match=r"An operand is an array of the type object"):
        jit(lambda x: np.sum(x * OBJECTS))(X)
    assert jit(f)(OBJECTS.astype(float)) == 14


def test_masked_arrays():
    """A mask is not followed, so that a masked array is refused wherever its numbers would be those of all elements."""
    with pytest.raises(TraceError, match=r"argument 0.*: it is a masked array, whose mask would be lost"):
        grad(f)(MASKED)
    with pytest.raises(TraceError, match="members from argument 0: it is a masked array"):
        vmap(f)(MASKED[None])
    with pytest.raises(TraceError, match=r"one of its arguments: it is a masked array, .* x\.filled\(0"):
        jit(f)(MASKED)
    with pytest.raises(TraceError, match=r"with this operand at .* it is a masked array, .* x\.filled\(0"):
        jit(lambda x: np.sum(x * MASKED))(X)


def test_what_cannot_be_compared():
    """What is no array has to be hashable."""
    with pytest.raises(TraceError, match=r"given a set, .* has to be hashable"):
        jit(lambda x, names: x)(X, {"a"})
