"""The contract of a storage."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import StorageError

Key = int | str
"""The name of what is stored."""
T = TypeVar("T")


class Storage(ABC):
    """
    A place for snapshots and paged saved values: lists of arrays by key.

    What is stored is a copy, what comes back belongs to the caller. A storage is used by one thread at a
    time. As a context manager it closes itself at the end of the block. After `close`, every method but
    `close` and `keys` raises `StorageError`, and nothing is held.
    """

    @abstractmethod
    def put(self, key: Key, arrays: Sequence[NDArray[Any]], *, kind: str = "") -> int:
        """
        Store copies of arrays; the caller may overwrite the arrays afterwards.

        Args:
            key: A key that is not in use.
            arrays: Any shapes, strides and dtypes without Python objects; of a subclass the plain array is stored.
            kind: What it is, for people who inspect the storage.

        Returns:
            The number of bytes by which the storage grew.

        Raises:
            StorageError: The key is in use, there is no room, or an array holds Python objects or a mask; `arrays` is
                one array, or can be read only once. Nothing is stored then. `errno` is that of the operating system
                where there is one, `errno.ENOSPC` for want of room.
        """

    @abstractmethod
    def get(self, key: Key) -> list[NDArray[Any]]:
        """
        Return fresh arrays with what was stored; the storage keeps its own.

        Args:
            key: A key that is in use.

        Returns:
            Writable, C-contiguous arrays of the shapes, dtypes and bytes that were stored.

        Raises:
            StorageError: The key is not in use, or what is stored is damaged.
        """

    @abstractmethod
    def take(self, key: Key) -> list[NDArray[Any]]:
        """
        Return what was stored and delete it; without a copy where the storage can.

        Args:
            key: A key that is in use.

        Returns:
            Writable, C-contiguous arrays of the shapes, dtypes and bytes that were stored.

        Raises:
            StorageError: The key is not in use, or what is stored is damaged; it is not deleted then.
        """

    @abstractmethod
    def delete(self, key: Key) -> None:
        """
        Delete what is stored; its bytes are free when this returns.

        Args:
            key: A key that is in use.

        Raises:
            StorageError: The key is not in use.
        """

    @abstractmethod
    def keys(self) -> tuple[Key, ...]:
        """Return the keys in use, in the order in which they were put; none after `close`."""

    @abstractmethod
    def close(self) -> None:
        """Delete all that is stored; may be called again."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The number of bytes now stored, wherever they lie; 0 after `close`."""

    @property
    @abstractmethod
    def memory_nbytes(self) -> int:
        """The number of bytes of main memory that is taken by what is stored; 0 after `close`."""

    # Hints and what they need: a storage that has no use for them does nothing.

    def prefetch(self, keys: Iterable[Key]) -> None:
        """
        Say in which order keys will be read from now on; a storage may read them ahead.

        It never changes what is returned. A later call replaces an earlier one.

        Args:
            keys: Keys in the order of their next `get` or `take`, several times if they are read several times;
                those that are not in use when their turn comes are passed over.

        Raises:
            StorageError: The storage is closed, or an earlier entry could not be written.
        """
        del keys
        self.check_open()

    def reserve(self, slots: int, nbytes: int) -> None:
        """
        Make sure that there is room for a number of entries; until it is called again they find it.

        Args:
            slots: How many entries at a time; 0 gives the reservation up.
            nbytes: The bytes of each, as `put` counts them.

        Raises:
            StorageError: There is no room, or a number is none; `errno` is `errno.ENOSPC` or that of the operating
                system.
        """
        reserved_nbytes(slots, nbytes)
        self.check_open()

    def flush(self) -> None:
        """
        Return when all that was put is where it belongs.

        Raises:
            StorageError: The storage is closed, or an entry could not be written.
        """
        self.check_open()

    @property
    def memory_limit(self) -> int | None:
        """The most that `memory_nbytes` ever is, which a budget leaves room for; None if there is no bound."""
        return None

    @property
    def buffer_nbytes(self) -> int:
        """The most bytes of main memory that copies on their way to and from the storage ever take together."""
        return 0

    @property
    def bytes_read(self) -> int:
        """The bytes that were ever read from a disk."""
        return 0

    def is_lossy(self, kind: str) -> bool:
        """Return whether entries of a kind come back rounded: somebody asked by name for compression with loss."""
        del kind
        return False

    @property
    def relative_error(self) -> float:
        """The largest error that compression made so far, relative to the largest value of its array."""
        return 0.0

    @abstractmethod
    def check_open(self) -> None:
        """
        Do nothing while the storage is open.

        Raises:
            StorageError: The storage is closed.
        """

    @final
    def __enter__(self) -> Self:
        self.check_open()
        return self

    @final
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reserved_nbytes(slots: Any, nbytes: Any) -> int:
    """
    Return the bytes of a reservation.

    Raises:
        StorageError: The numbers are no whole ones of at least 0, or no file has so many bytes.
    """
    whole = [isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in (slots, nbytes)]
    if not all(whole) or int(slots) * int(nbytes) >= 2**63:
        raise StorageError(f"Cannot reserve room for {slots!r:.60} entries of {nbytes!r:.60} bytes: give whole ones.")
    return int(slots) * int(nbytes)


