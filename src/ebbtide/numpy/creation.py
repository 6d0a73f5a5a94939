"""Making arrays out of traced numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.views import lies, lying, order_like
from ebbtide.rules.originals import is_traced, stands_for


def _assembled(value: Any) -> Any:
    """Return a traced array of nested sequences."""
    if not isinstance(value, (list, tuple)):
        return as_operand(value)
    if not is_traced(value):
        return np.asarray(value)
    parts = [_assembled(part) for part in value]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"array: the parts of a list have different shapes, {sorted(shapes)}.")
    return np.stack(parts)


@stands_for(np.array)
def array(
    object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K", subok: bool = False, ndmin: int = 0,  # noqa: A002
    **_: Any,
) -> Any:  # fmt: skip
    """Return a traced array of a traced array, or of nested lists of traced and plain ones."""
    made = _assembled(object)
    if dtype is not None and type_of(made).dtype != dtype:
        made = np.astype(made, dtype)
    elif copy and made is object:
        made = np.copy(made, order)
    if order in ("K", "A") and isinstance(object, (list, tuple)):
        made = lying(made)
    missing = ndmin - np.ndim(made)
    made = np.reshape(made, (1,) * missing + made.shape) if missing > 0 else made
    return np.copy(made, order) if order in ("C", "F") and not lies(made, order) else made


@stands_for(np.asarray)
def asarray(a: Any, dtype: Any = None, order: Any = None, **kwargs: Any) -> Any:
    """Return a traced array of lists, or one that is traced already."""
    return array(a, dtype, order=order or "K", **{"copy": None, **kwargs})


@stands_for(np.asanyarray)
def asanyarray(a: Any, dtype: Any = None, order: Any = None, **kwargs: Any) -> Any:
    """Return a traced array of lists, or one that is traced already."""
    return asarray(a, dtype, order, **kwargs)


@stands_for(np.asarray_chkfinite)
def asarray_chkfinite(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """Return a traced array whose elements are finite."""
    made = asarray(a, dtype, order)
    if not np.all(np.isfinite(made)):
        raise ValueError("array must not contain infs or NaNs")
    return made


@stands_for(np.ascontiguousarray)
def ascontiguousarray(a: Any, dtype: Any = None, **_: Any) -> Any:
    """Return a traced array of at least one axis whose memory is in C order."""
    return array(a, dtype, copy=None, order="C", ndmin=1)


@stands_for(np.asfortranarray)
def asfortranarray(a: Any, dtype: Any = None, **_: Any) -> Any:
    """Return a traced array whose memory is in Fortran order."""
    return array(a, dtype, copy=None, order="F")


@stands_for(np.require)
def require(a: Any, dtype: Any = None, requirements: Any = None, **_: Any) -> Any:
    """Return a traced array whose memory is as required."""
    wanted = {str(one).upper() for one in ([requirements] if isinstance(requirements, str) else requirements or ())}
    fortran = wanted & {"F", "FORTRAN", "F_CONTIGUOUS"}
    if fortran and wanted & {"C", "CONTIGUOUS", "C_CONTIGUOUS"}:
        raise ValueError("Cannot specify both 'C' and 'F' order")
    made = asfortranarray(a, dtype) if fortran else asarray(a, dtype)
    return ascontiguousarray(made) if wanted & {"C", "CONTIGUOUS", "C_CONTIGUOUS"} and made.ndim else made


@stands_for(np.full)
def full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", **_: Any) -> Any:
    """Return a new array with a traced value in all elements."""
    filled = np.copy(np.broadcast_to(asarray(fill_value), shape), order)
    return filled if dtype is None else np.astype(filled, dtype)


@stands_for(np.full_like)
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: bool = True, shape: Any = None, **_: Any
) -> Any:
    """Return an array of the shape and dtype of another one, in C or Fortran order, with a traced value everywhere."""
    a = a if hasattr(a, "dtype") else np.asarray(a)
    kind = type_of(a)
    if order not in ("C", "F"):
        order = order_like(a) if shape is None or np.size(shape) == kind.ndim else "C"
    return full(kind.shape if shape is None else shape, fill_value, kind.dtype if dtype is None else dtype, order)


@stands_for(np.arange)
def arange(*args: Any, dtype: Any = None, **_: Any) -> Any:
    """Return evenly spaced numbers between traced ends; how many there are is constant to the derivative."""
    start, stop, step = (0.0, args[0], 1.0) if len(args) == 1 else (*args, 1.0)[:3]
    count = max(int(np.ceil((stop - start) / step)), 0)
    # NumPy's formula: the first two numbers, and the others by the difference of these.
    second = start + step
    made = np.arange(count) * (second - start) + start
    if count > 1:
        made = np.concatenate([made[:1], np.reshape(second, 1), made[2:]])
    return made if dtype is None else np.astype(made, dtype)


def _of_iterator(iter: Iterable[Any], dtype: Any, count: int = -1, **options: Any) -> Any:  # noqa: A002 - NumPy's name
    """Return an array of what an iterator gives, of which nobody knows before whether it is traced."""
    found = iter if isinstance(iter, (list, tuple)) else list(islice(iter, None if count < 0 else count))
    return (fromiter if is_traced(found) else np.fromiter)(found, dtype, count, **options)


@stands_for(np.fromiter, _of_iterator)
def fromiter(iter: Iterable[Any], dtype: Any, count: int = -1, **_: Any) -> Any:  # noqa: A002 - NumPy's name
    """Return an array of the numbers that an iterator gives."""
    found = list(islice(iter, None if count < 0 else count))
    if len(found) < count:
        raise ValueError(f"iterator too short: Expected {count} but iterator had only {len(found)} items.")
    for number, item in enumerate(found):
        if np.ndim(item):
            raise ValueError(f"fromiter: item {number} has the shape {np.shape(item)}, and each has to be a number.")
    return array(found, dtype)
