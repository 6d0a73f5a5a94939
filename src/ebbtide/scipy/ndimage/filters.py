# ruff: noqa: A002 - the names of parameters are SciPy's
"""Filters with SciPy's signatures, made of sums of products and means."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from scipy import ndimage

from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.outputs import into
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import is_traced
from ebbtide.rules.reductions import axes_of, axis_of
from ebbtide.scipy.ndimage.sums import correlation, mean

# SciPy does not filter with a narrower Gaussian.
_NO_WIDTH = 1e-15


def filters(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a function answer for one of SciPy's if an argument is traced."""
    signature = inspect.signature(original)

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def answered(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            traced = [name for name, value in bound.arguments.items() if is_traced(value)]
            if not traced:
                return original(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            for name in set(traced) - {"input", "weights", "coordinates", "output"}:
                raise refusal(f"ndimage.{original.__name__} has no derivative with respect to {name}.")
            given["input"] = x = given["input"] if "input" in traced else np.asarray(given["input"])
            output = given["output"]
            is_array = isinstance(output, (np.ndarray, TracedArray))
            given["output"] = dtype = None if output is None else np.dtype(output.dtype if is_array else output)
            if (x.dtype if dtype is None else dtype).kind not in "fc":
                raise refusal(
                    f"ndimage.{original.__name__} of an array of dtype {x.dtype}, with output={output!r}, gives whole "
                    "numbers, which have no derivative. Write x.astype(float), or output=float."
                )
            more = given.pop("kwargs", {})
            made = handler(**given, **more)
            return into(output, made, f"ndimage.{original.__name__}", same_type=True) if is_array else made

        answered.__doc__ = f"{handler.__doc__}\n\n    See `scipy.ndimage.{original.__name__}`.\n"
        return answered

    return decorate


def _correlated(
    x: Any, w: Any, axis: int | None, output: Any, mode: str, cval: Any, origins: Any, *, conjugate: bool
) -> Any:
    """Return the correlation with weights, conjugated or not, of one axis or of those of x."""
    w = np.conjugate(w) if conjugate and w.dtype.kind == "c" else w
    if w.dtype.kind not in "fc":
        w = w.astype(np.float64)
    places = tuple([int(origin) for origin in origins])
    params = {"axis": axis, "mode": mode, "cval": cval, "origins": places, "dtype": output}
    return correlation.bind((x, w), params)


def _copied(x: Any, dtype: Any) -> Any:
    """Return a copy, in another dtype if one is given."""
    return np.copy(x) if dtype is None else np.astype(x, dtype)


def _each(value: Any, count: int) -> list[Any]:
    """Return a parameter for each axis."""
    if isinstance(value, str) or not np.iterable(value):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{len(values)} values were given for {count} axes: {values!r}.")
    return values


def _turned(w: Any, origins: Any) -> tuple[Any, list[int]]:
    """Return the weights and origins of a convolution as those of a correlation."""
    return np.flip(w), [-origin - (size % 2 == 0) for origin, size in zip(origins, w.shape, strict=True)]


def _over(x: Any, w: Any, origin: Any, axes: Any) -> tuple[Any, list[int]]:
    """Return weights of some axes, with their origins, as weights of all."""
    chosen = axes_of(axes, x.ndim)
    if w.ndim != len(chosen):
        raise RuntimeError(f"Weights of {w.ndim} axes cannot filter {len(chosen)} axes of an array of {x.ndim}.")
    origins = dict(zip(chosen, _each(origin, len(chosen)), strict=True))
    sizes = dict(zip(chosen, w.shape, strict=True))
    return np.reshape(w, [sizes.get(k, 1) for k in range(x.ndim)]), [origins.get(k, 0) for k in range(x.ndim)]


@filters(ndimage.correlate1d)
def correlate1d(input: Any, weights: Any, axis: int, output: Any, mode: str, cval: Any, origin: int) -> Any:
    """Return the correlation with weights along an axis."""
    axis = axis_of(axis, input.ndim)
    return _correlated(input, as_operand(weights), axis, output, mode, cval, [origin], conjugate=True)


@filters(ndimage.convolve1d)
def convolve1d(input: Any, weights: Any, axis: int, output: Any, mode: str, cval: Any, origin: int) -> Any:
    """Return the convolution with weights along an axis."""
    axis = axis_of(axis, input.ndim)
    w, origins = _turned(as_operand(weights), [origin])
    return _correlated(input, w, axis, output, mode, cval, origins, conjugate=False)


@filters(ndimage.correlate)
def correlate(input: Any, weights: Any, output: Any, mode: str, cval: Any, origin: Any, axes: Any = None) -> Any:
    """Return the correlation with weights of several axes."""
    w, origins = _over(input, as_operand(weights), origin, axes)
    return _correlated(input, w, None, output, mode, cval, origins, conjugate=True)


@filters(ndimage.convolve)
def convolve(input: Any, weights: Any, output: Any, mode: str, cval: Any, origin: Any, axes: Any = None) -> Any:
    """Return the convolution with weights of several axes."""
    w, origins = _turned(*_over(input, as_operand(weights), origin, axes))
    return _correlated(input, w, None, output, mode, cval, origins, conjugate=False)


@filters(ndimage.gaussian_filter1d)
def gaussian_filter1d(
    input: Any, sigma: float, axis: int, order: int, output: Any, mode: str, cval: Any, truncate: float,
    radius: int | None = None,
) -> Any:  # fmt: skip
    """Return an array smoothed by a Gaussian, or filtered by a derivative of it, along an axis."""
    width = int(truncate * float(sigma) + 0.5) if radius is None else radius
    impulse = np.zeros(2 * width + 1)
    impulse[width] = 1.0
    # SciPy's own weights, to the last bit: what it makes of an impulse is them in reverse.
    options = {"order": order, "mode": "constant", "truncate": truncate, "radius": width}
    weights = ndimage.gaussian_filter1d(impulse, sigma, **options)[::-1]
    return correlate1d(input, weights, axis, output, mode, cval, 0)


@filters(ndimage.gaussian_filter)
def gaussian_filter(
    input: Any, sigma: Any, order: Any, output: Any, mode: Any, cval: Any, truncate: float, radius: Any = None,
    axes: Any = None,
) -> Any:  # fmt: skip
    """Return an array smoothed by a Gaussian, or filtered by derivatives of it."""
    chosen = axes_of(axes, input.ndim)
    parameters = [_each(value, len(chosen)) for value in (sigma, order, mode, radius)]
    found = input
    for axis, width, degree, edge, reach in zip(chosen, *parameters, strict=True):
        if width > _NO_WIDTH:
            found = gaussian_filter1d(found, width, axis, degree, output, edge, cval, truncate, radius=reach)
    return _copied(input, output) if found is input else found


@filters(ndimage.gaussian_laplace)
def gaussian_laplace(
    input: Any, sigma: Any, output: Any, mode: Any, cval: Any, axes: Any = None, **options: Any
) -> Any:
    """Return the sum of the second derivatives of an array smoothed by a Gaussian."""
    chosen = axes_of(axes, input.ndim)
    edges, total = _each(mode, len(chosen)), None
    for place in range(len(chosen)):
        order = [2 * (k == place) for k in range(len(chosen))]
        part = gaussian_filter(input, sigma, order, output, edges[place], cval, axes=chosen, **options)
        total = part if total is None else total + part
    return _copied(input, output) if total is None else total


@filters(ndimage.laplace)
def laplace(input: Any, output: Any, mode: Any, cval: Any, axes: Any = None) -> Any:
    """Return the sum of the second differences of an array."""
    chosen = axes_of(axes, input.ndim)
    total = None
    for axis, edge in zip(chosen, _each(mode, len(chosen)), strict=True):
        part = correlate1d(input, [1, -2, 1], axis, output, edge, cval, 0)
        total = part if total is None else total + part
    return _copied(input, output) if total is None else total


def _edges(input: Any, axis: int, output: Any, mode: Any, cval: Any, across: list[int]) -> Any:
    """Return the differences along an axis, smoothed along the others."""
    axis = axis_of(axis, input.ndim)
    modes = _each(mode, input.ndim)
    found = correlate1d(input, [-1, 0, 1], axis, output, modes[axis], cval, 0)
    for other in [k for k in range(input.ndim) if k != axis]:
        found = correlate1d(found, across, other, output, modes[other], cval, 0)
    return found


@filters(ndimage.sobel)
def sobel(input: Any, axis: int, output: Any, mode: Any, cval: Any) -> Any:
    """Return differences along an axis, smoothed by Sobel's weights along the others."""
    return _edges(input, axis, output, mode, cval, [1, 2, 1])


@filters(ndimage.prewitt)
def prewitt(input: Any, axis: int, output: Any, mode: Any, cval: Any) -> Any:
    """Return differences along an axis, smoothed by Prewitt's weights along the others."""
    return _edges(input, axis, output, mode, cval, [1, 1, 1])


@filters(ndimage.uniform_filter1d)
def uniform_filter1d(input: Any, size: int, axis: int, output: Any, mode: str, cval: Any, origin: int) -> Any:
    """Return the mean of neighbours along an axis."""
    axis = axis_of(axis, input.ndim)
    params = {"size": int(size), "axis": axis, "mode": mode, "cval": cval, "origin": int(origin), "dtype": output}
    return mean.bind((input,), params)


@filters(ndimage.uniform_filter)
def uniform_filter(input: Any, size: Any, output: Any, mode: Any, cval: Any, origin: Any, axes: Any = None) -> Any:
    """Return the mean of neighbours along several axes."""
    chosen = axes_of(axes, input.ndim)
    parameters = [_each(value, len(chosen)) for value in (size, mode, origin)]
    found = input
    for axis, width, edge, shift in zip(chosen, *parameters, strict=True):
        if width > 1:
            found = uniform_filter1d(found, int(width), axis, output, edge, cval, shift)
    return _copied(input, output) if found is input else found
