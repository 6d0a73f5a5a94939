"""
How to stir a disc of smoke into a star? The initial velocity of a fluid, found by the gradient through the whole flow.

An incompressible fluid on a periodic square carries its velocity and the smoke along. In each step both are traced
back along the velocity, and the part of the velocity that would compress the fluid is taken off in Fourier space.

    python examples/fluid_simulation.py --memory 16MiB --output smoke.png

Source: Stam (1999), Stable fluids, sections 2.2 to 2.4; the problem is that of Treuille, McNamara, Popovic, Stam
(2003), Keyframe control of smoke simulations.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebbtide
from ebbtide.optimize import Control, Minimum, ReducedFunctional, minimize

Array = NDArray[np.float64]

TIME_STEP = 1.0
# Weight of the work that stirring takes: the mean square of the velocity, in cells a step.
EFFORT = 1e-4
# The four cells along an axis from which a value is interpolated, from the one at or before its place.
NEIGHBOURS = np.arange(-1, 3)


def disc_and_star(cells: int) -> tuple[Array, Array]:
    """Return two densities from 0 to 1 with edges of about a cell, of the same area, each of shape (cells, cells)."""
    y, x = np.meshgrid(*2 * [np.arange(cells) / cells - 0.5], indexing="ij")
    radius, angle = np.hypot(x, y), np.arctan2(x, y)
    around = np.linspace(0.0, 2.0 * np.pi, 1000, endpoint=False)
    outline = 1.0 + 0.3 * np.cos(5.0 * around)
    scale = 0.25 / np.sqrt(np.mean(outline**2))
    disc = 0.5 - 0.5 * np.tanh((radius - 0.25) * cells)
    star = 0.5 - 0.5 * np.tanh((radius - scale * (1.0 + 0.3 * np.cos(5.0 * angle))) * cells)
    return disc, star


def divergence_free(velocity: Any) -> Any:
    """
    Return the part of a velocity that compresses nothing.

    Args:
        velocity: Along rows and columns, in cells a step, shape (2, cells, cells).

    Source:
        Stam (1999), section 2.4: the part along the wave vector is taken off.
    """
    cells = velocity.shape[-1]
    k = np.fft.fftfreq(cells)[:, None], np.fft.rfftfreq(cells)[None, :]
    square = np.maximum(k[0] ** 2 + k[1] ** 2, 1e-30)
    waves = np.fft.rfft2(velocity)
    along = (k[0] * waves[0] + k[1] * waves[1]) / square
    return np.fft.irfft2(waves - np.stack([k[0] * along, k[1] * along]), s=(cells, cells))


def weights(part: Any) -> Any:
    """
    Return the weights of the four neighbours along an axis, for a place so far from the second to the third.

    Source:
        Catmull, Rom (1974), A class of local interpolating splines. Their slope has no jumps, as that of linear
        interpolation has at each cell: there a search would end wherever it meets one.
    """
    return 0.5 * np.stack(
        [
            ((2.0 - part) * part - 1.0) * part,
            (3.0 * part - 5.0) * part**2 + 2.0,
            ((4.0 - 3.0 * part) * part + 1.0) * part,
            (part - 1.0) * part**2,
        ],
        axis=-1,
    )


def carried(values: Any, velocity: Any) -> Any:
    """Return what a velocity brings to each cell in a step, by cubic interpolation where it comes from."""
    cells = velocity.shape[-1]
    y, x = np.arange(cells)[:, None] - TIME_STEP * velocity[0], np.arange(cells) - TIME_STEP * velocity[1]
    row, column = np.floor(y), np.floor(x)
    rows = (row.astype(int)[..., None] + NEIGHBOURS) % cells
    columns = (column.astype(int)[..., None] + NEIGHBOURS) % cells
    around = values[..., rows[..., :, None], columns[..., None, :]]
    return np.sum(np.sum(around * weights(x - column)[..., None, :], axis=-1) * weights(y - row), axis=-1)


def flow(velocity: Any, smoke: Array, steps: int) -> Any:
    """Return the smoke after so many steps that start with a velocity, of which the compressing part is left out."""

    def step(state: Any, _: Any) -> Any:
        velocity, smoke = state
        return divergence_free(carried(velocity, velocity)), carried(smoke, velocity)

    return ebbtide.timeloop(step, (divergence_free(velocity), smoke), steps, progress=False)[1]


def misfit(velocity: Any, smoke: Array, target: Array, steps: int) -> Any:
    """Return how far the smoke is from its target, with what stirring takes."""
    return np.mean((flow(velocity, smoke, steps) - target) ** 2) + EFFORT * np.mean(velocity**2)


def stir(
    cells: int, steps: int, iterations: int, budget: ebbtide.Budget | None = None, *, progress: bool = False
) -> Minimum:
    """Return the velocity for which the misfit is least, or where that many iterations end."""
    smoke, target = disc_and_star(cells)
    control = Control(np.zeros((2, cells, cells)))
    functional = ReducedFunctional(lambda u: misfit(u, smoke, target, steps), control, budget=budget)
    options = {"maxiter": iterations, "maxfun": 4 * iterations}
    return minimize(functional, options=options, progress=progress)


def draw(velocity: Array, cells: int, steps: int, path: Path) -> None:
    """Write a picture of the smoke on its way, and of the target."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    smoke, target = disc_and_star(cells)
    times = [0, steps // 3, 2 * steps // 3, steps]
    panels = [(f"step {n}", flow(velocity, smoke, n) if n else smoke) for n in times] + [("target", target)]
    figure, axes = plt.subplots(1, len(panels), figsize=(3.0 * len(panels), 3.3), layout="constrained")
    for axis, (title, density) in zip(axes, panels, strict=True):
        axis.imshow(density, cmap="bone_r", vmin=0.0, vmax=1.0, interpolation="bilinear")
        axis.set(title=title, xticks=[], yticks=[])
    arrows = divergence_free(velocity)[:, ::4, ::4]
    places = np.arange(0, cells, 4)
    axes[0].quiver(places, places, arrows[1], arrows[0], color="tab:red", angles="xy")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    """Find the velocity, and draw the flow."""
    parser = argparse.ArgumentParser(description="The velocity that stirs a disc of smoke into a star.")
    parser.add_argument("--cells", type=int, default=48, help="along each side (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of the flow (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=60, help="at most (default: %(default)s)")
    parser.add_argument("--memory", default="16MiB", help="budget of a gradient (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("smoke.png"), help="picture (default: %(default)s)")
    given = parser.parse_args()
    found = stir(given.cells, given.steps, given.iterations, ebbtide.Budget(memory=given.memory), progress=True)
    print(found)
    draw(found.m, given.cells, given.steps, given.output)
    print(f"picture: {given.output}")
    return 0 if found.value < 0.3 * found.values[0] else 1


if __name__ == "__main__":
    sys.exit(main())
