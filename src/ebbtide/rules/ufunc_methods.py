"""Rules of the methods `reduce` and `outer` of ufuncs; `accumulate` is with the running values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import reduction
from ebbtide.arrays.primitive import Primitive
from ebbtide.arrays.registry import register
from ebbtide.rules.reductions import (
    axes_of,
    chosen_of,
    dropped,
    extremum,
    is_equal,
    maximum,
    minimum,
    placed,
    prod,
    real_dtype,
    reduced,
    total,
    with_initial,
    with_options,
)


def _smooth(ufunc: np.ufunc, slope: Callable[[Any, Any, Any], Any]) -> Primitive:
    """Return the reduction by a ufunc; `slope(x, out, axis)` is its derivative by each element."""
    return reduction(
        lambda x, where, **params: ufunc.reduce(x, where=where, **params),
        lambda g, kind, params, x, where, out: g * np.where(where, slope(x, out, params["axis"]), 0),
        lambda t, params, x, where, out: np.sum(
            t * np.where(where, slope(x, out, params["axis"]), 0), axis=params["axis"], keepdims=True
        ),
        infer=lambda kind, where, axis, keepdims, **_: reduced(kind, axis, keepdims),
        name=f"{ufunc.__name__}.reduce",
    )


def _share(power: np.ufunc) -> Callable[[Any, Any, Any], Any]:
    """Return the share of each term in a sum of powers whose logarithm is `out`; infinite ones share equally."""

    def slope(x: Any, out: Any, axis: Any) -> Any:
        infinite = np.isinf(out)
        equal = np.logical_and(infinite, np.equal(x, out))
        count = np.maximum(np.sum(equal, axis=axis, keepdims=True, dtype=real_dtype(x.dtype)), 1)
        return np.where(infinite, equal / count, power(x - np.where(infinite, 0, out)))

    return slope


def _method(ufunc: np.ufunc, slope: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """Return the handler of `ufunc.reduce`; `slope(x, out, axis)` is its derivative by each element."""
    primitive = _smooth(ufunc, slope)

    def handler(
        array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
        where: Any = True,
    ) -> Any:  # fmt: skip
        if dtype is not None:
            array = np.astype(array, dtype)
        axes = axes_of(axis, np.ndim(array))

        def reduce(initial: Any) -> Any:
            params = with_options({"axis": axes, "keepdims": True}, initial=initial)
            return dropped(primitive.bind((array, chosen_of(where)), params), array, axes, keepdims)

        return placed(with_initial(reduce, initial, ufunc), out, primitive.name)

    return handler


def _with_dtype(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of the method that is an extremum: the method has another order of parameters."""

    def method(array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, *args: Any, **kwargs: Any) -> Any:
        return handler(array if dtype is None else np.astype(array, dtype), axis, out, *args, **kwargs)

    return method


_METHODS: Mapping[np.ufunc, Callable[..., Any]] = MappingProxyType({
    np.add: lambda array, axis=0, *args, **kwargs: total(array, axis, *args, **kwargs),
    np.multiply: lambda array, axis=0, *args, **kwargs: prod(array, axis, *args, **kwargs),
    np.maximum: _with_dtype(maximum),
    np.minimum: _with_dtype(minimum),
    np.fmax: _with_dtype(extremum(np.fmax.reduce, np.fmax, is_equal, "fmax.reduce")),
    np.fmin: _with_dtype(extremum(np.fmin.reduce, np.fmin, is_equal, "fmin.reduce")),
    np.logaddexp: _method(np.logaddexp, _share(np.exp)),
    np.logaddexp2: _method(np.logaddexp2, _share(np.exp2)),
    np.hypot: _method(np.hypot, lambda x, out, axis: x / np.where(np.equal(out, 0), 1, out)),
})  # fmt: skip
for _ufunc, _handler in _METHODS.items():
    register(((_ufunc, "reduce"),), _handler)


def _outer(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return the handler of `ufunc.outer`: each element of one array with each of another one."""

    def handler(a: Any, b: Any) -> Any:
        a, b = map(as_operand, (a, b))
        return ufunc(np.reshape(a, (*a.shape, *(1,) * b.ndim)), b)

    return handler


for _ufunc in (
    np.add, np.subtract, np.multiply, np.true_divide, np.power, np.maximum, np.minimum, np.logaddexp, np.hypot,
    np.arctan2,
):  # fmt: skip
    register(((_ufunc, "outer"),), _outer(_ufunc))
