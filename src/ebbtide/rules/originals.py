"""How a function that dispatch does not reach stands for the original: on plain arrays it is that one, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ebbtide.arrays.containers import objects_in
from ebbtide.arrays.traced import TracedArray


def is_traced(*values: Any) -> bool:
    """Return whether there is a traced array among some values, also in tuples, lists and dictionaries."""
    return any(type(leaf) is TracedArray for leaf in objects_in(values))


def stands_for(
    original: Callable[..., Any], plain: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return a decorator for what a function of NumPy or SciPy is on traced arrays.

    Args:
        original: That function, which becomes `__wrapped__`.
        plain: What is called where no argument is traced; by default the original.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (function if is_traced(args, kwargs) else plain or original)(*args, **kwargs)

        vars(call)["__wrapped__"] = original
        return call

    return decorate
