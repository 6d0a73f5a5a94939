"""
Which hollows and ridges of today's surface decide how the land looks in two million years?

Nonlinear hillslope diffusion on a real elevation grid: soil creeps downhill at a rate that grows without
bound as the slope nears a critical one,

    dz/dt = div( D grad z / (1 - (|grad z| / S_c)^2) ),

and the gradient of the final misfit, to a surface that another diffusivity made, is taken with respect to
every elevation of the initial surface and to D, inside a memory budget.

    python examples/hillslope.py --steps 2000 --memory 64MiB --output hillslope.png

Data: elevations near Jacksboro, Tennessee, of the United States Geological Survey, 344 x 403 nodes of 3 arc
seconds, in meters; the file jacksboro_fault_dem.npz comes with matplotlib.

Source: Roering, Kirchner, Dietrich (1999), Evidence for nonlinear, diffusive sediment transport on
hillslopes and implications for landscape morphology, Water Resources Research 35(3). D and S_c have the
size of those found there for the Oregon Coast Range; the grid is coarser than a hillslope, so this is an
illustration.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebbtide
from ebbtide.budget import format_bytes
from ebbtide.errors import EbbtideError

Surface = NDArray[np.float64]

DIFFUSIVITY = 0.0036  # square meters a year
OBSERVED_DIFFUSIVITY = 0.0050
CRITICAL_SLOPE = 1.25
# The flux has a pole at the critical slope; the data stay clear of it (their steepest face has 0.97).
MOST_RELATIVE_SLOPE = 0.9
TIME_STEP = 1000.0  # years
AGREEMENT = 1e-5


@dataclass(frozen=True, slots=True)
class Terrain:
    """
    An elevation grid.

    Args:
        elevation: Meters, shape (rows, columns), the first row in the north.
        east: Meters between neighboring columns.
        north: Meters between neighboring rows.
    """

    elevation: Surface
    east: float
    north: float


def load_terrain() -> Terrain:
    """
    Return the elevation grid that matplotlib ships.

    Source: lengths of a degree from the series for the WGS 84 ellipsoid, at the middle latitude of the grid.
    """
    from matplotlib.cbook import get_sample_data

    data = get_sample_data("jacksboro_fault_dem.npz")
    latitude = np.radians(0.5 * (float(data["ymin"]) + float(data["ymax"])))
    degree_north = 111132.954 - 559.822 * np.cos(2.0 * latitude) + 1.175 * np.cos(4.0 * latitude)
    degree_east = 111412.84 * np.cos(latitude) - 93.5 * np.cos(3.0 * latitude)
    return Terrain(
        elevation=np.array(data["elevation"], dtype=np.float64),
        east=float(data["dx"] * degree_east),
        north=float(data["dy"] * degree_north),
    )


def face_slopes(surface: Any, terrain: Terrain) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """
    Return the slopes on the faces of the inner nodes, as fractions of the critical slope.

    Args:
        surface: Elevations in meters, shape (rows, columns).
        terrain: The spacings.

    Returns:
        For the faces between columns, shape (rows - 2, columns - 1), the slope across the face and along
        it; the same for the faces between rows, shape (rows - 1, columns - 2).
    """
    east, north = terrain.east * CRITICAL_SLOPE, terrain.north * CRITICAL_SLOPE
    to_east = (surface[1:-1, 1:] - surface[1:-1, :-1]) * (1.0 / east)
    to_south = (surface[1:, 1:-1] - surface[:-1, 1:-1]) * (1.0 / north)
    # Along a face: the mean of the central differences at the two nodes that it separates.
    rows = surface[2:, :] - surface[:-2, :]
    columns = surface[:, 2:] - surface[:, :-2]
    along_east = (rows[:, 1:] + rows[:, :-1]) * (0.25 / north)
    along_south = (columns[1:, :] + columns[:-1, :]) * (0.25 / east)
    return (to_east, along_east), (to_south, along_south)


def step(surface: Any, diffusivity: Any, terrain: Terrain) -> Any:
    """
    Advance the surface by `TIME_STEP`, in place; elevations on the boundary stay.

    Args:
        surface: Elevations in meters, shape (rows, columns).
        diffusivity: D, square meters a year, a float or a 0-d array.
        terrain: The spacings.

    Returns:
        `surface`.
    """
    (to_east, along_east), (to_south, along_south) = face_slopes(surface, terrain)
    flux_east = to_east / (1.0 - (to_east * to_east + along_east * along_east))
    flux_south = to_south / (1.0 - (to_south * to_south + along_south * along_south))
    gain = (flux_east[:, 1:] - flux_east[:, :-1]) * (1.0 / terrain.east)
    gain += (flux_south[1:, :] - flux_south[:-1, :]) * (1.0 / terrain.north)
    surface[1:-1, 1:-1] += (diffusivity * (TIME_STEP * CRITICAL_SLOPE)) * gain
    return surface


def evolve(surface: Any, diffusivity: Any, terrain: Terrain, steps: int) -> Any:
    """Return the surface after a number of steps, differentiable in surface and diffusivity."""

    def advance(state: Any, _index: Any) -> Any:
        return step(state, diffusivity, terrain)

    return ebbtide.timeloop(advance, surface, steps, progress=True)


def check_stable(terrain: Terrain, diffusivity: float) -> tuple[float, float]:
    """
    Return the steepest slope and the stability number of the explicit step, or refuse them.

    Args:
        terrain: The initial surface; diffusion only makes it less steep.
        diffusivity: D, square meters a year.

    Returns:
        The steepest slope, and 2 dt D' (1/dx^2 + 1/dy^2) with the largest derivative D' of the flux by the
        slope.

    Raises:
        ValueError: The surface is too close to the critical slope, or the step is too long.
    """
    faces = face_slopes(terrain.elevation, terrain)
    relative = max(float(np.max(across**2 + along**2)) ** 0.5 for across, along in faces)
    if relative > MOST_RELATIVE_SLOPE:
        raise ValueError(
            f"The steepest slope is {relative * CRITICAL_SLOPE:.3g}, more than {MOST_RELATIVE_SLOPE:g} of "
            f"the critical slope {CRITICAL_SLOPE:g}, where the flux has a pole: smooth the surface."
        )
    stiffest = diffusivity * (1.0 + relative**2) / (1.0 - relative**2) ** 2
    number = 2.0 * TIME_STEP * stiffest * (1.0 / terrain.east**2 + 1.0 / terrain.north**2)
    if number > 1.0:
        raise ValueError(f"The step is unstable: its stability number is {number:.3g}, and at most 1 is stable.")
    return relative * CRITICAL_SLOPE, number


def finite_difference(along: Callable[[float], float], distance: float) -> float:
    """Return the derivative of a function at 0 by the central difference."""
    return (along(distance) - along(-distance)) / (2.0 * distance)


def draw(terrain: Terrain, final: Surface, gradient: Surface, caption: str, path: Path) -> None:
    """Write a picture of the initial surface, its change, and the gradient."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LightSource

    initial = terrain.elevation
    rows, columns = initial.shape
    extent = (0.0, columns * terrain.east / 1000.0, 0.0, rows * terrain.north / 1000.0)
    light = LightSource(azdeg=315.0, altdeg=45.0)
    shade = light.hillshade(initial, vert_exag=2.0, dx=terrain.east, dy=terrain.north)
    panels = (
        (initial, "Initial surface z\u2080", "elevation (m)", "terrain", False),
        (final - initial, "Change over the run", "z \u2212 z\u2080 (m)", "RdBu_r", True),
        (
            gradient * 1e6,
            "Gradient with respect to z\u2080",
            "dJ/dz\u2080 (10\u207b\u2076 m)",
            "PuOr_r",
            True,
        ),
    )
    figure, axes = plt.subplots(1, 3, figsize=(15.0, 6.0), layout="constrained")
    for axis, (values, title, label, colors, centered) in zip(axes, panels, strict=True):
        axis.imshow(shade, cmap="gray", extent=extent)
        top = float(np.percentile(np.abs(values), 99.5)) if centered else float(values.max())
        low = -top if centered else float(values.min())
        image = axis.imshow(values, cmap=colors, extent=extent, vmin=low, vmax=top, alpha=0.7)
        extend = "both" if centered else "neither"
        bar = figure.colorbar(image, ax=axis, orientation="horizontal", shrink=0.7, extend=extend)
        bar.set_label(label)
        axis.set_title(title)
        axis.set_xlabel("east (km)")
    axes[0].set_ylabel("north (km)")
    figure.suptitle(caption)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def check_gradient(misfit: Callable[[Any, Any], Any], terrain: Terrain, slopes: tuple[Any, Any]) -> tuple[bool, str]:
    """Compare both gradients with finite differences, print them, and return the verdict and a line on D."""
    slope_surface, slope_diffusivity = np.asarray(slopes[0]), float(slopes[1])
    moved = np.random.default_rng(1).standard_normal(terrain.elevation.shape)
    print("Finite differences", flush=True)
    by_diffusivity = finite_difference(
        lambda e: float(misfit(terrain.elevation, DIFFUSIVITY * (1.0 + e))) / DIFFUSIVITY, 1e-4
    )
    by_surface = finite_difference(lambda e: float(misfit(terrain.elevation + e * moved, DIFFUSIVITY)), 1e-3)
    pairs = (
        ("dJ/dD", slope_diffusivity, by_diffusivity),
        ("dJ/dz0 . m", float(np.sum(slope_surface * moved)), by_surface),
    )
    right = True
    print(f"  {'':<12} {'gradient':>20} {'finite difference':>20} {'relative error':>16}")
    for name, found, expected in pairs:
        error = abs(found - expected) / abs(expected)
        right = right and error < AGREEMENT
        print(f"  {name:<12} {found:>20.10e} {expected:>20.10e} {error:>16.1e}")
    return (
        right,
        f"dJ/dD = {slope_diffusivity:.6g} m\u00b2/(m\u00b2/yr); finite difference: {by_diffusivity:.6g}",
    )


