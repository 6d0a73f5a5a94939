"""Rules of moving and repeating elements: roll, flip, tile, pad, triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import flatten
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.reductions import axes_of

_roll = linear(
    np.roll,
    lambda g, kind, shift, axis: np.roll(g, tuple(-s for s in shift), axis),
    infer=lambda kind, shift, axis: kind,
    batch=lambda x, shift, axis: np.roll(x, shift, tuple([a + 1 for a in axis])),
    name="roll",
)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return an array with elements moved around along axes, over all elements if *axis* is None."""
    if axis is None:
        return np.reshape(roll(np.reshape(a, -1), shift, 0), a.shape)
    pairs = np.broadcast(shift, axis)
    axes = axes_of(tuple(k for _, k in pairs), a.ndim)
    pairs.reset()
    shifts = tuple(int(s) for s, _ in pairs)
    return _roll.bind((a,), {"shift": shifts, "axis": axes})


answer(np.roll, roll)


def flip(m: Any, axis: Any = None) -> Any:
    """Return a view with the order of elements reversed along axes."""
    axes = axes_of(axis, m.ndim)
    return m[tuple(slice(None, None, -1) if k in axes else slice(None) for k in range(m.ndim))]


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
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    ndim = max(A.ndim, len(reps))
    shape = (1,) * (ndim - A.ndim) + A.shape
    reps = (1,) * (ndim - len(reps)) + reps
    spread = np.reshape(A, tuple(n for size in shape for n in (1, size)))
    wide = np.broadcast_to(spread, tuple(n for pair in zip(reps, shape, strict=True) for n in pair))
    return np.reshape(wide, tuple(r * n for r, n in zip(reps, shape, strict=True)))


answer(np.repeat, _repeat)
answer(np.tile, _tile)

# Padding. Constant padding is linear up to its constant; other modes are a gather.


def _pad_transpose(g: Any, kind: ArrayType, widths: Any, values: Any) -> Any:
    return g[tuple(slice(before, before + n) for (before, _), n in zip(widths, kind.shape, strict=True))]


_pad_constant = linear(
    lambda x, widths, values: np.pad(x, widths, constant_values=values),
    _pad_transpose,
    infer=lambda kind, widths, values: ArrayType(
        tuple(a + n + b for (a, b), n in zip(widths, kind.shape, strict=True)), kind.dtype
    ),
    batch=lambda x, widths, values: np.pad(x, ((0, 0), *widths), constant_values=values),
    name="pad",
)
_INDEX_PADDINGS = ("edge", "reflect", "symmetric", "wrap")


def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0, **kwargs: Any) -> Any:
    """Return an array with a border."""
    widths = tuple((int(a), int(b)) for a, b in np.broadcast_to(pad_width, (array.ndim, 2)))
    if mode == "constant":
        if any(type(value) is TracedArray for value in flatten(constant_values)[0]):
            raise refusal("np.pad with traced constant_values has no derivative rule; write np.concatenate.")
        if np.all(np.equal(constant_values, 0)):
            return _pad_constant.bind((array,), {"widths": widths, "values": 0})
        padded = np.pad(np.zeros(array.shape, array.dtype), widths, constant_values=constant_values)
        padded = constant_like(array, padded)
        padded[tuple(slice(before, before + n) for (before, _), n in zip(widths, array.shape, strict=True))] = array
        return padded
    if mode not in _INDEX_PADDINGS or kwargs.get("reflect_type", "even") != "even":
        raise refusal(f"np.pad with mode={mode!r} has no derivative rule; there is one for {_INDEX_PADDINGS}.")
    for axis, (width, size) in enumerate(zip(widths, array.shape, strict=True)):
        if any(width):
            array = np.take(array, np.pad(np.arange(size), width, mode=mode), axis)
    return array


answer(np.pad, pad)


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
