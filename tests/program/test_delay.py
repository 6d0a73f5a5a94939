"""Equations that are put off: the order stays one in which a program runs, and takes less."""

from __future__ import annotations

import pytest
from tests.scale import sample

from ebbtide.program.delay import delayed
from ebbtide.program.values import Values

from .graphs import make_values


def peak(values, order):
    """Return the most bytes that are held at a time if values die at their last use."""
    place = {number: k for k, number in enumerate(order)}
    most = 0
    for now in range(len(order)):
        held = [
            k for k in order
            if place[k] <= now and (values.stays[k] or max(map(place.get, values.readers[k]), default=place[k]) >= now)
        ]  # fmt: skip
        most = max(most, sum(values.nbytes[k] for k in held))
    return most


@pytest.mark.parametrize("seed", sample(range(400), 8))
def test_order(seed):
    """All equations are there once, after what they read; of a forward part nothing that is used in it leaves it."""
    values = make_values(seed, 12)
    for forward in (0, 5, 12):
        order = delayed(values, forward)
        assert sorted(order) == list(values.steps)
        place = {number: k for k, number in enumerate(order)}
        for number in values.steps:
            assert all(place[one] < place[number] for one in values.reads[number])
        assert set(order[:forward]) == set(range(forward))


def chain_of_layers():
    """
    Return a sweep of two layers: of each the product for its operand, then the one for its weights.

    Values 0 and 1 are the inputs of the layers, 2 is a cotangent; 3 and 4 are the products of the second layer, 5 of
    the first one.
    """
    reads = ((), (0,), (1,), (2, 0), (2, 1), (3, 0))
    readers = ((1, 3, 5), (2, 4), (3, 4), (5,), (), ())
    return Values(
        steps=tuple(range(6)), nbytes=(8, 8, 8, 8, 1, 1), cost=(1,) * 6, reads=reads, readers=readers, over=((),) * 6,
        stays=(False,) * 4 + (True, True), repeats=(True,) * 6, cheap=(False,) * 6,
    )  # fmt: skip


def test_a_product_waits_for_the_one_that_frees():
    """The product for the weights, which lets its layer's input go, is computed before the one for the operand."""
    values = chain_of_layers()
    order = delayed(values)
    assert order == [0, 1, 2, 4, 3, 5]
    assert peak(values, order) < peak(values, list(values.steps))


def test_less_is_held():
    """In many graphs the peak is lower; higher it is in hardly any, by what a value reads in the moment it is made."""
    rises = []
    for seed in sample(range(2000), 20):
        values = make_values(seed, 12)
        rises.append((peak(values, delayed(values)) - peak(values, list(values.steps))) / max(values.nbytes))
    assert sum(rise < 0 for rise in rises) > 0.3 * len(rises)
    assert sum(rise > 0 for rise in rises) < 0.03 * len(rises)
    assert max(rises) <= 1
