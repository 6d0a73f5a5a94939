"""Examples of arithmetic, reductions, indexing, products, shapes, joining and moving."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import numpy as np

from .example import INDEX, MASK, E, Example, Fixed, M, P, S, T, V, Z, between, binary, calls, steps, unary

ELEMENTWISE: dict[Any, tuple[Example, ...]] = {
    **{
        f: unary(-2, 2, complex=True)
        for f in (np.negative, np.positive, np.square, np.exp, np.exp2, np.expm1, np.cos, np.sinh, np.cosh,
                  np.tanh, np.conjugate, np.real, np.imag, np.sinc)
    },
    np.sin: unary(-2, 2, complex=True)
    + calls((M.T, {"order": "C"}), (M[::-1], {"casting": "unsafe", "subok": False}))
    + calls((M, {"dtype": np.float64}), (M, {"signature": "d->d"}), complex=False),
    **{f: unary(0.3, 2, complex=True) for f in (np.reciprocal, np.sqrt, np.log, np.log2, np.log10, np.log1p)},
    **{f: unary(-0.8, 0.8, complex=True) for f in (np.arcsin, np.arccos, np.arctanh, np.tan, np.arctan)},
    **{f: unary(-2, 2) for f in (np.deg2rad, np.radians, np.rad2deg, np.degrees, np.fabs, np.cbrt)},
    np.absolute: unary(-2, 2, complex=True),
    operator.abs: unary(-2, 2, complex=True),
    np.arcsinh: unary(-2, 2, complex=True),
    np.arccosh: unary(1.2, 3, complex=True),
    np.angle: unary(0.2, 2, complex=True) + calls((P, {"deg": True})),
    np.subtract: binary(-2, 2, -2, 2, complex=True),
    # Complex products of one element have two results in NumPy itself: `test_products_of_one_element`.
    np.multiply: tuple(
        [replace(one, complex=any(np.size(x) != 1 for x in one.args)) for one in binary(-2, 2, -2, 2, complex=True)]
    ),
    np.add: binary(-2, 2, -2, 2, complex=True) + calls((M, M[0], {"dtype": np.complex128})),
    np.true_divide: binary(-2, 2, 0.4, 2, complex=True),
    np.power: binary(0.4, 2, -2, 2, complex=True)
    + calls(*[(M, n) for n in (0, 1, 2, 3)], *[(P, n) for n in (-1, -2, 0.5, -0.5)], complex=False)
    + calls((P, 0.5)),
    operator.pow: binary(0.4, 2, -2, 2, complex=True)
    + calls((M, 2), (P, -1), (P, -0.5), complex=False)
    + calls((P, 0.5)),
    np.float_power: binary(0.4, 2, -2, 2, complex=True)[:6],
    # The numbers of the second operand lie in the middle between those of the first: none are near a tie.
    **{f: binary(-2, 2, -11 / 6, 13 / 6, complex=True) for f in (np.maximum, np.minimum, np.fmax, np.fmin)},
    **{f: binary(-2, 2, -11 / 6, 13 / 6) for f in (np.logaddexp, np.logaddexp2)},
    np.arctan2: binary(-2, 2, 0.4, 2),
    np.hypot: binary(-2, 2, 0.4, 2),
    np.copysign: binary(0.3, 2, -2, 2),
    np.remainder: binary(1.1, 1.4, 0.77, 0.83, second=False),
    np.fmod: binary(1.1, 1.4, 0.77, 0.83, second=False),
}  # fmt: skip

SELECTION: dict[Any, tuple[Example, ...]] = {
    np.where: calls((MASK, M, M * 2), (MASK, M, 0.5), (MASK, 0.5, M), (MASK, M, V[:4]), (MASK, S, M),
                    (Fixed(np.True_), M, S), (Fixed(np.array([0, 1, 2, 0])), M, S)),
    np.clip: calls((M, -1.01, 0.52), (M, None, 0.52), (M, -1.01, None), (M, V[:4] - 1, V[:4] + 1), (S, -1.0, 1.0),
                   (M, {"min": -1.01, "max": 0.52}))
    + calls((M, -1.01, 0.52, {"dtype": np.float64}), complex=False),
    np.astype: calls((M, Fixed(np.complex128))) + calls((M, np.float64), complex=False)
    + steps((M, np.int64), (M, bool)),
    np.copy: calls((M,), (M.T, {"order": "F"}), (S,), (Z,)),
    np.nan_to_num: calls((M,), (np.array([1.0, 2.0]), {"nan": 3.0}))
    + calls((np.array([1.0, np.nan, np.inf, -np.inf]), {"nan": 3.0, "posinf": 4.0, "neginf": -5.0}), complex=False),
}  # fmt: skip

SOME = Fixed(np.array([True, False, True, True]))
AXES: tuple[Any, ...] = ((T,), (T, 0), (T, -1), (T, (0, 2)), (T, {"axis": 1, "keepdims": True}), (S,), (Z,), (M.T, 0))

REDUCTIONS: dict[Any, tuple[Example, ...]] = {
    np.sum: calls(*AXES, (E,), (E, 0), (M, {"where": MASK}), (M, {"where": MASK, "axis": 0}), (M, {"initial": 2.0}),
                  (M, {"where": MASK, "initial": 2.0, "keepdims": True}), (M, 0, np.complex128)),
    (np.add, "reduce"): calls((M,), (T, 1), (M, {"axis": None})),
    np.mean: calls(*AXES, (M, {"where": SOME, "axis": 1}), (M, {"axis": 1, "dtype": np.complex128})),
    np.max: calls(*AXES, (M, {"initial": 0.1}), (M, {"where": MASK, "initial": -9.0})),
    np.min: calls(*AXES, (M, {"initial": 0.1}), (M, {"where": MASK, "initial": 9.0})),
    (np.maximum, "reduce"): calls((M,), (M, {"axis": 1, "where": SOME, "initial": 0.1}), complex=False),
    (np.minimum, "reduce"): calls((M,), (M, {"axis": 1}), complex=False),
    np.prod: calls(*AXES[1:], (M[0],), (E,), (E, 0), (np.array([2.0, 0.0, 3.0]),),
                   (np.array([2.0, 0.0, 0.0]),), (M, {"where": SOME, "initial": 2.0, "axis": 1}),
                   (M, {"dtype": np.complex128, "axis": 0})),
    (np.multiply, "reduce"): calls((M,), (M, {"axis": 1})),
    np.var: calls(*AXES[:5], (M, {"ddof": 1}), (M, {"where": MASK}), (M, {"correction": 1, "mean": 0.1, "axis": 0}))
    + calls((M, {"dtype": np.float64, "axis": 1}), complex=False),
    np.std: calls(*AXES[:5], (M, {"ddof": 1}), (M, {"where": SOME, "axis": 1}), (M, {"mean": 0.1, "where": MASK}),
                  (M, {"correction": 1, "axis": 1})),
    np.cumsum: calls((M,), (M, 0), (M, -1), (V,), (M.T, 1), (M, {"axis": 1, "dtype": np.complex128})),
    np.trace: calls((M,), (T, {"axis1": 1, "axis2": 2}), (T, 1, 0, 2), (M, {"dtype": np.complex128})),
}  # fmt: skip

INDEXING: dict[Any, tuple[Example, ...]] = {
    operator.getitem: calls(
        (V, 2), (M, -1), (M, slice(None, None, -2)), (M, (slice(1, None), None, 2)), (T, (Ellipsis, 1)), (M, MASK),
        (V, INDEX), (M, (slice(None), INDEX)), (M, (Fixed(np.array([0, 2])), Fixed(np.array([1, 1])))),
        (T, (1, slice(None), INDEX)), (T, (Fixed(np.array([0, 1, 1])), slice(None), 2)), (V, [0, 0]), (M, True),
        (V, Fixed(np.zeros(0, int))), (Z, ()), (V, slice(3, 1)),
    ),
    operator.setitem: calls(
        (V, 2, S), (M, slice(1, None), M[0]), (M, (slice(None), 1), 3.0), (M, MASK, S), (M, MASK, V[:4]),
        (V, Fixed(np.array([1, 3, 1])), V[:3]), (V, [0, 0], 2.0), (M, (slice(0, 2), slice(0, 3)), M[None, 1:, 1:]),
        (M, Ellipsis, M[::-1]), (T, (slice(None), 1), M[:1]), (V, slice(1, 1), V[:0]), (M, 1, M[None, :1]),
        (M, (INDEX, 1), V[:4]), (Z, (), S),
    ),
    np.take: calls((V, INDEX), (M, INDEX, 1), (M, 2, 0), (M, INDEX),
                   (V, Fixed(np.array([7, -9])), None, {"mode": "wrap"}),
                   (V, Fixed(np.array([7, -9])), None, {"mode": "clip"})),
    np.take_along_axis: calls((M, Fixed(np.argsort(M, 1)), 1), (M, Fixed(np.array([[0, 2, 1, 1]])), 0),
                              (M, Fixed(np.array([[2]])), 1), (V, Fixed(np.array([3, 3])), None)),
    np.compress: calls((Fixed(np.array([True, False, True])), M, 0), (Fixed(np.array([0, 1, 1])), V)),
    np.sort: calls((V,), (M, 0), (M, None), (M.T, {"kind": "stable"}), (T, 1), (E, 0), (E,),
                   (M, {"axis": 0, "stable": True})),
}  # fmt: skip

W, N3 = between(-2, 2, 4, 2), between(-2, 2, 2, 4, 3)
MATMUL: tuple[Any, ...] = ((M, W), (M, V[:4]), (V[:3], M), (V, V + 1), (T, W), (T, N3), (M, N3), (T, V[:4]), (V[:3], T),
                           (np.ones((3, 0)), np.ones((0, 2))), (M.T[::2, ::2], M[::2]))  # fmt: skip

PRODUCTS: dict[Any, tuple[Example, ...]] = {
    np.matmul: calls(*MATMUL, (N3, W, {"axes": [(2, 1), (0, 1), (1, 0)]}), (M, W, {"dtype": np.complex128})),
    np.dot: calls((M, W), (M, V[:4]), (V, V + 1), (T, W), (T, N3), (V[:4], N3), (T, V[:4]), (S, M), (M, 2.0),
                  ([1.0, 2.0, 3.0], M)),
    np.tensordot: calls((T, M.T, 1), (T, T + 1, ((0, 1), (0, 1))), (T, N3, ((2, 0), (1, 0))), (V, V, 0),
                        (M, W, ([1], [0]))),
    np.inner: calls((V, V + 1), (M, M + 1), (T, M), (M, T), (S, M), (V[:4], T)),
    np.outer: calls((V, M), (S, V)),
    np.vdot: calls((V, V + 1), (M, M + 1)),
    np.vecdot: calls((V, V + 1), (M, M + 1), (M, V[:4]), (M, M + 1, {"axis": 0}),
                     (T, T + 1, {"axis": 1, "keepdims": True})),
    np.kron: calls((V, V[:2]), (M + 0.4, W - 0.3), (V - 0.4, M + 0.4)),
    np.linalg.matmul: calls((M, W)),
    np.linalg.outer: calls((V, V[:2])),
    np.linalg.multi_dot: calls(([M, W],), ([M, W, W.T, W],), ([V[:3], M, W],), ([M, M.T, M, V[:4]],)),
    np.einsum: calls(("ij,jk->ik", M, W), ("ij,jk", M, W), ("ij->ji", M), ("ij->i", M), ("ii->i", M[:, :3]),
                     ("ii", M[:, :3]),
                     ("ij,jk,kl->il", M, W, W.T), ("...ij,...jk->...ik", T, N3), ("...,...j", M, W),
                     ("i,j->ij", V, V[:2]), ("ij,ij->", M, M + 1),
                     ("ij,kj->", M, M + 1), ("ij,jk,kl->il", M, W, W.T, {"optimize": True}),
                     ("iij,j->i", T[:2, :2], V[:4]),
                     ("i,i->i", V, V[:1]), (M, Fixed([0, 1]), W, Fixed([1, 2])), (M, [0, 1], M, [2, 1], [2, 0]),
                     (T, Fixed([Ellipsis, 1]), Fixed([1, Ellipsis])),
                     ("ij->ji", M, {"order": "C"}), ("ij,jk", M, W, {"dtype": np.complex128})),
}  # fmt: skip

SHAPES: dict[Any, tuple[Example, ...]] = {
    np.reshape: calls((M, (4, 3)), (M, -1), (M.T, (2, -1)), (M, (2, 6), "F"), (S, (1, 1)), (E, (3, 0, 2)),
                      (M, (4, 3), {"copy": True})),
    np.ravel: calls((M,), (M.T,), (M, "F"), (S,)),
    np.expand_dims: calls((M, 0), (M, -1), (M, (0, 3)), (M.T, 1), (M, np.int64(1))),
    np.squeeze: calls((M[:, None],), (M[None, :, None], 0), (V[:1],)),
    np.transpose: calls((M,), (T, (2, 0, 1)), (V,)),
    np.swapaxes: calls((T, 0, -1), (T, 1, 1)),
    np.matrix_transpose: calls((T,)),
    np.moveaxis: calls((T, 0, -1), (T, (0, 1), (-1, -2))),
    np.rollaxis: calls((T, 2), (T, 0, 3), (T, 1, 0)),
    np.diagonal: calls((M,), (M, 1), (M, -1), (T, 0, 1, 2), (T, 0, 2, 0), (M, 7)),
    np.diag: calls((V,), (V, 1), (V, -2), (M,), (M, 1)),
    np.broadcast_to: calls((V, (2, 5)), (S, (2, 3)), (M[:, :1], (2, 3, 4)), (S, 3)),
    np.broadcast_arrays: calls((M, V[:4]), (M[:, :1], V)),
}

JOINING: dict[Any, tuple[Example, ...]] = {
    np.concatenate: calls(([M, M + 1],), ([M, W.T], 0), ([M, M[:, :1]], 1), ([M, V], None),
                          ([M, [[1.0, 2.0, 3.0, 4.0]]],),
                          ([E, M[:, :3]],), ([M, M], 1, {"dtype": np.complex128})),
    np.stack: calls(([M, M + 1],), ([M, M + 1], -1), ([S, S + 1],), ([V, Fixed(np.arange(5))],),
                    ([M, M], {"dtype": np.complex128})),
    np.vstack: calls(([V, V + 1],), ([M, V[:4]],), ([M, M], {"dtype": np.complex128})),
    np.hstack: calls(([V, V + 1],), ([M, M],), ([S, V],), ([M, M], {"dtype": np.complex128})),
    np.dstack: calls(([V, V + 1],), ([M, M + 1],)),
    np.column_stack: calls(([V, V + 1],), ([M, V[:3]],)),
    np.append: calls((M, V), (M, M, 0)),
    np.atleast_1d: calls((S,), (M,), (S, V)),
    np.atleast_2d: calls((S,), (V,), (T,), (S, V)),
    np.atleast_3d: calls((S,), (V,), (M,), (T,)),
    np.array_split: calls((V, 3), (M, 2, 1), (V, [1, 3])),
    np.split: calls((V, 5), (M, [1, 2], 1), (V, [2, 9])),
    np.vsplit: calls((M, 3), (M, {"indices_or_sections": [1]})),
    np.hsplit: calls((M, 2), (V, [2])),
    np.dsplit: calls((T, 2)),
}  # fmt: skip

MOVING: dict[Any, tuple[Example, ...]] = {
    np.roll: calls((V, 2), (M, -1), (M, 1, 0), (M, (1, 2), (0, 1)), (M, (1, 2), 0)),
    np.flip: calls((M,), (M, 1), (T, (0, 2))),
    np.flipud: calls((M,)),
    np.fliplr: calls((M,)),
    np.rot90: calls((M,), (M, 2), (T, -1, (0, 2)), (M, 4)),
    np.repeat: calls((V, 2), (M, 3, 1), (M, [1, 0, 2], 0), (M, 2)),
    np.tile: calls((V, 2), (M, (2, 1)), (V, (2, 2)), (T, 2)),
    np.pad: calls((V, 2), (M, ((1, 0), (2, 1))), (V, (1, 2), {"constant_values": 3.0}), (M, 1, "edge"),
                  (V, 3, "reflect"), (V, 2, "symmetric"), (M, 2, "wrap"), (M, ((2, 0), (1, 1)), "mean"),
                  (M, 1, "median", {"stat_length": 2}), (M, ((9, 2), (0, 7)), "reflect", {"reflect_type": "odd"}),
                  (V, (6, 7), "symmetric", {"reflect_type": "odd"}), (M, 2, "linear_ramp", {"end_values": (0.5, 1)})),
    np.tril: calls((M,), (M, -1), (T, 1), (V,)),
    np.triu: calls((M,), (M, -1), (T, 1), (V,)),
    np.linspace: calls((S, S + 2, 5), (V, V + 1, 4), (S, 3.0, 4, False), (V, S, 3, {"axis": -1}), (S, S, 1),
                       (S, S + 2, 4, {"retstep": True}), (S, V, 3, True, True, np.complex128)),
    np.full_like: calls((M, S), (M, S, {"dtype": np.complex128, "order": "F"}), (M, V, {"shape": (2, 5)})),
}  # fmt: skip

CONSTANT: dict[Any, tuple[Example, ...]] = {
    **{
        f: steps((M, M[::-1]), (M, 0.5), (S, M))
        for f in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.logical_and,
                  np.logical_or, np.logical_xor, np.isclose, np.floor_divide, np.heaviside, np.nextafter)
    },
    **{
        f: steps((M,), (S,))
        for f in (np.logical_not, np.isnan, np.isinf, np.isfinite, np.signbit, np.isreal, np.iscomplex, np.isneginf,
                  np.isposinf, np.floor, np.ceil, np.rint, np.trunc, np.fix, np.sign, np.spacing, np.shape, np.ndim,
                  np.size, np.iscomplexobj, np.isrealobj, np.min_scalar_type)
    },
    **{f: steps((M,), (M, {"axis": 0})) for f in (np.argmax, np.argmin, np.nanargmax, np.nanargmin, np.any, np.all)},
    **{f: steps((M,)) for f in (np.nonzero, np.flatnonzero, np.argwhere, np.array_repr, np.array_str, np.array2string)},
    **{f: steps((M, M + 1)) for f in (np.allclose, np.array_equal, np.array_equiv, np.may_share_memory,
                                      np.shares_memory)},
    np.round: steps((M,), (M, 1)),
    np.argsort: steps((M,), (M, 0), (M, None), (V, {"kind": "stable"})),
    np.argpartition: steps((V, 2),),
    np.count_nonzero: steps((M,), (M, {"axis": 0})),
    np.searchsorted: steps((Fixed(np.arange(-2.0, 2)), V), (np.sort(V), Fixed(0.5))),
    np.digitize: steps((V, Fixed(np.arange(-2.0, 2)))),
    np.lexsort: steps(((V, V + 1),)),
    np.result_type: steps((M, 1.0)),
    np.can_cast: steps((Fixed(np.dtype(np.float32)), Fixed(np.float64))),
    (np.logical_and, "reduce"): steps((M,)),
    (np.logical_or, "reduce"): steps((M, {"axis": 1})),
    **{f: steps((M,), (M, {"dtype": np.float32, "shape": (2, 2)})) for f in (np.zeros_like, np.ones_like)},
}  # fmt: skip

BASIC: dict[Any, tuple[Example, ...]] = {
    **ELEMENTWISE, **SELECTION, **REDUCTIONS, **INDEXING, **PRODUCTS, **SHAPES, **JOINING, **MOVING,
    **CONSTANT,
}  # fmt: skip
