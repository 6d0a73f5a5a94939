"""Operations that users define, with their own rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.primitive import BORROWED, Primitive, Pull, innermost, missing, needs_of, promoted

Rule = Callable[..., Any]


def primitive(
    fun: Callable[..., Any],
    vjp: Sequence[Rule | None] | Rule | None = None,
    jvp: Sequence[Rule | None] | Rule | None = None,
    output: str = "out",
) -> Callable[..., Any]:
    """
    Return *fun* as one operation with rules of its own.

    Args:
        fun: Computes the operation on plain arrays and returns one array.
        vjp: For each parameter of *fun* the rule of its cotangent, or None where it has no derivative. The first
            parameter of a rule is the cotangent of the result; the others are names of parameters of *fun* or
            *output*, and are what the rule saves. A rule returns the shape and dtype of its parameter.
        jvp: For each parameter of *fun* the rule of the tangent of the result; its first parameter is the tangent
            of that parameter, the others as in *vjp*.
        output: What rules call the result; choose another name for a *fun* with a parameter `out`.

    Returns:
        A function with the parameters of *fun* that records this operation when a derivative is taken.

    Raises:
        TypeError: There is not one rule for each parameter, or a rule asks for a value that there is not.

    Memory:
        A recorded call keeps exactly the values that the rules of its active operands name.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> cube = primitive(lambda x: x**3, vjp=(lambda g, x: g * 3 * x**2,))
        >>> grad(cube)(2.0)
        np.float64(12.0)
    """
    signature = inspect.signature(fun)
    names = tuple(signature.parameters)
    name = getattr(fun, "__name__", "function")
    if output in names:
        raise TypeError(
            f"{name} has a parameter {output!r}, by which its rules would ask for its result. Give the result another "
            "name with output=, for example output='result'."
        )
    pulls = [None if rule is None else _pull(rule, names, output, name) for rule in _rules(vjp, names, name, "vjp")]
    pushes = _rules(jvp, names, name, "jvp")
    for rule in pushes:
        _named(rule, names, output, name)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        if jvp is None:
            raise missing(name, "jvp")
        known = dict(zip(names, values, strict=True)) | {output: out}
        terms = [
            _term(rule, tangent, [known[n] for n in needs_of(rule, 1)], name)
            for tangent, rule in zip(tangents, pushes, strict=True)
            if tangent is not None and rule is not None
        ]
        return promoted(terms, out)

    def pull(k: int) -> Pull | None:
        if vjp is None:
            raise missing(name, "vjp")
        return pulls[k]

    made = Primitive(
        _single(fun, name, signature),
        name=name,
        operands=tuple(_internal(n, output) for n in names),
        pull=pull,
        push=push,
        aliases=True,  # nobody knows what a user's function returns
    )

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return made.bind(tuple(bound.arguments[n] for n in names))

    return call


def _term(rule: Rule, tangent: Any, saved: list[Any], name: str) -> Any:
    """
    Return what a tangent adds to that of the result.

    Where the linear operations on tangents are recorded, the rule is one of them: it may do what nobody can record.
    """
    if not getattr(innermost((tangent,)), "is_linear", False):
        return rule(tangent, *saved)
    whole = Primitive(lambda t, *values: np.asarray(rule(t, *values))[()], name=name, operands=None, pull=_no_pull)
    return whole.bind((tangent, *saved))


def _no_pull(k: int) -> None:
    """Say that there is no derivative: of what is recorded so, none is taken."""


def _single(fun: Callable[..., Any], name: str, signature: inspect.Signature) -> Callable[..., Any]:
    """Return *fun* as a function of its parameters in order, with a check that it returns one array."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
        raise TypeError(f"{name}{signature} takes any number of arguments, and each needs a rule: name them.")
    pairs = zip(signature.parameters, kinds, strict=True)
    keywords = tuple(n for n, kind in pairs if kind is inspect.Parameter.KEYWORD_ONLY)
    count = len(kinds) - len(keywords)

    def checked(*args: Any) -> Any:
        result = fun(*args[:count], **dict(zip(keywords, args[count:], strict=True))) if keywords else fun(*args)
        if isinstance(result, (tuple, list, dict)):
            raise TypeError(f"{name} returned a {type(result).__name__}; a primitive returns one array.")
        return result if hasattr(result, "dtype") else np.asarray(result)[()]

    return checked


def _rules(given: Any, names: tuple[str, ...], name: str, mode: str) -> list[Rule | None]:
    """Return one rule for each parameter."""
    rules: list[Rule | None] = [None] * len(names) if given is None else [given] if callable(given) else list(given)
    if len(rules) != len(names):
        raise TypeError(
            f"{name} has {len(names)} parameters {names} and {len(rules)} {mode} rules. Give one for each, None for "
            "those without a derivative."
        )
    return rules


def _named(rule: Any, names: tuple[str, ...], output: str, name: str) -> tuple[str, ...]:
    """Return the names of the values that a rule saves."""
    needs = needs_of(rule, 1)
    for need in needs:
        if need not in names and need != output:
            raise TypeError(
                f"A rule of {name} asks for {need!r}, which is neither a parameter {names} nor the result "
                f"{output!r}. The first parameter of a rule is the cotangent, the others are values to save."
            )
    return tuple(_internal(need, output) for need in needs)


def _internal(name: str, output: str) -> str:
    """Return what a primitive calls a value: its result is `out`, so a parameter of that name needs another."""
    return "out" if name == output else "(out)" if name == "out" else name


def _pull(rule: Rule, names: tuple[str, ...], output: str, name: str) -> Pull:
    def apply(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
        return rule(g, *saved)

    return Pull(apply, _named(rule, names, output, name), BORROWED)
