"""Where the BLAS is that NumPy multiplies by."""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from types import MappingProxyType

# Of a product of matrices: in NumPy's wheels, with integers of 64 bits and of 32, in Apple's library, anywhere else.
_NAMES = (
    "scipy_{}gemm_64_", "scipy_{}gemm_", "{}gemm$NEWLAPACK$ILP64", "{}gemm$NEWLAPACK",
    "{}gemm_64_", "{}gemm64_", "{}gemm_",
)  # fmt: skip
LETTERS = MappingProxyType({"f": "s", "d": "d", "F": "c", "D": "z"})


def find_gemm(letter: str) -> int:
    """
    Return the address of the product of matrices in NumPy's own BLAS; 0 if there is none to be found.

    The wheels of NumPy and SciPy bring an OpenBLAS each, with threads that look out for work for a while after each
    product, on cores that others need: a reverse sweep of 19 ms whose products were SciPy's took 69 after a forward
    step, and 30 to 35 in between.

    Args:
        letter: Of the type: one of "fdFD".
    """
    if sys.byteorder != "little":  # integers of 64 bits stand for those of 32
        return 0
    # Who else knows which library NumPy is linked with?
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for name in _NAMES:
        try:
            function = getattr(library, name.format(LETTERS[letter]))
        except AttributeError:
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
