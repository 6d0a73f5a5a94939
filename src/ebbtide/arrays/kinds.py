"""
The kinds of operation. A kind gives vjp, jvp, saved values, types and batching; only `custom` writes them out.

elementwise   y[i] = f(x[i], ...): derivative expressions, one for each operand
linear        y = A x: the transpose; nothing is saved
multilinear   linear in each operand: one transpose for each, given the other operands
reduction     an array to fewer axes, with a derivative expression of the shape of the operand
constant      no derivative (comparisons, floor, argmax): gives plain arrays; see `constants`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import aligned, all_full, full
from ebbtide.arrays.primitive import (
    FRESH,
    PASSED,
    Primitive,
    Pull,
    broadcast_type,
    matched,
    needs_of,
    promoted,
    unbroadcast,
)
from ebbtide.arrays.traced import TracedArray

UNARY, BINARY, CHOSEN = ("x",), ("x", "y"), ("x", "where")
NUMBERS = frozenset({float, int})
# Operands of these types go to NumPy as they are.
PLAIN = frozenset({np.ndarray, float, int, bool, np.float64, np.float32})


def _elementwise_pull(derivative: Any) -> Pull | None:
    """Return the pull g -> g * derivative(saved), summed over broadcast axes."""
    if callable(derivative):
        needs = needs_of(derivative)
        scaled = needs[0] == "g"

        def rule(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
            product: Any = derivative(g, *saved) if scaled else g * derivative(*saved)
            same = product.dtype is kind.dtype and product.shape == kind.shape
            return product if same else unbroadcast(product, kind)

        return Pull(rule, needs[1:] if scaled else needs, FRESH, derivative, scaled, trusted=True)
    if derivative == 0:
        return None
    if derivative == 1:

        def passed(g: Any, kind: ArrayType, params: Any) -> Any:
            return g if g.dtype is kind.dtype and g.shape == kind.shape else unbroadcast(g, kind)

        return Pull(passed, (), PASSED, trusted=True)
    if derivative == -1:
        return Pull(lambda g, kind, params: np.negative(unbroadcast(g, kind)), (), FRESH, trusted=True)
    return Pull(lambda g, kind, params: unbroadcast(np.multiply(g, derivative), kind), (), FRESH, trusted=True)


def elementwise(
    function: Callable[..., Any],
    d: Any,
    *,
    keep: Mapping[str, Callable[..., Any]] | None = None,
    operands: tuple[str, ...] | None = None,
    name: str | None = None,
    composite: bool = False,
) -> Primitive:
    """
    Declare an elementwise operation.

    Args:
        function: The ufunc, an operator, or any function of arrays that broadcasts its operands.
        d: The derivative with respect to the operand, or a tuple with one for each operand: a number, or a
            function whose parameters name what it needs (operands `x`, `y`; `out`; kept values). If its
            first parameter is `g`, it returns g times the derivative.
        keep: Kept values by name: functions of operands or `out`.
        operands: Names of the operands, `x` and `y` by default.
        name: Name in messages.
        composite: Whether programs have the operations that the function is made of.

    Returns:
        The primitive.
    """
    derivatives = d if isinstance(d, tuple) else (d,)
    names = operands or (UNARY if len(derivatives) == 1 else BINARY)
    needs = tuple([needs_of(one) for one in derivatives])
    pulls = tuple([_elementwise_pull(one) for one in derivatives])

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        by_name = dict(zip(names, values, strict=True), out=out)
        terms = []
        for tangent, derivative, names_needed in zip(tangents, derivatives, needs, strict=True):
            if tangent is None or (not callable(derivative) and derivative == 0):
                continue
            if callable(derivative):
                scaled = names_needed[0] == "g"
                needed = [by_name[n] if n in by_name else kept(n) for n in names_needed[scaled:]]
                term: Any = derivative(tangent, *needed) if scaled else tangent * derivative(*needed)
                terms.append(term)
            else:
                terms.append(tangent if derivative == 1 else np.multiply(tangent, derivative))
        return promoted(terms, out)

    primitive = Primitive(
        function,
        name=name,
        operands=names,
        pull=pulls.__getitem__,
        push=push,
        infer=lambda *kinds, **params: broadcast_type(function, *kinds),
        keep=keep,
        batch=lambda values, mapped, params, size: primitive.bind(aligned(values, mapped), params),
        composite=composite,
    )
    return primitive


def numpy_complex(x: Any, other: Any) -> Any:
    """Return a Python complex number as NumPy's, of the other's precision: times np.float64 it is Python's again."""
    return np.result_type(other.dtype, x).type(x) if type(x) is complex else x


