"""
Functions of `scipy.linalg` for traced arrays, with SciPy's signatures; on plain arrays they are SciPy's own.

Nothing is overwritten: `overwrite_a` and its kin have no effect on traced arrays. Where SciPy reads one triangle of a
matrix, the derivative with respect to the other one is zero. Results are in C order.
"""

from ebbtide.scipy.linalg.bands import solve_banded, solveh_banded
from ebbtide.scipy.linalg.factors import cho_factor, cholesky, det, inv, lu, lu_factor
from ebbtide.scipy.linalg.functions import (
    coshm,
    cosm,
    expm,
    fractional_matrix_power,
    logm,
    sinhm,
    sinm,
    solve_continuous_lyapunov,
    solve_discrete_lyapunov,
    solve_sylvester,
    sqrtm,
    tanhm,
    tanm,
)
from ebbtide.scipy.linalg.orthogonal import lstsq, pinv, pinvh, polar, qr, svd, svdvals
from ebbtide.scipy.linalg.patterns import block_diag, circulant, hankel, khatri_rao, norm, toeplitz
from ebbtide.scipy.linalg.solvers import cho_solve, lu_solve, solve, solve_triangular
from ebbtide.scipy.linalg.spectra import eig, eigh, eigvals, eigvalsh

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "coshm", "cosm", "det", "eig", "eigh", "eigvals",
    "eigvalsh", "expm", "fractional_matrix_power", "hankel", "inv", "khatri_rao", "logm", "lstsq", "lu", "lu_factor",
    "lu_solve", "norm", "pinv", "pinvh", "polar", "qr", "sinhm", "sinm", "solve", "solve_banded",
    "solve_continuous_lyapunov", "solve_discrete_lyapunov", "solve_sylvester", "solve_triangular", "solveh_banded",
    "sqrtm", "svd", "svdvals", "tanhm", "tanm", "toeplitz",
]  # fmt: skip
