"""Zeros of a sum of parts: not written where each element is written before it is read, and else as ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbtide import grad, jit
from ebbtide.program.stretches import find_stretches

COUNT = 24
WEIGHTS = np.random.default_rng(7).standard_normal((3, COUNT)).astype(np.float32)
# What zeros make of them shows in their bits, or does not.
WEIGHTS[:, ::5] = -0.0
WEIGHTS[:, 1::7] = np.nan


def of_parts(parts: list[Any]) -> Any:
    """Return a function of a vector that takes these parts of it, in this order; their cotangents are sums of rows."""

    def f(x: Any) -> Any:
        return sum(np.sum(np.sin((n + 1) * WEIGHTS[:, part] * x[part])) for n, part in enumerate(parts))

    return f


def count_fills(program: Any) -> int:
    """Return how many steps of a program copy a number to all elements of an array of so many."""
    found = 0
    for stretch in find_stretches(program.program, program.layout, program.memory):
        for action, _ in stretch.actions:
            if action.kind == "Elementwise" and action.arguments[2][0] == "move":
                source, _ = action.arguments[1]
                found += isinstance(source.owner, np.ndarray) and not any(source.strides)
    return found


def check(f: Any, x: np.ndarray) -> int:
    """Compare a gradient by the machine with that by NumPy; return how many arrays the machine fills."""
    planned = jit(grad(f), executor="machine")
    found = planned(x)
    assert found.tobytes() == jit(grad(f))(x).tobytes()
    np.testing.assert_array_equal(found, grad(f)(x))
    return count_fills(planned.program(x))


CASES: dict[str, tuple[list[Any], int]] = {
    "all": ([slice(0, 10), slice(10, 11), slice(11, COUNT)], 0),
    "in any order": ([slice(11, COUNT), slice(0, 5), slice(10, 11), slice(5, 10)], 0),
    # A gradient is swept from the last part to the first.
    "some twice": ([slice(3, 7), slice(0, 10), slice(10, COUNT)], 0),
    "some of a part before it": ([slice(0, 10), slice(10, COUNT), slice(3, 7)], 1),
    "a gap": ([slice(0, 10), slice(11, COUNT)], 1),
    "overlapping": ([slice(0, 14), slice(10, COUNT)], 1),
    "every second": ([slice(0, None, 2), slice(1, None, 2)], 1),
    "backwards": ([slice(None, 9, -1), slice(9, None, -1)], 1),
    "nothing": ([slice(0, 0), slice(0, 4)], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_zeros_that_nobody_reads_are_not_written(name):
    """They stay where a part is left out, or is added to what may not have been written."""
    parts, fills = CASES[name]
    x = np.linspace(-2.0, 2.0, COUNT, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert check(of_parts(parts), x) == fills


def test_rows_of_a_matrix():
    """Whole rows are parts without gaps; columns are not."""
    x = np.linspace(-1.0, 1.0, 12).reshape(4, 3)

    def of(*parts: Any) -> int:
        def f(x: Any) -> Any:
            return sum(np.sum(np.sin(np.array([1.0, 2.0, -1.0]).reshape(3, 1, 1) * x[part])) for part in parts)

        return check(f, x)

    assert of(slice(0, 3), slice(3, 4)) == 0
    assert of(np.s_[:, :2], np.s_[:, 2:]) == 1


def test_random_parts():
    """Of 80 random lists of parts each gradient has the bits that NumPy finds."""
    r = np.random.default_rng(11)
    x = r.standard_normal(COUNT).astype(np.float32)
    without = 0
    with np.errstate(invalid="ignore"):
        for _ in range(80):
            ends = np.sort(r.choice(np.arange(1, COUNT), int(r.integers(1, 6)), replace=False))
            parts = [slice(int(a), int(b)) for a, b in zip([0, *ends], [*ends, COUNT], strict=True)]
            if r.random() < 0.3:
                del parts[int(r.integers(len(parts)))]
            if r.random() < 0.3:
                a, b = np.sort(r.choice(COUNT, 2, replace=False))
                parts.append(slice(int(a), int(b)))
            r.shuffle(parts)
            without += check(of_parts(parts), x) == 0
    assert 30 < without < 75
