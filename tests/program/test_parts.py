"""Parts of arrays as ranges: against masks of NumPy's."""

from __future__ import annotations

import numpy as np
from tests.scale import FULL

from ebbtide.program.parts import meeting, outside, part_at

COUNT = 200_000 if FULL else 2_000


def random_index(random, n):
    """Return an element of an axis, or a slice of it with any ends and steps."""
    if n and random.random() < 0.2:
        return int(random.integers(-n, n))
    ends = [None if random.random() < 0.3 else int(random.integers(-n - 1, n + 2)) for _ in range(2)]
    return slice(*ends, [None, 1, 1, 2, 3, 5, -1, -2][random.integers(8)])


def count_of(part, shape):
    """Return 1 for the elements of a part, 0 for others."""
    found = np.zeros(shape, int)
    found[np.ix_(*[np.array(along, int) for along in part]) if part else ()] += 1
    return found


def test_parts_are_those_of_numpy():
    """The elements of random indices, those of two of them, and those of one that are not in the other, each once."""
    random = np.random.default_rng(0)
    several = 0
    for _ in range(COUNT):
        shape = tuple(random.integers(0, 9, random.integers(4)).tolist())
        indices = [tuple([random_index(random, n) for n in shape]) for _ in range(2)]
        one, other = [part_at(index, shape) for index in indices]
        masks = [np.zeros(shape, int) for _ in range(2)]
        for mask, index in zip(masks, indices, strict=True):
            mask[index] = 1
        left = outside(one, other)
        several += len(left) > 1
        assert np.array_equal(count_of(one, shape), masks[0])
        assert np.array_equal(count_of(meeting(one, other), shape), masks[0] & masks[1])
        assert np.array_equal(sum([count_of(part, shape) for part in left], np.zeros(shape, int)), masks[0] & ~masks[1])
    assert several > COUNT // 100


def test_indices_with_new_axes_and_dots():
    """New axes have no elements, and dots stand for whole axes."""
    assert part_at((None, ..., 2), (3, 4)) == (range(3), range(2, 3))
    assert part_at((), ()) == ()
    assert outside((), ()) == []
