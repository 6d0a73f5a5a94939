"""Examples of the functions of `ebbtide.scipy.linalg`, which are called by these names."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import lu_factor

from ebbtide.scipy import linalg

from .example import Example, Fixed
from .linalg_examples import BS, SPD, STACK, TALL, WIDE, A, B, matrices, values

CSPD = A @ A.T / 4 + 2 * np.eye(3)
AB, HB = np.vstack([B[:1].repeat(3), B + 7, BS.T[1], B]), np.vstack([B + 9, BS.T])
PIV = Fixed(lu_factor(A[[1, 0, 2]])[1])

SCIPY_LINALG: dict[Any, tuple[Example, ...]] = {
    linalg.solve: matrices((A, B), (STACK, BS, {"assume_a": "sym"}), (A, BS, {"assume_a": "upper triangular"}),
                           (A, B, {"assume_a": "tridiagonal"}))
    + matrices((SPD, BS, {"assume_a": "pos", "lower": True}), (A, BS, {"transposed": True}), complex=False),
    linalg.inv: matrices((A,), (STACK, {"assume_a": "sym"})),
    linalg.det: matrices((A,), (STACK,)),
    linalg.cholesky: matrices((SPD,), (SPD, True)),
    linalg.cho_factor: matrices((SPD,), (SPD, True)),
    linalg.cho_solve: matrices(((SPD, Fixed(False)), B), ((STACK[0], Fixed(True)), BS)),
    linalg.lu_factor: matrices((A,), (STACK,)),
    linalg.lu: matrices((A,), (A, True), (STACK, {"p_indices": True})),
    linalg.lu_solve: matrices(((A, PIV), B), ((A, PIV), BS, 1), ((A, PIV), BS, 2)),
    linalg.solve_triangular: matrices((A, B), (STACK, BS, "T", True), (A, BS, 2, False, True),
                                       (A, B, {"check_finite": False})),
    linalg.solve_banded: matrices(((2, 1), AB, B), ((1, 2), AB[[0, 2, 1, 3]], BS),
                                   ((2, 1), AB, B, {"check_finite": False})),
    linalg.solveh_banded: matrices((HB, BS, {"lower": True}), (HB[::-1], B)),
    linalg.solve_sylvester: matrices((A, A[:2, :2], BS)),  # no eigenvalues whose sum is near 0
    linalg.solve_continuous_lyapunov: matrices((A, STACK[1])),
    linalg.solve_discrete_lyapunov: matrices((A / 4, STACK[1]))  # real or complex, of condition below 5
    + matrices((A / 8, STACK[1], "bilinear"), complex=False),
    **{f: matrices((A / 2,)) for f in (linalg.expm, linalg.cosm, linalg.sinm, linalg.coshm, linalg.sinhm,
                                 linalg.tanhm)},
    linalg.tanm: matrices((A / 4,)),  # far from the pole at pi / 2
    linalg.sqrtm: matrices((CSPD,)),
    linalg.fractional_matrix_power: matrices((CSPD, 0.3)),
    linalg.eigh: values((SPD, {"driver": "evd"}), (STACK @ STACK.transpose(0, 2, 1), {"lower": False, "driver": "evd"}))
    + matrices((SPD, SPD + CSPD, {"eigvals_only": True})) + matrices((SPD, SPD + CSPD), complex=False),
    linalg.eigvalsh: matrices((A,), (STACK, {"lower": False})),
    linalg.eig: matrices((A,), real=False, smooth=False) + matrices((A, {"right": False})),
    linalg.eigvals: matrices((A,), (STACK,)),
    linalg.svd: values((A,), (TALL, False)) + matrices((TALL, {"compute_uv": False})),
    linalg.svdvals: matrices((STACK,)),
    linalg.qr: matrices((A,), (TALL, {"mode": "economic"}), (WIDE, {"mode": "r"})),
    linalg.polar: matrices((A,), (TALL,), (WIDE, "left")),
    linalg.pinv: matrices((TALL,), (STACK, {"rtol": 1e-8})),
    linalg.pinvh: matrices((SPD,), (CSPD, {"lower": False})),
    linalg.block_diag: matrices((A, B, TALL)),
    linalg.toeplitz: matrices((B,), (B, BS[:, 0])),
    linalg.circulant: matrices((B,)),
    linalg.hankel: matrices((B,), (B, BS[:, 0])),
    linalg.khatri_rao: matrices((A, BS.T)),
    linalg.norm: matrices((A, "nuc"), (A, 1, 1), (STACK, None, (0, 2), True)),
}  # fmt: skip