def handler_of(primitive: Primitive) -> Callable[..., Any]:
    """Return the handler of an elementwise primitive of one or two operands, with a short way to the tape."""

    def unary(x: Any) -> Any:
        if type(x) is TracedArray:
            trace = x._trace
            if trace.fast:
                return trace.unary(primitive, first, x)
        return primitive.bind((x,))

    def binary(x: Any, y: Any) -> Any:
        if type(x) is TracedArray:
            trace = x._trace
            if trace.fast:
                if type(y) is TracedArray:
                    if y._trace is trace:
                        return trace.binary(primitive, both, x, y)
                elif type(y) in PLAIN:
                    return trace.mixed(primitive, first, x, y, True)
        elif type(y) is TracedArray and y._trace.fast and type(x) in PLAIN:
            return y._trace.mixed(primitive, second, y, x, False)
        return primitive.bind((numpy_complex(x, y), numpy_complex(y, x)))

    count = len(primitive.operands or ())
    if len(primitive.signature((1 << count) - 1, count).pulls) < count:
        return primitive  # the derivative with respect to an operand is zero
    first, second, both = (primitive.signature(active, count) for active in (1, 2, 3))
    return unary if count == 1 else binary


def linear(
    function: Callable[..., Any],
    transpose: Callable[..., Any],
    *,
    infer: Callable[..., ArrayType],
    batch: Callable[..., Any],
    result: str = PASSED,
    aliases: bool = False,
    put: Callable[..., Any] | None = None,
    accumulate: Callable[..., bool] | None = None,
    name: str | None = None,
) -> Primitive:
    """
    Declare an operation that is linear in its one operand; it saves nothing.

    Args:
        function: `function(x, **params)`.
        transpose: `transpose(g, type, **params)`: the cotangent of an operand of this type.
        infer: `infer(type, **params)`: type of the output.
        batch: `batch(x, **params)`: the operation on all members, which are on the first axis of *x*.
        result: Who owns what the transpose returns.
        aliases: Whether the output may be a view of the operand.
        put: Writes a changed view back.
        accumulate: `accumulate(target, g, params)` adds the transpose into an owned array.
        name: Name in messages.

    Returns:
        The primitive.
    """

    def rule(g: Any, kind: ArrayType, params: Any) -> Any:
        return matched(transpose(g, kind, **(params or {})), kind)

    pull = Pull(rule, (), result, accumulate=accumulate)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        return primitive.bind((tangents[0],), params)

    primitive = Primitive(
        function,
        name=name,
        operands=UNARY,
        pull=lambda k: pull,
        push=push,
        infer=infer,
        aliases=aliases,
        put=put,
        batch=lambda values, mapped, params, size: batch(values[0], **params),
    )
    return primitive


def linear_of_many(
    function: Callable[..., Any],
    transpose: Callable[..., Any],
    *,
    infer: Callable[..., ArrayType],
    batch: Callable[..., Any],
    name: str | None = None,
    last: int | None = None,
    consume: Callable[..., Any] | None = None,
    result: str = PASSED,
) -> Primitive:
    """
    Declare an operation that is linear in all its operands together; it saves nothing.

    Args:
        function: `function(*operands, **params)`.
        transpose: `transpose(k, g, type, **params)`: the cotangent of operand k.
        infer: `infer(*types, **params)`: type of the output.
        batch: `batch(*operands, **params)`: the operation on all members, which are on the first axis of each operand.
        name: Name in messages.
        last: Number of the operand whose transpose may use up the cotangent.
        consume: `consume(g, params)` does that transpose in the memory of the cotangent.
        result: Who owns what the transpose returns.

    Returns:
        The primitive.
    """

    def pull(k: int) -> Pull:
        def rule(g: Any, kind: ArrayType, params: Any) -> Any:
            return matched(transpose(k, g, kind, **(params or {})), kind)

        return Pull(rule, (), result, last=k == last, consume=consume if k == last else None)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        full = [zeros_like(v) if t is None else t for t, v in zip(tangents, values, strict=True)]
        return matched(primitive.bind(tuple(full), params), type_of(out))

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        return batch(*all_full(values, mapped, size), **params)

    primitive = Primitive(function, name=name, operands=None, pull=pull, push=push, infer=infer, batch=of_members)
    return primitive


