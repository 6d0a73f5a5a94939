"""
Rules of choosing and converting: where, clip, casts, copies, and the parts of complex numbers.

The cotangent of a complex z for a real function f is df/dx - i df/dy, as in JAX and autograd.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import constant, stand_in_type
from ebbtide.arrays.constants import elementwise as elementwise_constant
from ebbtide.arrays.context import meet_plain
from ebbtide.arrays.kinds import elementwise, linear, linear_of_many
from ebbtide.arrays.primitive import matched
from ebbtide.arrays.registry import register
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import as_array, linked
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import number

# Complex numbers.


def _real_part(x: Any) -> Any:
    return x.real


def _imaginary_part(x: Any) -> Any:
    return x.imag


def _real_type(kind: ArrayType) -> ArrayType:
    return ArrayType(kind.shape, np.real(np.zeros((), kind.dtype)).dtype)


_conjugate = linear(
    np.conjugate,
    lambda g, kind: np.conjugate(g),
    infer=lambda kind: kind,
    batch=np.conjugate,
    name="conjugate",
)
_real = linear(
    _real_part,
    lambda g, kind: g,
    infer=_real_type,
    batch=np.real,
    aliases=True,
    put=lambda base, params, view: _complex.bind((view, np.imag(base))),
    name="real",
)
_imag = linear(
    _imaginary_part,
    lambda g, kind: np.multiply(g, -1j),
    infer=_real_type,
    batch=np.imag,
    aliases=True,
    put=lambda base, params, view: _complex.bind((np.real(base), view)),
    name="imag",
)



def _joined_parts(x: Any, y: Any) -> Any:
    """Return x + i y, of nan and infinities too: a product with i would mix them."""
    made = np.empty(np.shape(x), np.result_type(x, np.complex64))
    made.real, made.imag = x, y
    return made[()]


def _part_transpose(k: int, g: Any, kind: ArrayType) -> Any:
    return np.real(np.multiply(g, 1j) if k else g)


_complex = linear_of_many(
    _joined_parts,
    _part_transpose,
    infer=lambda x, y: ArrayType(x.shape, np.result_type(x.dtype, np.complex64)),
    batch=lambda x, y: _complex.bind((x, y)),
    name="complex",
)


def real(val: Any) -> Any:
    """Return the real part, a view; of a real array itself."""
    if type_of(val).dtype.kind != "c":
        return val
    made = _real.bind((val,))
    return linked(made, val, _real, {}) if type(val) is TracedArray and type(made) is TracedArray else made


def imag(val: Any) -> Any:
    """Return the imaginary part, a view; zeros for real arrays."""
    if type_of(val).dtype.kind != "c":
        return np.zeros(val.shape, val.dtype)[()]
    made = _imag.bind((val,))
    return linked(made, val, _imag, {}) if type(val) is TracedArray and type(made) is TracedArray else made


def _angle(z: Any, deg: bool = False) -> Any:
    angle = np.arctan2(np.imag(z) if type_of(z).dtype.kind == "c" else 0, np.real(z))
    return angle * (180 / math.pi) if deg else angle


register(np.conjugate, _conjugate)
answer(np.real, real)
answer(np.imag, imag)
answer(np.angle, _angle)

# Choice. The condition is saved as a mask of booleans.


def _choose(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)


_where = elementwise(
    _choose,
    d=(0, lambda g, condition: np.where(condition, g, 0), lambda g, condition: np.where(condition, 0, g)),
    operands=("condition", "x", "y"),
    name="where",
)


def where(condition: Any, *choices: Any) -> Any:
    """Return np.where(condition, x, y); the branch not taken has a zero derivative, also if it is nan."""
    if not choices:
        return np.nonzero(condition)
    if isinstance(condition, np.ndarray):
        meet_plain(condition)
    if type_of(condition).dtype != np.bool_ if hasattr(condition, "dtype") else True:
        condition = np.not_equal(condition, 0)
    elif type(condition) is np.ndarray:
        condition = np.array(condition)  # ours from now on: the mask is saved, the user's may change
    return as_array(_where.bind((condition, *choices)))


answer(np.where, where)


def clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None, dtype: Any = None  # noqa: A002 - NumPy's names
) -> Any:
    """Return x limited to an interval; at a limit the slopes of both sides share."""
    a = a if dtype is None else np.astype(a, dtype)
    lower, upper = (min if a_min is None else a_min), (max if a_max is None else a_max)
    if lower is not None:
        a = np.maximum(a, lower)
    if upper is not None:
        return np.minimum(a, upper)
    return np.positive(a) if lower is None else a


answer(np.clip, clip)

# Casts and copies.


def _cast(x: Any, dtype: Any) -> Any:
    return x.astype(dtype)


def _cast_members(x: Any, dtype: Any) -> Any:
    return np.astype(x, dtype)


_astype = linear(
    _cast,
    lambda g, kind, dtype: matched(g, kind),
    infer=lambda kind, dtype: ArrayType(kind.shape, np.dtype(dtype)),
    batch=_cast_members,
    name="astype",
)
_cast_constant = constant(_cast, lambda x, dtype: ArrayType(x.shape, np.dtype(dtype)), elementwise_constant)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Return a cast; to an integer or boolean dtype it is a plain array, as its derivative is zero."""
    dtype = np.dtype(dtype)
    if not copy and type(x) is TracedArray and dtype == x.dtype:
        return x  # and no copy, through which nobody could write
    if dtype.kind not in "fc":
        return _cast_constant(x, dtype)
    if dtype.kind == "f" and type_of(x).dtype.kind == "c":
        x = np.real(x)
    return _astype.bind((x,), {"dtype": dtype})


answer(np.astype, astype)


def _copy_members(x: Any, order: Any) -> Any:
    # In Fortran order within each member.
    return np.moveaxis(np.copy(np.moveaxis(x, 0, -1), order="F"), -1, 0) if order == "F" else np.copy(x, order=order)


copying = linear(
    lambda x, order: np.array(x, order=order),
    lambda g, kind, order: g,
    infer=lambda kind, order: kind,
    batch=_copy_members,
    name="copy",
)
answer(np.copy, lambda a, order="K", subok=False: as_array(copying.bind((a,), {"order": order})))
_finite = constant(np.nan_to_num, stand_in_type(np.nan_to_num), elementwise_constant)


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Return x with other numbers for nan and infinities, whose derivative is zero; without *copy* they are written."""
    made = np.where(np.isfinite(x), x, _finite(x, nan=nan, posinf=posinf, neginf=neginf))
    if copy:
        kind = type_of(x).dtype
        return number(made if type_of(made).dtype == kind else np.astype(made, kind))  # of another order of bytes
    x[...] = made
    return x


answer(np.nan_to_num, _nan_to_num)
