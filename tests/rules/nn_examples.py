"""Examples of the functions of `ebbtide.nn`, which stand for no function of NumPy or SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide import nn

from .example import Example, Fixed, M, S, T, V, Z, between, calls

X = between(-2, 2, 2, 6, 5, 2)  # two images
IMAGE = between(-2, 2, 4, 5, 1)
KERNEL, WIDE = between(-1, 1, 2, 3, 2, 3), between(-1, 1, 3, 2, 1, 2)
# Probabilities of many classes: those of few are so large that their rounding is all there is of a cotangent of ones.
FLAT = between(-0.5, 0.5, 2, 12)
LABELS = Fixed(np.array([3, 0, 3]))
SHARES = np.full((3, 4), 0.25) + between(-0.1, 0.1, 3, 4)


def real(*args: Any) -> tuple[Example, ...]:
    """Return examples of a function of real numbers in single and double precision."""
    return calls(*args, complex=False, half=False)


NN: dict[Any, tuple[Example, ...]] = {
    nn.relu: real((M,), (S,), (Z,), (M.T[::2],)),
    nn.gelu: real((M,), (M * 3, {"approximate": True}), (S,)),
    nn.dense: calls((M, between(-1, 1, 4, 2), V[:2]), (M[0], between(-1, 1, 4, 2)), half=False),
    nn.softmax: real((FLAT,), (FLAT.T, 0)),
    nn.log_softmax: real((M,), (T, 0)),
    nn.layer_norm: real((M, between(0.5, 1, 4)), (T, between(0.5, 1, 4), V[:4]), (M, V[:4], {"epsilon": 0.1})),
    nn.cross_entropy: real(
        (M, LABELS), (M, LABELS, "sum"), (T, Fixed(np.array([[0, 1, 2], [3, 3, 0]])), "none"),
        (M[0], Fixed(np.array(2))), (M, SHARES), (M, SHARES, "none"), (M[0], SHARES[0], "sum"),
    ),
    nn.conv2d: calls(
        (X, KERNEL), (X, KERNEL, V[:3], 2, 1), (IMAGE, WIDE, None, (1, 2), "same"),
        (X, KERNEL, None, 2, ((0, 1), (2, 0))), half=False,
    ),
    nn.max_pool2d: real((X,), (X, 3, 1), (IMAGE, (1, 2), (2, 1))),
}  # fmt: skip
