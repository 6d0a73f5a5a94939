"""Signals: what the sweeps over all functions leave out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal as original

from ebbtide import TraceError, grad, jit, vjp
from ebbtide.scipy import signal
from ebbtide.testing import check_grads

X, Y = np.random.default_rng(3).standard_normal((2, 9))
MATRIX = X.reshape(3, 3)


def test_transforms_for_large_signals():
    """Where SciPy chooses Fourier transforms, derivatives are those of the direct sums, to rounding."""
    x, y = np.random.default_rng(3).standard_normal((2, 3000))
    assert original.choose_conv_method(x, y) == "fft"
    by_transform = grad(lambda x: np.sum(signal.convolve(x, y) ** 2))(x)
    direct = grad(lambda x: np.sum(signal.convolve(x, y, method="direct") ** 2))(x)
    np.testing.assert_allclose(by_transform, direct, rtol=1e-9, atol=1e-9 * np.max(np.abs(direct)))


def test_filter_of_a_step():
    """The derivative of a recursive filter by its pole is that of the recursion written out."""
    def written(pole):
        state, total = 0.0, 0.0
        for value in X:
            state = pole * state + value
            total = total + state**2
        return total

    def filtered(pole):
        return np.sum(signal.lfilter(np.ones(1), np.stack([np.ones(()), -pole]), X) ** 2)

    assert grad(filtered)(np.array(0.6)) == pytest.approx(grad(written)(np.array(0.6)), rel=1e-12)
    assert jit(grad(filtered))(np.array(0.6)) == grad(filtered)(np.array(0.6))


@pytest.mark.parametrize(("n", "m"), [(2, 5), (5, 2), (4, 4), (1, 3), (3, 1)])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve"])
def test_shapes(name, mode, n, m):
    """Whichever signal is longer, in each mode, value and derivatives are right."""
    function = getattr(signal, name)
    value, _ = vjp(lambda x: function(x, Y[:m], mode), X[:n])
    np.testing.assert_array_equal(value, getattr(original, name)(X[:n], Y[:m], mode))
    check_grads(lambda x, y: function(x, y, mode), X[:n], Y[:m], order=1)


def test_empty_signals():
    """Without samples there is no result, and the derivative is zero, as in SciPy."""
    value, pullback = vjp(signal.fftconvolve, np.zeros(0), Y)
    assert value.shape == (0,)
    assert [g.tolist() for g in pullback(value)] == [[], [0.0] * 9]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: signal.convolve2d(x, MATRIX, boundary="wrap"), r"boundary='wrap'.*np\.pad.*mode='valid'"),
        (lambda x: signal.correlate2d(x, MATRIX, fillvalue=1.0), r"fillvalue=1\.0"),
        (lambda x: signal.lfilter([1.0], [1.0, 0.5], x, zi=np.zeros((3, 1))), r"zi= has no derivative rule"),
        (lambda x: signal.correlate2d(x[:2, :2] * 1j, MATRIX * 1j, "valid"), r"put the larger first"),
    ],
)
def test_refusals(call, message):
    """What has no rule says what to do instead."""
    with pytest.raises(TraceError, match=message):
        vjp(call, MATRIX)


def test_wrong_shapes_raise_as_in_scipy():
    """Signals that do not fit together are SciPy's errors."""
    for call in (lambda x: signal.convolve(x, MATRIX), lambda x: signal.fftconvolve(x, MATRIX)):
        with pytest.raises(ValueError, match="same dimensionality"):
            vjp(call, X)
    with pytest.raises(ValueError, match="cceptable mode"):
        vjp(lambda x: signal.convolve(x, Y, "middle"), X)
