"""What a schedule can ask for: run forward, reverse, load or delete a snapshot, and say that a sweep is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.records import filled, kind_of, make_flags, make_plain

# A sweep makes an action and a position for each of its turns, and the initializer of a frozen dataclass takes most of
# that time: 1.4 us for a `Forward`, where `run` takes 0.25. What is made of the fields below, as plain attributes, is
# given its class afterwards, which has the same slots and cannot be changed.
_new = object.__new__


class _Run:
    """The fields of a `Forward` while it is made."""

    __slots__ = ("drop", "kind", "save", "snapshot", "start", "stop", "tier")


class _Range:
    """The fields of a `Reverse` while it is made."""

    __slots__ = ("start", "stop")


class _Step:
    """The field of a `Copy`, `Move` or `Delete` while it is made."""

    __slots__ = ("step",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(_Run):
    """
    Run the steps `start`, ..., `stop - 1`.

    Args:
        start: The step of the working state, and the first step to run.
        stop: The step after the last one to run; the working state is then that of `stop`.
        snapshot: Store a snapshot of step `start`.
        save: Keep the saved values of all these steps at hand, in memory, for the reverse sweep.
        kind: What the snapshot holds: `"restart"`, the state before step `start`, stored before running; or
            `"saved"`, what step `start` saves for its reverse sweep. The latter runs this one step, and keeps
            nothing at hand: `stop == start + 1` and `save=False`.
        tier: Where the snapshot is stored, `"memory"` or `"disk"`.
        drop: Give up the saved values at hand before: of a loop that may have ended there, and goes on.

    Memory:
        Holds seven plain values. One action may span many steps; who follows it may run them in parts.
    """

    start: int
    stop: int
    snapshot: bool = False
    save: bool = False
    kind: str = "restart"
    tier: str = "memory"
    drop: bool = False

    def __post_init__(self) -> None:
        make_plain(self, "start", "stop")
        make_flags(self, "snapshot", "save", "drop")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reverse(_Range):
    """
    Reverse the steps `start - 1`, ..., `stop`, in this order, and consume their saved values.

    Args:
        start: The step after the first one to reverse; `start > stop`.
        stop: The last step to reverse.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        make_plain(self, "start", "stop")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(_Step):
    """
    Load the snapshot of `step` and keep the snapshot.

    One of kind `"restart"` becomes the working state. One of kind `"saved"` is at hand for the reverse sweep,
    and the working state stays as it is.

    Args:
        step: The step of the snapshot, whatever its kind and its tier.
    """

    step: int

    def __post_init__(self) -> None:
        make_plain(self, "step")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Move(_Step):
    """
    Load the snapshot of `step` and delete the snapshot.

    One of kind `"restart"` becomes the working state. One of kind `"saved"` is at hand for the reverse sweep,
    and the working state stays as it is.

    Args:
        step: The step of the snapshot, whatever its kind and its tier.
    """

    step: int

    def __post_init__(self) -> None:
        make_plain(self, "step")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(_Step):
    """
    Delete the snapshot of `step` without loading it: its slot is wanted, or it is of no use any more.

    Args:
        step: The step of the snapshot, whatever its kind and its tier.
    """

    step: int

    def __post_init__(self) -> None:
        make_plain(self, "step")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EndForward:
    """The last step has been run for the first time: the result of the loop is there."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EndReverse:
    """All steps are reversed: nothing is left to do."""


Action = Forward | Reverse | Copy | Move | Delete | EndForward | EndReverse
"""One instruction of a schedule."""

_KINDS: tuple[type[Action], ...] = (Forward, Reverse, Copy, Move, Delete, EndForward, EndReverse)
_TYPES: Mapping[str, type] = MappingProxyType(
    {"start": int, "stop": int, "step": int, "snapshot": bool, "save": bool, "drop": bool, "kind": str, "tier": str}
)


def run(
    start: int, stop: int, snapshot: bool = False, save: bool = False, kind: str = "restart", tier: str = "memory",
    drop: bool = False,
) -> Forward:  # fmt: skip
    """Return a `Forward` of these fields, several times as fast as its initializer."""
    made: Any = _new(_Run)
    made.start = start
    made.stop = stop
    made.snapshot = snapshot
    made.save = save
    made.kind = kind
    made.tier = tier
    made.drop = drop
    made.__class__ = Forward
    return made


def reverse(start: int, stop: int) -> Reverse:
    """Return a `Reverse`, as `run` does a `Forward`."""
    made: Any = _new(_Range)
    made.start = start
    made.stop = stop
    made.__class__ = Reverse
    return made


def copy(step: int) -> Copy:
    """Return a `Copy`, as `run` does a `Forward`."""
    return _of_step(Copy, step)


def move(step: int) -> Move:
    """Return a `Move`, as `run` does a `Forward`."""
    return _of_step(Move, step)


def delete(step: int) -> Delete:
    """Return a `Delete`, as `run` does a `Forward`."""
    return _of_step(Delete, step)


def _of_step(kind: type, step: int) -> Any:
    made: Any = _new(_Step)
    made.step = step
    made.__class__ = kind
    return made


def action_to_json(action: Action) -> dict[str, int | bool | str]:
    """
    Return an action as a dict of plain values, ready for `json.dumps`.

    Args:
        action: The action.

    Returns:
        The fields of the action, and its class under the key `"action"`.

    Raises:
        ScheduleError: It is no action.

    Example:
        >>> action_to_json(Copy(step=3))
        {'action': 'Copy', 'step': 3}
    """
    if not isinstance(action, _KINDS):
        raise ScheduleError(f"{action!r} is no action. Those are {', '.join(kind.__name__ for kind in _KINDS)}.")
    fields = {field.name: getattr(action, field.name) for field in dataclasses.fields(action)}
    return {"action": type(action).__name__, **fields}


def action_from_json(record: Mapping[str, object]) -> Action:
    """
    Return the action that `action_to_json` wrote.

    Args:
        record: What `json.loads` returned.

    Returns:
        The action.

    Raises:
        ScheduleError: The record is of no known action, or its fields are not those of the action.

    Example:
        >>> action_from_json({"action": "Reverse", "start": 4, "stop": 3})
        Reverse(start=4, stop=3)
    """
    kind = kind_of(record, "action", _KINDS)
    values = {name: value for name, value in record.items() if name != "action"}
    wrong = [name for name, value in values.items() if type(value) is not _TYPES.get(name, type(value))]
    if wrong:
        raise ScheduleError(
            f"The record {dict(record)} has values of the wrong type for: {', '.join(wrong)}. Give what "
            "action_to_json returned: steps are ints, flags are bools, kind and tier are strings."
        )
    return filled(kind, values, record)
