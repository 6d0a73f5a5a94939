"""How a function here stands for one of SciPy's: results in C order, and no arguments without a rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ebbtide.rules.answers import refusal
from ebbtide.rules.matrices import in_c_order, native
from ebbtide.rules.originals import stands_for


def answers_for(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return a decorator for what a function of SciPy is on traced arrays.

    LAPACK's results are in Fortran order or in C order, as it happens, and sums go along memory: a step that is run on
    traced arrays and again on plain ones has the same bits only if they lie alike.

    Args:
        original: SciPy's function, which is `__wrapped__`.

    Returns:
        The decorator.
    """

    @wraps(original)
    def ordered(*args: Any, **kwargs: Any) -> Any:
        result = original(*[native(arg) for arg in args], **{name: native(arg) for name, arg in kwargs.items()})
        return in_c_order(result) if type(result) is not tuple else tuple([in_c_order(part) for part in result])

    return stands_for(original, ordered)


def refuse(name: str, given: dict[str, tuple[Any, Any]]) -> None:
    """Raise if one of some arguments is not what it is by default."""
    for argument, (value, usual) in given.items():
        if value is not usual and not (type(value) in (bool, int) and value == usual):
            raise refusal(f"scipy.linalg.{name} with {argument}={value!r} has no derivative rule; leave it out.")
