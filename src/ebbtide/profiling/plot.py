"""The picture of the memory timeline."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.budget import format_bytes

if TYPE_CHECKING:
    from ebbtide.timeline import Timeline

# Colors that differ in lightness too, for print and for the color-blind.
_COLORS = ("#2a6f97", "#e09f3e", "#90be6d", "#9e2a2b")
_UNITS = (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))
_TIMES = (("microseconds", 1e-6), ("milliseconds", 1e-3), ("seconds", 1.0))
# A phase narrower than this part of the picture has no room for its name.
_NARROW = 0.06


def check_picture(path: Any) -> Path:
    """
    Return where a picture goes.

    Raises:
        TypeError: It is neither text nor a path.
        ValueError: It is a directory, or in none.
    """
    if not isinstance(path, (str, Path)):
        raise TypeError(f"A picture goes to a file, named by a str or a pathlib.Path, and not to {path!r:.60}.")
    named = Path(path)
    if named.is_dir():
        raise ValueError(f"The picture cannot be written: {str(named)!r} is a directory. Give the name of a file.")
    if not named.parent.is_dir():
        raise ValueError(f"The picture cannot be written: {str(named.parent)!r} is not a directory. Give another name.")
    return named


def draw_timeline(timeline: Timeline, kinds: tuple[str, ...], limit: int | None, path: str | Path) -> None:
    """
    Draw bytes held by kind over time.

    Args:
        timeline: What the ledger recorded.
        kinds: Names of the kinds, in the order of its points.
        limit: The budget in bytes; None for none.
        path: Where the picture goes.

    Raises:
        ImportError: There is no matplotlib.
        TypeError: The path is none.
        ValueError: It is that of a directory, or in none.
    """
    path = check_picture(path)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A picture needs matplotlib: pip install 'ebbtide[plot]'.") from error
    points = timeline.points or [(0.0, (0,) * len(kinds), "forward")]
    totals = [sum(held) for _, held, _ in points]
    # A budget far above everything would leave a flat line of the rest: then it is in the legend only.
    shown = limit is not None and limit <= 4 * max(totals)
    most = max([*totals, limit or 0]) if shown else max(totals)
    unit, size = next((pair for pair in reversed(_UNITS) if most >= 2 * pair[1]), _UNITS[0])
    start = points[0][0]
    length = points[-1][0] - start or 1.0
    clock, second = next((pair for pair in reversed(_TIMES) if length >= pair[1]), _TIMES[0])
    times = [(time - start) / second for time, _, _ in points]

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_xlim(0, length / second)
    axes.set_ylim(0, 1.16 * (most or 1) / size)
    _draw_phases(axes, times, [phase for _, _, phase in points], length / second)
    rows = [[held[k] / size for _, held, _ in points] for k in range(len(kinds))]
    drawn = [k for k in range(len(kinds)) if any(rows[k])]
    if drawn:
        axes.stackplot(
            times, *[rows[k] for k in drawn], labels=[kinds[k] for k in drawn], colors=[_COLORS[k] for k in drawn],
            step="post", linewidth=0,
        )  # fmt: skip
        _mark_peak(axes, times, totals, size, limit)
    if limit is not None:
        label = f"budget {format_bytes(limit)}" + ("" if shown else ", far above")
        label += " beyond the function alone" if max(totals) > limit else ""
        axes.plot([0, length / second], [limit / size] * 2, color="black", lw=1.2, ls="--", label=label, scaley=False)
    axes.set_xlabel(clock)
    axes.set_ylabel(f"held by the library, {unit}")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=150)


def _draw_phases(axes: Any, times: list[float], phases: list[str], length: float) -> None:
    """Shade the reverse sweeps and write the names of phases that are wide enough."""
    starts = [next(group) for _, group in groupby(range(len(phases)), key=phases.__getitem__)]
    for first, after in zip(starts, [*starts[1:], None], strict=True):
        left = 0.0 if first == 0 else times[first]
        right = length if after is None else times[after]
        if phases[first] == "reverse":
            axes.axvspan(left, right, color="0.94", linewidth=0, zorder=0)
            axes.axvline(left, color="0.55", linewidth=0.8)
        if right - left >= _NARROW * length:
            axes.text(
                (left + right) / 2, 0.965, phases[first], transform=axes.get_xaxis_transform(),
                ha="center", va="center", color="0.3",
            )  # fmt: skip


def _mark_peak(axes: Any, times: list[float], totals: list[int], size: int, limit: int | None) -> None:
    """Mark the first moment of most bytes with their number, which is below it where the line of the budget is near."""
    top = max(range(len(totals)), key=totals.__getitem__)
    late = times[top] > 0.8 * axes.get_xlim()[1]
    below = limit is not None and 0 <= limit - totals[top] < 0.1 * limit
    offset = -7 if late else 7, -4 if below else 4
    axes.plot(times[top], totals[top] / size, marker="o", markersize=4, color="black", clip_on=False)
    axes.annotate(
        f"peak {format_bytes(totals[top])}", (times[top], totals[top] / size), xytext=offset,
        textcoords="offset points", ha="right" if late else "left", va="top" if below else "bottom", zorder=5,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )  # fmt: skip
