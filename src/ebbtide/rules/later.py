"""
Rules that are declared when they are needed first: those of SciPy's special functions.

`scipy.special` takes a tenth of a second to import, and nothing has an operation of it before the user has imported it.
"""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np

from ebbtide.arrays.registry import register


def _declare_those_of_scipy() -> None:
    """Declare the rules of SciPy's ufuncs, if there can be any."""
    if "scipy.special" in sys.modules:
        import_module("ebbtide.rules.special_functions")


register(np.ufunc, _declare_those_of_scipy)
