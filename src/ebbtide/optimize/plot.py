"""The picture of a Taylor test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebbtide.profiling.plot import check_picture

# Colors that differ in lightness too, for print and for the color-blind.
_COLORS = ("#2a6f97", "#e09f3e", "#9e2a2b")
_MARKERS = ("o", "s", "^")
# The part of the picture's height that what may be rounding has at least, beside all above it.
_BAND = 0.1


def draw_taylor(
    distances: Sequence[float],
    remainders: Sequence[Sequence[float]],
    floors: Sequence[float],
    rates: Sequence[float],
    path: str | Path,
) -> None:
    """
    Draw remainders over distances, both logarithmic.

    Args:
        distances: The distances.
        remainders: For each order, the remainder at each distance; those that are zero are left out.
        floors: At each distance, what may be rounding; shaded.
        rates: For each order, its rate, nan if unknown.
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
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    for order, (sizes, rate) in enumerate(zip(remainders, rates, strict=True)):
        points = [(e, size) for e, size in zip(distances, sizes, strict=True) if size > 0 and math.isfinite(size)]
        if not points:
            continue
        color = _COLORS[order % len(_COLORS)]
        known = "in rounding" if math.isnan(rate) else f"rate {rate:.2f}"
        axes.plot(
            *zip(*points, strict=True), color=color, marker=_MARKERS[order % len(_MARKERS)], markersize=4.5, lw=1.3,
            label=f"order {order}: {known}, {order + 1} is right",
        )  # fmt: skip
        _draw_slope(axes, points, order + 1, dict(zip(distances, floors, strict=True)), color)
    low, high = axes.get_ylim()
    if min(floors) > 0:
        # Below the floor at the largest distance, where no remainder has come down to it, there is room for the word.
        top = max(high, floors[0])
        low = min(low, min(floors) / 10, floors[0] * (floors[0] / top) ** _BAND)
        axes.fill_between(distances, low, floors, color="0.93", linewidth=0, zorder=0)
        axes.text(distances[0], floors[0], "rounding ", color="0.4", ha="right", va="top")
    axes.set_ylim(low, high)
    axes.set_xlabel("distance e")
    axes.set_ylabel("remainder (dotted: the right rate)")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
    figure.savefig(path, dpi=150)


def _draw_slope(
    axes: Any, points: list[tuple[float, float]], rate: int, floors: dict[float, float], color: str
) -> None:
    """Draw the slope that is right through the last point above rounding, where higher terms have died out."""
    seen = [(e, size) for e, size in points if size > floors[e]]
    if seen:
        near, size = seen[-1]
        far = points[0][0]
        # The limits of the picture are those of the remainders.
        axes.plot([near, far], [size, size * (far / near) ** rate], color=color, lw=0.9, ls=":", zorder=1, scaley=False)
