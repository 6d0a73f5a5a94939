"""
`root`, `fixed_point` and scalar root finders of SciPy, as functions of what their equations are made from.

Derivatives are those of implicit functions: they do not go through the iterations, and their memory does not grow with
them. Where an iteration starts has no influence on a solution, and derivative zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import numpy as np
from scipy import optimize

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import innermost
from ebbtide.errors import SolutionError, TraceError
from ebbtide.scipy.closure import Closure
from ebbtide.scipy.implicit import LinearSystem, System, solution
from ebbtide.scipy.slope import Slope

__all__ = ["bisect", "brenth", "brentq", "fixed_point", "newton", "ridder", "root", "toms748"]

# What flattens its unknowns, and computes in double precision.
_MINPACK = frozenset({"hybr", "lm"})
# A residual that is smaller by so much than where the solver began is one of a solution.
_SOLVED = 2.0**-40


@final
class Equations(System):
    """
    Equations that a user's function gives.

    Args:
        closure: The function, and what else the solver calls.
        solver: `solver(functions, *start)` returns x for functions of x on plain arrays.
        kind: The type of x.
        is_map: Whether the equations are f(x) = x and not f(x) = 0.

    Memory:
        The functions, and what they use, by reference.
    """

    __slots__ = ("_closure", "_is_map", "_kind", "_solver")

    def __init__(
        self, closure: Closure, solver: Callable[..., Any], kind: ArrayType | None, *, is_map: bool = False
    ) -> None:
        self._closure = closure
        self._solver = solver
        self._kind = kind
        self._is_map = is_map

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """See `System.held_arrays`."""
        return self._closure.held_arrays

    @property
    def level(self) -> int:
        """See `System.level`."""
        return self._closure.level

    @property
    def slope(self) -> LinearSystem:
        """See `System.slope`."""
        return Slope(self)

    @contextmanager
    def fixed(self, operands: Sequence[Any]) -> Iterator[Callable[[Any], Any]]:
        """Give the left side of the equations less the right one."""
        with self._closure.bound(operands) as functions:
            yield lambda x: self._difference(x, _array(functions[0](x)))

    def _difference(self, x: Any, left: Any) -> Any:
        if left.size != x.size:
            raise TraceError(
                f"At {user_line()}: {left.size} equations for {x.size} unknowns have no solution that is a function of "
                "what they are made from. Give as many equations as unknowns."
            )
        left = np.reshape(left, x.shape)
        return left - x if self._is_map else left

    def solve(self, start: Sequence[Any], operands: Sequence[Any]) -> Any:
        """Return what the solver gives."""
        with self._closure.bound(operands, values=True) as functions:
            x = self._solver(functions, *start)
        if not hasattr(x, "dtype"):
            x = np.float64(x)
        if self._kind is not None and type_of(x) != self._kind:
            raise TraceError(
                f"At {user_line()}: the solution is {type_of(x)}, and {self._kind} was expected, the type of where the "
                "solver begins together with that of the equations there. Begin with an array of the type of the "
                "solution."
            )
        return x

    def infer(self, start: Sequence[ArrayType], operands: Sequence[ArrayType]) -> ArrayType:
        """Return the type of x."""
        assert self._kind is not None
        return self._kind


def _array(value: Any) -> Any:
    """Return what a function gives as an array: SciPy takes lists of numbers."""
    if isinstance(value, (list, tuple)):
        return np.stack([_array(part) for part in value])
    return value if hasattr(value, "dtype") else np.asarray(value)


def _arguments(args: Any) -> tuple[Any, ...]:
    return args if isinstance(args, tuple) else (args,)


@wraps(optimize.root)
def root(
    fun: Callable[..., Any], x0: Any, args: Any = (), method: str = "hybr", jac: Any = None, tol: Any = None,
    callback: Any = None, options: Any = None,
) -> optimize.OptimizeResult:  # fmt: skip
    """
    Solve a system of equations.

    Args:
        fun: `fun(x, *args)` returns as many numbers as x has. What it uses by closure is found.
        x0: Where the solver begins: of no influence on the solution, and of derivative zero.
        args: Other arguments of the function: a tuple of arrays and containers of arrays.
        method: See `scipy.optimize.root`, also for the others. The solver calls the functions on plain arrays.
        jac: The Jacobian, for the solver; derivatives take that of *fun*.
        tol: Tolerance of the solver; derivatives are as exact as the solution.
        callback: Called by the solver.
        options: Options of the solver.

    Returns:
        SciPy's result, whose `x` has derivatives with respect to args and what *fun* closes over, in each mode and to
        any order; the rest is plain, and only there where values are known: in a program of `jit` and in `vmap` there
        are `x` and `success`, which is True, as anything else is an error there.

    Raises:
        SolutionError: The solver failed where a derivative is taken, or in a program or a batch; or the Jacobian at the
            solution is singular.

    Memory:
        A record keeps x and the arguments, nothing of the iterations. Each derivative solves one linear system: with
        the Jacobian of up to 64 unknowns, else by GMRES with 40 vectors, of which each takes a derivative of *fun*.

    Source:
        Griewank and Walther, Evaluating Derivatives (2008), chapter 15.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> def side(area):
        ...     return root(lambda x: x**2 - area, np.array([1.0])).x[0]
        >>> bool(np.isclose(grad(side)(4.0), 1 / 4))
        True
    """
    args, found = _arguments(args), []
    extra = (jac,) if callable(jac) else ()
    equations = (lambda x, *rest: fun(x, *rest)[0]) if jac is True else fun
    is_flat = method in _MINPACK
    x0 = np.reshape(x0, -1) if is_flat else x0
    closure = Closure((equations, *extra, *([fun] if jac is True else [])), x0, args)
    strict = not closure.has_values or innermost(closure.operands) is not None

    def solver(functions: list[Any], start: Any) -> Any:
        given, slope = functions[0], jac
        if extra or jac is True:
            given, slope = (functions[0], functions[1]) if extra else (functions[1], True)
        result = optimize.root(given, start, (), method, slope, tol, callback, options)
        if strict and not (result.success or _is_solved(result.fun, functions[0](start))):
            raise _failed("root", result.message)
        if closure.has_values:  # else nobody asks for the rest, which the record would keep
            found[:] = [result]
        return result.x

    kind = closure.kind
    if kind is not None and is_flat:
        kind = ArrayType(kind.shape, np.dtype(np.float64))
    x = solution(Equations(closure, solver, kind), closure.operands, (x0,))
    # Out of the list, which the record of x knows.
    result = found.pop() if found else optimize.OptimizeResult(success=True)
    result.x = x
    return result


def _is_solved(left: Any, before: Any) -> bool:
    """Return whether all is solved to rounding: MINPACK fails too where there is no more progress to make."""
    return bool(np.max(np.abs(left), initial=0.0) <= np.max(np.abs(before), initial=0.0) * _SOLVED)


def _failed(name: str, message: str) -> SolutionError:
    return SolutionError(
        f"{name}, called at {user_line()}, found no solution, so that there is no derivative of one: {message} Begin "
        "nearer to the solution, choose another method, or call it where no derivative is taken to see what it found."
    )


@wraps(optimize.fixed_point)
def fixed_point(
    func: Callable[..., Any], x0: Any, args: Any = (), xtol: float = 1e-8, maxiter: int = 500, method: str = "del2"
) -> Any:
    """
    Find x = func(x).

    Args:
        func: `func(x, *args)`, of the shape of x. What it uses by closure is found.
        x0: Where the iteration begins: of no influence on the solution, and of derivative zero.
        args: Other arguments of the function: a tuple of arrays and containers of arrays.
        xtol: Relative tolerance; derivatives are as exact as the solution.
        maxiter: The most iterations.
        method: "del2" or "iteration".

    Returns:
        The fixed point, with derivatives with respect to args and what *func* closes over.

    Raises:
        RuntimeError: SciPy's, where the iteration does not converge.
        SolutionError: The derivative of func(x) - x is singular at the solution.

    Memory:
        See `root`.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> bool(np.isclose(grad(lambda c: fixed_point(lambda x: (x + c / x) / 2, 1.0))(4.0), 1 / 4))
        True
    """
    closure = Closure((func,), x0, _arguments(args))

    def solver(functions: list[Any], start: Any) -> Any:
        return optimize.fixed_point(functions[0], start, (), xtol, maxiter, method)

    return solution(Equations(closure, solver, closure.kind, is_map=True), closure.operands, (x0,))


def _bracketing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return one of SciPy's functions that find a root of a function of one number between two others."""

    @wraps(method)
    def find(
        f: Callable[..., Any], a: Any, b: Any, args: Any = (), *, full_output: bool = False, **options: Any
    ) -> Any:
        closure = Closure((f,), np.float64(0.5) * (a + b), _arguments(args))

        def solver(functions: list[Any], low: Any, high: Any) -> Any:
            return method(functions[0], low, high, full_output=True, **options)

        return _reported(solver, closure, (a, b), full_output)

    return find


