"""`ravel_tree`: a container as one vector, and back."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import grad, jit, jvp, ravel_tree, value_and_grad, vjp, vmap
from ebbtide.arrays.flat import Unravel
from ebbtide.errors import TraceError
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(5)


def net(dtype=np.float64):
    """Return parameters of a small net, one of them without axes and one without elements."""
    return {
        "layers": [RANDOM.standard_normal((3, 4)).astype(dtype), RANDOM.standard_normal((4, 2)).astype(dtype)],
        "scale": np.asarray(1.5, dtype), "none": np.zeros((0, 3), dtype),
    }  # fmt: skip


def loss(tree, x):
    """Return a number that depends on all parameters."""
    return np.sum(np.tanh(x @ tree["layers"][0]) @ tree["layers"][1]) * tree["scale"]


def test_leaves_are_views():
    """A vector has the leaves in order; unraveled, it is seen through them, and written through them."""
    tree = net(np.float32)
    flat, unravel = ravel_tree(tree)
    assert flat.dtype == np.float32
    assert flat.flags.c_contiguous
    made = unravel(flat)
    assert unravel.names == ["['layers'][0]", "['layers'][1]", "['none']", "['scale']"]
    for leaf, theirs in zip((*made["layers"], made["scale"]), (*tree["layers"], tree["scale"]), strict=True):
        np.testing.assert_array_equal(leaf, theirs)
        assert np.shares_memory(leaf, flat)
        assert not np.shares_memory(leaf, theirs)
    made["layers"][1][...] = 0
    made["scale"][...] = 3
    assert not flat[12:20].any()
    assert flat[-1] == 3


def test_memory_is_one_vector():
    """To ravel takes the vector and nothing else, also where leaves lie otherwise; to unravel takes nothing."""
    tree = [np.ones((300, 400)).T, np.ones((400, 250), np.float64)]
    flat, unravel = ravel_tree(tree)
    assert peak_bytes(lambda: ravel_tree(tree)) < flat.nbytes + 20_000
    assert peak_bytes(lambda: unravel(flat)) < 5_000


def test_dtypes():
    """Leaves of several dtypes make a vector of that to which NumPy promotes them, and come back in their own."""
    tree = (np.float32([1, 2]), 3, np.array([1.5]), np.array([True]))
    flat, unravel = ravel_tree(tree)
    assert flat.dtype == np.float64
    assert [leaf.dtype.char for leaf in unravel(flat)] == ["f", "l", "d", "?"]
    with pytest.raises(TypeError, match="float32, and the leaves, of several dtypes, were made one of float64"):
        unravel(flat.astype(np.float32))
    flat, unravel = ravel_tree([np.float32([1, 2])])
    assert unravel(flat.astype(np.float64))[0].dtype == np.float64  # leaves of one dtype take that of the vector
    assert ravel_tree(())[0].shape == (0,)


def test_refusals():
    """What is no array of numbers, and a vector of another length, is named."""
    with pytest.raises(TypeError, match=r"leaf \['a'\]\[1\] is of type str"):
        ravel_tree({"a": [1.0, "b"]})
    with pytest.raises(ValueError, match=r"shape \(3,\), and the container has 2 elements in 1 leaves"):
        ravel_tree([np.zeros(2)])[1](np.zeros(3))
    with pytest.raises(TraceError, match=r"leaf \['a'\]: it is a masked array, whose mask would be lost"):
        ravel_tree({"a": np.ma.masked_array([1.0, 2.0], [True, False])})


def test_derivatives():
    """Both ways can be differentiated to second order, and a gradient of a vector is that of the leaves."""
    tree, x = net(), RANDOM.standard_normal((5, 3))
    flat, unravel = ravel_tree(tree)
    check_grads(lambda flat, x: loss(unravel(flat), x), flat, x)
    check_grads(lambda a, b: ravel_tree([a, (b, a)])[0] ** 2, x, flat)
    expected = grad(loss)(tree, x)
    np.testing.assert_array_equal(grad(lambda flat: loss(unravel(flat), x))(flat), ravel_tree(expected)[0])
    tangent = jvp(lambda flat: loss(unravel(flat), x), (flat,), (flat,))[1]
    pulled = vjp(lambda flat: loss(unravel(flat), x), flat)[1](np.float64(1.0))[0]
    np.testing.assert_allclose(tangent, np.vdot(pulled, flat), rtol=1e-12)


@pytest.mark.parametrize("executor", ["reference", "machine"])
def test_programs_and_batches(executor):
    """In programs and batches it is the same: a function of the vector with the leaves' gradient, raveled again."""
    tree, x = net(), RANDOM.standard_normal((5, 3))
    flat, unravel = ravel_tree(tree)

    def slope(flat):
        value, slopes = value_and_grad(loss)(unravel(flat), x)
        return value, ravel_tree(slopes)[0]

    expected = slope(flat)
    for found, wanted in zip(jit(slope, executor=executor)(flat), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-13)
    many = np.stack([0.5 * flat, flat])
    for found, wanted in zip(jit(vmap(slope), executor=executor)(many), expected, strict=True):
        np.testing.assert_allclose(found[1], wanted, rtol=1e-13)
    stacked = vmap(lambda flat: unravel(flat)["layers"][1])(many)
    np.testing.assert_array_equal(stacked[1], tree["layers"][1])


def test_unravel_is_plain_data():
    """Two containers of one form have equal ways back, which hold no array."""
    ways = [ravel_tree(net())[1] for _ in range(2)]
    assert ways[0] == ways[1]
    assert isinstance(ways[0], Unravel)
    assert hash(ways[0]) == hash(ways[1])
