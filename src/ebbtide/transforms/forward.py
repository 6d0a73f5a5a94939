"""Forward mode: the value of a function and its derivative along tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import as_value, flatten, output_types, paths_of, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.errors import CotangentError
from ebbtide.tape.account import account
from ebbtide.tape.recording import settle
from ebbtide.tape.tangent import TangentTrace
from ebbtide.transforms.pullback import seed_of


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], budget: Budget | None = None
) -> tuple[Any, Any]:
    """
    Return the value of *f* and its derivative along tangents, by forward mode.

    Args:
        f: A function of arrays and containers of arrays.
        primals: Its arguments.
        tangents: For each argument a container of its structure, shapes and dtypes.
        budget: The bytes that what is inside may take (a gradient of which this is the derivative).

    Returns:
        (value, tangent), both of the structure of the value of *f*.

    Raises:
        CotangentError: A tangent has another structure, shape or kind of dtype than its argument.
        TypeError: An input is no floating-point number, or an output is no array and no number.

    Memory:
        A tangent beside each value that is alive; nothing is kept.

    Example:
        >>> import numpy as np
        >>> jvp(np.sin, (0.0,), (2.0,))
        (np.float64(0.0), np.float64(2.0))
    """
    if len(primals) != len(tangents):
        raise CotangentError(f"jvp was given {len(primals)} arguments and {len(tangents)} tangents.")
    trace = TangentTrace(current().level + 1)
    with account(budget) as acct:
        arguments = []
        for k, (primal, tangent) in enumerate(zip(primals, tangents, strict=True)):
            leaves, structure = flatten(primal)
            directions, theirs = flatten(tangent)
            if structure != theirs:
                raise CotangentError(f"The tangent of argument {k} has the structure {theirs}, not {structure}.")
            traced = []
            for leaf, direction, place in zip(leaves, directions, paths_of(structure), strict=True):
                value = as_value(leaf, f"argument {k}{place}")
                array = TracedArray(trace, seed_of(direction, type_of(value)), value)
                array.sharing().reachable = True
                traced.append(array)
            arguments.append(unflatten(structure, traced))
        try:
            traces = (*current().traces, trace)
            with entered(level=trace.level, tangent=trace, traces=traces, ledger=acct.ledger, budget=acct.budget):
                outputs, structure = flatten(f(*arguments))
                settle(outputs)
        finally:
            trace.closed = True
    output_types(outputs, structure, "jvp")
    values, derivatives = [], []
    for output in outputs:
        if type(output) is TracedArray and output._trace is trace:
            values.append(output._value)
            derivatives.append(zeros_like(output._value)[()] if output._node is None else output._node)
        else:
            values.append(output)
            derivatives.append(zeros_like(np.asarray(output) if not hasattr(output, "dtype") else output)[()])
    return unflatten(structure, values), unflatten(structure, derivatives)
