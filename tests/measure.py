"""How all tests measure memory: from outside, with tracemalloc."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any


def peak_bytes(call: Callable[[], Any]) -> int:
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
