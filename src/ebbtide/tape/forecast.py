"""
What a sweep is going to hold, found by a sweep over sizes: no array is touched.

It follows the same rules of ownership as the sweep itself: which pulls pass the cotangent on, which write into it,
which add in place, and which allocate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.primitive import Pull, Signature
from ebbtide.tape.blocks import BLOCK, first_block, first_rows, goes_in_blocks, goes_in_rows
from ebbtide.tape.forms import Form, form_here, form_of, like
from ebbtide.tape.holders import arrays_in, descending, holders_of, is_pageable
from ebbtide.tape.node import PROJECTION, Node
from ebbtide.tape.outcome import CONSUMED, Outcome, is_large, is_users, outcome_of
from ebbtide.tape.saved import SavedValue, bytes_of, key_of

# Outcomes that are remembered: a program has few kinds of pull, but each operation has parameters of its own.
_MOST_OUTCOMES = 64


@final
@dataclass(slots=True)
class _Buffer:
    """Memory of a cotangent, and how many running cotangents are in it."""

    nbytes: int
    holders: int = 1


@final
@dataclass(slots=True)
class _Slot:
    """
    The running cotangent of a node; of an operation with several outputs the buffers of all are its *parts*.

    One that is *thin* has less memory than elements, as that of a sum has: what is no elementwise operation may have to
    write it out. One of a *form* is no array, and nothing is added to it in place.
    """

    buffer: _Buffer
    owned: bool
    parts: list[_Buffer] = field(default_factory=list)
    thin: bool = False
    form: Form | None = None

    @property
    def alone(self) -> bool:
        """Whether it is ours, and nobody else is in it."""
        return self.owned and self.buffer.holders == 1


@final
@dataclass(slots=True)
class Forecast:
    """
    The forecast of a sweep.

    Args:
        live: Bytes held when the sweep starts.
        paged: Whether all saved values that can be on disk are there, but for those of the node that is pulled.
        bare: Whether time loops give up all that they can do without.
        counted: Tells whether a saved value, or an array in parameters, is held; by default all saved values are.
        outlived: Returns which buffers others keep as well, of those that nodes hold so many times.
        taken: What pulls took where they were measured; see `Ledger.taken`.

    Attributes:
        peak: The most bytes that are held at a time.
        place: The node that is pulled then.
        joints: Joint rules (time loops, checkpointed functions) that the sweep will come to, in its order.
        behind: How many of them it has done then.
        left: For each leaf, by number, its cotangent.
        stretches: For each of them, and for what comes after the last: the most bytes that are held from the one before
            it on until it is pulled, and those beside its own when it is, both without what they hold themselves.
    """

    live: int
    paged: bool = False
    bare: bool = False
    counted: Callable[[Any], bool] | None = None
    outlived: Callable[[dict[int, int]], list[int]] | None = None
    taken: dict[tuple[int, Any, Any], int] = field(default_factory=dict)
    peak: int = 0
    place: Node | None = None
    behind: int = 0
    joints: list[Any] = field(default_factory=list)
    left: dict[int, _Slot] = field(default_factory=dict)
    stretches: list[tuple[int, int]] = field(default_factory=list)
    _most: int = 0
    _inside: int = 0  # what those that are still to be done hold
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _outcomes: dict[Any, tuple[Any, Outcome]] = field(default_factory=dict)
    _node: Node | None = None
    _done: int = 0

    def run(self, seeds: list[Any], given: list[tuple[bool, bool]] | None = None, leaves: Any = ()) -> None:
        """
        Follow the sweep from output nodes.

        Args:
            seeds: Tuples of which the first is an output node, and the second its cotangent, if that is there.
            given: For each whether its cotangent is no part of what is held when the sweep starts, and whether the
                sweep owns it; None if others hold all of them.
            leaves: Leaves whose cotangents the caller gets, in memory of their own.
        """
        roots = [node for node, *_ in seeds]
        holders = holders_of(roots, self._counts)
        for key in () if self.outlived is None else self.outlived(holders):
            holders[key] += 1
        forms = [form_of(rest[0]) if rest else form_here(node.type) for node, *rest in seeds]
        given = [(False, False)] * len(roots) if given is None else given
        taken = [form.nbytes if is_new else 0 for form, (is_new, _) in zip(forms, given, strict=True)]
        self.joints = [node.signature for node in descending(roots) if _is_joint(node)]
        for rule in self.joints if self.bare else ():
            self._end(rule.spare, holders)
        holdings = [rule.holding(self.bare) for rule in self.joints]
        self._inside = sum([one.held + one.beyond for one in holdings])
        self.live += sum(taken) + sum([one.beyond for one in holdings])
        self._raise(self.live)
        for node, form, nbytes, (_, owned) in zip(roots, forms, taken, given, strict=True):
            if node.number in self._slots:
                self.live -= nbytes  # added to the other one
            else:
                self._slots[node.number] = _Slot(_Buffer(nbytes), owned, form=_form(form))
        for node in descending(roots):
            self._node = node
            slot = self._slots.pop(node.number, None) or _Slot(_Buffer(0), False)
            signature = node.signature
            if signature is None or node.parents is None:
                self.left[node.number] = slot  # to the end
                continue
            if type(signature) is Signature:
                self._pull_all(node, slot, holders)
            elif signature is PROJECTION:
                # The cotangent goes into the list of those of the operation, and is held with it.
                gathered = self._slots.setdefault(node.parents[0].number, _Slot(_Buffer(0), True))
                gathered.parts.append(slot.buffer)
                gathered.owned = gathered.owned and slot.owned
                continue
            else:
                self._pull_joint(node, slot, signature, holders)
            self._release(slot)
            self._end(arrays_in(node.params, self._counts), holders)
        for leaf in leaves:
            self._finish(leaf)
        self.stretches.append((self._most, self.live))

    def _finish(self, leaf: Node) -> None:
        """Follow what comes after the sweep: what is nobody's own, or a part of something larger, is copied."""
        left, nbytes, whole = self.left.get(leaf.number), leaf.type.nbytes, form_here(leaf.type)
        if left is None or left.form is None:
            owns = left is not None and left.owned and left.buffer.nbytes <= 2 * nbytes
            # And what has no tangent gets one of zeros; what is the same for all members is copied for each.
            stays = owns and (type(whole) is ArrayType or whole.value is not None)
            self._allocate(whole.nbytes - (nbytes if stays else 0))

    @property
    def least(self) -> int:
        """Bytes without which the forward run cannot be, as its time loops say."""
        return max([rule.holding(True).least for rule in self.joints], default=0)

    def shed(self, nbytes: int) -> int:
        """Let the rules that are not done at the peak give up *nbytes* bytes if they can; return how many they did."""
        freed = 0
        for rule in self.joints[self.behind :]:
            if freed < nbytes:
                freed += rule.shed(nbytes - freed)
        return freed

    def need_less(self) -> bool:
        """Have the rule that is pulled at the peak need less if it can; return whether it does."""
        signature = None if self.place is None else self.place.signature
        return signature in self.joints[self.behind : self.behind + 1] and self.joints[self.behind].need_less()

    def need_of(self, pull: Pull, node: Node, parent: Node, running: Any, exclusive: bool, values: Any) -> int:
        """
        Return the bytes that one pull of a node takes at most beside what is held.

        Args:
            pull: The pull.
            node: The node.
            parent: Whose cotangent it gives.
            running: The running cotangent of that, which knows whether it is `owned`; None for none.
            exclusive: Whether the pull may use up the cotangent of the node.
            values: The saved values that it takes.
        """
        own = Forecast(0, taken=self.taken, _outcomes=self._outcomes)
        if running is not None:
            own._slots[parent.number] = _Slot(_Buffer(0), running.owned, form=_form(form_of(running.value)))
        g = _Slot(_Buffer(0), exclusive, form=_form(form_here(node.type)))
        own._pull(pull, node, parent, g, exclusive, [_type_of(value) for value in values])
        return own.peak

    def _raise(self, held: int) -> None:
        if held > self._most:
            self._most = held
        if held > self.peak:
            self.peak, self.place, self.behind = held, self._node, self._done

    def _allocate(self, nbytes: int, temporary: int = 0) -> _Buffer:
        """Count a new buffer, beside which temporaries live for a moment."""
        self._raise(self.live + nbytes + temporary)
        self.live += nbytes
        return _Buffer(nbytes)

    def _release(self, slot: _Slot | None) -> None:
        """Uncount the buffer of a slot if nobody else is in it."""
        for buffer in () if slot is None else (slot.buffer, *slot.parts):
            buffer.holders -= 1
            if buffer.holders == 0:
                self.live -= buffer.nbytes

    def _pull(self, pull: Pull, node: Node, parent: Node, g: _Slot, exclusive: bool, saved: list[Any]) -> bool:
        """Account for one pull; return whether the cotangent of the node is shared or moved by it."""
        kind: ArrayType = parent.type
        running = self._slots.get(parent.number)
        plain = g.form is None and not any(type(v) is Form for v in saved)
        into = plain and (running is None or running.form is None)
        if into and pull.derivative is not None and goes_in_blocks(kind, node.type, saved):
            block = self._block(pull, node, kind, saved, running)
            self._raise(self.live + block)
            if running is None or not running.owned:
                moves = exclusive and kind.shape == node.type.shape
                buffer = self._moved(g) if moves else self._allocate(kind.nbytes, block)
                self._put(parent, running, _Slot(buffer, True))
            return False
        if into and pull.along is not None and goes_in_rows(kind, along := pull.along(kind, node.params)):
            rows = self._rows(pull, node, kind, along, saved)
            self._raise(self.live + rows)
            if running is None or not running.owned:
                self._put(parent, running, _Slot(self._allocate(kind.nbytes, rows), True))
            return False
        packed = like(node.type, g.form).nbytes if g.thin and not pull.trusted else 0
        self._raise(self.live + packed)
        if into and kind.nbytes > BLOCK and running is not None and accumulates(pull, kind, node.type, saved):
            if not running.owned:
                self._put(parent, running, _Slot(self._allocate(kind.nbytes), True))
            return False
        consumes = exclusive and pull.consume is not None and g.form is None
        outcome = CONSUMED if consumes else self._outcome(pull, node.params, g.form or node.type, kind, saved)
        thin = outcome.passes and (kind.nbytes > node.type.nbytes or (g.thin and pull.trusted))
        if packed and outcome.passes and not thin:
            outcome = replace(outcome, passes=False, nbytes=like(kind, outcome.form).nbytes, temporary=0, ours=True)
        elif packed:
            outcome = replace(outcome, temporary=outcome.temporary + packed)
        ours = outcome.ours and (exclusive or not outcome.passes)
        held = 0 if outcome.passes else outcome.nbytes
        form = outcome.form if running is None else _form(like(kind, outcome.form, running.form))
        if running is None:
            if outcome.passes:
                self._raise(self.live + outcome.temporary)
            buffer = self._moved(g) if outcome.passes else self._allocate(held, outcome.temporary)
            self._put(parent, None, _Slot(buffer, ours, thin=thin, form=form))
        elif running.owned and form is None:
            self._raise(self.live + held + outcome.temporary)
        elif ours and form is None:
            buffer = self._moved(g) if outcome.passes else self._allocate(held, outcome.temporary)
            self._put(parent, running, _Slot(buffer, True))
        else:
            self._raise(self.live + held + outcome.temporary)
            self.live += held
            buffer = self._allocate(kind.nbytes if form is None else form.nbytes)
            self.live -= held
            self._put(parent, running, _Slot(buffer, True, form=form))
        return not ours

    def _block(self, pull: Pull, node: Node, kind: ArrayType, saved: list[Any], running: Any) -> int:
        """Return the bytes that a pull in blocks takes for one of them."""
        parts = [first_block(v, node.type) if type(v) is ArrayType else v for v in saved]
        out = first_block(node.type, node.type)
        outcome = self._outcome(pull, node.params, out, first_block(kind, node.type), parts)
        # The product of a first contribution is written where it belongs.
        direct = not pull.scaled and kind.shape == node.type.shape and running is None
        return outcome.temporary + (0 if direct else outcome.nbytes)

    def _rows(self, pull: Pull, node: Node, kind: ArrayType, along: tuple[int, ...], saved: list[Any]) -> int:
        """Return the bytes that a pull in blocks of rows takes for one of them."""
        parts = [first_rows(v, kind, along) if type(v) is ArrayType else v for v in saved]
        outs = first_rows(node.type, kind, along), first_rows(kind, kind, along)
        outcome = self._outcome(pull, node.params, *outs, parts)
        return outcome.temporary + outcome.nbytes

    def _outcome(self, pull: Pull, params: Any, g: Any, kind: ArrayType, saved: list[Any]) -> Outcome:
        taken = self.taken.get((id(pull), g, kind), 0) if self.taken else 0
        if not is_large(g, kind, saved):
            # Sooner guessed than looked up; to remember 64 took 20 KB, a quarter of the least budget of a small state.
            return outcome_of(pull, g, kind, params, saved).at_least(taken)
        types = tuple([v if type(v) in (ArrayType, Form) else None if v is None else type(v) for v in saved])
        params = None if is_users(pull) else params
        key = id(pull), id(params), g, kind, types
        if key not in self._outcomes:
            if len(self._outcomes) >= _MOST_OUTCOMES:
                self._outcomes.clear()
            # What has its address in the key is kept, so that the address stays its own.
            self._outcomes[key] = (pull, params), outcome_of(pull, g, kind, params, saved).at_least(taken)
        return self._outcomes[key][1]

    def _moved(self, g: _Slot) -> _Buffer:
        g.buffer.holders += 1
        return g.buffer

    def _put(self, parent: Node, before: _Slot | None, slot: _Slot) -> None:
        self._release(before)
        self._slots[parent.number] = slot

    def _pull_all(self, node: Node, slot: _Slot, holders: dict[Any, int]) -> None:
        """Account for the pulls of a node, in the order of the sweep, which loads for each what it takes."""
        signature: Any = node.signature
        parents: Any = node.parents
        saved: Any = node.saved
        shared = False
        loaded: dict[int, int] = {}
        for n, ((pull, uses, releases), parent) in enumerate(zip(*signature.ordered(parents), strict=True)):
            exclusive = slot.owned and n == len(parents) - 1 and not shared
            self._load([saved[s] for s in uses], loaded)
            types = [_type_of(saved[s]) for s in uses]
            shared = self._pull(pull, node, parent, slot, exclusive, types) or shared
            self._end([saved[s] for s in releases], holders)
            self.live -= sum(loaded.pop(id(saved[s]), 0) for s in releases)

    def _pull_joint(self, node: Node, slot: _Slot, rule: Any, holders: dict[Any, int]) -> None:
        kept = (*rule.kept, *(node.saved or ()))
        if self.bare:
            spare = {id(value) for value in rule.spare}
            kept = tuple([value for value in kept if id(value) not in spare])
        own = self._load(kept, {})
        # What such a rule returns is part of what it says to need.
        ours = sum(buffer.nbytes for buffer in slot.parts) if slot.owned else 0
        holding = rule.holding(self.bare)
        self.stretches.append((self._most - self._inside, self.live - own - ours - self._inside))
        self._raise(self.live + rule.needs(slot.owned, ours) + holding.more)
        self.live -= own + holding.held + holding.beyond
        self._inside -= holding.held + holding.beyond
        self._done += 1
        self._end(kept, holders)
        self._most = self.live
        parents: Any = node.parents
        for parent in parents:
            if parent.number not in self._slots:
                form = form_here(parent.type)
                self._slots[parent.number] = _Slot(self._allocate(form.nbytes), True, form=_form(form))

    def _load(self, values: Any, loaded: dict[int, int]) -> int:
        """Count saved values that were on disk, and note them; return the bytes of those that are new."""
        if not self.paged:
            return 0
        cells = {id(c): c.type.nbytes for c in values if type(c) is SavedValue and is_pageable(c)}
        new = sum(nbytes for key, nbytes in cells.items() if key not in loaded)
        loaded.update(cells)
        self.live += new
        return new

    def _end(self, values: Any, holders: dict[Any, int]) -> None:
        """Uncount what no node holds any more."""
        for value in values:
            if (type(value) is SavedValue or isinstance(value, np.ndarray)) and self._counts(value):
                key = key_of(value)
                if key in holders:
                    holders[key] -= 1
                    if not holders[key]:
                        self.live -= bytes_of(value)

    def _counts(self, value: Any) -> bool:
        """Return whether a saved value, or an array in parameters, is part of what is held."""
        if self.counted is None:
            return type(value) is SavedValue
        if self.paged and type(value) is SavedValue and is_pageable(value):
            return False
        return self.counted(value)


def accumulates(pull: Pull, kind: ArrayType, out: ArrayType, saved: list[Any]) -> bool:
    """Return whether a pull adds into a running cotangent, judging by types."""
    can = pull.accumulates
    return pull.accumulate is not None and (can is None or can(kind, out, *saved))


def _is_joint(node: Node) -> bool:
    """Return whether a node is an operation with a rule of its own, that has not been pulled."""
    signature = node.signature
    return node.parents is not None and signature is not PROJECTION and type(signature) not in (Signature, type(None))


def _type_of(value: Any) -> Any:
    """Return the type or the form of a saved value, or a number itself; None where it is not known."""
    if type(value) is SavedValue:
        return form_of(value.value) if value.type is None else value.type
    return form_of(value)


def _form(form: Any) -> Form | None:
    """Return a form; None of a type."""
    return form if type(form) is Form else None
