"""Linear algebra beyond single calls: what phases leave open, equal eigenvalues, ranks, dtypes, and what is kept."""

from __future__ import annotations

import gc
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import linalg as original

from ebbtide import TraceError, grad, jit, jvp, timeloop, vjp, vmap
from ebbtide.schedules import Mixed, Revolve, StoreAll
from ebbtide.scipy import linalg
from ebbtide.testing import check_grads

RNG = np.random.default_rng(5)
A = RNG.standard_normal((4, 4))
C = A + 1j * RNG.standard_normal((4, 4))
TALL = C[:, :2]
SPD = A @ A.T + np.eye(4)
HERMITIAN = C + C.conj().T


def projector(vectors):
    """Return the projector on a space, which no turn of its basis changes."""
    return vectors @ np.conjugate(np.swapaxes(vectors, -1, -2))


def exponential(w, v):
    """Return a function of a matrix with these eigenvalues and vectors."""
    return (v * np.exp(w / 9)) @ np.linalg.inv(v)


def recombined(u, s, vh):
    """Return a function of a matrix with these singular values and vectors."""
    return (u * np.exp(s / 9)) @ vh


INVARIANT = {
    "eigh": (lambda x: exponential(*np.linalg.eigh(x)), HERMITIAN),
    "eigh, sizes": (lambda x: np.abs(np.linalg.eigh(x, "U")[1]), HERMITIAN),
    "scipy eigh, a pair": (lambda x, y: np.abs(linalg.eigh(x, y)[1]), HERMITIAN, C @ C.conj().T + np.eye(4)),
    "eig": (lambda x: exponential(*np.linalg.eig(x)), C),
    "eig, sizes": (lambda x: np.abs(np.linalg.eig(x)[1]), C),
    "scipy eig": (lambda x: np.abs(linalg.eig(x)[1]), C),
    "eig of a real matrix": (lambda x: exponential(*np.linalg.eig(x)), A),
    "svd": (lambda x: recombined(*np.linalg.svd(x, False)), TALL),
    "svd, sizes": (lambda x: [np.abs(part) for part in np.linalg.svd(x, False)], TALL.T),
    "svd, square": (lambda x: recombined(*np.linalg.svd(x)), C),
    "svd, beside the range": (lambda x: projector(np.linalg.svd(x)[0][:, 2:]), TALL),
    "svd, null space": (lambda x: projector(np.linalg.svd(x.T)[2][2:].T), TALL),
    "scipy svd": (lambda x: np.abs(linalg.svd(x, full_matrices=False)[0]), TALL),
}


@pytest.mark.parametrize("name", INVARIANT)
def test_functions_without_a_phase(name):
    """What no phase of a vector changes has the right derivatives to second order, of complex matrices too."""
    function, *operands = INVARIANT[name]
    check_grads(function, *operands)


def test_equal_eigenvalues():
    """At equal eigenvalues, what does not turn their vectors has the right derivative, and all else is nan."""
    t = A + A.T
    for function, slope in (
        (lambda x: np.sum(np.linalg.eigvalsh(x) ** 3), 3 * 4 * np.trace(t)),
        (lambda x: np.sum(np.linalg.eigh(x)[0] ** 3), 3 * 4 * np.trace(t)),
        (lambda x: np.sum(np.linalg.eigvals(x) ** 2), 2 * 2 * np.trace(t)),
        (lambda x: np.sum(np.linalg.svd(x)[1] ** 2), 2 * 2 * np.trace(t)),
        (lambda x: np.linalg.norm(x, "nuc"), np.trace(t)),
        (lambda x: np.sum(linalg.polar(x)[1]), np.sum(t)),
    ):
        x = 2 * np.eye(4)
        assert jvp(function, (x,), (t,))[1] == pytest.approx(slope, abs=1e-12)
        assert np.sum(grad(function)(x) * t) == pytest.approx(slope, abs=1e-12)
    x = np.diag([2.0, 2.0, 1.0, 0.0])
    check_grads(lambda x: np.linalg.eigh(x)[1][:, 0] ** 2, x, order=1)  # the vector of the eigenvalue 0
    for function in (lambda x: np.linalg.eigh(x)[1], lambda x: np.linalg.svd(x)[0], lambda x: np.linalg.eig(x)[1]):
        assert np.any(np.isnan(jvp(function, (x,), (t,))[1]))
        assert np.any(np.isnan(grad(lambda x, f=function: np.sum(f(x) * A))(x)))


