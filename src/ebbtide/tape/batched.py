"""
Transforms of a function of a member that become transforms of the function of the batch.

A checkpointed function, or a time loop, that no derivative inside of the batch sees is one of arrays with one more
axis: so the tapes around record it once, for all members.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.context import beneath
from ebbtide.tape.recording import settle


def on_members(
    trace: BatchTrace, transform: Callable[..., Any], f: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """
    Return `transform(f)(*args, **kwargs)`, with the transform of the function of all members.

    Args:
        trace: The batch, the innermost trace here.
        transform: Takes a function of arrays and containers, and returns one with the same arguments and results.
        f: The function of a member.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    leaves, structure = flatten((args, kwargs))
    pairs = [trace.split(leaf) for leaf in leaves]
    mapped = [is_mapped for _, is_mapped in pairs]
    form: list[Any] = []

    @wraps(f)
    def of_all(*arrays: Any) -> list[Any]:
        with trace.above():
            given = unflatten(structure, raised(trace, arrays, mapped))
            outputs, after = flatten(f(*given[0], **given[1]))
            settle(outputs)
            found = [trace.split(output) for output in outputs]
        form[:] = [after, [is_mapped for _, is_mapped in found]]
        return [array for array, _ in found]

    with beneath(trace):
        results = transform(of_all)(*[array for array, _ in pairs])
    after, flags = form
    return unflatten(after, raised(trace, results, flags))


def raised(trace: BatchTrace, arrays: Any, mapped: list[bool]) -> list[Any]:
    """Return arrays as the function of a member sees them."""
    return [trace.members(array) if m else array for array, m in zip(arrays, mapped, strict=True)]
