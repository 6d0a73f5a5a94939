"""Derivatives of functions that do the same to each element, and of functions of one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_value, flatten, output_type, single_output
from ebbtide.arrays.functions import check_function
from ebbtide.budget import Budget
from ebbtide.tape.account import account
from ebbtide.tape.recording import Recording
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.products import chosen_of
from ebbtide.transforms.reverse import argument_numbers, check_complex, is_one


def elementwise_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    budget: Budget | None = None,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """
    Return a function that computes the derivative of each element of the result of *f* by its element of an argument.

    Of a function that does the same to each element, that is the diagonal of the Jacobian; of any function of the shape
    of its argument it is the gradient of the sum of the result.

    Args:
        f: A function of arrays and containers of arrays whose result is an array of the shape of each array that is
            differentiated.
        argnums: Which positional arguments to differentiate; a number, or several.
        budget: The bytes that a call may take; None for no bound.
        holomorphic: As for `grad`.

    Returns:
        A function with the arguments of *f* that returns the derivative, of the structure, shapes and dtypes of the
        argument, or a tuple of them for several, in memory of the caller.

    Raises:
        TypeError: The result has another shape than an argument, is complex (with *holomorphic* real, or an argument
            is), or an argument is no floating-point number.
        BudgetError: The budget is too small; says the least that would do.

    Memory:
        As `grad`.

    Example:
        >>> import numpy as np
        >>> elementwise_grad(np.sin)(np.array([0.0, np.pi]))
        array([ 1., -1.])
    """
    check_function(f, "elementwise_grad")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with account(budget) as acct:
            recording = Recording(f, args, kwargs, argument_numbers(argnums, args), acct)
            if holomorphic:
                check_complex(recording, "elementwise_grad")
            single_output(recording.outputs, recording.structure, "elementwise_grad")
            ((node, value),) = recording.roots()
            kind = output_type(value, "elementwise_grad", "")
            _check_elements(kind, [leaf.type for leaf in recording.leaves], holomorphic)
            del value
            seeds = [] if node is None else [(node, np.ones(kind.shape, kind.dtype)[()], False)]
            del node
            gradients = recording.gradients(seeds)
        return gradients[0] if is_one(argnums) else tuple(gradients)

    return wrapped


def _check_elements(kind: ArrayType, inputs: list[ArrayType], holomorphic: bool) -> None:
    """Raise unless there is one derivative for each element."""
    for other in inputs:
        if other.shape != kind.shape:
            raise TypeError(
                f"elementwise_grad needs a result of the shape of each argument, and an argument of type {other} gives "
                f"one of type {kind}. Broadcast the argument before, or use jacobian."
            )
    if (kind.dtype.kind == "c") != holomorphic:
        raise TypeError(
            f"elementwise_grad {'with' if holomorphic else 'without'} holomorphic=True needs a "
            f"{'complex' if holomorphic else 'real'} result, and this one is of type {kind}."
        )


def deriv(f: Callable[..., Any], argnum: int = 0, budget: Budget | None = None) -> Callable[..., Any]:
    """
    Return a function that computes the derivative of *f* with respect to one number, by forward mode.

    Args:
        f: A function of a number, and of anything else, with any arrays and containers of arrays as outputs.
        argnum: Which positional argument is that number: a float, a complex number, or an array without axes. Of a
            complex number the derivative is the one along the real axis, which is that of a holomorphic function.
        budget: The bytes that what is inside may take, as for `jvp`: the tangents come on top. None for no bound.

    Returns:
        A function with the arguments of *f* that returns the derivative, of the form of the outputs.

    Raises:
        TypeError: The argument is no floating-point number.

    Memory:
        A tangent beside each value of *f*, for as long as that.

    Example:
        >>> import numpy as np
        >>> deriv(lambda t: np.stack([np.cos(t), np.sin(t)]))(0.0)
        array([-0.,  1.])
    """
    check_function(f, "deriv")
    if not is_one(argnum):
        raise TypeError(f"argnum={argnum!r}: give the number of one positional argument, 0 for the first.")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers(argnum, args)
        leaves, structure = flatten(args[numbers[0]])
        if structure.num_leaves != 1 or np.shape(as_value(leaves[0], f"argument {numbers[0]}")):
            raise TypeError(
                f"deriv needs one number as argument {numbers[0]}, and it was given {args[numbers[0]]!r:.60}. Use "
                "jacobian for several numbers, or elementwise_grad."
            )
        kind = type_of(leaves[0])
        tangent = np.ones(kind.shape, kind.dtype)[()]
        return jvp(chosen_of(f, numbers, args, kwargs), [args[numbers[0]]], [tangent], budget=budget)[1]

    return wrapped