def test_one_triangle_is_read():
    """The triangle that LAPACK does not read has a derivative of zero, and what is in it has no influence."""
    other = SPD + np.triu(A, 1)
    for function in (
        np.linalg.cholesky, lambda x: np.linalg.eigh(x)[1], np.linalg.eigvalsh,
        lambda x: np.linalg.pinv(x, hermitian=True), lambda x: linalg.cholesky(x, lower=True),
        lambda x: linalg.solve(x, x[:, 0], assume_a="pos", lower=True), linalg.eigvalsh,
    ):  # fmt: skip
        found = grad(lambda x, f=function: np.sum(np.sin(f(x))))(SPD)
        assert np.all(np.triu(found, 1) == 0)
        assert np.array_equal(grad(lambda x, f=function: np.sum(np.sin(f(x))))(other), found)


def test_least_squares_without_full_rank():
    """Without full rank the derivative is that for the present rank, and there are no sums of residuals."""

    def low(x):
        return x[:, :2] @ x[:2]

    check_grads(lambda x, b: np.linalg.lstsq(low(x), b)[0], A, A[0])
    check_grads(lambda x: np.linalg.pinv(low(x)), A)
    check_grads(lambda x, b: linalg.lstsq(low(x), b, 1e-9)[0], A, A[:, :2])
    for solve in (np.linalg.lstsq, linalg.lstsq):
        expected = solve(low(A)[:, :3], A[0])
        (_, sums, rank, _) = vjp(lambda x, solve=solve: solve(low(x)[:, :3], A[0]), A)[0]
        assert (sums.shape, rank) == (expected[1].shape, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_scipy_least_squares(shape, columns, dtype):
    """SciPy's least squares, which returns Python numbers too, has its values and the right derivatives."""
    a, b = C[: shape[0], : shape[1]], C[: shape[0], 1:3] if columns else C[: shape[0], 3]
    a, b = (np.ascontiguousarray(x if np.dtype(dtype).kind == "c" else x.real, dtype) for x in (a, b))
    expected = original.lstsq(a, b)
    for found in (linalg.lstsq(a, b), vjp(linalg.lstsq, a, b)[0]):
        for one, other in zip(found, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape) if hasattr(other, "dtype") else one == other
            assert np.array_equal(one, other)
    check_grads(lambda x, y: [r for r in linalg.lstsq(x, y) if np.size(r) and hasattr(r, "dtype")], a, b, order=1)


def test_determinant_of_singular_matrices():
    """The gradient of a determinant is the matrix of cofactors, of whatever rank; its own needs the inverse."""
    check_grads(lambda x: np.linalg.det(x[:, :2] @ x[:2]), A[:3, :3], order=1)
    assert np.allclose(grad(np.linalg.det)(np.diag([0.0, 2.0, 3.0])), np.diag([6.0, 0.0, 0.0]))
    assert np.array_equal(grad(np.linalg.det)(np.zeros((3, 3))), np.zeros((3, 3)))
    with pytest.raises(np.linalg.LinAlgError):
        grad(lambda x: np.linalg.slogdet(x)[1])(np.zeros((2, 2)))


def test_eigenvalues_of_real_matrices():
    """Eigenvalues of real matrices are real where NumPy's are; without values nobody knows, and that is an error."""
    for x in (SPD, A):
        for function in (np.linalg.eig, lambda x: (np.linalg.eigvals(x),)):
            expected = function(x)
            found = vjp(lambda x, f=function: list(f(x)), x)[0]
            assert [(y.dtype, y.tobytes()) for y in found] == [(y.dtype, y.tobytes()) for y in expected]
    check_grads(lambda x: np.sort(np.abs(np.linalg.eigvals(x))), A)
    for transformed in (jit(np.linalg.eigvals), lambda x: vmap(np.linalg.eigvals)(x[None])):
        with pytest.raises(TraceError, match=r"np\.astype\(a, complex\)"):
            transformed(A)
    assert np.allclose(jit(lambda x: np.linalg.eigvals(np.astype(x, complex)))(A), np.linalg.eigvals(A))


def test_functions_of_matrices():
    """Logarithms have the right derivatives; a complex result that a program did not foresee is an error."""
    check_grads(linalg.logm, SPD)
    check_grads(linalg.logm, C + 6 * np.eye(4))
    turned = np.diag([-1.0, 2.0]) + 0.1
    for function in (linalg.sqrtm, linalg.logm):
        assert vjp(function, turned)[0].dtype == np.complex128
        check_grads(lambda x, f=function: np.abs(f(x)), turned, order=1)
        assert np.allclose(jit(function)(SPD), function(SPD))
        with pytest.raises(np.linalg.LinAlgError, match=r"np\.astype\(a, complex\)"):
            jit(function)(turned)


@pytest.mark.parametrize("power", [0, 2, -1])
def test_whole_powers_of_integers(power):
    """Products of integers are integers, as SciPy's are; an inverse is not."""
    a = np.array([[2, 1], [1, 1]])
    expected = original.fractional_matrix_power(a, power)
    raised = lambda a: linalg.fractional_matrix_power(a, power)
    for found in (jit(raised)(a), vmap(raised)(a[None])[0]):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "function",
    [linalg.logm, linalg.sqrtm, linalg.expm, *[lambda x, t=t: linalg.fractional_matrix_power(x, t) for t in (0.5, 2)]],
    ids=["logm", "sqrtm", "expm", "root", "square"],
)
def test_precision_of_functions_of_matrices(function):
    """Results of programs have the dtypes of SciPy's, which has some in double precision; gradients stay single."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy measures logarithms in double precision, and tells of singular matrices
        near = (np.eye(4) + SPD / 20).astype(np.float32)
        for x in (near, np.zeros((2, 2), np.float32)):
            expected = 2 * function(x)
            found = [jit(lambda x: 2 * function(x), executor=which)(x) for which in ("reference", "machine")]
            if x.any():  # a singular matrix may give a narrower one, which was not known
                assert [y.dtype for y in found] == [expected.dtype] * 2
            assert all(np.array_equal(y, expected, equal_nan=True) for y in found)
        x, f = near, lambda x: np.sum(function(x) ** 2)
        found = [transformed(x) for transformed in (grad(f), jit(grad(f)), grad(jit(f)), jit(grad(jit(f))))]
        assert [g.dtype for g in found] == [np.float32] * 4
        exact = grad(f)(x.astype(float))
        assert all(np.max(np.abs(g - exact)) < 1e-4 * np.max(np.abs(exact)) for g in found)
        assert jit(lambda x: jvp(grad(f), (x,), (x,))[1])(x).dtype == np.float32


@pytest.mark.parametrize("order", [None, 1, np.inf])
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x[0]], ids=["matrices", "vectors"])
def test_norms_of_members(order, of):
    """A norm of SciPy's is that of each member of a batch, with its derivatives to second order."""
    f = lambda x: linalg.norm(of(x), order) ** 3
    for stack in (np.stack([A, 2 * A]), np.stack([A, A.T]).astype(np.float32), np.stack([C, 2 * C])):
        assert np.allclose(vmap(f)(stack), [f(x) for x in stack])
        assert np.allclose(jit(vmap(f))(stack), [f(x) for x in stack])
        gradients = vmap(grad(f))(stack)
        assert gradients.dtype == stack.dtype
        assert np.allclose(gradients, [grad(f)(x) for x in stack], rtol=1e-4)
    tangents = vmap(lambda x: jvp(grad(f), (x,), (x,))[1])(np.stack([A, 2 * A]))
    assert np.allclose(tangents, [jvp(grad(f), (x,), (x,))[1] for x in (A, 2 * A)])
    check_grads(f, A)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: linalg.eig(x, SPD), "eig with b="),
        (lambda x: linalg.eigh(x, subset_by_index=[0, 1]), "eigh with subset_by_index="),
        (lambda x: linalg.eigh(x, SPD, type=2), "eigh with type=2"),
        (lambda x: linalg.qr(x, pivoting=True), "qr with pivoting=True"),
        (lambda x: linalg.qr(x[:, :2]), "mode='full'.*mode='economic'"),
        (lambda x: linalg.lstsq(x, x, lapack_driver="gelsy"), "gelsy"),
        (lambda x: linalg.lu_factor(x[:2]), "square matrices"),
        (lambda x: linalg.polar(x[:2]), "the other side"),
        (lambda x: linalg.solve(x, x[0], assume_a="circulant"), "assume_a='circulant'"),
        (lambda x: linalg.pinv(x, rtol=x[0, 0]), "has to be a number"),
    ],
)
def test_refusals(function, message):
    """What has no rule says so, with the user's line."""
    with pytest.raises(TraceError, match=message) as caught:
        vjp(lambda x: function(x)[0], A)
    assert "test_linalg.py:" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_norms_of_blas(dtype):
    """SciPy's norms by BLAS and LAPACK have its values, in the precision of the operand, and the right derivatives."""
    x = C.astype(dtype) if np.dtype(dtype).kind == "c" else C.real.astype(dtype)
    for array, order in ((x[0], None), (x[0], 2), (x, 1), (x, np.inf), (x.T, 1), (x.T, np.inf)):
        value = vjp(lambda y, order=order: linalg.norm(y, order), array)[0]
        assert value == original.norm(array, order)
        assert value.dtype == np.finfo(dtype).dtype
        found, expected = (grad(lambda y, f=f, order=order: f(y, order))(array) for f in (linalg.norm, np.linalg.norm))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.array_equal(grad(linalg.norm)(np.zeros(3)), np.zeros(3))


