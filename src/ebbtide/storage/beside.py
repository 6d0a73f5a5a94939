"""Checksums that a second thread takes while the first one writes."""

from __future__ import annotations

import _thread
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, final

from numpy.typing import NDArray

from ebbtide.storage.checksum import extend_crc32c, iterate_blocks, view_bytes


@final
class ChecksumsBeside:
    """
    The checksums of arrays, taken by a thread of its own, block by block with the caller.

    The thread takes no block before the caller is at it. So both read it at the same time, and it comes from memory
    once: into the page cache, again, 32 MiB are written at 0.89 to 0.94 of the speed of plain calls; where the thread
    goes ahead, at 0.85 to 0.88.

    Args:
        arrays: C-contiguous arrays, which nobody may change before the checksums are there.
        nbytes: The most bytes of a block.

    Memory:
        The arrays are held by the thread until it ends, at the end of the block of code at the latest.

    Example:
        >>> with ChecksumsBeside([np.frombuffer(b"123456789", dtype=np.uint8)], 5) as checksums:
        ...     checksums.begin_block()
        ...     checksums.begin_block()
        ...     checksums.wait() == [0xE3069283]
        True
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], nbytes: int) -> None:
        # What the caller is at; False: nothing more.
        self._blocks: SimpleQueue[bool] = SimpleQueue()
        self._found: list[int] = []
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        try:
            # `Thread.start` waits until the thread runs, 0.25 ms of the 4.4 that a write of 32 MiB takes.
            _thread.start_new_thread(_take, (arrays, nbytes, self._blocks, self._found, self._ended))
        except RuntimeError:
            # There are too many threads, or the interpreter is about to exit.
            self._found.extend([extend_crc32c(0, view_bytes(array)) for array in arrays])
            self._ended.release()

    def begin_block(self) -> None:
        """Let the thread take the checksum of one more block."""
        self._blocks.put(True)

    def wait(self) -> list[int]:
        """Return the checksums in the order of the arrays, once all blocks were begun."""
        with self._ended:
            return self._found

    def __enter__(self) -> ChecksumsBeside:
        return self

    def __exit__(self, *_: object) -> None:
        """Have the thread end, also of a caller that was interrupted."""
        self._blocks.put(False)


def _take(
    arrays: Sequence[NDArray[Any]], nbytes: int, blocks: SimpleQueue[bool], found: list[int], ended: _thread.LockType
) -> None:
    try:
        for array in arrays:
            checksum = 0
            for block in iterate_blocks(array, nbytes):
                if not blocks.get():
                    return
                checksum = extend_crc32c(checksum, block)
            found.append(checksum)
    finally:
        ended.release()
