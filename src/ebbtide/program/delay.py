"""Which equations are better computed later: not before their first use, while what they read is there anyway."""

from __future__ import annotations

import math

from ebbtide.program.values import Values


def delayed(values: Values, forward: int = 0) -> list[int]:
    """
    Return the numbers of equations in an order in which values are born later, and no more is held until they are.

    An equation is put off until its first use where that keeps what it reads no longer, or no more bytes of it longer
    than its own value has: as the product for the operand of a layer, which a sweep computes before the one for its
    weights, while the second is what lets the layer's input go. In the moment in which it is computed a value is there
    with what it reads, so that the peak may be higher: the caller takes the better order.

    Args:
        values: Those of a program.
        forward: How many equations come first that are a part of their own, which nothing leaves.
    """
    count = len(values.nbytes)
    last: tuple[float, ...] = (count, math.inf)
    # Places that can be compared: those before a place are tuples that go on.
    places: dict[int, tuple[float, ...]] = {}
    for step in reversed(values.steps):
        places[step] = (step, math.inf)
        readers = values.readers[step]
        if not readers or values.stays[step]:
            continue
        first = min(places[reader] for reader in readers)
        longer, gains = 0, True
        for one in values.reads[step]:
            others = [places.get(r, (r, math.inf)) for r in values.readers[one] if r != step]
            end = last if values.stays[one] else max(others, default=places[step])
            gains = gains and end > places[step]
            longer += values.nbytes[one] if end < first else 0
        crosses = step < forward <= first[0]
        if gains and longer <= values.nbytes[step] and not crosses:
            places[step] = (*first[:-1], step - count, math.inf)
    return sorted(places, key=places.__getitem__)
