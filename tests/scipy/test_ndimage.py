"""Linear filters: values are SciPy's, and derivatives are exact transposes, to the last element at the boundary."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage as original
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, BudgetError, TraceError, grad, jit, jvp, timeloop, vjp, vmap
from ebbtide.scipy import ndimage
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(5)
MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-mirror", "grid-constant", "grid-wrap")
LINE, IMAGE = RANDOM.random(7), RANDOM.random((5, 4))
W3, W4, W32 = RANDOM.random(3), RANDOM.random(4), RANDOM.random((3, 2))
# Filters with all that they take beside the array; more elements beyond the boundary than inside are among it.
CALLS = [
    *[("correlate1d", IMAGE, (W4,), {"axis": k % 2, "mode": mode, "cval": 0.7}) for k, mode in enumerate(MODES)],
    ("correlate1d", LINE, (W4,), {"origin": 1}),
    ("correlate1d", LINE[:2], (RANDOM.random(9),), {"mode": "mirror"}),
    ("correlate1d", LINE[:1], (W3,), {"mode": "mirror"}),
    ("correlate1d", LINE[:2], (RANDOM.random(9),), {"mode": "reflect", "origin": -2}),
    ("convolve1d", IMAGE, (W4,), {"axis": 0, "mode": "wrap", "origin": -1}),
    ("convolve1d", LINE, (W3,), {"mode": "nearest"}),
    *[("correlate", IMAGE, (W32,), {"mode": mode, "cval": -0.3}) for mode in MODES[:5]],
    ("correlate", IMAGE, (W32,), {"mode": "wrap", "origin": (1, -1)}),
    ("convolve", IMAGE, (W32,), {"mode": "mirror", "origin": (0, -1)}),
    ("convolve", LINE, (W4,), {"mode": "constant", "cval": 2.0}),
    ("gaussian_filter1d", IMAGE, (0.8,), {"axis": 0, "order": 1, "mode": "nearest"}),
    ("gaussian_filter", IMAGE, (0.7,), {}),
    ("gaussian_filter", IMAGE, ((0.7, 1.1),), {"order": (0, 2), "mode": ("wrap", "constant"), "cval": 1.0}),
    ("gaussian_filter", IMAGE, (0.0,), {}),
    ("gaussian_laplace", IMAGE, (0.7,), {"truncate": 2.0}),
    ("laplace", IMAGE, (), {"mode": "wrap"}),
    ("sobel", IMAGE, (), {"axis": 0, "mode": "mirror"}),
    ("prewitt", IMAGE, (), {}),
    *[("uniform_filter1d", IMAGE, (4,), {"axis": 0, "mode": mode, "cval": 0.4, "origin": 1}) for mode in MODES[:5]],
    ("uniform_filter", IMAGE, ((3, 1),), {"mode": "wrap"}),
    ("uniform_filter", IMAGE, (3,), {}),
]
NAMES = [f"{name}-{k}" for k, (name, *_) in enumerate(CALLS)]


def of_array(call, dtype=None):
    """Return the filter as a function of the array, and the array."""
    name, x, args, options = call
    return lambda x: getattr(ndimage, name)(x, *args, **options), x if dtype is None else x.astype(dtype)


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_values(call, dtype):
    """The value has SciPy's bits and type, traced or not, and the cotangent the type of the array."""
    name, _, args, options = call
    f, x = of_array(call, dtype)
    x = x * dtype(1 + 0.5j) if np.dtype(dtype).kind == "c" else x
    if "gaussian_laplace" in name and np.dtype(dtype).kind == "c":
        return  # SciPy's own has no complex numbers
    expected = getattr(original, name)(x, *args, **options)
    value, pullback = vjp(f, x)
    assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes())
    assert f(x).tobytes() == expected.tobytes()
    assert pullback(value)[0].dtype == dtype


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_exact_transposes(call):
    """Columns of the filter's matrix, found from unit arrays, are those that the reverse mode has as rows."""
    f, x = of_array(call)
    still = f(np.zeros_like(x))
    units = np.eye(x.size).reshape(x.size, *x.shape)
    columns = np.stack([(f(unit) - still).ravel() for unit in units], axis=1)
    value, pullback = vjp(f, x, retain=True)
    rows = np.stack([pullback(unit)[0].ravel() for unit in units])
    np.testing.assert_allclose(rows, columns, atol=1e-14)
    np.testing.assert_allclose(jvp(f, (x,), (x,))[1], value - still, atol=1e-14)


