"""How the tests of memory measure: from outside, with tracemalloc and the collector."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ebbtide

HOME = str(Path(ebbtide.__file__).parent)


def measure_peak(call: Callable[[], Any]) -> int:
    """Return the peak of memory during a call less what was allocated at its start."""
    gc.collect()  # the interpreter keeps some thousand freed tuples for the next to come, unseen by tracemalloc
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def is_ours(thing: Any) -> bool:
    """Return whether an object is an instance, a function, a frame or a traceback of the library."""
    if isinstance(thing, types.FrameType):
        return thing.f_code.co_filename.startswith(HOME)
    if isinstance(thing, types.TracebackType):
        return thing.tb_frame.f_code.co_filename.startswith(HOME)
    modules = (type(thing).__module__, getattr(thing, "__module__", None))
    return any(isinstance(m, str) and m.split(".")[0] == "ebbtide" for m in modules)


@contextmanager
def collector_off() -> Iterator[list[str]]:
    """Switch the collector off; the list says after the block which objects of ours it would have had to collect."""
    found: list[str] = []
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [f"{type(thing).__name__}: {thing!r:.80}" for thing in gc.garbage if is_ours(thing)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_on:
            gc.enable()


def resident() -> int:
    """Return the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@pytest.fixture
def peak_of() -> Callable[[Callable[[], Any]], int]:
    """Give tests the measure of a peak."""
    return measure_peak


@pytest.fixture
def no_garbage() -> Callable[[], Any]:
    """Give tests the collector that is switched off."""
    return collector_off


@pytest.fixture
def resident_bytes() -> Callable[[], int]:
    """Give tests the resident bytes of the process."""
    if not sys.platform.startswith("linux"):
        pytest.skip("resident memory is read from /proc")
    return resident
