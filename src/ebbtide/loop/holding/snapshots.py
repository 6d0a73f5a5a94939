"""What a time loop stores for its reverse sweep: restart states and saved values, in memory and on disk."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any, final

from ebbtide.agree import agree, is_alone
from ebbtide.errors import RankError, StorageError
from ebbtide.ledger import BUFFERS, SNAPSHOTS
from ebbtide.loop.holding.buffers import let_buffer_go
from ebbtide.loop.planning.plan import Plan
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import Swap
from ebbtide.loop.values.state import pack, unpack
from ebbtide.schedules import Mixed, Position, Snapshot, StoreAll
from ebbtide.storage import Disk, EntryLostError, Memory, Storage, StorageFullError
from ebbtide.storage.failures import close_or_warn, without_frames


@final
class Snapshots:
    """
    The snapshots of one loop, by step.

    Args:
        ledger: The account.
        theirs: A storage of the user, for all tiers, who closes it; None to make one for each tier.
        make_disk: Makes the storage of the tier `"disk"` when the first snapshot goes there.
        relieve: Has a loop do with less of the disk of the budget, where a step saves more than planned; returns
            whether one did.
        label: A name that a later process has for the same loop, so that it removes what a killed one left in a storage
            of the user; None if there is none.

    Attributes:
        are_theirs: Whether all tiers are a storage of the user.

    Memory:
        What is stored in memory, the buffers of the disk storage, and the nodes of steps whose saved values are
        stored, until `close`. The sweep may never come, so that it closes also when it is dropped.
    """

    __slots__ = (
        "__weakref__", "_adopted", "_counted", "_finalizer", "_forms", "_ledger", "_make_disk", "_name", "_relieve",
        "_steps", "_storages", "_swaps", "_tiers", "are_theirs", "error", "lost",
    )  # fmt: skip

    def __init__(
        self,
        ledger: Any,
        theirs: Storage | None,
        make_disk: Callable[[], Storage],
        relieve: Callable[[], bool],
        label: str | None = None,
    ) -> None:
        self._ledger, self._relieve = ledger, relieve
        self._make_disk = make_disk
        self._name = label or token_hex(8)  # in a storage that lasts there may be what other processes left
        self._forms: dict[int, list[Any]] = {}
        self._adopted: dict[int, Callable[[int], list[Any] | None]] = {}
        # What was lost, by its key; and where the rest is: a schedule may think what is kept for a sweep elsewhere.
        self.lost: dict[str, StorageError] = {}
        # Of what was loaded last: the largest relative error of a storage with loss; None without loss.
        self.error: float | None = None
        self._tiers: dict[str, str] = {}
        self._steps: dict[int, TapedStep] = {}
        self._swaps: dict[int, Swap] = {}
        self._storages: dict[str, Storage] = {}
        self.are_theirs = theirs is not None
        if theirs is not None:
            self._storages = {"memory": theirs, "disk": theirs}
            if label is not None:
                _remove_keys(theirs, self._name)
        # What the ledger has for the interpreter, and what a disk has reserved for the loop, beside others.
        self._counted: dict[str, int] = {"bytes": 0}
        held = self._forms, self._steps, self._swaps, self._tiers, self._adopted, self.lost
        self._finalizer = weakref.finalize(
            self, _give_up, self._storages, held, self._name, ledger, theirs is not None, self._counted
        )
        self._finalizer.atexit = False

    @property
    def buffer_nbytes(self) -> int:
        """Bytes of the buffers of the loop's own storages."""
        return 0 if self.are_theirs else sum(storage.buffer_nbytes for storage in self._storages.values())

    @property
    def ahead(self) -> tuple[str, ...]:
        """The tiers that are read ahead: the disk; all of them where they are a storage of the user with a buffer."""
        return ("memory", "disk") if self.are_theirs and self._storages["disk"].buffer_nbytes else ("disk",)

    def resize_buffers(self, nbytes: int = 0) -> bool:
        """Have buffers of so many bytes, none for transfers in line; return whether that freed some."""
        before = self.buffer_nbytes
        for storage in self._storages.values():
            if isinstance(storage, Disk) and not self.are_theirs:
                storage.resize(nbytes)
        self._ledger.add(BUFFERS, self.buffer_nbytes - before)
        return self.buffer_nbytes < before

    @property
    def counted(self) -> int:
        """Bytes of what the interpreter takes for the loop that are in the ledger now."""
        return self._counted["bytes"]

    def count(self, nbytes: int) -> None:
        """Have the ledger count so many bytes for the interpreter's share."""
        self._ledger.add(SNAPSHOTS, nbytes - self.counted)
        self._counted["bytes"] = nbytes

    def reserve(self, plan: Plan) -> int:
        """
        Make sure that there is room on the disk for what will be stored, and keep it until `unreserve`.

        Returns:
            The bytes that the disk lacks, after a warning; 0 of a storage of the user, or with other processes.

        Raises:
            StorageError: There is no room here, and there are other processes.
            RankError: There is none in another process.
        """
        nbytes = plan.predicted_disk_bytes
        if self.are_theirs and not isinstance(plan.schedule, (Mixed, StoreAll)):
            nbytes = max(nbytes, plan.snapshots * plan.sizes.stored)  # all restart states go there
        if not nbytes:
            return 0
        storage, failed = self._storage("disk"), True
        if is_alone():
            try:
                if isinstance(storage, Disk):
                    before = storage.reserved_nbytes
                    storage.reserve(1, max(before, storage.nbytes) + nbytes)
                    self._counted["reserved"] = storage.reserved_nbytes - before
            except StorageFullError as error:
                self._warn(f"{error} The time loop stores less than planned, and runs more steps again.")
                return 0 if self.are_theirs else max(1, error.missing)
            except StorageError:
                pass  # each snapshot will see for itself
            return 0
        try:
            storage.reserve(1, storage.nbytes + nbytes)
            failed = False
        finally:
            failed = agree(failed)
        if failed:
            raise RankError("Another rank has no room for the snapshots of a time loop.")
        return 0

    def unreserve(self) -> None:
        """Let the file system have the room that is not used, but for what a user had reserved."""
        disk, more = self._storages.get("disk"), self._counted.pop("reserved", 0)
        if isinstance(disk, Disk) and more:
            with suppress(StorageError):  # there may be no file, which its entries tell
                self._attempt(disk, lambda: disk.reserve(1, max(0, disk.reserved_nbytes - more)), "")

    def put_state(self, step: int, state: list[Any], tier: str, *, vital: bool = False) -> None:
        """Store copies of the leaves of a state; a *vital* one, without which there is no way back, somewhere."""
        if step in self._forms:
            return  # kept for another sweep
        packed = pack(state)
        self._forms[step] = packed.forms
        self._put(step, packed.arrays, tier, "restart")
        key, storage = self._key(step, "restart"), self._storage(tier)
        if vital and not isinstance(storage, Memory) and key not in self.lost:
            # What a thread could not write would be known later, when this state is not at hand any more.
            self._attempt(storage, storage.flush, key)
        if vital and key in self.lost:
            self._forms[step] = packed.forms
            self._put(step, packed.arrays, "spare", "restart")

    def adopt(self, steps: Iterable[int], load: Callable[[int], list[Any] | None]) -> None:
        """Take over restart states that lie elsewhere, and stay there; `load` returns None for one that is lost."""
        self._adopted.update(dict.fromkeys(steps, load))

    def get_state(self, step: int, *, keep: bool) -> list[Any] | None:
        """Return the leaves of a state that was stored, which belong to the caller; None if it is lost."""
        self.error = None
        load = self._adopted.get(step)
        if load is not None and step not in self._forms:
            state = load(step)
            # The journal has given it up for later ones, or it is damaged, of one process perhaps.
            return None if agree(state is None) else state
        if (arrays := self._get(step, "restart", keep=keep)) is None:
            return None
        return unpack(arrays, self._forms[step] if keep else self._forms.pop(step))

    def put_saved(self, step: int, record: TapedStep, tier: str) -> None:
        """Store what a step saved: in memory as it is, and else its arrays."""
        if step in self._steps:
            return  # kept for another sweep
        self._steps[step] = record
        self.lost.pop(self._key(step, "saved"), None)  # what it saved before, on a disk that failed
        if tier != "memory":
            swap = self._swaps[step] = Swap(record)
            self._put(step, swap.take(), tier, "saved")

    def get_saved(self, step: int, *, keep: bool) -> TapedStep | None:
        """Return a taped step whose saved values were stored; None if they are lost."""
        self.error = None
        if (swap := self._swaps.get(step)) is not None:
            if (arrays := self._get(step, "saved", keep=keep)) is None:
                return None
            swap.restore(arrays)
        if keep:
            return self._steps[step]
        self._swaps.pop(step, None)
        return self._steps.pop(step)

    def put_away(self, step: int, record: TapedStep) -> None:
        """Forget the arrays of a step that was loaded and whose stored copy was kept; page again what had been."""
        if step in self._swaps:
            self._swaps[step].forget()
        if record.tape.pager is not None:
            record.tape.pager.put_back()

    def steps(self) -> dict[int, TapedStep]:
        """Return the steps whose saved values are stored, by number."""
        return dict(self._steps)

    def holds(self, step: int, record: TapedStep) -> bool:
        """Return whether it is this record of a step that is stored."""
        return self._steps.get(step) is record

    def nbytes_of(self, step: int) -> int:
        """Return the bytes that a stored step saved, as the ledger counted them; 0 where nobody looked."""
        return self._steps[step].nbytes if step in self._steps else 0

    @property
    def saved_counts(self) -> tuple[int, int]:
        """How many steps there are whose saved values are stored, and how many of these on disk."""
        return len(self._steps), len(self._swaps)

    @property
    def left_behind(self) -> int:
        """Bytes in the ledger of steps whose saved values are on disk."""
        pagers = [self._steps[step].tape.pager for step in self._swaps]
        return sum(pager.overhead.counted for pager in pagers if pager is not None)

    def _forget_step(self, step: int) -> bool:
        """Forget a step whose saved values were stored; return whether they were elsewhere than in memory."""
        if (record := self._steps.pop(step, None)) is not None and record.tape.pager is not None:
            record.tape.pager.close()
        return self._swaps.pop(step, None) is not None

    def drop(self, kept: Snapshot) -> None:
        """Delete a snapshot."""
        step, key = kept.step, self._key(kept.step, kept.kind)
        if kept.kind == "restart" and step in self._adopted and step not in self._forms:
            return
        # Of one step there may be both: what it saved, and the initial state beside.
        if kept.kind == "restart":
            self._forms.pop(step, None)
        elif not self._forget_step(step):
            return
        if key in self.lost:
            return  # it could not be written, and the loop does not know yet
        storage = self._storage(self._tiers.pop(key))
        before = storage.memory_nbytes
        storage.delete(key)
        self._ledger.add(SNAPSHOTS, storage.memory_nbytes - before)

    def prefetch(self, snapshots: Iterable[Snapshot]) -> None:
        """Say which snapshots on disk will be read next."""
        if (disk := self._storages.get("disk")) is not None:
            keys = [self._key(kept.step, kept.kind) for kept in snapshots]
            self._attempt(disk, lambda: disk.prefetch([key for key in keys if key in self._tiers]), "")

    def without_lost(self, position: Position) -> Position:
        """Return a position without the snapshots that were lost since the last one."""
        if not self.lost:
            return position
        left = [kept for kept in position.snapshots if self._key(kept.step, kept.kind) not in self.lost]
        return replace(position, snapshots=tuple(left))

    def _attempt(self, storage: Storage, call: Callable[[], Any], key: str) -> Any:
        """Return what a call of the storage returns, or None after noting what was lost."""
        while True:
            try:
                return call()
            except EntryLostError as error:  # of another entry; the call did nothing, and is made again
                if str(error.key).startswith(f"{self._name}-"):  # whose it is hears of it when it asks for it
                    self._lose(str(error.key), error)
            except StorageError as error:
                storage.check_open()  # else it is a mistake of the caller's, and no failure
                if not key:
                    raise
                is_quota = isinstance(error, StorageFullError) and error.__cause__ is None
                if is_quota and not self.are_theirs and self._relieve():
                    continue
                self._lose(key, error)
                return None

    def _lose(self, key: str, error: StorageError) -> None:
        """
        Forget a snapshot that could not be stored or read.

        Raises:
            StorageError: There are other processes, which have theirs.
        """
        if not is_alone():
            raise error
        _, step, kind = key.rsplit("-", 2)
        self._warn(
            f"The {kind} values of step {step} of a time loop are lost: {error} The loop goes on without them, and "
            "runs more steps again."
        )
        self.lost.setdefault(key, without_frames(error))
        tier = self._tiers.pop(key, None)
        if kind == "restart":
            self._forms.pop(int(step), None)
        else:
            self._forget_step(int(step))
        if tier is not None:
            with suppress(StorageError):
                self._storage(tier).delete(key)

    def _warn(self, text: str) -> None:
        """Warn of a storage, once in a call."""
        if not self._ledger.warned:
            self._ledger.warned = True
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def close(self) -> None:
        """Give up all snapshots."""
        self._finalizer()

    def _storage(self, tier: str) -> Storage:
        storage = self._storages.get(tier)
        if storage is None:
            storage = self._storages[tier] = self._make_disk() if tier == "disk" else Memory()
            self._ledger.add(BUFFERS, storage.buffer_nbytes)
        return storage

    def _put(self, step: int, arrays: list[Any], tier: str, kind: str) -> None:
        storage, key = self._storage(tier), self._key(step, kind)
        before = storage.memory_nbytes
        self._tiers[key] = tier
        self.lost.pop(key, None)
        start = time.perf_counter()
        if (written := self._attempt(storage, lambda: storage.put(key, arrays, kind=kind), key)) is None:
            return
        held = storage.memory_nbytes - before
        self._ledger.add(SNAPSHOTS, held)
        if self._ledger.report is not None and not held and not isinstance(storage, Memory):
            self._ledger.report.wrote(written, start)

    def _get(self, step: int, kind: str, *, keep: bool) -> list[Any] | None:
        key = self._key(step, kind)
        storage, start = self._storage(self._tiers[key]), time.perf_counter()
        before, read = storage.memory_nbytes, storage.bytes_read
        arrays = self._attempt(storage, lambda: storage.get(key) if keep else storage.take(key), key)
        self.error = storage.relative_error if storage.is_lossy(kind) else None
        if not keep:
            self._tiers.pop(key, None)
        self._ledger.add(SNAPSHOTS, storage.memory_nbytes - before)
        if self._ledger.report is not None and not isinstance(storage, Memory):
            self._ledger.report.read(storage.bytes_read - read, start)
        return arrays

    def _key(self, step: int, kind: str) -> str:
        return f"{self._name}-{step}-{kind}"