def test_layouts_and_byte_orders():
    """Operands that are transposed, strided, read-only or of the other byte order have the same gradients."""
    fixed = np.ascontiguousarray(SPD)
    fixed.setflags(write=False)
    wide = np.zeros((4, 8))
    wide[:, ::2] = SPD
    for function in (
        np.linalg.inv, np.linalg.det, np.linalg.cholesky, lambda x: np.linalg.svd(x)[1], np.fft.rfft2,
        lambda x: np.linalg.qr(x)[1], linalg.inv, lambda x: linalg.solve(x, x[0]),
    ):  # fmt: skip
        def total(x, f=function):
            return np.sum(np.real(f(x)) ** 2)

        expected = grad(total)(SPD)
        for other in (np.asfortranarray(SPD), fixed, wide[:, ::2], SPD.astype(SPD.dtype.newbyteorder())):
            found = grad(total)(other)
            assert found.dtype == other.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.max(abs(expected)))


def test_empty_and_half():
    """Matrices without elements have gradients without elements; LAPACK has no half precision, and FFTs have."""
    for function in (np.linalg.inv, np.linalg.det, lambda x: np.linalg.slogdet(x)[1], lambda x: np.linalg.eigh(x)[0]):
        assert grad(lambda x, f=function: np.sum(f(x)))(np.zeros((2, 0, 0))).shape == (2, 0, 0)
        assert grad(lambda x, f=function: np.sum(f(x)))(np.zeros((0, 3, 3))).shape == (0, 3, 3)
    assert grad(lambda x: np.sum(np.fft.irfft(np.fft.rfft(x))))(np.ones(4, np.float16)).dtype == np.float16
    with pytest.raises(TypeError, match="float16"):
        grad(lambda x: np.sum(np.linalg.inv(x)))(np.eye(2, dtype=np.float16))


