"""`checkpoint`: a function that is run again in the reverse sweep instead of keeping its saved values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import lies_as_copied
from ebbtide.arrays.batched import innermost_batch
from ebbtide.arrays.containers import copied_leaf, flatten, has_vectors, is_differentiable, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.primitive import inside
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import DeterminismError, RuleMissingError, TraceError
from ebbtide.ledger import BUFFERS
from ebbtide.tape.batched import on_members
from ebbtide.tape.constancy import Constancy
from ebbtide.tape.forecast import Forecast
from ebbtide.tape.joint import JointRule, record_results
from ebbtide.tape.kept import Kept
from ebbtide.tape.linear_checkpoint import linear_checkpoint
from ebbtide.tape.linear_region import is_alone, linear_trace
from ebbtide.tape.node import Node
from ebbtide.tape.overhead import PAGE
from ebbtide.tape.pager import Pager
from ebbtide.tape.plain_checkpoint import plain_checkpoint
from ebbtide.tape.region import Region
from ebbtide.tape.rounding import is_other_off_tape
from ebbtide.tape.saved import checksum_of_result, guarded, opened, value_of
from ebbtide.tape.sweep import sweep

# The record of a function that runs again is counted in whole pages, which may begin elsewhere than it was measured.
_PAGES = 4 * PAGE
# What the interpreter takes for it beside that, in both runs: with 16 KiB in all, three operations took 24 to 28.
_OBJECTS = 14 * 1024


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return *f* as an operation that keeps its arguments only, and runs again in the reverse sweep.

    Args:
        f: A function of arrays and containers of arrays. What it uses by closure is found. It is given copies, and
            gives some: what it writes into an argument is not seen outside, in either run, and without a derivative.

    Returns:
        A function with the arguments and results of *f*, which runs once forward and once in the sweep.

    Raises:
        DeterminismError: The second run gave another result than the first.
        MutationError: An array that it uses from outside changed between them.

    Memory:
        Between the runs: the arguments, by reference. In the sweep: the saved values of *f*, until the sweep has
        passed it. In both runs: copies of arguments that are integers, or do not lie in one piece.

    Source:
        Griewank and Walther, Evaluating Derivatives, chapter 12 (call trees).

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> grad(checkpoint(lambda x: np.sum(np.sin(x))))(np.zeros(2))
        array([1., 1.])
    """
    check_function(f, "checkpoint")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        batch = innermost_batch()
        if batch is not None:
            return on_members(batch, checkpoint, f, args, kwargs)
        context = current()
        tape = context.tape
        linear = linear_trace(context)
        if linear is not None and is_alone(linear, context):
            return linear_checkpoint(f, args, kwargs, linear)
        if tape is None or context.tangent is not None:
            # Forward mode keeps nothing: there is nothing to save. A program is told what it may have to.
            return plain_checkpoint(f, args, kwargs)
        region = Region(tape)
        tape.packed.met |= has_vectors((args, kwargs))
        leaves, structure = flatten((args, kwargs))
        values = [region.value(leaf) for leaf in leaves]
        kept = Kept(tape.pager)
        kept.reach(f)
        run = None
        if tape.pager is not None and tape.pager.bounded:
            run = _measured(f, region, values, structure, kept)
        if run is None:
            run = _bypassed(f, region, values, structure)
        outputs, output_structure, statics, demand = run
        kept.end_forward(statics.values())
        rule = _CheckpointRule(f, region, leaves, values, structure, outputs, statics, demand, kept)
        if not rule.parents:
            return unflatten(output_structure, outputs)
        return unflatten(output_structure, record_results(tape, rule, rule.parents, outputs))

    return wrapped


@final
@dataclass(frozen=True, slots=True)
class _Demand:
    """
    What a function takes when it is run again.

    Args:
        needs: Bytes, unless it owns the cotangents and if it does; with all on disk that can be, if there is disk.
        loops: Whether there are time loops in it that hold more than they need.
    """

    needs: tuple[int, int] = (0, 0)
    loops: bool = False


@contextmanager
def _copies(region: Region, nbytes: int) -> Iterator[None]:
    """Count, in the block, the copies that the function gets: they are no part of what it takes when it runs alone."""
    if region.outer.pager is not None:
        region.outer.pager.reserve(nbytes)
    region.ledger.add(BUFFERS, nbytes)
    try:
        yield
    finally:
        region.ledger.add(BUFFERS, -nbytes)


def _bypassed(
    f: Any, region: Region, values: list[Any], structure: Any, shows: bool = False
) -> tuple[list[Any], Any, Any, _Demand]:
    """Run the function on values; return its outputs, their structure, its static values, and what is not known."""
    bypass = region.bypass(shows)
    with _copies(region, sum(v.nbytes for v in values if isinstance(v, np.ndarray))), region.running(bypass):
        copied = [copied_leaf(v) for v in values]
        given = unflatten(structure, [bypass.shown(v) for v in copied] if bypass.shows else copied)
        del copied
        outputs, output_structure = flatten(f(*given[0], **given[1]))
        del given
        outputs = [copied_leaf(bypass.inside(output)) for output in outputs]
    if not shows and {float, complex} & set(map(type, outputs)):
        # A constant, or a part of `1j * x` with a float of NumPy's, of which Python makes one of its numbers.
        return _bypassed(f, region, values, structure, shows=True)
    return outputs, output_structure, bypass.statics, _Demand()


