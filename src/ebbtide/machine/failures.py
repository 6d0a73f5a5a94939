"""What happens where an operation of a chain fails: what the user has set with `np.errstate`, as NumPy does it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

# Names of NumPy's settings, what their messages say, and what a function of `np.seterrcall` is called with.
_KINDS = (
    ("divide", "divide by zero", 1),
    ("over", "overflow", 2),
    ("under", "underflow", 4),
    ("invalid", "invalid value", 8),
)


def heard() -> tuple[bool, bool, bool, bool]:
    """Return for each kind of failure, as `report` takes them, whether anything is done about it."""
    settings = np.geterr()
    divide, over, under, invalid = [settings[name] != "ignore" for name, _, _ in _KINDS]
    return divide, over, under, invalid


def report(ufunc: str, divide: bool, over: bool, under: bool, invalid: bool) -> None:
    """
    Do what is set for each kind of failure that there was.

    Args:
        ufunc: Name of the operation.
        divide: Whether there was a division by zero.
        over: Whether there was an overflow.
        under: Whether there was an underflow.
        invalid: Whether there was an invalid operation.

    Raises:
        FloatingPointError: The kind is set to "raise".
    """
    settings = np.geterr()
    for (name, text, number), failed in zip(_KINDS, (divide, over, under, invalid), strict=True):
        if not failed:
            continue
        how = settings[name]
        message = f"{text} encountered in {ufunc}"
        if how == "warn":
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        elif how == "raise":
            raise FloatingPointError(message)
        elif how == "print":
            sys.stdout.write(f"Warning: {message}\n")
        elif how in ("call", "log"):
            called: Any = np.geterrcall()
            if how == "call":
                called(text, number)
            else:
                called.write(f"Warning: {message}\n")