def test_steps_of_a_time_loop():
    """A time loop whose steps solve, decompose and transform has the same gradient under all schedules, bit for bit."""

    def step(u, j):
        u = np.real(np.fft.ifft(np.fft.fft(u) * np.exp(-1j * np.arange(4))))
        w, v = np.linalg.eigh(u @ u.T + np.diag(np.arange(4.0)))
        factor = linalg.cholesky(u @ u.T + np.eye(4))
        return np.linalg.solve(factor + w, u) + np.abs(v) / 9 + linalg.expm(u / 9) / 9

    def total(u, schedule):
        return np.sum(timeloop(step, u, 9, schedule=schedule) ** 2)

    expected = grad(lambda u: total(u, StoreAll()))(A)
    assert np.array_equal(grad(lambda u: total(u, Revolve(2)))(A), expected)
    assert np.array_equal(grad(lambda u: total(u, Mixed(3)))(A), expected)


N = 200
UNIT = 8 * N * N


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: np.linalg.inv(x + 1), 1),  # its output
        (lambda x: np.linalg.cholesky(x + 1), 1),  # its output
        (lambda x: np.linalg.det(x / N + 1e-3), 1),  # the matrix
        (lambda x: np.linalg.solve(x + 1, x + 2), 2),  # the matrix and the solution, not the right-hand side
        (lambda x: np.linalg.eigvalsh(x + 1), 1),
        (lambda x: np.linalg.qr(x + 1)[1], 2),  # Q and R in one
        (lambda x: np.fft.ifft(np.fft.fft(x + 1)), 0),
        (lambda x: np.fft.irfft2(np.fft.rfft2(x + 1)), 0),
        (lambda x: linalg.expm(x / 1e3), 1),
        (lambda x: linalg.solve_triangular(x + 1, x + 2), 2),
    ],
)
def test_what_is_kept(function, kept):
    """After the forward run a record holds what the rules name, and nothing else of the size of a matrix."""
    x = N * np.eye(N)

    def run():
        return vjp(lambda x: np.sum(np.real(function(x))), x)

    run()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _, pullback = run()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert abs(held - kept * UNIT) < UNIT / 4
    assert pullback(1.0)[0].shape == x.shape
