"""Flipped bytes in files of snapshots: the gate runs a fixed sample, `make campaign` 10,000."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scale import FULL, SEED, bar

from ebbtide.errors import StorageError
from ebbtide.storage import Disk

COUNT = 10_000 if FULL else 300


def test_every_flip_is_found(tmp_path, record_property):
    """A byte that changes anywhere in a file of a storage is found when it is read, never returned as data."""
    random = np.random.default_rng(SEED)
    arrays = [random.standard_normal((7, 5)), np.arange(9, dtype=np.float32)]
    with Disk(tmp_path) as storage:
        storage.put("a", arrays)
        (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
        content = path.read_bytes()
        for _ in bar(range(COUNT), "flips of a storage"):
            place, flip = int(random.integers(len(content))), int(random.integers(1, 256))
            damaged = bytearray(content)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            with pytest.raises(StorageError):
                storage.get("a")
        path.write_bytes(content)
        for before, after in zip(arrays, storage.get("a"), strict=True):
            assert np.array_equal(before, after)
    record_property("flips found", COUNT)
