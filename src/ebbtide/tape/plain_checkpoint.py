"""Checkpointed functions where no tape records them: on values, in forward mode and in a program that is traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from ebbtide.arrays.containers import copied_leaf, flatten, frozen_leaf, has_vectors, unflatten
from ebbtide.arrays.context import current, value_trace
from ebbtide.tape.region import shown
from ebbtide.tape.saved import checksum_of_result


def plain_checkpoint(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """
    Run a function that is to be checkpointed: nothing is recorded, so that it need not run again.

    It has arrays of its own, as on a tape, so that it has one value, with a derivative and without.

    Returns:
        What it returns, in arrays that are neither those of the arguments nor views of each other. Outside of
        derivatives and programs, an argument that it hands back as it was is that argument.
    """
    context = current()
    follower = context.follower
    # A plain array that a program reads is one of those around it, which each run reads anew.
    copied = copied_leaf if follower is None else frozen_leaf
    leaves, structure = flatten(_as_traced(args, kwargs))
    own = [copied(leaf) for leaf in leaves]
    given = unflatten(structure, own)
    with nullcontext() if follower is None else follower.checkpoint():
        results, results_structure = flatten(f(*given[0], **given[1]))
    before: dict[int, Any] = {}
    if follower is None and not context.traces:
        before = {id(one): leaf for one, leaf in zip(own, leaves, strict=True) if isinstance(one, np.ndarray)}
    for n, result in enumerate(results):
        leaf = before.get(id(result))
        as_given = leaf is not None and checksum_of_result(result) == checksum_of_result(leaf)
        results[n] = leaf if as_given else copied(result)
    return unflatten(results_structure, results)


def _as_traced(args: Any, kwargs: Any) -> Any:
    """Return arguments among which there are vectors as the function has them on a tape: plain vectors as traced."""
    trace = value_trace(current()) if has_vectors((args, kwargs)) else None
    if trace is None:
        return args, kwargs
    leaves, structure = flatten((args, kwargs))
    return unflatten(structure, [shown(trace, leaf) for leaf in leaves])
