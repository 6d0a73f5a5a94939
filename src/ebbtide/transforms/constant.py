"""`stop_gradient`: values without their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.traced import TracedArray


def stop_gradient(x: Any) -> Any:
    """
    Return a plain copy of an array, or of a container of arrays, which is a constant to all derivatives.

    Args:
        x: Arrays, traced or plain, numbers, vectors of registered types, and containers of them.

    Returns:
        Plain arrays, NumPy scalars and vectors in containers as those of *x*; the caller owns them. Inside of vmap and
        of a traced function the arrays are those of the batch or of the program, without a derivative.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> grad(lambda x: x * stop_gradient(x))(3.0)
        np.float64(3.0)
    """
    leaves, structure = flatten(x)
    return unflatten(structure, [_constant(leaf) for leaf in leaves])


def _constant(leaf: Any) -> Any:
    value = leaf
    while type(value) is TracedArray:
        below = value.present()._value
        if type(below) is ArrayType:  # its values are not known here, only that it has no derivative
            trace = value._trace
            return trace.members(_constant(value._node)) if type(trace) is BatchTrace else value.frozen()
        value = below
    return np.array(value) if isinstance(value, np.ndarray) else value