def _measured(
    f: Any, region: Region, values: list[Any], structure: Any, kept: Kept
) -> tuple[list[Any], Any, Any, _Demand] | None:
    """
    Run the function on a tape that keeps sizes only, so that it is known what the sweep will take.

    Returns:
        What `_bypassed` returns; None where nothing can be recorded, which is no error if nothing depends on it.
    """
    pager = Pager.measuring(region.outer.pager)
    pager.exclude([*values, *[cell.value for cell in kept.cells]])
    tape = region.tape(pager=pager)
    before, least = region.ledger.live, region.ledger.live - region.ledger.lent + _OBJECTS
    copies = _nbytes_of_copies(values)
    try:
        with _copies(region, copies + _OBJECTS), region.running(tape):
            given = unflatten(structure, _entering(tape, values))
            outputs, output_structure = flatten(f(*given[0], **given[1]))
            del given
            results = [inside(tape, output) for output in outputs]
        del outputs
        nodes = [_node_of(tape, x) for x in results]
        seeds = [(node,) for node in nodes if node is not None]
        outputs = [copied_leaf(x.present()._value if _is_on(tape, x) else x) for x in results]
        del results
        # Time loops in it hold snapshots, of which they can do with one.
        loops = max(0, region.ledger.live - before - pager.overhead.lent)
        forecasts = [_forecast(pager, seeds, owned, loops) for owned in (False, True)]
        sheddable = sum(rule.sheddable for rule in forecasts[0].joints)
        most = 0 if pager.on_disk else pager.ledger.peak + max(0, loops - sheddable)
        most = max(most, forecasts[0].least - least)
        # With disk it runs forwards in what the sweep takes, but for copies, which cannot be paged.
        first, second = [max(forecast.peak + (copies if pager.on_disk else 0), most) for forecast in forecasts]
        beside = _PAGES + _OBJECTS
        demand = _Demand((first + beside, second + beside), loops=sheddable > 0)
        return outputs, output_structure, {key: array for key, (_, array) in tape.statics.items()}, demand
    except (TraceError, RuleMissingError):
        return None
    finally:
        tape.close()
        pager.close()


def _forecast(pager: Pager, seeds: list[Any], owned: bool, loops: int) -> Forecast:
    """Return what the sweep of a function takes, whose time loops hold so many bytes and give up what they can."""
    return pager.forecast(seeds, [(False, owned)] * len(seeds), paged=pager.on_disk, bare=True, beside=loops)


def _entering(tape: Any, values: list[Any]) -> list[Any]:
    """Return arguments as the function has them on a tape: a Python number, which depends on nothing, stays one."""
    entering = []
    for value in values:
        own = copied_leaf(value) if _enters_copied(value) else value
        if own is not value and tape.pager is not None:
            tape.pager.ledger.hold(own, tape.pager.counted_as(own))
        entering.append(tape.leaf(own, reachable=True) if is_differentiable(own) else own)
    return entering


def _enters_copied(value: Any) -> bool:
    """
    Return whether the function gets a copy of an argument on a tape, too: one of integers, which it may write into.

    And one that does not lie as the copy that it has off a tape: that shows in the last bits of sums.
    """
    return isinstance(value, np.ndarray) and not (is_differentiable(value) and lies_as_copied(value))


def _nbytes_of_copies(values: list[Any]) -> int:
    """Return the bytes of what is copied of arguments, saved or not, when the function runs on a tape."""
    return sum(array.nbytes for array in map(value_of, values) if _enters_copied(array))


def _is_on(tape: Any, value: Any) -> bool:
    return type(value) is TracedArray and value._trace is tape


def _node_of(tape: Any, value: Any) -> Node | None:
    return value.present()._node if _is_on(tape, value) else None


