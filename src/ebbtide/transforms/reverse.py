"""Gradients of real functions: one forward run, one reverse sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import flatten, frozen_leaf, output_type, single_output, unflatten
from ebbtide.arrays.functions import check_function, numbers_of_arguments
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.budget import Budget
from ebbtide.loop.resuming.directory import resumable
from ebbtide.tape.account import account
from ebbtide.tape.recording import Recording


def argument_numbers(argnums: int | Sequence[int], args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return *argnums* as numbers of positional arguments, counted from the first."""
    numbers = numbers_of_arguments("argnums", argnums, negative=True)
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise TypeError(
                f"argnums={argnums!r} asks for argument {k}, but the function was called with {len(args)} "
                "positional arguments. Only positional arguments can be differentiated."
            )
    found = tuple([k % len(args) for k in numbers])
    if len(set(found)) < len(found):
        raise TypeError(f"argnums={argnums!r} asks for an argument twice. Ask once, and use its gradient twice.")
    return found


def is_one(argnums: int | Sequence[int]) -> bool:
    """Return whether *argnums* is the number of one argument, whose derivative comes alone and in no tuple."""
    return isinstance(argnums, (int, np.integer))


def _scalar(value: Any, name: str, *, holomorphic: bool) -> Any:
    """Return a scalar output, or say what to use for others."""
    kind = output_type(value, name, "").dtype
    if np.shape(bottom(value)) != ():
        raise TypeError(
            f"{name} needs a function with a scalar output, and this one gives the shape {np.shape(bottom(value))}. "
            "Use vjp for the pullback of one cotangent, or jacobian for all derivatives."
        )
    if holomorphic and kind.kind != "c":
        raise TypeError(
            f"{name} with holomorphic=True needs a function with a complex output, and this one gives {kind}. Leave "
            "holomorphic= out for a real one."
        )
    if not holomorphic and kind.kind not in "fiub":
        raise TypeError(
            f"{name} needs a function with a real output, and this one gives {kind}. Take np.real, np.imag or "
            "np.abs of it, say holomorphic=True if it is, or use vjp with a complex cotangent."
        )
    return value


def check_complex(recording: Recording, name: str) -> None:
    """Raise unless all that is differentiated is complex, as the derivative of a holomorphic function has to be."""
    for leaf in recording.leaves:
        if leaf.type.dtype.kind != "c":
            raise TypeError(
                f"{name} with holomorphic=True needs complex arguments, and one is of type {leaf.type}: a real one "
                "gets real parts only. Make it complex."
            )


def value_and_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    budget: Budget | None = None,
    resume: str | Path | None = None,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """
    Return a function that computes the value of *f* and its gradient.

    Args:
        f: A function of arrays and containers of arrays with a real scalar result.
        argnums: Which positional arguments to differentiate; a number, or several.
        has_aux: Whether *f* returns (value, anything else).
        budget: The bytes that a call may take; None for no bound.
        resume: A directory for the journals of the time loops of a call, in their order: killed and called again
            with the same arguments, they go on where they were. What is outside of the loops runs again, and has to
            give the same value.
        holomorphic: Promise that *f* is holomorphic in all that is differentiated, all of it complex, with a complex
            result: then the gradient is its complex derivative.

    Returns:
        A function with the arguments of *f* that returns (value, gradient), or ((value, aux), gradient).
        The gradient has the structure, shapes and dtypes of its argument and belongs to the caller. That of a real
        function of complex numbers is `df/dx - i df/dy`.

    Raises:
        TypeError: The output is no real scalar (with *holomorphic* no complex one, or an input is real), or an input is
            no floating-point number.
        BudgetError: The budget is too small; says the least that would do.
        ResumeError: The directory holds another run, or one with another value; says what differs.
        MutationError: An array that *f* used was changed before the reverse sweep came to it.

    Memory:
        From the forward run on it holds the saved values of each operation until the reverse sweep has
        passed it, and one cotangent for each value between the sweep and the output; nothing after.

    Example:
        >>> import numpy as np
        >>> value_and_grad(lambda x: np.sum(x**2))(np.array([1.0, 2.0]))
        (np.float64(5.0), array([2., 4.]))
    """
    check_function(f, "value_and_grad")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with account(budget) as acct, resumable(resume) as directory:
            recording = Recording(f, args, kwargs, argument_numbers(argnums, args), acct)
            if holomorphic:
                check_complex(recording, "grad")
            aux: Any = None
            if has_aux:
                aux = _plain_aux(recording)
            single_output(recording.outputs, recording.structure, "grad")
            ((node, value),) = recording.roots()
            value = _scalar(value, "grad", holomorphic=holomorphic)
            if directory is not None:
                directory.check_value(bottom(value))
            seed = type_of(value).dtype.type(1)
            seeds = [] if node is None else [(node, seed, False)]
            del node
            gradients = recording.gradients(seeds)
        gradient = gradients[0] if is_one(argnums) else tuple(gradients)
        return ((value, aux), gradient) if has_aux else (value, gradient)

    return wrapped


def _plain_aux(recording: Recording) -> Any:
    """Take the auxiliary output off a recording and return it without its trace."""
    outputs = unflatten(recording.structure, recording.outputs)
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise TypeError("With has_aux=True the function returns a tuple (value, auxiliary).")
    value, aux = outputs
    leaves, structure = flatten(aux)
    plain = [_without_trace(x) if type(x) is TracedArray and x._trace is recording.tape else x for x in leaves]
    recording.outputs, recording.structure = flatten(value)
    return unflatten(structure, plain)


def _without_trace(x: TracedArray) -> Any:
    """Return the value of an array outside of its trace, in memory of its own."""
    value = x.present()._value
    return np.array(value) if isinstance(value, np.ndarray) else frozen_leaf(value)


def grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    budget: Budget | None = None,
    resume: str | Path | None = None,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """
    Return a function that computes the gradient of *f*.

    Args:
        f: A function of arrays and containers of arrays with a real scalar result.
        argnums: Which positional arguments to differentiate; a number, or several.
        has_aux: Whether *f* returns (value, anything else).
        budget: The bytes that a call may take; None for no bound.
        resume: As for `value_and_grad`; how often to save says `resume_every` of each loop.
        holomorphic: As for `value_and_grad`.

    Returns:
        A function with the arguments of *f* that returns the gradient, or (gradient, aux).

    Raises:
        TypeError, BudgetError, ResumeError, MutationError: As `value_and_grad`.

    Memory:
        As `value_and_grad`.

    Example:
        >>> import numpy as np
        >>> grad(np.sin)(0.0)
        np.float64(1.0)
    """
    check_function(f, "grad")
    both = value_and_grad(f, argnums, has_aux, budget, resume, holomorphic)

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped
