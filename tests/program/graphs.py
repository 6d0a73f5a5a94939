"""Small graphs of values, as the planner sees programs, made from a seed."""

from __future__ import annotations

import numpy as np

from ebbtide.program.values import Values


def make_values(seed, count=8):
    """Return what there would be to know of a program of so many equations, the last of which is its result."""
    random = np.random.default_rng([seed, count])
    reads = []
    for number in range(count):
        some = random.permutation(number)[: random.integers(0, 3)]
        reads.append(tuple(sorted(int(k) for k in some)))
    # All lead to the result.
    unread = set(range(count - 1)) - {one for found in reads for one in found}
    reads[-1] = tuple(sorted(unread | set(reads[-1])))
    readers = [[] for _ in range(count)]
    for number, found in enumerate(reads):
        for one in found:
            readers[one].append(number)
    cheap = tuple(bool(x) for x in random.random(count) < 0.7)
    stays = tuple(bool(x) for x in random.random(count) < 0.15)
    return Values(
        steps=tuple(range(count)),
        nbytes=tuple(int(x) for x in random.integers(1, 9, count)),
        cost=(1,) * count,
        reads=tuple(reads),
        readers=tuple(map(tuple, readers)),
        over=((),) * count,
        stays=(*stays[:-1], True),
        repeats=cheap,
        cheap=cheap,
    )
