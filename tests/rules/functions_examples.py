"""Examples of the rest of NumPy: products of vectors, polynomials, choices, grids, writing, and `ebbtide.numpy`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import ebbtide.numpy as enp

from .example import INDEX, MASK, E, Example, Fixed, M, P, S, T, V, Z, between, binary, calls, steps, unary

V3 = between(-2, 2, 4, 3)
N3 = between(-2, 2, 2, 4, 3)
K = np.array([0.0, 0.7, 1.1, 2.3, 3.1])  # points of an interpolation
X = between(-0.51, 3.7, 7)
FAR = np.array([0.3, -0.9, 1.4, 0.8, -0.2])
BITS = Fixed(np.array([[1, 5, 2], [4, 0, 3]]))

VECTORS: dict[Any, tuple[Example, ...]] = {
    np.cross: calls((V3, V3 + 1), (V3[0], V3.T, {"axisb": 0}), (N3, V3, -1, -1, 0), (V3.T, V3.T + 1, {"axis": 0})),
    np.matvec: calls((T, V[:4]), (M, T[:, 0]), (T, M[:, None])),
    np.vecmat: calls((V[:3], T), (T[:, :, 0], M), (M.T[:, None], T)),
}

POLYNOMIALS: dict[Any, tuple[Example, ...]] = {
    np.convolve: calls((V, V[:2]), (V[:2], V, "same"), (M[0], V[:4], "same"), (V, M[0], "valid"), (V[:1], V)),
    np.correlate: calls((V, V[:2]), (V[:2], V, "same"), (M[0], V[:3], "same"), (V, M[0], "full"),
                        (V[:2], M[0], "full")),
    np.polyval: calls((V[:4], M), (V[:1], V), (V, S), (V, 0.5)),
    np.polyadd: calls((V, V[:2]), (S, V), (V[:3], M[0])),
    np.polysub: calls((V, V[:2]), (V[:3], M[0])),
    np.polyder: calls((V,), (V, 2)),
    np.polyint: calls((V,), (V, 0), (V, 2), (V, 2, [1.0, 2.0]), (V, 1, V[:1])),
    np.vander: calls((V,), (V, 3), (V, {"increasing": True}), (V, 0), (V, 1)),
    np.polymul: calls((M[0], M[1, :2]), (Fixed(np.array([0.0, 0.0, 2.0, 1.0])), M[0])),
    # How many numbers the remainder has depends on roundings, unless the divisor begins with a power of two.
    np.polydiv: calls((M[0], Fixed(np.array([2.0, 1.0]))), (V + 3, Fixed(np.array([-0.5, 0.7, 1.3]))))
    + tuple([replace(e, smooth=False) for e in calls((V + 3, P[:2, 0]), (M[:2, 0], P[0]))]),
    np.polyfit: calls((FAR, V, 2), (FAR, np.stack([V, V[::-1]], -1), 1), (FAR, V, 1, {"w": P[0, :1] + np.ones(5)}),
                      (FAR, V, 2, {"full": True}), (FAR, V, 1, {"cov": True}), (Fixed(FAR), V, 2, {"cov": "unscaled"}),
                      half=False, complex=False),
    np.poly: calls((V[:3],), complex=False),
    np.roots: (Example((np.array([1.0, 1.5, -3.0, 0.3]),), complex=True, half=False),),
}  # fmt: skip

LINES: dict[Any, tuple[Example, ...]] = {
    # The points have to stay in order.
    np.interp: (*[replace(e, rolled=False) for e in calls(
                       (X, Fixed(K), K**2), (X, K, Fixed(np.sin(K)), -1.0, 2.0), (S, K, K**2),
                       (X, K, K, {"period": 2.9}),
                       (X[:2], K[:1], V[:1]), (X, K, K**2, S, S + 1), complex=False)],
                Example((Fixed(X), Fixed(K), K**2), complex=True)),
    np.unwrap: calls((V * 4,), (M * 5, {"axis": 0}), (M * 5, 4.0, {"period": 3.0}), complex=False),
    np.i0: unary(-3, 3)[:3],
}  # fmt: skip

NUMBERS: dict[Any, tuple[Example, ...]] = {
    np.modf: unary(0.2, 0.9),
    np.frexp: unary(0.55, 0.95),
    np.ldexp: calls((M, Fixed(np.arange(4))), (S, Fixed(3)), (Z, Fixed(np.array([2, -2]))), complex=False),
    np.divmod: binary(1.1, 1.4, 0.77, 0.83, second=False)[:4],
    np.real_if_close: calls((M,), (M, {"tol": 50})),
}

CHOICES: dict[Any, tuple[Example, ...]] = {
    np.select: calls(([MASK, Fixed(~MASK.value)], [M, M * 2]), ([MASK], [V[:4]], 0.5), ([MASK, MASK], [S, M], S),
                     ([Fixed(MASK.value[0]), Fixed(MASK.value)], [S, S])),
    np.choose: calls((INDEX, [M[0], M[1], M[2]], {"mode": "wrap"}), (Fixed(np.array([0, 1, 1])), [S, V[:3]]),
                     (INDEX, M, {"mode": "clip"})),
    np.piecewise: calls((M, [MASK], [np.sin, np.cos]), (M, [MASK], [np.square]), (V, Fixed(V > 0), [2.0, np.exp])),
    np.apply_along_axis: calls((np.cumsum, 1, M), (np.sum, 0, M), (np.outer, 1, M + 0.4, V[:2])),
    np.apply_over_axes: calls((np.sum, T, [0, 2]), (np.mean, T, 1)),
}  # fmt: skip

GRIDS: dict[Any, tuple[Example, ...]] = {
    np.unstack: calls((M,), (T, {"axis": 1})),
    np.block: calls(([[M, M[:, :1]], [V[:4], S]],), ([V, S, 2.0],), (M,), ([T, T],)),
    np.meshgrid: calls((V, M[0]), (V, M[0], {"indexing": "ij", "sparse": True}), (V,), (V, M[0], V[:2])),
    np.ix_: calls((V, M[0]), (V, Fixed(np.array([True, False])))),
    np.resize: calls((V, (3, 4)), (M, 5), (M, (0, 2)), (V, 5), (E, (2, 2))),
    np.delete: calls((V, 1), (M, slice(None, None, 2), 1), (M, [0, -1], 0), (M, [0, 3, 3])),
    np.insert: calls((V, 1, S), (V, [0, 3, 3], V[:3]), (M, 1, V[:4], 0), (M, 1, V[:3], 1), (M, [0, 2], V[:2], 1),
                     (M, 2, M, 0), (M, slice(0, 2), S, 0), (V, 2, [1.0, 2.0])),
    np.diagflat: calls((V,), (M, -1)),
    np.extract: calls((MASK, M),),
    np.logspace: calls((S, S + 1, 4), (V, V + 1, 3, {"axis": -1}), (S, 2.0, 3, {"base": 2.0})),
    np.geomspace: calls((P[0], P[1], 4), (P[0, 0], 3.0, 3, {"endpoint": False}), (P[0], 2.0, 3, {"axis": -1}),
                        (-P[0], -P[1], 3), complex=False),
}  # fmt: skip

WRITING: dict[Any, tuple[Example, ...]] = {
    np.copyto: calls((M, V[:4]), (M, M[::-1], {"where": MASK}), (M, 2.0)),
    np.put: calls((M, [0, 5, 5], V[:3]), (M, INDEX, V[:2]), (M, [17, -20], S, {"mode": "wrap"}),
                  (M, [17, -20], S, {"mode": "clip"})),
    np.place: calls((M, MASK, V[:2]), (M, MASK, S)),
    np.putmask: calls((M, MASK, M * 2), (M, MASK, V[:2]), (M, MASK, 3.0)),
    np.put_along_axis: calls((M, Fixed(np.array([[0, 2, 1, 1]])), V[:4], 0), (V, Fixed(np.array([3, 3])), S, None)),
    np.fill_diagonal: calls((M, S), (M, V[:2]), (M.T, 1.5, {"wrap": True}), (T[:, :2, :2], V[:3])),
    (np.add, "at"): calls((V, Fixed(np.array([1, 3, 1])), V[:3]), (M, (slice(None), INDEX), V[:3, None]), (M, MASK, S),
                          (V, [0, 0], 2.0)),
    (np.subtract, "at"): calls((V, Fixed(np.array([1, 3, 1])), V[:3]), (V, 2, S)),
    (np.multiply, "at"): calls((V, [1, 3], V[:2]), (M, MASK, S), complex=False),
    (np.true_divide, "at"): calls((V, [1, 3], P[0, :2]), complex=False),
    (np.maximum, "at"): calls((V, [1, 3], V[:2] + 0.01), complex=False),
    (np.minimum, "at"): calls((V, [1, 3], V[:2] + 0.01), complex=False),
}  # fmt: skip

INTEGERS: dict[Any, tuple[Example, ...]] = {
    **{f: steps((BITS, Fixed(3))) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift,
                                            np.right_shift, np.gcd, np.lcm)},
    **{f: steps((BITS,)) for f in (np.invert, np.bitwise_count)},
    **{f: steps((M[:, :3],)) for f in (np.diag_indices_from, np.tril_indices_from, np.triu_indices_from)},
    np.around: steps((M,), (M, 1)),
    np.isin: steps((M, Fixed(M[0]))),
}  # fmt: skip

FUNCTIONS: dict[Any, tuple[Example, ...]] = {
    **VECTORS, **POLYNOMIALS, **LINES, **NUMBERS, **CHOICES, **GRIDS, **WRITING, **INTEGERS,
}  # fmt: skip

ARRAYS: dict[Any, tuple[Example, ...]] = {
    enp.array: calls(([S, 2.0, S],), ([[S, 1.0], V[:2]],), (M, {"ndmin": 3}), (M, {"order": "F"}), (V, Fixed(complex))),
    enp.asarray: calls(([S, V[0]],), (M,), ([M[0], M[1]], {"dtype": Fixed(complex), "order": "F", "copy": True})),
    enp.asanyarray: calls(([S, V[0]],)),
    enp.asarray_chkfinite: calls(([S, V[0]],)),
    enp.ascontiguousarray: calls((M.T,), (S,)),
    enp.asfortranarray: calls((M,)),
    enp.require: calls((M.T, None, "C"), (M, {"requirements": ["F", "W"]})),
    enp.full: calls(((2, 3), S), ((3, 4), V[:4]), (3, S, {"dtype": Fixed(complex)}), ((2, 4), V[:4], {"order": "F"})),
    enp.full_like: calls((Fixed(M), V[:4]), (Fixed(M), S, {"shape": 2}), complex=False),
    enp.arange: calls((S, S + 3.1, 0.7), (Fixed(0.0), 3.2, np.float64(0.7)), complex=False),
    enp.fromiter: calls(([S, V[0]], Fixed(np.complex128))),
}  # fmt: skip
