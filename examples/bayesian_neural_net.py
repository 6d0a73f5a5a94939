"""
What does a network not know? Variational inference for the weights of a small network.

Each weight has a normal distribution, whose mean and deviation are found by making the evidence lower bound as large
as it gets: the expected log-likelihood, over draws that are kept fixed, less the divergence from the prior. The draws
are the members of a batch of one network (`vmap`), so the network is written for one set of weights.

    python examples/bayesian_neural_net.py --output network.png

Source: Blundell, Cornebise, Kavukcuoglu, Wierstra (2015), Weight uncertainty in neural networks, equation 2, with the
divergence of normal distributions in closed form; Kingma, Welling (2014), Auto-encoding variational Bayes, section
2.4.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebbtide
from ebbtide.optimize import Minimum, minimize

Array = NDArray[np.float64]

NOISE = 0.1
PRIOR = 1.5  # standard deviation of each weight before anything is seen


@dataclass(frozen=True, slots=True)
class Problem:
    """
    What is to be learned.

    Args:
        x: Places, shape (points,); none of them in the middle.
        y: Noisy values there, shape (points,).
        hidden: How many hidden units the network has.
        draws: Standard normal numbers, shape (draws, weights).
    """

    x: Array
    y: Array
    hidden: int
    draws: Array


def make_problem(points: int = 60, hidden: int = 16, draws: int = 20) -> Problem:
    """Return values of a wave on both sides of a gap."""
    random = np.random.default_rng(4)
    x = np.sort(np.concatenate([random.uniform(-2, -0.5, points // 2), random.uniform(0.7, 2, points - points // 2)]))
    y = np.sin(2.5 * x) * 0.8 + NOISE * random.standard_normal(points)
    return Problem(x, y, hidden, random.standard_normal((draws, 3 * hidden + 1)))


def network(weights: Any, x: Array) -> Any:
    """
    Return what a network of one hidden layer gives.

    Args:
        weights: Slopes, biases and factors of the hidden units and the last bias, shape (3 hidden + 1,).
        x: Places, shape (points,).
    """
    slopes, biases, factors = np.split(weights[:-1], 3)
    return np.tanh(x[:, None] * slopes + biases) @ factors + weights[-1]


def bound(parameters: Any, problem: Problem) -> Any:
    """Return minus the evidence lower bound; *parameters* has means and logarithms of deviations of all weights."""
    means, deviations = parameters["means"], np.exp(parameters["deviations"])

    def misfit(draw: Any) -> Any:
        return 0.5 * np.sum(((network(means + deviations * draw, problem.x) - problem.y) / NOISE) ** 2)

    divergence = np.sum((means**2 + deviations**2) / (2 * PRIOR**2) - parameters["deviations"] + np.log(PRIOR) - 0.5)
    return np.mean(ebbtide.vmap(misfit)(problem.draws)) + divergence


def start(problem: Problem) -> dict[str, Array]:
    """Return where the search starts: hidden units in different places, little doubt."""
    count = problem.draws.shape[1]
    return {"means": np.random.default_rng(5).standard_normal(count), "deviations": np.full(count, -4.0)}


def fit(problem: Problem, iterations: int, *, progress: bool = False) -> Minimum:
    """Return where the bound is largest, or where that many iterations end."""
    options = {"maxiter": iterations, "maxfun": 4 * iterations}
    loss = ebbtide.jit(lambda p: bound(p, problem))
    return minimize(loss, start(problem), "L-BFGS-B", options=options, progress=progress)


def predict(parameters: dict[str, Array], problem: Problem, x: Array) -> tuple[Array, Array]:
    """Return mean and deviation of the network's values over the draws."""
    weights = parameters["means"] + np.exp(parameters["deviations"]) * problem.draws
    values = np.stack([network(one, x) for one in weights])
    return values.mean(0), values.std(0)


def draw(parameters: dict[str, Array], problem: Problem, path: Path) -> None:
    """Write a picture of data, prediction and doubt."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    x = np.linspace(-3, 3, 300)
    mean, deviation = predict(parameters, problem, x)
    figure, axis = plt.subplots(figsize=(8.0, 4.0), layout="constrained")
    axis.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, alpha=0.25, label="two deviations", lw=0)
    axis.plot(x, mean, label="mean of the networks")
    axis.plot(problem.x, problem.y, "k.", label="what was seen")
    axis.set(xlabel="x", ylabel="y", ylim=(-3, 3))
    axis.legend(frameon=False, loc="upper center", ncols=3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    """Learn, compare the doubt where something was seen with that elsewhere, and draw it."""
    parser = argparse.ArgumentParser(description="Variational inference for the weights of a small network.")
    parser.add_argument("--iterations", type=int, default=500, help="at most (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("network.png"), help="picture (default: %(default)s)")
    arguments = parser.parse_args()
    problem = make_problem()
    found = fit(problem, arguments.iterations, progress=True)
    print(found)
    seen, unseen = (predict(found.m, problem, at)[1].mean() for at in (problem.x, np.array([-3.0, 3.0])))
    draw(found.m, problem, arguments.output)
    print(f"deviation {seen:.3f} where something was seen, {unseen:.3f} far from it\npicture: {arguments.output}")
    return 0 if seen < unseen else 1


if __name__ == "__main__":
    sys.exit(main())
