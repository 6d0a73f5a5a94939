"""A run on many ranks: decisions that all of them take together, and failures that all of them hear of."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, final
from zlib import crc32

import numpy as np

from ebbtide.agree import agree
from ebbtide.arrays.context import current, entered
from ebbtide.errors import BudgetError, RankError, ScheduleError
from ebbtide.mpi.library import library
from ebbtide.mpi.waiting import wait
from ebbtide.mpi.watch import Watch

T = TypeVar("T")
_FAILED, _HEARD = 1, 2
_PATIENCE, _NAP = 5.0, 1e-3  # seconds
_WORDS = 64  # of what ranks agree on, more than is ever said


@contextmanager
def distributed(comm: Any, abort: bool = True) -> Iterator[None]:
    """
    Run the block, which all ranks of a communicator enter, as one run.

    In it the time loops of all ranks follow one plan: what they measure differs from rank to rank, and the largest
    counts. Where one rank fails, the other ranks raise an error, too, that says so, when they communicate by Ebbtide or
    leave the block.

    What the operations of Ebbtide on this communicator send to each other they send on a duplicate of it: neither an
    operation after a failure nor the end of MPI meets messages that nobody took. On `COMM_WORLD` these are an error of
    `MPI_Finalize` in MPICH 5, and the process that has it leaves without a word to those that wait for it there.

    Args:
        comm: The communicator of all ranks of the run.
        abort: Whether to end all processes by `comm.Abort` when a rank has failed and others have not heard of it
            within 5 seconds, as they wait in communication that is not Ebbtide's.

    Raises:
        RankError: Another rank failed; says which one, and with what. One may go on with this communicator. On others
            messages of the steps may be under way that nobody took: one goes on with new ones, and does not free
            those, as a communicator that is made later may get the number of one, and its messages.

    Memory:
        Three duplicates of the communicator; where a rank fails, until MPI ends, with the messages under way.
    """
    ranks = Ranks(comm, abort=abort)
    try:
        with entered(ranks=ranks):
            yield
            agree(False)  # all ranks have come to the end
            rounds = agree(ranks.watch.stop())
    except RankError:
        ranks.hear()
        raise
    except BaseException as error:
        ranks.fail(error)
        raise
    ranks.free(rounds)


@final
class Ranks:
    """
    The ranks of a run.

    Args:
        comm: Their communicator.
        abort: Whether a rank that fails ends the others if they do not hear of it.

    Memory:
        Three duplicates of the communicator: for what the ranks agree on, for what operations send, and of `Watch`.
    """

    __slots__ = (
        "_agreed", "_channel", "_given", "_has_heard", "_is_agreeing", "_note", "_outer", "abort", "comm", "rank",
        "size", "watch",
    )  # fmt: skip

    def __init__(self, comm: Any, *, abort: bool) -> None:
        self.comm = comm.Dup()
        self.abort = abort
        self.rank, self.size = int(comm.rank), int(comm.size)
        self._given, self._channel = comm, comm.Dup()
        self.watch = Watch(self.comm)
        self._outer = current().ranks
        self._has_heard = self._is_agreeing = False
        self._agreed = 0  # how often
        # Of a failure: whose, what, after how much, what it refused, who says so.
        self._note: tuple[int, str, int, tuple[int, int, str], int] | None = None

    @property
    def own(self) -> Any:
        """The communicator of this process alone."""
        return library().COMM_SELF

    def channel(self, comm: Any) -> Any:
        """Return what operations on a communicator use: a duplicate of the one of these ranks, or of those around."""
        if comm == self._given:
            return self._channel
        return comm if self._outer is None else self._outer.channel(comm)

    def free(self, rounds: int) -> None:
        """Give the communicators back, on which nothing is under way but for so many rounds of what is watched."""
        self.watch.free(rounds)
        self._channel.Free()
        self.comm.Free()

    def agree(self, value: T) -> T:
        """
        Return the largest of the values of all ranks, numbers or tuples of numbers.

        What each rank says has one length, and with it goes where in the program that is: what ranks say at different
        places would be taken for one thing, or be an error of MPI on some of them.

        Raises:
            ScheduleError: They are not at the same place, or wait for each other, on all ranks.
        """
        single = not isinstance(value, tuple)
        given: Any = (value,) if single else value
        mpi = library()
        place = sys._getframe(2).f_code.co_qualname
        mark = crc32(f"{place} {len(given)}".encode())
        mine, largest = np.zeros(_WORDS), np.empty(_WORDS)
        mine[: 2 + len(given)] = mark, -mark, *given
        self._is_agreeing = True
        try:
            wait([self.comm.Iallreduce(mine, largest, mpi.MAX)], self.comm)
        finally:
            self._is_agreeing = False
        self._agreed += 1
        self.watch.agreed()
        if largest[0] != -largest[1]:
            raise ScheduleError(
                f"The ranks do different things: this one has come to {place}, and another one is elsewhere. In "
                "`distributed` all ranks call the same time loops, in the same order and with the same arguments; what "
                "one of them tells the others would be taken for something else."
            )
        numbers = largest[2 : 2 + len(given)].tolist()
        found: Any = tuple([_like(one, number) for one, number in zip(given, numbers, strict=True)])
        return found[0] if single else found

    def check(self, requests: Sequence[Any] = ()) -> None:
        """
        Raise if another rank has failed; what is under way for these requests stays in memory.

        Where that rank has the outcome of the agreement that this one waits for, all have given their part, and this
        one gets it, too: what they agreed to refuse is the same error on all ranks.
        """
        self.watch.hear()
        if self.watch.stuck:  # again, where the block is left by way of other waits
            self._keep(requests)
            raise ScheduleError(self.watch.stuck)
        self._check_failed(requests)

    def _keep(self, requests: Sequence[Any]) -> None:
        """Let requests, of which MPI may still use the arrays and messages, live as long as the communicator."""
        self.comm.Set_attr(library().Comm.Create_keyval(), requests)

    def _check_failed(self, requests: Sequence[Any] = ()) -> None:
        """Raise if another rank has failed; see `check`."""
        mpi = library()
        if self._note is None and self.comm.Iprobe(mpi.ANY_SOURCE, _FAILED, status := mpi.Status()):
            source = status.Get_source()
            self._note = (*self.comm.recv(None, source, _FAILED), source)
        if self._note is None or (self._is_agreeing and self._note[2] > self._agreed):
            return
        rank, text, _, _, source = self._note
        told = [self.comm.isend(None, source, _HEARD)]
        # Others may have failed at the same time: they wait for a word of each rank, and this one leaves.
        told += [self.comm.isend(self._note[:4], other, _FAILED) for other in self._others() if other != source]
        self._note, self._has_heard = None, True
        self._keep([*requests, *told])
        raise RankError(f"Rank {rank} failed: {text}")

    def hear(self) -> None:
        """Answer a rank that failed, if this one knows of it by what they agreed on and not by a message."""
        start = time.perf_counter()
        with suppress(RankError):
            while not self._has_heard and time.perf_counter() - start < _PATIENCE:
                self._check_failed()
                time.sleep(_NAP)

    def fail(self, error: BaseException) -> None:
        """
        Tell the other ranks that this one failed, and wait until each has heard of it, or failed too.

        Where several refuse a budget at once, as in a step that takes more than the first, each of them raises the
        error with the largest least. Whoever is interrupted meanwhile waits no longer, and ends those that have not.
        """
        mpi = library()
        text = "".join(traceback.format_exception_only(error)).rstrip()  # of one that says nothing as well
        refused = (error.least, error.least_disk, str(error)) if isinstance(error, BudgetError) else (0, 0, "")
        note = (self.comm.rank, text, self._agreed, refused)
        told = [self.comm.isend(note, rank, _FAILED) for rank in self._others()]
        silent = set(self._others())
        if self._note is not None:  # a word of that rank
            silent.discard(self._note[4])
            refused = max(refused, self._note[3])
        with suppress(KeyboardInterrupt):
            refused = max(refused, self._await_words(silent))
        if isinstance(error, BudgetError):
            error.least, error.least_disk, said = refused
            error.args = (said,)
        if silent and self.abort:
            # Nothing else will say it.
            traceback.print_exception(error)
            sys.stderr.flush()
            self.comm.Abort(1)
        mpi.Request.Testall(told)

    def _await_words(self, silent: set[int]) -> tuple[int, int, str]:
        """Wait for a word of each of some ranks, take those out that gave one, and return the most one refused."""
        mpi = library()
        most = (0, 0, "")
        start, status = time.perf_counter(), mpi.Status()
        while silent and time.perf_counter() - start < _PATIENCE:
            for tag in (_HEARD, _FAILED):
                while self.comm.Iprobe(mpi.ANY_SOURCE, tag, status):
                    word = self.comm.recv(None, status.Get_source(), tag)
                    most = max(most, most if word is None else word[3])
                    silent.discard(status.Get_source())
            time.sleep(_NAP)
        return most

    def _others(self) -> list[int]:
        return [rank for rank in range(self.comm.size) if rank != self.comm.rank]


def _like(value: Any, number: float) -> Any:
    """Return a number in the type of a value."""
    return number if isinstance(value, float) else type(value)(number)
