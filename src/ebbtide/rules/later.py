"""
Rules that are declared when they are needed first: those of SciPy's special functions.

Of 0.8 s that `import ebbtide` took on a slow machine 0.1 s were for these, and there is no operation of them before the
user has imported `scipy.special`.
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
