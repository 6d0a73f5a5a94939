"""
Functions without a derivative (comparisons, floor, argmax): they give plain arrays, or abstract or batched ones.

A batch rule of such a function is `batch(handler, args, kwargs, mapped, size)`: the arguments of all members, which are
on the first axis of `args[k]` where `mapped[k]`. Without one the function is done for one member after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import BatchTrace, aligned, by_members
from ebbtide.arrays.location import user_line
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.primitive import broadcast_type
from ebbtide.arrays.registry import HANDLERS
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.errors import TraceError

PYTHON_NUMBERS = frozenset({bool, int, float, complex})


def constant(
    function: Callable[..., Any],
    infer: Callable[..., Any] | None = None,
    batch: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """
    Return a handler for a function without a derivative: it gives plain arrays.

    Args:
        function: Any NumPy function; traced operands are replaced by their present values.
        infer: `infer(*args, **kwargs)` returns the result for abstract operands, which it is given as types: a type,
            or anything else that needs no data. By default ufuncs have one, and other functions are opaque.
        batch: The batch rule, by default `elementwise` for ufuncs.

    Returns:
        The handler. On abstract operands it gives an abstract array, or raises where the function is opaque.
    """
    if infer is None and isinstance(function, np.ufunc):
        infer = _ufunc_type(function)
    if batch is None and isinstance(function, np.ufunc):
        batch = elementwise

    @wraps(function, updated=())
    def handler(*args: Any, **kwargs: Any) -> Any:
        bare = [_bare(a) for a in args]
        named = {k: _bare(v) for k, v in kwargs.items()}
        if not any(map(_is_abstract, bare)) and not any(map(_is_abstract, named.values())):
            return function(*bare, **named)
        result = _inferred(function, infer, bare, named)
        if type(result) is not ArrayType:
            return result
        trace = _ground((*args, *kwargs.values()))
        if type(trace) is BatchTrace:
            return _of_members(handler, batch, trace, args, kwargs, result)
        # What NumPy dispatches finds its handler wherever a program calls it; our own functions are called by theirs.
        return trace.apply(function if function in HANDLERS else handler, args, kwargs, result)

    return handler


def _is_abstract(value: Any) -> bool:
    return type(value) is ArrayType or (type(value) in (tuple, list) and ArrayType in map(type, value))


def _inferred(function: Any, infer: Any, bare: list[Any], named: dict[str, Any]) -> Any:
    """Return what is known of the result of a constant function on abstract operands."""
    if infer is None:
        raise TraceError(
            f"The result of {function.__name__} at {user_line()} depends on the values of an array of which only shape "
            "and dtype are known here: jit traces it, or it is another one for each member of vmap. Compute it outside "
            "of the function, and pass it in."
        )
    return infer(*bare, **named)


def _ground(args: tuple[Any, ...]) -> Any:
    """Return the innermost trace of an abstract operand that is no derivative."""
    operands = [x for a in args for x in (a if isinstance(a, (list, tuple)) else (a,)) if type(x) is TracedArray]
    grounds = []
    for operand in operands:
        if type(bottom(operand)) is ArrayType:
            ground: Any = operand
            while type(ground._value) is TracedArray:
                ground = ground._value
            grounds.append(ground._trace)
    return max(grounds, key=lambda trace: trace.level)


def _of_members(
    handler: Callable[..., Any], batch: Any, trace: BatchTrace, args: tuple[Any, ...], kwargs: Any, kind: ArrayType
) -> TracedArray:
    """Return the result of a constant function for all members of a batch."""
    # Sequences of arrays, and arrays by keyword, are operands one by one.
    pairs: list[Any] = []
    given = [_taken(trace, x, pairs) for x in args], {name: _taken(trace, x, pairs) for name, x in kwargs.items()}
    values, mapped = [x for x, _ in pairs], [m for _, m in pairs]

    def called(members: Any, form: Any) -> Any:
        return handler(*_filled(form[0], members), **_filled(form[1], members))

    alone = all(type(arg) is _Place or not _has_place(arg) for arg in given[0]) and not _has_place(given[1])
    if batch is not None and alone:
        flags = [type(arg) is _Place and mapped[arg.number] for arg in given[0]]
        out = batch(handler, _filled(given[0], values), given[1], flags, trace.size)
        if out is not None:
            return trace.members(out)
    return trace.members(by_members(handler.__name__, called, values, mapped, given, trace.size, kind))


@final
class _Place:
    """Stands for an operand among arguments."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def _taken(trace: BatchTrace, value: Any, pairs: list[Any]) -> Any:
    """Return an argument with places for its operands, which go to *pairs* with whether they are mapped."""
    if isinstance(value, (tuple, list)):
        return type(value)([_taken(trace, v, pairs) for v in value])
    if type(value) is not TracedArray:
        return value
    pairs.append(trace.beneath(value))
    return _Place(len(pairs) - 1)


