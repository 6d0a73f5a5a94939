"""
Linear systems of `scipy.linalg` whose matrices are stored as diagonals; no matrix is ever made.

The diagonal that is k above the main one is row u - k of `ab`, from column k on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.rules.linalg import solver
from ebbtide.rules.matrices import conjugated
from ebbtide.scipy.linalg.order import answers_for


def _diagonals(shape: Any, upper: int) -> list[tuple[int, slice, slice]]:
    """Return for each row of ab the rows and columns of the matrix in which it is: (row, rows, columns)."""
    count, n = shape[-2:]
    found = []
    for row in range(count):
        above = upper - row
        found.append((row, slice(max(-above, 0), n - max(above, 0)), slice(max(above, 0), n - max(-above, 0))))
    return found


def _band_times(ab: Any, x: Any, upper: int) -> Any:
    """Return the product of a matrix of bands with columns."""
    total = 0
    for row, rows, columns in _diagonals(ab.shape, upper):
        part = np.expand_dims(ab[..., row, columns], -1) * x[..., columns, :]
        total = total + _among(part, rows, x.shape[-2], -2)
    return total


def _among(part: Any, rows: slice, n: int, axis: int) -> Any:
    """Return an array with zeros in front and behind along an axis."""
    widths = [(0, 0)] * part.ndim
    widths[axis] = (rows.start, n - rows.stop)
    return np.pad(part, widths)


def _band_into(y: Any, x: Any, shape: Any, upper: int) -> Any:
    """Return the diagonals of y x^T."""
    made = []
    for _, rows, columns in _diagonals(shape, upper):
        made.append(_among(np.sum(y[..., rows, :] * x[..., columns, :], axis=-1), columns, shape[-1], -1))
    return np.stack(made, axis=-2)


def _transposed_bands(ab: Any, upper: int) -> Any:
    """Return the bands of the transpose, which has as many diagonals above as there are below."""
    n = ab.shape[-1]
    lines = [_among(ab[..., row, columns], rows, n, -1) for row, rows, columns in _diagonals(ab.shape, upper)]
    return np.stack(lines[::-1], axis=-2)


def _solve_bands(ab: Any, b: Any, bands: tuple[int, int]) -> Any:
    return _solve_banded.bind((ab, b), {"bands": bands})


_solve_banded = solver(
    lambda ab, b, bands: linalg.solve_banded(bands, ab, b, check_finite=False),
    "solve_banded",
    back=lambda g, params, a: _solve_bands(_transposed_bands(a, params["bands"][1]), g, params["bands"][::-1]),
    ahead=lambda b, params, a: _solve_bands(a, b, params["bands"]),
    times=lambda t, x, params, a: _band_times(t, x, params["bands"][1]),
    into=lambda y, x, params, a: _band_into(y, x, a.shape, params["bands"][1]),
)


@answers_for(linalg.solve_banded, by_lapack="egG")
def solve_banded(
    l_and_u: tuple[int, int], ab: Any, b: Any, overwrite_ab: bool = False, overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """
    Return x with a x = b for a matrix of bands, as `scipy.linalg.solve_banded`.

    Args:
        l_and_u: How many diagonals are below and above the main one.
        ab: The diagonals, (..., l + u + 1, n); the corners that are not read have a derivative of zero.
        b: A vector, or matrices (..., n, k).
        overwrite_ab: Without effect.
        overwrite_b: Without effect.
        check_finite: Without effect on traced arrays.

    Returns:
        An array of the shape of b.

    Memory:
        A record saves the diagonals and the result.
    """
    return _solve_banded.bind((as_operand(ab), as_operand(b)), {"bands": tuple([int(n) for n in l_and_u])})


def _halves(count: int, lower: bool, dtype: Any) -> Any:
    """Return one for each diagonal that is stored, and one half for the main one."""
    made = np.ones((count + 1, 1), np.finfo(dtype).dtype)
    made[0 if lower else count] = 0.5
    return made


def _both_sides(ab: Any, lower: bool) -> Any:
    """Return the diagonals below and above of a Hermitian matrix, of which one side is stored."""
    count = ab.shape[-2] - 1
    stored = ab * _halves(count, lower, type_of(ab).dtype)
    other = conjugated(_transposed_bands(stored, 0 if lower else count))
    above, below = (other, stored) if lower else (stored, other)
    main = above[..., count:, :] + below[..., :1, :]
    return np.concatenate((above[..., :count, :], main, below[..., 1:, :]), axis=-2)


def _one_side(whole: Any, lower: bool) -> Any:
    """Return the transpose of `_both_sides`."""
    count = whole.shape[-2] // 2
    above, below = whole[..., : count + 1, :], whole[..., count:, :]
    stored, other = (below, above) if lower else (above, below)
    back = conjugated(_transposed_bands(other, count if lower else 0))
    return (stored + back) * _halves(count, lower, type_of(whole).dtype)


def _solve_hermitian(ab: Any, b: Any, lower: bool) -> Any:
    return _solveh_banded.bind((ab, b), {"lower": lower})


_solveh_banded = solver(
    lambda ab, b, lower: linalg.solveh_banded(ab, b, lower=lower, check_finite=False),
    "solveh_banded",
    back=lambda g, params, a: _solve_hermitian(conjugated(a), g, params["lower"]),
    ahead=lambda b, params, a: _solve_hermitian(a, b, params["lower"]),
    times=lambda t, x, params, a: _band_times(_both_sides(t, params["lower"]), x, t.shape[-2] - 1),
    into=lambda y, x, params, a: _one_side(
        _band_into(y, x, (2 * a.shape[-2] - 1, a.shape[-1]), a.shape[-2] - 1), params["lower"]
    ),
)


@answers_for(linalg.solveh_banded, by_lapack="egG")
def solveh_banded(
    ab: Any, b: Any, overwrite_ab: bool = False, overwrite_b: bool = False, lower: bool = False,
    check_finite: bool = True,
) -> Any:  # fmt: skip
    """
    Return x with a x = b for a positive definite matrix of bands, as `scipy.linalg.solveh_banded`.

    Args:
        ab: The main diagonal and those on one side, (..., u + 1, n).
        b: A vector, or matrices (..., n, k).
        overwrite_ab: Without effect.
        overwrite_b: Without effect.
        lower: Which side is stored.
        check_finite: Without effect on traced arrays.

    Returns:
        An array of the shape of b.

    Memory:
        A record saves the diagonals and the result.
    """
    return _solveh_banded.bind((as_operand(ab), as_operand(b)), {"lower": bool(lower)})
