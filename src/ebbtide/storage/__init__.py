"""Storage: where snapshots and paged saved values live; usable alone."""

from __future__ import annotations

from ebbtide.storage.base import Key, Storage
from ebbtide.storage.checksum import compute_crc32c
from ebbtide.storage.disk import Disk
from ebbtide.storage.memory import Memory

__all__ = ["Disk", "Key", "Memory", "Storage", "compute_crc32c"]