def _give_up(
    storages: dict[str, Storage], held: tuple[dict[Any, Any], ...], name: str, ledger: Any, theirs: bool,
    counted: dict[str, int],
) -> None:  # fmt: skip
    """Delete all snapshots of a loop; a storage of the user stays open, and keeps what else is in it."""
    ledger.add(SNAPSHOTS, -counted["bytes"])
    counted["bytes"], more = 0, counted.pop("reserved", 0)
    for entries in held:
        entries.clear()
    for storage in {id(storage): storage for storage in storages.values()}.values():
        before, buffers = storage.memory_nbytes, 0 if theirs else storage.buffer_nbytes
        if theirs:
            let_buffer_go(ledger, storage)
            _remove_keys(storage, name)
            if isinstance(storage, Disk) and more:
                with suppress(StorageError):
                    storage.reserve(1, max(0, storage.reserved_nbytes - more))
        else:
            close_or_warn(storage)
        ledger.add(SNAPSHOTS, storage.memory_nbytes - before)
        ledger.add(BUFFERS, -buffers)
    storages.clear()


def _remove_keys(storage: Storage, name: str) -> None:
    """Delete the snapshots of a loop from a storage of the user."""
    for key in storage.keys():
        if isinstance(key, str) and key.startswith(f"{name}-"):
            # An error is on its way already, or the storage is closed: each key gets its chance.
            with suppress(StorageError):
                storage.delete(key)
