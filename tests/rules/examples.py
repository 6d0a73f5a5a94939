"""
Every function that has a rule, with calls of it: what the tests of values, derivatives and types sweep over.

A family of functions has its table in a file of its own; here they are put together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ebbtide.numpy as enp
from ebbtide.arrays.views import normal_index
from ebbtide.rules.opaque import OPAQUE

from .basic_examples import BASIC, PRODUCTS, REDUCTIONS
from .example import Example, name_of
from .fourier_examples import FOURIER
from .functions_examples import ARRAYS, FUNCTIONS
from .linalg_examples import LINALG
from .nn_examples import NN
from .scipy_examples import BY_FFT, SAMPLES, SUMS
from .scipy_examples import WRAPPED as SCIPY
from .scipy_linalg_examples import SCIPY_LINALG
from .special_examples import SPECIAL
from .statistics_examples import STATISTICS

# Not called by users, or with results that are not determined: tested elsewhere.
INTERNAL = frozenset(
    {normal_index, np.flatiter, np.empty_like, np.zeros, np.ones, np.empty, np.full, np.arange, np.eye, np.identity}
    | {np.tri, np.ufunc, (np.ufunc, "at")}
    | {(function, "vector") for function in (np.add, np.subtract, np.multiply, np.true_divide, np.matmul)}
)
# Functions of `ebbtide.numpy` and `ebbtide.scipy`, which are called by these names; `__wrapped__` is the original.
WRAPPED: dict[Any, tuple[Example, ...]] = {**ARRAYS, **SCIPY, **SCIPY_LINALG}
EXAMPLES: dict[Any, tuple[Example, ...]] = {
    **BASIC, **FUNCTIONS, **STATISTICS, **SPECIAL, **LINALG, **FOURIER, **WRAPPED, **NN,
}  # fmt: skip
# Sums are done in the order of memory, which is another one for all members of a batch together; products by BLAS.
IN_OTHER_ORDER = (
    *PRODUCTS, *REDUCTIONS, *STATISTICS, *LINALG, *SCIPY_LINALG, *SUMS, *BY_FFT, *SAMPLES, *NN,
    np.matvec, np.vecmat, np.convolve, np.correlate,
)  # fmt: skip
# Functions whose results depend on values in shape, dtype or being there: on abstract arrays these raise.
BY_VALUES = frozenset({*OPAQUE, np.polymul, np.polydiv, np.roots, enp.arange, enp.asarray_chkfinite})


def is_by_values(case: Any) -> bool:
    """Return whether the result of a case depends on values in more than its elements: its function, or its dtype."""
    key, _, dtype = case
    return key in BY_VALUES or (key is np.real_if_close and np.dtype(dtype).kind == "c")


def cases(*, smooth: bool = False) -> list[Any]:
    """Return all pairs (key, example), or those with a derivative."""
    return [(key, e) for key, some in EXAMPLES.items() for e in some if e.smooth or not smooth]


def typed_cases(*dtypes: Any, smooth: bool = False) -> list[Any]:
    """Return all triples (key, example, dtype); complex dtypes only where NumPy takes them."""
    return [(*case, dtype) for case in cases(smooth=smooth) for dtype in dtypes if case[1].takes(dtype)]


def label(case: Any) -> str:
    """Return the name of a case."""
    key, example, *dtypes = case
    return "-".join([name_of(key), str(EXAMPLES[key].index(example)), *[dtype.__name__ for dtype in dtypes]])
