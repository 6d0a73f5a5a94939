"""One step of a time loop, run plain or taped, and swept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of, type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import flatten, is_array, unflatten
from ebbtide.arrays.context import current, value_trace
from ebbtide.arrays.traced import TracedArray
from ebbtide.loop.stepping.collect import Seen, apart
from ebbtide.loop.stepping.condition import ask
from ebbtide.loop.stepping.inputs import Inputs
from ebbtide.loop.stepping.returned import check_type, check_types, parted, refuse_structure
from ebbtide.loop.values.generators import refuse_shared
from ebbtide.loop.values.state import CHANGEABLE, alike, native, owned, settled, writable
from ebbtide.tape.constancy import Constancy
from ebbtide.tape.forecast import Forecast
from ebbtide.tape.forms import form_here
from ebbtide.tape.kept import Kept
from ebbtide.tape.node import Node
from ebbtide.tape.pager import Pager
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Bypass, Region
from ebbtide.tape.sweep import sweep


@final
@dataclass(slots=True)
class TapedStep:
    """
    A step with all that its reverse sweep needs.

    Args:
        tape: Its tape.
        state_nodes: Nodes of the leaves of the new state; None where they depend on nothing.
        output_nodes: Nodes of the leaves of its output.
        state_leaves: Leaves of the state that it started from; None for leaves that are no floating-point arrays.
        input_leaves: Leaves of its input.
        read: Of its input, `Readings.latest`; 0 where that is not compared.
        emitted: Of its output, what `Verifier.emitted` returned.
        nbytes: What it saves, as the ledger counts it, and snapshots that loops in it cannot do without; 0 where nobody
            looks.
        within: These snapshots.
        before: Bytes that it saves, too, and that were in the ledger before it: of the state that the step before left.
        left: Of *nbytes*, where that is on disk, those that stay in memory.

    Memory:
        The saved values of the step, until it is swept.
    """

    tape: Tape
    state_nodes: list[Node | None]
    output_nodes: list[Node | None]
    state_leaves: list[Node | None]
    input_leaves: list[Node | None]
    read: int = 0
    emitted: int = 0
    nbytes: int = 0
    within: int = 0
    before: int = 0
    left: int = 0

    @property
    def results(self) -> list[Node]:
        """The nodes of its results, those of the state first."""
        return [node for node in self.state_nodes + self.output_nodes if node is not None]

    def follow_sweep(self, *, lent: bool = False, bare: bool = False) -> Forecast:
        """Return what a sweep is going to hold; see `forecast`."""
        seeds, states = [(node,) for node in self.results], sum(node is not None for node in self.state_nodes)
        given = [(not lent, not lent)] * states + [(False, False)] * (len(seeds) - states)
        return self.tape.pager.forecast(seeds, given, bare=bare)

    def forecast(self, lent: bool = False, *, bare: bool = False) -> int:
        """
        Return the most bytes that there will be in the ledger while the step is swept.

        Args:
            lent: Whether the cotangents that the sweep starts from are held by others; else they are ours, and no part
                of the ledger yet.
            bare: Whether loops in it give up all that they can do without.
        """
        kinds = [form_here(leaf.type).nbytes for leaf, _ in self.tape.statics.values()]
        borrowed, most = None, max(kinds, default=0)

        def peak_of(found: Forecast) -> int:
            """With the cotangents of static values, which the sweep leaves: each may be copied, or make another sum."""
            return max(int(found.peak), int(found.live + most))

        if not lent:
            found = self.follow_sweep(bare=bare)
            # What the sweep leaves behind in memory that is not its own, the next sweep cannot use up.
            slots = [(leaf, found.left.get(leaf.number)) for leaf in self.state_leaves if leaf is not None]
            passed_on = sum(form_here(leaf.type).nbytes for leaf, slot in slots if slot and not slot.alone)
            if not passed_on:
                return peak_of(found)
            borrowed = peak_of(found) + passed_on
        peak = peak_of(self.follow_sweep(lent=True, bare=bare))
        if borrowed is not None:
            peak = min(borrowed, peak + sum(form_here(node.type).nbytes for node in self.state_nodes if node))
        return peak

    def sweep(
        self, state: list[Any], output: list[Any], *, retain: bool
    ) -> tuple[list[Any], list[Any], dict[int, tuple[Any, bool]]]:
        """
        Pull cotangents of the new state and the output back to state, input and static values.

        Args:
            state: For each leaf of the new state (cotangent, owned) or None; taken out of the list.
            output: For each leaf of the output its cotangent or None.
            retain: Whether the step is swept again.

        Returns:
            (state, input, statics): (cotangent, owned) or None for each leaf; statics by the address of the
            node outside.
        """
        seeds = [(node, *pair) for node, pair in zip(self.state_nodes, state, strict=True) if node and pair]
        # No name is left for a cotangent but that in the seeds, which the sweep empties.
        state.clear()
        for node, value in zip(self.output_nodes, output, strict=True):
            if node is not None and value is not None:
                seeds.append((node, value, False))
        leaves, statics = self.state_leaves + self.input_leaves, self.tape.statics
        wanted = leaves + [leaf for leaf, _ in statics.values()]
        found = sweep(self.tape, seeds, [leaf for leaf in wanted if leaf is not None], retain=retain)
        found.reverse()
        pairs: list[Any] = []
        are_parts = False
        for leaf in wanted:
            pair = (None, False) if leaf is None else found.pop()
            pairs.append(None if pair[0] is None else pair)
            value: Any = pair[0]
            if type(value) is np.ndarray and type(value.base) is np.ndarray:
                are_parts |= value.base.nbytes > value.nbytes
        if are_parts:
            _copy_parts(pairs)
        first, last = len(self.state_leaves), len(leaves)
        sums = {key: pair for key, pair in zip(statics, pairs[last:], strict=True) if pair is not None}
        return pairs[:first], pairs[first:last], sums


def _copy_parts(pairs: list[Any]) -> None:
    """
    Copy the cotangents that keep more memory than their own, as the real part of a complex array does.

    They wait for the step before, for which a plan has as much room as a state takes: of a transform in each step they
    took two, and calls half a state more than their budget. With or without one, so that bits are the same.
    """
    held: dict[int, int] = {}
    owners = [owner_of(pair[0]) if pair is not None and type(pair[0]) is np.ndarray else None for pair in pairs]
    for pair, owner in zip(pairs, owners, strict=True):
        if owner is not None:
            held[id(owner)] = held.get(id(owner), 0) + pair[0].nbytes
    for place, owner in enumerate(owners):
        if owner is not None and owner.nbytes > held[id(owner)]:
            pairs[place] = pairs[place][0].copy(), True


@final
class Stepper:
    """
    Runs the user's step.

    Args:
        step: `step(state, x)`.
        structure: Structure of the state.
        inputs: Its inputs.
        outputs: Whether the step returns (state, output).
        region: The region that a step is; None where nothing is traced.
        collect_every: Steps between collections of garbage, for users' code that needs it; those that run again, or to
            be measured, count.

    Attributes:
        constancy: The check of plain arrays that steps use from outside.
        below: The trace of which a step can write values into its state; None for no such one.
        on_tape: Whether each step runs on a tape, also those of which nothing is kept; see `is_other_off_tape`.
        kept: Counts what steps are run again with.
        seen: The form of what they emit.

    Memory:
        Nothing beyond its arguments.
    """

    __slots__ = (
        "_collect_every", "_ran", "below", "constancy", "inputs", "kept", "on_tape", "outputs", "region", "seen",
        "step", "structure",
    )  # fmt: skip

    def __init__(
        self, step: Callable[..., Any], structure: Any, inputs: Inputs, outputs: bool, region: Region | None,
        collect_every: int | None = None,
    ) -> None:  # fmt: skip
        self.step = step
        self.structure = structure
        self.inputs = inputs
        self.outputs = outputs
        self.region = region
        self.constancy = Constancy(None if region is None else region.outer.constancy)
        self.seen = Seen()
        self._collect_every, self._ran = collect_every, 0
        self.on_tape = False
        self.below = value_trace(current())
        self.kept = Kept(None)

    def keep(self, kept: Kept, inputs: Any, until: Any) -> None:
        """Have *kept* count what steps, their *inputs* and the condition *until* take when they run again."""
        self.kept = kept
        self.kept.reach([self.step, until])
        if isinstance(inputs, (list, tuple)):
            self.kept.add([leaf for x in inputs for leaf in flatten(x)[0]])
        elif isinstance(inputs, TracedArray):
            self.kept.add([inputs.frozen()])
        else:
            self.kept.reach(inputs)

    def again(self, first: int, total: int) -> Stepper:
        """Return one that compares steps that run again in their order with this one; see `Sums.again`."""
        made = copy(self)
        made.inputs, made.constancy = self.inputs.again(first, total), self.constancy.again()
        return made

    def end_forward(self, statics: Mapping[int, Any], nbytes: int) -> None:
        """Note what steps may use from outside when they run again; see `Constancy.end_forward`."""
        functions = [self.step, self.inputs.given] if self.inputs.is_function else [self.step]
        self.constancy.end_forward(functions, statics, nbytes)

    def begin_reverse(self, statics: Mapping[int, Any]) -> None:
        """Compare static values with what they were when the forward sweep was over."""
        self.constancy.begin_reverse()
        self.constancy.check_statics(statics)

    def holds(self, condition: Callable[[Any], Any], state: list[Any]) -> bool:
        """Return what a condition of the user says of the state."""
        return bool(ask(condition, self.structure, state))

    def call(self, index: int, state: list[Any], x: list[Any], structure: Any) -> tuple[list[Any], list[Any]]:
        """Return the leaves that a step returns of new state and output, for those of its state and its input."""
        argument = x[0] if structure is None else unflatten(structure, x)
        if self.inputs.is_function:
            # Within the step, so that what it uses from outside is static like the step's own.
            argument = self.inputs.call(index)
        result = self.step(unflatten(self.structure, state), argument)
        output: list[Any] = []
        if self.outputs:
            result, output = parted(self.step, index, result, self.seen)
        leaves, structure_after = flatten(result)
        leaves = native(leaves)
        refuse_shared(leaves)
        if structure_after != self.structure:
            refuse_structure(self.step, index, structure_after, self.structure, self.outputs)
        if self._collect_every is not None:
            self._ran += 1
            if self._ran % self._collect_every == 0:
                gc.collect()
        return leaves, output

    def plain(self, index: int, state: list[Any], bypass: Bypass | None) -> tuple[list[Any], list[Any]]:
        """
        Run a step on values.

        Args:
            index: The step.
            state: Leaves of the state, owned by the loop; the step may write into them.
            bypass: The trace under which it runs, to be entered by the caller; None outside of traces.

        Returns:
            (leaves of the new state, leaves of the output), owned by the loop.
        """
        if self.on_tape and bypass is not None:
            assert self.region is not None
            # Nothing of it is swept, so that it keeps nothing within a bound: what a wide step would save was 0.9
            # states more than there was room for.
            bounded = self.region.ledger.limit is not None
            pager = Pager.measuring(self.region.outer.pager) if bounded else None
            record, after, output = self.taped(index, list(state), pager)
            bypass.note(record.tape)
            return after, apart(output, after)
        x, structure = self.inputs.enter(index)
        given = list(state)
        if bypass is not None and bypass.shows:
            given, x = [bypass.shown(leaf) for leaf in given], [bypass.shown(leaf) for leaf in x]
        leaves, output = self.call(index, given, x, structure)
        if bypass is not None:
            leaves = [bypass.inside(leaf) for leaf in leaves]
            output = [bypass.inside(leaf) for leaf in output]
        same = {id(leaf) for leaf in state}
        after = []
        for old, leaf in zip(state, leaves, strict=True):
            # The loop's own array, written in place, needs no copy; the second time it comes it does, and so does what
            # is noted to be an array without axes, as a snapshot does not know that.
            is_ours = id(leaf) in same and (type(leaf) is not TracedArray or leaf.shape)
            after.append(alike(old, leaf if is_ours else owned(leaf)))
            same.discard(id(leaf))
        check_types(self.step, self.structure, index, state, after)
        return self._as_begun(after), [owned(leaf, "the output") for leaf in output]

    def taped(self, index: int, state: list[Any], pager: Any) -> tuple[TapedStep, list[Any], list[Any]]:
        """
        Run a step on a tape.

        Args:
            index: The step.
            state: Leaves of the state, owned by the loop and given up to the step.
            pager: Counts what it saves; None when nobody looks.

        Returns:
            (the taped step, leaves of the new state, leaves of the output).
        """
        region = self.region
        assert region is not None
        tape = region.tape(pager=pager, constancy=self.constancy)
        if pager is not None:
            # A step may never be swept: because it fails, or since all that is wanted of it is its result.
            weakref.finalize(tape, pager.close).atexit = False
        self.constancy.begin()
        values, structure = self.inputs.enter(index)
        traced, state_leaves = _entering(tape, state)
        x, input_leaves = _entering(tape, values)
        before = _kinds(state, state_leaves)
        state.clear()
        del values
        with region.running(tape):
            leaves, output = self.call(index, traced, x, structure)
            del traced, x
            nodes, after = _taken(tape, leaves)
            output_nodes, emitted = _taken(tape, output, "the output") if output else ([], [])
        tape.close()
        for k, old in enumerate(before):
            if type(old) is not ArrayType:
                after[k] = alike(old, after[k])
            check_type(self.step, self.structure, index, k, old, after[k])
        readings = self.inputs.readings
        read = 0 if readings is None else readings.latest
        after = after if self.below is None else self._as_begun(after)
        return TapedStep(tape, nodes, output_nodes, state_leaves, input_leaves, read), after, emitted

    def _as_begun(self, after: list[Any]) -> list[Any]:
        """Return the leaves of a new state such that the next step can write into them, as it can into the first."""
        return after if self.below is None else [writable(leaf, self.below) for leaf in after]


def _entering(tape: Tape, leaves: list[Any]) -> tuple[list[Any], list[Node | None]]:
    """
    Return leaves of the state or the input as a taped step takes them, and their nodes on its tape.

    A Python number carries no derivative (what has one is an array or a NumPy scalar), and stays what it is: to
    NumPy it has a weaker dtype than any array. What else the step may change is copied: an array of integers or a
    record, into which it may write, and a generator, from which it may draw.
    """
    entering: list[Any] = []
    nodes: list[Node | None] = []
    for leaf in leaves:
        if type(leaf) not in PYTHON_NUMBERS and is_array(leaf):  # `is_differentiable`, three calls fewer a step
            entering.append(tape.leaf(leaf, reachable=False))
            nodes.append(entering[-1]._node)
        else:
            entering.append(owned(leaf) if isinstance(leaf, CHANGEABLE) else leaf)
            nodes.append(None)
    return entering, nodes


def _kinds(leaves: list[Any], nodes: list[Node | None]) -> list[Any]:
    """Return for each leaf its type, or the leaf itself if it has no axes or is no array."""
    found: list[Any] = []
    for leaf, node in zip(leaves, nodes, strict=True):
        kind = leaf if node is None else node.type
        if node is None and isinstance(leaf, (np.ndarray, TracedArray)):
            kind = type_of(leaf)
        found.append(kind if getattr(kind, "shape", ()) else leaf)
    return found


def _taken(tape: Tape, leaves: list[Any], place: str = "the state") -> tuple[list[Node | None], list[Any]]:
    """Return nodes and values of what a taped step returned, in memory that nobody else writes."""
    nodes: list[Node | None] = []
    values: list[Any] = []
    taken: set[int] = set()
    for leaf in leaves:
        inside = tape.lift(leaf) if type(leaf) is TracedArray and tape.covers(leaf._trace) else leaf
        if type(inside) is TracedArray and inside._trace is tape:
            inside.present()
            sharing = inside._sharing
            nodes.append(inside._node)
            fresh = sharing is None or not (sharing.reachable or sharing.root is not None)
            values.append(settled(inside._value, taken) if fresh else owned(inside._value))
        else:
            nodes.append(None)
            values.append(owned(inside, place))
    return nodes, values
