"""
The pager: counts the saved values of a tape, and pages the oldest to disk when the budget says so.

The oldest are needed last, so they are the best ones to page. Without disk, a forward run that passes the budget
is finished with nothing saved but sizes, so that the error can say the least number of bytes that would do.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.location import line_of
from ebbtide.arrays.primitive import PASSED, Signature
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import COTANGENTS, SAVED, Ledger, SavedEntry
from ebbtide.storage import Disk
from ebbtide.tape.forecast import Forecast, bytes_of, reached
from ebbtide.tape.node import PROJECTION, Node
from ebbtide.tape.saved import SavedValue, parts_of

# Smaller values are not worth a file.
_LEAST_PAGE = 1 << 14
# What the storage itself holds beside the arrays that it writes and reads.
_STORAGE = 1 << 16
# A node, its tuples and numbers, as tracemalloc sees them; and what the pager and the ledger keep of a value.
NODE_BYTES = 320
CELL_BYTES = 1056


@final
class _Size:
    """Stands for an array of which only the bytes are kept."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@final
class Pager:
    """
    Holds the saved values of a tape within a budget.

    Args:
        ledger: Where to count; its `limit` is the bound.
        budget: Says whether, how much and where to page; None for counting only.
        strict: Raise at once where the budget is passed, for functions that run again in the reverse sweep.

    Memory:
        About 1 KiB for each live saved value; the values themselves are the nodes'.
    """

    __slots__ = (
        "_cells", "_counted", "_excluded", "_keys", "_known", "_lines", "_overhead", "_passed", "_storage", "budget",
        "ledger", "strict",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, budget: Budget | None, *, strict: bool = False) -> None:
        self.ledger = ledger
        self.budget = budget
        self.strict = strict
        self._overhead = self._counted = 0
        self._cells: deque[weakref.ref[SavedValue]] = deque()
        self._excluded: dict[int, Any] = {}
        # Address of an array -> (the array, its cell), both weak: one cell for all nodes that save it.
        self._known: dict[int, tuple[Any, Any]] = {}
        self._lines: dict[tuple[Any, int], str] = {}
        self._storage: Disk | None = None
        self._keys = 0
        self._passed: str | None = None

    def exclude(self, values: list[Any]) -> None:
        """Do not count these arrays: they are the caller's."""
        for value in values:
            for array in parts_of(value):
                owner = owner_of(array)
                self._excluded[id(owner)] = owner

    # Saved values.

    def hold(self, node: Node, signature: Signature, saved: tuple[Any, ...]) -> tuple[Any, ...]:
        """Count the saved values of a new node and return them in the form in which the node keeps them."""
        self._count(NODE_BYTES)
        cells = tuple([self._cell(node, signature, n, value) for n, value in enumerate(saved)])
        for value in (node.params or {}).values():
            self._hold_parameter(node, value)
        self.enforce(0, node)
        return cells

    def _hold_parameter(self, node: Node, value: Any) -> None:
        """Count the arrays in a parameter of an operation: conditions and indices, which live as long as its node."""
        if isinstance(value, (tuple, list)):
            for part in value:
                self._hold_parameter(node, part)
        elif isinstance(value, np.ndarray):
            owner = owner_of(value)
            if id(owner) not in self._excluded and not self.ledger.holds(value):
                self._count(CELL_BYTES)
                self.ledger.hold(value, owner, self._entry(node, None, 0, value))

    def hold_joint(self, node: Node, values: list[Any]) -> list[Any]:
        """Count what the rule of an operation with several outputs keeps; return it as the rule has to keep it."""
        self._count(NODE_BYTES)
        cells = [self._cell(node, None, n, value) for n, value in enumerate(values)]
        self.enforce(0, node)
        return cells

    def reserve(self, nbytes: int) -> None:
        """Page the oldest saved values until *nbytes* more fit, as far as there are any."""
        ledger, budget = self.ledger, self.budget
        if budget is None or ledger.limit is None or not budget.disk:
            return
        while self._cells and ledger.live + nbytes > ledger.limit:
            cell = self._cells.popleft()()
            if cell is not None and isinstance(cell.value, np.ndarray) and cell.value.nbytes >= _LEAST_PAGE:
                self._page(cell, budget)

    @property
    def uncounted(self) -> int:
        """Bytes of the record that have not filled a page yet, and so are not in the ledger."""
        return self._overhead - self._counted

    def _count(self, nbytes: int) -> None:
        """Count what the interpreter takes for the record; in pages, as small objects come and go."""
        self._overhead += nbytes
        if self.uncounted >= 4096:
            self.ledger.add(SAVED, self.uncounted)
            self._counted = self._overhead

    def _cell(self, node: Node, signature: Signature | None, position: int, value: Any) -> Any:
        array = value.value if type(value) is SavedValue else value
        plain = parts_of(array)
        if not plain or all(id(owner_of(part)) in self._excluded for part in plain):
            return value
        known = self._known.get(id(array))
        if known is not None and known[0]() is array:
            cell = known[1]()
            if cell is not None:
                if type(value) is SavedValue and cell.crc is None:
                    cell.crc = value.crc
                return cell
        cell = value if type(value) is SavedValue else SavedValue(value, None)
        self._count(CELL_BYTES)
        self._known[id(array)] = weakref.ref(array), weakref.ref(cell)
        if len(self._known) > 2 * len(self._cells) + 64:
            self._known = {k: v for k, v in self._known.items() if v[1]() is not None}
        owner = owner_of(plain[0]) if len(plain) == 1 else _Size(sum(owner_of(part).nbytes for part in plain))
        if self._passed is not None or len(plain) > 1:
            cell.size = _Size(owner.nbytes)
            owner = cell.size
        self.ledger.hold(cell, owner, self._entry(node, signature, position, array))
        self._cells.append(weakref.ref(cell))
        if self._passed is not None:
            cell.value, cell.dropped = None, True
        return cell

    def _entry(self, node: Node, signature: Signature | None, position: int, array: Any) -> SavedEntry | None:
        entries = self.ledger.entries
        if entries is None:
            return None
        place = (node.code, node.instruction)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = line_of(*place)
        if signature is None:
            reason = "argument"
        elif position < len(signature.saves):
            k = signature.saves[position]
            reason = "output" if k < 0 else f"operand {k}"
        else:
            reason = "mask"
        key = (node.name, line, reason, array.shape, str(array.dtype))
        entry = entries.get(key)
        if entry is None:
            entry = entries[key] = SavedEntry(node.name, line, reason, array.shape, str(array.dtype))
        return entry

    # Cotangents.

    def take(self, value: Any) -> None:
        """Count the memory of a cotangent."""
        for part in parts_of(value):
            owner = owner_of(part)
            self.ledger.share(COTANGENTS, id(owner), owner.nbytes)

    def drop(self, value: Any) -> None:
        """Uncount the memory of a cotangent."""
        for part in parts_of(value):
            self.ledger.unshare(COTANGENTS, id(owner_of(part)))

    # The bound.

    def room(self, node: Node, slots: Any, parents: tuple[Node, ...], saved: tuple[Any, ...]) -> None:
        """Make room for what the pulls of *node* allocate and load."""
        if self.ledger.limit is None or self.budget is None:
            return
        need = need_of(node.signature, parents, slots)
        need += sum(c.size.nbytes for c in saved if type(c) is SavedValue and c.page is not None and c.size)
        self.enforce(need, node, keep=saved)

    def enforce(self, need: int, node: Node, keep: tuple[Any, ...] = ()) -> None:
        """Page the oldest saved values until *need* more bytes fit."""
        ledger, budget = self.ledger, self.budget
        if budget is None or ledger.limit is None or self._passed is not None or ledger.live + need <= ledger.limit:
            return
        if not budget.disk:
            if self.strict:
                raise self._too_much(node, need)
            if need == 0:
                self._pass(node)
            return
        spared = []
        while ledger.live + need > ledger.limit:
            if not self._cells:
                raise self._too_much(node, need)
            cell = self._cells.popleft()()
            if cell is None or cell.value is None or not isinstance(cell.value, np.ndarray):
                continue
            if cell.value.nbytes < _LEAST_PAGE:
                continue
            if any(cell is k for k in keep):
                spared.append(weakref.ref(cell))
                continue
            self._page(cell, budget)
        self._cells.extend(spared)

    def _too_much(self, node: Node, need: int) -> BudgetError:
        assert self.ledger.limit is not None
        assert self.budget is not None
        least = self.ledger.live + need - self.ledger.limit + self.budget.memory
        return BudgetError(
            f"{node.name} at {node.line} needs {need} bytes beside {self.ledger.live} that cannot be paged to "
            f"disk, more than the {self.ledger.limit} of the budget. Give at least {least} bytes "
            f"({format_bytes(least)}) of memory.",
            least,
        )

    def _page(self, cell: SavedValue, budget: Budget) -> None:
        if self._storage is None:
            self._storage = Disk(budget.directory, limit=budget.disk)
        self._keys += 1
        key, storage = self._keys, self._storage
        written = self._storage.put(key, [cell.value])
        if self.ledger.report is not None:
            self.ledger.report.bytes_written += written
        cell.size = _Size(cell.value.nbytes)
        shape = cell.value.shape
        self.ledger.let_go(cell)
        cell.value = None
        ledger, cells = self.ledger, self._cells

        def load(waiting: SavedValue) -> Any:
            array = storage.take(key)[0].reshape(shape)
            waiting.page = waiting.size = None
            ledger.hold(waiting, owner_of(array))
            cells.append(weakref.ref(waiting))
            return array

        cell.page = load

    def _pass(self, node: Node) -> None:
        """Note where the budget is passed, give up all saved values and go on with sizes only."""
        self._passed = f"{node.name} at {node.line}"
        sizes: dict[int, _Size] = {}
        for reference in self._cells:
            cell = reference()
            if cell is None or cell.value is None:
                continue
            owners = [owner_of(part) for part in parts_of(cell.value)]
            size = sizes.setdefault(id(owners[0]), _Size(sum(owner.nbytes for owner in owners)))
            self.ledger.let_go(cell)
            cell.size, cell.value, cell.dropped = size, None, True
            self.ledger.hold(cell, size)

    def settle(self, seeds: list[Any]) -> None:
        """
        Raise if the forward run passed the budget, or if the sweep will and nothing can be paged.

        Raises:
            BudgetError: Says where the budget was passed and the least that would do.
        """
        limit = self.ledger.limit
        if limit is None or self.budget is None:
            return
        if self.budget.disk and self._passed is None:
            least, where = self._floor([node for node, _, _ in seeds])
            if least > limit:
                raise self._too_much(where, least - self.ledger.live)
            return
        forecast = self.forecast(seeds)
        peak, joints = forecast.peak, forecast.joints
        if self._passed is None:
            for rule in joints:
                if peak > limit:
                    # A time loop took room for snapshots before it was known what comes after it.
                    peak -= rule.shed(peak - limit)
            if peak <= limit:
                return
        least = max(peak, self.ledger.peak) - sum(rule.sheddable for rule in joints) - limit + self.budget.memory
        place = f" It was passed by {self._passed}." if self._passed else " It would be passed in the reverse sweep."
        raise BudgetError(
            f"The budget of {self.budget} is too small: the saved values and cotangents of this gradient take "
            f"{least} bytes ({format_bytes(least)}).{place} Give at least {least} bytes of memory, or let it page "
            "with disk=, or recompute with ebbtide.checkpoint or a time loop.",
            least,
        )

    def forecast(self, seeds: list[Any]) -> Forecast:
        """Return what a sweep from these seeds is going to hold."""
        forecast = Forecast(self.ledger.live)
        forecast.run(seeds)
        return forecast

    def _floor(self, roots: list[Node]) -> tuple[int, Any]:
        """Return the most bytes that the sweep needs with all else on disk, and the node that needs them."""
        order, _ = reached(roots)
        cells = {id(c): c for node in order for c in node.saved or () if type(c) is SavedValue and self.ledger.holds(c)}
        owners = {id(o): o.nbytes for c in cells.values() for o in map(owner_of, parts_of(c.value))}
        pinned = self.ledger.live - sum(nbytes for nbytes in owners.values() if nbytes >= _LEAST_PAGE)
        slots: dict[int, int] = {}
        held = most = 0
        where: Any = None
        for node in order:
            if type(node.signature) is Signature:
                parents: Any = node.parents
                own = sum(bytes_of(c) for c in node.saved or () if type(c) is SavedValue)
                need = pinned + held + own + need_of(node.signature, parents, slots)
                if need > most:
                    most, where = need, node
                for parent in parents:
                    if parent.number not in slots:
                        slots[parent.number] = parent.type.nbytes
                        held += parent.type.nbytes
            held -= slots.pop(node.number, 0)
        return most + _STORAGE, where

    def close(self) -> None:
        """Remove all files and forget all values."""
        if self._storage is not None:
            self._storage.close()
        self._cells.clear()
        self._known.clear()
        self._excluded.clear()
        self.ledger.add(SAVED, -self._counted)
        self._overhead = self._counted = 0


def need_of(signature: Any, parents: tuple[Node, ...], slots: Any) -> int:
    """Return the bytes that the pulls of a node allocate at most, beside their operands."""
    if signature is PROJECTION:
        return 0
    if type(signature) is not Signature:
        return signature.need
    need = 0
    for (pull, _, _), parent in zip(signature.pulls, parents, strict=True):
        in_place = pull.derivative is not None or pull.accumulate is not None or pull.result is PASSED
        need += 0 if parent.number in slots and in_place else parent.type.nbytes
    return need
