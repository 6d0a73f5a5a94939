"""The directory in which a call keeps what a later process needs to go on, for all of its loops."""

from __future__ import annotations

import errno
import json
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, final

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.context import Context, current, entered
from ebbtide.budget import parse_directory
from ebbtide.errors import DeterminismError, ResumeError, StorageError, TraceError
from ebbtide.storage import Disk, Storage, compute_crc32c_of_values
from ebbtide.storage.durable import is_held
from ebbtide.storage.failures import StorageLockedError, make_error, unusable_number
from ebbtide.storage.marks import NEWEST, read_record
from ebbtide.storage.places import RANK, find_absolute
from ebbtide.storage.removal import is_of_rank, remove_empty
from ebbtide.storage.segment import NAME as SEGMENT
from ebbtide.storage.system import POSIX, System, open_file, write_fully

# The numbers of errors that say that a directory cannot be made, or what is in it not be written.
_ADVICE = MappingProxyType(
    {
        errno.EMFILE: "Close files, or raise the limit of open ones (ulimit -n).",
        errno.ENFILE: "Close files: the system has no more of them.",
        errno.ENOSPC: "Free space there, or give another one as resume=.",
        errno.EDQUOT: "Free space there, or give another one as resume=.",
    }
)
_VALUE, _KEY = "value of the function", "call/value/0"


