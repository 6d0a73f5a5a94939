"""
Which digit is it? A small convolutional network, trained on handwritten digits.

One layer of 3 x 3 filters, the largest of each 2 x 2 values, one dense layer. Loss and gradient are one program,
planned before it runs: `--plan` prints it.

    python examples/convolutional_net.py

Data: 1,797 digits of 8 x 8 pixels (Alpaydin, Kaynak 1998), which come with scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import ebbtide
from ebbtide.optimize import Minimum, minimize

Array = NDArray[np.floating]

PENALTY = 1e-3


@dataclass(frozen=True, slots=True)
class Digits:
    """
    Pictures and what they show.

    Args:
        images: Brightness from 0 to 1, shape (digits, 8, 8).
        targets: 1 for the digit that it is and 0 for the others, shape (digits, 10).
    """

    images: Array
    targets: Array


def load(dtype: Any = np.float32) -> tuple[Digits, Digits]:
    """Return 1,400 digits to learn from, and the rest."""
    images, labels = load_digits(return_X_y=True)
    images, targets = (images.reshape(-1, 8, 8) / 16).astype(dtype), np.eye(10, dtype=dtype)[labels]
    return Digits(images[:1400], targets[:1400]), Digits(images[1400:], targets[1400:])


def start(filters: int, dtype: Any = np.float32) -> dict[str, Array]:
    """Return random weights: `filters` of shape (9, filters), `dense` of shape (9 filters, 10), and biases."""
    random = np.random.default_rng(1)
    return {
        "filters": (random.standard_normal((9, filters)) / 3).astype(dtype),
        "biases": np.zeros(filters, dtype),
        "dense": (random.standard_normal((9 * filters, 10)) / (3 * filters**0.5)).astype(dtype),
        "last": np.zeros(10, dtype),
    }


def scores(weights: Any, images: Array) -> Any:
    """Return a number for each image and digit, shape (images, 10), which is large where the digit is likely."""
    patches = np.stack([images[:, r : r + 6, c : c + 6] for r in range(3) for c in range(3)], axis=-1)
    maps = np.maximum(patches @ weights["filters"] + weights["biases"], 0)
    rows = np.maximum(maps[:, ::2], maps[:, 1::2])
    largest = np.maximum(rows[:, :, ::2], rows[:, :, 1::2])
    return np.reshape(largest, (len(images), -1)) @ weights["dense"] + weights["last"]


def loss(weights: Any, digits: Digits) -> Any:
    """Return the mean cross-entropy with a penalty on the weights."""
    found = scores(weights, digits.images)
    found = found - np.max(found, axis=1, keepdims=True)
    entropy = np.log(np.sum(np.exp(found), axis=1)) - np.sum(found * digits.targets, axis=1)
    return np.mean(entropy) + PENALTY * (np.sum(weights["filters"] ** 2) + np.sum(weights["dense"] ** 2))


def train(digits: Digits, weights: dict[str, Array], iterations: int, *, progress: bool = False) -> Minimum:
    """Return where the loss is least, or where that many iterations end."""
    options = {"maxiter": iterations, "maxfun": 4 * iterations}
    return minimize(ebbtide.jit(lambda w: loss(w, digits)), weights, options=options, progress=progress)


def accuracy(weights: Any, digits: Digits) -> float:
    """Return the share of the digits that are told right."""
    return float(np.mean(np.argmax(scores(weights, digits.images), 1) == np.argmax(digits.targets, 1)))


def main() -> int:
    """Train, and print how many digits are told right."""
    parser = argparse.ArgumentParser(description="A convolutional network for handwritten digits.")
    parser.add_argument("--filters", type=int, default=16, help="of 3 x 3 pixels (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=80, help="at most (default: %(default)s)")
    parser.add_argument("--plan", action="store_true", help="print what the gradient holds at its peak")
    arguments = parser.parse_args()
    seen, unseen = load()
    weights = start(arguments.filters)
    if arguments.plan:
        print(ebbtide.jit(ebbtide.value_and_grad(lambda w: loss(w, seen))).program(weights).predict())
    found = train(seen, weights, arguments.iterations, progress=True)
    share = accuracy(found.m, unseen)
    print(found)
    print(f"{accuracy(found.m, seen):.1%} of the digits learned from told right, {share:.1%} of the others")
    return 0 if share > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
