"""Dense layers, layer normalization, and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import full
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched


def dense(x: Any, weights: Any, bias: Any = None) -> Any:
    """
    Return x @ weights + bias.

    Args:
        x: Array (..., n).
        weights: Matrix (n, m).
        bias: Vector (m,), or None.

    Returns:
        Array (..., m).

    Memory:
        A record saves x and the weights.

    Example:
        >>> import numpy as np
        >>> dense(np.ones(2), np.eye(2), np.array([0.0, 1.0]))
        array([1., 2.])
    """
    product = np.matmul(x, weights)
    return product if bias is None else product + bias


def _mean(x: Any) -> Any:
    return np.mean(x, axis=-1, keepdims=True)


def _inverse(x: Any, epsilon: Any) -> Any:
    """Return one over the standard deviation along the last axis."""
    return 1.0 / np.sqrt(_mean(np.square(x - _mean(x))) + epsilon)


def _slope(g: Any, out: Any, inverse: Any) -> Any:
    """Return the derivative applied to tangents or cotangents: it is symmetric."""
    return (g - _mean(g) - out * _mean(g * out)) * inverse


def _normalized_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
    return _normalized.bind((full(values[0], mapped[0], size), values[1]))


_PULL = Pull(
    lambda g, kind, params, out, inverse: matched(_slope(g, out, inverse), kind), ("out", "inverse"), FRESH,
    temporaries=3, along=lambda kind, params: (kind.ndim - 1,),
)  # fmt: skip
_normalized = Primitive(
    lambda x, epsilon: (x - _mean(x)) * _inverse(x, epsilon),
    name="normalize",
    operands=("x", "epsilon"),
    pull=lambda k: None if k else _PULL,
    push=lambda tangents, values, out, params, kept: matched(_slope(tangents[0], out, kept("inverse")), type_of(out)),
    infer=lambda kind, epsilon: ArrayType(kind.shape, kind.dtype),
    keep={"inverse": _inverse},
    batch=_normalized_members,
    composite=True,
)


def layer_norm(x: Any, scale: Any = None, offset: Any = None, epsilon: float = 1e-5) -> Any:
    """
    Return x less its mean over its standard deviation along the last axis, times a scale plus an offset.

    Args:
        x: Array (..., n) of floating-point numbers.
        scale: Vector (n,), or None for 1.
        offset: Vector (n,), or None for 0.
        epsilon: What is added to the variance.

    Memory:
        A record saves the quotient, once, and one number for each row.

    Source:
        Ba, Kiros, Hinton, Layer Normalization (2016).

    Example:
        >>> import numpy as np
        >>> layer_norm(np.array([1.0, 3.0]), epsilon=0.0)
        array([-1.,  1.])
    """
    made = _normalized.bind((x, float(epsilon)))
    made = made if scale is None else made * scale
    return made if offset is None else made + offset


def dropout(x: Any, rate: float, generator: np.random.Generator | None) -> Any:
    """
    Return x with elements set to 0 at random, the others divided by the probability of being kept.

    Args:
        x: Array of any shape.
        rate: The probability of being set to 0, from 0 to below 1.
        generator: Where the numbers are drawn; None returns x, as in the evaluation of a model.

    Raises:
        ValueError: The rate is not a probability, or is 1.
        TraceError: From `jit`: a traced function would draw only once. Draw `keep = generator.random(shape) >= rate`
            outside, give it as an argument, and write `x * keep / (1 - rate)`. Under `vmap` that gives each member
            numbers of its own; those that are drawn inside are the same for all members.

    Memory:
        A record saves one byte for each element.

    Example:
        >>> import numpy as np
        >>> dropout(np.ones(6), 0.5, np.random.default_rng(0))
        array([2., 0., 0., 0., 2., 2.])
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout was given rate={rate!r}: it is the probability of being set to 0, below 1.")
    if generator is None or not rate:
        return x
    keep = generator.random(np.shape(x), np.float32 if type_of(x).dtype.itemsize <= 4 else np.float64) >= rate
    return x * keep * (1 / (1 - rate))
