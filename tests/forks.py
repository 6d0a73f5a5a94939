"""Runs in processes of their own, which may be killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
"""A user without rights."""


def run_forked(call: Callable[[], bytes], name: str = "") -> tuple[int, bytes]:
    """
    Run a function in a forked process.

    Args:
        call: The function.
        name: What the parent's terminal is told with the error that it raises.

    Returns:
        (the status of `os.waitpid`, what the function returned; as much as it wrote of that where it was killed).
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, call())
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the parent tells it
            os.write(2, f"{name} {error!r}\n".encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        found = answer.read()
    return os.waitpid(child, 0)[1], found


def run_as_nobody(directory: Path, call: Callable[[], int]) -> int:
    """Run a function as `NOBODY` in a directory, what is above of which may be closed; return what it returns."""
    child = os.fork()
    if child == 0:
        try:
            os.chdir(directory)
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os._exit(call())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
