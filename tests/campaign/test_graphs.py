"""Random programs: the gate runs a fixed sample, `make campaign` 10,000."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.scale import FULL

import ebbtide as eb

from .graphs import make_program

# Programs, each from its own seed.
COUNT = 10_000 if FULL else 200
GROUPS = 20


def _check(seed: int) -> None:
    program, arguments = make_program(seed)
    everything = tuple(range(len(arguments)))
    copies = [a.copy() for a in arguments]
    value, gradients = eb.value_and_grad(program, everything)(*arguments)
    assert np.array_equal(value, program(*arguments), equal_nan=True), seed
    assert all(np.array_equal(a, b) for a, b in zip(arguments, copies, strict=True)), seed
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            program(*arguments)
    except FloatingPointError:
        return  # a value on the way is infinite, and so the derivative is nan
    directions = [np.random.default_rng([seed, 1]).standard_normal(a.shape) for a in arguments]
    _, forward = eb.jvp(program, arguments, directions)
    scale = 1 + sum(float(np.sum(np.abs(g * d))) for g, d in zip(gradients, directions, strict=True))
    reverse = sum(float(np.sum(g * d)) for g, d in zip(gradients, directions, strict=True))
    assert abs(float(forward) - reverse) <= 1e-10 * scale, seed
    step = 1e-6
    high = program(*[a + step * d for a, d in zip(arguments, directions, strict=True)])
    low = program(*[a - step * d for a, d in zip(arguments, directions, strict=True)])
    middle = (high - low) / (2 * step)
    # Kinks of maximum and where near the point spoil a few finite differences, never the products above.
    kink = abs(float(high) - 2 * float(value) + float(low)) / step > 1e-3 * scale
    assert kink or abs(float(middle) - reverse) <= 1e-4 * scale, seed
    again = (
        eb.value_and_grad(program, everything, budget=eb.Budget(memory="64 MiB")),
        eb.value_and_grad(eb.checkpoint(program), everything),
    )
    for other in again:
        for a, b in zip(other(*arguments)[1], gradients, strict=True):
            assert np.array_equal(a, b, equal_nan=True), seed
    for g, a in zip(gradients, arguments, strict=True):
        assert g.shape == a.shape
        assert g.dtype == a.dtype


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_programs(group: int, record_property: Callable[..., None]) -> None:
    """A random program has one gradient, by reverse, by forward, by differences, under a budget, recomputed."""
    with np.errstate(all="ignore"):
        for seed in range(group, COUNT, GROUPS):
            _check(seed)
    record_property("programs", len(range(group, COUNT, GROUPS)))
