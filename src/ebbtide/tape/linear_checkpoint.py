"""Checkpointed functions inside of a function that is linearized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import flatten, frozen_leaf, is_differentiable, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import DeterminismError
from ebbtide.tape.constancy import Constancy
from ebbtide.tape.linear import LinearRule, LinearTape
from ebbtide.tape.linear_region import Around, Pushing, node_of, pushing, split, tape_of
from ebbtide.tape.saved import checksum_of_result
from ebbtide.tape.tangent import TangentTrace


@final
class _LinearCheckpoint(LinearRule):
    """One call of a checkpointed function; see `linear_checkpoint`."""

    __slots__ = (
        "_around", "_checks", "_constancy", "_f", "_kept", "_kinds", "_met", "_statics", "_structure", "_tape",
        "_trace", "places",
    )  # fmt: skip

    def __init__(self, f: Any, trace: TangentTrace, tape: LinearTape, structure: Any) -> None:
        self._f, self._trace, self._tape = f, trace, tape
        self._around = Around.here()
        self._structure = structure
        self._kept = tape.keeping()
        self._kept.reach(f)
        self._constancy = Constancy(None, self.name)
        self._met: Mapping[int, TracedArray] = {}
        self._statics: dict[int, TracedArray] = {}
        self._checks: list[int] = []
        self._kinds: list[Any] = []
        self.places: list[int | None] = []

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return f"checkpoint({getattr(self._f, '__name__', 'function')})"

    def run(self, given: list[Any]) -> tuple[list[Any], Any, list[TracedArray]]:
        """Run the function at the point; return the values of its results, their structure, and its static tangents."""
        capture = Pushing(self._tape, self._constancy)
        with entered(capture=capture):
            outputs, structure = self._call(given, [None] * len(given))
        values = [value for value, _ in capture.pairs(self._trace, outputs)]
        self._statics, self._met = capture.statics, capture.met
        nbytes = sum(getattr(value, "nbytes", 0) for value in (*given, *values))
        self._constancy.end_forward([self._f], self._met, nbytes)
        self._kept.end_forward(())
        self._tape.take(self._kept.nbytes)
        self._checks = [checksum_of_result(value) for value in values]
        self._kinds = [type_of(value) if is_differentiable(value) else None for value in values]
        return values, structure, list(self._statics.values())

    def _call(self, values: list[Any], tangents: list[Any]) -> tuple[list[Any], Any]:
        leaves = [self._dual(value, t) for value, t in zip(values, tangents, strict=True)]
        args, kwargs = unflatten(self._structure, leaves)
        outputs, structure = flatten(self._f(*args, **kwargs))
        for output in outputs:
            if type(output) is TracedArray:
                output.present()
        return outputs, structure

    def _dual(self, value: Any, tangent: Any) -> Any:
        """Return an argument for the function to take, which may write into it; a Python number as it is."""
        if not is_differentiable(value):
            return np.array(value) if isinstance(value, np.ndarray) else value
        return TracedArray(self._trace, tangent, value)

    def push(self, tangents: list[Any], saved: list[Any]) -> list[Any]:
        """See `LinearRule.push`."""
        found = [None if place is None else tangents[place] for place in self.places]
        count = len(saved)
        given = dict(zip(self._statics, found[count:], strict=True))
        constancy = self._constancy.again()
        constancy.check_statics(self._met)
        with pushing(self._trace, self._tape, constancy, given, self._around) as capture:
            outputs, _ = self._call(saved, found[:count])
            pairs = capture.pairs(self._trace, outputs)
        if [checksum_of_result(value) for value, _ in pairs] != self._checks:
            raise DeterminismError(
                f"{self.name} gave another result when it was run again. It may depend on its arguments and on arrays "
                "that do not change only."
            )
        kinds = [kind for kind in self._kinds if kind is not None]
        tangents = [t for (_, t), kind in zip(pairs, self._kinds, strict=True) if kind is not None]
        return [np.zeros(k.shape, k.dtype)[()] if t is None else t for t, k in zip(tangents, kinds, strict=True)]


def linear_checkpoint(f: Callable[..., Any], args: Any, kwargs: Any, trace: TangentTrace) -> Any:
    """
    Call a checkpointed function that is a part of one that is linearized: it runs again in each push.

    Args:
        f: The function.
        args: Its positional arguments.
        kwargs: Its arguments by name.
        trace: The forward mode of the function around it.

    Returns:
        What *f* returns.

    Memory:
        The arguments, by reference.
    """
    tape = tape_of(trace, current())
    leaves, structure = flatten((args, kwargs))
    pairs = [split(trace, frozen_leaf(leaf)) for leaf in leaves]
    given = [value for value, _ in pairs]
    rule = _LinearCheckpoint(f, trace, tape, structure)
    values, structure, statics = rule.run(given)
    nodes = [node_of(tape, t) for t in [*[t for _, t in pairs], *statics]]
    parents = [node for node in nodes if node is not None]
    rest = iter(range(len(parents)))
    rule.places = [None if node is None else next(rest) for node in nodes]
    if not parents:
        return unflatten(structure, values)
    zeros = [zeros_like(v)[()] for v in values if is_differentiable(v)]
    tangents = iter(tape.record(rule, parents, zeros, given))
    return unflatten(structure, [TracedArray(trace, next(tangents), v) if is_differentiable(v) else v for v in values])
