"""
What makes diabetes progress? A Gaussian process that finds out which measurements matter.

The function that is sought is a draw of a Gaussian process, which varies along each measurement over a length of its
own. Lengths, size and noise are those for which the data are likeliest; a measurement that does not matter gets a
great length.

    python examples/gaussian_process.py

Data: ten measurements of 442 patients and the progress of their disease within a year (Efron, Hastie, Johnstone,
Tibshirani 2004), which come with scikit-learn.

Source: Rasmussen, Williams (2006), Gaussian Processes for Machine Learning, algorithm 2.1 and equations 2.30 and 5.1.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes

from ebbtide.optimize import Minimum, minimize

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Patients:
    """
    Measurements and progress, each with mean 0 and deviation 1.

    Args:
        names: Of the measurements.
        features: Shape (patients, measurements).
        progress: Shape (patients,).
    """

    names: tuple[str, ...]
    features: Array
    progress: Array


def load(first: int, last: int) -> Patients:
    """Return some of the patients."""
    data = load_diabetes()
    features, progress = data.data / data.data.std(0), (data.target - data.target.mean()) / data.target.std()
    return Patients(tuple(data.feature_names), features[first:last], progress[first:last])


def start(measurements: int) -> dict[str, Any]:
    """Return where the search starts: logarithms of lengths, of the deviation of the function, and of the noise's."""
    return {"lengths": np.full(measurements, np.log(3.0)), "size": np.zeros(()), "noise": np.log(0.5) * np.ones(())}


def covariance(parameters: Any, x: Any, y: Any) -> Any:
    """Return the covariance of the function at two sets of points, shape (points of x, points of y)."""
    x, y = x / np.exp(parameters["lengths"]), y / np.exp(parameters["lengths"])
    square = np.sum(x**2, 1)[:, None] + np.sum(y**2, 1) - 2.0 * (x @ y.T)
    return np.exp(2.0 * parameters["size"] - 0.5 * square)


def noisy(parameters: Any, patients: Patients) -> Any:
    """Return the covariance of what was measured."""
    noise = np.exp(2.0 * parameters["noise"]) * np.eye(len(patients.progress))
    return covariance(parameters, patients.features, patients.features) + noise


def negative_log_likelihood(parameters: Any, patients: Patients) -> Any:
    """Return minus the logarithm of the density of the progress (equation 2.30)."""
    factor = np.linalg.cholesky(noisy(parameters, patients))
    scaled = np.linalg.solve(factor, patients.progress)
    constant = 0.5 * len(patients.progress) * np.log(2.0 * np.pi)
    return 0.5 * np.sum(scaled**2) + np.sum(np.log(np.diagonal(factor))) + constant


def fit(patients: Patients, iterations: int = 100, *, progress: bool = False) -> Minimum:
    """Return where the likelihood is largest."""
    begin, options = start(patients.features.shape[1]), {"maxiter": iterations}
    # A length of more than e^4 is as good as infinite.
    bounds = ({"lengths": -2.0, "size": -3.0, "noise": -3.0}, {"lengths": 4.0, "size": 3.0, "noise": 3.0})
    return minimize(
        lambda p: negative_log_likelihood(p, patients), begin, bounds=bounds, options=options, progress=progress
    )


def predict(parameters: Any, patients: Patients, features: Array) -> Array:
    """Return the mean of the process at other measurements (algorithm 2.1)."""
    weights = np.linalg.solve(noisy(parameters, patients), patients.progress)
    return covariance(parameters, features, patients.features) @ weights


def main() -> int:
    """Fit to some patients, predict the others, and print which measurements matter."""
    parser = argparse.ArgumentParser(description="A Gaussian process that finds out which measurements matter.")
    parser.add_argument("--patients", type=int, default=300, help="to learn from (default: %(default)s)")
    count = parser.parse_args().patients
    seen, unseen = load(0, count), load(count, 442)
    found = fit(seen, progress=True)
    print(found)
    for k in np.argsort(found.m["lengths"]):
        print(f"{seen.names[k]:>6}  length {np.exp(found.m['lengths'][k]):7.2f}")
    error = np.mean((predict(found.m, seen, unseen.features) - unseen.progress) ** 2) / np.var(unseen.progress)
    print(f"{1.0 - error:.0%} of the variance of the other patients explained")
    return 0 if error < 0.7 else 1


if __name__ == "__main__":
    sys.exit(main())