@final
class ResumeDirectory:
    """
    The directory of a call that can be resumed: its storage and lock, and how many loops it has met.

    Args:
        path: The directory; it is made at the first use if its parent exists. Of many ranks each has a directory in it.
        system: How to reach the operating system; for tests.

    Raises:
        TypeError: The path is no path.
        StorageError: It is empty, or has a zero byte.

    Memory:
        That of `Disk` without a buffer.
    """

    __slots__ = (
        "_closed", "_count", "_disk", "_finalizer", "_newest", "_system", "_whole",
        "changed", "is_spoiled", "lost", "path", "warned",
    )  # fmt: skip

    def __init__(self, path: str | Path, *, system: System = POSIX) -> None:
        named = parse_directory(path, "resume=", "a run that is not resumed")
        ranks = current().ranks
        self._whole = find_absolute(named)
        self.path = self._whole if ranks is None else self._whole / f"{RANK}{ranks.rank}"
        self._system = system
        self._disk: Disk | None = None
        self._count = 0
        self._closed = False
        self._finalizer: Any = None
        # Of each kind of entry the newest one that was stored: its step and its generation.
        self._newest: dict[str, tuple[int, int]] = {}
        self.changed = set[str]()
        """Names by which steps of the loops so far found what they changed: a resumed run does not change it again."""
        self.lost = set[str]()
        """Those of them under which a resumed run does not find what was left there; see `Changes`."""
        self.warned = False
        """Whether the user was told that something could not be written: once in a call."""
        self.is_spoiled = False
        """Whether what is there is of runs that disagree."""

    @property
    def storage(self) -> Disk:
        """
        The open storage.

        Raises:
            StorageLockedError: Another process uses the directory.
            StorageError: The directory cannot be used, or was closed.
            ResumeError: What is there was left by one process, and this is one of many ranks, or the reverse.
        """
        if self._closed:
            raise StorageError(f"The directory {self.path} was closed, and its run is over. Begin another one.")
        if self._disk is None:
            with suppress(OSError):  # to open it will say what is wrong
                self._check_kind()
            if self.path != self._whole:
                self._make_whole()
            try:
                self._disk = Disk(self.path, durable=True, system=self._system)
            except StorageError as error:
                self._remove_whole()
                self._explain(error)
                raise
            with suppress(ValueError, TypeError, AttributeError, OverflowError):
                found = read_record(self.path / NEWEST)
                self._newest = {kind: (int(step), int(generation)) for kind, (step, generation) in found.items()}
        return self._disk

    def _make_whole(self) -> None:
        """Make the directory that holds those of all ranks."""
        try:
            self._whole.mkdir(exist_ok=True)
        except OSError as cause:
            raise _unusable(self._whole, cause) from cause

    def _explain(self, error: StorageError) -> None:
        """Raise in the place of an error of the storage if it is about the directory, which was given as `resume=`."""
        if isinstance(error, StorageLockedError) and is_held(self.path):
            raise StorageLockedError(
                f"The directory {self.path} is used by another time loop or call of this process ({error.pid}), and it "
                "holds one run at a time. Give each loop another directory, or one for all loops of a gradient as "
                "grad(f, resume=).",
                error.host,
                error.pid,
            ) from None
        cause = error.__cause__
        if isinstance(cause, OSError):
            raise _unusable(self._whole, cause) from cause

    def _remove_whole(self) -> None:
        """Remove the directory that holds those of all ranks, if there is none left in it."""
        if self.path != self._whole:
            with suppress(OSError):
                remove_empty(self._whole)

    def _check_kind(self) -> None:
        """Refuse a directory of one process for many ranks, and the reverse."""
        alone = self.path == self._whole
        if any(map(is_of_rank, self._whole.glob(f"{RANK}*"))) if alone else (self._whole / SEGMENT).exists():
            one, many = "one process alone", "many ranks"
            raise ResumeError(
                f"The directory {self._whole} holds the unfinished run of {many if alone else one}, and this is one of "
                f"{one if alone else many}. Start as many as before, or remove what is there with "
                f"`ebbtide clean {self._whole}`."
            )

    @property
    def is_used(self) -> bool:
        """Whether a run has written there, this one or an earlier one; to ask makes nothing."""
        try:
            self._check_kind()
            return self._disk is not None or (self.path / SEGMENT).exists()
        except OSError:
            # To open it will say what is wrong.
            return True

    def note(self, kind: str, step: int, key: str | None) -> None:
        """
        Note the newest entry of a kind, so that one that is not found again is missed.

        What is noted is as old as what was stored, or older, whenever the process is killed: it never tells too much.

        Args:
            kind: The kind.
            step: The step of the entry.
            key: Its key; None where none of this kind is to be missed any more.
        """
        if key is not None:
            self._newest[kind] = step, self.storage.generation(key)
        elif self._newest.pop(kind, None) is None:
            return
        path, lock = self.path / NEWEST, None if self._disk is None else self._disk.lock
        if lock is None or not lock.is_valid():
            return  # the directory is another run's
        with suppress(OSError):
            if path.exists() and not path.is_file():
                return  # who writes to a pipe waits for somebody who reads
            with open_file(path, "w", 0o666) as file:
                write_fully(self._system, file.fileno(), json.dumps(self._newest).encode(), 0)

    def missing(self, kind: str, keys: Sequence[str]) -> int | None:
        """Return the step of the newest entry of a kind if it is not among the keys that are there."""
        step, generation = self._newest.get(kind, (0, 0))
        return step if generation > max(map(self.storage.generation, keys), default=0) else None

    def next_loop(self) -> int:
        """Return the place of the next loop in the call, from 0 on."""
        self._count += 1
        return self._count - 1

    def check_value(self, value: Any) -> None:
        """
        Keep the value of the function whose gradient is taken, or compare it with that of the earlier run.

        What is around the loops runs again; it may be another one, and the value shows that before the reverse sweep.

        Args:
            value: A number or an array without axes.

        Raises:
            ResumeError: It is another one, in a bit that means something.
        """
        if self._disk is None:
            return  # there is no loop
        now, then = np.asarray(value), None
        if _KEY in self._disk.keys():
            try:
                then = self._disk.get(_KEY)[0]
            except StorageError as error:
                self._disk.delete(_KEY)
                warnings.warn(f"The {_VALUE} is damaged and not compared: {error}", RuntimeWarning, stacklevel=4)
        if agree(then is None) or then is None:  # a rank whose steps disagree begins anew, and all with it
            with suppress(StorageError):  # where there is no room, it is not compared
                self._disk.replace(_KEY, [now], kind=_VALUE)
        elif (sums := [(x.dtype, x.shape, compute_crc32c_of_values(x)) for x in (now, then)])[0] != sums[1]:
            texts = [repr(now[()]), repr(then[()])]
            if texts[0] == texts[1]:  # two that are no numbers
                texts = [f"{text} with the checksum {crc:08x}" for text, (*_, crc) in zip(texts, sums, strict=True)]
            self.refuse("The call", {_VALUE: texts[0]}, {_VALUE: texts[1]})

    def refuse(self, owner: str, now: Mapping[str, str], then: Mapping[str, str]) -> NoReturn:
        """
        Say that what is there belongs to another run.

        Args:
            owner: What differs: a loop, or the call.
            now: Texts by name, of this call.
            then: Those of the run that is there.

        Raises:
            ResumeError: Always; shows what is not the same.
        """
        names = [*{**now, **then}]
        lines = [
            f"  {name}: {now.get(name, 'nothing')} now, {then.get(name, 'nothing')} in {self.path}"
            for name in [name for name in names if now.get(name) != then.get(name)] or names
        ]
        first = f"The directory {self.path} holds the unfinished run of another call. {owner} has"
        last = f"Make the same call as before, or remove what is there with `ebbtide clean {self.path}`."
        raise ResumeError("\n".join([first, *lines, last]))

    def refuse_step(self, now: int, then: int) -> NoReturn:
        """
        Say that the first step of a loop had another result in the run that is there.

        Args:
            now: The checksum of its result.
            then: That of the run that is there, which is left as it is to the right call.

        Raises:
            DeterminismError: Always.
        """
        self.close()
        raise DeterminismError(
            f"Step 0 gave another result when it was run again: with the checksum {now:08x} now, and {then:08x} in "
            f"{self.path}. A step depends on its state, its input and static values only, and something else has "
            "changed that it computes with, as a file that it reads, a variable of the environment or the state of a "
            "generator. Put that right and make the same call again, or remove what is there with "
            f"`ebbtide clean {self.path}`. verify=False switches this check off."
        )

    def spoil(self, error: BaseException) -> None:
        """
        Have what is there go when the directory is closed: nobody can tell which of two runs that disagree was right.

        Args:
            error: The error of the call; one that says which steps do says then what becomes of the directory, too.
        """
        if self._disk is not None and not self.is_spoiled:
            self.is_spoiled = True
            if isinstance(error, DeterminismError):
                error.args = (f"{error} What such runs kept in {self.path} is removed: the next call begins anew.",)

    def close(self) -> None:
        """Give the directory up and leave what is in it for a later process; may be called again."""
        is_first, self._closed = not self._closed, True
        if is_first and self.is_spoiled:
            self._remove()
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left of it, or will be."""
        return self._closed or self._finalizer is not None

    def finish(self, user: object = None) -> None:
        """
        Remove what the completed run has left, all at once; one warning if it cannot be removed.

        Args:
            user: Who may still want it, for another reverse sweep: it is removed when that is gone.
        """
        agree(False)  # all ranks have come here: what one of them has to begin again with is of no use to it alone
        if user is None:
            self._remove()
            agree(False)  # and none goes on, to what it keeps by itself, while another one could be killed before that
        elif self._finalizer is None:
            self._finalizer = weakref.finalize(user, self._remove, os.getpid())

    def _remove(self, process: int | None = None) -> None:
        if process not in (None, os.getpid()):
            return  # a forked child, and it is its parent's
        disk = self._disk
        if disk is None or disk.lock is None:
            self._closed = True
            return
        try:
            # While the lock is held, and the lock last: from then on another process may use the directory. Killed
            # before this, the run is resumed at its end; after it, nothing is left.
            is_ours = disk.lock.erase((NEWEST, SEGMENT))
            with suppress(StorageError):  # what could not be written there is of no use any more
                self.close()
            if is_ours:
                remove_empty(self.path)
                self._remove_whole()
        except OSError as error:
            self.close()
            left = ", ".join(sorted(part.name for part in self.path.glob("*"))) or "the directory"
            reason = "The run is no use to another one" if self.is_spoiled else "The run is complete"
            warnings.warn(
                f"{reason}, but of what it kept in {self.path} there is still {left}: {error}. Remove it "
                f"with `ebbtide clean {self.path}`.",
                RuntimeWarning,
                stacklevel=3,
            )
        except BaseException:  # an interrupt: what is left there is for the next run
            self.close()
            raise


def _unusable(path: Path, cause: OSError) -> StorageError:
    """Return the error for a directory that cannot be made or written."""
    number = unusable_number(cause)
    return make_error(
        f"Cannot use the directory {path} to resume from: {os.strerror(number)}. "
        f"{_ADVICE.get(number, 'Give one that may be written, or made in one that exists, as resume=.')}",
        number,
    )


def refuse_inner(resume: str | Path | None, context: Context) -> None:
    """
    Refuse a directory for a loop that is run again and again.

    Raises:
        TraceError: The loop is within a time step or a checkpointed function.
    """
    if resume is not None and context.capture is not None:
        raise TraceError(
            "A time loop within a time step or a checkpointed function runs several times, and was given the one "
            f"directory {resume} for all. Give resume= to the outer loop or to the gradient, which run once."
        )


def refuse_lossy(storage: Storage | None) -> None:
    """
    Refuse a storage from which a loop does not get back what it gave.

    A run that goes on has its states from the journal, and stores others: it would end with other bits.

    Raises:
        ResumeError: The storage loses digits.
    """
    for kind in ("restart", "saved"):
        if storage is not None and storage.is_lossy(kind):
            raise ResumeError(
                f"A time loop with resume= was given a {type(storage).__name__} storage, whose compression of "
                f"{kind!r} entries loses digits: after a kill the gradient would have other bits than without. Give "
                "compression=None or 'lossless', or leave resume= out."
            )


@contextmanager
def resumable(path: str | Path | None) -> Iterator[ResumeDirectory | None]:
    """Let the loops of a call keep their journals in a directory, which is removed when the call has succeeded."""
    if path is None:
        yield None
        return
    directory = ResumeDirectory(path)
    try:
        with entered(resume=directory):
            yield directory
        directory.finish()
    except BaseException:
        directory.close()
        raise
