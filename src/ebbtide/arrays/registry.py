"""The registry of rules: which handler stands behind a NumPy function. It only grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

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


def declare_further() -> None:
    """Declare the rules of ufuncs that are left until they are needed; they stand in the registry as `np.ufunc`."""
    HANDLERS[np.ufunc]()


def of_vectors(operator: Any, x: Any, y: Any, error: Exception) -> Any:
    """
    Return what an array and a vector of a registered type give together.

    Args:
        operator: The ufunc of the operator.
        x: Its left operand.
        y: Its right operand.
        error: What the rule of arrays raised, raised again if neither operand is a vector.

    Returns:
        What they give; NotImplemented if neither is a vector, but one wants its own operator to be asked, as it tells
        NumPy's arrays by `__array_ufunc__ = None`.
    """
    handler = HANDLERS.get((operator, "vector"))
    result = NotImplemented if handler is None else handler(x, y)
    if result is NotImplemented and all(getattr(type(z), "__array_ufunc__", z) is not None for z in (x, y)):
        raise error
    return result