def run(steps: int, memory: str, output: Path) -> int:
    """Take the gradient, check it, draw it; return 0 if it agrees with finite differences, else 1."""
    if steps < 1:
        raise ValueError(f"The run needs at least 1 step, not {steps}: give --steps 1 or more.")
    if not output.parent.is_dir():
        raise ValueError(f"The picture cannot be written: {str(output.parent)!r} is not a directory.")
    budget = ebbtide.Budget(memory=memory)
    terrain = load_terrain()
    steepest, number = check_stable(terrain, OBSERVED_DIFFUSIVITY)
    rows, columns = terrain.elevation.shape
    print(
        f"{rows} x {columns} nodes of {terrain.east:.1f} m x {terrain.north:.1f} m, steepest slope {steepest:.3f} of a"
    )
    print(f"critical {CRITICAL_SLOPE:g}; {steps:,} steps of {TIME_STEP:g} years, stability number {number:.3f} of 1")
    observed = terrain.elevation.copy()
    for _ in range(steps):
        step(observed, OBSERVED_DIFFUSIVITY, terrain)

    def misfit(surface: Any, diffusivity: Any) -> Any:
        difference = evolve(surface, diffusivity, terrain, steps) - observed
        return 0.5 * np.mean(difference * difference)

    print("Gradient with respect to initial surface and diffusivity", flush=True)
    with ebbtide.profile() as profile:
        gradient = ebbtide.value_and_grad(misfit, argnums=(0, 1), budget=budget)
        value, slopes = gradient(terrain.elevation, DIFFUSIVITY)
    print(profile.loops[-1].plan)
    peak = format_bytes(profile.peak_bytes)
    print(f"J = {float(value):.10g} m\u00b2; peak {peak}; {profile.steps_forward:,} forward steps")
    right, line = check_gradient(misfit, terrain, slopes)
    final = evolve(terrain.elevation, DIFFUSIVITY, terrain, steps)
    caption = f"{steps * TIME_STEP / 1e6:g} million years of hillslope diffusion, Jacksboro, Tennessee: {line}"
    draw(terrain, np.asarray(final), np.asarray(slopes[0]), caption, output)
    print(f"picture: {output}\n{'ok' if right else 'FAIL'}: gradient and finite differences")
    return 0 if right else 1


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Gradient of nonlinear hillslope diffusion on a real surface.")
    parser.add_argument("--steps", type=int, default=2000, help="steps of 1000 years (default: %(default)s)")
    parser.add_argument("--memory", default="64MiB", help="memory budget (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("hillslope.png"), help="picture (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        return run(arguments.steps, arguments.memory, arguments.output)
    except (EbbtideError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
