"""Through which values it is cheapest to pass a place of a program, if others are computed from them afterwards."""

from __future__ import annotations

import numpy as np

from ebbtide.program.values import Values

# Capacities are 32-bit numbers there.
_MOST = 1 << 30


def smallest_cut(values: Values, place: int) -> set[int]:
    """
    Return the values with the fewest bytes from which all can be computed without products that is needed later.

    Args:
        values: Those of a program.
        place: Number of the equation before which they are held.

    Returns:
        Numbers of equations before *place*: a smallest cut between the values that are not computed again and those
        that are used from *place* on. Of several ones the one that leaves least to compute.
    """
    before = [number for number in values.steps if number < place]
    index = {number: 2 * k for k, number in enumerate(before)}
    source, sink = 2 * len(before), 2 * len(before) + 1
    total = sum(values.nbytes[number] for number in before)
    unit = max(1, -(-total // (_MOST // 4)))
    boundless = total // unit + len(before) + 1
    edges: dict[tuple[int, int], int] = {}
    for number in before:
        # What stays anyway costs nothing.
        held = 0 if values.stays[number] else -(-values.nbytes[number] // unit)
        edges[index[number], index[number] + 1] = held
        if not values.cheap[number]:
            edges[source, index[number]] = boundless
        for one in values.reads[number] if values.cheap[number] else ():
            edges[index[one] + 1, index[number]] = boundless
        if any(reader >= place for reader in values.readers[number]):
            edges[index[number] + 1, sink] = boundless
    if not edges:
        return set()
    # Not for who cuts nothing: these are 78 modules.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # Both directions of each edge, as the flow needs them.
    for one, other in list(edges):
        edges.setdefault((other, one), 0)
    rows, columns = np.array(list(edges), np.int32).T
    capacity = csr_array((np.array(list(edges.values()), np.int32), (rows, columns)), shape=(sink + 1, sink + 1))
    left = capacity - maximum_flow(capacity, source, sink).flow
    left.eliminate_zeros()
    # From the sink backwards: the cut that is nearest to the uses.
    reach = set(breadth_first_order(left.T.tocsr(), sink, return_predecessors=False).tolist())
    return {number for number in before if index[number] not in reach and index[number] + 1 in reach}
