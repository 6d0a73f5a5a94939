"""The rule of a program on a tape: one run, whose saved values are with its node."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.ledger import BUFFERS, SAVED
from ebbtide.program.equation import Variable
from ebbtide.program.split import INPUT
from ebbtide.program.ways import Way
from ebbtide.tape.holders import is_pageable
from ebbtide.tape.joint import Holding, JointRule
from ebbtide.tape.node import Node
from ebbtide.tape.overhead import CELL_BYTES, PAGE
from ebbtide.tape.saved import SavedValue, bytes_of

# What the interpreter takes for a run beside its arrays, with disk: three runs took 17 KiB.
_OBJECTS = 24 * 1024


def bytes_left(pager: Any) -> int:
    """Return the bytes that are left of a budget, if all saved values go to disk that there is."""
    ledger = pager.ledger
    return int(ledger.limit - ledger.live + (ledger.held[SAVED] if pager.on_disk else 0))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Saving:
    """
    What the nodes of all runs the same way save.

    Args:
        way: How they are run.
        chooses: Whether a run may go back another way, with less, and start again from its inputs if need be.
        places: For each saved value (INPUT, RESULT or EXTRA, its number there).
        numbers: The number of each saved value in the node.
        constants: Arrays from around the function, which come after them.
    """

    way: Way
    chooses: bool
    places: tuple[tuple[str, int], ...]
    numbers: dict[Variable, int]
    constants: tuple[np.ndarray, ...]


@final
class ProgramRule(JointRule):
    """
    One run of a program on a tape.

    Args:
        program: The program, as it is recorded (`Reversed`).
        pager: Of the tape; None where nobody counts.
        saving: How it was run, and what its node saves.
    """

    __slots__ = ("__weakref__", "_chooses", "_least", "_node", "_pager", "_program", "_saved", "_way")

    def __init__(self, program: Any, pager: Any, saving: Saving) -> None:
        chooses = saving.chooses
        self._program = program
        self._pager = pager
        self._way = saving.way
        self._saved = saving.numbers
        self._chooses = chooses
        # Where it can give up saved values; with a disk they go there instead.
        self._node: weakref.ref[Node] | None = None
        ledger = None if pager is None else pager.ledger
        self._least = ledger.live - ledger.lent if chooses and ledger is not None else 0

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return self._program.name

    def hold(self, pager: Any, node: Node) -> None:
        """Let a pager see what the forward run took, which is more than what it leaves."""
        if self._chooses:
            pager.ledger.add(BUFFERS, self._way.ahead_nbytes)
            pager.enforce(0, node)
            pager.ledger.add(BUFFERS, -self._way.ahead_nbytes)

    def watch(self, node: Node) -> None:
        """Remember the node whose saved values can be given up, and let the ledger ask for it."""
        if self._chooses and not self._pager.on_disk:
            self._node = weakref.ref(node)
            lenders = self._pager.ledger.lenders
            lenders[:] = [one for one in lenders if one() is not None]
            self._pager.ledger.lend(self)

    def _held(self) -> dict[Variable, SavedValue]:
        """Return what its node saves and it could do without: no inputs."""
        node = None if self._node is None else self._node()
        if node is None or node.saved is None:
            return {}
        places = zip(self._saved, self._way.split.saved, node.saved, strict=False)
        return {x: cell for x, (kind, _), cell in places if kind != INPUT and type(cell) is SavedValue}

    def _usable(self, held: dict[Variable, SavedValue]) -> list[Way]:
        """Return the ways back from what is held, from the least work on."""
        if not self._chooses:
            return [self._way]
        places = zip(self._saved, self._way.split.saved, strict=False)
        gone = {x for x, (kind, _) in places if kind != INPUT and x not in held} if self._node else set()
        ways = self._program.ways()
        if not gone:
            ways = [self._way, *[way for way in ways if way is not self._way]]
        there = set(self._saved) - gone
        return [way for way in ways if there.issuperset(way.split.variables)]

    @property
    def sheddable(self) -> int:
        """Bytes of saved values that can be computed again."""
        return _extra_nbytes(self._way, self._held())

    @property
    def spare(self) -> Iterable[Any]:
        """All that it could do without."""
        return self._held().values()

    def shed(self, nbytes: int) -> int:
        """Give up saved values of at least so many bytes if there are, with the least work to compute them again."""
        held, node = self._held(), None if self._node is None else self._node()
        if nbytes <= 0 or not held or node is None or node.saved is None:
            return 0
        ledger = self._pager.ledger
        before = ledger.live
        for way in self._usable(held):
            kept = set(way.split.variables)
            lost = [x in held and x not in kept for x in self._saved]
            lost += [False] * (len(node.saved) - len(lost))
            if self._way.saved_nbytes - way.saved_nbytes >= nbytes or way is self._program.ways()[-1]:
                node.saved = tuple([None if gone else cell for cell, gone in zip(node.saved, lost, strict=True)])
                held.clear()
                if before - ledger.live >= nbytes:
                    break
                held = self._held()
        return before - ledger.live

    def holding(self, bare: bool) -> Holding:
        """See `JointRule.holding`: bare, it begins again from its inputs."""
        if not bare or not self._chooses or self._pager.on_disk:
            return Holding()
        ways = self._program.ways()
        last, least = ways[-1], self._least
        # A run with more bytes saves more, and counts it before it gives it up, in whole pages.
        cells = max(len(way.split.extras) for way in ways) - len(self._way.split.extras)
        more = last.sweep_nbytes - self.needs(owned=False, given=0) + PAGE
        return Holding(beyond=cells * CELL_BYTES, least=least + last.ahead_nbytes + PAGE, more=more)

    def needs(self, owned: bool, given: int) -> int:
        """See `JointRule.needs`; known under a budget only."""
        if self._pager is None:
            return 0
        if not self._chooses:
            return self._way.back_nbytes
        held = self._held()
        there = _extra_nbytes(self._way, held) if self._node else self._way.saved_nbytes
        return max(0, min([way.sweep_nbytes for way in self._usable(held)]) - there)

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Run the reverse program."""
        given = tuple([number for number, pair in enumerate(cotangents) if pair is not None])
        pager, way, counted = self._pager, self._way_back(retain, cotangents, node), 0
        back, variables = self._program.back(way, given)
        saved: Any = node.saved
        if not retain:
            node.saved = None
        if pager is not None:
            counted = sum(type_of(cotangents[number][0]).nbytes for number in given)
            stays = retain or not self._chooses
            taken = [*[saved[self._saved[variable]] for variable in variables], *saved[len(self._saved) :]]
            need = way.back_nbytes if stays else way.sweep_nbytes - way.saved_nbytes
            pager.load_room(counted + need + _OBJECTS * self._chooses, node, taken)
            del taken
            # Saved values that die on the way are part of it.
            counted += way.back_nbytes if stays else way.sweep_nbytes
        frame: list[Any] = []
        cell: Any = None
        for variable in variables:
            cell = saved[self._saved[variable]]
            frame.append(cell.open(node) if type(cell) is SavedValue else cell)
        for constant in saved[len(self._saved) :]:
            constant.open(node)
        owned = []
        for number in given:
            if _is_ours(*cotangents[number]):
                owned.append(len(frame))
            frame.append(cotangents[number][0])
        del saved, cell
        cotangents.clear()
        ledger = None if pager is None else pager.ledger
        if ledger is not None:
            ledger.add(BUFFERS, counted)
        try:
            # What a budget was promised is that of the plan that leaves cotangents as they are.
            results, fresh = back.run(frame, tuple(owned) if pager is None else ())
        finally:
            if ledger is not None:
                ledger.add(BUFFERS, -counted)
        for position in range(len(results)):
            value, results[position] = results[position], None
            if value is not None:
                yield position, value, fresh[position]
            del value

    def _beside(self, cotangents: list[Any], node: Node) -> int:
        """Return what each way back takes where there is disk: cotangents, and inputs, which are read or stay."""
        if not self._pager.on_disk:
            return 0
        places = zip(self._saved, self._way.split.saved, node.saved or (), strict=False)
        inputs = [cell for _, (kind, _), cell in places if kind == INPUT and type(cell) is SavedValue]
        given = sum([type_of(pair[0]).nbytes for pair in cotangents if pair is not None])
        return given + sum([bytes_of(cell) for cell in inputs if is_pageable(cell)]) + _OBJECTS

    def _way_back(self, retain: bool, cotangents: list[Any], node: Node) -> Way:
        """Return the way back with the least work that fits into what is left, or the one with the fewest bytes."""
        pager = self._pager
        if not self._chooses:
            return self._way
        held = self._held()
        usable = self._usable(held)
        if pager.ledger.limit is None:
            return usable[0]
        left = bytes_left(pager) - self._beside(cotangents, node)
        if retain:
            # What was on disk is read, and stays until the next one.
            fits = [way for way in usable if way.back_nbytes + way.saved_nbytes * pager.on_disk <= left]
            if not fits:
                self.shed(usable[-1].back_nbytes - left)
            return fits[0] if fits else usable[-1]
        left += _extra_nbytes(self._way, held)
        least = min(usable, key=lambda way: way.sweep_nbytes)
        return next((way for way in usable if way.sweep_nbytes <= left), least)


def _extra_nbytes(way: Way, held: dict[Variable, SavedValue]) -> int:
    """Return the bytes of what is held of a run that nobody else can hold."""
    return sum(bytes_of(held[variable]) for variable in way.split.extras if variable in held)


def _is_ours(cotangent: Any, owned: bool) -> bool:
    """Return whether a reverse program may work in the memory of a cotangent."""
    return owned and type(cotangent) is np.ndarray and cotangent.flags.writeable
