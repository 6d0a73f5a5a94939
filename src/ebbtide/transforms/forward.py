"""Forward mode: the value of a function and its derivative along tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import as_value, check_vectors, flatten, form_of, output_types, paths_of, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.errors import CotangentError
from ebbtide.tape.account import Account, account
from ebbtide.tape.linear_region import split
from ebbtide.tape.recording import settle
from ebbtide.tape.tangent import TangentTrace
from ebbtide.transforms.pullback import seed_of


@final
class Point:
    """
    The arguments of a function, whose derivative is taken along tangents.

    Args:
        primals: The arguments: arrays and containers of arrays.

    Raises:
        TypeError: A leaf is no floating-point number.
    """

    __slots__ = ("kinds", "structures", "values")

    def __init__(self, primals: Sequence[Any]) -> None:
        self.values: list[Any] = []
        self.structures: list[Any] = []
        for k, primal in enumerate(primals):
            check_vectors(primal)
            leaves, structure = flatten(primal)
            places = paths_of(structure)
            self.values += [as_value(x, f"argument {k}{place}") for x, place in zip(leaves, places, strict=True)]
            self.structures.append(structure)
        self.kinds = [type_of(value) for value in self.values]

    def directions(self, tangents: Sequence[Any], name: str) -> list[Any]:
        """
        Return the leaves of tangents, in the types of the values.

        Args:
            tangents: For each argument a container of its structure, shapes and dtypes.
            name: Who was given them, for messages.

        Raises:
            CotangentError: A tangent has another structure, shape or kind of dtype than its argument.
        """
        if len(self.structures) != len(tangents):
            raise CotangentError(
                f"{name} was given {len(self.structures)} arguments and {len(tangents)} tangents."
            )
        found: list[Any] = []
        for k, (structure, tangent) in enumerate(zip(self.structures, tangents, strict=True)):
            leaves, theirs = flatten(tangent)
            if structure != theirs:
                raise CotangentError(
                    f"The tangent of argument {k} has the structure {form_of(theirs)}, not {form_of(structure)}."
                )
            found += leaves
        return [seed_of(leaf, kind, "tangent", "argument") for leaf, kind in zip(found, self.kinds, strict=True)]

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """Return leaves, one for each value, as the arguments of the function."""
        rest = iter(leaves)
        return [unflatten(tree, [next(rest) for _ in range(tree.num_leaves)]) for tree in self.structures]


def run_duals(
    f: Callable[..., Any], point: Point, tangents: list[Any], trace: TangentTrace, acct: Account, name: str
) -> tuple[list[Any], list[Any], Any]:
    """
    Run a function on pairs of values and tangents.

    Args:
        f: The function.
        point: Its arguments.
        tangents: The tangents of their leaves.
        trace: The forward mode; closed afterwards.
        acct: The account of the call.
        name: Who runs it, for messages.

    Returns:
        (values, tangents, structure) of the result; a tangent is None where it does not depend on the arguments.
    """
    duals = [TracedArray(trace, t, value) for t, value in zip(tangents, point.values, strict=True)]
    for dual in duals:
        dual.sharing().reachable = True
    try:
        traces = (*current().traces, trace)
        with entered(level=trace.level, tangent=trace, traces=traces, ledger=acct.ledger, budget=acct.budget):
            outputs, structure = flatten(f(*point.arguments(duals)))
            settle(outputs)
    finally:
        trace.closed = True
    output_types(outputs, structure, name)
    pairs = [split(trace, x) for x in outputs]
    return [value for value, _ in pairs], [tangent for _, tangent in pairs], structure


def zero_tangent(value: Any) -> Any:
    """Return the tangent of what depends on nothing."""
    return zeros_like(value)[()]


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
        TypeError: An input is no floating-point number, or an output is no array and no number; or primals or tangents
            are no tuple.

    Memory:
        A tangent beside each value that is alive; nothing is kept.

    Example:
        >>> import numpy as np
        >>> jvp(np.sin, (0.0,), (2.0,))
        (np.float64(0.0), np.float64(2.0))
    """
    check_function(f, "jvp")
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(
                f"jvp takes a tuple of {name}, one for each argument of the function, and was given an object of type "
                f"{type(given).__name__}. Write jvp(f, (x,), (v,))."
            )
    point = Point(primals)
    directions = point.directions(tangents, "jvp")
    with account(budget) as acct:
        trace = TangentTrace(current().level + 1)
        values, derivatives, structure = run_duals(f, point, directions, trace, acct, "jvp")
    found = [zero_tangent(v) if t is None else t for v, t in zip(values, derivatives, strict=True)]
    return unflatten(structure, values), unflatten(structure, found)
