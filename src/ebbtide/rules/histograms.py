"""Rules of histograms: linear in their weights, and constant in what is counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import constant
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.statistics import known


def _counted(weights: Any, x: Any, size: int) -> Any:
    return np.asarray(np.bincount(x, weights, size), float)  # of no elements NumPy makes integers


def _counted_members(weights: Any, x: Any, size: int) -> Any:
    members = len(weights)
    apart = np.ravel(x + size * np.arange(members)[:, None])
    return np.reshape(_bincount.bind((np.reshape(weights, -1),), {"x": apart, "size": size * members}), (members, size))


_bincount = linear(
    _counted,
    lambda g, kind, x, size: g[x],
    infer=lambda kind, x, size: ArrayType((size,), np.dtype(float)),
    batch=_counted_members,
    result=FRESH,
    name="bincount",
)
_count = constant(np.bincount)


def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    """Return how often each number occurs, or the sum of its weights."""
    if weights is None:
        return _count(x, None, minlength)
    counted = known(x)
    if counted is None:
        return _count(x, weights, minlength)  # says that it depends on the values
    x = np.array(counted)
    if type_of(weights).shape != x.shape:
        raise ValueError("The weights and list don't have the same length.")
    size = max(int(np.max(x, initial=-1)) + 1, minlength)
    return _bincount.bind((weights,), {"x": x, "size": size})


def _summed(weights: Any, a: Any, edges: Any, bins: Any, limits: Any) -> Any:
    return np.histogram(a, bins, limits, weights=weights)[0]


def _bins_of(a: Any, edges: Any) -> Any:
    """Return the bin of each element; the number of bins for those outside."""
    found = np.searchsorted(edges, np.ravel(a), "right") - 1
    last = len(edges) - 1
    found = np.where(np.ravel(a) == edges[-1], last - 1, found)
    return np.where(found < 0, last, found)


def _from_bins(g: Any, kind: ArrayType, a: Any, edges: Any, **_: Any) -> Any:
    ends = np.concatenate([g, np.zeros(1, g.dtype)])
    return np.reshape(ends[_bins_of(a, edges)], kind.shape)


def _summed_members(weights: Any, a: Any, edges: Any, bins: Any, **_: Any) -> Any:
    size, last = len(weights), len(edges) - 1
    weights = np.reshape(weights, (size, a.size))
    if not np.ndim(bins):
        sums = _counted_members(weights, np.tile(_bins_of(a, edges), (size, 1)), last + 1)
        return np.astype(sums[:, :last], weights.dtype)
    # With edges that the user gave, NumPy takes differences of running sums.
    order = np.argsort(a, axis=None)
    inside = np.ravel(a)[order]
    ends = np.concatenate([np.searchsorted(inside, edges[:-1]), np.searchsorted(inside, edges[-1:], "right")])
    return np.diff(np.cumulative_sum(weights[:, order], axis=1, include_initial=True)[:, ends])


_histogram_of = linear(
    _summed,
    _from_bins,
    infer=lambda kind, a, edges, **_: ArrayType((len(edges) - 1,), kind.dtype),
    batch=_summed_members,
    result=FRESH,
    name="histogram",
)
_constant_histogram = constant(np.histogram)
_constant_edges = constant(np.histogram_bin_edges)


# Of arrays of which only shape and dtype are known: heights and edges, each an operation of its own. The first axes of
# *a*, as many as *depth*, are those of members.


def _each(function: Callable[[Any], Any], a: Any, depth: int, kind: ArrayType) -> Any:
    found = [function(a[place]) for place in np.ndindex(a.shape[:depth])]
    return np.reshape(np.array(found, kind.dtype), kind.shape)


def _heights(a: Any, bins: Any, limits: Any, density: Any, depth: int = 0) -> Any:
    kind = _heights_type(a, bins, limits, density, depth)
    return _each(lambda one: np.histogram(one, bins, limits, density)[0], a, depth, kind)


def _heights_type(a: Any, bins: Any, limits: Any, density: Any, depth: int = 0) -> ArrayType:
    return ArrayType((*a.shape[:depth], _count_bins(bins)), np.dtype(float if density else np.intp))


def _edges(a: Any, bins: Any, limits: Any, depth: int = 0) -> Any:
    kind = _edges_type(a, bins, limits, depth)
    return _each(lambda one: np.histogram_bin_edges(one, bins, limits), a, depth, kind)


def _edges_type(a: Any, bins: Any, limits: Any, depth: int = 0) -> ArrayType:
    given = type_of(bins)
    one = given if given.shape else np.histogram_bin_edges(np.zeros(1, a.dtype), 1, limits)
    return ArrayType((*a.shape[:depth], _count_bins(bins) + 1), one.dtype)


def _of_members(handler: Any, args: list[Any], kwargs: Any, mapped: list[bool], size: int) -> Any:
    """Batch rule for members that have what is counted of their own, and the same bins."""
    return handler(*args, depth=kwargs.get("depth", 0) + 1) if mapped[0] and not any(mapped[1:]) else None


def _count_bins(bins: Any) -> int:
    """Return the number of bins that are given by it, or by their edges."""
    shape = type_of(bins).shape
    return shape[0] - 1 if shape else int(bins)


def _of_unknown(a: Any, bins: Any, limits: Any) -> Any:
    """Return what is counted, and bins, if only values are not known, and not how many bins there are; else None."""
    if isinstance(bins, str) or all(known(value) is not None for value in (a, bins, *(limits or ()))):
        return None
    bins = np.asarray(bins) if isinstance(bins, (list, tuple)) and TracedArray not in map(type, bins) else bins
    is_fixed = np.ndim(bins) == 1 or (np.ndim(bins) == 0 and known(bins) is not None)
    if not is_fixed or any(known(limit) is None for limit in limits or ()):
        return None
    return as_operand(a), bins


_heights_of = constant(_heights, _heights_type, _of_members)
_edges_of = constant(_edges, _edges_type, _of_members)


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:  # noqa: A002
    """Return the edges of bins, which have no derivative."""
    found = _of_unknown(a, bins, range) if weights is None else None
    if found is not None:
        return _edges_of(*found, range)
    return _constant_edges(a, bins, range, weights)


def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:  # noqa: A002
    """Return the histogram, linear in its weights, and the edges of its bins, which have no derivative."""
    found = _of_unknown(a, bins, range) if weights is None else None
    if found is not None:
        return _heights_of(*found, range, density), _edges_of(*found, range)
    if type(weights) is not TracedArray:
        return _constant_histogram(a, bins, range, density, weights)
    a, bins = known(a), known(bins) if type(bins) is TracedArray else bins
    if a is None or bins is None:
        return _constant_histogram(a, bins, range, density, weights)
    if isinstance(bins, str):
        raise refusal("np.histogram with weights= wants the number of bins, or their edges.")
    a = np.array(a)
    if weights.shape != a.shape:
        raise ValueError("weights should have the same shape as a.")
    edges = np.histogram_bin_edges(a, bins, range)
    counts = _histogram_of.bind((weights,), {"a": a, "edges": edges, "bins": bins, "limits": range})
    if density:
        counts = counts / np.diff(edges) / np.sum(counts)
    return counts, edges


_constant_histogramdd = constant(np.histogramdd)


def histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:  # noqa: A002
    """Return the histogram of points in several dimensions, linear in its weights, and the edges of its bins."""
    points = [known(x) for x in sample] if isinstance(sample, (list, tuple)) else known(sample)
    if type(weights) is not TracedArray or points is None or any(x is None for x in points):
        return _constant_histogramdd(sample, bins, range, density, weights)
    by_axis = isinstance(sample, (list, tuple)) or np.ndim(points) == 1
    points = np.atleast_2d(points).T if by_axis else np.asarray(points)
    _, edges = np.histogramdd(points, bins, range)
    places = [np.searchsorted(ends, x, "right") - (x == ends[-1]) for ends, x in zip(edges, points.T, strict=True)]
    # With a bin at both ends of each axis for what lies outside, as NumPy does it.
    shape = tuple([len(ends) + 1 for ends in edges])
    sums = np.bincount(np.ravel_multi_index(places, shape), weights, math.prod(shape))
    counts = np.reshape(sums, shape)[(slice(1, -1),) * len(edges)]
    if density:
        for axis, ends in enumerate(edges):
            counts = counts / np.diff(ends).reshape((-1,) + (1,) * (len(edges) - axis - 1))
        counts = counts / np.sum(np.reshape(sums, shape)[(slice(1, -1),) * len(edges)])
    return counts, edges


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None  # noqa: A002
) -> Any:
    """Return the histogram of points of a plane, linear in its weights, and the edges of its bins on both axes."""
    if len(x) != len(y):
        raise ValueError("x and y must have the same length.")
    if np.ndim(bins) and len(bins) not in (1, 2):
        bins = [bins, bins]
    counts, edges = histogramdd([x, y], bins, range, density, weights)
    return counts, edges[0], edges[1]


answer(np.bincount, bincount)
answer(np.histogram, histogram)
answer(np.histogram_bin_edges, histogram_bin_edges)
answer(np.histogramdd, histogramdd)
answer(np.histogram2d, histogram2d)
