"""`stop_gradient`: values without their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.primitive import first_met
from ebbtide.arrays.traced import TracedArray
from ebbtide.program.symbolic import SymbolicTrace


def stop_gradient(x: Any) -> Any:
    """
    Return a plain copy of an array, or of a container of arrays, which is a constant to all derivatives.

    Args:
        x: Arrays, traced or plain, numbers, vectors of registered types, and containers of them.

    Returns:
        Plain arrays, NumPy scalars and vectors in containers as those of *x*; the caller owns them. Inside of vmap and
        of a traced function the arrays are those of the batch or of the program, without a derivative.

    Memory:
        The copies.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> grad(lambda x: x * stop_gradient(x))(3.0)
        np.float64(3.0)
    """
    leaves, structure = flatten(x)
    return unflatten(structure, [_constant(leaf) for leaf in leaves])


def _constant(leaf: Any) -> Any:
    value, capture = leaf, None
    if type(leaf) is TracedArray:
        capture = current().capture
        if capture is not None and capture.covers(leaf.present()._trace):
            value = first_met(capture, leaf)  # which in a step that runs again is what it was
    while type(value) is TracedArray:
        below = value.present()._value
        if type(below) is ArrayType:  # its values are not known here
            trace = value._trace
            if capture is not None and capture is not trace and capture.covers(trace):
                return _constant(capture.lift(value))
            if type(trace) is BatchTrace:
                return trace.members(_constant(value._node))
            # Whoever differentiates the program finds a function without a derivative.
            return trace.copied(_constant, value) if type(trace) is SymbolicTrace else value.frozen()
        value = below
    return np.array(value) if isinstance(value, np.ndarray) else value
