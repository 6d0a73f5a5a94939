"""Bounds on memory for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide.budget import format_bytes, parse_bytes
from ebbtide.profiling.peak import Peak, measured_peak


@contextmanager
def assert_peak_below(most: int | str) -> Iterator[Peak]:
    """
    Check that a block allocates less than so many bytes at a time, by `tracemalloc`.

    Args:
        most: Bytes, or a text such as "10 MiB", beyond what is allocated when the block begins.

    Yields:
        The peak, whose `nbytes` are known after the block.

    Raises:
        AssertionError: The peak was as large or larger. An error of the block itself comes out as it is.

    Memory:
        That of `tracemalloc`. Blocks may be in each other, and in a profile; each has its own peak. What
        dies in reference cycles counts until the collector comes.

    Example:
        >>> import numpy as np
        >>> with assert_peak_below("1 MiB") as peak:
        ...     _ = np.ones(1000)
        >>> 8000 <= peak.nbytes < 10_000
        True
    """
    limit = parse_bytes(most)
    with measured_peak() as peak:
        yield peak
    if peak.nbytes >= limit:
        raise AssertionError(
            f"The block took {peak.nbytes} bytes ({format_bytes(peak.nbytes)}) at its peak, and has to stay below "
            f"{limit} bytes ({format_bytes(limit)})."
        )
