"""What tells whether files in a directory are those of a storage: their content, and not their names alone."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide.storage.entries import NAME as _ENTRY
from ebbtide.storage.segment import NAME as SEGMENT
from ebbtide.storage.system import open_file

OWNER, LOCK = "owner", "lock"
NEWEST = "newest"
"""A file that says what ought to be there, of who keeps one beside a durable storage."""
PART = re.compile(rf"{OWNER}\.\d+")
"""What a process that is killed while it writes the file leaves of it."""
# One byte in such a file may be damaged: it is known by what is in many places of it.
_OWNERS = (b'"host"', b'"pid"', b'"start"', b'"since"')
_NEWESTS = (b'": [', b"]}")
# No record is longer: that of the newest entries has some hundred bytes for each loop of a call.
_MOST = 1 << 24


def read_record(path: Path) -> Any:
    """Return what is in a small file of JSON; None if it is no such file, or damaged."""
    with suppress(ValueError, RecursionError):
        return json.loads((_read(path) or b"").decode())
    return None


def is_ours(directory: Path) -> bool:
    """Return whether the files in a directory that have the names of a durable storage's are those of one."""
    begin = _read(directory / SEGMENT, len(_ENTRY))
    # What cannot be read will be said when it is opened; and of what can, one byte may be damaged.
    if begin is None or sum(found == wanted for found, wanted in zip(begin, _ENTRY, strict=False)) > len(_ENTRY) - 3:
        return True
    if _tells(directory / OWNER, _OWNERS) or _tells(directory / NEWEST, _NEWESTS):
        return True
    # Without an entry in front the file begins with zeros, or is empty.
    return not begin.strip(b"\0") and not find_foreign(directory, ours=False)


def find_foreign(directory: Path, *, ours: bool | None = None) -> list[str]:
    """
    Return the names of a durable storage's files that somebody else has in a directory.

    Args:
        directory: The directory.
        ours: Whether there are files of a storage, if that is known.
    """
    if is_ours(directory) if ours is None else ours:
        return []
    return [
        name
        for name in (SEGMENT, OWNER, LOCK, NEWEST)
        if os.path.lexists(directory / name) and (name == OWNER or _read(directory / name, 1) not in (b"", b"\0", None))
    ]


def holds_only_ours(directory: Path) -> bool:
    """Return whether a scratch directory holds nothing but what storages make."""
    names = [place.name for place in directory.iterdir()]
    return all(name in (SEGMENT, OWNER, LOCK, NEWEST) or PART.fullmatch(name) for name in names)


def _tells(path: Path, texts: tuple[bytes, ...]) -> bool:
    content = _read(path) or b""
    return content[:1] in (b"{", b"") and any(text in content for text in texts)


def _read(path: Path, most: int = _MOST) -> bytes | None:
    """Return the first bytes of a file, none of what is no regular file; None if it cannot be read."""
    if not path.is_file():  # a pipe might never give any
        return b""
    with suppress(OSError), open_file(path, "r") as file:
        # Memory for what is there, and no more: a budget may have none for it.
        return os.read(file.fileno(), min(most, os.fstat(file.fileno()).st_size))
    return None
