"""How the tests of memory look: from outside, with the collector and the system."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ebbtide

HOME = str(Path(ebbtide.__file__).parent)


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
def no_garbage() -> Callable[[], Any]:
    """Give tests the collector that is switched off."""
    return collector_off


@pytest.fixture
def resident_bytes() -> Callable[[], int]:
    """Give tests the resident bytes of the process."""
    if not sys.platform.startswith("linux"):
        pytest.skip("resident memory is read from /proc")
    return resident
