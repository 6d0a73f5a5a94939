"""Schedules of the package checkpoint_schedules, as data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast, final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, Copy, Delete, EndForward, EndReverse, Forward, Move, Reverse
from ebbtide.schedules.asked import check_position, steps_of
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.no_reverse import NoReverse
from ebbtide.schedules.position import Position
from ebbtide.schedules.records import make_plain
from ebbtide.schedules.snapshots import Snapshots
from ebbtide.schedules.store_all import StoreAll

_Key = tuple[int, bool, bool, Snapshots, tuple[int, int | None] | None]


@final
@dataclass(frozen=True, slots=True)
class Recorded(Schedule):
    """
    A list of actions for a loop of a known number of steps: the trace of another schedule, or one made by hand.

    It finds the place in the list by the position, also in the middle of a `Forward`, so that an interrupted
    loop goes on. It cannot go on from a position that its trace does not pass, as with a snapshot lost: give a
    schedule that plans, as `Revolve`, to complete such a loop.

    Args:
        steps: The number of steps of the loop.
        actions: All actions, up to `EndReverse`.

    Raises:
        ScheduleError: An action cannot be followed after those before it, or the last one is not `EndReverse`;
            the message gives the index.

    Memory:
        Holds the actions, and one entry with the snapshots of that moment for each action.

    Example:
        >>> trace = (Forward(start=0, stop=2, save=True), EndForward(), Reverse(start=2, stop=0), EndReverse())
        >>> Recorded(2, trace).next_action(Position(steps=2, state=2, saved=(0, 2)))
        EndForward()
    """

    steps: int
    actions: tuple[Action, ...]
    _places: dict[_Key, list[tuple[int, int, int]]] = field(
        init=False, repr=False, compare=False, default_factory=dict[_Key, list[tuple[int, int, int]]]
    )

    def __post_init__(self) -> None:
        make_plain(self, "steps")
        if not isinstance(cast("object", self.actions), Sequence):
            raise ScheduleError(f"The actions of Recorded cannot be {self.actions!r}. Give a sequence of actions.")
        object.__setattr__(self, "actions", tuple(self.actions))
        position = Position(steps=self.steps)
        for index, action in enumerate(self.actions):
            state = _number(position.state)
            self._places.setdefault(_key(position), []).append((state, state, index))
            self._note_between(position, action, index)
            try:
                position = position.after(action)
            except ScheduleError as error:
                raise ScheduleError(f"Action {index} of the trace cannot be followed. {error}") from error
            if isinstance(action, Forward) and action.stop - action.start > 1:
                entry = (action.start + 1, action.stop - 1, index)
                self._places.setdefault(_key(position), []).append(entry)
        if not position.finished:
            raise ScheduleError(
                f"The trace of {len(self.actions)} actions ends before EndReverse, with {position.end} of "
                f"{self.steps} steps not reversed. Give all actions of one gradient."
            )

    def __repr__(self) -> str:
        # A thousand steps have 6,000 actions, which no message and no page has room for.
        return f"Recorded({self.steps}, <{len(self.actions)} actions>)"

    def __reduce__(self) -> tuple[type, tuple[int, tuple[Action, ...]]]:
        return type(self), (self.steps, self.actions)

    def _note_between(self, position: Position, action: Action, index: int) -> None:
        """Take note of where a loop stands that reverses the steps of one action step by step, as under a budget."""
        if isinstance(action, Reverse):
            with suppress(ScheduleError):  # it cannot be followed, as is told
                for step in range(action.start - 1, action.stop, -1):
                    position = position.after(Reverse(start=step + 1, stop=step))
                    state = _number(position.state)
                    self._places.setdefault(_key(position), []).append((state, state, index))

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; it finds the position in the trace by its hash."""
        check_position(position)
        if position.finished:
            return None
        if position.steps != self.steps or position.open:
            length = f"at most {position.steps}" if position.open else f"{position.steps}"
            raise ScheduleError(
                f"The trace is that of a loop of {self.steps} steps, and this loop has {length}. Convert a schedule "
                "of the right length, or use Online for a length that is not known."
            )
        state = _number(position.state)
        # Of several places with the same position the last one leaves out what leads nowhere.
        for low, high, index in reversed(self._places.get(_key(position), [])):
            if low <= state <= high:
                action = self.actions[index]
                if isinstance(action, Forward) and action.start < state:
                    return Forward(start=state, stop=action.stop, save=action.save)
                return Reverse(start=position.end, stop=action.stop) if isinstance(action, Reverse) else action
        held = [snapshot.step for snapshot in position.snapshots]
        raise ScheduleError(
            f"The trace does not pass this position: {position.reversed} of {position.steps} steps reversed, the "
            f"working state is that of step {position.state}, snapshots are held of the steps {held}. Complete the "
            "loop with a schedule that plans, as Revolve."
        )


