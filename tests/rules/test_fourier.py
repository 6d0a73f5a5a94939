"""Fourier transforms: transposes by the dot product, at even and odd lengths, with n= shorter and longer."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jvp, saved_values, vjp

RANDOM = np.random.default_rng(2)
COMPLEX = (np.fft.fft, np.fft.ifft, np.fft.hfft, np.fft.irfft)
REAL = (np.fft.rfft, np.fft.ihfft, np.fft.fft, np.fft.ifft)


def drawn(shape, *, is_complex):
    """Random numbers."""
    real = RANDOM.standard_normal(shape)
    return real + 1j * RANDOM.standard_normal(shape) if is_complex else real


def paired(cotangent, tangent):
    """The real number that a cotangent df/dx - i df/dy has with a tangent."""
    return np.sum(np.real(cotangent * tangent))


def check_transpose(f, x):
    """A linear function and its transpose give the same product, as does the function with itself as its tangent."""
    t = drawn(x.shape, is_complex=np.iscomplexobj(x))
    value, pullback = vjp(f, x)
    g = drawn(value.shape, is_complex=np.iscomplexobj(value))
    (found,) = pullback(g)
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    tangent = jvp(f, (x,), (t,))[1]
    assert tangent.tobytes() == f(t).tobytes()
    assert paired(found, t) == pytest.approx(paired(g, tangent), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 1, 2, 4, 5, 8, 9])
@pytest.mark.parametrize("size", [5, 6])
def test_transposes(size, n, norm):
    """Of each transform of each length, along either axis."""
    for functions, is_complex in ((COMPLEX, True), (REAL, False)):
        x = drawn((size, size), is_complex=is_complex)
        for function in functions:
            for axis in (0, -1):
                check_transpose(lambda x, f=function, axis=axis: f(x, n, axis, norm), x)


@pytest.mark.parametrize("shape", [None, (3, 4), (6, 5)])
def test_many_axes(shape):
    """Transforms of two axes, whose last one is cut or padded after the others."""
    for function in (np.fft.fft2, np.fft.ifft2, np.fft.fftn, np.fft.ifftn, np.fft.irfft2, np.fft.irfftn):
        check_transpose(lambda x, f=function: f(x, shape, (-2, -1)), drawn((4, 5), is_complex=True))
    for function in (np.fft.rfft2, np.fft.rfftn):
        check_transpose(lambda x, f=function: f(x, shape, (-2, -1)), drawn((4, 5), is_complex=False))
    check_transpose(lambda x: np.fft.fftn(x, axes=(2, 0)), drawn((2, 3, 4), is_complex=True))


def test_what_is_cut_off():
    """Elements that a shorter transform leaves out have a derivative of zero; what a longer one adds has none."""
    x = RANDOM.standard_normal(6)
    found = grad(lambda x: np.sum(np.abs(np.fft.rfft(x, 4)) ** 2))(x)
    assert np.all(found[4:] == 0)
    assert np.all(found[:4] != 0)
    # The sum of squares of a whole transform is n times that of the elements.
    np.testing.assert_allclose(grad(lambda x: np.sum(np.abs(np.fft.fft(x, 9)) ** 2))(x), 2 * 9 * x)


def test_real_transforms_of_complex_numbers():
    """Of the first frequency, and at an even length of the last one, the imaginary part has no derivative in irfft."""
    y = drawn(4, is_complex=True)
    for n, real in ((6, [0, 3]), (7, [0])):
        g = RANDOM.standard_normal(n)
        found = vjp(lambda y, n=n: np.fft.irfft(y, n), y)[1](g)[0]
        assert np.all(found[real].imag == 0)
        others = [k for k in range(4) if k not in real]
        assert np.all(found[others].imag != 0)


def test_saves_nothing():
    """A transform is linear: a record of it holds no array."""
    x = RANDOM.standard_normal(64)
    assert saved_values(lambda x: np.real(np.sum(np.fft.ifft(np.fft.fft(np.fft.irfft(np.fft.rfft(x)))))), x).nbytes == 0
