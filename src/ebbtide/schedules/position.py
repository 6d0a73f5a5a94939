"""Where a loop and its reverse sweep stand: plain data, all that a schedule may look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast, final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, Copy, Delete, EndForward, EndReverse, Forward, Move, Reverse
from ebbtide.schedules.records import flag_of, make_flags, make_plain, pair_of
from ebbtide.schedules.snapshots import (
    KINDS,
    TIERS,
    Snapshot,
    Snapshots,
    add,
    checked,
    find_place,
    made,
    remove,
    shared,
)

_new = object.__new__


class _Fields:
    """
    The fields of a position while it is made.

    A sweep makes a position for each action: it is made of these, as plain attributes, and its class then is
    `Position`, which has the same slots and cannot be changed; see `actions`.
    """

    __slots__ = (
        "before", "end", "finished", "forward_ended", "on_disk", "open", "reversed", "saved",
        "saved_snapshots", "snapshots", "state", "steps",
    )  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Position(_Fields):
    """
    The place of a loop of `steps` steps in its forward and reverse sweeps.

    Args:
        steps: The number of steps of the loop; an upper bound of it while the position is open.
        reversed: The number of steps already reversed: the steps `steps - reversed`, ..., `steps - 1`.
        state: The step of the working state, None when there is none.
        saved: The range `(first, stop)` of steps whose saved values are at hand, None when none are.
        forward_ended: The last step has been run for the first time, and `EndForward` was said.
        finished: `EndReverse` was said.
        snapshots: What is stored, by ascending step; of a step there is at most one.
        open: The loop may end before `steps`; see `ended`.

    The attribute `on_disk` is the number of snapshots on disk, `saved_snapshots` that of those of kind `"saved"`, and
    `end` that of the steps that are not yet reversed; the next one to reverse is `end - 1`.

    Raises:
        ScheduleError: A number lies outside of the loop, or is none.

    Memory:
        Holds a few numbers, one `Snapshot` for each stored state, and what was stored before the last change; nothing
        grows with `steps`.

    Example:
        >>> Position(steps=5).after(Forward(start=0, stop=3, snapshot=True)).state
        3
    """

    steps: int
    reversed: int = 0
    state: int | None = 0
    saved: tuple[int, int] | None = None
    forward_ended: bool = False
    finished: bool = False
    snapshots: Snapshots = ()
    open: bool = False
    # Derived, as schedules ask for them before each action.
    on_disk: int = field(init=False, compare=False, repr=False)
    saved_snapshots: int = field(init=False, compare=False, repr=False)
    # Of which snapshots these were made by one change, if known: who has seen those need not compare all of them.
    before: Snapshots | None = field(init=False, compare=False, repr=False)
    end: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        make_plain(self, "steps", "reversed", *(("state",) if self.state is not None else ()))
        make_flags(self, "forward_ended", "finished", "open")
        object.__setattr__(self, "snapshots", shared(checked(self.snapshots, self.steps)))
        object.__setattr__(self, "saved", None if self.saved is None else pair_of(self.saved))
        object.__setattr__(self, "on_disk", sum(snapshot.tier == "disk" for snapshot in self.snapshots))
        object.__setattr__(self, "saved_snapshots", sum(snapshot.kind == "saved" for snapshot in self.snapshots))
        object.__setattr__(self, "before", None)
        object.__setattr__(self, "end", self.steps - self.reversed)
        if not 0 <= self.reversed <= self.steps:
            raise ScheduleError(
                f"A loop of {self.steps} steps cannot have {self.reversed} steps reversed. "
                "Give steps >= 0 and reversed in the range 0 to steps."
            )
        if self.state is not None and not 0 <= self.state <= self.steps:
            raise ScheduleError(
                f"The working state cannot be that of step {self.state} in a loop of {self.steps} steps. "
                f"Give a step in the range 0 to {self.steps}, or None."
            )
        if self.saved is not None and not 0 <= self.saved[0] < self.saved[1] <= self.end:
            raise ScheduleError(
                f"Saved values cannot be held for the range {self.saved}: the steps that are not yet "
                f"reversed are (0, {self.end}). Give a range (first, stop) inside it, or None."
            )
        if (self.finished and self.end) or ((self.finished or self.reversed) and not self.forward_ended):
            raise ScheduleError(
                f"With {self.reversed} of {self.steps} reversed, forward_ended cannot be {self.forward_ended} where "
                f"finished is {self.finished}. Give forward_ended=True if some are, finished=True only if all are."
            )

    def after(self, action: Action) -> Position:
        """
        Return the position after an action; this one stays as it is.

        After `Reverse` a working state that no remaining step can start from is gone (None). `EndForward` at
        the upper bound of an open position closes it.

        Args:
            action: The action to follow.

        Returns:
            The new position.

        Raises:
            ScheduleError: The action cannot be followed here.

        Example:
            >>> Position(steps=1).after(Forward(start=0, stop=1, save=True)).saved
            (0, 1)
        """
        if self.finished:
            raise ScheduleError(
                f"Cannot follow {action}: the reverse sweep is finished. Stop asking for actions."
            )
        if isinstance(action, Forward):
            return self._after_forward(action)
        if isinstance(action, Reverse):
            return self._after_reverse(action)
        if isinstance(action, (Copy, Move, Delete)):
            return self._after_load(action)
        if isinstance(action, EndForward):
            if self.forward_ended or self.state != self.steps:
                raise ScheduleError(
                    f"Cannot follow EndForward: the working state is that of step {self.state} of "
                    f"{self.steps}, forward_ended is {self.forward_ended}. Say it once, right after the last "
                    "step."
                )
            return _made(
                self.steps, self.reversed, self.state, self.saved, True, False, self.snapshots, False, self.on_disk,
                self.saved_snapshots, self.before,
            )  # fmt: skip
        if type(cast("Any", action)) is not EndReverse:
            raise ScheduleError(f"{action!r} is no action. Give one of ebbtide.schedules, such as Forward or Reverse.")
        if not self.forward_ended or self.end > 0:
            raise ScheduleError(
                f"Cannot follow EndReverse: {self.end} of {self.steps} steps are not yet reversed, "
                f"forward_ended is {self.forward_ended}. Reverse all steps first."
            )
        return _made(
            self.steps, self.reversed, None, None, True, True, self.snapshots, self.open, self.on_disk,
            self.saved_snapshots, self.before,
        )  # fmt: skip

    def _after_forward(self, action: Forward) -> Position:
        start, stop = action.start, action.stop
        if start != self.state:
            raise ScheduleError(
                f"Cannot follow {action}: the working state is that of step {self.state}. "
                "Start there, or load a snapshot first."
            )
        if not start < stop <= self.end:
            raise ScheduleError(
                f"Cannot follow {action}: the steps that are not yet reversed end at {self.end}. "
                f"Give start < stop <= {self.end}."
            )
        snapshots, saved, on_disk = self.snapshots, None if action.drop else self.saved, self.on_disk
        before, saved_snapshots = self.before, self.saved_snapshots
        if action.snapshot:
            before, snapshots = snapshots, self._stored(action)
            on_disk += action.tier == "disk"
            saved_snapshots += action.kind == "saved"
        if action.save:
            if saved is not None and saved[1] != start:
                raise ScheduleError(
                    f"Cannot follow {action}: saved values are held for the steps {saved}, and a gap would "
                    "open. Reverse these steps first, or go on where they end."
                )
            saved = (start if saved is None else saved[0], stop)
        return _made(
            self.steps, self.reversed, stop, saved, self.forward_ended, False, snapshots, self.open, on_disk,
            saved_snapshots, before,
        )  # fmt: skip

    def _after_reverse(self, action: Reverse) -> Position:
        start, stop = action.start, action.stop
        if not self.forward_ended:
            raise ScheduleError(
                f"Cannot follow {action}: the forward sweep has not ended. Say EndForward after the last "
                "step."
            )
        if start != self.end or not 0 <= stop < start:
            raise ScheduleError(
                f"Cannot follow {action}: the next step to reverse is {self.end - 1}. "
                f"Give start = {self.end} > stop >= 0."
            )
        if self.saved is None or self.saved[0] > stop or self.saved[1] != start:
            raise ScheduleError(
                f"Cannot follow {action}: saved values are held for the steps {self.saved}. "
                f"Run the steps {stop} to {start - 1} with save=True first."
            )
        saved = None if stop == self.saved[0] else (self.saved[0], stop)
        state = self.state if self.state is not None and self.state < stop else None
        done = self.reversed + start - stop
        return _made(
            self.steps, done, state, saved, True, False, self.snapshots, self.open, self.on_disk, self.saved_snapshots,
            self.before,
        )  # fmt: skip

    def _stored(self, action: Forward) -> Snapshots:
        """The snapshots with the one that a `Forward` stores."""
        step, kind, snapshots = action.start, action.kind, self.snapshots
        if kind not in KINDS or action.tier not in TIERS:
            raise ScheduleError(
                f"Cannot follow {action}: the kind of a snapshot is one of {KINDS}, its tier one of {TIERS}."
            )
        if kind == "saved" and (action.stop != step + 1 or action.save):
            raise ScheduleError(
                f"Cannot follow {action}: a snapshot of kind 'saved' is of one step, which is not kept at hand "
                f"too. Give stop={step + 1}, save=False."
            )
        place = find_place(snapshots, step)
        if place < len(snapshots) and snapshots[place].step == step:
            raise ScheduleError(
                f"Cannot follow {action}: step {step} already has a snapshot. Use snapshot=False."
            )
        return add(snapshots, place, made(step, kind, action.tier))

    def _after_load(self, action: Copy | Move | Delete) -> Position:
        snapshots, step = self.snapshots, action.step
        place = find_place(snapshots, step)
        if place == len(snapshots) or snapshots[place].step != step:
            held = [snapshot.step for snapshot in snapshots]
            raise ScheduleError(
                f"Cannot follow {action}: there is no snapshot of step {step}, only of {held}. "
                "Load one of these."
            )
        snapshot, state, saved, on_disk = snapshots[place], self.state, self.saved, self.on_disk
        before, saved_snapshots = self.before, self.saved_snapshots
        if not isinstance(action, Copy):
            before, snapshots = snapshots, remove(snapshots, place)
            on_disk -= snapshot.tier == "disk"
            saved_snapshots -= snapshot.kind == "saved"
        if not isinstance(action, Delete):
            if snapshot.kind == "saved":
                saved = self._joined(action)
            else:
                state = step
        return _made(
            self.steps, self.reversed, state, saved, self.forward_ended, False, snapshots, self.open, on_disk,
            saved_snapshots, before,
        )  # fmt: skip

    def _joined(self, action: Copy | Move) -> tuple[int, int]:
        """The range of the saved values at hand, with those that a snapshot brings."""
        step, saved = action.step, self.saved
        if step >= self.end:
            raise ScheduleError(
                f"Cannot follow {action}: step {step} is already reversed, its saved values are of no use. "
                "Use Delete."
            )
        if saved is None:
            return step, step + 1
        if step == saved[1]:
            return saved[0], step + 1
        if step == saved[0] - 1:
            return step, saved[1]
        raise ScheduleError(
            f"Cannot follow {action}: saved values are at hand for the steps {saved}, and step {step} is no "
            "neighbor of these. Reverse these steps first."
        )

    def ended(self, at: int) -> Position:
        """
        Return the position of an open loop once it is known that it ends here.

        Args:
            at: The number of steps that it has; the step of the working state.

        Returns:
            The position with `steps == at`, no longer open; the next action of any schedule is `EndForward`.

        Raises:
            ScheduleError: The position is not open, or its working state is not that of `at`.

        Example:
            >>> position = Position(steps=100, open=True).after(Forward(start=0, stop=7))
            >>> position.ended(7).steps
            7
        """
        if not self.open or self.state != at:
            raise ScheduleError(
                f"The loop cannot end at step {at}: the working state is that of step {self.state} of at most "
                f"{self.steps} steps, and the position is {'open' if self.open else 'not open'}. End an open "
                "position at the step of its working state."
            )
        if self.snapshots and self.snapshots[-1].step >= at:
            raise ScheduleError(
                f"The loop cannot end at step {at}: there is a snapshot of step {self.snapshots[-1].step}. "
                "Delete it first."
            )
        return replace(self, steps=at, open=False)

    def to_json(self) -> dict[str, object]:
        """
        Return the position as a dict of plain values, ready for `json.dumps`.

        Example:
            >>> Position(steps=2).to_json()["snapshots"]
            []
        """
        return {
            "steps": self.steps,
            "reversed": self.reversed,
            "state": self.state,
            "saved": None if self.saved is None else list(self.saved),
            "forward_ended": self.forward_ended,
            "finished": self.finished,
            "snapshots": [[snapshot.step, snapshot.kind, snapshot.tier] for snapshot in self.snapshots],
            "open": self.open,
        }

    @staticmethod
    def from_json(record: Mapping[str, object]) -> Position:
        """
        Return the position that `to_json` wrote.

        Args:
            record: What `json.loads` returned.

        Returns:
            The position.

        Raises:
            ScheduleError: A field is missing or of the wrong type, or the numbers do not fit together.

        Example:
            >>> Position.from_json(Position(steps=2).to_json()) == Position(steps=2)
            True
        """
        try:
            rows = cast("Sequence[tuple[int, str, str]]", record["snapshots"])
            return Position(
                steps=cast("int", record["steps"]),
                reversed=cast("int", record["reversed"]),
                state=cast("int | None", record["state"]),
                saved=cast("tuple[int, int] | None", record["saved"]),
                forward_ended=flag_of(record["forward_ended"]),
                finished=flag_of(record["finished"]),
                snapshots=tuple([Snapshot(step, kind, tier) for step, kind, tier in rows]),
                open=flag_of(record["open"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(
                f"The record {record!r} is no position ({type(error).__name__}: {error}). "
                "Give what Position.to_json returned."
            ) from error

def _made(
    steps: int, done: int, state: int | None, saved: tuple[int, int] | None, ended: bool, finished: bool,
    snapshots: Snapshots, still_open: bool, on_disk: int, saved_snapshots: int,
    before: Snapshots | None,
) -> Position:  # fmt: skip
    """Return a position of its fields, without looking at them."""
    position: Any = _new(_Fields)
    position.steps = steps
    position.reversed = done
    position.state = state
    position.saved = saved
    position.forward_ended = ended
    position.finished = finished
    position.snapshots = snapshots
    position.open = still_open
    position.on_disk = on_disk
    position.saved_snapshots = saved_snapshots
    position.before = before
    position.end = steps - done
    position.__class__ = Position
    return position
