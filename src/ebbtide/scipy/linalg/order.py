"""How a function here stands for one of SciPy's: results in C order, and no arguments without a rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MappingProxyType
from typing import Any

import numpy as np

from ebbtide.rules.answers import refusal
from ebbtide.rules.matrices import in_c_order, native
from ebbtide.rules.originals import stands_for

# LAPACK has neither half nor extended precision: SciPy computes them in single and in double.
_IN_LAPACK = MappingProxyType({"e": np.float32, "g": np.float64, "G": np.complex128})


def _as_lapack(x: Any, letters: str) -> Any:
    """Return an array of one of these dtypes in the one that LAPACK has; also each array in a tuple."""
    if type(x) is tuple:
        return tuple([_as_lapack(part, letters) for part in x])
    return x.astype(_IN_LAPACK[x.dtype.char]) if hasattr(x, "dtype") and x.dtype.char in letters else x


def answers_for(
    original: Callable[..., Any], *, by_lapack: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return a decorator for what a function of SciPy is on traced arrays.

    LAPACK's results are in Fortran order or in C order, as it happens, and sums go along memory: a step that is run on
    traced arrays and again on plain ones has the same bits only if they lie alike.

    Args:
        original: SciPy's function, which is `__wrapped__`.
        by_lapack: Letters of the dtypes that it computes in one of LAPACK's; it refuses the others, or does without.

    Returns:
        The decorator.
    """

    @wraps(original)
    def ordered(*args: Any, **kwargs: Any) -> Any:
        result = original(*[native(arg) for arg in args], **{name: native(arg) for name, arg in kwargs.items()})
        return in_c_order(result) if type(result) is not tuple else tuple([in_c_order(part) for part in result])

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def usual(*args: Any, **kwargs: Any) -> Any:
            given = [_as_lapack(arg, by_lapack) for arg in args]
            return function(*given, **{name: _as_lapack(arg, by_lapack) for name, arg in kwargs.items()})

        return stands_for(original, ordered)(usual if by_lapack else function)

    return decorate


def refuse(name: str, given: dict[str, tuple[Any, Any]]) -> None:
    """Raise if one of some arguments is not what it is by default."""
    for argument, (value, usual) in given.items():
        if value is not usual and not (type(value) in (bool, int) and value == usual):
            raise refusal(f"scipy.linalg.{name} with {argument}={value!r} has no derivative rule; leave it out.")
