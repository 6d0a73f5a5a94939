"""What the tests of storages share."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

import ebbtide
from ebbtide.storage.system import POSIX

SOURCE = str(Path(ebbtide.__path__[0]).parent)


class Gate:
    """A disk that stands still until it is opened, and notes at which offsets headers and large blocks are moved."""

    def __init__(self):
        self.open = threading.Event()
        self.reached = threading.Event()
        self.writes: list[int] = []
        self.reads: list[int] = []
        self.system = replace(POSIX, pwrite=self.pwrite, preadv=self.preadv)

    def pwrite(self, descriptor, block, offset):
        """Wait, then write; the caller's own thread does not wait."""
        if threading.current_thread().name == "ebbtide-storage":
            self.reached.set()
            self.open.wait(20)
        if memoryview(block).nbytes >= 2048:
            self.writes.append(offset)
        return os.pwrite(descriptor, block, offset)

    def preadv(self, descriptor, buffers, offset):
        """Read."""
        if sum(memoryview(buffer).nbytes for buffer in buffers) >= 2048:
            self.reads.append(offset)
        return os.preadv(descriptor, buffers, offset)


def state(key, size=100_000):
    """A state that is told by its key."""
    return np.full(size, float(key))


def find_files(directory):
    """All files below a directory."""
    return [path for path in Path(directory).rglob("*") if path.is_file()]


def count_descriptors():
    """The number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def descriptors_left(number):
    """Let this process open no more than so many files at a time meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    fill = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while fill[-1] < top:  # each takes the lowest number that is free
            fill.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fill[-1] + 1 + number, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in fill:
            os.close(descriptor)


def storage_threads():
    """The threads of storages in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "ebbtide-storage"]


def measure_peak(use):
    """The bytes that a call allocates at its peak."""
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def blocks(path):
    """The bytes of disk that a file takes."""
    return Path(path).stat().st_blocks * 512


def start_python(program, *arguments):
    """A process that runs a program with this library."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(program, *arguments):
    """Run a program with this library to its end: (exit status, stdout, stderr)."""
    process = start_python(program, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def takes(path, nbytes):
    """Whether a file takes so many bytes of disk, the file system's own list of its pieces apart."""
    return nbytes <= blocks(path) <= nbytes + 4 * 4096
