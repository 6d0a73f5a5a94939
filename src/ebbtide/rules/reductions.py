"""
Rules of reductions: sum, mean, product, variance, extrema, and reductions by other ufuncs.

Each value is NumPy's own. Which elements are chosen, with where=, is an operand without a derivative, so that it may be
traced; the versions that leave out nan have the same rules, with a mask of the elements that are numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.kinds import linear, reduction
from ebbtide.arrays.outputs import into
from ebbtide.arrays.primitive import BORROWED, Primitive, constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.rules.answers import answer


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction as a tuple of non-negative numbers."""
    if axis is None:
        return tuple(range(ndim))
    axis = axis.tolist() if isinstance(axis, np.ndarray) else axis
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    return tuple([axis_of(a, ndim) for a in axes])


def axis_of(axis: Any, ndim: int) -> int:
    """Return one axis, which is no tuple, as a non-negative number."""
    return np.lib.array_utils.normalize_axis_index(operator.index(axis), ndim)


def reduced(kind: ArrayType, axis: tuple[int, ...], keepdims: bool) -> ArrayType:
    """Return the type of a reduction over *axis*."""
    if keepdims:
        shape = tuple([1 if k in axis else n for k, n in enumerate(kind.shape)])
    else:
        shape = tuple([n for k, n in enumerate(kind.shape) if k not in axis])
    return ArrayType(shape, kind.dtype)


