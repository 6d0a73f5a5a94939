"""
The least that a refusal names: the saved values of a step and 4 states, without buffers; and what runs within it.

Of a step that holds more than its two states at a time, as many cotangents may wait in its sweep as it held values at
the same place. What is named counts them; the function alone takes those bytes too, so that beyond it they are none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import FULL, sample, sample_of_each

from ebbtide import Budget, BudgetError, grad, profile, timeloop
from ebbtide.loop.sizes import RESERVE
from ebbtide.tape.blocks import BLOCK

U = np.linspace(0.2, 1.1, 8 * 16384)
STATE = U.nbytes
W = np.linspace(-1, 1, 64 * 64).reshape(64, 64) / 16
BESIDE = RESERVE + BLOCK + 4096
# Steps of a loop.
COUNT = 12 if FULL else 8
# What takes 4 states at most beside what it saves: a restart state, a cotangent, those of the sweep.
SHAPES: dict[str, Any] = {
    "nothing": lambda u, i: u * 0.5,
    "in place": lambda u, i: in_place(u),
    "many": lambda u, i: u + 0.1 * np.sin(u) * np.cos(u) * np.exp(-u) * np.tanh(u),
    "mask": lambda u, i: np.where(u > 0.5, u * 0.9, u * 1.1),
    "two masks": lambda u, i: np.maximum(u * 0.9, 0.5 * u * u),
    "product": lambda u, i: u * np.sin(u) * np.cos(u),
    "neighbors": lambda u, i: u + 0.1 * (np.roll(u, 1) - 2 * u + np.roll(u, -1)),
    "upwind": lambda u, i: u - 0.1 * u * (np.roll(u, -1) - np.roll(u, 1)),
    "matrix": lambda u, i: np.tanh((W @ u.reshape(64, -1)).reshape(u.shape)),
}


def in_place(u: Any) -> Any:
    """A step that writes into its state."""
    u *= 1.0 - 0.01 * u
    return u


def known(step: Callable[[Any, int], Any], u: Any) -> Any:
    """A scalar of some steps."""
    return np.sum(timeloop(step, u, COUNT))


def found_out(step: Callable[[Any, int], Any], u: Any) -> Any:
    """The same of a loop that ends by a condition."""
    last, _ = timeloop(lambda x, i: (step(x[0], i), x[1] + 1), (u, 0), until=lambda x: x[1] >= COUNT, max_steps=500)
    return np.sum(last)


def refused(loop: Any, step: Callable[[Any, int], Any], budget: Budget) -> int:
    """The least that a loop names for a budget that is too small; it ran one step, and made no file."""
    assert budget.directory is not None
    ran, directory = list[int](), Path(budget.directory)

    def watched(u: Any, i: int) -> Any:
        ran.append(i)
        assert list(directory.iterdir()) == []
        return step(u, i)

    with pytest.raises(BudgetError) as error:
        grad(lambda u: loop(watched, u), budget=budget)(U)
    assert ran == [0]
    assert list(directory.iterdir()) == []
    return int(error.value.least)


def peak_within(loop: Any, step: Callable[[Any, int], Any], budget: Budget, expected: Any) -> int:
    """The peak of a gradient beyond the function alone; it has the bits of one that keeps everything."""
    alone = peak_bytes(lambda: loop(step, U))
    found: list[Any] = []
    peak = peak_bytes(lambda: found.append(grad(lambda u: loop(step, u), budget=budget)(U)))
    assert found[0].tobytes() == expected.tobytes()
    return peak - alone


def unbounded(loop: Any, step: Callable[[Any, int], Any]) -> tuple[int, Any]:
    """The bytes that a step saves, and the gradient that keeps everything."""
    with profile() as p:
        expected = grad(lambda u: loop(step, u))(U)
    return int(p.loops[-1].plan.saved_bytes), expected


@pytest.mark.parametrize(
    ("shape", "disk", "loop"), sample_of_each(list(product(SHAPES, [0, 400], [known, found_out])), 5)
)
def test_the_least_is_a_step_and_few_states(shape: str, disk: int, loop: Any, tmp_path: Path) -> None:
    """A refusal comes before any file, and names a step's saved values and 4 states; a byte less is refused as well."""
    step = SHAPES[shape]

    def budget(memory: int) -> Budget:
        return Budget(memory=memory, disk=disk * STATE, directory=tmp_path)

    least = refused(loop, step, budget(STATE // 2))
    saved, expected = unbounded(loop, step)
    assert least <= saved + 4 * STATE + BESIDE
    assert refused(loop, step, budget(least - 1)) == least
    assert peak_within(loop, step, budget(least), expected) <= least


# Steps that hold more than two states at a time.


def branches(count: int, join: Any) -> Callable[[Any, int], Any]:
    """Return a step that joins as many branches, two by two."""

    def step(u: Any, i: int) -> Any:
        values = [u * (0.9 + 0.01 * k) for k in range(count)]
        while len(values) > 1:
            values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    return step


OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: np.maximum(a, 0.9 * b), lambda a, b: 0.5 * (a + b), lambda a, b: np.sin(a), lambda a, b: 0.5 * a * b,
)  # fmt: skip


def drawn(seed: int) -> Callable[[Any, int], Any]:
    """Return a step of a dozen random operations, each on any of the values before it; all of them are held."""
    random = np.random.default_rng(seed)
    operations = [tuple(map(int, random.integers((4, k + 1, k + 1)))) for k in range(12)]

    def step(u: Any, i: int) -> Any:
        values = [u]
        for kind, first, second in operations:
            values.append(OPERATIONS[kind](values[first], values[second]))
        for value in values[-4:-1]:
            values.append(np.maximum(values[-1], value))
        return values[-1]

    return step


WIDE = {
    **{f"maxima of {count}": branches(count, np.maximum) for count in (8, 2, 4, 16)},
    **{f"sum of {count}": branches(count, np.add) for count in (8, 16)},
    **{f"sines of {count}": branches(count, lambda a, b: np.sin(a * b)) for count in (8, 16)},
    **{f"drawn by {seed}": drawn(seed) for seed in range(24)},
}


@pytest.mark.parametrize(("name", "loop"), sample(list(product(WIDE, [known, found_out])), 7))
def test_the_least_counts_cotangents_that_wait(name: str, loop: Any, tmp_path: Path) -> None:
    """A step's own temporaries are what is named beyond 4 states at most; beyond the function alone, 4 states do."""
    step = WIDE[name]
    least = refused(loop, step, Budget(memory=1, directory=tmp_path))
    saved, expected = unbounded(loop, step)
    own = peak_bytes(lambda: step(U, 0))  # its new state included
    assert least <= saved + max(4 * STATE, own + STATE) + BESIDE
    assert refused(loop, step, Budget(memory=least - 1, directory=tmp_path)) == least
    beyond = peak_within(loop, step, Budget(memory=least), expected)
    assert beyond <= least
    assert beyond <= saved + 4 * STATE + BESIDE


def test_eight_cotangents_wait_at_the_maximum_of_eight() -> None:
    """They and a restart state are named, beside the masks that the step saves."""
    step = WIDE["maxima of 8"]
    with pytest.raises(BudgetError) as error:
        grad(lambda u: known(step, u), budget=Budget(memory=1))(U)
    states = (error.value.least - unbounded(known, step)[0] - BESIDE) / STATE
    assert 8 < states <= 9
