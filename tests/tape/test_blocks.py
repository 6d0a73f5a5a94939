"""Large elementwise pulls and masks in blocks, also of operands that were broadcast."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import jvp, vjp
from ebbtide.arrays.array_type import ArrayType
from ebbtide.tape.blocks import BLOCK, blocks, cut, first_block, goes_in_blocks

SHAPES = [(64, 1024), (2, 100_000), (1, 1, 70_000), (3, 1, 50, 700), (200_000,), (5, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_cover_an_array_once(shape):
    """Blocks cover each element once, in order, and none is larger than the bound."""
    count = np.zeros(shape)
    place = np.arange(count.size).reshape(shape)
    firsts = []
    for block in blocks(shape, count.nbytes):
        count[block] += 1
        assert count[block].nbytes <= BLOCK
        firsts.append(place[block].flat[0])
    assert np.all(count == 1)
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keep", [0, 1])
def test_operands_lie_under_the_blocks_of_their_result(shape, keep):
    """What is cut out of a broadcast operand is what lies under the block, of the type that is said."""
    operand = np.random.default_rng(0).standard_normal([n if k % 2 == keep else 1 for k, n in enumerate(shape)][keep:])
    whole = np.broadcast_to(operand, shape)
    kind, out = ArrayType(operand.shape, operand.dtype), ArrayType(shape, operand.dtype)
    parts = []
    for block in blocks(shape, out.nbytes):
        part = cut(operand, len(shape), block)
        parts.append(part)
        assert np.array_equal(np.broadcast_to(part, whole[block].shape), whole[block])
    assert first_block(kind, out).shape == parts[0].shape
    assert goes_in_blocks(kind, out, [operand, kind, 2.0]) == (out.nbytes > BLOCK)


UFUNCS = (np.multiply, np.subtract, np.true_divide, np.maximum, np.fmin, np.hypot, np.logaddexp, np.power, np.arctan2)


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_broadcast_pulls_agree_with_pushes(ufunc, dtype):
    """Reverse agrees with forward where both operands are broadcast, also onto a running cotangent and a number."""
    random = np.random.default_rng(1)
    x, y, s = (random.uniform(0.5, 2, shape).astype(dtype) for shape in ((64, 1, 40), (1, 30, 40), ()))
    primals = (x, y, s)

    def f(x, y, s):
        return ufunc(x, y) * ufunc(y, s) + ufunc(s, x) * x

    directions = tuple(random.standard_normal(v.shape).astype(dtype)[()] for v in primals)
    directions = tuple(np.asarray(d) for d in directions)
    value, forward = jvp(f, primals, directions)
    g = random.standard_normal(value.shape).astype(dtype)
    gradients = vjp(f, *primals)[1](g)
    left = float(np.sum(np.float64(g) * forward))
    terms = [float(np.sum(np.float64(d) * c)) for d, c in zip(directions, gradients, strict=True)]
    scale = float(np.sum(np.abs(np.float64(g) * forward)))
    assert abs(left - sum(terms)) <= (1e-12 if dtype is np.float64 else 1e-4) * scale
    assert [(c.shape, c.dtype) for c in gradients] == [(v.shape, v.dtype) for v in primals]


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_broadcast_pulls_make_no_full_product(ufunc):
    """The pulls of two small operands of a large result take blocks, and never an array of its size."""
    x, y = np.linspace(1, 2, 500).reshape(500, 1), np.linspace(1, 2, 2000)
    full = 8 * x.size * y.size
    value, pullback = vjp(ufunc, x, y)
    g = np.ones(value.shape)
    assert peak_bytes(lambda: pullback(g)) <= 12 * BLOCK < full / 2
