"""Storage: where snapshots and paged saved values live; usable alone."""

from __future__ import annotations

from ebbtide.storage.base import Key, Storage
from ebbtide.storage.checksum import compute_crc32c, compute_crc32c_of_values
from ebbtide.storage.codecs import Zfp
from ebbtide.storage.disk import Disk
from ebbtide.storage.entries import entry_nbytes
from ebbtide.storage.failures import EntryLostError, StorageFullError, StorageLockedError
from ebbtide.storage.memory import Memory
from ebbtide.storage.tiered import Tiered

__all__ = [
    "Disk",
    "EntryLostError",
    "Key",
    "Memory",
    "Storage",
    "StorageFullError",
    "StorageLockedError",
    "Tiered",
    "Zfp",
    "compute_crc32c",
    "compute_crc32c_of_values",
    "entry_nbytes",
]
