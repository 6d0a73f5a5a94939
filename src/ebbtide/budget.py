"""Budgets: how many bytes a gradient may take, in memory and on disk."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from ebbtide.errors import StorageError

NO_NAME = "names no directory, as where an environment variable is empty: as a path it would be the working directory"
"""What is wrong with an empty name."""
# What a file can have, and no machine; numbers beyond 10**308 are no floats.
_MOST = 2**63 - 1
_UNITS = MappingProxyType({
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
})  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_bytes(quantity: int | str) -> int:
    """
    Return a number of bytes.

    Args:
        quantity: A number of bytes, or a text such as `"64 MiB"` or `"2GB"`; IEC units are
            powers of 1024, SI units powers of 1000.

    Returns:
        The number of bytes, rounded down.

    Raises:
        ValueError: The text is not a number, alone or followed by a unit, or the number is negative, no int, or larger
            than all files.

    Example:
        >>> parse_bytes("64 MiB"), parse_bytes("1.5kB"), parse_bytes(12)
        (67108864, 1500, 12)
    """
    if isinstance(quantity, str):
        match = _QUANTITY.fullmatch(quantity)
        unit = _UNITS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise ValueError(
                f"Cannot read {quantity!r} as a number of bytes. Write a number and a unit out of "
                "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, for example '64 MiB'."
            )
        number = match.group(1)
        # First as a float: Python makes no number of thousands of digits.
        count = math.floor(Fraction(number) * unit) if float(number) < 2.0 * _MOST else _MOST + 1
        return _checked(count)
    # A bool is an int in Python, but True bytes is a mistake in every case; `20 * np.prod(u.shape)` is an int of NumPy.
    if isinstance(quantity, bool) or not isinstance(quantity, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"A number of bytes is an int or a text such as '64 MiB', not {quantity!r}.")
    if quantity < 0:
        raise ValueError(f"A number of bytes cannot be negative: {quantity}.")
    return _checked(int(quantity))


def _checked(count: int) -> int:
    """Return a number of bytes that there may be."""
    if count > _MOST:
        raise ValueError("A number of bytes is at most 2**63 - 1, and this one is larger. Give what there is.")
    return count


def parse_directory(path: Any, name: str, none: str) -> Path:
    """
    Return the path of a directory that the user named.

    Args:
        path: The name.
        name: As what it was given, for the message.
        none: For what None is there.

    Raises:
        TypeError: It is neither text nor a path.
        StorageError: It is empty, or has a zero byte.

    Example:
        >>> parse_directory("/tmp", "directory=", "temporary files").name
        'tmp'
    """
    kind, is_path = type(path).__name__, hasattr(path, "__fspath__")
    text = cast("object", path.__fspath__() if is_path else path)
    if not isinstance(text, str):
        raise TypeError(
            f"{name}{path!r} is a {kind} and names no directory. Give a str or a pathlib.Path, or None for {none}."
        )
    if not text:
        raise StorageError(f"{name}'' {NO_NAME}. Give the name of a directory, or None for {none}.")
    if "\0" in text:
        raise StorageError(f"{name}{text!r} is no directory: its name has a zero byte. Give another one.")
    return Path(text)


def format_bytes(count: int) -> str:
    """
    Return a number of bytes as a text with an IEC unit.

    Example:
        >>> format_bytes(323208), format_bytes(67108864)
        ('315.6 KiB', '64.0 MiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """
    The bytes that a gradient may take.

    Args:
        memory: Bytes of memory: everything that is kept for the reverse sweep, cotangents,
            snapshots and I/O buffers. It bounds the peak of the call less the peak of the
            function alone. An int or a text such as `"64 MiB"`.
        disk: Bytes of local disk for snapshots and paged saved values; 0 forbids disk.
        directory: Where to put files, the system's directory for temporary files if None.

    Raises:
        ValueError: *memory* or *disk* is no number of bytes.
        TypeError: *directory* is neither text nor a path.
        StorageError: *directory* is empty, or has a zero byte.

    Memory:
        Holds three numbers.

    Example:
        >>> Budget(memory="64 MiB", disk="2 GiB").memory
        67108864
    """

    memory: int
    disk: int
    directory: Path | None

    def __init__(self, memory: int | str, disk: int | str = 0, directory: str | Path | None = None) -> None:
        object.__setattr__(self, "memory", parse_bytes(memory))
        object.__setattr__(self, "disk", parse_bytes(disk))
        named = None if directory is None else parse_directory(directory, "directory=", "that of temporary files")
        object.__setattr__(self, "directory", named)

    def __str__(self) -> str:
        return f"{format_bytes(self.memory)} of memory and {format_bytes(self.disk)} of disk"


def check_budget(budget: object) -> None:
    """
    Do nothing for a budget or None.

    Raises:
        TypeError: It is neither.
    """
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget= takes an ebbtide.Budget, not {budget!r}. Write Budget(memory='64 MiB').")