@pytest.mark.parametrize("call", [c for c in CALLS if "corr" in c[0] or "conv" in c[0]], ids=lambda c: c[0])
def test_weights(call):
    """Filters have derivatives with respect to the weights, alone and together with the array, to second order."""
    name, x, (w,), options = call
    f = lambda x, w: np.sum(np.sin(getattr(ndimage, name)(x, w, **options)))
    check_grads(f, x, w, order=2)


def test_complex_weights():
    """Complex weights are conjugated in a correlation and not in a convolution, as SciPy has it."""
    w = W3 * (1 + 2j)
    for name in ("correlate1d", "convolve1d", "correlate", "convolve"):
        f = getattr(ndimage, name)
        expected = getattr(original, name)(LINE, w)
        np.testing.assert_allclose(vjp(lambda w: f(LINE, w), w)[0], expected, rtol=1e-15)
        check_grads(lambda x, w: np.sum(abs(f(x, w)) ** 2), LINE * (1 - 0.5j), w)
        assert grad(lambda x: np.sum(abs(f(x, w)) ** 2))(LINE).dtype == np.float64


@pytest.mark.parametrize("call", CALLS[::3], ids=NAMES[::3])
def test_transforms(call):
    """Programs and batches of filters give what the filters give."""
    f, x = of_array(call)
    loss = lambda x: np.sum(np.sin(f(x)))
    expected = grad(loss)(x)
    np.testing.assert_allclose(jit(grad(loss))(x), expected, rtol=1e-13)
    np.testing.assert_allclose(grad(jit(loss))(x), expected, rtol=1e-13)
    members = np.stack([x, 2 * x])
    assert vmap(f)(members)[1].tobytes() == f(2 * x).tobytes()
    np.testing.assert_allclose(vmap(grad(loss))(members)[1], grad(loss)(2 * x), rtol=1e-12, atol=1e-14)


def test_members_of_weights():
    """Weights of each member are filtered with one after the other, or with one array."""
    weights = np.stack([W3, 2 * W3])
    found = vmap(ndimage.correlate1d, (None, 0))(LINE, weights)
    assert found[1].tobytes() == original.correlate1d(LINE, 2 * W3).tobytes()
    found = vmap(grad(lambda w: np.sum(ndimage.correlate1d(LINE, w) ** 2)))(weights)
    np.testing.assert_allclose(found[1], grad(lambda w: np.sum(ndimage.correlate1d(LINE, w) ** 2))(2 * W3), rtol=1e-13)


def test_other_arrays():
    """Empty, non-contiguous, read-only and big-endian arrays have gradients of their type."""
    for x in (np.zeros((0, 3)), IMAGE.T[::2], IMAGE.astype(">f8")):
        found = grad(lambda x: np.sum(ndimage.gaussian_filter(x, 1.0)))(x)
        assert (found.shape, found.dtype) == (x.shape, x.dtype)
    fixed = IMAGE.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(
        grad(lambda x: np.sum(ndimage.laplace(x) ** 2))(fixed), grad(lambda x: np.sum(ndimage.laplace(x) ** 2))(IMAGE)
    )


NO_AXES = ("gaussian_filter", IMAGE, (0.7,), {"axes": ()})


