"""How a function here stands for one of SciPy's: on plain arrays it is that function, with its very bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import optree

from ebbtide.arrays.traced import TracedArray


def is_traced(*values: Any) -> bool:
    """Return whether there is a traced array among some values, also in tuples, lists and dictionaries."""
    return any(type(leaf) is TracedArray for leaf in optree.tree_leaves(cast(Any, values), none_is_leaf=True))


def stands_for(
    original: Callable[..., Any], plain: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Return a decorator for what a function of SciPy is on traced arrays.

    Args:
        original: SciPy's function, which becomes `__wrapped__`.
        plain: Called where no argument is traced; by default the original.

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
