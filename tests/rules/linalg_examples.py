"""Examples of linear algebra: stacks, tall and wide matrices, triangles that are not read."""

from __future__ import annotations

from typing import Any

import numpy as np

from .example import Example, calls, steps

RNG = np.random.default_rng(11)
A = RNG.standard_normal((3, 3)) + 2 * np.eye(3)
STACK = RNG.standard_normal((2, 3, 3)) + np.diag([4.0, -2.5, 1.5])  # far from equal eigenvalues
TALL, WIDE = RNG.standard_normal((4, 2)), RNG.standard_normal((2, 4))
SPD = A @ A.T + np.eye(3)
B, BS = RNG.standard_normal(3), RNG.standard_normal((3, 2))
U, W3 = RNG.standard_normal((2, 3)), RNG.standard_normal(3)


def matrices(*args: Any, complex: bool = True, real: bool = True, smooth: bool = True) -> tuple[Example, ...]:  # noqa: A002
    """Return examples of a function of matrices, which LAPACK has not in half precision."""
    made = calls(*args)
    return tuple(Example(e.args, e.kwargs, complex, smooth, real, half=False, rolled=False) for e in made)


def values(*args: Any) -> tuple[Example, ...]:
    """Return examples whose complex results are determined up to a phase only, of which values are compared."""
    return matrices(*args, complex=False) + matrices(args[0], real=False, smooth=False)


LINALG: dict[Any, tuple[Example, ...]] = {
    np.linalg.solve: matrices((A, B), (A, BS), (STACK, B), (STACK, BS), (A[None], STACK)),
    np.linalg.inv: matrices((A,), (STACK,), (np.zeros((0, 3, 3)),)),
    np.linalg.det: matrices((A,), (STACK,)),
    np.linalg.slogdet: matrices((A,), (STACK,)),
    np.linalg.matrix_power: matrices((A, 3), (A, -2), (STACK, 5), (A, 1)),
    np.linalg.tensorsolve: matrices((np.reshape(A, (3, 1, 3)), B[:, None]), (np.reshape(A, (3, 3, 1)), B, (0,))),
    np.linalg.tensorinv: matrices((np.reshape(A, (3, 3, 1)), 1)),
    np.linalg.pinv: matrices((TALL,), (WIDE, 1e-8), (STACK, {"rtol": 1e-8}), (A, {"hermitian": True})),
    np.linalg.lstsq: matrices((TALL, np.ones(4) + TALL[:, 0]), (TALL, TALL[::-1], 1e-9), (WIDE, BS[:2])),
    np.linalg.cholesky: matrices((SPD,), (np.stack([SPD, SPD + A @ A.T]), {"upper": True})),
    np.linalg.eigh: values((A,), (STACK, "U")),
    np.linalg.eigvalsh: matrices((A,), (STACK, "U")),
    np.linalg.eig: matrices((A,), (STACK,), real=False, smooth=False),
    np.linalg.eigvals: matrices((A,), (STACK,), real=False),
    np.linalg.svd: values((A,), (TALL, False), (np.stack([WIDE, WIDE[::-1] + 1]), False), (A, {"hermitian": True}))
    + matrices((TALL, True, False), (STACK, {"compute_uv": False, "hermitian": True})),
    np.linalg.svdvals: matrices((STACK,)),
    np.linalg.qr: matrices((A,), (TALL,), (np.stack([WIDE, WIDE[::-1] + 1]), "complete"), (TALL, "r")),
    np.linalg.cond: matrices((A,), (STACK, -2), (STACK, 1), (A, "fro")),
    np.linalg.norm: matrices(
        (W3,), (U,), (U, "fro"), (U, {"axis": 1}), (STACK, None, (0, 2)), (STACK, {"keepdims": True}),
        (U, {"axis": 0, "keepdims": True}), (U, 1, 0), (U, np.inf, 1), (U, 3, 1), (U, 0.5, 1),
        *[(STACK, order, (0, 2)) for order in (1, -np.inf, 2)],
        *[(STACK, order, (2, 1), True) for order in (-2, "nuc", -1)],
    ),
    np.linalg.matrix_norm: matrices((STACK,), (STACK, {"ord": 1, "keepdims": True})),
    np.linalg.vector_norm: matrices((U,), (STACK, {"axis": (0, 2), "ord": 3, "keepdims": True}), (U, {"axis": 0})),
    np.linalg.matrix_rank: steps((A,), (STACK, 0.1)),
    np.linalg.diagonal: calls((STACK, {"offset": 1})),
    np.linalg.trace: calls((STACK,), (STACK, {"offset": -1})),
    np.linalg.matrix_transpose: calls((STACK,)),
    np.linalg.tensordot: calls((STACK, A, {"axes": 1})),
    np.linalg.cross: calls((U, W3), (U.T, U.T, {"axis": 0})),
    np.linalg.vecdot: calls((U, W3), (U.T, U.T, {"axis": 0})),
}  # fmt: skip