def check_arrays(key: Key, arrays: Sequence[NDArray[Any]], kind: str = "") -> None:
    """
    Do nothing if arrays can be stored.

    Args:
        key: The key to name in the error.
        arrays: What is to be stored.
        kind: What it is.

    Raises:
        StorageError: The key is no key, the kind no text; one is no array, holds Python objects, or a mask, which would
            be lost; or there is one array in the place of a list, or what can be read only once.
    """
    if not isinstance(key, (int, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StorageError(f"Cannot store arrays by the key {key!r:.60}: a key is an int or a str.")
    if not isinstance(kind, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StorageError(f"Cannot store key {key!r} with the kind {kind!r:.60}: a kind is a str.")
    if isinstance(arrays, np.ndarray):
        raise StorageError(f"Cannot store an array alone by the key {key!r}: give a list, [array].")
    # An iterator would be used up here.
    if not isinstance(arrays, Iterable) or isinstance(arrays, Iterator):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StorageError(f"Cannot store {arrays!r:.60} by the key {key!r}: give a list of arrays.")
    for place, array in enumerate(arrays):
        if not isinstance(array, (np.ndarray, np.generic)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StorageError(
                f"Cannot store array {place} of key {key!r}: it is a {type(array).__name__}, and no NumPy array. Write "
                "np.asarray(x)."
            )
        if array.dtype.hasobject:
            raise StorageError(
                f"Cannot store array {place} of key {key!r}: its dtype {array.dtype} holds Python objects, "
                "and a copy of their bytes would be worthless. Use a numeric dtype."
            )
        if isinstance(array, np.ma.MaskedArray):
            raise StorageError(
                f"Cannot store array {place} of key {key!r}: it is masked, and its mask would be lost. Store its data "
                "and its mask as two arrays."
            )


def check_new(key: Key, arrays: Sequence[NDArray[Any]], kind: str, held: Container[Key]) -> None:
    """
    Do nothing if arrays can be stored by a key that is not in use.

    Raises:
        StorageError: As `check_arrays`, or the key is among those that are held.
    """
    check_arrays(key, arrays, kind)
    if key in held:
        raise StorageError(f"The key {key!r} is in use already. Delete it first, or use another key.")


def check_key(key: Key) -> None:
    """
    Do nothing if there may be something stored under a key.

    Raises:
        StorageError: It has no hash, and is no key.
    """
    try:
        hash(key)
    except TypeError as cause:
        raise StorageError(f"{key!r:.60} is no key: a key is an int or a str.") from cause


def find_held(held: Mapping[Key, T], key: Key) -> T:
    """
    Return what is held under a key.

    Raises:
        StorageError: Nothing is, or it is no key.
    """
    check_key(key)
    found = held.get(key)
    if found is None:
        raise StorageError(
            f"There is nothing stored under the key {key!r} ({len(held)} keys are in use). It was never put, or it "
            "was deleted or taken."
        )
    return found


def describe_closed(name: str) -> StorageError:
    """Return the error for the use of a closed storage."""
    return StorageError(f"The {name} storage is closed, and all that it held is gone. Make a new one.")


def describe_fork(pid: int) -> StorageError:
    """Return the error for a forked child that would change the storage of its parent, the process *pid*."""
    return StorageError(
        f"This storage belongs to the process {pid}, and the forked process {os.getpid()} may only read from it. "
        "Make a new storage in this process."
    )
