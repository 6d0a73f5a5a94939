"""Functions without a derivative (comparisons, floor, argmax): they give plain arrays, or abstract ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import broadcast_type
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.errors import TraceError

PYTHON_NUMBERS = frozenset({bool, int, float, complex})


def constant(function: Callable[..., Any], infer: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """
    Return a handler for a function without a derivative: it gives plain arrays.

    Args:
        function: Any NumPy function; traced operands are replaced by their present values.
        infer: `infer(*args, **kwargs)` returns the result for abstract operands, which it is given as types: a type,
            or anything else that needs no data. By default ufuncs have one, and other functions are opaque.

    Returns:
        The handler. On abstract operands it gives an abstract array, or raises where the function is opaque.
    """
    if infer is None and isinstance(function, np.ufunc):
        infer = _ufunc_type(function)

    def handler(*args: Any, **kwargs: Any) -> Any:
        bare = [_bare(a) for a in args]
        named = {k: _bare(v) for k, v in kwargs.items()}
        for value in bare:
            if type(value) is ArrayType or (type(value) is tuple and ArrayType in map(type, value)):
                return _inferred(function, infer, args, kwargs, bare, named)
        return function(*bare, **named)

    handler.__name__ = function.__name__
    return handler


def _inferred(
    function: Any, infer: Any, args: tuple[Any, ...], kwargs: Any, bare: list[Any], named: dict[str, Any]
) -> Any:
    """Return the result of a constant function on abstract operands; their trace may note what was done."""
    if infer is None:
        raise TraceError(
            f"The result of {function.__name__} at {user_line()} depends on the values of an array of which only shape "
            "and dtype are known here. Compute it outside of the traced function, and pass it in."
        )
    result = infer(*bare, **named)
    if type(result) is not ArrayType:
        return result
    operands = [x for a in args for x in (a if isinstance(a, (list, tuple)) else (a,)) if type(x) is TracedArray]
    ground: Any = next(x for x in operands if type(bottom(x)) is ArrayType)
    while type(ground._value) is TracedArray:
        ground = ground._value
    return ground._trace.apply(function, args, kwargs, result)


def _ufunc_type(function: np.ufunc) -> Callable[..., ArrayType]:
    """Return the rule for the type of the result of a ufunc."""

    def infer(*operands: Any) -> ArrayType:
        return broadcast_type(function, *abstract_types(operands))

    return infer


def abstract_types(operands: tuple[Any, ...]) -> list[ArrayType]:
    """Return the types of operands; a Python number takes the dtype that it has among the others."""
    dtypes = [x.dtype for x in operands if type(x) not in PYTHON_NUMBERS]
    return [
        ArrayType((), np.result_type(*dtypes, x)) if type(x) in PYTHON_NUMBERS else type_of(x) for x in operands
    ]


def stand_in_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for a function whose type is found by calling it on arrays of one element spread out."""

    def spread(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(spread(v) for v in value)
        return np.broadcast_to(np.ones((), value.dtype), value.shape) if type(value) is ArrayType else value

    def infer(*args: Any, **kwargs: Any) -> Any:
        result = function(*spread(args), **kwargs)
        return type_of(result) if isinstance(result, (np.ndarray, np.generic)) else result

    return infer


def _bare(value: Any) -> Any:
    if type(value) is TracedArray:
        return bottom(value.present())
    if isinstance(value, (list, tuple)):
        return type(value)(_bare(v) for v in value)
    return value
