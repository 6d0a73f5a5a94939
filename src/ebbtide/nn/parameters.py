"""Parameters in a file: one NumPy archive whose entries have the names of the leaves."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import flatten, paths_of, unflatten
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.traced import TracedArray

# What the one leaf of a container that is an array itself is called.
_ALONE = "parameters"


def save_parameters(path: str | os.PathLike[str], tree: Any) -> None:
    """
    Write the leaves of a container into one file, which `load_parameters` and `np.load` read.

    Args:
        path: The file, or a link to it; what is there stays whole until the new one is on the disk, and is replaced
            then.
        tree: A container of arrays and numbers.

    Raises:
        TypeError: A leaf is traced, or is no array of numbers and no number.
        TraceError: A leaf is a masked array, whose mask would be lost.
        OSError: The file cannot be written.

    Memory:
        A copy of 16 MiB of a leaf, or of all of it where it is smaller: so much NumPy writes at a time.
    """
    leaves, structure = flatten(tree)
    entries = dict(zip(_names(structure), map(_entry, leaves, paths_of(structure)), strict=True))
    target = Path(path).resolve()
    # With the permissions of any new file: a temporary one would be for its owner alone.
    part = target.with_name(f"{target.name}.{uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            np.savez(file, allow_pickle=False, **entries)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def load_parameters(path: str | os.PathLike[str], like: Any) -> Any:
    """
    Return what `save_parameters` wrote, in a container of the form of another one.

    Args:
        path: The file.
        like: A container whose leaves have the names, shapes and dtypes of those in the file; its values do not matter.

    Returns:
        A container with new arrays.

    Raises:
        ValueError: The file has other names, shapes or dtypes, with all of the differences; or it is no archive, or
            damaged.
        OSError: The file cannot be read.

    Memory:
        The new arrays.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save_parameters(f"{directory}/net.npz", {"w": np.eye(2)})
        ...     load_parameters(f"{directory}/net.npz", like={"w": np.zeros((2, 2))})
        {'w': array([[1., 0.],
               [0., 1.]])}
    """
    leaves, structure = flatten(like)
    wanted = dict(zip(_names(structure), map(type_of, leaves), strict=True))
    found = _entries_of(path)
    wrong = [f"{name} is in the file only" for name in found if name not in wanted]
    for name, kind in wanted.items():
        if name not in found:
            wrong.append(f"{name}, of type {kind}, is not in the file")
        elif type_of(found[name]) != kind:
            wrong.append(f"{name} is of type {type_of(found[name])} in the file, and of type {kind} here")
    if wrong:
        raise ValueError(f"{os.fspath(path)} does not have these parameters: {'; '.join(wrong)}.")
    return unflatten(structure, [found[name] for name in wanted])


def _entries_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        # Opened here: NumPy leaves a file open in which it finds no archive.
        with Path(path).open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is one array")
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:  # RuntimeError: encrypted
        raise ValueError(
            f"{os.fspath(path)} has no parameters: {error}. Give a file that save_parameters has written."
        ) from error


def _names(structure: Any) -> list[str]:
    return [place or _ALONE for place in paths_of(structure)]


def _entry(leaf: Any, place: str) -> Any:
    if type(leaf) is TracedArray:
        raise TypeError(f"The parameter{place and ' ' + place} is traced, and has no value. Save after the function.")
    refuse_class(type(leaf), f"Cannot save the parameter{place and ' ' + place}")
    array = np.asarray(leaf)
    if array.dtype.kind not in "fciub":
        raise TypeError(f"The parameter{place and ' ' + place} is of type {array.dtype}; numbers can be saved.")
    return array
