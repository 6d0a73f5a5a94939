"""
NumPy's functions that its own dispatch does not show to traced arrays, with their signatures.

They make an array out of a list of traced numbers, or fill one with them, where `numpy.array` and its kin want plain
ones. On plain arguments each is NumPy's own. All other functions of NumPy take traced arrays as they are.
"""

from ebbtide.numpy.creation import (
    arange,
    array,
    asanyarray,
    asarray,
    asarray_chkfinite,
    ascontiguousarray,
    asfortranarray,
    fromiter,
    full,
    full_like,
    require,
)
from ebbtide.numpy.joining import c_, r_

__all__ = [
    "arange",
    "array",
    "asanyarray",
    "asarray",
    "asarray_chkfinite",
    "ascontiguousarray",
    "asfortranarray",
    "c_",
    "fromiter",
    "full",
    "full_like",
    "r_",
    "require",
]
