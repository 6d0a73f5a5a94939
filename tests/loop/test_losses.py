"""Snapshots that cannot be read: the loop goes on from what is left, and tells what it is going to run."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import pytest
from tests.storages import Delegating

from ebbtide import StorageError, grad, profile, timeloop
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, Schedule, StoreAll

U = np.linspace(0.1, 1.0, 50)
SCHEDULES = (
    Revolve(3), Periodic(4, 2), Periodic(1, 1), Periodic(7, 3), StoreAll("disk"), Mixed(9, restart=1, saved=3),
    Mixed(3, reverse=6), Online(3), Hierarchical(2, 3, Costs(write=1.0, read=1.0)),
    Hierarchical(0, 4, Costs(write=1.0, read=1.0)),
)  # fmt: skip


@final
class Losing(Delegating):
    """A storage of which some reads fail, counted from 1."""

    def __init__(self, lost: tuple[int, ...]) -> None:
        super().__init__()
        self.reads, self.lost = 0, lost

    def _read(self) -> None:
        self.reads += 1
        if self.reads in self.lost:
            raise StorageError(f"read {self.reads} fails")

    def get(self, key: Any) -> Any:
        """Return what is stored, or fail."""
        self._read()
        return super().get(key)

    def take(self, key: Any) -> Any:
        """The same, and delete it."""
        self._read()
        return super().take(key)


def step(u: Any, _: Any) -> Any:
    """A nonlinear step."""
    return u + 0.1 * np.sin(u)


@pytest.mark.filterwarnings("ignore:The .* of a time loop are lost")
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("lost", [(k,) for k in range(1, 14)] + [(1, 3), (2, 4, 6), (7, 8), (3, 9)], ids=str)
def test_any_read_may_fail(schedule: Schedule, lost: tuple[int, ...]) -> None:
    """The gradient has the same bits and the steps are as predicted then; without a way back it is the read's error."""

    def misfit(u: Any, storage: Any) -> Any:
        return np.sum(timeloop(step, u, 20, schedule=schedule, storage=storage) ** 2)

    expected = grad(lambda u: misfit(u, None))(U)
    storage = Losing(lost)
    try:
        with profile() as p:
            found = grad(lambda u: misfit(u, storage))(U)
    except StorageError as error:
        assert "No state is left" in "".join(error.__notes__)  # noqa: PT017 - either of both
        assert storage.reads in lost
        return
    assert found.tobytes() == expected.tobytes()
    (loop,) = p.loops
    assert p.steps_forward == p.predicted_steps_forward
    assert loop.steps_forward == loop.plan.predicted_steps_forward == p.steps_forward
