"""The transforms: from a function to its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import (
    as_value,
    check_vectors,
    flatten,
    output_type,
    output_types,
    paths_of,
    single_output,
    unflatten,
)
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import matched
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import lowered, vector_of
from ebbtide.arrays.views import bottom
from ebbtide.budget import Budget
from ebbtide.errors import CotangentError, ReleasedValueError
from ebbtide.loop.journal import resumable
from ebbtide.tape.account import account
from ebbtide.tape.recording import Recording, settle
from ebbtide.tape.saved import guard_shared
from ebbtide.tape.tangent import TangentTrace


def _argnums(argnums: int | Sequence[int], args: tuple[Any, ...]) -> tuple[int, ...]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise TypeError(
                f"argnums={argnums!r} asks for argument {k}, but the function was called with {len(args)} "
                "positional arguments. Only positional arguments can be differentiated."
            )
    return tuple(k % len(args) for k in numbers)


def _scalar(value: Any, name: str) -> Any:
    """Return a scalar output, or say what to use for others."""
    kind = output_type(value, name, "").dtype
    if np.shape(bottom(value)) != ():
        raise TypeError(
            f"{name} needs a function with a scalar output, and this one gives the shape {np.shape(bottom(value))}. "
            "Use vjp for the pullback of one cotangent, or jacobian for all derivatives."
        )
    if kind.kind not in "fiub":
        raise TypeError(
            f"{name} needs a function with a real output, and this one gives {kind}. Take np.real, np.imag or "
            "np.abs of it, or use vjp with a complex cotangent."
        )
    return value


def value_and_grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    budget: Budget | None = None,
    resume: str | Path | None = None,
) -> Callable[..., Any]:
    """
    Return a function that computes the value of *f* and its gradient.

    Args:
        f: A function of arrays and containers of arrays with a real scalar result.
        argnums: Which positional arguments to differentiate; a number, or several.
        has_aux: Whether *f* returns (value, anything else).
        budget: The bytes that a call may take; None for no bound.
        resume: A directory for the journals of the time loops of a call, in their order: killed and called again
            with the same arguments, they go on where they were. What is outside of the loops runs again.

    Returns:
        A function with the arguments of *f* that returns (value, gradient), or ((value, aux), gradient).
        The gradient has the structure, shapes and dtypes of its argument and belongs to the caller.

    Raises:
        TypeError: The output is no real scalar, or an input is no floating-point number.
        BudgetError: The budget is too small; says the least that would do.
        MutationError: An array that *f* used was changed before the reverse sweep came to it.

    Memory:
        From the forward run on it holds the saved values of each operation until the reverse sweep has
        passed it, and one cotangent for each value between the sweep and the output; nothing after.

    Example:
        >>> import numpy as np
        >>> value_and_grad(lambda x: np.sum(x**2))(np.array([1.0, 2.0]))
        (np.float64(5.0), array([2., 4.]))
    """

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with account(budget) as acct, resumable(resume):
            recording = Recording(f, args, kwargs, _argnums(argnums, args), acct)
            aux: Any = None
            if has_aux:
                aux = _plain_aux(recording)
            single_output(recording.outputs, recording.structure, "grad")
            ((node, value),) = recording.roots()
            value = _scalar(value, "grad")
            seed = type_of(value).dtype.type(1)
            seeds = [] if node is None else [(node, seed, False)]
            del node
            gradients = recording.gradients(seeds)
        gradient = gradients[0] if isinstance(argnums, int) else tuple(gradients)
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
    return np.array(value) if isinstance(value, np.ndarray) else _returned(value)


def grad(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    budget: Budget | None = None,
    resume: str | Path | None = None,
) -> Callable[..., Any]:
    """
    Return a function that computes the gradient of *f*.

    Args:
        f: A function of arrays and containers of arrays with a real scalar result.
        argnums: Which positional arguments to differentiate; a number, or several.
        has_aux: Whether *f* returns (value, anything else).
        budget: The bytes that a call may take; None for no bound.
        resume: As for `value_and_grad`.

    Returns:
        A function with the arguments of *f* that returns the gradient, or (gradient, aux).

    Raises:
        TypeError: The output is no real scalar, or an input is no floating-point number.
        BudgetError: The budget is too small; says the least that would do.

    Memory:
        As `value_and_grad`.

    Example:
        >>> import numpy as np
        >>> grad(np.sin)(0.0)
        np.float64(1.0)
    """
    both = value_and_grad(f, argnums, has_aux, budget, resume)

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def vjp(
    f: Callable[..., Any], *args: Any, retain: bool = False, budget: Budget | None = None
) -> tuple[Any, Pullback]:
    """
    Run *f* and return its value and the pullback of cotangents.

    Args:
        f: A function of arrays and containers of arrays.
        *args: Its arguments, all differentiated.
        retain: Keep the saved values, so that the pullback can be called several times.
        budget: The bytes that the run and the pullback may take; None for no bound.

    Returns:
        (value, pullback). `pullback(cotangent)`, with a cotangent of the structure of the value, returns a
        tuple with the cotangent of each argument.

    Raises:
        TypeError: An input is no floating-point number, or an output is no array and no number.
        BudgetError: The budget is too small.

    Memory:
        The saved values of all operations, until the pullback is called, or dropped.

    Example:
        >>> import numpy as np
        >>> value, pullback = vjp(np.exp, np.zeros(2))
        >>> pullback(np.ones(2))
        (array([1., 1.]),)
    """
    with account(budget) as acct:
        recording = Recording(f, args, {}, range(len(args)), acct)
        structure = recording.structure
        kinds = output_types(recording.outputs, structure, "vjp")
        roots = recording.roots()
        guard_shared([node for node, _ in roots if node is not None], [value for _, value in roots])
        acct.keep_open()
    value = unflatten(structure, [_returned(value) for _, value in roots])
    return value, Pullback(recording, structure, roots, kinds, retain)


def _returned(value: Any) -> Any:
    return TracedArray(value._trace, value._node, value._value) if type(value) is TracedArray else value


@final
class Pullback:
    """
    Takes a cotangent of the outputs of a function to the cotangents of its arguments.

    Memory:
        Holds the tape of one run of the function until it is called, unless it retains it.
    """

    __slots__ = ("__weakref__", "_consumer", "_kinds", "_recording", "_retain", "_roots", "_structure")

    def __init__(
        self, recording: Recording, structure: Any, roots: list[Any], kinds: list[ArrayType], retain: bool
    ) -> None:
        self._recording: Recording | None = recording
        self._consumer = ""
        self._structure = structure
        self._roots = [node for node, _ in roots]
        self._kinds = kinds
        self._retain = retain

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        """
        Return the cotangents of the arguments.

        Args:
            cotangent: Of the structure, shapes and dtypes of the value of the function.

        Raises:
            CotangentError: It is of another structure, shape or kind of dtype.
            ReleasedValueError: An earlier call consumed the saved values.
        """
        recording = self._recording
        if recording is None:
            raise ReleasedValueError(
                f"The saved values of this pullback are gone: {self._consumer} consumed them. Ask vjp for retain=True "
                "to pull back several times."
            )
        leaves, structure = flatten(cotangent)
        if structure != self._structure:
            raise CotangentError(
                f"The cotangent has the structure {structure}, and the value of the function has {self._structure}. "
                "Give one cotangent for each output."
            )
        seeds = []
        for node, kind, leaf in zip(self._roots, self._kinds, leaves, strict=True):
            if node is not None:
                seeds.append((node, _seed(leaf, kind), False))
        del leaves, cotangent
        if self._retain:
            return tuple(recording.gradients(seeds, retain=True))
        recording.tape.consumer = self._consumer = f"the pullback called at {user_line()}"
        self._recording, self._roots = None, []
        try:
            return tuple(recording.gradients(seeds))
        finally:
            recording.account.close()

    def free(self) -> None:
        """Let go of all saved values; a later call raises."""
        if self._recording is not None:
            self._recording.tape.consumer = self._consumer = f"free() at {user_line()}"
            self._recording.account.close()
            for node in self._roots:
                if node is not None:
                    node.parents = node.saved = None
            self._recording, self._roots = None, []


def _seed(leaf: Any, kind: ArrayType) -> Any:
    """Return a cotangent given by the user in the type of its output."""
    value = leaf if isinstance(leaf, (np.ndarray, np.generic, TracedArray)) else np.asarray(leaf)
    if value.shape != kind.shape or (value.dtype.kind == "c" and kind.dtype.kind != "c"):
        raise CotangentError(
            f"A cotangent of type {value.dtype}{list(value.shape)} was given for an output of type {kind}. "
            "Give an array of the shape and dtype of the output."
        )
    return matched(value, kind)


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], budget: Budget | None = None
) -> tuple[Any, Any]:
    """
    Return the value of *f* and its derivative along tangents, by forward mode.

    Args:
        f: A function of arrays and containers of arrays.
        primals: Its arguments.
        tangents: For each argument a container of its structure, shapes and dtypes.
        budget: The bytes that what is inside may take (a gradient of which this is the derivative).

    Returns:
        (value, tangent), both of the structure of the value of *f*.

    Raises:
        CotangentError: A tangent has another structure, shape or kind of dtype than its argument.
        TypeError: An input is no floating-point number, or an output is no array and no number.

    Memory:
        A tangent beside each value that is alive; nothing is kept.

    Example:
        >>> import numpy as np
        >>> jvp(np.sin, (0.0,), (2.0,))
        (np.float64(0.0), np.float64(2.0))
    """
    if len(primals) != len(tangents):
        raise CotangentError(f"jvp was given {len(primals)} arguments and {len(tangents)} tangents.")
    trace = TangentTrace(current().level + 1)
    with account(budget) as acct:
        arguments = []
        for k, (primal, tangent) in enumerate(zip(primals, tangents, strict=True)):
            check_vectors(primal)
            leaves, structure = flatten(primal)
            directions, theirs = flatten(tangent)
            if structure != theirs:
                raise CotangentError(f"The tangent of argument {k} has the structure {theirs}, not {structure}.")
            traced = []
            for leaf, direction, place in zip(leaves, directions, paths_of(structure), strict=True):
                value = as_value(leaf, f"argument {k}{place}")
                array = TracedArray(trace, _seed(direction, type_of(value)), value)
                array.sharing().reachable = True
                traced.append(array)
            arguments.append(unflatten(structure, traced))
        try:
            traces = (*current().traces, trace)
            with entered(level=trace.level, tangent=trace, traces=traces, ledger=acct.ledger, budget=acct.budget):
                outputs, structure = flatten(f(*arguments))
                settle(outputs)
        finally:
            trace.closed = True
    output_types(outputs, structure, "jvp")
    values, derivatives = [], []
    for output in outputs:
        if type(output) is TracedArray and output._trace is trace:
            values.append(output._value)
            derivatives.append(zeros_like(output._value)[()] if output._node is None else output._node)
        else:
            values.append(output)
            derivatives.append(zeros_like(np.asarray(output) if not hasattr(output, "dtype") else output)[()])
    return unflatten(structure, values), unflatten(structure, derivatives)


def stop_gradient(x: Any) -> Any:
    """
    Return a plain copy of an array, which is a constant to all derivatives.

    Args:
        x: An array, traced or plain, or a vector of a registered type.

    Returns:
        A plain array, NumPy scalar or vector, that the caller owns.

    Example:
        >>> import numpy as np
        >>> grad(lambda x: x * stop_gradient(x))(3.0)
        np.float64(3.0)
    """
    array, kind = lowered(x)
    value = bottom(array.present()) if type(array) is TracedArray else array
    value = np.array(value) if isinstance(value, np.ndarray) else value
    return value if kind is None else vector_of(kind, value)
