"""Rules on their own: what they return, what they save, and what they write into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import read_only, type_of
from ebbtide.arrays.constants import abstract_types
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.primitive import FRESH
from ebbtide.errors import RuleMissingError, TraceError
from ebbtide.testing.gradients import (
    SEED,
    compare,
    compare_types,
    drawn_like,
    length_of,
    pairing,
    pairing_scale,
    precise,
    stretched,
)
from ebbtide.testing.operations import Operation, operations_of
from ebbtide.transforms.batching import vmap
from ebbtide.transforms.pullback import vjp

# How far a member of a batch is from the point: near enough to be of the same domain.
_NEAR = 1 / 64


def check_rule(f: Callable[..., Any], *args: Any) -> None:
    """
    Check the rules of the operations that *f* is made of, at one point.

    For each operation and each operand with a derivative: the cotangent has the shape and dtype of the operand; it is
    right against the tangents, by the dot-product test `<g, J t> = <J* g, t>` (against finite differences where there
    is no rule in forward mode, and so are tangents where there is none in reverse); every saved array has an influence
    on it, whatever is put in its place (other magnitudes, signs, ties, nan, other masks); no rule writes into an
    operand, a result or a cotangent, and what it calls fresh shares no memory with them; types that are told without
    data, and what is done for all members of a batch at once, are those of arrays. Whether the derivative is that of
    the function `check_grads` says.

    Args:
        f: A function made by `ebbtide.primitive`, or any function of arrays and containers of arrays.
        *args: Its arguments. At the point its derivatives should be different from zero, without ties.

    Raises:
        AssertionError: A rule does something else. The message has the operation, the operand and the numbers.
        ValueError: *f* does no operation on its arguments.

    Memory:
        All operands and results of *f*, and some copies of those of one operation.

    Example:
        >>> import numpy as np
        >>> from ebbtide import primitive
        >>> cube = primitive(lambda x: x**3, vjp=lambda g, x: g * 3 * x**2)
        >>> check_rule(cube, np.array([0.5, 2.0]))
        >>> scaled = primitive(lambda x: 2 * x, vjp=lambda g, x: g * 2)
        >>> check_rule(scaled, np.array([0.5, 2.0]))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: <lambda> saves 'x' for the cotangent of operand 0, ...
    """
    check_function(f, "check_rule")
    leaves, structure = flatten(args)
    copies = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    operations = operations_of(lambda *arrays: f(*unflatten(structure, list(arrays))), copies)
    if not operations:
        name = getattr(f, "__name__", "The function")
        raise ValueError(f"{name} does no operation on its arguments that has a rule. Give it arrays that it uses.")
    for leaf, copy in zip(leaves, copies, strict=True):
        _compare_bits(copy, leaf, f"{getattr(f, '__name__', 'The function')} changed an argument")
    random = np.random.default_rng(SEED)
    matters: dict[tuple[str, int, str], bool] = {}
    for operation in operations:
        check_operation(operation, random)
        check_members(operation, random)
        note_influence(operation, matters, random)
    for (name, k, saved), matter in matters.items():
        if not matter:
            raise AssertionError(
                f"{name} saves {saved!r} for the cotangent of operand {k}, and nothing that is put in its place "
                "changes that. Leave it out of the parameters of the rule, or save a small mask."
            )


def check_operation(operation: Operation, random: np.random.Generator) -> None:
    """
    Check what the rules of one operation return and write, but not whether they need what they save.

    Args:
        operation: The operation.
        random: Where cotangents and tangents are drawn from.

    Raises:
        AssertionError: A rule returns or writes what it must not.
    """
    name = operation.primitive.name
    tangents = {k: drawn_like(operation.values[k], random) for k in operation.floating()}
    active = _active(operation)
    with np.errstate(all="ignore"):
        pushed = _pushed(operation, tangents)
        whole = active is not None and pushed is not None
        if not whole:
            # A step of the order of one is lost in numbers that are large.
            eps = _precision(operation) ** (1 / 3)
            tangents = {k: stretched(t, length_of(operation.values[k], eps)) for k, t in tangents.items()}
            pushed = None if pushed is None else _pushed(operation, tangents)
        expected = pushed if whole else _differences(operation, tangents)
        # Two rules differ by the rounding of the least precise of all numbers, a rule and a difference by more.
        tolerance = min(1e4 * _precision(operation), 0.1) if whole else _precision(operation) ** (1 / 3)
        if active:
            g = drawn_like(operation.out, random)
            pulled, along = [_checked_pull(operation, k, g) for k in active], [tangents[k] for k in active]
            scale = pairing_scale([g], [expected]) + pairing_scale(pulled, along)
            limits = {"rtol": 0.0, "atol": tolerance * (1 + scale)}
            against = "jvp, the dot-product test" if whole else "finite differences"
            compare(pairing(pulled, along), pairing([g], [expected]), limits, f"{name}: vjp against {against}")
        elif pushed is not None:
            limits = {"rtol": tolerance, "atol": tolerance}
            compare(pushed, expected, limits, f"{name}: jvp against finite differences")
    told = _told(operation)
    if told is not None:
        compare_types(told, operation.out, f"What {name} says without data of its result")


def _told(operation: Operation) -> Any:
    """Return the type that an operation says without data that its result has; None if that depends on values."""
    infer = operation.primitive.infer
    if infer is None:
        return None
    try:
        return infer(*abstract_types(operation.values), **(operation.params or {}))
    except TraceError:
        return None


def _precision(operation: Operation) -> float:
    """Return the precision of the least precise of the operands and the result."""
    kinds = [type_of(x) for x in (*map(operation.values.__getitem__, operation.floating()), operation.out)]
    return max([float(np.finfo(kind.dtype).eps) for kind in kinds if kind.dtype.kind in "fc"], default=1.0)


def _active(operation: Operation) -> list[int] | None:
    """Return the numbers of the operands with a derivative in reverse mode; None without rules for it."""
    try:
        return operation.active()
    except RuleMissingError:
        return None


def _pushed(operation: Operation, tangents: dict[int, Any]) -> Any:
    """Return the tangent of the result, after a check of its type; None without a rule in forward mode."""
    try:
        found = operation.push([tangents.get(k) for k in range(len(operation.values))])
    except RuleMissingError:
        return None
    if found is None:
        return np.zeros_like(operation.out)
    compare_types(found, operation.out, f"The tangent of {operation.primitive.name}")
    return found


def note_influence(
    operation: Operation, matters: dict[tuple[str, int, str], bool], random: np.random.Generator
) -> None:
    """
    Find which saved arrays have an influence on the cotangents of one operation.

    Args:
        operation: The operation.
        matters: Takes (operation, operand, name of the saved array), and whether it had an influence here or before.
        random: Where the cotangent is drawn from.
    """
    if not np.size(operation.out):
        return
    for k in _active(operation) or ():
        pull = operation.primitive.pull(k)
        assert pull is not None
        g, saved = drawn_like(operation.out, random), operation.saved(k)
        expected = np.asarray(operation.pull(k, g, saved))
        for position, (name, value) in enumerate(zip(pull.needs, saved, strict=True)):
            if not isinstance(value, (np.ndarray, np.generic)):
                continue  # a Python number
            place = operation.primitive.name, k, name
            for other in _others(value):
                if matters.get(place):
                    break
                try:
                    with np.errstate(all="ignore"):
                        result = operation.pull(k, g, [*saved[:position], other, *saved[position + 1 :]])
                except (IndexError, ValueError):  # LAPACK refuses nan and singular matrices
                    result = None
                matters[place] = result is None or not np.array_equal(result, expected, equal_nan=True)


def _others(value: Any) -> list[Any]:
    """Return what is put in the place of a saved array: other masks, orders, magnitudes and signs, ties and nan."""
    if value.dtype.kind == "u":
        return [np.flip(value)]
    if value.dtype == np.bool_:
        return [~value]
    if value.dtype == np.int8:
        return [np.where(value == 1, np.int8(-1), value + np.int8(1)).astype(np.int8)]
    if value.dtype.kind == "i":
        # Pivots and indices have to stay in their range, of which LAPACK does not look.
        return [np.flip(value), np.max(value) + np.min(value) - value] if value.ndim and value.size else [value + 1]
    return [value * 1.375 + 0.125, -value, np.round(value), np.full_like(value, np.nan)]


def _checked_pull(operation: Operation, k: int, g: Any) -> Any:
    """Return the cotangent of an operand, after a check of its type and of what the rule has written into."""
    primitive, operand = operation.primitive, operation.values[k]
    pull = primitive.pull(k)
    assert pull is not None
    what = f"The cotangent that {primitive.name} returns for operand {k}"
    given = np.array(g) if isinstance(g, np.ndarray) else g
    # Who writes into a view that is read-only raises.
    saved = [read_only(value) for value in operation.saved(k)]
    before = [np.array(value) if isinstance(value, np.ndarray) else value for value in saved]
    try:
        result = operation.pull(k, given if pull.last else read_only(given), saved)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise AssertionError(
            f"The rule of {primitive.name} for operand {k} writes into its cotangent or into a saved value, which are "
            "others' too. Let it make a new array."
        ) from error
    for value, copy in zip(saved, before, strict=True):
        _compare_bits(value, copy, f"The rule of {primitive.name} for operand {k} changed a saved value")
    compare_types(result, operand, what)
    if pull.result == FRESH and isinstance(result, np.ndarray):
        arrays = [x for x in (given, *operation.values, operation.out) if isinstance(x, np.ndarray)]
        if not pull.last and any(np.shares_memory(result, x) for x in arrays):
            raise AssertionError(f"{what} is declared fresh, and shares memory with the cotangent or an operand.")
    if pull.accumulate is not None and isinstance(result, np.ndarray) and result.size:
        start = np.ones(result.shape, result.dtype)
        target = np.array(start)
        if pull.accumulate(target, given, operation.params, *saved):
            size = float(np.max(np.abs(precise(result)), initial=0.0))
            limits = {"rtol": 0.0, "atol": 100 * _precision(operation) * (1 + size)}
            compare(target, start + result, limits, f"{what}, added into another")
    return result


def _differences(operation: Operation, tangents: dict[int, Any]) -> Any:
    """Return the central finite difference of the result along some tangents."""
    eps = _precision(operation) ** (1 / 3)
    ahead, behind = [
        precise(operation.run([x + step * tangents[k] if k in tangents else x for k, x in enumerate(operation.values)]))
        for step in (eps, -eps)
    ]
    return (ahead - behind) / (2 * eps)


def check_members(operation: Operation, random: np.random.Generator) -> None:
    """
    Check that an operation with a batch rule, and its rules, give each member what they give it alone.

    Args:
        operation: The operation.
        random: Where a cotangent is drawn from.

    Raises:
        AssertionError: A member has another type or other numbers.
    """
    primitive, places = operation.primitive, operation.floating()
    if primitive.batch is None or not places or "kinds" in (operation.params or {}):
        return  # vectors of registered types have no members
    points = [[x * (1 - _NEAR * k) for k in range(2)] for x in map(operation.values.__getitem__, places)]
    points = [[x.astype(type_of(pair[0]).dtype) for x in pair] for pair in points]

    def done(*xs: Any) -> Any:
        values = list(operation.values)
        for k, x in zip(places, xs, strict=True):
            values[k] = x
        return primitive.bind(tuple(values), operation.params)

    g = drawn_like(operation.out, random)

    def pulled(*xs: Any) -> Any:
        return vjp(done, *xs)[1](g)

    for function in (done, pulled) if _active(operation) else (done,):
        found = flatten(vmap(function)(*[np.stack(pair) for pair in points]))[0]
        for k in range(2):
            expected = flatten(function(*[pair[k] for pair in points]))[0]
            for one, other in zip(found, expected, strict=True):
                what = f"{primitive.name}{'' if function is done else ': vjp'} under vmap, member {k}"
                compare_types(one[k], other, what)
                if not np.array_equal(one[k], other, equal_nan=True):
                    tolerance = 1e4 * _precision(operation)
                    compare(one[k], other, {"rtol": tolerance, "atol": tolerance}, what)


def _compare_bits(found: Any, expected: Any, what: str) -> None:
    """Raise unless a value has all bits of another."""
    if np.asarray(found).tobytes() != np.asarray(expected).tobytes():
        raise AssertionError(f"{what}, which is not its own. Let it make a new array.")
