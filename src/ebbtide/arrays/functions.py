"""Functions that users give: that they are some, where they are, and which arguments they can be called with."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from ebbtide.arrays.location import is_ours, user_line


def check_function(given: Any, taker: str, call: str = "as its first argument") -> None:
    """
    Do nothing for a function, or another object that can be called.

    Args:
        given: What the user gave.
        taker: Who was given it, for the message.
        call: How it is called, or where it is given.

    Raises:
        TypeError: It cannot be called.

    Example:
        >>> check_function(len, "grad")
    """
    if not callable(given):
        shape = getattr(given, "shape", None)
        kind = f"{type(given).__name__} of shape {shape}" if shape else f"{type(given).__name__}, {given!r:.40},"
        raise TypeError(
            f"{taker} takes a function {call}, and was given an object of type {kind} at {user_line()}. Give the "
            "function itself, and not what it returns."
        )


def numbers_of_arguments(name: str, given: int | Sequence[int], *, negative: bool) -> tuple[int, ...]:
    """
    Return numbers of positional arguments as Python's own.

    Args:
        name: As what the user gave them, for the message.
        given: One or several.
        negative: Whether there are negative ones, which count from the last.

    Raises:
        TypeError: They are none.

    Example:
        >>> numbers_of_arguments("argnums", 0, negative=True), numbers_of_arguments("argnums", range(2), negative=True)
        ((0,), (0, 1))
    """
    found: Any = (given,) if isinstance(given, (int, np.integer)) else given
    numbers: list[Any] = list(cast("Iterable[Any]", found)) if isinstance(found, Iterable) else [None]
    if not all(is_whole(number) and (negative or number >= 0) for number in numbers):
        raise TypeError(f"{name}={given!r}: give the numbers of positional arguments, 0 for the first.")
    return tuple([int(number) for number in numbers])


def is_whole(number: Any) -> bool:
    """Return whether a number is an integer, of Python or NumPy, and no truth value."""
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def check_call(
    function: Any, name: str, call: str, takes: str, count: int, error: TypeError | None = None
) -> None:
    """
    Do nothing if a function can be called with so many arguments.

    Args:
        function: The user's function.
        name: What it is to the library, for the message.
        call: How it is called.
        takes: What it takes and returns, as a sentence.
        count: The number of its arguments.
        error: What a call of it has raised; None before there is one.

    Raises:
        TypeError: It cannot be called with so many.
    """
    try:
        # What wraps a function may take other arguments than that, if the call has not been seen to fail.
        inspect.signature(function, follow_wrapped=error is not None).bind(*[None] * count)
    except ValueError:
        return  # some functions in C have no signature
    except TypeError as reason:
        raise TypeError(
            f"{name} at {line_of_function(function)} cannot be called as {call} ({reason}). {takes}"
        ) from error


def is_users(function: Any) -> bool:
    """Return whether it is known where in the user's code a function is."""
    code = _code_of(function)
    return code is not None and not is_ours(code.co_filename)


def line_of_function(function: Any) -> str:
    """Return file and line of the definition of a function of the user's, else of what the user runs now."""
    code = _code_of(function)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None and is_users(function) else user_line()


def _code_of(function: Any) -> Any:
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__  # of an object that can be called
    return getattr(function, "__code__", None)
