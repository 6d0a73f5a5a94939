"""A snapshot on disk every so many steps, written and read behind the steps, and binomial ones in memory between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.errors import ScheduleError
from ebbtide.schedules.actions import Action, copy, move, run
from ebbtide.schedules.asked import steps_and_sizes, steps_of, steps_of_time
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.block import block_action, make_way_back
from ebbtide.schedules.continuing import restart_action
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position
from ebbtide.schedules.records import make_plain
from ebbtide.schedules.revolve import count_forward


@final
@dataclass(frozen=True, slots=True)
class Periodic(Schedule):
    """
    Write the state to disk every `interval` steps; reverse interval by interval as `Revolve` does in memory.

    The number of forward steps for each step does not depend on the length of the loop; what is on disk grows with it.
    As each place is known from the last one alone, it serves loops whose length is not known, too. If the steps of an
    interval take longer than a transfer, which is made behind them, transfers cost nothing.

    It goes on from any position that can be completed: where a snapshot on disk is lost, the next sweep through its
    interval stores it again.

    Args:
        interval: Steps between two snapshots on disk.
        snapshots: The largest number of snapshots in memory.

    Raises:
        ScheduleError: A number is less than 1.

    Memory:
        Who follows it holds at most `snapshots` restart states in memory, the working state, and the saved values of
        one step; one state on its way to disk and one on its way back come to it. On disk it holds a state for each
        interval but the last.

    Source:
        Kukreja, Hueckelheim and Gorman, High-level python abstractions for optimal checkpointing in inversion problems
        (asynchronous two-level checkpointing), arXiv 1806.01117.

    Example:
        >>> Periodic(50, 10).forward_steps(1000), Periodic(50, 10).forward_steps(100_000)
        (3710, 375950)
    """

    interval: int
    snapshots: int

    def __post_init__(self) -> None:
        make_plain(self, "interval", "snapshots")
        if min(self.interval, self.snapshots) < 1:
            raise ScheduleError(
                f"Periodic needs an interval and a number of snapshots of at least 1, not {self.interval} and "
                f"{self.snapshots}. Give larger numbers."
            )

    def next_action(self, position: Position) -> Action | None:
        """See `Schedule.next_action`; its cost grows with the number of snapshots held."""
        return restart_action(position, self)

    def forward_steps(self, steps: int) -> int:
        """
        Return the number of forward steps of a whole gradient: each interval but the last is swept twice.

        Args:
            steps: The number of steps of the loop.
        """
        whole, last = self._divide(steps_of(steps))
        each, rest = (count_forward(length, self.snapshots) for length in (self.interval, last))
        return whole * (self.interval + each) + rest

    def peak_snapshots(self, steps: int) -> int:
        """Return the largest number of snapshots in memory and on disk at the same time, or at most one more."""
        whole, last = self._divide(steps_of(steps))
        in_last, in_whole = (min(self.snapshots, max(0, length - 1)) for length in (last, self.interval))
        return max(whole + in_last, whole - 1 + in_whole if whole else 0)

    def peak(self, steps: int, tier: str = "memory", *, restart: int = 1, saved: int = 1) -> int:
        """
        Return the largest size of what a loop holds at the same time; see `Schedule.peak`.

        Example:
            >>> Periodic(50, 10).peak(1000), Periodic(50, 10).peak(1000, "disk")
            (11, 19)
        """
        steps, restart, saved = steps_and_sizes(steps, tier, restart, saved)
        whole, last = self._divide(steps)
        if tier != "memory":
            return whole * restart
        longest = self.interval if whole else last
        return min(self.snapshots, max(0, longest - 1)) * restart + (saved if steps else 0)

    def predicted_time(self, steps: int, costs: Costs) -> float:
        """
        Return the time of a whole gradient if transfers are made behind the steps of the interval beside them.

        Args:
            steps: The number of steps of the loop.
            costs: What steps and transfers cost.

        Returns:
            In each interval the larger of steps and transfer, in the forward sweep and in the reverse sweep.

        Example:
            >>> Periodic(50, 10).predicted_time(1000, Costs(write=50, read=170))
            4710.0
        """
        whole, last = self._divide(steps_of_time(steps, costs))
        forward = max(costs.time(forward=self.interval) + costs.write_exposed, costs.write)
        work = costs.time(forward=count_forward(self.interval, self.snapshots), reverse=self.interval)
        return whole * (forward + max(work + costs.read_exposed, costs.read)) + costs.time(
            forward=count_forward(last, self.snapshots), reverse=last
        )

    def _divide(self, steps: int) -> tuple[int, int]:
        """The number of whole intervals before the last one, and the steps of the last one."""
        whole = max(0, steps - 1) // self.interval
        return whole, steps - whole * self.interval

    def choose(self, position: Position) -> Action:
        """See `RestartSchedule.choose`."""
        snapshots, end, state = position.snapshots, position.end, position.state
        way_back = make_way_back(position, self)
        if way_back is not None:
            return way_back
        if snapshots and snapshots[-1].tier == "memory":
            return block_action(position, self.snapshots)
        latest = snapshots[-1].step if snapshots else None
        if state is None or state >= end or (latest is not None and state < latest):
            assert latest is not None
            return copy(latest) if end - latest > self.interval else move(latest)
        near = state if latest is None else latest + self.interval
        if state == latest or state < near < end:
            # Towards the next place on disk; at the one before it the state is there already.
            return run(state, min(near, end))
        return self._start(position, state)

    def find_room(self, position: Position) -> str | None:
        """See `Roomy.find_room`."""
        return "disk"

    def beside(self, memory: int, disk: int) -> Periodic:
        """See `RestartSchedule.beside`; on disk it has no bound."""
        return Periodic(self.interval, max(1, self.snapshots - memory)) if memory else self

    def _start(self, position: Position, state: int) -> Action:
        """Between the working state and the end nothing is stored."""
        end = position.end
        # A loop whose length is not known is the longest one until it ends: its last interval is that at its bound.
        if end - state > self.interval:
            return run(state, min(end, state + self.interval), snapshot=True, tier="disk")
        if end - state == 1:
            return run(state, end, save=True)
        if self.snapshots + position.on_disk > len(position.snapshots):
            return block_action(position, self.snapshots)
        # The slots in memory are taken by what others left behind.
        return run(state, state + 1, snapshot=True, tier="disk")