def from_checkpoint_schedules(schedule: Any, steps: int | None = None) -> Schedule:
    """
    Return a schedule of the package checkpoint_schedules as one of Ebbtide: plain data, with the same trace.

    A snapshot is freed when it is loaded for the last time, which not all of those schedules say. A step has one
    snapshot here: where a state is read from disk to be stored in memory, its place on disk is freed.

    Args:
        schedule: An object of checkpoint_schedules that has not been begun; it stays as it is.
        steps: The number of steps of the loop; needed for the schedules that are made without it.

    Returns:
        `StoreAll` for SingleMemoryStorageSchedule and `NoReverse` for NoneCheckpointSchedule, for any number of
        steps; `Recorded` for all others.

    Raises:
        ScheduleError: It is no such object, it has been begun, the number of steps is not known or another one, or
            its trace cannot be followed.

    Memory:
        Holds the whole trace: see `Recorded`.

    Example:
        >>> from checkpoint_schedules import MultistageCheckpointSchedule
        >>> schedule = from_checkpoint_schedules(MultistageCheckpointSchedule(100, 2, 3))
        >>> schedule.forward_steps(100)
        416
    """
    name = type(schedule).__name__
    if isinstance(schedule, type):
        raise ScheduleError(f"{schedule.__name__} is a class, and no schedule. Give an object of it.")
    if not all(hasattr(schedule, attribute) for attribute in ("max_n", "finalize", "uses_storage_type", "__next__")):
        raise ScheduleError(f"An object of type {name} is no schedule of checkpoint_schedules. Give one of these.")
    if name == "SingleMemoryStorageSchedule":
        return StoreAll()
    if name == "NoneCheckpointSchedule":
        return NoReverse()
    steps = None if steps is None else steps_of(steps)
    known = None if schedule.max_n is None else int(schedule.max_n)
    if (known is None and steps is None) or (None not in (known, steps) and known != steps):
        raise ScheduleError(
            f"{name} was made for {'an unknown number of' if known is None else known} steps, and steps={steps} was "
            "given. Give the number of steps of the loop."
        )
    length = steps if known is None else known
    try:
        fresh = copy.deepcopy(schedule)
    except TypeError as error:
        raise ScheduleError(
            f"This {name} has been begun, and its generator cannot be copied ({error}). Give a new one."
        ) from error
    assert length is not None
    try:
        actions = list(_translate(fresh, length))
    except ScheduleError:
        raise
    except Exception as error:
        raise ScheduleError(
            f"This {name} gives no trace for {length} steps: checkpoint_schedules raised {type(error).__name__}, "
            f"{error}. Give a new object, and a number of steps that it can have."
        ) from error
    return Recorded(length, _free(actions))


def _number(state: int | None) -> int:
    """The step of the working state; -1 for none, so that it can be compared."""
    return -1 if state is None else state


def _key(position: Position) -> _Key:
    """What stays the same while a `Forward` runs: all but the working state, and the end of what is saved up to it."""
    saved = position.saved
    if saved is not None:
        saved = (saved[0], None if saved[1] == position.state else saved[1])
    return position.reversed, position.forward_ended, position.finished, position.snapshots, saved


def _translate(schedule: Any, steps: int) -> Iterator[Action]:
    """
    The actions of a schedule, one by one, with plain ints; it is told the number of steps once they have run.

    Classes are told by their names: `==` of that package's actions raises a TypeError, and nothing else of it is
    needed, so that it is not imported here.
    """
    for action in schedule:
        name = type(action).__name__
        if name == "Forward":
            # Schedules that do not know the length run on to sys.maxsize, or to the end of a period.
            stop = min(int(action.n1), steps)
            yield from _translate_forward(action, int(action.n0), stop)
            if schedule.max_n is None and action.n1 >= steps:
                schedule.finalize(steps)
        elif name == "Reverse":
            yield Reverse(start=int(action.n1), stop=int(action.n0))
        elif name in ("Copy", "Move"):
            yield _translate_load(action, name)
        elif name == "EndForward":
            yield EndForward()
        elif name == "EndReverse":
            # Some go on for ever, with the next gradient of the same loop.
            yield EndReverse()
            return
        else:
            raise ScheduleError(f"{action} is no action of checkpoint_schedules that is known here.")


def _translate_forward(action: Any, start: int, stop: int) -> Iterator[Action]:
    """One run of steps; values that are saved in a tier are one snapshot for each step."""
    tier = {"RAM": "memory", "DISK": "disk"}.get(str(action.storage.name))
    restart, saved = bool(action.write_ics), bool(action.write_adj_deps)
    if (restart and tier is None) or (restart and saved):
        raise ScheduleError(
            f"{action} stores a restart state in no tier, or with saved values in the same slot. Store one of them, "
            "in memory or on disk."
        )
    if saved and tier is not None:
        for step in range(start, stop):
            yield Forward(start=step, stop=step + 1, snapshot=True, kind="saved", tier=tier)
    else:
        yield Forward(start=start, stop=stop, snapshot=restart, save=saved, tier=tier if restart and tier else "memory")


def _translate_load(action: Any, name: str) -> Action:
    """One load, or the deletion that is a move to nowhere."""
    target, step = str(action.to_storage.name), int(action.n)
    if target == "NONE":
        return Delete(step=step)
    if target != "WORK":
        raise ScheduleError(f"{action} does not lead to the working state. Load it, and store it in the next Forward.")
    return Copy(step=step) if name == "Copy" else Move(step=step)


def _free(actions: list[Action]) -> tuple[Action, ...]:
    """The same actions, where each snapshot is freed at its last load, before its step is stored again or the end."""
    needed, result = set[int](), list[Action]()
    for action in reversed(actions):
        if isinstance(action, (Copy, Move)):
            result.append(Copy(step=action.step) if action.step in needed else Move(step=action.step))
            needed.add(action.step)
        elif not isinstance(action, Delete):
            if isinstance(action, Forward) and action.snapshot:
                needed.discard(action.start)
            result.append(action)
        elif action.step not in needed:
            # Otherwise it is one of two places of a step, and here there is one.
            needed.add(action.step)
            result.append(action)
    return tuple(reversed(result))
