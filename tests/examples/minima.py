"""Minimization with gradients by finite differences, to which the examples are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
from scipy.optimize import OptimizeResult, minimize


def by_differences(loss: Callable[[Any], Any], start: Any, **kwargs: Any) -> OptimizeResult:
    """Return what SciPy finds with central differences, from the same start; *loss* takes a container of arrays."""
    leaves, structure = optree.tree_flatten(start)
    sizes = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]

    def of_vector(vector: Any) -> float:
        parts = [np.reshape(v, np.shape(x)) for v, x in zip(np.split(vector, sizes), leaves, strict=True)]
        return float(loss(optree.tree_unflatten(structure, parts)))

    vector = np.concatenate([np.ravel(leaf) for leaf in leaves])
    return minimize(of_vector, vector, jac="3-point", **kwargs)
