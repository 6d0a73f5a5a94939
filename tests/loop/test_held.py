"""What a loop says to hold is what the ledger counts for it, and what it says to do without it gives up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, grad, timeloop
from ebbtide.arrays.context import current
from ebbtide.loop.holding import held
from ebbtide.loop.planning.sizes import RESERVE_PER_SNAPSHOT
from ebbtide.loop.room import Room
from ebbtide.schedules import (
    Costs,
    Hierarchical,
    Mixed,
    Online,
    Periodic,
    Revolve,
    Schedule,
    StoreAll,
)  # fmt: skip
from ebbtide.storage import Disk, Memory, Storage, Tiered

SIZE, STEPS = 8192, 12
STATE = SIZE * 8
U0, FACTOR = np.linspace(0.2, 1.1, SIZE), np.linspace(0.5, 1.0, SIZE)
INPUTS = 0.01 * np.sin(np.arange(STEPS * SIZE, dtype=float)).reshape(STEPS, SIZE)


def tiered() -> Tiered:
    """Return a storage that has room for three states in memory."""
    return Tiered(3 * STATE, Disk())


CASES: list[tuple[Schedule, Callable[[], Storage] | None]] = [
    (StoreAll(), None), (StoreAll("disk"), None), (Revolve(3), None), (Mixed(12 * STATE, STATE, 3 * STATE), None),
    (Periodic(4, 3), None), (Periodic(1, 1), None), (Online(4), None),
    (Hierarchical(2, 2, Costs(write=2, read=2)), None), (Periodic(4, 2), Memory), (Revolve(3), Disk),
    (Revolve(3), tiered),
]  # fmt: skip


def _name(one: Any) -> str:
    """Return a name that is the same in each process: a function has its address in its text."""
    return str(getattr(one, "__name__", one))


def widening(u: Any, i: Any, shared: Any) -> Any:
    """A step that saves more from the sixth one on, when it meets a static value."""
    u = u + 0.01 * np.sin(u) * np.cos(u)
    return u * FACTOR if i > 5 else u


def sharing(u: Any, i: Any, shared: Any) -> Any:
    """A step that saves what all of them do, and the state both before it and after it."""
    return np.exp(np.sin(u) * shared)


def forced(u: Any, g: Any, shared: Any) -> Any:
    """A step with an input of its own."""
    return u + 0.01 * np.sin(u) * g


def swept(step: Any, schedule: Schedule, storage: Any, directory: Any, rests: Callable[[Any], None]) -> bytes:
    """The gradient in a budget with room for the schedule; *rests* looks at the loop between its sweeps."""

    def f(u: Any, inputs: Any) -> Any:
        given = {"inputs": inputs} if step is forced else {}
        shared = np.cos(u)
        u = timeloop(partial(step, shared=shared), u, STEPS, schedule=schedule, storage=storage, **given)
        if lenders := current().ledger.lenders:
            rests(lenders[-1]())
        return np.sum(u * u)

    budget = Budget(memory=80 * STATE, disk=200 * STATE, directory=directory)
    return b"".join(map(np.ndarray.tobytes, grad(f, (0, 1) if step is forced else (0,), budget=budget)(U0, INPUTS)))


@pytest.mark.parametrize("step", [widening, sharing, forced])
@pytest.mark.parametrize(("schedule", "storage"), CASES, ids=_name)
def test_what_a_loop_holds_is_what_the_ledger_counts(step, schedule, storage, tmp_path, monkeypatch):
    """Before each action, and at rest, what is in the ledger beside a loop is the same, whatever it holds then."""
    beside: dict[str, set[int]] = {"forward": set(), "rest": set(), "reverse": set()}

    def note(rule: Any, place: str) -> None:
        beside[place].add(rule.stepper.region.ledger.live - held.counted_bytes(rule))

    make_for = Room.make_for

    def noted(room: Room, rule: Any, action: Any) -> bool:
        found = make_for(room, rule, action)
        if beside["rest"] or rule.position.state:  # the first step is at hand before the loop begins
            note(rule, "reverse" if beside["rest"] else "forward")
        return found

    monkeypatch.setattr(Room, "make_for", noted)
    with ExitStack() as stack:
        theirs = None if storage is None else stack.enter_context(storage())
        swept(step, schedule, theirs, tmp_path, lambda rule: note(rule, "rest"))
    # The record of an operation with the static value, of which each step has its own.
    (others,) = beside["forward"]
    assert beside == {"forward": {others}, "rest": {others}, "reverse": {others}}
    assert 0 <= others < 2048


@pytest.mark.parametrize("step", [widening, sharing])
@pytest.mark.parametrize(("schedule", "storage"), CASES, ids=_name)
def test_a_loop_gives_up_what_it_says_to_do_without(step, schedule, storage, tmp_path):
    """Not a byte less, also where later steps saved more than the first ones, and what is left is what it had said."""
    found: list[Any] = []

    def give_up(rule: Any) -> None:
        ledger, promised, bare = rule.stepper.region.ledger, rule.sheddable, rule.holding(True)
        before = ledger.live
        freed, left = rule.shed(promised), rule.holding(False)
        found.append((promised, freed, before - ledger.live, bare.held + bare.beyond, left.held + left.beyond))

    with ExitStack() as stack:
        theirs = None if storage is None else stack.enter_context(storage())
        gradient = swept(step, schedule, theirs, tmp_path, give_up)
    ((promised, freed, fallen, bare, left),) = found
    assert gradient == swept(step, StoreAll(), None, tmp_path, lambda rule: None)
    # Of steps that pass a state on, that of the last may go or stay.
    slack = STATE * (1 + (step is sharing))
    assert 0 < promised <= freed == fallen < promised + slack
    # In a storage of the user the entries stay of which no bytes are in memory.
    assert left - 2 * RESERVE_PER_SNAPSHOT * (storage is not None) <= bare < left + slack
