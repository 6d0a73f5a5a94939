"""What tells whether files in a directory are those of a storage: their content, and not their names alone."""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide.storage.entries import NAME as _ENTRY
from ebbtide.storage.segment import NAME as SEGMENT
from ebbtide.storage.system import open_file

OWNER, LOCK = "owner", "lock"
NEWEST = "newest"
"""A file that says what ought to be there, of who keeps one beside a durable storage."""
_SIGN = "-ebbtide"
_PART = re.compile(rf"{OWNER}\.\d+({_SIGN})?")
_PART_BEGIN = b'{"host": "'
# One byte in such a file may be damaged: it is known by what is in many places of it.
_OWNERS = (b'"host"', b'"pid"', b'"start"', b'"since"')
_NEWESTS = (b'": [', b"]}")
# Each kind in it has the name of a loop.
_NEWEST_BEGIN, _NEWEST_MARK = b'{"loop-', b'/": ['
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
    if begin is None or _is_entry(begin):
        return True
    if _tells(directory / OWNER, _OWNERS) or _tells(directory / NEWEST, _NEWESTS):
        return True
    # Without entries there is nothing to be lost but the user's: two empty files, which were made one after the other.
    is_lock_alone = _is_empty(directory / LOCK) and not os.path.lexists(directory / OWNER)
    if has_only_name(directory):
        return True
    if not is_lock_alone or (os.path.lexists(directory / NEWEST) and not _is_empty(directory / NEWEST)):
        return False
    return bool(find_parts(directory)) or ((directory / SEGMENT).is_file() and not begin.strip(b"\0"))


def find_foreign(directory: Path) -> list[str]:
    """Return the names of a durable storage's files that others have in a directory; an empty lock may be used."""
    if is_ours(directory):
        return []
    names = [name for name in (SEGMENT, OWNER, LOCK, NEWEST) if os.path.lexists(directory / name)]
    return [name for name in names if name != LOCK or not _is_empty(directory / name)]


def find_parts(directory: Path) -> list[Path]:
    """Return what seems to be the beginning of an owner's name, by name and content; nothing may be of it yet."""
    return [
        place
        for place in list(directory.iterdir())
        if _PART.fullmatch(place.name)
        and place.is_file()
        and _PART_BEGIN.startswith(_read(place, len(_PART_BEGIN)) or b"")
    ]


def sign_of(directory: Path) -> Path:
    """Return an empty file by whose name alone a directory is known while this process makes its lock."""
    return directory / f"{OWNER}.{os.getpid()}{_SIGN}"


def has_only_name(directory: Path) -> bool:
    """Return whether all that tells of a storage is the name of its owner, the first to come and the last to go."""
    parts = () if os.path.lexists(directory / LOCK) else find_parts(directory)
    return any(part.name.endswith(_SIGN) or _tells(part, _OWNERS) for part in parts)


def holds_only_ours(directory: Path) -> bool:
    """Return whether a directory holds nothing but what a durable storage makes."""
    places = {place.name for place in directory.iterdir()} - {SEGMENT, OWNER, LOCK, NEWEST}
    return places <= {part.name for part in find_parts(directory)} and not find_foreign(directory)


def holds_only_entries(directory: Path) -> bool:
    """Return whether a scratch directory holds nothing but what storages make."""
    return {place.name for place in directory.iterdir()} <= {SEGMENT} and is_segment(directory / SEGMENT)


def is_special(path: Path) -> bool:
    """Return whether there is something that is neither a regular file nor a link to one: a pipe, a directory."""
    with suppress(OSError):
        return not stat.S_ISREG(path.stat().st_mode)
    return False


def is_segment(path: Path) -> bool:
    """Return whether a file is one of entries, as far as its beginning tells: zeros, or nothing, if there is none."""
    if path.is_symlink() or is_special(path):
        return False
    begin = _read(path, len(_ENTRY))
    return begin is None or not begin.strip(b"\0") or _is_entry(begin)


def is_written(path: Path) -> bool:
    """
    Return whether a file named `owner`, `newest` or `lock`, in a directory of a storage, is as a storage may leave it.

    It is empty, or has what is written there, of which one byte may be damaged or the end be missing; or is gone.
    """
    if path.is_symlink() or is_special(path):
        return False
    if path.name == LOCK:
        return not os.path.lexists(path) or _is_empty(path)
    content = _read(path) or b""
    begin, is_marked = _PART_BEGIN, sum(text in content for text in _OWNERS) > len(_OWNERS) - 2
    if path.name == NEWEST:
        begin, is_marked = _NEWEST_BEGIN, _NEWEST_MARK in content or content == b"{}"
    return not content.strip(b"\0") or begin.startswith(content[: len(begin)]) or is_marked


def _is_entry(begin: bytes) -> bool:
    # What cannot be read will be said when it is opened; and of what can, one byte may be damaged.
    return sum(found == wanted for found, wanted in zip(begin, _ENTRY, strict=False)) > len(_ENTRY) - 3


def _is_empty(path: Path) -> bool:
    # Without opening it: this process may hold the lock, and would give it up.
    return path.is_file() and not path.stat().st_size


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
