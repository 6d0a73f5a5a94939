"""Every function with a rule under vmap: for all members at once it gives what a loop over them gives."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import optree
import pytest
from tests.rules.example import WRITING, callable_of
from tests.rules.examples import BY_VALUES, IN_OTHER_ORDER, is_by_values, label, typed_cases
from tests.scale import sample_of_each

from ebbtide import TraceError, jvp, vjp, vmap
from ebbtide.arrays import constants
from ebbtide.arrays.batched import BatchTrace, by_members
from ebbtide.arrays.traced import TracedArray

# What gives no array: texts, dtypes and Python numbers.
NO_ARRAYS = (str, np.dtype, bool, int)
# What takes the values of its others in its first operand.
WRITTEN = (operator.setitem, np.full_like, *WRITING)
# What is done for one member after the other where the array that is searched is mapped, or the keys are; and what
# SciPy does over all axes of both operands.
ONE_BY_ONE = frozenset(
    {"searchsorted", "lexsort", "convolve", "correlate", "convolve2d", "correlate2d", "lfilter"}
)
BATCHED = [c for c in typed_cases(np.float32, np.complex128, smooth=True) if not is_by_values(c)]


def varied(x: Any, k: int, rolled: bool) -> Any:
    """Return a member of the same domain, shape and dtype as an operand."""
    if np.size(x) > 1 and rolled:
        return np.reshape(np.roll(np.ravel(x), k), np.shape(x))
    return np.asarray(x * (1 + k / 64)).astype(x.dtype)[()]


def batch_of(x: Any, size: int, example: Any) -> Any:
    """Return so many members on a first axis."""
    if not size:
        return np.zeros((0, *np.shape(x)), x.dtype)
    return np.stack([varied(x, k, example.rolled) for k in range(size)])


def leaves_of(value: Any) -> list[Any]:
    """Return the arrays of a result."""
    return [leaf for leaf in optree.tree_leaves(value) if not isinstance(leaf, NO_ARRAYS)]


def function_of(key: Any, example: Any) -> Any:
    """Return an example as a function of its operands that gives a list of arrays."""
    return lambda *xs: leaves_of(example.call(callable_of(key), list(xs)))


def ways(key: Any, operands: list[Any]) -> list[Any]:
    """Return which operands may be mapped, at least one of them; a plain array takes no members."""
    found = [way for way in itertools.product((True, False), repeat=len(operands)) if any(way)]
    return [way for way in found if way[0] or key not in WRITTEN]


def compare(found: list[Any], expected: list[list[Any]], *, exact: bool = False) -> None:
    """Check that arrays with members on their first axis are those of each member."""
    assert {len(found)} == {len(one) for one in expected}
    for k, array in enumerate(found):
        wanted = np.stack([np.asarray(one[k]) for one in expected])
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        if exact:
            assert array.tobytes() == wanted.tobytes()
        else:
            bound = np.finfo(wanted.dtype).eps * 64 if wanted.dtype.kind in "fc" else 0
            largest = np.max(abs(wanted), initial=1.0)
            np.testing.assert_allclose(array, wanted, rtol=bound, atol=bound * largest)


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64), 10), ids=label)
def test_values(case):
    """A function of operands of which some are mapped gives the values of each member, most to the bit."""
    key, example, dtype = case
    f, operands = function_of(key, example), example.operands(dtype)
    for way in ways(key, operands):
        axes = tuple([0 if is_mapped else None for is_mapped in way])
        for size in (0, 1, 3):
            given = [batch_of(x, size, example) if m else x for x, m in zip(operands, way, strict=True)]
            if key in BY_VALUES and (size == 0 or key is not np.roots):  # found member by member
                with pytest.raises(TraceError, match=r"test_members\.py|examples?\.py"):
                    vmap(f, axes)(*given)
                continue
            found = vmap(f, axes)(*given)
            members = [[x[k] if m else x for x, m in zip(given, way, strict=True)] for k in range(size)]
            if size:
                compare(found, [f(*xs) for xs in members], exact=dtype is np.float64 and key not in IN_OTHER_ORDER)
            else:
                shapes = [(np.asarray(x).dtype, np.shape(x)) for x in f(*operands)]
                assert [(x.dtype, x.shape) for x in found] == [(dtype, (0, *shape)) for dtype, shape in shapes]


@pytest.mark.parametrize("case", sample_of_each(BATCHED, 10), ids=label)
def test_derivatives(case):
    """Derivatives of members, and derivatives of a function of members, are those of each member, in both modes."""
    key, example, dtype = case
    f, operands = function_of(key, example), example.operands(dtype)
    some = ways(key, operands)
    for way in (some[0], some[-1]):
        axes = tuple([0 if is_mapped else None for is_mapped in way])
        given = [batch_of(x, 3, example) if m else x for x, m in zip(operands, way, strict=True)]
        members = [[x[k] if m else x for x, m in zip(given, way, strict=True)] for k in range(3)]
        tangents = [np.cos(np.nan_to_num(x)).astype(x.dtype) for x in given]
        of_members = [[x[k] if m else x for x, m in zip(tangents, way, strict=True)] for k in range(3)]

        def pulled(*xs):
            value, pullback = vjp(f, *xs)
            return pullback([np.sin(np.arange(np.size(x)).reshape(np.shape(x))).astype(x.dtype) for x in value])

        def pushed(*pair):
            return jvp(f, pair[: len(axes)], pair[len(axes) :])[1]

        expected = [list(pulled(*xs)) for xs in members]
        compare(list(vmap(pulled, axes)(*given)), expected)
        pushes = [pushed(*xs, *ts) for xs, ts in zip(members, of_members, strict=True)]
        compare(vmap(pushed, axes * 2)(*given, *tangents), pushes)
        compare(jvp(vmap(f, axes), given, tangents)[1], pushes)
        value, pullback = vjp(vmap(f, axes), *given)
        compare(value, [f(*xs) for xs in members])
        cotangents = [np.sin(np.arange(np.size(x[0])).reshape(x[0].shape)).astype(x.dtype) for x in value]
        found = pullback([np.stack([g] * 3) for g in cotangents])
        of_mapped = [[x for x, m in zip(one, way, strict=True) if m] for one in expected]
        compare([x for x, m in zip(found, way, strict=True) if m], of_mapped)
        of_others = [sum(np.asarray(one[k]) for one in expected) for k, m in enumerate(way) if not m]
        compare([np.stack([x]) for x, m in zip(found, way, strict=True) if not m], [of_others])


class Watched:
    """Names of the operations that a batch does for one member after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alone: set[str] = set()
        process = BatchTrace.process

        def watched(trace: Any, primitive: Any, operands: Any, params: Any) -> TracedArray:
            if primitive.batch is None:
                self.alone.add(primitive.name)
            return process(trace, primitive, operands, params)

        def one_by_one(name: str, *args: Any) -> Any:
            self.alone.add(name)
            return by_members(name, *args)

        monkeypatch.setattr(BatchTrace, "process", watched)
        monkeypatch.setattr(constants, "by_members", one_by_one)


@pytest.mark.parametrize(
    "case", sample_of_each([c for c in typed_cases(np.float64) if c[0] not in BY_VALUES], 10), ids=label
)
def test_every_operation_has_a_batch_rule(case, monkeypatch):
    """No operation but the stated ones is done for one member after the other, in derivatives too."""
    key, example, dtype = case
    f, operands = function_of(key, example), example.operands(dtype)
    if not operands:
        assert example.kwargs == {}  # a fact of dtypes
        return
    watched = Watched(monkeypatch)
    given = [batch_of(x, 2, example) for x in operands]
    vmap(f)(*given)
    if example.smooth:
        vmap(lambda *xs: vjp(f, *xs)[1]([np.ones_like(x) for x in f(*xs)]))(*given)
        vmap(lambda *xs: jvp(f, xs, xs)[1])(*given)
    assert watched.alone <= ONE_BY_ONE