def _filled(form: Any, values: Any) -> Any:
    """Return arguments with values in the places of operands."""
    if type(form) is _Place:
        return values[form.number]
    if isinstance(form, (tuple, list)):
        return type(form)([_filled(part, values) for part in form])
    return {name: _filled(part, values) for name, part in form.items()} if type(form) is dict else form


def _has_place(form: Any) -> bool:
    parts = form.values() if type(form) is dict else form if isinstance(form, (tuple, list)) else ()
    return type(form) is _Place or any(_has_place(part) for part in parts)


def elementwise(handler: Any, args: list[Any], kwargs: Any, mapped: list[bool], size: int) -> Any:
    """Batch rule of functions that broadcast their operands."""
    return handler(*aligned(args, mapped), **kwargs)


def along(place: int, default: int | None, *, several: bool = False) -> Callable[..., Any]:
    """
    Return the batch rule of a function of one array along an axis.

    Args:
        place: Number of the parameter `axis`.
        default: The axis without it; None for all elements.
        several: Whether the axis may be a tuple.
    """

    def batch(handler: Any, args: list[Any], kwargs: Any, mapped: list[bool], size: int) -> Any:
        if any(mapped[1:]):
            return None
        x, ndim = args[0], args[0].ndim - 1
        kwargs = dict(kwargs)
        axis = kwargs.pop("axis", args[place] if len(args) > place else default)
        rest = [*args[1:place], *args[place + 1 :]]
        if rest and len(args) > place + 1:
            return None  # parameters behind the axis that are given by their place
        if axis is None and not several:
            if kwargs.get("keepdims", False):
                return None
            x, axis, ndim = np.reshape(x, (size, prod(x.shape[1:]))), 0, 1
        axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        moved = tuple([a + 1 if a >= 0 else a + ndim + 1 for a in axes])
        return handler(x, *rest, axis=moved if several else moved[0], **kwargs)

    return batch


def alone(place: int) -> Callable[..., Any]:
    """Return the batch rule of a function that takes the elements of one argument one by one."""

    def batch(handler: Any, args: list[Any], kwargs: Any, mapped: list[bool], size: int) -> Any:
        return handler(*args, **kwargs) if [k for k, m in enumerate(mapped) if m] == [place] else None

    return batch


def _ufunc_type(function: np.ufunc) -> Callable[..., ArrayType]:
    """Return the rule for the type of the result of a ufunc."""

    def infer(*operands: Any) -> ArrayType:
        return broadcast_type(function, *abstract_types(operands))

    return infer


def abstract_types(operands: tuple[Any, ...]) -> list[ArrayType]:
    """Return the types of operands; a Python number takes the dtype that it has among the others."""
    operands = tuple([np.asarray(x) if type(x) in (list, tuple) else x for x in operands])
    dtypes = [x.dtype for x in operands if type(x) not in PYTHON_NUMBERS]
    return [
        ArrayType((), np.result_type(*dtypes, x)) if type(x) in PYTHON_NUMBERS else type_of(x) for x in operands
    ]


def stand_in_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for a function whose type is found by calling it on arrays of one element spread out."""

    def infer(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):  # of ones, which are nobody's
            result = function(*_spread(args), **kwargs)
        return type_of(result) if isinstance(result, (np.ndarray, np.generic)) else result

    return infer


def _spread(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_spread(v) for v in value])
    return np.broadcast_to(np.ones((), value.dtype), value.shape) if type(value) is ArrayType else value


def _bare(value: Any) -> Any:
    if type(value) is TracedArray:
        return bottom(value.present())
    if isinstance(value, (list, tuple)):
        return type(value)(_bare(v) for v in value)
    refuse_class(type(value))
    return value
