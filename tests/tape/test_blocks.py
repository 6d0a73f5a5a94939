"""Large elementwise pulls and masks in blocks, also of operands that were broadcast."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import grad, jvp, nn, vjp
from ebbtide.arrays.array_type import ArrayType
from ebbtide.tape.blocks import BLOCK, blocks, cut, first_block, first_rows, goes_in_blocks, goes_in_rows, row_blocks

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


ROWS = [((64, 1025), 0), ((64, 1025), 1), ((1025, 64), 1), ((3, 7, 2000), 1), ((2, 30_000), 1), ((2, 30_000), 0),
        ((30_001, 2), 0), ((5, 1, 8193), 0), ((12, 8, 17, 20), (0, 2)), ((12, 8, 17, 20), (1, 3))]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), ROWS)
def test_blocks_of_rows_cover_an_array_once(shape, axis):
    """Each element is in one block, the first is the largest, and none has a single row or is too large."""
    along = axis if isinstance(axis, tuple) else (axis,)
    kind, count, sizes = ArrayType(shape, np.dtype(float)), np.zeros(shape), []
    row = np.prod([shape[k] for k in along])
    assert goes_in_rows(kind, along)
    for block in row_blocks(kind, along):
        part = count[block]
        part += 1
        assert all(part.shape[k] == shape[k] for k in along)
        assert part.size >= 2 * row
        sizes.append(part.size)
    assert np.all(count == 1)
    assert max(sizes) == sizes[0] <= max(3 * row, BLOCK // 8 + row)
    whole = ArrayType(tuple([1 if k in along else n for k, n in enumerate(shape)]), kind.dtype)
    assert first_rows(kind, kind, along).size == sizes[0]
    assert first_rows(whole, kind, along).size * row == sizes[0]


OF_ROWS = {
    **{name: lambda x, axis, name=name: getattr(np, name)(x, axis=axis) for name in
       ("prod", "std", "var", "max", "nanmin", "nanstd", "nanprod", "sort")},
    **{name: lambda x, axis, name=name: getattr(np, name).reduce(x, axis=axis) for name in ("logaddexp", "hypot")},
    **{f"{name}.accumulate": lambda x, axis, name=name: getattr(np, name).accumulate(x, axis=axis) for name in
       ("multiply", "maximum", "fmin", "logaddexp")},
    "chosen": lambda x, axis: np.prod(x, axis=axis, where=np.arange(x.shape[-1]) % 3 > 0),
    "transposed": lambda x, axis: np.std(x.T, axis=x.ndim - 1 - axis) * np.sum(x),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize(("shape", "axis"), ROWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pulls_in_blocks_of_rows_have_the_bits_of_whole_ones(name, shape, axis, dtype, monkeypatch):
    """However an array lies and along whichever axis, alone and onto a running cotangent, ours or not."""
    if isinstance(axis, tuple) and ("accumulate" in name or name in ("sort", "transposed")):
        pytest.skip("along one axis")
    x = np.random.default_rng(0).uniform(0.9999, 1.0001, shape).astype(dtype)

    def f(x):
        y = x * 0.9999
        return np.sum(OF_ROWS[name](x, axis) ** 2) + np.sum(OF_ROWS[name](y, axis) * 0.5) + np.sum(y**2) + np.sum(y)

    found = grad(f)(x)
    monkeypatch.setattr("ebbtide.tape.sweep.goes_in_rows", lambda kind, along: False)
    assert found.tobytes() == grad(f)(x).tobytes()


@pytest.mark.parametrize("name", OF_ROWS)
def test_pulls_of_rows_take_one_array_and_blocks(name):
    """Beside the saved values: the cotangent of the operand, that of the result, and nothing more of its size."""
    x = np.random.default_rng(0).uniform(0.9, 1.1, (8, 1 << 16))
    value, pullback = vjp(lambda x: OF_ROWS[name](x, 0), x)
    g = np.ones(value.shape)
    assert peak_bytes(lambda: pullback(g)) <= (2 if name == "transposed" else 1) * x.nbytes + 2 * g.nbytes + 12 * BLOCK


def labeled(x, axis):
    """Cross entropies of rows along the last axis, with labels and with shares."""
    labels, shares = np.arange(x.shape[0]) % 2, np.abs(np.sin(np.arange(x.size))).reshape(x.shape)
    return nn.cross_entropy(x, labels) + nn.cross_entropy(x, shares / x.shape[-1])


KEEPING = {
    **{name: lambda x, axis, name=name: getattr(np, name).accumulate(x, axis=axis) for name in
       ("maximum", "minimum", "fmax", "fmin")},
    "max": lambda x, axis: np.max(x, axis=axis) + np.max(x),
    "nanmin": lambda x, axis: np.nanmin(x, axis=axis) + np.nanmean(x),
    "layer_norm": lambda x, axis: nn.layer_norm(x),
    "cross_entropy": labeled,
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize(("shape", "axis"), [((2, 30_000), 1), ((30_001, 2), 0), ((64, 1025), 1), ((3, 40_000), 1)])
def test_kept_values_have_to_do_with_whole_rows(name, shape, axis, monkeypatch):
    """What is kept of rows that are larger than a block is what is kept of them in one piece, and no larger."""
    x = np.random.default_rng(0).uniform(0.9, 1.1, shape)

    def f(x):
        found = KEEPING[name](x, axis)
        return np.sum(found * np.cos(np.arange(found.size)).reshape(found.shape))

    found = grad(f)(x)
    held = peak_bytes(lambda: vjp(lambda x: KEEPING[name](x, axis), x)) / x.nbytes
    monkeypatch.setattr("ebbtide.tape.blocks.BLOCK", 1 << 40)
    assert found.tobytes() == grad(f)(x).tobytes()
    assert held <= peak_bytes(lambda: vjp(lambda x: KEEPING[name](x, axis), x)) / x.nbytes + 0.1
