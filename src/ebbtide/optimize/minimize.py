"""SciPy's minimizers over containers, with derivatives that keep within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast, final

import numpy as np

from ebbtide.agree import agree, find_spread, is_alone
from ebbtide.arrays.containers import flatten, form_of, paths_of, unflatten
from ebbtide.arrays.functions import check_call, check_function
from ebbtide.optimize.control import Control
from ebbtide.optimize.functional import ReducedFunctional, as_functional
from ebbtide.optimize.vectors import conjugate, ravel, unravel

# Method -> whether it takes bounds, and whether it takes the action of the Hessian.
_METHODS: Mapping[str, tuple[bool, bool]] = MappingProxyType(
    {
        "L-BFGS-B": (True, False),
        "BFGS": (False, False),
        "CG": (False, False),
        "TNC": (True, False),
        "SLSQP": (True, False),
        "Newton-CG": (False, True),
        "trust-ncg": (False, True),
        "trust-krylov": (False, True),
        "trust-constr": (True, True),
    }
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    """
    Where a minimization ended; `print` shows it in a line.

    Args:
        m: The controls there, in the form in which the functional takes them.
        value: J(m).
        derivative: The cotangent of J at m, of the form of m.
        values: The value of J at the start and after each iteration.
        evaluations: How many times J was computed with its derivative.
        products: How many actions of the Hessian were computed.
        converged: Whether the method says that it reached its tolerance.
        message: What the method says.

    Memory:
        The controls, their cotangent, and a number for each iteration.
    """

    m: Any
    value: float
    derivative: Any
    values: tuple[float, ...]
    evaluations: int
    products: int
    converged: bool
    message: str

    @property
    def iterations(self) -> int:
        """The number of iterations."""
        return len(self.values) - 1

    def __str__(self) -> str:
        products = f", {self.products} actions of the Hessian" if self.products else ""
        return (
            f"{'converged' if self.converged else 'not converged'}: J = {self.value:.6g} (from {self.values[0]:.6g}) "
            f"after {self.iterations} iterations, {self.evaluations} gradients{products}. {self.message}"
        )


def minimize(
    functional: ReducedFunctional | Callable[..., Any],
    m0: Any = None,
    method: str = "L-BFGS-B",
    bounds: tuple[Any, Any] | None = None,
    *,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
    callback: Callable[[Any, float], Any] | None = None,
    progress: bool = False,
) -> Minimum:
    """
    Minimize a functional by `scipy.optimize.minimize`, with exact derivatives.

    The method sees one float64 vector of all unknowns (real and imaginary parts of complex ones) and works in the l2
    inner product; the inner products of the controls are not used. Float32 controls are evaluated in float32: their
    derivatives carry its rounding, so tolerances below about 1e-6 are not reached. Controls of more digits than float64
    has (longdouble, clongdouble) are evaluated in their dtype, at points that have its 53 bits.

    Args:
        functional: A reduced functional, or a function of one control.
        m0: Where to start, as the functional takes it, not changed; the values of the controls if None.
        method: L-BFGS-B, BFGS, CG, TNC or SLSQP use derivatives; Newton-CG, trust-ncg, trust-krylov and trust-constr
            the action of the Hessian too.
        bounds: (least, most), each None, a number for all unknowns, or of the form of *m0*: for each control None, a
            number, or a container of its structure whose leaves broadcast to its shapes, with infinities for no bound.
            For L-BFGS-B, TNC, SLSQP and trust-constr.
        tol: The method's tolerance; its own if None.
        options: The method's own options, such as `{"maxiter": 50}`.
        callback: Called as `callback(m, value)` after each iteration, with controls of its own; ends the search there
            if it raises StopIteration.
        progress: Whether to show the iterations, J and the largest element of its derivative, on stderr.

    Returns:
        The last iterate, with what it took to get there.

    Raises:
        ValueError: The method is unknown or takes no bounds, the bounds do not fit, *m0* has no unknowns, or J is not
            finite there; *tol* is no number of at least 0; or the ranks of a run are not at the same controls, with one
            J and derivative.
        TypeError: A dtype of *m0* is not that of the controls, *functional* is no functional, *callback* no function of
            two values, or *options* no dict.
        BudgetError: The budget of the functional is too small.

    Memory:
        The vectors of the method (L-BFGS-B of SciPy 1.17: 36 of the size of the controls, with its 10 corrections), two
        of ours, and what a derivative takes, within the budget of the functional.

    Source:
        Byrd, Lu, Nocedal, Zhu, A Limited Memory Algorithm for Bound Constrained Optimization (1995), for L-BFGS-B.

    Example:
        >>> import numpy as np
        >>> found = minimize(lambda m: np.sum((m["a"] - 1.0) ** 2) + (m["b"] + 2.0) ** 2, {"a": np.zeros(2), "b": 0.0})
        >>> found.converged, found.m["a"].round(6), round(found.m["b"], 6)
        (True, array([1., 1.]), np.float64(-2.0))
    """
    # SciPy's optimizers take longer to import than all of Ebbtide.
    from scipy.optimize import Bounds, OptimizeResult
    from scipy.optimize import minimize as scipy_minimize
    from tqdm import tqdm

    if not isinstance(cast("object", method), str) or method not in _METHODS:
        raise ValueError(f"method={method!r}: give one that uses derivatives, {', '.join(_METHODS)}.")
    bounded, second = _METHODS[method]
    if m0 is None and not isinstance(functional, ReducedFunctional):
        raise ValueError("minimize was given a plain function and no m0: say where to start.")
    if m0 is None:
        assert isinstance(functional, ReducedFunctional)
        m0 = functional.start()
    _check_options(tol, options, callback)
    functional = as_functional(functional, m0)
    form = _Form(functional, m0)
    if form.start.size == 0:
        raise ValueError("m0 has no unknowns, so that there is nothing to minimize: give arrays that are not empty.")
    if bounds is not None and not bounded:
        names = ", ".join(name for name, (takes, _) in _METHODS.items() if takes)
        raise ValueError(f"The method {method} takes no bounds; {names} do.")
    limits = None if bounds is None else Bounds(*_limits(bounds, form))
    # A bar has a thread that stays for good, also one that is not shown.
    with tqdm(desc=method, unit="iteration", mininterval=0.2) if progress else nullcontext() as bar:
        watch = _Watch(functional, form, callback, bar)
        arguments: dict[str, Any] = {"method": method, "jac": True, "tol": tol, "options": dict(options or {})}
        if second:
            arguments["hessp"] = watch.hessian
        try:
            found = scipy_minimize(watch.evaluate, form.start, callback=watch.iterated, bounds=limits, **arguments)
            return watch.result(found)
        except StopIteration:
            # SciPy ends TNC by an exception, and all other methods by a result in these words.
            if watch.ended is None:
                raise
            message = "`callback` raised `StopIteration`."
            return watch.result(OptimizeResult(x=watch.ended, success=False, message=message))
        finally:
            watch.release()


def _check_options(tol: Any, options: Any, callback: Any) -> None:
    """Raise for what a method cannot be told, or what it would call in vain after its first iteration."""
    is_number = isinstance(tol, (int, float, np.integer, np.floating)) and not isinstance(tol, bool)
    if tol is not None and not (is_number and 0 <= tol < math.inf):
        raise ValueError(f"tol={tol!r}: give a number of at least 0, or None for the tolerance of the method.")
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options={options!r:.60}: give a dict of the method's own options, such as {{'maxiter': 50}}.")
    if callback is not None:
        check_function(callback, "callback=", "callback(m, value)")
        takes = "It takes the controls and the value of the functional there."
        check_call(callback, "The function callback=", "callback(m, value)", takes, 2)


def lbfgs(functional: ReducedFunctional | Callable[..., Any], m0: Any = None, **options: Any) -> Minimum:
    """
    Minimize a functional by L-BFGS-B: `minimize` with the options that this method has most use for by keyword.

    Args:
        functional: As for `minimize`.
        m0: As for `minimize`.
        **options: `bounds`, `tol`, `options`, `callback` and `progress` of `minimize`.

    Returns:
        As `minimize`.

    Raises:
        ValueError: As `minimize`.
        TypeError: As `minimize`.
        BudgetError: As `minimize`.

    Memory:
        As `minimize`.

    Example:
        >>> import numpy as np
        >>> lbfgs(lambda x: np.sum((x - 3.0) ** 2), np.zeros(2)).m.round(6)
        array([3., 3.])
    """
    return minimize(functional, m0, method="L-BFGS-B", **options)


@final
class _Form:
    """How the controls are laid out in one vector."""

    __slots__ = ("_numbers", "controls", "kinds", "several", "start", "structure")

    def __init__(self, functional: ReducedFunctional, m0: Any) -> None:
        # The leaves of all controls, in the form that the functional takes and returns.
        leaves, self.structure = flatten(functional.containers(functional.split(m0, "m0")))
        self.kinds = tuple([kind for control in functional.all_controls for kind in control.kinds])
        self._numbers = tuple([not isinstance(leaf, np.ndarray) for leaf in leaves])
        self.controls = functional.all_controls
        self.several = not isinstance(functional.controls, Control)
        self.start = ravel(leaves)

    def unravel(self, vector: Any) -> Any:
        """Return m of a vector."""
        return unflatten(self.structure, unravel(vector, self.kinds, self._numbers))

    def ravel_cotangent(self, cotangent: Any) -> Any:
        """Return the derivative with respect to the vector: the imaginary part of c = dJ/dx - i dJ/dy is turned."""
        return ravel([conjugate(leaf) for leaf in flatten(cotangent)[0]])


@final
class _Watch:
    """What SciPy calls: evaluates, counts, and shows; `release` lets go of all, whoever still holds it."""

    __slots__ = ("_bar", "_callback", "_evaluations", "_form", "_functional", "_last", "_products", "_values", "ended")

    def __init__(self, functional: ReducedFunctional, form: _Form, callback: Any, bar: Any) -> None:
        self._functional: Any = functional
        self._form: Any = form
        self._callback: Any = callback
        self._bar: Any = bar
        self._evaluations = 0
        self._products = 0
        self._values: list[float] = []
        # The vector of the last evaluation, its value and derivative.
        self._last: Any = (None, math.nan, None)
        # The iterate at which the callback ended the search.
        self.ended: Any = None

    def evaluate(self, vector: Any) -> tuple[float, Any]:
        """Return the value and its derivative."""
        found, cotangent = self._functional.value_and_derivative(self._form.unravel(vector))
        value = float(found)
        if not self._evaluations and not math.isfinite(value):
            raise ValueError(f"The functional is {value} at m0; start where it is finite.")
        slope = self._form.ravel_cotangent(cotangent)
        if not self._evaluations:
            _check_ranks(vector, value, slope)
        self._evaluations += 1
        if not self._values:
            self._values.append(value)
        self._last = (np.array(vector), value, slope)
        return value, slope

    def hessian(self, vector: Any, direction: Any) -> Any:
        """Return the action of the Hessian."""
        self._products += 1
        form = self._form
        return form.ravel_cotangent(self._functional.hessian(form.unravel(vector), form.unravel(direction)))

    def iterated(self, vector: Any, *_: Any) -> None:
        """Take note of an iterate."""
        # Nearly always the last evaluated point; a trust region may go back to the one before.
        value, slope = self._at(vector)
        self._values.append(value)
        if self._bar is not None:
            self._bar.set_postfix_str(f"J = {value:.4e}, |dJ| = {np.max(np.abs(slope), initial=0.0):.1e}", False)
            self._bar.update()
        if self._callback is not None:
            try:
                self._callback(self._form.unravel(vector), value)
            except StopIteration:
                self.ended = np.array(vector)
                raise

    def _at(self, vector: Any) -> tuple[float, Any]:
        if not np.array_equal(self._last[0], vector):
            self.evaluate(vector)
        return self._last[1:]

    def result(self, found: Any) -> Minimum:
        """Return what SciPy found."""
        value, slope = self._at(found.x)
        leaves = [conjugate(leaf) for leaf in flatten(self._form.unravel(slope))[0]]
        return Minimum(
            m=self._form.unravel(found.x),
            value=value,
            derivative=unflatten(self._form.structure, leaves),
            values=tuple(self._values),
            evaluations=self._evaluations,
            products=self._products,
            converged=bool(found.success),
            message=str(found.message),
        )

    def release(self) -> None:
        """Let go of everything: SciPy's objects refer to this one in cycles, which only the collector ends."""
        self._functional = self._form = self._callback = self._bar = self._last = self.ended = None


