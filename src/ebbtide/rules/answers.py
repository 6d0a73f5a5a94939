"""How a NumPy function that is no ufunc gets its handler: with an error for arguments that the handler lacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ebbtide.arrays.location import user_line
from ebbtide.arrays.registry import register
from ebbtide.errors import TraceError


def answer(function: Any, handler: Callable[..., Any]) -> None:
    """
    Let *handler* answer for a NumPy function, and refuse arguments that it has no parameters for.

    Args:
        function: The NumPy function.
        handler: Has those parameters of the function whose derivative it knows.

    Raises:
        TraceError: When called with other parameters; names them, and the user's line.
    """

    @wraps(handler)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise  # from inside of the handler
            # Python's message names the handler and the argument: `norm() got an unexpected keyword argument 'where'`.
            raise refusal(
                f"np.{function.__name__} was called with arguments that have no derivative rule: {error}. Write it "
                "without them, or use ebbtide.stop_gradient(x) if no derivative is wanted."
            ) from None

    checked.__name__ = function.__name__
    register(function, checked)


def refusal(message: str) -> TraceError:
    """Return the error for what a rule cannot do, with the user's line."""
    return TraceError(f"At {user_line()}: {message}")
