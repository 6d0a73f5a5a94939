"""Least squares and pseudo-inverses of matrices without full rank, tall and wide."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, vjp
from ebbtide.errors import TraceError
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(8)
SHAPES = ((5, 3), (3, 5), (4, 4))


def of_rank(rank, u, v):
    """A matrix of a rank, whatever its factors are."""
    return u[:, :rank] @ v[:rank]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_derivatives_at_a_rank(shape, rank):
    """While the rank stays as it is, solution and pseudo-inverse have the right derivatives to second order."""
    m, n = shape
    u, v, b = RANDOM.standard_normal((m, 3)), RANDOM.standard_normal((3, n)), RANDOM.standard_normal(m)
    check_grads(lambda u, v, b: np.linalg.lstsq(of_rank(rank, u, v), b, 1e-9)[0], u, v, b)
    check_grads(lambda u, v: np.linalg.pinv(of_rank(rank, u, v), 1e-9), u, v)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 2])
def test_results_without_full_rank(shape, rank):
    """Of a deficient matrix the solution is the shortest one, without sums of residuals, and the rank is told."""
    m, n = shape
    a = of_rank(rank, RANDOM.standard_normal((m, 3)), RANDOM.standard_normal((3, n)))
    b = RANDOM.standard_normal((m, 2))
    expected = np.linalg.lstsq(a, b, 1e-9)
    found = vjp(lambda a, b: np.linalg.lstsq(a, b, 1e-9), a, b)[0]
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert found[2] == rank
    np.testing.assert_allclose(found[0], np.linalg.pinv(a, 1e-9) @ b, atol=1e-12)


def test_gradient_of_the_solution_by_the_right_hand_side():
    """The transpose of the solution is the pseudo-inverse transposed: also what is beside the range has zero."""
    a = of_rank(2, RANDOM.standard_normal((5, 3)), RANDOM.standard_normal((3, 4)))
    b, g = RANDOM.standard_normal(5), RANDOM.standard_normal(4)
    found = grad(lambda b: np.linalg.lstsq(a, b, 1e-9)[0] @ g)(b)
    np.testing.assert_allclose(found, np.linalg.pinv(a, 1e-9).T @ g, atol=1e-12)
    beside = np.linalg.svd(a)[0][:, 2:]
    np.testing.assert_allclose(beside.T @ found, 0.0, atol=1e-12)


def test_residuals_of_full_rank():
    """Sums of squared residuals of a tall matrix have the residuals as derivative, twice."""
    a, b = RANDOM.standard_normal((6, 3)), RANDOM.standard_normal((6, 2))
    rest = b - a @ np.linalg.lstsq(a, b)[0]
    found = grad(lambda a, b: np.sum(np.linalg.lstsq(a, b)[1]), (0, 1))(a, b)
    np.testing.assert_allclose(found[1], 2 * rest, atol=1e-12)
    np.testing.assert_allclose(found[0], -2 * rest @ np.linalg.lstsq(a, b)[0].T, atol=1e-12)


def test_a_cutoff_decides_about_the_rank():
    """A singular value below the cutoff counts as zero, in values and derivatives."""
    a = np.diag([2.0, 1e-6])
    b = np.array([1.0, 1.0])
    assert grad(lambda b: np.sum(np.linalg.lstsq(a, b, 1e-3)[0]))(b).tolist() == [0.5, 0.0]
    np.testing.assert_allclose(grad(lambda b: np.sum(np.linalg.lstsq(a, b, 1e-9)[0]))(b), [0.5, 1e6])
    with pytest.raises(TraceError, match="the cutoff has to be a number"):
        grad(lambda a: np.sum(np.linalg.lstsq(a, b, a[0, 0] * 1e-3)[0]))(a)