def multilinear(
    function: Callable[..., Any],
    transposes: tuple[Callable[..., Any], ...],
    *,
    infer: Callable[..., ArrayType],
    batch: Callable[..., Any],
    accumulate: tuple[Callable[..., bool] | None, ...] = (None, None),
    accumulates: tuple[Callable[..., bool] | None, ...] = (None, None),
    name: str | None = None,
    scratch: Callable[..., float] | None = None,
) -> Primitive:
    """
    Declare an operation of two operands that is linear in each.

    Args:
        function: `function(x, y, **params)`.
        transposes: `(of_x(g, y, type, **params), of_y(g, x, type, **params))`.
        infer: `infer(type_x, type_y, **params)`: type of the output.
        batch: `batch(x, y, mapped_x, mapped_y, **params)`: the operation on all members, which are on the first axis of
            the operands that are mapped.
        accumulate: `(into_x(target, g, params, y), into_y(target, g, params, x))`, which add the
            cotangent into an owned array and return whether they could.
        accumulates: Whether they can, judging by types: see `Pull`.
        name: Name in messages.
        scratch: See `Primitive`.

    Returns:
        The primitive; it saves the other operand of each active one.
    """

    def make(transpose: Any, other: str, into: Any, can: Any) -> Pull:
        def rule(g: Any, kind: ArrayType, params: Any, saved: Any) -> Any:
            return matched(transpose(g, saved, kind, **(params or {})), kind)

        return Pull(rule, (other,), FRESH, accumulate=into, accumulates=can)

    pulls = (*map(make, transposes, "yx", accumulate, accumulates),)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        terms = []
        if tangents[0] is not None:
            terms.append(primitive.bind((tangents[0], values[1]), params))
        if tangents[1] is not None:
            terms.append(primitive.bind((values[0], tangents[1]), params))
        return promoted(terms, out)

    primitive = Primitive(
        function, name=name, operands=BINARY, pull=pulls.__getitem__, push=push, infer=infer, scratch=scratch,
        batch=lambda values, mapped, params, size: batch(*values, *mapped, **params),
    )  # fmt: skip
    return primitive


def reduction(
    function: Callable[..., Any],
    vjp: Callable[..., Any],
    jvp: Callable[..., Any],
    *,
    infer: Callable[..., ArrayType],
    keep: Mapping[str, Callable[..., Any]] | None = None,
    name: str | None = None,
) -> Primitive:
    """
    Declare a reduction of the chosen elements along the axes `axis`, with `keepdims=True`.

    Args:
        function: `function(x, where, axis=, keepdims=True, **params)`; `where` is True for all elements.
        vjp: `vjp(g, type, params, *saved)`: cotangent of the operand; the names of the parameters after
            `params` say what is saved: `x`, `where`, `out`, kept values.
        jvp: `jvp(t, params, *saved)`: tangent of the output.
        infer: `infer(type, type of where, **params)`.
        keep: Kept values by name; functions of `x`, `where` and `out`, element by element.
        name: Name in messages.

    Returns:
        The primitive.
    """

    def rule(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
        return matched(vjp(g, kind, params, *saved), kind)

    pull = Pull(rule, needs_of(vjp, 3), FRESH, temporaries=2, along=lambda kind, params: params["axis"])

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        known = {"x": values[0], "where": values[1], "out": out}
        saved = [known[n] if n in known else kept(n) for n in needs_of(jvp, 2)]
        return matched(jvp(tangents[0], params, *saved), type_of(out))

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        operands = aligned((full(values[0], mapped[0], size), values[1]), (True, mapped[1]))
        return primitive.bind(operands, {**params, "axis": tuple([a + 1 for a in params["axis"]])})

    primitive = Primitive(
        function, name=name, operands=CHOSEN, pull=lambda k: None if k else pull, push=push, infer=infer, keep=keep,
        batch=of_members, masks=True,
    )  # fmt: skip
    return primitive


def zeros_like(value: Any) -> Any:
    """Return zeros of the type of a value of any level, as a plain array."""
    kind = type_of(value)
    return np.zeros(kind.shape, kind.dtype)
