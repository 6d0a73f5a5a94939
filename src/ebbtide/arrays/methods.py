"""The operators and methods of traced arrays, made from the NumPy functions that they mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.registry import HANDLERS, of_vectors
from ebbtide.errors import TraceError


def binary(ufunc: Any) -> tuple[Any, Any, Any]:
    """Return the operator methods (x op y, y op x, x op= y) of a ufunc, or an operator, with two operands."""

    def forward(self: Any, other: Any) -> Any:
        try:
            return HANDLERS[ufunc](self, other)
        except TraceError as error:
            return of_vectors(ufunc, self, other, error)

    def reflected(self: Any, other: Any) -> Any:
        try:
            return HANDLERS[ufunc](other, self)
        except TraceError as error:
            return of_vectors(ufunc, other, self, error)

    def in_place(self: Any, other: Any) -> Any:
        return self._updated(HANDLERS[ufunc](self, other), ufunc)

    return forward, reflected, in_place


def comparison(operator: Any, ufunc: np.ufunc) -> Any:
    """Return the method of an operator that compares; with what is no number it gives what it does of plain arrays."""
    forward = binary(ufunc)[0]

    def compared(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, (str, bytes)):
            return operator(np.broadcast_to(np.zeros((), self.dtype), self.shape), other)
        if getattr(type(other), "__array_ufunc__", other) is None:
            return NotImplemented
        return forward(self, other)

    return compared


def unary(function: Any) -> Any:
    """Return the operator method of a function with one operand."""

    def called(self: Any) -> Any:
        return HANDLERS[function](self)

    return called


def method(function: Any) -> Any:
    """Return a method that calls the NumPy function of the same meaning."""

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        handler = HANDLERS.get(function)
        if handler is None or "out" in kwargs:
            return function(self, *args, **kwargs)  # by way of NumPy: to the error, or to who writes the output
        return handler(self, *args, **kwargs)

    called.__name__ = function.__name__
    called.__doc__ = f"See `numpy.{function.__name__}`."
    return called
