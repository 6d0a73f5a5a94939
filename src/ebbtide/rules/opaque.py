"""
Operations without a derivative, which give plain arrays, in one table.

Their derivative is zero wherever it exists (floor, sign, argmax), or their result is no number (comparisons).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.constants import alone, along, constant, elementwise, stand_in_type
from ebbtide.arrays.registry import register

COMPARISONS = (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal,
    np.logical_and, np.logical_or, np.logical_xor, np.logical_not,
    np.isnan, np.isinf, np.isfinite, np.signbit, np.isclose, np.isreal, np.iscomplex, np.isneginf, np.isposinf,
)  # fmt: skip
STEPS = (
    np.floor, np.ceil, np.rint, np.trunc, np.fix, np.round, np.sign, np.floor_divide, np.heaviside,
    np.spacing, np.nextafter,
)  # fmt: skip
SEARCHES = (
    np.argmax, np.argmin, np.nanargmax, np.nanargmin, np.argsort, np.argpartition,
    np.searchsorted, np.digitize, np.any, np.all, np.count_nonzero, np.lexsort,
)  # fmt: skip
FACTS = (
    np.shape, np.ndim, np.size, np.iscomplexobj, np.isrealobj, np.result_type, np.can_cast, np.min_scalar_type,
)  # fmt: skip

# Elements of an array, of which there are more or less by their values: their rules are with those of sorting.
SELECTIONS = (np.unique, np.trim_zeros)
# What depends on the values of an array in a way that shape and dtype do not tell: the shape of the result, a Python
# number or text, or memory. On abstract arrays these raise.
OPAQUE = (
    np.nonzero, np.flatnonzero, np.argwhere, np.allclose, np.array_equal, np.array_equiv,
    np.may_share_memory, np.shares_memory, np.array_repr, np.array_str, np.array2string,
    *SELECTIONS,
)  # fmt: skip

# How the searches are done for all members of a batch; the others are done for one after the other.
BATCHES: Mapping[Any, Any] = MappingProxyType({
    **{f: along(1, None) for f in (np.argmax, np.argmin, np.nanargmax, np.nanargmin)},
    **{f: along(1, None, several=True) for f in (np.any, np.all, np.count_nonzero)},
    np.argsort: along(1, -1),
    np.argpartition: along(2, -1),
    np.searchsorted: alone(1),
    np.digitize: alone(0),
})  # fmt: skip

for _function in COMPARISONS + STEPS + SEARCHES + FACTS:
    _infer = None if isinstance(_function, np.ufunc) else stand_in_type(_function)
    _batch = BATCHES.get(_function) if _function in SEARCHES else elementwise
    register(_function, constant(_function, _infer, _batch))
for _function in OPAQUE:
    if _function not in SELECTIONS:
        register(_function, constant(_function))
for _ufunc in (np.logical_and, np.logical_or):
    _batch = along(1, 0, several=True)
    register(((_ufunc, "reduce"),), constant(_ufunc.reduce, stand_in_type(_ufunc.reduce), _batch))