@pytest.mark.parametrize("call", [*CALLS[8::3], NO_AXES], ids=lambda c: c[0])
def test_output(call):
    """With output= the result has that dtype, as each step on the way, or is written into an array that is returned."""
    name, x, args, options = call
    for dtype, output in ((np.float32, np.float64), (np.float64, "float32")):
        expected = getattr(original, name)(x.astype(dtype), *args, output=output, **options)
        value, pullback = vjp(lambda x: getattr(ndimage, name)(x, *args, output=output, **options), x.astype(dtype))
        assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes())
        assert pullback(value)[0].dtype == dtype

    def written(x):
        output = np.zeros_like(x)
        made = getattr(ndimage, name)(x, *args, output=output, **options)
        assert made is output
        return output

    f = lambda x: getattr(ndimage, name)(x, *args, **options)
    assert written(x).tobytes() == vjp(written, x)[0].tobytes() == f(x).tobytes()
    np.testing.assert_array_equal(grad(lambda x: np.sum(written(x) ** 2))(x), grad(lambda x: np.sum(f(x) ** 2))(x))
    single = lambda x: getattr(ndimage, name)(x, *args, output="float32", **options)
    assert jit(single)(x).tobytes() == single(x).tobytes()


def test_axes():
    """Filters of some axes leave the others alone."""
    x = RANDOM.random((3, 4, 2))
    for f, plain in (
        (lambda x: ndimage.gaussian_filter(x, 0.6, axes=(1,)), original.gaussian_filter(x, 0.6, axes=(1,))),
        (lambda x: ndimage.correlate(x, W32, axes=(0, 1)), original.correlate(x, W32, axes=(0, 1))),
        (lambda x: ndimage.uniform_filter(x, 3, axes=(2,)), original.uniform_filter(x, 3, axes=(2,))),
        (lambda x: ndimage.laplace(x, axes=(0, 2)), original.laplace(x, axes=(0, 2))),
    ):
        assert vjp(f, x)[0].tobytes() == plain.tobytes()
        check_grads(lambda x: np.sum(f(x) ** 2), x)


def test_refusals():
    """What has no derivative is refused, with what to write instead; of plain arrays all is as SciPy does it."""
    with pytest.raises(TraceError, match="output=float"):
        vjp(lambda x: ndimage.gaussian_filter(x, 1.0, output=np.int32), IMAGE)
    with pytest.raises(TraceError, match=r"np\.zeros_like\(x\)"):
        vjp(lambda x: ndimage.gaussian_filter(x, 1.0, output=np.zeros_like(IMAGE)), IMAGE)
    with pytest.raises(ValueError, match=r"shape \(5, 4\) into out= of shape \(4,\)"):
        vjp(lambda x: ndimage.sobel(x, output=x[0] * 1.0), IMAGE)
    with pytest.raises(TraceError, match="with respect to sigma"):
        grad(lambda s: np.sum(ndimage.gaussian_filter(IMAGE, s)))(1.0)
    with pytest.raises(TraceError, match=r"astype\(float\)"):
        grad(lambda w: np.sum(ndimage.correlate1d(np.arange(5), w)))(W3)
    with pytest.raises(RuntimeError, match="Weights of 2 axes"):
        vjp(lambda x: ndimage.correlate(x, W32), LINE)
    out = np.zeros_like(IMAGE)
    ndimage.sobel(IMAGE, output=out)
    assert out.tobytes() == original.sobel(IMAGE).tobytes()


@pytest.mark.parametrize("disk", [0, 2**30])
@pytest.mark.parametrize(
    "smooth",
    [lambda u: ndimage.uniform_filter(u, 3), lambda u: ndimage.gaussian_filter(u, 1.0), ndimage.sobel],
    ids=["uniform", "gaussian", "sobel"],
)
def test_the_first_step_is_measured_within_the_budget(smooth, disk):
    """What nobody knows of a filter is measured beside the first step, where with a disk there was no room planned."""
    x = np.random.default_rng(2).uniform(0.2, 1.1, (8, 16_384))

    def f(x):
        return np.sum(timeloop(lambda u, i: u * 0.9 + 1e-12 * np.sum(smooth(u) ** 2), x, 6) ** 2)

    def bounded(memory):
        return grad(f, budget=Budget(memory=memory, disk=disk))(x)

    alone, expected = peak_bytes(lambda: f(x)), grad(f)(x)
    least = find_least(bounded)
    for memory in (least, 1.3 * least):
        assert bounded(int(memory)).tobytes() == expected.tobytes()
        assert peak_bytes(lambda: bounded(int(memory))) <= memory + alone
    with pytest.raises(BudgetError):
        bounded(least // 2)
