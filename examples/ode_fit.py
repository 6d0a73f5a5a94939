"""
How fast do hares multiply and lynxes starve? Lotka's and Volterra's equations, fitted to furs.

    du/dt = (a - b v) u,    dv/dt = (c u - d) v

for the numbers u of hares and v of lynxes, integrated by the classical Runge-Kutta method in a time loop. The four
rates and both initial numbers are fitted to the logarithms of the furs, by the gradient through all steps.

    python examples/ode_fit.py --output furs.png

Data: furs bought by the Hudson's Bay Company, 1900 to 1920, in thousands (Howard 2009, Modeling basic population
dynamics), of which a common model is that both were caught with the same effort each year.

Source: Hairer, Norsett, Wanner (1993), Solving Ordinary Differential Equations I, table 1.2 of section II.1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebbtide
from ebbtide.optimize import Minimum, minimize

Array = NDArray[np.float64]

YEARS = np.arange(1900, 1921)
HARES = np.array([30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1, 40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6,
                  14.6, 16.2, 24.7])  # fmt: skip
LYNXES = np.array([4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7,
                   10.1, 8.6])  # fmt: skip
STEPS = 10  # a year
FURS = np.log(np.stack([HARES, LYNXES], axis=1))
# Logarithms of a, b, c, d (a year) and of the numbers in 1900: cycles of about ten years.
START = np.log([0.6, 0.03, 0.03, 0.8, 30.0, 4.0])


def slope(populations: Any, rates: Any) -> Any:
    """Return the change of the logarithms of hares and lynxes a year, shape (2,)."""
    hares, lynxes = np.exp(populations)
    return np.stack([rates[0] - rates[1] * lynxes, rates[2] * hares - rates[3]])


@ebbtide.jit
def step(u: Any, rates: Any, h: float) -> tuple[Any, Any]:
    """Return the logarithms of the populations after a step of *h* years, and before it."""
    k1 = slope(u, rates)
    k2 = slope(u + 0.5 * h * k1, rates)
    k3 = slope(u + 0.5 * h * k2, rates)
    k4 = slope(u + h * k3, rates)
    return u + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4), u


def simulate(parameters: Any, years: int, steps: int) -> Any:
    """
    Return the logarithms of the populations after each step.

    Args:
        parameters: Logarithms of the four rates and both initial numbers, shape (6,).
        years: How many years.
        steps: Steps of the method in a year.

    Returns:
        Hares and lynxes, shape ((years - 1) * steps + 1, 2), from 1900 on.
    """
    rates, h, length = np.exp(parameters[:4]), 1.0 / steps, (years - 1) * steps + 1
    return ebbtide.timeloop(lambda u, _: step(u, rates, h), parameters[4:], length, outputs=True, progress=False)[1]


def misfit(parameters: Any, years: int = len(YEARS), steps: int = STEPS) -> Any:
    """Return half the sum of the squared differences of the logarithms."""
    return 0.5 * np.sum((simulate(parameters, years, steps)[::steps] - FURS[:years]) ** 2)


def fit(years: int = len(YEARS), steps: int = STEPS, *, progress: bool = False) -> Minimum:
    """Return where the misfit is least."""
    return minimize(lambda p: misfit(p, years, steps), START, "BFGS", tol=1e-6, progress=progress)


def draw(parameters: Array, path: Path) -> None:
    """Write a picture of furs and populations."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    modeled = np.exp(simulate(parameters, len(YEARS), STEPS))
    times = YEARS[0] + np.arange(len(modeled)) / STEPS
    figure, axis = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
    for k, (name, color) in enumerate((("hares", "tab:brown"), ("lynxes", "tab:blue"))):
        axis.plot(times, modeled[:, k], color=color, label=name)
        axis.plot(YEARS, np.exp(FURS[:, k]), "o", color=color, markersize=4)
    axis.set(xlabel="year", ylabel="furs (thousands)", xticks=YEARS[::5])
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    """Fit, print the rates, and draw the populations."""
    parser = argparse.ArgumentParser(description="Lotka's and Volterra's equations, fitted to furs.")
    parser.add_argument("--output", type=Path, default=Path("furs.png"), help="picture (default: %(default)s)")
    arguments = parser.parse_args()
    found = fit(progress=True)
    print(found)
    for name, value in zip(("a", "b", "c", "d", "hares in 1900", "lynxes in 1900"), np.exp(found.m), strict=True):
        print(f"{name:>15} = {value:.4g}")
    draw(found.m, arguments.output)
    print(f"picture: {arguments.output}")
    return 0 if found.value < misfit(START) else 1


if __name__ == "__main__":
    sys.exit(main())