def _check_ranks(vector: Any, value: float, slope: Any) -> None:
    """Raise on all ranks of a run unless each begins at the same controls, with one value and derivative."""
    if is_alone():
        return
    weights, size = np.cos(np.arange(vector.size)), float(vector.size)
    facts = [size, value, float(weights @ vector), float(weights @ slope)]
    scales = [0.0, abs(value), float(np.sum(np.abs(vector))), float(np.sum(np.abs(slope)))]
    # Processors of several kinds round differently.
    pairs = zip(find_spread(facts), scales, strict=True)
    if agree(any(spread > 1e-3 * scale for spread, scale in pairs)):
        raise ValueError(
            "minimize on many ranks takes controls of which each has the same copy, and here the "
            f"{vector.size} unknowns of this rank, J = {value:.6e} or its derivative are not those of another: they "
            "would step differently, and wait for each other. Give each rank all controls, which J takes by "
            "mpi.replicated, and make J one value by mpi.total; or minimize outside of `distributed` where each rank "
            "has a problem of its own."
        )


def _limits(bounds: tuple[Any, Any], form: _Form) -> tuple[Any, Any]:
    """Return the least and the most value of each unknown."""
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ValueError("bounds is a tuple (least, most), each None, a number, or a container of the form of m0.")
    if any(kind.dtype.kind == "c" for kind in form.kinds):
        raise ValueError(
            "Complex controls take no bounds, as complex numbers have no order; use a real and an imaginary control."
        )
    least = _limit(bounds[0], -np.inf, form, "least")
    most = _limit(bounds[1], np.inf, form, "most")
    wrong = ~((least <= most) & (least < np.inf) & (most > -np.inf))
    if np.any(wrong):
        where = int(np.argmax(wrong))
        raise ValueError(
            f"The bounds of unknown {where} leave no number for it: at least {least[where]}, at most {most[where]}. "
            "Give None where there is no bound."
        )
    return least, most


