"""
Is a tumor malignant? Logistic regression on measurements of cell nuclei.

The loss is convex, its gradient and the action of its Hessian are taken by Ebbtide, and Newton's method in a trust
region finds the one minimum in a dozen iterations.

    python examples/logistic_regression.py

Data: Breast Cancer Wisconsin (Diagnostic), 569 tumors with 30 measurements, which comes with scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from ebbtide.optimize import Minimum, minimize

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tumors:
    """
    Measurements and what they belong to.

    Args:
        features: Standardized, shape (tumors, measurements).
        signs: 1 for benign and -1 for malignant, shape (tumors,).
    """

    features: Matrix
    signs: Matrix


def load() -> Tumors:
    """Return the data, each measurement with mean 0 and deviation 1."""
    features, benign = load_breast_cancer(return_X_y=True)
    return Tumors((features - features.mean(0)) / features.std(0), np.where(benign, 1.0, -1.0))


def loss(parameters: Any, data: Tumors, penalty: float) -> Any:
    """
    Return the mean negative log-likelihood, with a penalty on the weights.

    Args:
        parameters: `weights`, shape (measurements,), and `bias`, a number.
        data: What to fit.
        penalty: Factor of half the sum of the squared weights.
    """
    margins = (data.features @ parameters["weights"] + parameters["bias"]) * data.signs
    return np.mean(np.logaddexp(0.0, -margins)) + 0.5 * penalty * np.sum(parameters["weights"] ** 2)


def fit(data: Tumors, penalty: float, *, progress: bool = False) -> Minimum:
    """Return the minimum of the loss, found from weights of zero."""
    start = {"weights": np.zeros(data.features.shape[1]), "bias": np.zeros(())}
    return minimize(lambda p: loss(p, data, penalty), start, "trust-ncg", tol=1e-9, progress=progress)


def main() -> int:
    """Fit, and print what was found."""
    parser = argparse.ArgumentParser(description="Logistic regression with exact gradients and Hessian actions.")
    parser.add_argument("--penalty", type=float, default=0.01, help="on the squared weights (default: %(default)s)")
    data = load()
    found = fit(data, parser.parse_args().penalty, progress=True)
    right = (data.features @ found.m["weights"] + found.m["bias"]) * data.signs > 0
    print(found)
    print(f"{np.mean(right):.1%} of {len(right)} tumors on the right side")
    return 0 if found.converged else 1


if __name__ == "__main__":
    sys.exit(main())
