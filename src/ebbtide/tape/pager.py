"""
The pager: counts the saved values of a tape, and pages the oldest to disk when the budget says so.

The oldest are needed last, so they are the best ones to page. A forward run that cannot be held within the budget, with
disk or without, ends with nothing saved but sizes, so that the error can say the least number of bytes that would do.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.primitive import Pull, Signature
from ebbtide.budget import Budget
from ebbtide.ledger import COTANGENTS, Ledger
from ebbtide.tape.disk_room import DiskRoom
from ebbtide.tape.entries import Entries
from ebbtide.tape.forecast import Forecast
from ebbtide.tape.forms import Form, form_of
from ebbtide.tape.holders import arrays_in, is_pageable, masks_nbytes, pageable_bytes, result_nbytes, stays_held
from ebbtide.tape.node import Node
from ebbtide.tape.overhead import CELL_BYTES, EXCLUDED_BYTES, GUARD_BYTES, Overhead, node_bytes
from ebbtide.tape.pages import STORAGE_BYTES, Pages
from ebbtide.tape.refusal import refusal
from ebbtide.tape.saved import SavedValue, Sizes, Slivers, bytes_of, parts_of, value_of

# What storages hold, at most, beside the arrays that they write and read, and the interpreter beside them.
_STORAGE = 1 << 16
# What cotangents that are numbers may take, which a sweep counts and no forecast: 8 bytes each. No rule takes so many
# times the bytes of what it is given and returns.
_NUMBERS, _FAR = 1 << 10, 16


@final
class Pager:
    """
    Holds the saved values of a tape within a budget.

    Args:
        ledger: Where to count; its `limit` is the bound.
        budget: Says whether, how much and where to page; None for counting only.
        strict: Raise at once where the budget is passed, for functions that run again in the reverse sweep.
        around: That of the tape around a checkpointed function; what it counts is not counted again, and paged first.
        step: That of a time step: loops give up snapshots before anything is paged, and not only after that.

    Attributes:
        disk: Tells what finds room there.
        lent: Cotangents that others hold, by address, which are not counted.
        needed: The bytes in the ledger that would not have passed the budget there.
        pinned: Addresses of arrays that others hold, which would stay in memory when they are paged.
        pages: What went to disk; None if nothing did.
        passed: What passed the budget, and where; None if nothing did.
        unplanned: Says for how many bytes, of which the ledger has none, there has to be room beside an operation that
            makes so many and saves so many; None where there are no such.

    Memory:
        About 1 KiB for each live saved value; the values themselves are the nodes'.
    """

    __slots__ = (
        "_around", "_cells", "_entries", "_excluded", "_given", "_known", "_margin", "_measures", "_sizes",
        "_slivers", "_step", "budget", "disk", "ledger", "lent", "needed", "overhead", "pages", "passed", "pinned",
        "strict", "unplanned",
    )  # fmt: skip

    def __init__(
        self, ledger: Ledger, budget: Budget | None, *, strict: bool = False, around: Pager | None = None,
        step: bool = False,
    ) -> None:  # fmt: skip
        self.budget = self._given = budget
        self.ledger, self.strict, self._around, self._step = ledger, strict, around, step
        self.pinned, self._measures, self._margin = frozenset[int](), False, 0
        self.unplanned: Callable[[int, int], int] | None = None
        self.overhead, self._entries, self._sizes, self._slivers = Overhead(ledger), Entries(ledger), Sizes(), Slivers()
        self._cells, self._excluded = deque[weakref.ref[SavedValue]](), dict[int, weakref.ref[np.ndarray]]()
        # Address of an array -> (the array, its cell), both weak: one cell for all nodes that save it.
        self._known: dict[int, tuple[Any, Any]] = {}
        self.pages: Pages | None = None
        self.passed: str | None = None
        self.disk, self.needed, self.lent = DiskRoom(ledger), 0, dict[int, weakref.ref[np.ndarray]]()

    @classmethod
    def measuring(cls, around: Pager | None) -> Pager:
        """Return a pager that keeps no value and counts, in a ledger of its own, what a tape would save."""
        made = cls(Ledger(watched=True, unfinished=around and around.ledger.unfinished), None, around=around)
        made.passed, made._measures = "", True
        made.overhead = Overhead(made.ledger, around)
        return made

    @property
    def bounded(self) -> bool:
        """Return whether somebody has to know what a sweep is going to take."""
        return self._measures or (self.budget is not None and self.ledger.limit is not None)

    def exclude(self, values: list[Any]) -> None:
        """Do not count these arrays: they are the caller's."""
        owners, before = [owner_of(array) for value in values for array in parts_of(value)], len(self._excluded)
        self._excluded |= {id(owner): weakref.ref(owner) for owner in owners}
        self.overhead.count((len(self._excluded) - before) * EXCLUDED_BYTES)

    # Saved values.

    def hold(self, node: Node, signature: Signature | None, saved: Iterable[Any]) -> tuple[Any, ...]:
        """
        Count the saved values of a new node and return them in the form in which it keeps them.

        Without a *signature*: those that the rule of an operation with several outputs keeps.
        """
        self.overhead.count(node_bytes(node))
        cells = tuple([self._cell(node, signature, n, value) for n, value in enumerate(saved)])
        for array in arrays_in(node.params, lambda array: True):  # conditions and indices, which live as long
            if not self.is_callers(array) and not self.ledger.holds(array):
                self.overhead.count(CELL_BYTES)
                self.ledger.hold(array, owner_of(array), self._entries.find(node, None, 0, array))
        self.enforce(0, node)
        if self._margin and signature is not None:
            self.reserve(self._margin)
        return cells

    def expect(self, signature: Signature, values: list[Any], params: Any) -> None:
        """
        Make room for the operands and masks that an operation is going to save, before it computes anything.

        And for one result: NumPy reuses the memory of temporaries of expressions, which a record cannot, and an
        operation that is made of others takes one array more than NumPy's own, as `np.clip` does beside its masks.
        """
        ledger = self.ledger
        if not self._pages_now and (ledger.limit is None or self.passed is not None or not ledger.lenders):
            return
        saved = [a for k in signature.saves if k >= 0 and type(a := values[k]) is np.ndarray]
        new = {id(o := owner_of(a)): o.nbytes for a in saved if self.find(a) is None and not self.is_callers(a)}
        self._margin = max(self._margin, masks := masks_nbytes(signature, values))
        need, made = sum(new.values()), max(self._margin, result_nbytes(signature, values, params))
        need += made + (0 if self.unplanned is None else self.unplanned(made, need))
        if self._pages_now:
            indices = arrays_in(params, lambda array: not (ledger.holds(array) or self.is_callers(array)))
            beside = 0 if self._step else masks + sum([array.nbytes for array in indices])  # steps are measured
            self._make_room(need := need + beside)
        if ledger.limit is not None and ledger.live + need > ledger.limit:  # also where no more finds room on disk
            ledger.relieve(ledger.live + need - ledger.limit)

    @property
    def _pages_now(self) -> bool:
        """Return whether values are paged when there is no room."""
        return self.ledger.limit is not None and bool(self.budget and self.budget.disk) and self.passed is None

    def reserve(self, nbytes: int) -> None:
        """Page the oldest saved values until *nbytes* more fit, as far as there are any."""
        if self._around is not None:
            self._around.reserve(nbytes)
        if (limit := self.ledger.limit) is None or not self._pages_now:
            return
        while self.ledger.live + nbytes > limit and self.page_oldest((), []):
            pass
        self._give_up_buffers(nbytes)

    def is_callers(self, array: Any) -> bool:
        """Return whether an array is not counted because it is the caller's."""
        known, around = self._excluded.get(id(owner := owner_of(array))), self._around
        return (known is not None and known() is owner) or (around is not None and around.is_callers(array))

    def counted_as(self, owner: Any) -> Any:
        """Return what stands in the ledger for an array that owns its memory: itself, or a size where it is passed."""
        return owner if self.passed is None else self._sizes.find([owner])

    def find(self, array: Any, *, own: bool = True) -> Any:
        """Return the saved value that there is of an array already; that of pagers around alone if not *own*."""
        known, around = self._known.get(id(array)) if own else None, self._around
        cell = known[1]() if known is not None and known[0]() is array else None
        return cell if cell is not None or around is None else around.find(array)

    def _cell(self, node: Node, signature: Signature | None, position: int, value: Any) -> Any:
        array = value_of(value)
        plain = parts_of(array)
        if not plain or all(self.is_callers(part) for part in plain):
            self.overhead.count(GUARD_BYTES if type(value) is SavedValue else 0)
            return value
        if (cell := self.find(array)) is not None:
            if cell.dropped and self.passed is None:
                return value  # counted where a function is measured, which keeps sizes alone; a step in it may be swept
            if type(value) is SavedValue and cell.crc is None:
                cell.crc = value.crc
            return cell
        cell = value if type(value) is SavedValue else SavedValue(value, None)
        self.overhead.count(CELL_BYTES)
        self._known[id(array)] = weakref.ref(array), weakref.ref(cell)
        if len(self._known) > 2 * len(self._cells) + 64:
            self._known = {k: v for k, v in self._known.items() if v[1]() is not None}
        owner: Any = owner_of(plain[0])
        is_plain = array is plain[0]
        stays = is_plain and stays_held(owner, node, self.ledger, self.passed is not None)  # which no page would free
        has_form = type(form := form_of(array)) is Form
        cell.type = form if has_form or (is_plain and not (stays and self.passed is None)) else None
        if is_plain and self.on_disk and not stays and self._slivers.take(array, owner):
            cell.value = owner = np.array(array)
        if len(plain) > 1 or self.passed is not None:
            owner = cell.size = self._sizes.find([owner, *[owner_of(part) for part in plain[1:]]])
        if self.passed is None or not (stays or self._would_be_paged(cell)):
            self.ledger.hold(cell, owner, self._entries.find(node, signature, position, array))
        self._cells.append(weakref.ref(cell))
        if self.passed is not None:
            cell.give_up(self.ledger.meters)
        return cell

    # Cotangents.

    def take(self, value: Any) -> None:
        """Count the memory of a cotangent."""
        for owner in [owner_of(part) for part in parts_of(value)]:
            if (lent := self.lent.get(id(owner))) is None or lent() is not owner:
                self.ledger.share(COTANGENTS, id(owner), owner.nbytes)

    def drop(self, value: Any) -> None:
        """Uncount the memory of a cotangent."""
        for part in parts_of(value):
            self.ledger.unshare(COTANGENTS, id(owner_of(part)))

    # The bound.

    @property
    def on_disk(self) -> bool:
        """Return whether there is disk, here or around a function that is measured."""
        around = self._around if self._measures else None
        return bool(self.budget and self.budget.disk) if around is None else around.on_disk

    def room(self, pull: Pull, node: Node, parent: Node, running: Any, exclusive: bool, values: list[Any]) -> None:
        """Make room for what one pull of a node allocates, and for loading the *values* that it takes."""
        if self.ledger.limit is None or self.budget is None or not self.budget.disk:
            return  # without disk there is nothing to be done: the forecast saw to it
        # Far from the bound nobody need know how much exactly.
        given = node.type.nbytes + parent.type.nbytes + sum(bytes_of(c) for c in values if type(c) is SavedValue)
        if self.ledger.live + _FAR * given < self.ledger.limit:
            return
        need = Forecast(0, taken=self.ledger.taken).need_of(pull, node, parent, running, exclusive, values)
        self.load_room(need, node, values)

    def load_room(self, need: int, node: Node, saved: Any) -> None:
        """Make room for loading saved values, which stay in memory, and for *need* bytes more."""
        ledger, budget = self.ledger, self.budget
        if ledger.limit is None or budget is None or not budget.disk:
            return
        cells = {id(c): c for c in saved if type(c) is SavedValue}.values()
        need += sum(c.size.nbytes for c in cells if c.page is not None and c.size)
        for cell in cells:
            views = cell.page is None and cell.value is not None and is_pageable(cell)
            is_in_the_way = views and bytes_of(cell) > cell.type.nbytes and ledger.live + need > ledger.limit
            if is_in_the_way and self._page(cell, budget):
                need += cell.size.nbytes  # a view keeps all of its base; read back it does not
        self.enforce(need, node, keep=saved)

    def enforce(self, need: int, node: Node, keep: Any = None) -> None:
        """Page the oldest saved values until *need* more bytes fit, in a sweep but those to *keep*."""
        ledger, budget = self.ledger, self.budget
        room = need + (0 if self.unplanned is None else self.unplanned(0, 0))
        if budget is None or ledger.limit is None or self.passed is not None or ledger.live + room <= ledger.limit:
            return
        if self._step:
            ledger.relieve(ledger.live + room - ledger.limit)
        self._make_room(room, keep or ())
        if not self._step:
            ledger.relieve(ledger.live + room - ledger.limit)
        if ledger.live + room > ledger.limit:
            if self.strict or keep is not None:  # a sweep needs the values and not their sizes
                raise refusal(ledger, budget, node, room)
            self._pass(node, ledger.live + room)

    def _make_room(self, need: int, keep: Any = ()) -> None:
        """Page the oldest saved values, but those to keep, until *need* more bytes fit, as far as there are any."""
        if (limit := self.ledger.limit) is None or self.ledger.live + need <= limit:
            return
        spared: list[tuple[Pager, Any]] = []
        while self._pages_now and self.ledger.live + need > limit - (self.pages.wish if self.pages else 0):
            if not self.page_oldest(keep, spared):
                break
        for pager, reference in spared:
            pager._cells.append(reference)
        if self.pages is not None:
            self.pages.take_buffer(limit - self.ledger.live - need)
        self._give_up_buffers(need)

    def _give_up_buffers(self, need: int) -> None:
        """Give up buffers until *need* more bytes fit, where paging was not enough."""
        for pages in self._all_pages():
            if (limit := self.ledger.limit) is not None and self.ledger.live + need > limit:
                pages.give_up()

    def page_oldest(self, keep: Any, spared: list[tuple[Pager, Any]]) -> bool:
        """Page the oldest saved value but those to keep, which are noted; return whether there was one."""
        around = self._around
        if around is not None and around.ledger is self.ledger and around.page_oldest(keep, spared):
            return True
        # Also where its own sweep fits, and asks for no pages: one within, of a time step, may take more than was seen.
        budget = self.budget or self._given if self.passed is None else None
        while (cells := self._cells or (self.pages and self.pages.back)) and budget and budget.disk:
            cell = (reference := cells.popleft())()
            if cell is None or cell.value is None or not is_pageable(cell):
                continue
            owner = id(owner_of(cell.value))  # of what is kept as well a page would free nothing
            if any(cell is k for k in keep) or owner in self.pinned or owner in self.ledger.kept:
                spared.append((self, reference))
                continue
            if not self._page(cell, budget):
                cells.appendleft(reference)
                break
            return True
        return False

    @property
    def pageable(self) -> list[np.ndarray]:
        """Saved values that could go to disk, the oldest first."""
        return [c.value for one in self._cells if (c := one()) is not None and c.value is not None and is_pageable(c)]

    @property
    def paged(self) -> int:
        """Bytes of values that left memory, here and for the tapes around, whether they came back or not."""
        return sum([pages.freed for pages in self._all_pages()])

    def put_back(self) -> None:
        """Page what a sweep has read and left in memory, as it is retained: the next one begins with as much room."""
        for one in [] if self.pages is None else self.pages.returned():
            cell, budget = one(), self.budget
            is_there = cell is not None and cell.value is not None and is_pageable(cell)
            if cell is None or budget is None or not is_there or not self._page(cell, budget):
                self._cells.append(one)
        if self.pages is not None and not self.pages.is_needed:  # a loop has one for each of its steps
            self.pages.close()
            self.pages = None

    def _page(self, cell: SavedValue, budget: Budget) -> bool:
        """Page a value; return whether there was room: what the disk of a budget lacks is told as a want of memory."""
        self.budget, self.pages = budget, self.pages or Pages(self.ledger, budget)
        is_there, self.disk.is_full = self.pages.put(cell), self.disk.is_full or self.pages.is_full
        return is_there

    def _all_pages(self) -> list[Pages]:
        """Return what is on disk of the same ledger: here, and for the tapes around."""
        around = self._around
        others = [] if around is None or around.ledger is not self.ledger else around._all_pages()
        return others if self.pages is None else [self.pages, *others]

    def _pass(self, node: Node, needed: int) -> None:
        """Note where the budget is passed, give up all saved values and go on with sizes only."""
        self.passed, self.needed = f"{node.name} at {node.line}", needed
        cells = [cell for _, known in self._known.values() if (cell := known()) is not None and cell.value is not None]
        for cell in cells:
            self.ledger.let_go(cell)
        for cell in cells:
            if cell.size is None:
                cell.size = self._sizes.find([owner_of(parts_of(cell.value)[0])])
            stays = type(cell.value) is np.ndarray and stays_held(owner_of(cell.value), node, self.ledger, True)
            cell.give_up(self.ledger.meters)
            if not (stays or self._would_be_paged(cell)):
                self.ledger.hold(cell, cell.size)

    def _would_be_paged(self, cell: SavedValue) -> bool:
        """Return whether a value that is given up would be on disk in a budget that is enough; steps count all."""
        return self.on_disk and not self._step and self.disk.would_have(cell)

    def forecast(
        self, seeds: list[Any], given: Any = None, leaves: Any = (), *, paged: bool = False, bare: bool = False,
        beside: int = 0, left: int | None = None,
    ) -> Forecast:  # fmt: skip
        """
        Return what a sweep is going to hold.

        Args:
            seeds: Of `Forecast.run`.
            given: Of `Forecast.run`.
            leaves: Whose cotangents the caller gets.
            paged: Whether all saved values that can be on disk are there.
            bare: Whether time loops give up all that they can do without.
            beside: Bytes that are held and are in another ledger.
            left: Bytes of disk that there are for them; None for any number.
        """
        holds, live = self.ledger.holds, self.ledger.live + beside
        pages = self._all_pages() if paged else []
        if paged:
            there, _ = pageable_bytes([node for node, *_ in seeds], holds, left)
            live -= there + sum([p.buffer_nbytes for p in pages])
        forecast = Forecast(live, paged, bare, holds, self.ledger.outlived, self.ledger.taken)
        forecast.run(seeds, given, leaves)
        if paged and not self._measures:
            # Loops, programs and checkpointed functions have room for the interpreter in what they say to need.
            more = (STORAGE_BYTES + _NUMBERS if forecast.joints else _STORAGE) - sum([p.storage_nbytes for p in pages])
            forecast.peak = max(forecast.peak, live + self._margin) + max(0, more)
        return forecast

    def close(self) -> None:
        """Remove all files and forget all values."""
        if self.pages is not None:
            self.pages.close()
        for kept in (self._cells, self._known, self._excluded):
            kept.clear()
        self._sizes = Sizes()
        self.overhead.clear()
