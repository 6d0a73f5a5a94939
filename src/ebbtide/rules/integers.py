"""Functions of integers, booleans and indices: they have no derivative, and give plain arrays."""

from __future__ import annotations

import numpy as np

from ebbtide.arrays.constants import alone, constant, elementwise, stand_in_type
from ebbtide.arrays.registry import register

BITS = (
    np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert, np.left_shift, np.right_shift, np.bitwise_count,
    np.gcd, np.lcm,
)  # fmt: skip
# What is told by shapes and dtypes alone.
SHAPES = (np.diag_indices_from, np.tril_indices_from, np.triu_indices_from)

for _function in BITS:
    register(_function, constant(_function))
for _function in SHAPES:
    register(_function, constant(_function, stand_in_type(_function)))




register(np.around, constant(np.around, stand_in_type(np.around), elementwise))
register(np.isin, constant(np.isin, stand_in_type(np.isin), alone(0)))
