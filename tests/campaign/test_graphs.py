"""Random programs with views, fan-out and writes in place: the gate runs a sample, `make campaign` 10,000."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.scale import FULL

import ebbtide as eb

from .graphs import make_program
from .poison import poisoned

# Programs, each from its own seed.
COUNT = 10_000 if FULL else 60
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
    with poisoned():
        # What is read before it was written, or after it was given up, is nan.
        for a, b in zip(eb.grad(program, everything)(*arguments), gradients, strict=True):
            assert a.tobytes() == b.tobytes(), seed
    if FULL or seed % 5 == 0:
        _check_second(program, arguments, directions, seed)


def _check_second(program: Callable[..., Any], arguments: list[Any], directions: list[Any], seed: int) -> None:
    """Check derivatives of derivatives: in all mixtures of the modes, and against differences of gradients."""
    everything = tuple(range(len(arguments)))
    others = [np.random.default_rng([seed, 2]).standard_normal(a.shape) for a in arguments]
    gradient = eb.grad(program, everything)

    def slope(*values: Any) -> Any:
        return eb.jvp(program, values, directions)[1]

    def along(*values: Any) -> Any:
        return sum(np.sum(g * d) for g, d in zip(gradient(*values), directions, strict=True))

    with poisoned():
        found = eb.hvp(program, everything)(*arguments, tuple(directions))
    size = 1 + sum(float(np.sum(np.abs(h * e))) for h, e in zip(found, others, strict=True))
    for again in (eb.grad(slope, everything)(*arguments), eb.grad(along, everything)(*arguments)):
        difference = sum(float(np.sum(np.abs((a - h) * e))) for a, h, e in zip(again, found, others, strict=True))
        assert difference <= 1e-9 * size, seed
    swapped = eb.hvp(program, everything)(*arguments, tuple(others))
    symmetric = _dot(found, others) - _dot(swapped, directions)
    assert abs(symmetric) <= 1e-9 * (size + sum(float(np.sum(np.abs(h))) for h in swapped)), seed

    def difference_of_gradients(step: float) -> float:
        ends = [gradient(*[a + s * step * d for a, d in zip(arguments, directions, strict=True)]) for s in (1, -1)]
        return (_dot(ends[0], others) - _dot(ends[1], others)) / (2 * step)

    coarse, fine = difference_of_gradients(2e-5), difference_of_gradients(1e-5)
    # Kinks near the point spoil a few differences: those of two steps differ then.
    assert abs(coarse - fine) > 1e-4 * size or abs(fine - _dot(found, others)) <= 1e-3 * size, seed


def _dot(first: Any, second: Any) -> float:
    return sum(float(np.sum(a * b)) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_programs(group: int, record_property: Callable[..., None]) -> None:
    """A random program has one gradient, by reverse, by forward, by differences, under a budget, recomputed."""
    with np.errstate(all="ignore"):
        for seed in range(group, COUNT, GROUPS):
            _check(seed)
    record_property("programs", len(range(group, COUNT, GROUPS)))
