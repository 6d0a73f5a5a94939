"""Rules of moving and repeating elements: roll, flip, tile, triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.kinds import linear
from ebbtide.arrays.views import lying
from ebbtide.rules.answers import answer
from ebbtide.rules.reductions import axes_of

_roll = linear(
    np.roll,
    lambda g, kind, shift, axis: np.roll(g, tuple([-s for s in shift]), axis),
    infer=lambda kind, shift, axis: kind,
    batch=lambda x, shift, axis: np.roll(x, shift, tuple([a + 1 for a in axis])),
    name="roll",
)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return an array with elements moved around along axes, over all elements if *axis* is None."""
    if axis is None:
        return np.reshape(roll(np.reshape(a, -1), shift, 0), a.shape)
    pairs = np.broadcast(shift, axis)
    axes = axes_of(tuple([k for _, k in pairs]), a.ndim)
    pairs.reset()
    shifts = tuple([int(s) for s, _ in pairs])
    return _roll.bind((a,), {"shift": shifts, "axis": axes})


answer(np.roll, roll)


def flip(m: Any, axis: Any = None) -> Any:
    """Return a view with the order of elements reversed along axes."""
    axes = axes_of(axis, m.ndim)
    return m[tuple([slice(None, None, -1) if k in axes else slice(None) for k in range(m.ndim)])]


answer(np.flip, flip)
answer(np.flipud, lambda m: flip(m, 0))
answer(np.fliplr, lambda m: flip(m, 1))


def _rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    for _ in range(k % 4):
        m = np.swapaxes(flip(m, axes[1]), *axes)
    return m


answer(np.rot90, _rot90)


def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    if axis is None:
        a, axis = np.reshape(a, -1), 0
    index = np.repeat(np.arange(a.shape[axis]), repeats)
    return np.take(a, index, axis)


def _tile(A: Any, reps: Any) -> Any:
    reps = tuple(np.atleast_1d(reps).tolist())
    ndim = max(A.ndim, len(reps))
    shape = (1,) * (ndim - A.ndim) + A.shape
    if all(r == 1 for r in reps):
        return np.copy(np.reshape(A, shape))
    reps = (1,) * (ndim - len(reps)) + reps
    spread = np.reshape(A, tuple([n for size in shape for n in (1, size)]))
    wide = np.broadcast_to(spread, tuple([n for pair in zip(reps, shape, strict=True) for n in pair]))
    return lying(np.reshape(wide, tuple([r * n for r, n in zip(reps, shape, strict=True)])))


answer(np.repeat, _repeat)
answer(np.tile, _tile)

def _triangle(function: Any) -> Any:

    def handler(m: Any, k: int = 0) -> Any:
        if function is np.tril:
            kept = np.tri(*m.shape[-2:], k=k, dtype=bool)
        else:
            kept = ~np.tri(*m.shape[-2:], k=k - 1, dtype=bool)
        return np.where(kept, m, 0)

    return handler


answer(np.tril, _triangle(np.tril))
answer(np.triu, _triangle(np.triu))
