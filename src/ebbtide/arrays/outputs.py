"""Where results go: `out=`, and `where=` of operations that write some elements of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays import misuse


def _is_traced(value: Any) -> bool:
    return hasattr(value, "_trace")


def into(target: Any, result: Any, name: str, *, same_type: bool = False) -> Any:
    """
    Write a result into what the user gave as `out=`, and return that.

    Args:
        target: An array; of several results a tuple of arrays and None.
        result: What is written; an array, or a tuple of them.
        name: Name of the function, for messages.
        same_type: Whether shape and dtype have to be those of the result, as functions that are no ufuncs compute
            in the dtype of their output.

    Raises:
        TraceError: The target is a plain array, which cannot take a traced value.
        ValueError: The shapes do not fit.
        TypeError: The dtypes do not fit.
    """
    if isinstance(result, tuple):
        return tuple([
            one if wanted is None else into(wanted, one, name) for one, wanted in zip(result, target, strict=True)
        ])
    target = target[0] if isinstance(target, tuple) else target
    if target is None or target is Ellipsis:
        return result
    result = result if _is_traced(result) else np.asarray(result)
    if _is_traced(result) and not _is_traced(target):
        raise misuse.into_plain(name)
    error = misuse.output_type(name, target, result, same_type=same_type)
    if error is not None:
        raise error
    target[...] = result
    return target


def _harmless(x: Any, where: Any) -> Any:
    """Return an operand with other numbers where a condition does not hold; a number of Python's stays one."""
    kind = x.dtype.kind if hasattr(x, "dtype") else ""
    return np.where(where, x, 1 if kind in "iu" else 0.5) if kind and kind in "iufc" else x


def partly(handler: Callable[..., Any], inputs: tuple[Any, ...], where: Any, target: Any, name: str) -> Any:
    """
    Do an elementwise operation where a condition holds, and write the results there.

    The other elements are not looked at: `np.divide(x, y, out=u, where=y != 0)` has no warning, and zero derivatives
    where y is zero.

    Args:
        handler: The operation.
        inputs: Its operands.
        where: The condition, which broadcasts with the operands.
        target: The array that is written.
        name: Name of the operation, for messages.
    """
    target = target[0]
    if not _is_traced(target):
        raise misuse.into_plain(name)
    if _is_traced(where):
        # Which elements these are nobody knows: all are done, the others with operands that no operation minds.
        result = handler(*[_harmless(x, where) for x in inputs])
        error = misuse.output_type(name, target, result, same_type=False)
        if error is not None:
            raise error
        target[...] = np.where(where, result, target)
        return target
    mask = np.broadcast_to(np.asarray(where, bool), target.shape)
    chosen = [x if np.ndim(x) == 0 else np.broadcast_to(x, target.shape)[mask] for x in inputs]
    result = handler(*chosen)
    error = misuse.output_type(name, target, result, same_type=False, whole=False)
    if error is not None:
        raise error
    target[mask] = result
    return target