def spread(g: Any, kind: ArrayType, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Return *g* of a reduced array as a view of the shape of the operand."""
    if not keepdims:
        g = np.reshape(g, reduced(kind, axis, True).shape)
    return np.broadcast_to(g, kind.shape)


def given(value: Any) -> bool:
    """Return whether the user gave an optional argument."""
    return value is not None and value is not np._NoValue


def placed(result: Any, out: Any, name: str) -> Any:
    """Return the result of a function, written into what the user gave as `out`."""
    return result if out is None else into(out, result, name, same_type=True)


def dropped(result: Any, a: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    """Return the result of a reduction with kept axes in the shape that the user asked for."""
    if keepdims and keepdims is not np._NoValue:
        return result
    shape = reduced(type_of(a), axes, False).shape
    if shape or type(result) is not TracedArray:
        return np.reshape(result, shape)
    return result[(0,) * result.ndim]  # as NumPy's a number: see `number`


def number(result: Any) -> Any:
    """
    Return a result without axes as a number, as NumPy's functions do, and not as an array; others as they are.

    Powers of a number are those of the C library, which may have another last bit than those of arrays. A step with
    such a power that runs again without a tape would not come to what it was.
    """
    if type(result) is not TracedArray or result.shape or isinstance(bottom(result.present()), np.generic):
        return result
    return result[()]


def chosen_of(where: Any) -> Any:
    """Return which elements are chosen, as an operand that the user does not change."""
    if not given(where) or where is True:
        return True
    return where if type(where) is TracedArray else np.array(where)


def _typed(function: Callable[..., Any]) -> Callable[..., ArrayType]:
    """Return the rule for the type of a reduction: NumPy has larger dtypes for some, and real ones for others."""

    def infer(kind: ArrayType, *where: Any, axis: Any, keepdims: bool, dtype: Any = None, **_: Any) -> ArrayType:
        params = {} if dtype is None else {"dtype": dtype}
        result = function(np.ones(1, kind.dtype), axis=0, keepdims=True, **params)
        return ArrayType(reduced(kind, axis, keepdims).shape, result.dtype)

    return infer


def _choosing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction of NumPy's as a function of the elements that are chosen."""

    def choosing(x: Any, where: Any, **params: Any) -> Any:
        return function(x, **params) if where is True else function(x, where=where, **params)

    return choosing


def declare(function: Any, vjp: Callable[..., Any], jvp: Callable[..., Any], *, keep: Any = None) -> Primitive:
    """Return the primitive of a reduction of NumPy's that has where=."""
    return reduction(_choosing(function), vjp, jvp, infer=_typed(function), keep=keep, name=function.__name__)


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of real numbers of the same precision, in the machine's order of bytes."""
    return np.real(np.zeros((), dtype)).dtype.newbyteorder("=")


def count_of(kind: ArrayType, axis: tuple[int, ...], where: Any) -> Any:
    """Return how many elements are chosen: a number, or an array that has the axes."""
    if where is True:
        return math.prod(kind.shape[a] for a in axis)
    return np.sum(np.broadcast_to(where, kind.shape), axis=axis, keepdims=True, dtype=real_dtype(kind.dtype))


def at_least(count: Any, least: int) -> Any:
    """Return a number of elements, or *least* where it is smaller."""
    return max(count, least) if isinstance(count, (int, float)) else np.maximum(count, least)


def only(where: Any, value: Any, other: Any = 0) -> Any:
    """Return a value where elements are chosen, and another one where they are not."""
    return value if where is True else np.where(where, value, other)


# Sums and means. Without where= they are linear, and save nothing.


def _of_members(function: Any) -> Any:
    """Return the batch rule of a sum or mean."""
    return lambda x, axis, **params: function(x, axis=tuple([a + 1 for a in axis]), **params)


_sum = linear(
    np.sum,
    lambda g, kind, axis, keepdims, **_: spread(g, kind, axis, keepdims),
    infer=_typed(np.sum), batch=_of_members(np.sum), result=BORROWED, name="sum",
)  # fmt: skip
_mean = linear(
    np.mean,
    lambda g, kind, axis, keepdims, **_: spread(g / max(count_of(kind, axis, True), 1), kind, axis, keepdims),
    infer=_typed(np.mean), batch=_of_members(np.mean), result=BORROWED, name="mean",
)  # fmt: skip


def _for_each(where: Any, value: Any, kind: ArrayType) -> Any:
    """Return a new array with a value at each chosen element, and zero elsewhere."""
    whole = np.broadcast_to(value, kind.shape)
    return np.positive(whole) if where is True else np.where(where, whole, 0)


def _sum_pull(g: Any, kind: ArrayType, params: Any, where: Any) -> Any:
    return _for_each(where, g, kind)


def _sum_push(t: Any, params: Any, where: Any) -> Any:
    return np.sum(t, axis=params["axis"], keepdims=True, where=where)


def _mean_pull(g: Any, kind: ArrayType, params: Any, where: Any) -> Any:
    return _for_each(where, g / at_least(count_of(kind, params["axis"], where), 1), kind)


def _mean_push(t: Any, params: Any, where: Any) -> Any:
    count = at_least(count_of(type_of(t), params["axis"], where), 1)
    return np.sum(t, axis=params["axis"], keepdims=True, where=where) / count


_sum_of_chosen = declare(np.sum, _sum_pull, _sum_push)
_mean_of_chosen = declare(np.mean, _mean_pull, _mean_push)


def with_initial(reduce: Callable[[Any], Any], initial: Any, combine: np.ufunc) -> Any:
    """Return a reduction that begins with a number; a traced one is taken in at the end, which has its derivative."""
    if type(initial) is not TracedArray:
        return reduce(initial)
    found = reduce(None)
    return combine(found, _number(initial, type_of(found).dtype))


def _number(initial: Any, dtype: np.dtype[Any]) -> Any:
    """Return an initial value in the dtype of a reduction."""
    if np.ndim(initial):
        raise ValueError(f"initial= has to be a number, and has the shape {np.shape(initial)}.")
    return initial.astype(dtype) if type(initial) is TracedArray else dtype.type(initial)


def with_options(params: dict[str, Any], dtype: Any = None, initial: Any = None) -> dict[str, Any]:
    """Return the parameters of a reduction with those that the user gave."""
    if dtype is not None:
        params["dtype"] = np.dtype(dtype)
    if given(initial):
        params["initial"] = initial
    return params


def _summed(
    primitive: Primitive, of_chosen: Primitive, a: Any, axis: Any, dtype: Any, keepdims: Any, where: Any, initial: Any
) -> Any:
    """Return the sum or mean."""
    axes = axes_of(axis, np.ndim(a))
    where = chosen_of(where)
    params = with_options({"axis": axes}, dtype, initial)
    if where is True and not given(initial):
        return primitive.bind((a,), {**params, "keepdims": bool(keepdims) and keepdims is not np._NoValue})
    return dropped(of_chosen.bind((a, where), {**params, "keepdims": True}), a, axes, keepdims)


def total(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    """Return the sum along axes."""
    found = with_initial(
        lambda initial: _summed(_sum, _sum_of_chosen, a, axis, dtype, keepdims, where, initial), initial, np.add
    )
    return placed(found, out, "sum")


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = True
) -> Any:
    """Return the mean along axes."""
    return placed(_summed(_mean, _mean_of_chosen, a, axis, dtype, keepdims, where, None), out, "mean")


answer(np.sum, total)
answer(np.mean, mean)

# Products: the derivative is the product of the others, right with any number of zeros.


def others(x: Any, axis: tuple[int, ...]) -> Any:
    """Return for each element the product of the others."""
    if 0 in x.shape:
        return x
    kept = [k for k in range(x.ndim) if k not in axis]
    order = (*kept, *axis)
    moved = np.transpose(x, order)
    shape = moved.shape
    flat = np.reshape(moved, (*shape[: len(kept)], math.prod(shape[len(kept) :])))
    one = np.ones((*flat.shape[:-1], 1), type_of(x).dtype)
    before = np.cumprod(np.concatenate([one, flat[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([one, flat[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.transpose(np.reshape(before * after, shape), tuple([int(k) for k in np.argsort(order)]))


def product_slope(x: Any, where: Any, params: Any) -> Any:
    """Return the derivatives of a product of the chosen elements."""
    dtype = params.get("dtype")
    x = x if dtype is None else np.astype(x, dtype)
    slope = only(where, others(only(where, x, 1), params["axis"]))
    return slope * params["initial"] if "initial" in params else slope


_prod = declare(
    np.prod,
    lambda g, kind, params, x, where: g * product_slope(x, where, params),
    lambda t, params, x, where: np.sum(t * product_slope(x, where, params), axis=params["axis"], keepdims=True),
)


def prod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None,
    where: Any = True,
) -> Any:  # fmt: skip
    """Return the product of elements; the derivative is right with any number of zeros."""
    axes = axes_of(axis, np.ndim(a))

    def reduce(initial: Any) -> Any:
        params = with_options({"axis": axes, "keepdims": True}, dtype, initial)
        return dropped(_prod.bind((a, chosen_of(where)), params), a, axes, keepdims)

    return placed(with_initial(reduce, initial, np.multiply), out, "prod")


answer(np.prod, prod)

# Extrema: elements that tie share the derivative equally.


def _limit(combine: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """Return the number that is no larger (for a maximum) or smaller (for a minimum) than any other."""
    largest = combine in (np.maximum, np.fmax)
    if dtype.kind in "fc":
        return -math.inf if largest else math.inf
    if dtype.kind == "b":
        return not largest
    return np.iinfo(dtype).min if largest else np.iinfo(dtype).max


def _shares(mask: Any, axis: Any, dtype: Any) -> Any:
    return mask / np.maximum(np.sum(mask, axis=axis, keepdims=True, dtype=real_dtype(dtype)), 1)


def _of_none(a: Any, axes: tuple[int, ...], initial: Any) -> Any:
    """Return the extrema of no elements, which are the initial value."""
    made = np.copy(np.broadcast_to(initial, reduced(type_of(a), axes, True).shape), order="C")
    return constant_like(a, made) if type(a) is TracedArray and type(made) is not TracedArray else made


def extremum(function: Any, combine: np.ufunc, mask: Callable[..., Any], name: str) -> Callable[..., Any]:
    """
    Return the handler of a maximum or minimum.

    Args:
        function: Computes it on plain arrays.
        combine: The ufunc that takes the initial value in.
        mask: `mask(x, out)` says which elements are the extremum.
        name: Name in messages.
    """
    primitive = reduction(
        lambda x, where, axis, keepdims: function(x, axis=axis, keepdims=keepdims),
        lambda g, kind, params, mask: g * _shares(mask, params["axis"], type_of(g).dtype),
        lambda t, params, mask: np.sum(
            t * _shares(mask, params["axis"], type_of(t).dtype), axis=params["axis"], keepdims=True
        ),
        infer=lambda kind, where, axis, keepdims: reduced(kind, axis, keepdims),
        keep={"mask": mask},
        name=name,
    )

    def handler(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = True
    ) -> Any:
        if given(where) and where is not True:
            if not given(initial):
                raise ValueError(f"np.{name} with where= wants initial=, the value of an empty selection.")
            dtype = type_of(a).dtype
            a = np.where(where, a, dtype.type(_limit(combine, dtype)))
        axes = axes_of(axis, np.ndim(a))
        if given(initial):
            initial = _number(initial, type_of(a).dtype)
            if 0 in [a.shape[k] for k in axes]:
                return placed(dropped(_of_none(a, axes, initial), a, axes, keepdims), out, name)
        result = primitive.bind((a, True), {"axis": axes, "keepdims": True})
        result = combine(result, initial) if given(initial) else result
        return placed(dropped(result, a, axes, keepdims), out, name)

    return handler


def _is_extremum(x: Any, out: Any) -> Any:
    # The mask is also set where both are nan: nan is what NumPy returns then, and it comes from there.
    return np.logical_or(np.equal(x, out), np.not_equal(x, x))


def is_equal(x: Any, out: Any) -> Any:
    """Return which elements are the extremum of those that are numbers."""
    return np.equal(x, out)


maximum = extremum(np.max, np.maximum, _is_extremum, "max")
minimum = extremum(np.min, np.minimum, _is_extremum, "min")
for _function, _handler in ((np.max, maximum), (np.amax, maximum), (np.min, minimum), (np.amin, minimum)):
    answer(_function, _handler)
answer(
    np.ptp,
    lambda a, axis=None, out=None, keepdims=False: placed(
        np.max(a, axis, keepdims=keepdims) - np.min(a, axis, keepdims=keepdims), out, "ptp"
    ),
)

answer(
    np.trace,
    lambda a, offset=0, axis1=0, axis2=1, dtype=None, out=None: np.sum(
        np.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype, out=out
    ),
)


def root(squares: Any) -> Any:
    """Return the square root of a sum of squares, with a zero derivative at zero."""
    at_zero = np.equal(squares, 0)
    return number(np.where(at_zero, squares, np.sqrt(np.where(at_zero, 1, squares))))
