"""Decompositions in reverse: what no choice of a factor changes, in closed form, and stacks of matrices."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jvp, saved_values

RANDOM = np.random.default_rng(11)
A = RANDOM.standard_normal((3, 3))
S = A @ A.T + np.eye(3)
C = A + 1j * RANDOM.standard_normal((3, 3))
W = RANDOM.standard_normal((3, 3))

# What a factor has whatever its phases are, and the function of the matrix that this is.
CLOSED = {
    "cholesky": (lambda x: np.sum(np.log(np.abs(np.diagonal(np.linalg.cholesky(x))))), S,
                 lambda x: 0.5 * np.linalg.inv(x).T),
    "qr": (lambda x: np.sum(np.log(np.abs(np.diagonal(np.linalg.qr(x)[1])))), A, lambda x: np.linalg.inv(x).T),
    "svd": (lambda x: np.sum(np.linalg.svd(x)[1] ** 2), A, lambda x: 2 * x),
    "svdvals": (lambda x: np.sum(np.linalg.svdvals(x) ** 2), A, lambda x: 2 * x),
    "eigvalsh": (lambda x: np.sum(np.linalg.eigvalsh(x + x.T) ** 2), A, lambda x: 4 * (x + x.T)),
    "eigh": (lambda x: np.sum(np.linalg.eigh(x + x.T)[0] ** 3), A, lambda x: 6 * (x + x.T) @ (x + x.T)),
    "eig": (lambda x: np.real(np.sum(np.linalg.eig(x)[0] ** 2)), A, lambda x: 2 * x.T),
    "eigvals": (lambda x: np.real(np.sum(np.linalg.eigvals(x) ** 3)), A, lambda x: 3 * (x @ x).T),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_traces_and_determinants(name):
    """Sums of powers of eigenvalues, and logarithms of determinants, have their derivatives in closed form."""
    function, x, expected = CLOSED[name]
    found = grad(function)(x)
    if name == "cholesky":
        found = (found + found.T) / 2  # one triangle is read
    np.testing.assert_allclose(found, expected(x), rtol=1e-9, atol=1e-9)


def test_put_together_again():
    """The product of all factors is the matrix, so that its derivative is the identity."""
    t = RANDOM.standard_normal((3, 3)) + 1j * RANDOM.standard_normal((3, 3))

    def by_svd(x):
        u, s, vh = np.linalg.svd(x)
        return (u * s) @ vh

    def by_eig(x):
        w, v = np.linalg.eig(x)
        return (v * w) @ np.linalg.inv(v)

    for function in (by_svd, by_eig, lambda x: np.matmul(*np.linalg.qr(x))):
        np.testing.assert_allclose(jvp(function, (C,), (t,))[1], t, atol=1e-12)


def test_stacks():
    """Of a stack each matrix has the derivative that it has alone."""
    stack = np.stack([S, S + np.diag([1.0, 2.0, 4.0]), S @ S])
    for function in (
        np.linalg.cholesky, lambda x: np.linalg.qr(x)[1], lambda x: np.linalg.svd(x)[1], np.linalg.eigvalsh,
        lambda x: np.linalg.eigh(x)[1] ** 2,
    ):  # fmt: skip
        found = grad(lambda x, f=function: np.sum(np.sin(f(x))))(stack)
        alone = [grad(lambda x, f=function: np.sum(np.sin(f(x))))(x) for x in stack]
        np.testing.assert_allclose(found, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "matrices"),
    [(np.linalg.cholesky, 1), (lambda x: np.linalg.qr(x)[1], 2), (np.linalg.eigvalsh, 1), (np.linalg.svdvals, 2)],
)
def test_saves_factors_only(function, matrices):
    """A record holds the factors that its rule takes, not the matrix beside them."""
    assert saved_values(lambda x: np.sum(function(x + 1.0)), S).nbytes <= matrices * S.nbytes + 8 * 4
