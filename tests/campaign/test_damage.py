"""Damage to what a killed loop leaves: the gate runs a fixed sample, `make campaign` 10,000 flips and 500 lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.campaign.damage import PLACES, Damage
from tests.scale import FULL, SEED

FLIPS, LENGTHS = (10_000, 500) if FULL else (150, 30)


@pytest.mark.parametrize("stop", PLACES)
def test_flipped_bytes_of_a_killed_run(stop: int, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """A byte that changes in any file of a journal costs steps or is an error with file and step, never a bit."""
    damage = Damage(tmp_path, stop)
    assert set(damage.files) == {"lock", "newest", "owner", "segment"}
    damage.flip(FLIPS // len(PLACES) + 1, seed=SEED)
    for what, count in damage.counts().items():
        record_property(what, count)
    assert damage.problems == []
    assert damage.told > damage.tried // 5


@pytest.mark.parametrize("stop", PLACES)
def test_truncated_files_of_a_killed_run(stop: int, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """A file of a journal that ends anywhere, or is gone, costs steps or is an error with file and step."""
    damage = Damage(tmp_path, stop)
    damage.cut(LENGTHS)
    for what, count in damage.counts().items():
        record_property(what, count)
    assert damage.problems == []
    assert damage.tried > LENGTHS
