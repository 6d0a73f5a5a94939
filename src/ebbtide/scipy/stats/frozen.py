"""Distributions whose parameters are given, as in `norm(loc, scale).pdf(x)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final


@final
class Frozen:
    """
    A distribution with its parameters given: its functions take what is left, which is a point or nothing.

    Args:
        distribution: Has the functions.
        args: The parameters, which may be traced.
        kwargs: Further ones by name.

    Memory:
        Holds the parameters.
    """

    __slots__ = ("_args", "_distribution", "_kwargs")

    def __init__(self, distribution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._distribution = distribution
        self._args = args
        self._kwargs = kwargs

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._distribution, name)
        return lambda *point: function(*point, *self._args, **self._kwargs)
