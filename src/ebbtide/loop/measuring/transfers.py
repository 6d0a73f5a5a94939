"""What it takes to bring one state of a time loop to the disk and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.agree import agree, own_communicator
from ebbtide.errors import StorageError
from ebbtide.loop.measuring.timing import usual_time
from ebbtide.loop.values.state import bytes_of, pack
from ebbtide.quota import Quota
from ebbtide.schedules import Costs
from ebbtide.storage import Disk
from ebbtide.storage.failures import close_or_warn
from ebbtide.storage.transfer import LARGE, TROUBLE
from ebbtide.storage.worker import has_waited, read_clocks


def with_transfers(
    costs: Costs, values: list[Any], directory: Path | None, quota: Quota, *, is_busy: bool = False
) -> Costs:
    """
    Return costs with those of one state's way to a directory and back; *is_busy* as `First` has it.

    What no thread of the storage does is the copy of a state into its buffer, and to give back its place in the file. A
    large state that went to the page cache without waiting for the disk is one that the storage writes at once, and
    nothing of its write is hidden; nor is anything where no processor is left for that.
    """
    packed, rounds = pack(values), list[tuple[list[float], bool]]()
    disk = Disk(directory, limit=quota, comm=own_communicator())
    try:
        with _failing_later():
            disk.reserve(0, 0)  # the file is made once, and not for each state
            rounds = [_time_transfers(disk, packed.arrays) for _ in range(2)]
    finally:
        close_or_warn(disk)
    if agree(not rounds):
        return costs
    parts = zip(*(times for times, _ in rounds), strict=True)
    write, read, delete, copying = [usual_time(list(times)) for times in parts]
    prompt = not rounds[-1][1]
    if prompt and (is_busy or bytes_of(values) >= LARGE):
        copying = write
    back = read + delete
    return replace(
        costs, write=write, read=back, write_exposed=min(copying, write),
        read_exposed=back if prompt and is_busy else delete, prompt=prompt,
    )  # fmt: skip


@contextmanager
def _failing_later() -> Iterator[None]:
    """
    Pass over a disk that is full or broken, and cannot be timed.

    The plan asks for its room, and each snapshot sees for itself whether it can be stored, as in a loop whose costs are
    given, and which measures nothing. A wrong directory is told at once.
    """
    try:
        yield
    except StorageError as error:
        if error.errno not in TROUBLE:
            raise


def _time_transfers(disk: Disk, arrays: list[Any]) -> tuple[list[float], bool]:
    """
    Return the seconds of a write, a read, the return of the place and a copy, and whether the write waited.

    One alone is not enough: the system took 0.6 ms to take a place of 3 MB back, or 9 where others used the disk.
    """
    clocks = read_clocks()
    times = [clocks[0]]
    disk.put("measure", arrays, kind="a state, to measure the disk")
    waited = has_waited(clocks, read_clocks())
    times.append(time.perf_counter())
    found = disk.get("measure")
    times.append(time.perf_counter())
    disk.delete("measure")
    times.append(time.perf_counter())
    # Into memory that is there, as the buffers are.
    for copy, array in zip(found, arrays, strict=True):
        np.copyto(copy, array)
    times.append(time.perf_counter())
    return np.diff(times).tolist(), waited
