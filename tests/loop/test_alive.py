"""State arrays that are alive while a loop runs: what its schedule holds, and the working one, at every moment."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

from ebbtide import grad, primitive, timeloop
from ebbtide.schedules import (
    Costs,
    EndForward,
    Forward,
    Hierarchical,
    Mixed,
    Online,
    Periodic,
    Position,
    Reverse,
    Revolve,
    StoreAll,
)
from ebbtide.storage import Memory

STEPS, SIZE = 30, 1000
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(1), Revolve(3), Revolve(50), Mixed(4), Mixed(8, restart=1, saved=3),
    Mixed(3, reverse=6), Hierarchical(2, 2, Costs(write=1.0, read=1.0)), Hierarchical(0, 3, Costs()), Periodic(10, 2),
    Online(3),
)  # fmt: skip


class Alive:
    """Notes how many of the states that a loop has seen or stored are alive when a step begins or ends, or is swept."""

    def __init__(self) -> None:
        self._known = WeakValueDictionary[int, np.ndarray]()
        self.events: list[tuple[str, int]] = []

    def add(self, array: np.ndarray) -> np.ndarray:
        """Know one more array."""
        self._known[id(array)] = array
        return array

    def note(self, event: str) -> None:
        """Note how many are alive."""
        self.events.append((event, len(self._known)))

    def step(self, *, saves: bool) -> Callable[..., Any]:
        """Return a step of one operation, which saves its state or nothing."""

        def run(x: np.ndarray) -> np.ndarray:
            self.add(x)
            self.note("begins")
            after = self.add(x * 0.9)
            self.note("ends")
            return after

        def pull(g: Any) -> Any:
            self.note("swept")
            return g * 0.9

        def pull_saved(g: Any, x: Any) -> Any:
            self.add(x)
            return pull(g)

        operation = primitive(run, vjp=(pull_saved if saves else pull,))
        return lambda u, i: operation(u)

    def last(self) -> Callable[..., Any]:
        """Return an operation on the final state that saves nothing."""

        def run(x: np.ndarray) -> np.ndarray:
            self.add(x)
            self.note("last")
            return x * 1.0

        def pull(g: Any) -> Any:
            self.note("turned")
            return g * 1.0

        return primitive(run, vjp=(pull,))


def held_by(snapshots: Any, saved: tuple[int, int] | None, *, saves: bool) -> int:
    """How many states snapshots and saved values have in memory: stored ones, and those that steps saved."""
    stored = [kept for kept in snapshots if kept.tier == "memory" and (saves or kept.kind == "restart")]
    first, stop = saved or (0, 0)
    return len(stored) + saves * (stop - first)


def expected_of(schedule: Any, *, saves: bool) -> list[tuple[str, int]]:
    """What a loop notes, by the positions that its schedule leads through."""
    position, events = Position(steps=STEPS), list[tuple[str, int]]()
    while (action := schedule.next_action(position)) is not None:
        after = position.after(action)
        if isinstance(action, Forward):
            # A restart state is stored before the step, and what a step saved after it.
            stored = position.snapshots if action.kind == "saved" else after.snapshots
            for number in range(action.stop - action.start):
                held = held_by(stored, position.saved, saves=saves) + saves * action.save * number
                # The first step of all is run to be measured, when nothing is stored.
                held = held if events else 0
                # The state that goes in, and then the one that comes out, too.
                events += [("begins", held + 1), ("ends", held + 2)]
        elif isinstance(action, Reverse):
            for number in range(action.start - action.stop):
                # A state that was loaded stays, if earlier steps go on from it.
                held = held_by(position.snapshots, position.saved, saves=saves) - saves * number
                events.append(("swept", held + (after.state is not None)))
        elif isinstance(action, EndForward):
            held = held_by(position.snapshots, position.saved, saves=saves)
            # The final state goes when what is made of it is there.
            events += [("last", held + 1), ("turned", held)]
        position = after
    return [*events, ("after", 0)]


@pytest.mark.parametrize("saves", [True, False], ids=["saving", "linear"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_states_alive_are_those_of_the_schedule(schedule: Any, saves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step and its sweep, with the collector off: what the schedule has in memory, and the working state."""
    alive = Alive()
    put, get = Memory.put, Memory.get

    def watched_put(storage: Memory, key: Any, arrays: Any, *, kind: str = "") -> int:
        nbytes = put(storage, key, arrays, kind=kind)
        for array in storage._held[key]:
            alive.add(array)
        return nbytes

    monkeypatch.setattr(Memory, "put", watched_put)
    monkeypatch.setattr(Memory, "get", lambda storage, key: [alive.add(array) for array in get(storage, key)])
    step, last = alive.step(saves=saves), alive.last()
    gc.collect()
    gc.disable()
    try:
        grad(lambda u: np.sum(last(timeloop(step, u, STEPS, schedule=schedule))))(np.ones(SIZE))
        alive.note("after")
    finally:
        gc.enable()
    assert alive.events == expected_of(schedule, saves=saves)
