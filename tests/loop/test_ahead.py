"""What a time loop says of the snapshots that it will read next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ebbtide import grad, timeloop
from ebbtide.loop.holding import ahead
from ebbtide.schedules import Delete, Hierarchical, Position, Revolve, Snapshot
from ebbtide.storage import Disk, Tiered


def gradient(**loop: Any) -> Any:
    """Return the gradient of the sum of a state after twelve steps."""
    return grad(lambda x: np.sum(timeloop(lambda u, i: np.sin(u) + 0.1 * u, x, 12, **loop)))(np.linspace(0.5, 1.0, 20))


@pytest.fixture
def seen(monkeypatch):
    """The keys that a disk stores, that it is told will be read, and that are read, in their order."""
    events: list[tuple[str, Any]] = []
    put, prefetch, get = Disk.put, Disk.prefetch, Disk.get

    def stored(self: Disk, key: Any, *args: Any, **kwargs: Any) -> int:
        events.append(("stored", key))
        return put(self, key, *args, **kwargs)

    def told(self: Disk, keys: Iterable[Any]) -> None:
        keys = list(keys)
        events.extend([("told", key) for key in keys])
        prefetch(self, keys)

    def read(self: Disk, key: Any) -> Any:
        events.append(("read", key))
        return get(self, key)

    monkeypatch.setattr(Disk, "put", stored)
    monkeypatch.setattr(Disk, "prefetch", told)
    monkeypatch.setattr(Disk, "get", read)
    return events


@pytest.mark.parametrize("schedule", [Revolve(3), Revolve(12), Hierarchical(2, 3)], ids=repr)
def test_a_storage_of_the_user_is_read_ahead(schedule, seen, tmp_path):
    """Each snapshot that is there at a read is announced before its own, whatever tier the schedule thinks of."""
    for make in (lambda: Disk(tmp_path, buffer="1 MiB"), lambda: Tiered(0, Disk(tmp_path, buffer="1 MiB"))):
        seen.clear()
        with make() as storage:
            found = gradient(schedule=schedule, storage=storage)
        np.testing.assert_array_equal(found, gradient())
        reads = [place for place, (event, _) in enumerate(seen) if event == "read"]
        assert reads
        for before, place in pairwise(reads):
            key = seen[place][1]
            assert ("told", key) in seen[:place] or ("stored", key) in seen[before:place]


def test_a_storage_without_a_buffer_is_told_nothing(seen, tmp_path):
    """Where nothing can be read ahead the loop does not look ahead."""
    with Disk(tmp_path) as storage:
        gradient(schedule=Revolve(3), storage=storage)
    assert seen
    assert all(event != "told" for event, _ in seen)


def test_a_restart_state_behind_saved_steps_is_a_way_back():
    """A loop whose disk runs out changes from saved values to restart states; what it saved by then is of use."""
    saved = tuple(Snapshot(k, "saved", "disk") for k in range(4))
    behind = Position(steps=9, state=6, snapshots=(*saved, Snapshot(4, "restart", "disk")))
    assert not ahead.is_stuck(behind)
    assert ahead.is_stuck(replace(behind, snapshots=saved))
    assert ahead.is_stuck(replace(behind, snapshots=(*saved, Snapshot(5, "restart", "disk"))))
    assert not ahead.is_stuck(replace(behind, snapshots=saved, state=4))


def test_the_way_back_is_never_spare():
    """Of what a loop could do without, the first restart state is none, wherever it lies and whatever is below it."""
    saved = tuple(Snapshot(k, "saved") for k in range(2))
    above = (Snapshot(4), Snapshot(5, "saved"), Snapshot(6, "restart", "disk"))
    for first in ((Snapshot(0),), (*saved, Snapshot(2))):
        position = Position(steps=9, state=9, forward_ended=True, snapshots=(*first, *above))
        assert ahead.find_way_back(position) == first[-1]
        assert ahead.find_spare(position) == above[:2]
        assert ahead.find_spare(position, "disk") == above[2:]
        cheapest, given = ahead.Cheapest(), list[int]()
        while (kept := cheapest.take(position)) is not None:
            given.append(kept.step)
            position = position.after(Delete(step=kept.step))
        assert sorted(given) == [4, 5]


def test_the_initial_state_comes_in_the_place_of_what_its_step_saved():
    """That is dropped, but a restart state of step 0 is that very state; of both, one may be kept for other sweeps."""
    dropped: list[Snapshot] = []
    of_step, state, later = Snapshot(0, "saved"), Snapshot(0, "restart", "disk"), Snapshot(3)
    for first in (of_step, state):
        found = ahead.with_initial(Position(steps=9, snapshots=(first, later)), dropped.append)
        assert found.snapshots == (state, later)
    assert dropped == [of_step]
    prefix = Position(steps=9, snapshots=(of_step,))
    assert [ahead.is_among(prefix, one) for one in (of_step, state, later)] == [True, False, False]
