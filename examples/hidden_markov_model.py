"""
Does the Earth have quiet and restless years? A hidden Markov model of the number of major earthquakes.

Each year is in one of some states, which follow each other as a Markov chain; a state has its own mean number of
earthquakes. The likelihood is one pass through the years, a time loop, and its gradient is one pass back. Expectation
and maximization in turns (Baum and Welch), which needs no gradient, must end at the same place.

    python examples/hidden_markov_model.py --states 3

Data: earthquakes of magnitude 7 and more, 1900 to 2006, of the United States Geological Survey.

Source: Zucchini, MacDonald (2009), Hidden Markov Models for Time Series, chapters 1 to 4; with 2 states the maximum of
the likelihood is exp(-341.8787), with 3 it is exp(-328.5275).
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

import ebbtide
from ebbtide.optimize import Minimum, minimize

Array = NDArray[np.float64]

EARTHQUAKES = np.array(
    [13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23, 18, 17, 19, 20, 22,
     19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26, 28, 36, 39, 21, 17, 22, 17, 19, 15, 34,
     10, 15, 22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23, 20, 16, 21, 21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6,
     11, 8, 7, 18, 16, 13, 12, 13, 20, 15, 16, 12, 18, 15, 16, 13, 15, 16, 11, 11],
    dtype=float,
)  # fmt: skip


def start(states: int) -> dict[str, Any]:
    """
    Return where a fit starts: means spread over the counts, and states that last.

    Args:
        states: The number of states.

    Returns:
        Logarithms of the means, shape (states,); unnormalized logarithms of the probabilities of the first state,
        shape (states,), and of the transitions, shape (states, states), from a row's state to a column's.
    """
    means = np.quantile(EARTHQUAKES, (np.arange(states) + 0.5) / states)
    return {"means": np.log(means), "first": np.zeros(states), "transitions": 2.0 * np.eye(states)}


def normalized(logarithms: Any) -> Any:
    """Return probabilities, which sum to 1 along the last axis, from any logarithms."""
    weights = np.exp(logarithms - np.max(logarithms, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


def emissions(means: Any, counts: Array) -> Any:
    """Return the probability of each count in each state, shape (years, states); *means* are logarithms."""
    return np.exp(counts[:, None] * means - np.exp(means) - gammaln(counts + 1)[:, None])


def negative_log_likelihood(parameters: Any, counts: Array = EARTHQUAKES) -> Any:
    """Return minus the log-likelihood of the counts: the states' probabilities go from year to year, scaled to 1."""
    transitions = normalized(parameters["transitions"])

    def year(state: Any, emission: Any) -> Any:
        probabilities, total = state
        joint = probabilities * emission
        scale = np.sum(joint)
        return (joint / scale) @ transitions, total + np.log(scale)

    initial = normalized(parameters["first"]), np.zeros(())
    inputs = emissions(parameters["means"], counts)
    return -ebbtide.timeloop(year, initial, len(counts), inputs=inputs, progress=False)[1]


def fit(states: int, *, progress: bool = False) -> Minimum:
    """Return where the likelihood is largest."""
    return minimize(
        negative_log_likelihood, start(states), "BFGS", tol=1e-5, options={"maxiter": 500}, progress=progress
    )


def baum_welch(states: int, rounds: int) -> float:
    """
    Return minus the log-likelihood after so many rounds of expectation and maximization from the same start.

    Source: Zucchini, MacDonald (2009), section 4.2.
    """
    begin = start(states)
    means, first, transitions = np.exp(begin["means"]), normalized(begin["first"]), normalized(begin["transitions"])
    years, loss = len(EARTHQUAKES), np.inf
    for _ in range(rounds):
        likely = emissions(np.log(means), EARTHQUAKES)
        ahead, back, scales = np.empty((years, states)), np.ones((years, states)), np.empty(years)
        probabilities = first
        for t in range(years):
            joint = probabilities * likely[t]
            scales[t] = joint.sum()
            ahead[t] = joint / scales[t]
            probabilities = ahead[t] @ transitions
        for t in range(years - 1, 0, -1):
            back[t - 1] = transitions @ (likely[t] * back[t]) / scales[t]
        loss = -np.log(scales).sum()
        present = ahead * back
        moved = transitions * (ahead[:-1].T @ (likely[1:] * back[1:] / scales[1:, None]))
        first, transitions = present[0], moved / moved.sum(1, keepdims=True)
        means = EARTHQUAKES @ present / present.sum(0)
    return float(loss)


def main() -> int:
    """Fit, compare with Baum and Welch, and print both."""
    parser = argparse.ArgumentParser(description="A hidden Markov model of the number of major earthquakes a year.")
    parser.add_argument("--states", type=int, default=3, help="hidden states (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1000, help="of Baum and Welch (default: %(default)s)")
    arguments = parser.parse_args()
    found = fit(arguments.states, progress=True)
    other = baum_welch(arguments.states, arguments.rounds)
    means = np.exp(found.m["means"])
    print(found)
    print("state  earthquakes a year  stays with probability")
    for k in np.argsort(means):
        print(f"{k:5d}  {means[k]:18.3f}  {normalized(found.m['transitions'])[k, k]:22.3f}")
    agree = abs(found.value - other) < 1e-3
    print(f"{'ok' if agree else 'FAIL'}: -log L = {found.value:.4f}; by Baum and Welch {other:.4f}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
