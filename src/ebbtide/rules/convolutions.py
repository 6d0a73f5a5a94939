"""Rules of convolution and correlation of two sequences: bilinear, each the transpose of another one."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.kinds import multilinear
from ebbtide.arrays.primitive import Primitive
from ebbtide.rules.answers import answer, refusal

_MODES = ("full", "same", "valid")


def _window(mode: str, m: int, n: int, *, turned: bool) -> tuple[int, int]:
    """
    Return which elements of the full convolution of m by n elements a mode gives, as first and one past the last.

    Args:
        mode: NumPy's mode.
        m: Length of the first operand.
        n: Length of the second one.
        turned: Whether operands that are exchanged, because the first is shorter, give the result backwards, as those
            of np.correlate do.
    """
    longer, shorter = max(m, n), min(m, n)
    length = longer + shorter - 1
    if mode == "full":
        return 0, length
    if mode == "valid":
        return shorter - 1, longer
    first = shorter - 1 - shorter // 2
    if turned and m < n:
        first = length - first - longer
    return first, first + longer


def _padded(g: Any, mode: str, m: int, n: int, *, turned: bool) -> Any:
    """Return the cotangent of the full convolution."""
    first, last = _window(mode, m, n, turned=turned)
    return g if mode == "full" else np.pad(g, (first, m + n - 1 - last))


def _members(x: Any, y: Any, window: tuple[int, int]) -> Any:
    """Return some elements of the full convolutions of all members, as products with the windows of one operand."""
    n = y.shape[-1]
    places = np.arange(*window)[:, None] + np.arange(n)[::-1]
    wide = np.pad(x, ((0, 0),) * (x.ndim - 1) + ((n - 1, n - 1),))
    return np.matvec(np.take(wide, places, axis=-1), y)


def _of(mode: Any, *, turned: bool) -> Primitive:
    """Return the convolution of a mode; *turned*: of a sequence with another one backwards, as NumPy correlates."""

    def function(x: Any, y: Any) -> Any:
        if turned:
            return np.correlate(x, np.conjugate(y) if y.dtype.kind == "c" else y, mode)
        return np.convolve(x, y, mode)

    def of_first(g: Any, y: Any, kind: ArrayType) -> Any:
        full = _padded(g, mode, kind.shape[0], y.shape[0], turned=turned)
        return np.convolve(full, y if turned else y[::-1], "valid")

    def of_second(g: Any, x: Any, kind: ArrayType) -> Any:
        full = _padded(g, mode, x.shape[0], kind.shape[0], turned=turned)
        found = np.convolve(full, x[::-1], "valid")
        return found[::-1] if turned else found

    def infer(x: ArrayType, y: ArrayType) -> ArrayType:
        first, last = _window(mode, x.shape[0], y.shape[0], turned=turned)
        return ArrayType((last - first,), np.result_type(x.dtype, y.dtype))

    def batch(x: Any, y: Any, *mapped: bool) -> Any:
        window = _window(mode, x.shape[-1], y.shape[-1], turned=turned)
        return _members(x, y[..., ::-1] if turned else y, window)

    return multilinear(
        function, (of_first, of_second), infer=infer, batch=batch, name="correlate" if turned else "convolve"
    )


_CONVOLUTIONS, _CORRELATIONS = (
    MappingProxyType({mode: _of(mode, turned=turned) for mode in _MODES}) for turned in (False, True)
)


def _bound(primitives: Any, a: Any, v: Any, mode: Any) -> Any:
    if mode not in _MODES:
        raise refusal(f"mode={mode!r} is none of {', '.join(map(repr, _MODES))}.")
    x, y = map(as_operand, (a, v))
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ValueError(f"Sequences of shapes {x.shape} and {y.shape}: each must have one axis and an element.")
    return primitives[mode].bind((x, y))


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Return the convolution of two sequences."""
    a, v = (np.reshape(s, 1) if np.ndim(s) == 0 else s for s in (a, v))
    return _bound(_CONVOLUTIONS, a, v, mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """Return the correlation of two sequences, of which the second is conjugated."""
    v = as_operand(v)
    return _bound(_CORRELATIONS, a, np.conjugate(v) if type_of(v).dtype.kind == "c" else v, mode)


answer(np.convolve, convolve)
answer(np.correlate, correlate)