@final
class _CheckpointRule(JointRule):
    """One call of a checkpointed function; see `checkpoint`."""

    __slots__ = (
        "_checks", "_constancy", "_demand", "_f", "_kept", "_label", "_ledger", "_places", "_region", "_statics",
        "_structure", "_values", "parents",
    )  # fmt: skip

    has_reserve = True

    def __init__(
        self,
        f: Any,
        region: Region,
        leaves: list[Any],
        values: list[Any],
        structure: Any,
        outputs: list[Any],
        statics: Any,
        demand: _Demand,
        kept: Kept,
    ) -> None:
        self._f, self._kept = f, kept
        self._region = region
        self._ledger = current().ledger
        self._structure = structure
        self._demand = demand
        self._values = [guarded(value) for value in values]
        self._checks = [checksum_of_result(value) for value in outputs]
        self._label = getattr(f, "__name__", "checkpoint")
        self._constancy = Constancy(region.outer.constancy, self.name)
        self._constancy.end_forward([f], statics, sum(getattr(value, "nbytes", 0) for value in (*values, *outputs)))
        nodes = [region.node(leaf) for leaf in leaves]
        parents = list(dict.fromkeys(node for node in nodes if node is not None))
        self._places = [None if node is None else parents.index(node) for node in nodes]
        self._statics = {key: len(parents) + k for k, key in enumerate(statics)}
        self.parents = tuple(parents + [array._node for array in statics.values()])

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return f"checkpoint({self._label})"

    @property
    def kept(self) -> Iterable[Any]:
        """See `JointRule.kept`."""
        return [*self._values, *self._kept.cells]

    def needs(self, owned: bool, given: int) -> int:
        """See `JointRule.needs`; known under a budget only."""
        return self._demand.needs[owned]

    def hold(self, pager: Any, node: Node) -> None:
        """Let the pager count the arguments, and page them."""
        self._values = [*pager.hold(node, None, self._values)]

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Run the function again on a tape and sweep it."""
        region = self._region
        pager = None
        if self._ledger.watched:
            pager = Pager(self._ledger, current().budget, strict=True, around=region.outer.pager)
            pager.load_room(_nbytes_of_copies(self._values), node, self._values)
        values = opened(self._values, node)
        if not retain:
            self._values = []
        # By *again* a program that is traced here tells this run from the first, whose values it does not take instead.
        tape, again = self._tape(pager), object()
        # The sweep around has let them go, and the one inside has not begun.
        waiting: list[Any] = []
        if pager is not None:
            waiting += [pair[0] for pair in cotangents if pair is not None]
            for g in waiting:
                pager.take(g)
            self._ledger.add(BUFFERS, _OBJECTS)
        try:
            with entered(again=again), region.running(tape):
                leaves = _entering(tape, values)
                # Before the function runs: what it writes into its arguments gives these other nodes.
                nodes = [leaf._node if type(leaf) is TracedArray and leaf._trace is tape else None for leaf in leaves]
                given = unflatten(self._structure, leaves)
                outputs = flatten(self._f(*given[0], **given[1]))[0]
                results = [inside(tape, x) for x in outputs]
                seeds, checks = [], []
                for x, pair in zip(results, cotangents, strict=False):
                    if type(x) is TracedArray and x._trace is tape:
                        checks.append(checksum_of_result(x.present()._value))
                        if x._node is not None and pair is not None:
                            seeds.append((x._node, *pair))
                    else:
                        checks.append(checksum_of_result(x))
            self._check(checks, tape, [x._node for x in results if type(x) is TracedArray and x._trace is tape])
            del leaves, given, outputs, results, values
            cotangents.clear()
            tape.close()
            wanted = [n for n in nodes if n is not None]
            if pager is not None:
                if self._ledger.limit is not None and self._demand.loops:
                    # Time loops inside took room for snapshots before it was known what comes after them.
                    forecast = pager.forecast(seeds)
                    forecast.shed(forecast.peak - self._ledger.limit)
                while waiting:
                    pager.drop(waiting.pop())
            with entered(again=again), region.sweeping():
                found = iter(sweep(tape, seeds, wanted + [leaf for leaf, _ in tape.statics.values()]))
            for n, place in zip(nodes, self._places, strict=True):
                if n is not None:
                    value, owned = next(found)
                    if place is not None and value is not None:
                        yield place, value, owned
            for key, (value, owned) in zip(tape.statics, found, strict=True):
                if value is not None:
                    yield self._place_of(key), value, owned
        finally:
            if pager is not None:
                self._end(pager, waiting)

    def _end(self, pager: Pager, waiting: list[Any]) -> None:
        """Count what was for the sweep no more."""
        while waiting:
            pager.drop(waiting.pop())
        pager.close()
        self._ledger.add(BUFFERS, -_OBJECTS)

    def _tape(self, pager: Any) -> Any:
        """Return a tape for the function to run again on."""
        self._constancy.begin()
        self._constancy.begin_reverse()
        return self._region.tape(pager=pager, constancy=self._constancy)

    def _check(self, checks: list[int], tape: Any, results: list[Node | None]) -> None:
        if checks != self._checks and not is_other_off_tape(results):
            raise self._other_result()
        self._constancy.check_statics({key: array for key, (_, array) in tape.statics.items()})

    def _place_of(self, key: int) -> int:
        """Return the place of a static value with a cotangent; an argument that nothing uses is met on a tape alone."""
        if key not in self._statics:
            raise self._other_result()
        return self._statics[key]

    def _other_result(self) -> DeterminismError:
        return DeterminismError(
            f"{self.name} gave another result when it was run again in the reverse sweep, so the gradient would be "
            "wrong. A checkpointed function depends on its arguments and on arrays that do not change: pass "
            "random numbers, changing arrays, and what a name means that is bound anew later, as arguments."
        )
