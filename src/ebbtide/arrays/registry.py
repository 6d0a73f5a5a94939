"""The registry of rules: which handler stands behind a NumPy function. It only grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Handler = Callable[..., Any]

HANDLERS: dict[Any, Handler] = {}


def register(functions: Any | Iterable[Any], handler: Handler) -> Handler:
    """
    Let *handler* answer for one or several NumPy functions when an operand is traced.

    Args:
        functions: A NumPy function or ufunc, or several that mean the same.
        handler: Called with the arguments of the function.

    Returns:
        The handler.

    Raises:
        ValueError: A function has a handler already: a second one would silently change gradients.
    """
    for function in functions if isinstance(functions, (tuple, list)) else (functions,):
        if HANDLERS.setdefault(function, handler) is not handler:
            name = getattr(function, "__name__", function)
            raise ValueError(f"There is a rule for {name} already, and a rule is never replaced.")
    return handler
