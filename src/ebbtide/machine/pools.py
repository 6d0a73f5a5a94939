"""One thread of BLAS for each thread of ours, while the machine runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, final

from threadpoolctl import ThreadpoolController


@final
class _Pools:
    """The pools of threads of the BLAS libraries of this process: how many of us have limited them, and what was."""

    def __init__(self) -> None:
        # To find the libraries takes a millisecond, to ask and set one a microsecond.
        self._libraries: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
        self._lock = Lock()
        self._inside = 0
        self._before: list[int] = []

    def limit(self) -> None:
        """Limit the pools, if nobody has yet."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = [library.get_num_threads() for library in self._libraries]
                for library in self._libraries:
                    library.set_num_threads(1)

    def restore(self) -> None:
        """Give the pools back their threads, if nobody else has limited them."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for library, count in zip(self._libraries, self._before, strict=True):
                    library.set_num_threads(count)


# The setting is one for the process, so who has changed it is, too.
@cache
def _pools() -> _Pools:
    return _Pools()


# A forked child has the threads of BLAS anew, and of those who had limited them only its own thread.
os.register_at_fork(after_in_child=_pools.cache_clear)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while the body runs, whoever else does so at the same time."""
    pools = _pools()
    pools.limit()
    try:
        yield
    finally:
        pools.restore()
