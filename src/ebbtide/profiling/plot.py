"""The picture of the memory timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.budget import format_bytes

if TYPE_CHECKING:
    from ebbtide.ledger import Timeline

# Colors that differ in lightness too, for print and for the color-blind.
_COLORS = ("#2a6f97", "#e09f3e", "#90be6d", "#9e2a2b")
_MIB = 2**20


def draw_timeline(timeline: Timeline, kinds: tuple[str, ...], limit: int | None, path: Path) -> None:
    """
    Draw bytes held by kind over time.

    Args:
        timeline: What the ledger recorded.
        kinds: Names of the kinds, in the order of its points.
        limit: The budget in bytes; None for none.
        path: Where the picture goes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A picture needs matplotlib: pip install 'ebbtide[plot]'.") from error
    points = timeline.points
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()
    times = [time for time, _, _ in points] or [0.0]
    rows = [[held[k] / _MIB for _, held, _ in points] or [0.0] for k in range(len(kinds))]
    shown = [k for k in range(len(kinds)) if any(rows[k])]
    axes.stackplot(
        times, *[rows[k] for k in shown], labels=[kinds[k] for k in shown], colors=[_COLORS[k] for k in shown],
        step="post", linewidth=0,
    )  # fmt: skip
    most = max((sum(held) for _, held, _ in points), default=0) / _MIB
    top = most if limit is None or limit / _MIB > 4 * max(most, 1e-9) else max(most, limit / _MIB)
    axes.set_ylim(0, 1.12 * top or 1)
    axes.set_xlim(times[0], times[-1] or 1)
    if limit is not None and limit / _MIB <= 1.12 * top:
        axes.axhline(limit / _MIB, color="black", linewidth=1.2, linestyle="--", label=f"budget {format_bytes(limit)}")
    turn = next((time for time, _, phase in points if phase == "reverse"), None)
    if turn is not None:
        axes.axvline(turn, color="0.3", linewidth=0.8)
        for place, align, text in ((turn, "right", "forward "), (turn, "left", " reverse")):
            axes.text(place, 1.06 * top, text, ha=align, va="center", color="0.3")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB held by the library")
    axes.spines[["top", "right"]].set_visible(False)
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        figure.legend(loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=150)
