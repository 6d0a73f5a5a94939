"""Products of second-order matrices with vectors: the Hessian of a function, and Gauss and Newton's part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.context import entered
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.errors import CotangentError, DeterminismError
from ebbtide.tape.account import account
from ebbtide.tape.saved import checksum_of_result
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp
from ebbtide.transforms.reverse import argument_numbers, grad, is_one


def hvp(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, budget: Budget | None = None
) -> Callable[..., Any]:
    """
    Return a function that computes the product of the Hessian of *f* with a vector, forward over reverse.

    Args:
        f: A function of arrays and containers of arrays with a real scalar result.
        argnums: Which positional arguments to differentiate; a number, or several.
        budget: The bytes that a call may take beyond the function with its tangents; None for no bound.

    Returns:
        `product(*args, v)` takes the arguments of *f* and a vector of the structure, shapes and dtypes of the argument,
        or a tuple of them for several, and returns H v of that form, in memory of the caller. For complex arguments
        that is the change of the gradient, in the convention of `grad`, which is linear over the real numbers only.

    Raises:
        TypeError: The output is no real scalar, or an input is no floating-point number.
        CotangentError: The vector has another structure, shape or kind of dtype than the argument.
        BudgetError: The budget is too small; says the least that would do.

    Memory:
        As `grad`, with a tangent beside each value that is held; time loops follow the same schedules.

    Source:
        Pearlmutter, Fast exact multiplication by the Hessian (1994).

    Example:
        >>> import numpy as np
        >>> hvp(lambda x: np.sum(x**3))(np.array([1.0, 2.0]), np.array([1.0, 0.0]))
        array([6., 0.])
    """
    check_function(f, "hvp")
    gradient = grad(f, argnums, budget=budget)

    @wraps(f)
    def product(*args_and_vector: Any, **kwargs: Any) -> Any:
        chosen, point, directions, single = _chosen("hvp", gradient, argnums, args_and_vector, kwargs)
        found = jvp(chosen, point, directions)[1]
        return _returned(found, point[0] if single else tuple(point), flatten(directions)[0])

    return product


def gauss_newton_product(
    residual: Callable[..., Any],
    loss: Callable[[Any], Any] | None = None,
    argnums: int | Sequence[int] = 0,
    budget: Budget | None = None,
) -> Callable[..., Any]:
    """
    Return a function that computes J^T H J v: J the derivative of *residual*, H the Hessian of a convex *loss* of it.

    It is the Hessian of `loss(residual(x))` without the curvature of the residual: symmetric, with no negative
    eigenvalue, and equal to it where the residual is linear or the loss is at its minimum. For many products at one
    point take `linearize` and `vjp(retain=True)` once, and call `pullback(hvp(loss)(value, pushforward(v)))`.

    Args:
        residual: A function of arrays and containers of arrays, with any outputs. It runs twice: once with tangents, of
            which nothing is kept, and once to be pulled back.
        loss: A convex real function of the outputs, as `residual` returns them; None for half the sum of their squares
            (of absolute values, if they are complex).
        argnums: Which positional arguments to differentiate; a number, or several.
        budget: The bytes that a call may take, the tangents beside the values of *residual* on top; None for no bound.

    Returns:
        `product(*args, v)` with arguments, vector and result as for `hvp`.

    Raises:
        TypeError: The loss is no real scalar, or an input is no floating-point number.
        CotangentError: The vector has another structure, shape or kind of dtype than the argument.
        DeterminismError: The two runs of *residual* gave different outputs.
        BudgetError: The budget is too small; says the least that would do.

    Memory:
        As `vjp` of *residual*, with the outputs and their tangents beside it; time loops follow the same schedules.

    Source:
        Schraudolph, Fast curvature matrix-vector products for second-order gradient descent (2002).

    Example:
        >>> import numpy as np
        >>> gauss_newton_product(np.sin)(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
        array([1., 0.])
    """
    check_function(residual, "gauss_newton_product")
    if loss is not None:
        check_function(loss, "loss=", "loss(outputs)")

    @wraps(residual)
    def product(*args_and_vector: Any, **kwargs: Any) -> Any:
        chosen, point, directions, single = _chosen("gauss_newton_product", residual, argnums, args_and_vector, kwargs)
        # One account of all its parts: what one of them keeps for a later one is taken from that.
        with account(budget) as acct, entered(ledger=acct.ledger, budget=acct.budget):
            value, tangent = jvp(chosen, point, directions)
            again, pullback = vjp(chosen, *point)
            _check_same(value, again)
            if loss is None:
                leaves, structure = flatten(tangent)
                cotangent = unflatten(structure, [np.conj(t) if np.iscomplexobj(t) else t for t in leaves])
            else:
                cotangent = hvp(loss)(value, tangent)
            del value, tangent, again
            found = pullback(cotangent)
        return found[0] if single else found

    return product


def _chosen(
    name: str, f: Callable[..., Any], argnums: int | Sequence[int], given: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], list[Any], Sequence[Any], bool]:
    """Return *f* as a function of the chosen arguments, their values, the directions, and whether it is one alone."""
    if len(given) < 2:
        raise TypeError(
            f"The function of {name} was called with {len(given)} positional arguments: it takes those of the function "
            "that it was made of and, after them, the vector."
        )
    *args, vector = given
    numbers = argument_numbers(argnums, tuple(args))
    single = is_one(argnums)
    if not single and not isinstance(vector, (tuple, list)):
        raise CotangentError(f"argnums={argnums!r} takes a tuple with a vector for each argument, not {vector!r:.40}.")
    point = [args[k] for k in numbers]
    return chosen_of(f, numbers, args, kwargs), point, [vector] if single else vector, single


def chosen_of(
    f: Callable[..., Any], numbers: Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Return *f* as a function of the positional arguments with these numbers."""

    def chosen(*values: Any) -> Any:
        full = list(args)
        for k, value in zip(numbers, values, strict=True):
            full[k] = value
        return f(*full, **kwargs)

    return chosen


def _check_same(first: Any, second: Any) -> None:
    """Raise if two runs of a function gave different outputs."""
    pairs = zip(map(_known, flatten(first)[0]), map(_known, flatten(second)[0]), strict=False)
    if any(_differ(a, b) for a, b in pairs):
        raise DeterminismError(
            "The residual gave other outputs when it was run again, so the product would be wrong. Its outputs may "
            "depend on its arguments only: make random numbers from a seed that is an argument."
        )


def _known(value: Any) -> Any:
    """Return what is known of a value: in a function that is traced, and of members of a batch, its type."""
    while type(value) is TracedArray:
        value = value.present()._value
    return value


def _differ(first: Any, second: Any) -> bool:
    """Return whether two values are known to differ; one of a batch may be one for all members in one run alone."""
    if ArrayType in (type(first), type(second)):
        return type_of(first) != type_of(second)
    return checksum_of_result(first) != checksum_of_result(second)


def _returned(products: Any, like: Any, given: list[Any]) -> Any:
    """Return products in memory of the caller, with arrays where the arguments have arrays, also without axes."""
    leaves, structure = flatten(products)
    # What is linear may hand on the vector that was given, and one array for several arguments.
    others, returned = set(map(id, given)), list[Any]()
    for value in flatten(like)[0]:
        product = leaves.pop(0)
        if type(product) is not TracedArray:
            is_new = type(product) is np.ndarray and product.flags.owndata and id(product) not in others
            others.add(id(product))
            made = product if is_new else np.array(product)
            product = made if isinstance(value, np.ndarray) else made[()]
        returned.append(product)
    return unflatten(structure, returned)
