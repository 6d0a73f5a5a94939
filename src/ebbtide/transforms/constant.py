"""`stop_gradient`: a value without its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import lowered, vector_of
from ebbtide.arrays.views import bottom


def stop_gradient(x: Any) -> Any:
    """
    Return a plain copy of an array, which is a constant to all derivatives.

    Args:
        x: An array, traced or plain, or a vector of a registered type.

    Returns:
        A plain array, NumPy scalar or vector, that the caller owns.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> grad(lambda x: x * stop_gradient(x))(3.0)
        np.float64(3.0)
    """
    array, kind = lowered(x)
    value = bottom(array.present()) if type(array) is TracedArray else array
    value = np.array(value) if isinstance(value, np.ndarray) else value
    return value if kind is None else vector_of(kind, value)