bisect = _bracketing(optimize.bisect)
brentq = _bracketing(optimize.brentq)
brenth = _bracketing(optimize.brenth)
ridder = _bracketing(optimize.ridder)
toms748 = _bracketing(optimize.toms748)


@wraps(optimize.newton)
def newton(
    func: Callable[..., Any], x0: Any, fprime: Any = None, args: Any = (), tol: float = 1.48e-8, maxiter: int = 50,
    fprime2: Any = None, x1: Any = None, rtol: float = 0.0, full_output: bool = False, disp: bool = True,
) -> Any:  # fmt: skip
    """
    Find a root of a function of one number, or one for each element of an array.

    Args:
        func: `func(x, *args)`. What it uses by closure is found.
        x0: Where the iteration begins: of no influence on the solution, and of derivative zero.
        fprime: Its derivative, for the solver; None for the method of secants.
        args: Other arguments of the function: a tuple of arrays and containers of arrays.
        tol: See `scipy.optimize.newton`, also for the others.
        maxiter: The most iterations.
        fprime2: The second derivative, for the solver.
        x1: Another place to begin.
        rtol: Relative tolerance.
        full_output: Whether SciPy's report is returned too.
        disp: Whether it is an error if there is no convergence.

    Returns:
        The root, with derivatives with respect to args and what *func* closes over.

    Raises:
        RuntimeError: SciPy's, where the iteration does not converge.
        SolutionError: A derivative is taken, and there is no convergence, or the derivative of func is zero there.

    Memory:
        See `root`.

    Example:
        >>> from ebbtide import grad
        >>> round(grad(lambda c: newton(lambda x: x**2 - c, 1.0))(4.0), 6)
        np.float64(0.25)
    """
    slopes = {name: f for name, f in (("fprime", fprime), ("fprime2", fprime2)) if f is not None}
    closure = Closure((func, *slopes.values()), x0, _arguments(args))
    options = {"tol": tol, "maxiter": maxiter, "rtol": rtol, "disp": disp}

    def solver(functions: list[Any], start: Any, second: Any = None) -> Any:
        given = dict(zip(slopes, functions[1:], strict=True))
        return optimize.newton(functions[0], start, x1=second, full_output=True, **given, **options)

    return _reported(solver, closure, (x0,) if x1 is None else (x0, x1), full_output)


def _reported(solver: Callable[..., Any], closure: Closure, start: tuple[Any, ...], is_asked: bool) -> Any:
    """Return a root, and the solver's report on it if that is asked for."""
    reports: list[Any] = []
    strict = not closure.has_values or innermost(closure.operands) is not None

    def checked(functions: list[Any], *values: Any) -> Any:
        x, *report = solver(functions, *values)
        converged = getattr(report[0], "converged", report[0])
        if strict and not np.all(converged):
            raise _failed("The root finder", "it did not converge.")
        if is_asked and closure.has_values:
            reports[:] = report
        return x

    x = solution(Equations(closure, checked, closure.kind), closure.operands, start)
    if is_asked and not reports:
        raise TraceError(
            f"At {user_line()}: full_output=True asks for a report of the solver, which does not run while a program "
            "is traced, and runs for each member of a batch. Leave it out."
        )
    return (x, *reports) if is_asked else x
