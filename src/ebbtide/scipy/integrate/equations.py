"""`odeint` and `solve_ivp` on traced arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import integrate
from scipy.optimize import OptimizeResult

from ebbtide.errors import TraceError
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import is_traced, stands_for
from ebbtide.scipy.integrate.trajectory import trajectory, vector_of_numbers


@stands_for(integrate.odeint)
def odeint(func: Callable[..., Any], y0: Any, t: Any, args: tuple[Any, ...] = (), **options: Any) -> Any:
    """
    Return the solution of an ordinary differential equation, as `scipy.integrate.odeint`.

    Args:
        func: The right-hand side, `func(y, t, *args)`, or with `tfirst=True` `func(t, y, *args)`: an array, or a list
            of numbers. What it takes from elsewhere has no derivative: hand it over in *args*.
        y0: The state at the first time, a vector.
        t: The times.
        args: What *func* takes: arrays, and anything else, also in containers.
        options: Those of SciPy, but `full_output`. `rtol` and `atol` hold for derivatives, too; `Dfun` does not.

    Returns:
        An array (times, components).

    Raises:
        TraceError: `full_output` is asked for.

    Memory:
        A record saves the solution and the traced arguments, no state in between: cotangents go backwards from each of
        the times anew. Derivatives are exact to the tolerances, as they are those of the equation.
    """
    if options.pop("full_output", False):
        raise refusal("odeint of traced arrays does not return the full output: leave full_output out.")
    in_front = options.get("tfirst", False)
    tolerances = {k: float(np.min(options[k])) for k in ("rtol", "atol") if options.get(k) is not None}
    bounds = {k: options[k] for k in ("hmax", "mxstep", "mxordn", "mxords") if k in options}

    def solver(other: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
        def solve(y0: Any, times: Any, args: Any) -> Any:
            return integrate.odeint(other, y0, times, args, tfirst=True, **tolerances, **bounds)

        return solve

    def solve(y0: Any, times: Any, args: Any) -> Any:
        return integrate.odeint(func, y0, times, args, **options)

    def turned(t: Any, y: Any, *args: Any) -> Any:
        return func(y, t, *args)

    args = args if isinstance(args, tuple) else (args,)
    return trajectory(
        func if in_front else turned, solve, solver, vector_of_numbers(y0), vector_of_numbers(t), args, (5, 0)
    )


# Vectors of the size of the state, and matrices of its square, that a method of `solve_ivp` has at a time.
_TAKES: Mapping[Any, tuple[int, int]] = MappingProxyType(
    {"RK23": (18, 0), "RK45": (22, 0), "DOP853": (40, 0), "LSODA": (24, 1), "BDF": (24, 5), "Radau": (36, 10)}
)


class _Noted:
    """A method that tells of itself, as SciPy's keep each other alive until the collector of cycles comes."""

    def __init__(self, *args: Any, made: list[Any], **options: Any) -> None:
        made.append(self)
        super().__init__(*args, **options)


_METHODS: Mapping[Any, Any] = MappingProxyType(
    {name: type(name, (_Noted, getattr(integrate, name)), {}) for name in _TAKES}
)


def _solve(
    fun: Any, t_span: Any, y0: Any, method: Any = "RK45", t_eval: Any = None, dense_output: bool = False, *rest: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """Return what `solve_ivp` does of plain arrays; what its solver had is free as soon as it ends."""
    # How the pieces of a dense output follow each other SciPy tells by its own classes.
    noted = None if dense_output else _METHODS.get(method)
    if noted is None:
        return integrate.solve_ivp(fun, t_span, y0, method, t_eval, dense_output, *rest, **options)
    made: list[Any] = []
    try:
        return integrate.solve_ivp(fun, t_span, y0, noted, t_eval, dense_output, *rest, made=made, **options)
    finally:
        for one in made:
            vars(one).clear()


def _initial_value(func: Callable[..., Any], end: Any, options: dict[str, Any]) -> Callable[[Any, Any, Any], Any]:
    """Return `solve(y0, times, args)` by `solve_ivp`: to *end*, or by default to the last time."""

    def solve(y0: Any, times: Any, args: Any) -> Any:
        span = (times[0], times[-1] if end is None else end)
        if span[0] == span[1]:
            return np.tile(y0, (len(times), 1))
        found = _solve(func, span, y0, t_eval=times[1:], args=args or None, **options)
        if not found.success:
            raise TraceError(f"solve_ivp did not reach t = {span[1]}: {found.message} Derivatives need all of it.")
        return np.concatenate([y0[None], found.y.T])

    return solve


@stands_for(integrate.solve_ivp, _solve)
def solve_ivp(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    method: Any = "RK45",
    t_eval: Any = None,
    args: tuple[Any, ...] | None = None,
    **options: Any,
) -> Any:
    """
    Return the solution of an ordinary differential equation, as `scipy.integrate.solve_ivp`.

    Args:
        fun: The right-hand side, `fun(t, y, *args)`: an array, or a list of numbers. What it takes from elsewhere has
            no derivative: hand it over in *args*.
        t_span: First and last time, plain numbers.
        y0: The state at the first time, a vector.
        method: Name or class of the method, for derivatives, too.
        t_eval: The times of the result. They have to be given: those that a method chooses have no derivative.
        args: What *fun* takes: arrays, and anything else, also in containers.
        options: `rtol`, `atol` and `max_step` hold for derivatives, too; `jac` and others of a method do not.

    Returns:
        SciPy's result, of which `t` and `y` (components, times) are traced, with `success`, `status` and `message`, and
        no more.

    Raises:
        TraceError: *t_eval* is not given, *t_span* is traced, `events` or `dense_output` are asked for, or the method
            does not reach the end.

    Memory:
        As `odeint`.
    """
    if t_eval is None or is_traced(t_span):
        raise refusal(
            "solve_ivp of traced arrays needs the times of its result in t_eval, and plain numbers in t_span: the "
            "times that a method chooses have no derivative. Derivatives by times are those by t_eval."
        )
    refused = [name for name in ("events", "dense_output", "vectorized") if options.pop(name, None)]
    if refused:
        raise refusal(f"solve_ivp of traced arrays has no rule for {', '.join(refused)}: leave it out.")
    first, last = map(float, t_span)
    again = {k: float(np.min(v)) for k, v in options.items() if k in ("rtol", "atol", "max_step")} | {"method": method}

    def solver(other: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
        return _initial_value(other, None, again)

    solve = _initial_value(fun, last, {"method": method, **options})
    times = np.concatenate([np.full(1, first), vector_of_numbers(t_eval)])
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    takes = _TAKES.get(method, _TAKES["RK45"])
    states = trajectory(fun, solve, solver, vector_of_numbers(y0), times, args, takes)[1:]
    return OptimizeResult(
        t=times[1:], y=states.T, status=0, success=True, message="The solver successfully reached the end."
    )