def _limit(bound: Any, missing: float, form: _Form, name: str) -> Any:
    """Return one bound for each unknown."""
    each = [bound]
    if form.several:
        each = list(bound) if isinstance(bound, (list, tuple)) else [bound] * len(form.controls)
    if len(each) != len(form.controls):
        raise ValueError(f"The {name} bounds are {len(each)}, and there are {len(form.controls)} controls.")
    return np.concatenate([_limit_of(x, missing, c, name) for x, c in zip(each, form.controls, strict=True)])


def _limit_of(bound: Any, missing: float, control: Control, name: str) -> Any:
    """Return one bound for each unknown of a control."""
    if bound is None or np.isscalar(bound):
        size = sum(kind.size for kind in control.kinds)
        return np.full(size, missing if bound is None else _numbers_of(bound, f"{name} bounds"))
    leaves, structure = flatten(bound)
    if structure != control.structure:
        raise ValueError(
            f"The {name} bounds have the structure {form_of(structure)}, and the control has "
            f"{form_of(control.structure)}."
        )
    parts: list[Any] = []
    for leaf, kind, place in zip(leaves, control.kinds, paths_of(structure), strict=True):
        bounds = _numbers_of(leaf, f"{name} bounds{place}")
        try:
            parts.append(np.broadcast_to(bounds, kind.shape).ravel())
        except ValueError:
            raise ValueError(
                f"The {name} bounds{place} have the shape {np.shape(leaf)}, which does not broadcast to {kind.shape}."
            ) from None
    return np.concatenate(parts)


def _numbers_of(bound: Any, name: str) -> Any:
    """Return bounds as numbers of double precision."""
    found = np.asarray(bound)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"The {name} are {bound!r:.60}, of dtype {found.dtype}. Give real numbers.")
    return found.astype(np.float64)
