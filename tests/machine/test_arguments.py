"""Forms of arguments: what is alike has one form, and what is not has another."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest

from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.machine import Form, are_free


class State(NamedTuple):
    """A named tuple."""

    count: Any
    sums: Any


def random_tree(random, depth=3):
    """A container of arrays and numbers."""
    kind = random.integers(4 if depth == 0 else 9)
    if kind < 3:
        shape = tuple(random.integers(0, 3, random.integers(4)))
        return np.zeros(shape, random.choice(["f", "d", "l", "?"]), order=random.choice(["C", "F"]))
    if kind == 3:
        return [1.5, 2j, None][random.integers(3)]
    parts = [random_tree(random, depth - 1) for _ in range(random.integers(4))]
    if kind in (4, 5):
        return tuple(parts) if kind == 4 else parts
    if kind == 6:
        return State(random_tree(random, depth - 1), tuple(parts))
    names = random.permutation(["b", "a", "d", "c"])
    return dict(zip(names.tolist(), parts, strict=False))


def test_containers_are_taken_apart_and_put_together():
    """Leaves have the order of `flatten`, and what is made of them is what `unflatten` makes."""
    random = np.random.default_rng(1)
    for _ in range(500):
        tree = random_tree(random)
        leaves, structure = flatten(tree)
        form = Form(tree)
        found = form.leaves(tree) or []
        assert [id(leaf) for leaf in found] == [id(leaf) for leaf in leaves]
        others = list(range(len(leaves)))
        made, wanted = form.container(others), unflatten(structure, others)
        assert made == wanted
        assert repr(made) == repr(wanted)  # the order of dictionaries too


def test_what_is_not_alike_has_another_form():
    """Containers have one form if `flatten` and the types of their leaves say that they are alike, and only then."""
    random = np.random.default_rng(2)

    def kind_of(tree):
        leaves, structure = flatten(tree)
        kinds = [(x.shape, x.dtype, x.strides) if type(x) is np.ndarray else type(x) for x in leaves]
        return str(structure), kinds

    trees = [random_tree(random, 2) for _ in range(60)]
    trees += [(np.zeros((2, 3)),), (np.zeros((2, 3), ">f8"),), (np.zeros((4, 3))[::2],), (np.zeros(6).view(np.matrix),)]
    alike = 0
    for tree in trees[:-1]:
        form = Form(tree)
        for other in trees:
            same = kind_of(tree) == kind_of(other)
            assert (form.leaves(other) is not None) is same, (tree, other)
            alike += same
    assert alike > len(trees)


@pytest.mark.parametrize(
    "leaf", [1, True, "text", np.float64(1.0), np.zeros((1,) * 9), collections.OrderedDict(a=1.0), {1: 1.0}, object()]
)
def test_of_others_there_is_no_form(leaf):
    """Integers are no inputs, and what Ebbtide does not know may be taken apart otherwise."""
    with pytest.raises(TypeError, match="no form of a"):
        Form((np.zeros(2), leaf))
    assert Form((np.zeros(2), 1.0)).leaves((np.zeros(2), leaf)) is None


def test_dtypes_that_are_equal_are_one():
    """A dtype may be another object."""
    form = Form(np.zeros(2, np.dtype([("a", "f8")])))
    assert form.leaves(np.zeros(2, np.dtype([("a", "f8")]))) is not None
    assert form.leaves(np.zeros(2, np.dtype([("a", "f4"), ("b", "f4")]))) is None


def test_arrays_that_share_no_memory():
    """Arrays with memory of their own, each there once, which can be written if they are to be."""
    a, b, c = np.zeros(3), np.zeros(3), np.zeros(3)
    c.flags.writeable = False
    assert are_free([a, b, 1.0], (0, 1, 2), [c])
    assert not are_free([a, a], (0,), [])
    assert not are_free([a, b], (0,), [a])
    assert not are_free([a, b[:2]], (0,), [])
    assert not are_free([a, c], (1,), [])
    assert are_free([a, c], (0,), [])
