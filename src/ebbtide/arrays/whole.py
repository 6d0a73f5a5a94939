"""Rules of users that are done as a whole: for one member of a batch after the other, and as one linear operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from ebbtide.arrays.batched import BatchTrace, by_members
from ebbtide.arrays.context import beneath, outside
from ebbtide.arrays.primitive import innermost


def done_alone(rule: Callable[..., Any], name: str, operands: tuple[Any, ...]) -> Any:
    """Return what a rule gives, in a batch for one member after the other: it may do what no trace can see."""
    trace = innermost(operands)
    if type(trace) is not BatchTrace:
        return rule(*operands)
    pairs = [trace.split(x) for x in operands]
    values, mapped = [x for x, _ in pairs], [m for _, m in pairs]
    with beneath(trace):
        return trace.members(by_members(name, lambda xs, _: rule(*xs), values, mapped, None, trace.size))


@final
class Whole:
    """
    A rule for a tangent as one linear operation, where these are recorded: it may do what nobody can record.

    On other arrays, at the point and when it is done again, it is what the rule does, so that derivatives go through.

    Args:
        rule: `rule(tangent, *saved)`.
        name: What messages call it.
        alone: Whether it is done for one member of a batch after the other.

    Memory:
        Holds no array.
    """

    __slots__ = ("_alone", "_rule", "name")

    def __init__(self, rule: Callable[..., Any], name: str, alone: bool) -> None:
        self._rule = rule
        self._alone = alone
        self.name = name

    def bind(self, operands: tuple[Any, ...], params: Any = None) -> Any:
        """Do it on a tangent, the first operand, and saved values; it has no parameters."""
        trace = innermost(operands)
        if getattr(trace, "is_linear", False):
            with beneath(trace):
                return trace.process(self, operands, params)
        if trace is None:
            with outside():
                return np.asarray(self._rule(*operands))[()]
        return done_alone(self._rule, self.name, operands) if self._alone else self._rule(*operands)
