"""
Rules that are declared when they are needed first: those of SciPy's special functions.

They, `scipy.special` and tqdm took a tenth of the time of `import ebbtide` (median of 9 paired runs), and there is no
operation of them before the user has imported that module.
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
