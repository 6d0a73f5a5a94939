"""Smallest cuts, against all sets of values that there are."""

from __future__ import annotations

import itertools

import pytest
from tests.scale import sample

from ebbtide.program.cuts import smallest_cut

from .graphs import make_values


def computed_from(values, held, place):
    """Return the values that are computed again from those held for what is used from a place on; None if it cannot."""
    needed = [k for k in range(place) if any(reader >= place for reader in values.readers[k])]
    computed = set()
    while needed:
        one = needed.pop()
        if one in held or one in computed:
            continue
        if not values.cheap[one]:
            return None
        computed.add(one)
        needed += values.reads[one]
    return computed


def nbytes(values, held):
    """Return the bytes that are held because of a cut: results are held anyway."""
    return sum(values.nbytes[k] for k in held if not values.stays[k])


@pytest.mark.parametrize("seed", sample(range(240), 8))
def test_against_all_sets(seed):
    """A cut is one of fewest bytes, and of these one that leaves least to compute, at any place of any graph."""
    values = make_values(seed)
    for place in range(len(values.steps)):
        cut = smallest_cut(values, place)
        again = computed_from(values, cut, place)
        assert again is not None, (place, cut)
        sets = [s for n in range(place + 1) for s in itertools.combinations(range(place), n)]
        ways = [(nbytes(values, s), computed_from(values, s, place)) for s in sets]
        least = min(size for size, found in ways if found is not None)
        assert nbytes(values, cut) == least, (place, cut)
        fewest = min(len(found - cut_free(values)) for size, found in ways if found is not None and size == least)
        assert len(again - cut_free(values)) == fewest, (place, cut)


def cut_free(values):
    """Return the values that cost nothing to hold, and so are in any cut."""
    return {k for k in values.steps if values.stays[k]}


def test_nothing_is_needed():
    """At the beginning there is nothing to hold."""
    assert smallest_cut(make_values(1), 0) == set()


def test_large_values():
    """Bytes beyond what the flow counts in are rounded, and the cut is still through the smaller value."""
    values = make_values(3, 2)
    chain = type(values)(
        steps=(0, 1, 2), nbytes=(3 << 40, 1 << 40, 1), cost=(1, 1, 1), reads=((), (0,), (1,)),
        readers=((1,), (2,), ()), over=((), (), ()), stays=(False, False, True), repeats=(True,) * 3,
        cheap=(False, True, True),
    )  # fmt: skip
    assert smallest_cut(chain, 2) == {1}
