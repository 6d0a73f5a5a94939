"""
Draw the pictures of docs/schedules.md, each from the trace of its schedule: `python docs/draw_schedules.py [FOLDER]`.

It needs matplotlib and checkpoint_schedules.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoint_schedules import MultistageCheckpointSchedule
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ebbtide.schedules import (
    Copy,
    Costs,
    Delete,
    Forward,
    Hierarchical,
    Mixed,
    Move,
    NoReverse,
    Online,
    Periodic,
    Position,
    Reverse,
    Revolve,
    Schedule,
    StoreAll,
    from_checkpoint_schedules,
)

STEPS = 40
MULTISTAGE = from_checkpoint_schedules(MultistageCheckpointSchedule(STEPS, 2, 3))
# The name of the picture, the schedule, and whether the length of the loop is not known before its end.
SCHEDULES: tuple[tuple[str, Schedule, bool], ...] = (
    ("store_all", StoreAll(), False),
    ("store_all_on_disk", StoreAll("disk"), False),
    ("revolve", Revolve(4), False),
    ("mixed", Mixed(4), False),
    ("hierarchical", Hierarchical(2, 3, Costs(write=2.0, read=2.0)), False),
    ("periodic", Periodic(10, 3), False),
    ("online", Online(4), True),
    ("no_reverse", NoReverse(), False),
    ("multistage", MULTISTAGE, False),
)
# A recorded schedule prints all its actions, and costs the two that are as they are by default.
TITLES = {
    "multistage": f"MultistageCheckpointSchedule({STEPS}, 2, 3)",
    "hierarchical": "Hierarchical(2, 3, Costs(write=2.0, read=2.0))",
}
# Colors that differ in lightness too, for print and for the color-blind.
RUN, SAVE, BACK = "0.6", "#2a6f97", "#9e2a2b"
HELD = {"memory": "#e09f3e", "disk": "#40513b"}
STYLES = {"restart": "-", "saved": (0, (1, 1))}


def draw(folder: Path, name: str, schedule: Schedule, is_open: bool) -> None:
    """
    Follow a schedule and draw its way.

    Args:
        folder: Where the picture goes.
        name: The name of the picture.
        schedule: The schedule.
        is_open: Whether the length of the loop is not known before its end.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes: Any = figure.add_subplot()
    position = Position(steps=10 * STEPS, open=True) if is_open else Position(steps=STEPS)
    clock, since, forward = 0, {}, 0
    while not _ended(schedule, position) and (action := schedule.next_action(position)) is not None:
        before = clock
        if isinstance(action, Forward):
            stop = min(action.stop, STEPS)
            action = replace(action, stop=stop)
            clock += stop - action.start
            forward += stop - action.start
            keeps = action.save or (action.snapshot and action.kind == "saved")
            axes.plot([before, clock], [action.start, stop], color=SAVE if keeps else RUN, lw=1.6 if keeps else 1.0)
        elif isinstance(action, Reverse):
            clock += action.start - action.stop
            axes.plot([before, clock], [action.start, action.stop], color=BACK, lw=1.6)
        elif isinstance(action, (Copy, Move)):
            axes.plot(clock, action.step, marker="^", ms=3, color="black", lw=0)
        held = {kept.step: kept for kept in position.snapshots}
        position = position.after(action)
        if is_open and position.open and position.state == STEPS:
            position = position.ended(STEPS)
        now = {kept.step: kept for kept in position.snapshots}
        since.update(dict.fromkeys(now.keys() - held.keys(), before))
        for step in held.keys() - now.keys():
            kept = held[step]
            color, style = HELD[kept.tier], STYLES[kept.kind]
            axes.plot([since.pop(step), clock], [step, step], color=color, ls=style, lw=1.8, zorder=1)
            if isinstance(action, Delete):
                axes.plot(clock, step, marker="x", ms=4, color="black", lw=0)
    axes.set_xlim(0, clock * 1.005)
    axes.set_ylim(-0.8, STEPS + 0.8)
    axes.set_xlabel("forward steps and reversals done")
    axes.set_ylabel("step of the loop")
    axes.set_title(f"{TITLES.get(name, schedule)}: {STEPS} steps, {forward} forward steps", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    _explain(figure)
    figure.savefig(folder / f"{name}.png", dpi=110)


def _ended(schedule: Schedule, position: Position) -> bool:
    """Whether nothing more can be drawn: there may be no reverse sweep."""
    return isinstance(schedule, NoReverse) and position.forward_ended


def _explain(figure: Figure) -> None:
    """Put the legend, the same for all, below a picture."""
    handles = [
        Line2D([], [], color=RUN, lw=1.0, label="run"),
        Line2D([], [], color=SAVE, lw=1.6, label="run, saved values kept"),
        Line2D([], [], color=BACK, lw=1.6, label="reverse"),
        Line2D([], [], color=HELD["memory"], lw=1.8, label="in memory"),
        Line2D([], [], color=HELD["disk"], lw=1.8, label="on disk"),
        Line2D([], [], color="0.3", ls=STYLES["saved"], lw=1.8, label="saved values"),
        Line2D([], [], color="black", marker="^", ms=3, lw=0, label="load"),
        Line2D([], [], color="black", marker="x", ms=4, lw=0, label="delete"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "schedules"
    target.mkdir(exist_ok=True)
    for row in SCHEDULES:
        draw(target, *row)
